//! A store client for scripts: reads commands and prints results.
//!
//! The interop tests use it.
//!
//! ```text
//! store_client [OPTIONS] tcp://HOST:PORT        a TcpStore
//! store_client [OPTIONS] file:///PATH           a FileStore
//! store_client rendezvous URL                   an init-method URL, without the rest below
//!
//!   --world-size N     default: unknown
//!   --timeout-ms N     default: 300000
//!   --prefix P         wrap the store in a PrefixStore; repeatable, innermost first
//!   --no-wait          do not count this client as joined (init/)
//! ```
//!
//! Prints `ready` once it is connected. Then each line of standard input is one command, its words
//! separated by single spaces. The program answers each line with one line. Keys are plain text,
//! `%` quotes a byte (`%20` is a space, `%25` is `%`, a lone `%` is the empty word). Values are
//! hexadecimal digits in both directions; an empty value is `-`.
//!
//! | command | answer |
//! |---|---|
//! | `set KEY VALUE`, `append KEY VALUE`, `queue_push KEY VALUE` | `ok` |
//! | `get KEY`, `queue_pop KEY`, `queue_try_pop KEY` | the value |
//! | `add KEY N` | the sum, decimal |
//! | `compare_set KEY EXPECTED DESIRED` | the value held afterwards |
//! | `check KEY...`, `delete KEY` | `true` or `false` |
//! | `wait MILLISECONDS KEY...` | `ok` |
//! | `multi_get KEY...` | the values, separated by spaces |
//! | `multi_set KEY VALUE KEY VALUE...` | `ok` |
//! | `num_keys`, `queue_len KEY` | a number |
//! | `list_keys` | the keys, quoted, sorted, separated by spaces |
//! | `barrier KEY WORLD_SIZE MILLISECONDS` | `ok` |
//! | `timeout MILLISECONDS` | `ok` |
//! | `get_state RUN_ID` | `none`, or the state of that run's rendezvous and its token |
//! | `set_state RUN_ID STATE TOKEN` | the same, and `true` if it was written; `-` is no token |
//! | `clone` | `ok`; the following commands use the clone, and the original is closed |
//!
//! If a command fails, the answer is `error ` and the error's text. At the end of the input the
//! program closes the store and exits with 0. If the store cannot be opened, the program prints
//! `error ` and the text instead of `ready`, and exits with 1.
//!
//! `rendezvous` prints `joined RANK WORLD_SIZE`, or `error ` and the text. Then it prints the same
//! for the next round of the same rendezvous.

use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::RendezvousError;
use rdzv_rendezvous::dynamic::{C10dState, SharedState, StateToken};
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_store::{FileStore, PrefixStore, Store, TcpStore, TcpStoreOptions};

