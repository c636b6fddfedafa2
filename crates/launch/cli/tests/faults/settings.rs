//! The settings in which a launch runs.
//!
//! | setting | meaning |
//! |---|---|
//! | `one` | one node |
//! | `memory-group` | one node in a control group with little memory |
//! | `small-disk` | one node; `{dir}/small` is a file system of 256 KiB |
//! | `foreign-program` | one node; `{dir}/foreign` is a program for another kind of processor |
//! | `taken-port` | one node; another socket listens at `{port}` |
//! | `two-nodes` | two nodes over c10d |
//! | `two-static-nodes` | two nodes over a static rendezvous |
//! | `dead-node` | two nodes over a separate store; one is lost once all workers have begun |
//! | `lost-network` | the same, but one node loses its connection to the store |
//!
//! `{dir}` contains named pipes: `go`, `go0`, `go1` and `go2` for workers that wait for one
//! another, and `began` for workers that report their start.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use rdzv_testing::free_port;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::launch::{Ended, Launch, Node};
use crate::store_process::Store;
use crate::table::Row;

/// Runs the row in its setting, and returns the nodes whose reports count.
///
/// The error is the reason why this machine cannot run the row, if an environment variable permits
/// skipped rows.
pub(crate) fn run_row(row: &Row) -> Result<Vec<Ended>, String> {
    let run = Run::new(row);
    let one = |within: Vec<String>| vec![run.node(0, within, Vec::new()).wait()];
    Ok(match row.setting {
        "one" => one(Vec::new()),
        "memory-group" => {
            let group = match MemoryGroup::new() {
                Ok(group) => group,
                Err(why) => return refused("RDZV_TEST_NO_CGROUPS", &why),
            };
            let procs = group.0.join("cgroup.procs");
            one(shell(&format!("echo $$ > {}", procs.display())))
        }
        "small-disk" => {
            fs::create_dir(run.directory.path().join("small")).unwrap();
            let mount = "mount -t tmpfs -o size=256k none small";
            let mut within: Vec<String> = ["unshare", "-rm"].map(str::to_owned).into();
            within.extend(shell(mount));
            let tried = Command::new("unshare").args(["-rm", "true"]).status();
            if !tried.is_ok_and(|status| status.success()) {
                return refused("RDZV_TEST_NO_NAMESPACES", "no mount namespaces here");
            }
            one(within)
        }
        "foreign-program" => {
            foreign_program(&run.directory.path().join("foreign"));
            one(Vec::new())
        }
        "taken-port" => {
            let _held = TcpListener::bind(("0.0.0.0", run.port)).unwrap();
            one(Vec::new())
        }
        "two-nodes" => {
            let endpoint = format!("127.0.0.1:{}", run.port);
            both([0, 1].map(|index| run.node(index, Vec::new(), dynamic(&endpoint))))
        }
        "two-static-nodes" => both([0, 1].map(|index| {
            let arguments = ["--nnodes", "2", "--node-rank"].map(str::to_owned);
            let mut rendezvous = Vec::from(arguments);
            rendezvous.extend([
                index.to_string(),
                "--master-port".into(),
                run.port.to_string(),
            ]);
            run.node(index, Vec::new(), rendezvous)
        })),
        "dead-node" => {
            let store = Store::start();
            let endpoint = store.address.to_string();
            let nodes = [0, 1].map(|index| run.node(index, Vec::new(), dynamic(&endpoint)));
            run.await_began(4);
            let [stays, goes] = nodes;
            goes.lose();
            vec![stays.wait()]
        }
        "lost-network" => {
            let store = Store::start();
            let link = Link::new(store.address);
            let endpoints = [store.address.to_string(), link.address.to_string()];
            let nodes = [0, 1].map(|index| run.node(index, Vec::new(), dynamic(&endpoints[index])));
            run.await_began(4);
            link.cut();
            both(nodes)
        }
        other => panic!("line {}: no such setting: {other}", row.line),
    })
}

