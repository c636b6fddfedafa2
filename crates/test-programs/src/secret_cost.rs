//! The cost of the secret of a job: the same calls at a store without one, with a token, and with a token and
//! TLS, in turns. Prints one JSON object for each round: variant, then quantity, then microseconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdzv_store::{
    Admission, Credentials, Identity, ServerOptions, Store as _, TcpStore, TcpStoreOptions,
    TcpStoreServer, Token, TorchClients,
};
use rdzv_testing::Authority;
use serde_json::{Map, Value, json};

/// Calls of each kind in a round.
const CALLS: u32 = 2_000;

const CONNECTIONS: u32 = 200;

/// Values of 1 MiB in a round.
const LARGE: u32 = 40;

struct Variant {
    name: &'static str,
    credentials: Credentials,
    server: TcpStoreServer,
}

impl Variant {
    fn new(name: &'static str, credentials: Credentials) -> anyhow::Result<Self> {
        let server = TcpStoreServer::start(ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            admission: Admission {
                credentials: credentials.clone(),
                torch_clients: TorchClients::Deny,
                agent_prefix: None,
            },
            ..ServerOptions::default()
        })?;
        Ok(Self {
            name,
            credentials,
            server,
        })
    }

    fn connect(&self) -> anyhow::Result<TcpStore> {
        let options = TcpStoreOptions {
            timeout: Duration::from_secs(30),
            credentials: self.credentials.clone(),
            ..TcpStoreOptions::new("127.0.0.1", self.server.port())
        };
        Ok(TcpStore::connect(options)?)
    }

    /// Microseconds of each quantity.
    fn round(&self) -> anyhow::Result<Value> {
        let store = self.connect()?;
        let large = vec![7; 1 << 20];
        Ok(json!({
            "connect": each(CONNECTIONS, || self.connect().map(drop))?,
            "add": each(CALLS, || Ok(store.add("counter", 1).map(drop)?))?,
            "set and get": each(CALLS, || {
                store.set("key", b"value")?;
                Ok(store.get("key").map(drop)?)
            })?,
            "set and get of 1 MiB": each(LARGE, || {
                store.set("large", &large)?;
                Ok(store.get("large").map(drop)?)
            })?,
        }))
    }
}

fn each(times: u32, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let start = Instant::now();
    for _ in 0..times {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
}

pub(crate) fn main() -> anyhow::Result<()> {
    let rounds = std::env::args().nth(1).context("say how many rounds")?;
    let authority = Authority::new();
    let (certificate, key) = authority.files("node");
    let token = Token::new(b"the token of a benchmark")?;
    let identity = Identity::from_files(&certificate, &key, &authority.file())?;
    let with_token = Credentials {
        token: Some(token),
        identity: None,
    };
    let with_both = Credentials {
        identity: Some(Arc::new(identity)),
        ..with_token.clone()
    };
    let variants = [
        Variant::new("nothing", Credentials::default())?,
        Variant::new("token", with_token)?,
        Variant::new("token and TLS", with_both)?,
    ];
    for _ in 0..rounds.parse::<u32>()? {
        let mut round = Map::new();
        for variant in &variants {
            round.insert(variant.name.to_owned(), variant.round()?);
        }
        println!("{}", Value::Object(round));
    }
    Ok(())
}
