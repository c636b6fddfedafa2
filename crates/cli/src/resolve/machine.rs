//! Facts about the host that a launch depends on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;
use uuid::Uuid;

/// What a launch has to know about the machine it is on.
pub(crate) trait Machine {
    /// Processors in this process's affinity mask.
    fn usable_processors(&self) -> u32;
    /// NVIDIA or AMD devices, whether visible or not.
    fn gpu_devices(&self) -> u32;
    /// Intel devices.
    fn xpu_devices(&self) -> u32;
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
    fn usable_processors(&self) -> u32 {
        match sched_getaffinity(None::<Pid>) {
            Ok(set) => set.count(),
            Err(_) => std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        }
    }

    fn gpu_devices(&self) -> u32 {
        let nvidia = count(Path::new("/proc/driver/nvidia/gpus"), |_| true);
        if nvidia > 0 {
            return nvidia;
        }
        // Processors are nodes of this tree as well; they have the id 0.
        count(Path::new("/sys/class/kfd/kfd/topology/nodes"), |node| {
            read(&node.join("gpu_id")).is_some_and(|id| id != "0")
        })
    }

    fn xpu_devices(&self) -> u32 {
        const DATA_CENTER: &str = "0x038000";
        ["xe", "i915"]
            .into_iter()
            .map(|driver| {
                let bound = format!("/sys/bus/pci/drivers/{driver}");
                count(Path::new(&bound), |device| {
                    read(&device.join("class")).as_deref() == Some(DATA_CENTER)
                })
            })
            .sum()
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

fn count(directory: &Path, wanted: impl Fn(&Path) -> bool) -> u32 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let found = entries.flatten().filter(|entry| wanted(&entry.path()));
    u32::try_from(found.count()).unwrap_or(u32::MAX)
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
