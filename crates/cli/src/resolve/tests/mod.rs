//! Lines resolved on a machine and in an environment of the test's choosing.

mod commands;
mod meeting;
mod refused;
mod settings;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Called, Environment, Launch, Machine, Note, resolve};
use crate::args::{Parsed, RunArgs, parse};
use crate::exit::Refusal;

/// A machine of a test's choosing.
#[derive(Debug, Default)]
struct Fake {
    processors: u32,
    gpus: u32,
    xpus: u32,
    files: BTreeSet<&'static str>,
}

impl Machine for Fake {
    fn usable_processors(&self) -> u32 {
        self.processors
    }
    fn gpu_devices(&self) -> u32 {
        self.gpus
    }
    fn xpu_devices(&self) -> u32 {
        self.xpus
    }
    fn working_directory(&self) -> PathBuf {
        "/work".into()
    }
    fn is_file(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.files.contains(path))
    }
    fn is_program(&self, path: &Path) -> bool {
        self.is_file(path)
    }
    fn random_id(&self) -> String {
        "a-random-id".to_owned()
    }
}

/// A launch to be: what was typed, in which environment, on which machine.
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

    fn files(mut self, files: &[&'static str]) -> Self {
        self.machine.files.extend(files);
        self
    }

    fn resolved(&self) -> Result<Launch, Refusal> {
        let words: Vec<OsString> = self.line.iter().map(OsString::from).collect();
        match parse::<RunArgs>("torchrun", &words, &self.environment.0)? {
            Parsed::Run(arguments) => {
                resolve(&arguments, &self.called, &self.environment, &self.machine)
            }
            other => panic!("{:?} was read as {other:?}", self.line),
        }
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
            Note::Warning(text) => Some(text),
            Note::Info(_) => None,
        }
    }
    launch.notes.iter().filter_map(warning).collect()
}
