//! Wait that regularly reports the missing keys.

use std::time::{Duration, Instant};

use rdzv_core::reminder::Reminder;

use crate::{Store, StoreError};

/// Waits for keys like [`Store::wait`], and calls `remind` regularly.
///
/// `remind` is called after 2.5 s, after 30 s, and then every 5 minutes. Its arguments are the
/// missing keys and the remaining time.
///
/// # Errors
///
/// Returns the same errors as [`Store::wait`].
pub fn wait_reminding(
    store: &(impl Store + ?Sized),
    keys: &[&str],
    timeout: Option<Duration>,
    remind: &mut dyn FnMut(&[String], Duration),
) -> Result<(), StoreError> {
    let limit = timeout.unwrap_or_else(|| store.timeout());
    let (began, mut reminder) = (Instant::now(), Reminder::default());
    loop {
        let elapsed = began.elapsed();
        let left = limit.saturating_sub(elapsed);
        let next = reminder.next().saturating_sub(elapsed);
        let mut ended = store.wait(keys, Some(left.min(next)));
        match &mut ended {
            Err(StoreError::WaitTimeout { missing, .. }) if next < left => {
                if reminder.is_due(began.elapsed()) {
                    remind(missing, limit.saturating_sub(began.elapsed()));
                }
                continue;
            }
            Err(StoreError::WaitTimeout { elapsed, .. }) => *elapsed = began.elapsed(),
            _ => {}
        }
        return ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashStore;

    #[test]
    fn missing_keys_are_named_within_three_seconds() {
        let store = HashStore::new();
        store.set("here", b"").unwrap();
        let mut reminders = Vec::new();
        let timeout = Some(Duration::from_millis(2_700));
        let keys = ["here", "absent"];
        let waited = wait_reminding(&store, &keys, timeout, &mut |missing, left| {
            reminders.push((missing.to_vec(), left));
        });
        let Err(StoreError::WaitTimeout { elapsed, .. }) = waited else {
            panic!("{waited:?}");
        };
        assert!(elapsed >= Duration::from_millis(2_700), "{elapsed:?}");
        assert_eq!(reminders.len(), 1);
        assert_eq!(reminders[0].0, ["absent"]);
        assert!(reminders[0].1 <= Duration::from_millis(200));
    }

    #[test]
    fn what_is_there_is_not_waited_for() {
        let store = HashStore::new();
        store.set("here", b"").unwrap();
        let mut remind = |_: &[String], _: Duration| panic!("nothing is missing");
        wait_reminding(&store, &["here"], None, &mut remind).unwrap();
    }
}
