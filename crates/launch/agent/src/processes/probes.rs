//! Search for the cause of an exit that the worker itself does not explain.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rdzv_agent_proto::group::{Cause, Exit};
use rustix::fs::statvfs;

/// Exit codes of a shell that could not execute its input.
const NOT_EXECUTED: [i32; 3] = [2, 126, 127];

/// First bytes of every ELF program.
const ELF: [u8; 4] = *b"\x7fELF";
/// Offsets of the word size, byte order and architecture in an ELF header.
const KIND: [usize; 4] = [4, 5, 18, 19];

/// Returns a cause from the surroundings of a worker, if there is one.
///
/// `program` is the worker's program, and `logs` is the directory of its output.
pub(super) fn explain(exit: Exit, program: &Path, logs: Option<&Path>) -> Option<Cause> {
    // If the kernel does not know the format of a file, the worker's process executes a shell with
    // this file. A machine may be able to run programs for other architectures, so this check
    // follows only a failure.
    if matches!(exit, Exit::Code(code) if NOT_EXECUTED.contains(&code)) && is_foreign(program) {
        return Some(Cause::NotStarted {
            reason: format!(
                "Exec format error: '{}' is a program for another processor architecture",
                program.display()
            ),
        });
    }
    let logs = logs.filter(|logs| is_full(logs))?;
    Some(Cause::DiskFull {
        text: format!("the file system of its output is full, {}", logs.display()),
    })
}

fn is_foreign(program: &Path) -> bool {
    let kind = |path: &Path| {
        let mut header = [0; 20];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
        (read.is_ok() && header.starts_with(&ELF)).then(|| KIND.map(|index| header[index]))
    };
    let ours = kind(Path::new("/proc/self/exe"));
    kind(program).is_some_and(|theirs| ours.is_some_and(|ours| ours != theirs))
}

fn is_full(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|system| system.f_blocks > 0 && system.f_bavail == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_for_another_processor_is_distinguished_from_one_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        // A program for IBM's mainframes.
        let mut header = [0_u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x02\x01");
        header[19] = 22;
        std::fs::write(&path, header).unwrap();
        let explained = |code, program: &Path| explain(Exit::Code(code), program, None);
        assert_eq!(explained(127, &path).unwrap().kind(), "not_started");
        assert_eq!(explained(3, &path), None);
        assert_eq!(explained(127, Path::new("/proc/self/exe")), None);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(explained(127, &path), None);
    }

    #[test]
    fn a_folder_with_room_explains_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let logs = Some(directory.path());
        assert_eq!(explain(Exit::Code(1), Path::new("none"), logs), None);
    }
}
