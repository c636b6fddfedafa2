//! Prints the processors for workers on a machine that files describe.
//!
//! ```text
//! placement ROOT AFFINITY MODE WORKERS
//! placement / 0-63 exclusive 8
//! ```
//!
//! `ROOT` has the machine's `proc` and `sys`; `AFFINITY` is the list of processors that the agent
//! may use. The program prints one list of processors per worker, or `error:` and the reason.

use rdzv_agent::launcher::topology::Hardware;
use rdzv_agent_proto::topology::{BindingMode, CpuList, VisibleLists};

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, affinity, mode, workers] = &arguments[..] else {
        eprintln!("placement ROOT AFFINITY MODE WORKERS");
        std::process::exit(2);
    };
    let affinity = CpuList::parse(affinity).expect("AFFINITY is a list of processors");
    let mode = BindingMode::named(mode).expect("MODE is one of --numa-binding");
    let workers = workers.parse().expect("WORKERS is a number");
    let hardware = Hardware::described_by(root, affinity);
    match hardware.bind(mode, &VisibleLists::default(), workers) {
        Ok(bindings) => {
            for binding in bindings {
                println!("{}", binding.processors);
            }
        }
        Err(error) => println!("error: {error}"),
    }
}
