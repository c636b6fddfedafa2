//! Tests of `resolve`; each test chooses its machine and its environment.

mod commands;
mod explained;
mod hang;
mod refused;
mod rendezvous;
mod settings;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rdzv_agent::launcher::topology::PlacementError;
use rdzv_agent_proto::topology::{
    Accelerator, Accelerators, Binding, BindingMode, CpuLimit, CpuList, Quota, Topology,
    VisibleLists, bind,
};

use super::{Called, Environment, Launch, Machine, Note, RunArgs, explain, resolve};
use crate::args::{Launcher, Parsed, parse};
use crate::exit::Refusal;
use crate::explanation::{Explanation, Setting};

/// Machine that a test chooses.
#[derive(Debug, Default)]
struct Fake {
    processors: u32,
    quota: Option<Quota>,
    gpus: u32,
    xpus: u32,
    files: BTreeSet<&'static str>,
}

impl Machine for Fake {
    fn affinity(&self) -> CpuList {
        (0..self.processors).collect()
    }
    fn beginning(&self, _: &Path) -> Option<Vec<u8>> {
        None
    }
    fn cpu_limit(&self) -> Option<CpuLimit> {
        let file = "/sys/fs/cgroup/cpu.max".to_owned();
        Some(CpuLimit {
            quota: self.quota?,
            file,
        })
    }
    fn accelerators(&self) -> Accelerators {
        let devices = |count| {
            let device = |index| Accelerator {
                address: format!("0000:{index:02x}:00.0"),
                uuid: None,
            };
            (0..count).map(device).collect()
        };
        Accelerators {
            nvidia: devices(self.gpus),
            intel: devices(self.xpus),
            ..Accelerators::default()
        }
    }
    fn bind(
        &self,
        mode: BindingMode,
        lists: &VisibleLists,
        local_world_size: u32,
    ) -> Result<Vec<Binding>, PlacementError> {
        // All devices are at NUMA node 0, which has all processors.
        let accelerators = self.accelerators();
        let visible = accelerators.current(lists);
        let topology = Topology {
            allowed: self.affinity(),
            nodes: [(0, self.affinity())].into(),
            devices: vec![0; visible.map_or(0, |(_, visible)| visible.len())],
            ..Topology::default()
        };
        (0..local_world_size)
            .map(|local_rank| bind(mode, local_rank, &topology).map_err(PlacementError::from))
            .collect()
    }
    fn is_called(&self, host: &str) -> bool {
        host == "this-node"
    }
    fn working_directory(&self) -> PathBuf {
        "/work".into()
    }
    fn is_file(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.files.contains(path))
    }
    fn names(&self, directory: &Path) -> Vec<OsString> {
        let below = |file: &&str| {
            let below = Path::new(file).strip_prefix(directory).ok()?;
            Some(below.components().next()?.as_os_str().to_owned())
        };
        self.files.iter().filter_map(below).collect()
    }
    fn takes_files(&self, _: &Path) -> bool {
        true
    }

    fn is_program(&self, path: &Path) -> bool {
        self.is_file(path)
    }
    fn random_id(&self) -> String {
        "a-random-id".to_owned()
    }
}

/// Input of a launch: command line, environment and machine.
struct Case {
    line: Vec<&'static str>,
    environment: Environment,
    machine: Fake,
    called: Called,
}

fn case(line: &[&'static str]) -> Case {
    Case {
        line: line.to_vec(),
        environment: Environment::default(),
        machine: Fake {
            processors: 6,
            files: BTreeSet::from(["/usr/bin/python3"]),
            ..Fake::default()
        },
        called: Called::default(),
    }
    .with("PATH", "/usr/local/bin:/usr/bin")
}

impl Case {
    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.0.insert(name.into(), value.into());
        self
    }

    /// Resolves as `rdzv run`, which is stricter than `torchrun`.
    fn strict(mut self) -> Self {
        self.called.is_strict = true;
        self
    }

    fn files(mut self, files: &[&'static str]) -> Self {
        self.machine.files.extend(files);
        self
    }

    fn parsed(&self) -> Result<(RunArgs, Vec<Setting>), Refusal> {
        let words: Vec<OsString> = self.line.iter().map(OsString::from).collect();
        match parse(Launcher::Torchrun, &words, &self.environment.0)? {
            Parsed::Run(arguments, settings) => Ok((arguments.run, settings)),
            other => panic!("{:?} was read as {other:?}", self.line),
        }
    }

    fn resolved(&self) -> Result<Launch, Refusal> {
        let (arguments, _) = self.parsed()?;
        resolve(&arguments, &self.called, &self.environment, &self.machine)
    }

    fn explanation(&self) -> Explanation {
        let (_, settings) = self.parsed().unwrap();
        explain(settings, &self.launch(), &self.environment, &self.machine).unwrap()
    }

    fn launch(&self) -> Launch {
        match self.resolved() {
            Ok(launch) => launch,
            Err(refusal) => panic!("{:?} was refused: {refusal}", self.line),
        }
    }

    fn refusal(&self) -> Refusal {
        match self.resolved() {
            Ok(_) => panic!("{:?} was accepted", self.line),
            Err(refusal) => refusal,
        }
    }
}

fn warnings(launch: &Launch) -> Vec<&str> {
    fn warning(note: &Note) -> Option<&str> {
        match note {
            Note::Warning(text) | Note::Either { torchrun: text, .. } => Some(text),
            Note::Info(_) => None,
        }
    }
    launch.notes.iter().filter_map(warning).collect()
}
