//! `cargo xtask`: all developer tasks that plain cargo does not have.

mod bench;
mod budget;
mod ci;
mod command;
mod etcd;
mod fuzz;
mod install;
mod lines;
mod python;
mod setup;
mod slurm;
mod test;
mod tidy;
mod wheel;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  setup                  install the tools and the Python environment that the other tasks use, into the cache
  setup --lock           pin the newest versions of their requirements first
  test                   build, then run every test: of Rust, with PyTorch, of the Python package
  test -k WORDS [...]    run pytest alone, with these arguments
  test --upstream        PyTorch's own suites for torch.distributed: collectives beside gloo, RPC
  etcd                   print the path of the etcd server that tests use (RDZV_ETCD)
  ci                     fmt, check, tidy, build with clippy, test, doc
  check                  spelling, lints of Python and workflows, dependencies: seconds
  budget                 system calls of a launch, instructions of a store request, against their limits
  tidy                   the house rules that a compiler cannot check
  tidy --cycles FOLDER   the module cycles of one crate (--words FOLDER: its words)
  lines [CHECKOUT]       size, modules and cycles of each crate
  bench agent [...]      recovery, idling and console output, against torchrun
  bench collective [...] operations of process groups, against gloo
  bench launch [...]     starting, restarting and log throughput, against torchrun
  bench rendezvous [...] agents that find one another, against PyTorch's; reattach: after the death of a coordinator
  bench rpc [...]        calls between workers, beside torch.distributed.rpc
  bench store [...]      the TCP store server, against PyTorch's
  flags                  write python/rdzv/_flags.py: the flags of `rdzv run`, for Python's `launch`
  fuzz [seconds]         run each fuzz target for that long (default 60)
  python [...]           build the Python package and run its tests alone; arguments go to pytest
  wheel [...]            build the Python package: --dev (unoptimized), --zig (for any glibc from 2.17 on),
                         --target TRIPLE (with --zig), --out FOLDER (default target/wheel)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let Some((task, rest)) = arguments.split_first() else {
        anyhow::bail!("no task given\n\n{USAGE}");
    };
    match task.as_str() {
        "test" => test::run(rest),
        "etcd" => {
            println!("{}", etcd::server()?.display());
            Ok(())
        }
        "setup" => setup::run(rest),
        "ci" => ci::run(),
        "check" => ci::check(),
        "budget" => budget::run(),
        "tidy" => tidy::run(rest),
        "lines" => lines::run(rest),
        "bench" => bench::run(rest),
        "flags" => python::flags(),
        "fuzz" => fuzz::run(rest),
        "python" => python::run(rest),
        "wheel" => wheel::run(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => anyhow::bail!("there is no task '{other}'\n\n{USAGE}"),
    }
}
