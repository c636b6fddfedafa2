//! Transports that the options select, and the address of this host.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rdzv_core::endpoint::bare_host;
use rdzv_core::env::MASTER_ADDR;
use rdzv_rendezvous::Environment;
use rdzv_rendezvous::url::Url;
use rdzv_store::{Store, address_for_others, address_towards, address_towards_others};

use crate::RpcError;
use crate::options::{MEMORY_CHANNEL, RpcOptions, TransportName};
use crate::transport::{Identity, TransportOptions};

impl RpcOptions {
    /// Returns the transports that these options select.
    ///
    /// Unix sockets reach every worker that shared memory reaches, and TCP reaches all workers.
    /// Transports after TCP in the list, and shared memory after Unix sockets, are therefore never
    /// used.
    pub(super) fn transport_options(&self) -> Result<TransportOptions, RpcError> {
        use TransportName::{Ibv, Shm, Tcp, Unix};
        let ignored = self.ignored();
        if !ignored.is_empty() {
            tracing::warn!(
                "ignored transports or channels that rdzv does not have: {}",
                ignored.join(", ")
            );
        }
        let all = [Shm, Unix, Tcp];
        let names = self.transports.as_deref().unwrap_or(&all);
        let names = names.iter().filter(|name| **name != Ibv);
        let near: Vec<_> = names.clone().take_while(|name| **name != Tcp).collect();
        let identity = self.tls.as_ref().map(|files| {
            Identity::from_files(&files.certificate, &files.key, &files.authorities)
                .map_err(|error| RpcError::invalid(error.to_string()))
        });
        let base = self.transport.clone();
        Ok(TransportOptions {
            // Peers set up shared-memory rings over a Unix socket.
            unix: base.unix && !near.is_empty(),
            shared: base.shared && near.first() == Some(&&Shm),
            tcp: base.tcp && names.clone().any(|name| *name == Tcp),
            read_memory: base.read_memory && reads_memory(&self.channels),
            tls: identity.transpose()?.map(Arc::new).or(base.tls),
            ..base
        })
    }

    /// Returns the address at which this worker listens.
    ///
    /// `store` is the store that the application supplies, if any.
    pub(super) fn listening_address(&self, store: Option<&dyn Store>) -> IpAddr {
        match (self.address, store) {
            (Some(address), _) => address,
            (None, Some(store)) => store
                .connection()
                .and_then(|connection| connection.address_of_this_host())
                .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            (None, None) => own_address(&self.init_method, &Environment::of_process()),
        }
    }
}

/// `true` if workers should read the memory of other processes.
/// An empty list allows this; any other list must contain `cma`.
fn reads_memory(channels: &[String]) -> bool {
    channels.is_empty() || channels.iter().any(|name| name == MEMORY_CHANNEL)
}

