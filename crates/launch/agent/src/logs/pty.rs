//! Pseudo-terminals for the output of workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// Columns and rows that are used if the terminal reports none.
const USUAL: (u16, u16) = (80, 24);

/// Both ends of a worker's stream.
/// The agent or its relay reads, and the worker writes.
pub(super) struct Ends {
    pub(super) reader: OwnedFd,
    pub(super) writer: OwnedFd,
}

/// Opens a pseudo-terminal of this size in raw mode.
///
/// Raw mode passes bytes unchanged and interprets none as a key. The terminal is no process's
/// controlling terminal, so its end causes no SIGHUP.
pub(super) fn open_terminal(size: (u16, u16)) -> io::Result<Ends> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let reader = openpt(flags)?;
    grantpt(&reader)?;
    unlockpt(&reader)?;
    let writer = ioctl_tiocgptpeer(&reader, flags)?;
    let mut modes = tcgetattr(&writer)?;
    modes.make_raw();
    tcsetattr(&writer, OptionalActions::Now, &modes)?;
    resize(&reader, size)?;
    do_not_block(&reader)?;
    Ok(Ends { reader, writer })
}

pub(super) fn open_pipe() -> io::Result<Ends> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    do_not_block(&reader)?;
    Ok(Ends { reader, writer })
}

/// Sets the size of a worker's terminal.
/// The worker learns the size from a query, or queries it after the agent has sent SIGWINCH.
pub(super) fn resize(reader: impl AsFd, (columns, rows): (u16, u16)) -> io::Result<()> {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(reader, size)?)
}

/// Returns the columns and rows of the terminal of this process.
pub(super) fn size() -> (u16, u16) {
    let size = tcgetwinsize(io::stdout()).map(|size| (size.ws_col, size.ws_row));
    let known = size
        .ok()
        .filter(|(columns, rows)| *columns > 0 && *rows > 0);
    known.unwrap_or(USUAL)
}

fn do_not_block(reader: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(
        reader,
        fcntl_getfl(reader)? | OFlags::NONBLOCK,
    )?)
}

#[cfg(test)]
mod tests {
    use std::io::IsTerminal;

    use rustix::io::{Errno, read, write};

    use super::*;

    #[test]
    fn bytes_pass_unchanged_and_the_end_is_known() {
        let Ends { reader, writer } = open_terminal((70, 20)).unwrap();
        assert!(writer.is_terminal());
        let size = tcgetwinsize(&writer).unwrap();
        assert_eq!((size.ws_col, size.ws_row), (70, 20));
        let text = b"a\nb\r\x1b[A\x03\t";
        assert_eq!(write(&writer, text), Ok(text.len()));
        let mut buffer = [0; 64];
        let length = read(&reader, &mut buffer).unwrap();
        assert_eq!(&buffer[..length], text);
        assert_eq!(read(&reader, &mut buffer), Err(Errno::AGAIN));
        drop(writer);
        assert_eq!(read(&reader, &mut buffer), Err(Errno::IO));
    }
}
