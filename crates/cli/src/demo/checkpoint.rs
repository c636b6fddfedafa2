//! The checkpoint: a file that is there as a whole or not at all.
//!
//! Little-endian: the step (u32), the number of parameters (u32), the parameters, the velocities.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::network::Training;

const NAME: &str = "checkpoint";

/// Writes the checkpoint next to the old one and then puts it in its place, so that a process that
/// dies at any time leaves one of the two.
pub(super) fn save(directory: &Path, training: &Training) -> io::Result<()> {
    let len = u32::try_from(training.parameters.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.extend(training.step.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    for number in training.parameters.iter().chain(&training.velocity) {
        bytes.extend(number.to_le_bytes());
    }
    let unfinished = directory.join("checkpoint.unfinished");
    let mut file = File::create(&unfinished)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    fs::rename(unfinished, directory.join(NAME))
}

/// Reads the checkpoint; `None` if there is none yet.
pub(super) fn load(directory: &Path) -> io::Result<Option<Training>> {
    match fs::read(directory.join(NAME)) {
        Ok(bytes) => decode(&bytes).map(Some).ok_or_else(|| {
            let path = directory.join(NAME);
            io::Error::other(format!("{} is not a whole checkpoint", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn decode(bytes: &[u8]) -> Option<Training> {
    let (step, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (numbers, odd) = rest.as_chunks();
    let mut numbers = numbers.iter().copied().map(f32::from_le_bytes);
    let complete = odd.is_empty() && numbers.len() == len.checked_mul(2)?;
    complete.then(|| Training {
        step: u32::from_le_bytes(*step),
        parameters: numbers.by_ref().take(len).collect(),
        velocity: numbers.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_last_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path()).unwrap(), None);
        let mut training = Training::new(7);
        for step in [10, 20] {
            training.step = step;
            save(directory.path(), &training).unwrap();
        }
        assert_eq!(load(directory.path()).unwrap(), Some(training));
    }

    #[test]
    fn a_damaged_checkpoint_is_an_error_and_not_a_start_from_nothing() {
        let directory = tempfile::tempdir().unwrap();
        save(directory.path(), &Training::new(7)).unwrap();
        let path = directory.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for len in [0, 3, 8, whole.len() - 1] {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(load(directory.path()).is_err(), "{len} bytes");
        }
        fs::write(&path, [0xff; 16]).unwrap();
        assert!(load(directory.path()).is_err());
    }
}