type Failure = Box<dyn Error>;

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, url] = &words[..]
        && mode == "rendezvous"
    {
        take_part(url);
        return ExitCode::SUCCESS;
    }
    let mut store = match open() {
        Ok(store) => store,
        Err(error) => {
            println!("error {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match run(&mut store, &words) {
            Ok(answer) => answer,
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        println!("{answer}");
        let _the_reader_is_gone_when_this_fails = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

/// Joins two rounds of the rendezvous of an init-method URL.
fn take_part(url: &str) {
    let options = UrlOptions {
        timeout: Duration::from_secs(10),
        ..UrlOptions::default()
    };
    let mut found = rendezvous(url, None, None, options);
    for _ in 0..2 {
        let joined = match &mut found {
            Ok(found) => found.join().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match joined {
            Ok(joined) => println!("joined {} {}", joined.rank, joined.world_size),
            Err(error) => println!("error {error}"),
        }
    }
}

fn state_of(store: &Arc<dyn Store>, run_id: &str) -> Result<C10dState, Failure> {
    Ok(C10dState::new(Arc::clone(store), &RunId::new(run_id)).map_err(named)?)
}

/// Formats an error with PyTorch's name for it.
fn named(error: RendezvousError) -> String {
    format!("{}: {error}", error.class())
}

/// Formats a state and its token with a suffix, or `none`.
fn shown(now: Option<(Bytes, StateToken)>, more: &str) -> String {
    match now {
        None => "none".to_owned(),
        Some((state, token)) => format!("{} {}{more}", hex(&state), hex(&token.0)),
    }
}

fn open() -> Result<Arc<dyn Store>, Failure> {
    let mut words = std::env::args().skip(1);
    let (mut world_size, mut timeout, mut join) = (None, Duration::from_secs(300), true);
    let mut prefixes = Vec::new();
    let mut url = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--world-size" => world_size = Some(value()?.parse()?),
            "--timeout-ms" => timeout = Duration::from_millis(value()?.parse()?),
            "--prefix" => prefixes.push(value()?),
            "--no-wait" => join = false,
            _ => url = Some(word),
        }
    }
    let url = url.ok_or("a store's URL is needed")?;
    let mut store: Arc<dyn Store> = if let Some(path) = url.strip_prefix("file://") {
        let store = FileStore::open(path, world_size)?;
        store.set_timeout(timeout);
        Arc::new(store)
    } else {
        let address = url.strip_prefix("tcp://").ok_or("tcp:// or file://")?;
        let (host, port) = address.rsplit_once(':').ok_or("the port is missing")?;
        let mut options = TcpStoreOptions::new(host.trim_matches(['[', ']']), port.parse()?);
        options.world_size = world_size;
        options.timeout = timeout;
        options.wait_for_workers = join;
        Arc::new(TcpStore::connect(options)?)
    };
    for prefix in prefixes {
        store = Arc::new(PrefixStore::new(prefix, store));
    }
    Ok(store)
}

fn run(store: &mut Arc<dyn Store>, words: &[&str]) -> Result<String, Failure> {
    let ok = || "ok".to_owned();
    let millis = |text: &str| text.parse().map(Duration::from_millis);
    Ok(match words {
        ["set", key, value] => store.set(&unquote(key)?, &unhex(value)?).map(|()| ok())?,
        ["append", key, value] => store
            .append(&unquote(key)?, &unhex(value)?)
            .map(|()| ok())?,
        ["queue_push", key, value] => store
            .queue_push(&unquote(key)?, &unhex(value)?)
            .map(|()| ok())?,
        ["get", key] => hex(&store.get(&unquote(key)?)?),
        ["queue_pop", key] => hex(&store.queue_pop(&unquote(key)?, true)?),
        ["queue_try_pop", key] => hex(&store.queue_pop(&unquote(key)?, false)?),
        ["add", key, delta] => store.add(&unquote(key)?, delta.parse()?)?.to_string(),
        ["compare_set", key, expected, desired] => {
            let (expected, desired) = (unhex(expected)?, unhex(desired)?);
            hex(&store.compare_set(&unquote(key)?, &expected, &desired)?)
        }
        ["check", keys @ ..] => with_keys(keys, |keys| store.check(keys))?.to_string(),
        ["delete", key] => store.delete_key(&unquote(key)?)?.to_string(),
        ["wait", limit, keys @ ..] => {
            let limit = millis(limit)?;
            with_keys(keys, |keys| store.wait(keys, Some(limit))).map(|()| ok())?
        }
        ["multi_get", keys @ ..] => {
            let values = with_keys(keys, |keys| store.multi_get(keys))?;
            let values: Vec<String> = values.iter().map(|value| hex(value)).collect();
            values.join(" ")
        }
        ["multi_set", pairs @ ..] if pairs.len() % 2 == 0 => {
            let pairs: Vec<(String, Vec<u8>)> = pairs
                .chunks(2)
                .map(|pair| Ok((unquote(pair[0])?, unhex(pair[1])?)))
                .collect::<Result<_, Failure>>()?;
            let pairs: Vec<(&str, &[u8])> = pairs
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_slice()))
                .collect();
            store.multi_set(&pairs).map(|()| ok())?
        }
        ["num_keys"] => store.num_keys()?.to_string(),
        ["queue_len", key] => store.queue_len(&unquote(key)?)?.to_string(),
        ["list_keys"] => {
            let mut keys: Vec<String> = store.list_keys()?.iter().map(|key| quote(key)).collect();
            keys.sort();
            keys.join(" ")
        }
        ["barrier", key, world_size, limit] => {
            let (world_size, limit) = (world_size.parse()?, millis(limit)?);
            store
                .barrier(&unquote(key)?, world_size, Some(limit))
                .map(|()| ok())?
        }
        ["timeout", limit] => {
            store.set_timeout(millis(limit)?);
            ok()
        }
        ["get_state", run_id] => shown(state_of(store, run_id)?.get().map_err(named)?, ""),
        ["set_state", run_id, state, token] => {
            let token = unhex(token)?;
            let token = (!token.is_empty()).then_some(StateToken(token));
            let mut shared = state_of(store, run_id)?;
            let written = shared.set(&unhex(state)?, token.as_ref());
            let written = written.map_err(named)?;
            shown(written.now, if written.won { " true" } else { " false" })
        }
        ["clone"] => {
            *store = Arc::from(store.try_clone()?);
            ok()
        }
        other => return Err(format!("unknown command {other:?}").into()),
    })
}

fn with_keys<T, E: Into<Failure>>(
    quoted: &[&str],
    call: impl FnOnce(&[&str]) -> Result<T, E>,
) -> Result<T, Failure> {
    let keys: Vec<String> = quoted
        .iter()
        .map(|key| unquote(key))
        .collect::<Result<_, _>>()?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    call(&keys).map_err(Into::into)
}

fn unquote(word: &str) -> Result<String, Failure> {
    if word == "%" {
        return Ok(String::new());
    }
    let mut parts = word.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).ok_or("% needs two hexadecimal digits")?;
        bytes.push(u8::from_str_radix(digits, 16)?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(String::from_utf8(bytes)?)
}

fn quote(key: &str) -> String {
    if key.is_empty() {
        return "%".to_owned();
    }
    key.bytes()
        .map(|byte| match byte {
            b'%' | 0..=b' ' | 0x7f.. => format!("%{byte:02x}"),
            plain => char::from(plain).to_string(),
        })
        .collect()
}

fn unhex(word: &str) -> Result<Vec<u8>, Failure> {
    if word == "-" {
        return Ok(Vec::new());
    }
    word.as_bytes()
        .chunks(2)
        .map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?))
        .collect()
}

fn hex(value: &[u8]) -> String {
    if value.is_empty() {
        return "-".to_owned();
    }
    value.iter().map(|byte| format!("{byte:02x}")).collect()
}