/// Returns the address of this host for workers that form a group at the URL.
/// It is the local address from which this host reaches the host in the URL or in `MASTER_ADDR`.
/// The fallbacks are the address of the route to other networks, and loopback.
fn own_address(init_method: &str, environment: &Environment) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let url = Url::parse(init_method).ok();
    let is_env = url.as_ref().is_some_and(|url| url.scheme == "env");
    let host = url.and_then(|url| url.host);
    let host = host.or_else(|| environment.get(MASTER_ADDR).filter(|_| is_env));
    if is_env && host.is_none() {
        return loopback;
    }
    let towards = host
        .as_deref()
        .map(bare_host)
        .and_then(|host| address_for_others(host, address_towards(host).ok()?));
    towards.or_else(address_towards_others).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn chosen(names: Option<&[TransportName]>) -> (bool, bool, bool) {
        let options = RpcOptions {
            transports: names.map(<[_]>::to_vec),
            ..RpcOptions::default()
        };
        let transports = options.transport_options().unwrap();
        (transports.shared, transports.unix, transports.tcp)
    }

    #[test]
    fn transports_are_used_in_the_order_of_the_list() {
        use TransportName::{Shm, Tcp, Unix};
        assert_eq!(chosen(None), (true, true, true));
        assert_eq!(chosen(Some(&[Tcp])), (false, false, true));
        assert_eq!(chosen(Some(&[Tcp, Shm])), (false, false, true));
        assert_eq!(chosen(Some(&[Unix, Shm, Tcp])), (false, true, true));
        assert_eq!(chosen(Some(&[Shm])), (true, true, false));
    }

    /// Returns the log output and the selected transports.
    fn logged(options: &RpcOptions) -> (String, TransportOptions) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        let made =
            tracing::subscriber::with_default(subscriber, || options.transport_options().unwrap());
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        (text, made)
    }

    #[derive(Clone, Default)]
    struct Log(Arc<rdzv_lock::Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn channels_choose_what_has_a_meaning_here_and_a_line_names_the_rest() {
        for (channels, reads, ignored) in [
            (vec![], true, None),
            (vec!["cma"], true, None),
            (vec!["basic"], false, None),
            (vec!["basic", "cma"], true, None),
            (vec!["mpt_uv"], false, Some("does not have: mpt_uv\n")),
            (
                vec!["cuda_ipc", "cma", "cuda_gdr", "cuda_xth", "cuda_basic"],
                true,
                Some("does not have: cuda_ipc, cuda_gdr, cuda_xth, cuda_basic\n"),
            ),
        ] {
            let options = RpcOptions {
                channels: channels.iter().map(|name| (*name).to_owned()).collect(),
                ..RpcOptions::default()
            };
            options.check().unwrap();
            let (log, transports) = logged(&options);
            assert_eq!(transports.read_memory, reads, "{channels:?}");
            match ignored {
                Some(ending) => {
                    assert!(log.ends_with(ending), "{log}");
                    assert_eq!(log.lines().count(), 1, "{log}");
                }
                None => assert_eq!(log, ""),
            }
        }
    }

    #[test]
    fn infiniband_is_left_out_of_the_list_with_a_line() {
        use TransportName::{Ibv, Shm, Tcp};
        let options = RpcOptions {
            transports: Some(vec![Ibv, Shm, Tcp]),
            ..RpcOptions::default()
        };
        let (log, transports) = logged(&options);
        assert!(transports.shared && transports.unix && transports.tcp);
        assert!(log.ends_with("does not have: ibv\n"), "{log}");
    }

    #[test]
    fn a_worker_is_where_it_reaches_the_store_from() {
        let nothing = Environment::of([("", ""); 0]);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(own_address("tcp://127.0.0.1:1", &nothing), loopback);
        let environment = Environment::of([(MASTER_ADDR, "127.0.0.1")]);
        assert_eq!(own_address("env://", &environment), loopback);
        assert_eq!(own_address("env://", &nothing), loopback);
        let v6 = own_address("tcp://[::1]:1", &nothing);
        assert!(v6.is_loopback(), "{v6}");
    }

    #[test]
    fn with_a_store_that_is_here_a_worker_listens_on_loopback() {
        let store: &dyn Store = &rdzv_store::HashStore::new();
        let address = RpcOptions::default().listening_address(Some(store));
        assert!(address.is_loopback());
        let asked = RpcOptions {
            address: Some(ELSEWHERE),
            ..RpcOptions::default()
        };
        assert_eq!(asked.listening_address(Some(store)), ELSEWHERE);
    }

    #[test]
    fn what_the_options_say_of_transports_is_used() {
        let mut options = RpcOptions::default();
        options.transport.heartbeat_limit = std::time::Duration::from_secs(9);
        options.transport.unix = false;
        options.transport.port = 7;
        let transports = options.transport_options().unwrap();
        assert_eq!(
            transports.heartbeat_limit,
            options.transport.heartbeat_limit
        );
        assert_eq!(
            (transports.unix, transports.tcp, transports.port),
            (false, true, 7)
        );
        options.tls = Some(crate::options::TlsFiles {
            certificate: "/nowhere/certificate".into(),
            key: "/nowhere/key".into(),
            authorities: "/nowhere/authorities".into(),
        });
        let error = options.transport_options().unwrap_err();
        assert!(error.message.contains("/nowhere/certificate"), "{error}");
    }
}
