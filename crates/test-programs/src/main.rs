//! Programs that tests and benchmarks start, such as workers and clients.
//!
//! All programs are this one binary, because each separate binary would link everything again. The
//! name under which the binary starts selects the program. Under its own file name it creates the
//! other names: hard links in the folder `programs` beside it. They are no symbolic links, because
//! programs start themselves by the path of their process.

mod collective_worker;
mod crowd;
mod fixture_worker;
mod group_member;
mod load;
mod member;
mod placement;
mod reference_worker;
mod rpc_bench;
mod rpc_scenario;
mod serve;
mod shm_peer;
mod state_codec;
mod store_client;
mod transport;

use std::error::Error;
use std::path::Path;
use std::process::{ExitCode, Termination};
use std::{env, fs, io};

use rdzv_store::{TcpStore, TcpStoreOptions};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Name and entry point of a program.
type Program = (&'static str, fn() -> ExitCode);

/// All programs.
const PROGRAMS: [Program; 15] = [
    ("collective_worker", || ended(collective_worker::main)),
    ("crowd", || ended(crowd::main)),
    ("fixture_worker", || ended(fixture_worker::main)),
    ("group_member", || ended(group_member::main)),
    ("load", || ended(load::main)),
    ("member", || ended(member::main)),
    ("placement", || ended(placement::main)),
    ("reference_worker", || ended(reference_worker::main)),
    ("rpc_bench", || ended(rpc_bench::main)),
    ("rpc_scenario", || ended(rpc_scenario::main)),
    ("serve", || ended(serve::main)),
    ("shm_peer", || ended(shm_peer::main)),
    ("state_codec", || ended(state_codec::main)),
    ("store_client", || ended(store_client::main)),
    ("transport", || ended(transport::main)),
];

fn main() -> ExitCode {
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    if name == env!("CARGO_PKG_NAME") {
        return ended(make_names);
    }
    let Some((_, program)) = PROGRAMS.iter().find(|(known, _)| name == *known) else {
        let names = PROGRAMS.map(|(name, _)| name).join(", ");
        eprintln!("{} is no test program: start it as {names}", name.display());
        return ExitCode::from(2);
    };
    program()
}

/// Creates the hard links; each one replaces an older one atomically.
/// A test may be starting the program at the same time.
fn make_names() -> io::Result<()> {
    let this = env::current_exe()?;
    let folder = this.with_file_name("programs");
    fs::create_dir_all(&folder)?;
    for (name, _) in PROGRAMS {
        let new = folder.join(format!("{name}.{}", std::process::id()));
        fs::hard_link(&this, &new)?;
        fs::rename(&new, folder.join(name))?;
        // The file still exists if the old name was a link to the same file.
        let _ = fs::remove_file(&new);
    }
    Ok(())
}

/// Connects to the store at an endpoint.
fn store_at(endpoint: &str) -> Result<TcpStore, Box<dyn Error>> {
    let (host, port) = endpoint.rsplit_once(':').ok_or("a store is HOST:PORT")?;
    Ok(TcpStore::connect(TcpStoreOptions::new(
        host,
        port.parse()?,
    ))?)
}

/// Raises the limit of open files of this process to its maximum.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A failure shows later as a clear error of the operation that needs the files.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn ended<E: Termination>(program: impl FnOnce() -> E) -> ExitCode {
    program().report()
}
