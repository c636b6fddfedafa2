//! The context of a launch: variables, facts about this host, user notes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent::launcher::topology::{Hardware, PlacementError};
use rdzv_agent_proto::topology::{
    Accelerators, Binding, BindingMode, CpuLimit, CpuList, VisibleLists,
};
use rdzv_core::env::{CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES};
use rdzv_rendezvous::dynamic::is_this_machine;
use uuid::Uuid;

/// Time limit for the lookup of a host name.
const NAME_LOOK_UP: Duration = Duration::from_secs(10);

/// Variables of the environment at the start of the program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(pub(crate) BTreeMap<OsString, OsString>);

impl Environment {
    /// Returns the value of a variable, if it is set; invalid UTF-8 is replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned())
    }

    /// Returns the value of a variable, if it is set and not empty.
    pub(crate) fn filled(&self, name: &str) -> Option<String> {
        self.text(name).filter(|value| !value.is_empty())
    }

    /// Returns the lists of the devices that are visible to workers.
    pub(super) fn visible_lists(&self) -> VisibleLists {
        VisibleLists {
            cuda: self.text(CUDA_VISIBLE_DEVICES),
            hip: self.text(HIP_VISIBLE_DEVICES),
        }
    }

    /// `true` if the variable is exactly `1`.
    pub(super) fn is_one(&self, name: &str) -> bool {
        self.text(name).as_deref() == Some("1")
    }
}

/// Message to the user, which the launcher logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// Shown by default.
    Warning(String),
    /// Shown with `LOGLEVEL=INFO`.
    Info(String),
    /// A warning with another text in torchrun's style.
    Either {
        /// Text of torchrun.
        torchrun: String,
        /// Text of rdzv.
        plain: String,
    },
}

/// Context in which flags are resolved.
pub(super) struct Context<'c> {
    pub(super) environment: &'c Environment,
    pub(super) machine: &'c dyn Machine,
    /// Environment of the workers, before the variables of their ranks.
    pub(super) workers: BTreeMap<OsString, OsString>,
    /// Messages to the user, collected until now.
    pub(super) notes: Vec<Note>,
}

impl<'c> Context<'c> {
    pub(super) fn new(environment: &'c Environment, machine: &'c dyn Machine) -> Self {
        Self {
            environment,
            machine,
            workers: environment.0.clone(),
            notes: Vec::new(),
        }
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.notes.push(Note::Warning(text.into()));
    }

    pub(super) fn info(&mut self, text: impl Into<String>) {
        self.notes.push(Note::Info(text.into()));
    }

    /// Makes a path absolute, relative to the current directory.
    pub(super) fn absolute(&self, path: impl AsRef<Path>) -> PathBuf {
        self.machine.working_directory().join(path)
    }

    /// Returns the directory for temporary files, as Python chooses it.
    pub(super) fn temporary_directory(&self) -> PathBuf {
        rdzv_agent::launcher::host::temporary_directory(
            |name| {
                self.environment
                    .filled(name)
                    .map(|path| self.absolute(path))
            },
            |path| self.machine.takes_files(path),
        )
    }

    /// Finds the program with this name in `PATH`, and then in `beside`.
    pub(super) fn find_program(&self, name: &str, beside: Option<&Path>) -> Option<PathBuf> {
        let path = self.environment.text("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(beside.map(Path::to_owned))
            .map(|directory| directory.join(name))
            .find(|program| self.machine.is_program(program))
    }
}

/// Facts about a machine.
pub(crate) trait Machine {
    /// Returns the processors in this process's affinity mask.
    fn affinity(&self) -> CpuList;
    /// Returns the lowest limit of processor time in this process's control groups.
    fn cpu_limit(&self) -> Option<CpuLimit>;
    /// Returns all accelerators, including those that are not visible.
    fn accelerators(&self) -> Accelerators;
    /// Returns the processors of each worker, by local rank.
    fn bind(
        &self,
        mode: BindingMode,
        lists: &VisibleLists,
        local_world_size: u32,
    ) -> Result<Vec<Binding>, PlacementError>;
    /// `true` if a host name or address is that of this machine; resolves names.
    fn is_called(&self, host: &str) -> bool;
    fn working_directory(&self) -> PathBuf;
    /// `true` if the path is a regular file.
    fn is_file(&self, path: &Path) -> bool;
    /// Returns the first mebibyte of a file; `None` if it cannot be read.
    fn beginning(&self, path: &Path) -> Option<Vec<u8>>;
    /// Returns the names in a directory; none if it cannot be read.
    fn names(&self, directory: &Path) -> Vec<OsString>;
    /// `true` if the path is an executable file.
    fn is_program(&self, path: &Path) -> bool;
    /// `true` if the path is a directory in which files can be created.
    fn takes_files(&self, path: &Path) -> bool;
    fn random_id(&self) -> String;
}

/// Returns the name of this host, as the kernel reports it.
pub(crate) fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Host on which this process runs.
#[derive(Debug)]
pub(crate) struct ThisHost;

impl Machine for ThisHost {
    fn affinity(&self) -> CpuList {
        Hardware::of_this_machine().affinity()
    }

    fn cpu_limit(&self) -> Option<CpuLimit> {
        Hardware::of_this_machine().cpu_limit()
    }

    fn accelerators(&self) -> Accelerators {
        Hardware::of_this_machine().accelerators()
    }

    fn bind(
        &self,
        mode: BindingMode,
        lists: &VisibleLists,
        local_world_size: u32,
    ) -> Result<Vec<Binding>, PlacementError> {
        Hardware::of_this_machine().bind(mode, lists, local_world_size)
    }

    fn is_called(&self, host: &str) -> bool {
        is_this_machine(host, NAME_LOOK_UP)
    }

    fn working_directory(&self) -> PathBuf {
        std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"))
    }

    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn beginning(&self, path: &Path) -> Option<Vec<u8>> {
        if !path.is_file() {
            return None;
        }
        let mut text = Vec::new();
        File::open(path)
            .ok()?
            .take(1 << 20)
            .read_to_end(&mut text)
            .ok()?;
        Some(text)
    }

    fn names(&self, directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect()
    }

    fn takes_files(&self, path: &Path) -> bool {
        rdzv_agent::launcher::host::takes_files(path)
    }

    fn is_program(&self, path: &Path) -> bool {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    }

    fn random_id(&self) -> String {
        Uuid::new_v4().to_string()
    }
}
