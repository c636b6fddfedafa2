//! Steps that pass time or use resources.

use std::env;
use std::fs;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::fixture_worker::number;

/// Executes a step of this family; `None` if the name belongs to another one.
pub(crate) fn step(name: &str, value: &str, _rest: &[String]) -> Option<io::Result<()>> {
    Some(match name {
        "pause" => number(value).map(|millis| thread::sleep(Duration::from_millis(millis))),
        "hang" => loop {
            thread::park();
        },
        "compute" => number(value).map(|millis| compute(Duration::from_millis(millis))),
        "await" => fs::read(value).map(drop),
        "hello" => {
            let (path, name) = value.split_once(':').unwrap_or((value, "worker"));
            hello(path, name)
        }
        "eat" => number(value).map(eat),
        _ => return None,
    })
}

fn compute(amount: Duration) {
    let used = || {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(used).unwrap_or_default()
    };
    let end = used() + amount;
    let mut value = 1_u64;
    while used() < end {
        for step in 0..100_000_u64 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ step);
        }
    }
}

/// Sends its name and ranks, and waits for the answer.
/// The listener can then watch this process.
fn hello(path: &str, name: &str) -> io::Result<()> {
    let held = |variable| env::var(variable).unwrap_or_else(|_| "-".to_owned());
    let mut stream = UnixStream::connect(path)?;
    writeln!(
        stream,
        "{name} {} {} {} {} {}",
        held("RANK"),
        held("LOCAL_RANK"),
        held("GROUP_RANK"),
        held("TORCHELASTIC_RESTART_COUNT"),
        held("RDZV_ROUND"),
    )?;
    stream.read_exact(&mut [0])
}

fn eat(bytes: u64) {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let piece = 1 << 20;
    for _ in 0..bytes.div_ceil(piece) {
        // Not zero, so that the kernel allocates the pages.
        taken.push(vec![1; 1 << 20]);
    }
    // Kept until the process ends.
    Box::leak(taken.into_boxed_slice());
}
