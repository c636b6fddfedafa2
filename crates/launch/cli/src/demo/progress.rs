//! Reports of the workers to the demo, as datagrams on a local socket.
//!
//! The socket has an abstract name (Linux), so it leaves no file behind.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Report of the worker with rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Progress {
    /// All ranks have joined. They continue after this step; 0 is the beginning.
    Joined { step: u32 },
    /// The loss before a step, over the points of all ranks.
    Step { step: u32, loss: f32 },
    /// All steps are done.
    Finished(Finished),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Finished {
    pub(super) step: u32,
    pub(super) loss: f32,
    /// Fraction of the points that the network classifies correctly.
    pub(super) accuracy: f32,
}

#[derive(Debug)]
pub(super) struct Reports {
    socket: UnixDatagram,
    name: String,
}

/// Size of the buffer, which is larger than any report.
const LONGEST: usize = 1024;

impl Reports {
    pub(super) fn open() -> io::Result<Self> {
        let name = format!("rdzv-demo-{}", Uuid::new_v4());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Self { socket, name })
    }

    /// Returns the name of the socket, to which a [`Reporter`] connects.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next report; `None` after [`Reporter::end`].
    pub(super) fn next(&self) -> io::Result<Option<Progress>> {
        let mut buffer = [0; LONGEST];
        let len = self.socket.recv(&mut buffer)?;
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&buffer[..len])?))
    }
}

#[derive(Debug)]
pub(super) struct Reporter {
    socket: UnixDatagram,
}

impl Reporter {
    pub(super) fn connect(name: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(Self { socket })
    }

    pub(super) fn report(&self, progress: Progress) -> io::Result<()> {
        self.socket.send(&serde_json::to_vec(&progress)?)?;
        Ok(())
    }

    /// Ends the reports: no worker sends another one.
    pub(super) fn end(&self) -> io::Result<()> {
        self.socket.send(&[])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_in_order_and_to_the_last_bit() {
        let reports = Reports::open().unwrap();
        let reporter = Reporter::connect(reports.name()).unwrap();
        let sent = [
            Progress::Joined { step: 0 },
            Progress::Step {
                step: 1,
                loss: f32::from_bits(0x3dcc_cccd),
            },
            Progress::Finished(Finished {
                step: 2,
                loss: f32::MIN_POSITIVE,
                accuracy: 1.0 / 3.0,
            }),
        ];
        for progress in sent {
            reporter.report(progress).unwrap();
        }
        reporter.end().unwrap();
        for progress in sent {
            assert_eq!(reports.next().unwrap(), Some(progress));
        }
        assert_eq!(reports.next().unwrap(), None);
    }
}