/// Returns the reason as an error if the variable accepts it; panics otherwise.
fn refused(variable: &str, why: &str) -> Result<Vec<Ended>, String> {
    if std::env::var_os(variable).is_some() {
        return Err(why.to_owned());
    }
    panic!("{why}; {variable}=1 accepts that");
}

fn both(nodes: [Node; 2]) -> Vec<Ended> {
    nodes.map(Node::wait).into()
}

/// Returns a shell command that runs a script and then executes its arguments.
fn shell(script: &str) -> Vec<String> {
    let script = format!("{script} && exec \"$@\"");
    vec!["sh".to_owned(), "-ec".to_owned(), script]
}

fn dynamic(endpoint: &str) -> Vec<String> {
    [
        "--nnodes=2",
        "--agent-restarts=0",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-endpoint",
        endpoint,
        "--rdzv-conf",
        "join_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=6,read_timeout=2",
    ]
    .map(str::to_owned)
    .into()
}

struct Run<'a> {
    row: &'a Row,
    directory: TempDir,
    port: u16,
    began: File,
}

impl<'a> Run<'a> {
    fn new(row: &'a Row) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["go", "go0", "go1", "go2", "began"] {
            let mode = Mode::from_raw_mode(0o600);
            mknodat(CWD, directory.path().join(name), FileType::Fifo, mode, 0).unwrap();
        }
        // A descriptor for reading and writing, so that opening the pipe does not block any side.
        let began = OpenOptions::new()
            .read(true)
            .write(true)
            .open(directory.path().join("began"))
            .unwrap();
        Self {
            row,
            directory,
            port: free_port(),
            began,
        }
    }

    fn node(&self, index: usize, within: Vec<String>, rendezvous: Vec<String>) -> Node {
        let launch = Launch {
            directory: self.directory.path(),
            index,
            port: self.port,
            within,
            rendezvous,
            launcher: &self.row.launcher,
            worker: &self.row.worker,
        };
        launch.start()
    }

    /// Waits until `count` workers have reported their start.
    fn await_began(&self, count: usize) {
        let lines = BufReader::new(&self.began).lines();
        assert_eq!(lines.take(count).filter(Result::is_ok).count(), count);
    }
}

/// Writes the header of an IBM mainframe program, which fails on this machine.
fn foreign_program(path: &Path) {
    let mut header = vec![0_u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x02\x01");
    header[17] = 2;
    header[19] = 22;
    header[23] = 1;
    fs::write(path, header).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Control group with a memory limit of 150 MB.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new() -> Result<Self, String> {
        let name = format!("rdzv-faults-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        let mut refusals = Vec::new();
        for (root, limit) in kinds {
            let group = Path::new(root).join(&name);
            let made = fs::create_dir(&group)
                .and_then(|()| {
                    let made = Self(group.clone());
                    // Only existing files are opened: the folder may not be a control group.
                    let mut file = OpenOptions::new().write(true).open(group.join(limit))?;
                    file.write_all(b"150000000").map(|()| made)
                })
                .map_err(|error| format!("{}: {error}", group.display()));
            match made {
                Ok(made) => return Ok(made),
                Err(why) => refusals.push(why),
            }
        }
        Err(format!(
            "no control group for memory: {}",
            refusals.join(", ")
        ))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Proxy to the store that can be closed permanently.
struct Link {
    address: SocketAddr,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Link {
    fn new(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = Arc::clone(&open);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut open = shared.lock().unwrap();
                let Some(connections) = open.as_mut() else {
                    return;
                };
                let far = TcpStream::connect(store).unwrap();
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    connections.push(from.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, open }
    }

    fn cut(&self) {
        let connections = self.open.lock().unwrap().take();
        for connection in connections.into_iter().flatten() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // The connection wakes the accepting thread, which then closes the socket.
        let _ = TcpStream::connect(self.address);
    }
}
