//! Facts about the host that a launch depends on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent::topology::{Hardware, PlacementError};
use rdzv_agent_proto::topology::{
    Accelerators, Binding, BindingMode, CpuLimit, CpuList, VisibleLists,
};
use rdzv_rendezvous::dynamic::is_this_machine;
use uuid::Uuid;

/// How long the look-up of a host name may take.
const NAME_LOOK_UP: Duration = Duration::from_secs(10);

/// What a launch has to know about the machine it is on.
pub(crate) trait Machine {
    /// The processors in this process's affinity mask.
    fn affinity(&self) -> CpuList;
    /// The tightest limit on processor time that control groups put on this process.
    fn cpu_limit(&self) -> Option<CpuLimit>;
    /// All accelerators, whether visible or not.
    fn accelerators(&self) -> Accelerators;
    /// The processors for each of so many workers, by local rank.
    fn bind(
        &self,
        mode: BindingMode,
        lists: &VisibleLists,
        local_world_size: u32,
    ) -> Result<Vec<Binding>, PlacementError>;
    /// Whether a host name or address means this machine. Names are looked up.
    fn is_called(&self, host: &str) -> bool;
    /// The current directory.
    fn working_directory(&self) -> PathBuf;
    /// Whether there is a regular file of that name.
    fn is_file(&self, path: &Path) -> bool;
    /// Whether there is a file of that name that may be executed.
    fn is_program(&self, path: &Path) -> bool;
    /// A new UUID.
    fn random_id(&self) -> String;
}

/// This host.
#[derive(Debug)]
pub(crate) struct Host;

impl Machine for Host {
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

    fn is_program(&self, path: &Path) -> bool {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    }

    fn random_id(&self) -> String {
        Uuid::new_v4().to_string()
    }
}
