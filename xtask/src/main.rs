//! `cargo xtask`: all tasks of a developer that are not plain cargo commands.

mod bench;
mod budget;
mod ci;
mod command;
mod etcd;
mod gpu_check;
mod install;
mod lines;
mod python;
mod release;
mod setup;
mod site;
mod slurm;
mod test;
mod tidy;
mod wheel;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  setup                  install the tools and the Python environment that the other tasks use, into the cache
  setup --lock           pin the newest versions of their requirements before the installation
  test                   build, then run all tests: Rust, interoperability with PyTorch, Python package
  test -k WORDS [...]    run only pytest, with these arguments
  test --browser         test the page of a job in Chromium; screenshots in target/browser
  test --upstream        run PyTorch's test suites of torch.distributed: collectives (also with gloo), RPC
  etcd                   print the path of the etcd server that tests use (RDZV_ETCD)
  ci                     run fmt, check, tidy, build with clippy, budget, test, doc
  check                  check spelling, Python, workflows and dependencies within seconds
  budget                 check the system calls of a launch and the instructions of a store request
  docs                   build the site from documents, docstrings and rustdoc
  tidy                   check the house rules that a compiler cannot check (--lower: lower the limits of style)
  tidy --cycles FOLDER   list the module cycles of one crate (--words FOLDER: its matches of the style table)
  lines [CHECKOUT]       print the size of each crate
  bench agent [...]      measure recovery, idle cost and console output, against torchrun
  bench collective [...] measure operations of process groups, against gloo
  bench launch [...]     measure start, restart and log throughput, against torchrun
  bench rendezvous [...] measure the rendezvous, against PyTorch's (reattach: after the loss of a coordinator)
  bench rpc [...]        measure calls between workers, against torch.distributed.rpc
  bench store [...]      measure the TCP store server, against PyTorch's
  flags                  write python/rdzv/_flags.py with the flags of `rdzv run`, for Python's `launch`
  gpu-check              prepare the check of CUDA tensors for a machine with a GPU (--table FILE: record its result)
  python [...]           build the Python package and run only its tests; arguments are passed to pytest
  release X.Y.Z          check a version; make its artefacts, checksums, SBOM and provenance: --dry-run (report
                         what is not ready), --artefacts FOLDER (built elsewhere)
  wheel [...]            build the Python package: --zig (for glibc 2.17 or newer), --target TRIPLE (with --zig),
                         --out FOLDER (default target/wheel)
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
        "docs" => site::run(),
        "budget" => budget::run(),
        "tidy" => tidy::run(rest),
        "lines" => lines::run(rest),
        "bench" => bench::run(rest),
        "flags" => python::flags(),
        "gpu-check" => gpu_check::run(rest),
        "python" => python::run(rest),
        "release" => release::run(rest),
        "wheel" => wheel::run(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => anyhow::bail!("unknown task '{other}'\n\n{USAGE}"),
    }
}
