//! Real etcd server for tests, with a free address and a temporary folder.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdzv_core::endpoint::Endpoint;
use rdzv_rendezvous::etcd::EtcdOptions;
use rdzv_testing::{DEADLINE, Process};
use tempfile::TempDir;

/// Variable that names the server's program.
const VARIABLE: &str = "RDZV_ETCD";

/// Shell script that runs the server until the input of the shell ends.
///
/// It then kills the server without a warning. The server thus ends with this process, however that
/// ends.
const SERVER_SCRIPT: &str = r#""$0" "$@" </dev/null & read -r _; kill -9 $!; wait"#;

/// Variable with the address of the server that a nextest script has started.
const SHARED: &str = "RDZV_TEST_ETCD";

/// An etcd server.
pub(crate) struct Server {
    /// Data folder; `None` for the server of the setup script.
    data: Option<TempDir>,
    address: SocketAddrV4,
    /// `true` if the server also serves the v2 API.
    v2: bool,
    /// Shell that runs the server.
    running: Mutex<Option<Process>>,
}

impl Server {
    /// Starts a server.
    pub(crate) fn start() -> Self {
        Self::new(false)
    }

    /// Starts a server that also serves the v2 API.
    pub(crate) fn with_v2() -> Self {
        Self::new(true)
    }

    fn new(v2: bool) -> Self {
        let server = Self {
            data: Some(TempDir::new().unwrap()),
            address: free_address(),
            v2,
            running: Mutex::new(None),
        };
        server.go_on();
        server
    }

    /// Returns a server that several tests can use at the same time.
    pub(crate) fn shared() -> Arc<Self> {
        static STARTED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        if let Ok(address) = std::env::var(SHARED) {
            return Arc::new(Self {
                data: None,
                v2: false,
                address: address.parse().unwrap(),
                running: Mutex::new(None),
            });
        }
        let mut shared = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Returns the options for a client.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions::new(self.endpoint())
    }

    /// Returns the endpoint of the server.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            host: self.address.ip().to_string(),
            port: self.address.port(),
        }
    }

    /// Kills the server as a crash does (SIGKILL).
    pub(crate) fn crash(&self) {
        if let Some(mut shell) = self.running.lock().unwrap().take() {
            shell.close_stdin();
            shell.wait();
        }
    }

    /// Deletes all data of the server, which must not be running.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.data_folder()).unwrap();
    }

    fn data_folder(&self) -> PathBuf {
        let data = self.data.as_ref().expect("a server of this test");
        data.path().join("data")
    }

    /// Starts the server with its data, and waits until it serves.
    pub(crate) fn go_on(&self) {
        let program = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} must name an etcd server's program; `cargo xtask test` provides one")
        });
        let clients = format!("http://{}", self.address);
        let peers = format!("http://{}:0", self.address.ip());
        let mut command = Command::new("sh");
        command
            .args(["-c", SERVER_SCRIPT, &program])
            .arg("--data-dir")
            .arg(self.data_folder())
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--max-request-bytes", "16777216"])
            .arg(format!("--enable-v2={}", self.v2))
            .args(["--logger", "zap", "--log-level", "info"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        let shell = Process::start(&mut command);
        loop {
            match shell.stderr.line_within(DEADLINE) {
                Ok(line) if line.contains("serving client traffic") => break,
                Ok(_) => {}
                Err(_) => {
                    shell.close_stdin();
                    panic!(
                        "{program} did not start:
{}",
                        shell.stderr.so_far()
                    );
                }
            }
        }
        *self.running.lock().unwrap() = Some(shell);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Returns a local address that stays free while the server is down.
///
/// Each server has a separate loopback address.
fn free_address() -> SocketAddrV4 {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let ip = Ipv4Addr::new(127, 16 + (high & 0x7f), low, count);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    SocketAddrV4::new(ip, listener.local_addr().unwrap().port())
}
