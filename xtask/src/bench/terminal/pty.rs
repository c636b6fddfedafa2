//! A pseudo-terminal whose output this program reads.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// The two ends.
pub(super) struct Pty {
    pub(super) reader: File,
    pub(super) writer: OwnedFd,
}

impl Pty {
    /// A terminal of 80 columns and 24 rows. `is_raw`: bytes pass unchanged.
    pub(super) fn open(is_raw: bool) -> anyhow::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let reader = openpt(flags)?;
        grantpt(&reader)?;
        unlockpt(&reader)?;
        let writer = ioctl_tiocgptpeer(&reader, flags)?;
        if is_raw {
            let mut modes = tcgetattr(&writer)?;
            modes.make_raw();
            tcsetattr(&writer, OptionalActions::Now, &modes)?;
        }
        let size = Winsize {
            ws_col: 80,
            ws_row: 24,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&reader, size)?;
        Ok(Self {
            reader: reader.into(),
            writer,
        })
    }

    /// Has a command write to it, on stdout and stderr, and keeps the end that is read.
    pub(super) fn give(self, command: &mut Command) -> anyhow::Result<File> {
        command
            .env("TERM", "xterm-256color")
            .stdout(self.writer.try_clone()?)
            .stderr(self.writer);
        Ok(self.reader)
    }
}

/// Reads until nobody can write any more; each piece is handed to `take`.
pub(super) fn read_all(mut terminal: File, mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match terminal.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&buffer[..length]),
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
