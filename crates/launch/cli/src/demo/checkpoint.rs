//! The checkpoint: a JSON file that is always complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::network::Training;

const NAME: &str = "checkpoint";

/// Writes the checkpoint to a new file, then renames it over the old one.
///
/// If the process dies at any time, one of the two remains.
pub(super) fn save(directory: &Path, training: &Training) -> io::Result<()> {
    let unfinished = directory.join("checkpoint.unfinished");
    let mut file = File::create(&unfinished)?;
    file.write_all(&serde_json::to_vec(training)?)?;
    file.sync_data()?;
    fs::rename(unfinished, directory.join(NAME))
}

/// Reads the checkpoint; `None` if the file does not exist yet.
pub(super) fn load(directory: &Path) -> io::Result<Option<Training>> {
    match fs::read(directory.join(NAME)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let path = directory.join(NAME);
            let path = path.display();
            io::Error::other(format!("{path} is not a complete checkpoint: {error}"))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
