//! This host: its name, as reports and events show it, its directory of temporary files, and how many
//! files a process may open.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use rdzv_core::escape::escape;

/// The full name of this host: its own if that has a domain, else the one that the hosts file gives
/// for it, else its own. No name server is asked: a report must not wait for one.
pub fn full_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    escape(&with_domain(&name, &hosts).unwrap_or(name))
}

fn with_domain(name: &str, hosts: &str) -> Option<String> {
    if name.contains('.') {
        return None;
    }
    hosts.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        let full = names
            .iter()
            .find(|other| other.split('.').next() == Some(name) && other.contains('.'))?;
        names.contains(&name).then(|| (*full).to_owned())
    })
}

/// The directory of temporary files as Python chooses it: the first usable one of those that the
/// environment names and the usual ones. If none is usable, the first one named, for the error message.
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

/// Whether this is a directory in which files can be made.
pub fn takes_files(path: &Path) -> bool {
    path.is_dir() && access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// The one of this process.
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

/// Raises the limit of open files as far as this process may: every connection is one, and the usual
/// limit is 1,024. Returns the limit before.
pub fn raise_open_files_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("raise the limit of open files: {error}");
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

    #[test]
    fn the_hosts_file_completes_a_short_name() {
        let hosts = "127.0.0.1 localhost\n10.0.0.4 node-a.example node-a # ours\n";
        assert_eq!(
            with_domain("node-a", hosts).as_deref(),
            Some("node-a.example")
        );
        assert_eq!(with_domain("node-b", hosts), None);
        assert_eq!(with_domain("node-a.other", hosts), None);
    }
}
