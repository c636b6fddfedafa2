//! The private directory of the workers' sockets (`--worker-server`).

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::{Builder, TempDir};

/// The path of a socket has 107 bytes at most. A name within the directory takes a few of them.
const LONGEST_DIRECTORY: usize = 100;

/// What a directory of ours adds to the path it is in: a slash, the prefix, six random letters.
const NAME: usize = 1 + PREFIX.len() + 6;

const PREFIX: &str = "rdzv-";

/// Makes it, for this user only: in `temporary` if the paths of sockets fit there, else in `/tmp`.
/// It goes when what is returned is dropped.
pub(crate) fn directory(temporary: &Path) -> io::Result<TempDir> {
    let fits = OsStr::len(temporary.as_os_str()) + NAME <= LONGEST_DIRECTORY;
    let parent = if fits { temporary } else { Path::new("/tmp") };
    Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_can_be_bound_wherever_temporary_files_are() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("x".repeat(100));
        std::fs::create_dir(&deep).unwrap();
        for temporary in [base.path(), &deep] {
            let directory = directory(temporary).unwrap();
            let path = directory.path().to_owned();
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            UnixListener::bind(path.join("127")).unwrap();
            drop(directory);
            assert!(!path.exists());
        }
    }
}
