//! Name, temporary directory and open-files limit of this host.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use crate::host_name::{HostName, full_name, look_up, name_so_far};

/// Returns the directory of temporary files that Python would choose.
/// This is the first usable directory among those in the environment and the usual ones. If none is
/// usable, the function returns the first of them, for the error message.
pub fn temporary_directory(
    variable: impl Fn(&str) -> Option<PathBuf>,
    is_usable: impl Fn(&Path) -> bool,
) -> PathBuf {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().filter_map(variable);
    let usual = ["/tmp", "/var/tmp", "/usr/tmp"].map(PathBuf::from);
    let all: Vec<PathBuf> = named.chain(usual).collect();
    let usable = all.iter().find(|path| is_usable(path));
    usable.unwrap_or(&all[0]).clone()
}

/// Returns `true` if this process can create files in the directory `path`.
pub fn takes_files(path: &Path) -> bool {
    path.is_dir() && access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Returns the temporary directory of this process.
pub(crate) fn own_temporary_directory() -> PathBuf {
    temporary_directory(
        |name| {
            Some(
                std::env::var_os(name)
                    .filter(|path| !path.is_empty())?
                    .into(),
            )
        },
        takes_files,
    )
}

/// Raises the limit of open files as far as the system permits.
/// Every connection is an open file, and the usual limit is 1,024. Returns the previous limit.
pub fn raise_open_files_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("cannot raise the limit of open files: {error}");
    }
    limit.current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_go_to_the_first_directory_that_takes_them() {
        let named = |name: &str| (name != "TMP").then(|| PathBuf::from(format!("/{name}")));
        let chosen = |usable: &[&str]| {
            temporary_directory(named, |path| {
                usable.iter().any(|one| Path::new(one) == path)
            })
        };
        assert_eq!(chosen(&["/TEMP", "/TMPDIR", "/tmp"]), Path::new("/TMPDIR"));
        assert_eq!(chosen(&["/TEMP", "/tmp"]), Path::new("/TEMP"));
        assert_eq!(chosen(&["/var/tmp"]), Path::new("/var/tmp"));
        assert_eq!(chosen(&[]), Path::new("/TMPDIR"));
    }
}
