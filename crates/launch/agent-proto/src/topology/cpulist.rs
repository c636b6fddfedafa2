//! Sets of processors, as the kernel writes them: `0-3,8,10-11`.

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

/// Exclusive upper bound of processor numbers.
/// No kernel has more processors, and a text of a few bytes must not become a set of billions.
const MOST: u32 = 1 << 16;

/// A set of processors, by the kernel's numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CpuList(BTreeSet<u32>);

/// Reason why a text is not a list of processors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{text}' is not a list of processors such as 0-3,8: {part:?} is neither a number below 65536 \
     nor a range of such numbers"
)]
pub struct CpuListError {
    /// The whole text, cut to 80 characters.
    pub text: String,
    /// The invalid part, cut to 40 characters.
    pub part: String,
}

impl CpuList {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the kernel's form.
    /// Blanks and empty parts are ignored, so an empty text is the empty set. A NUMA node with
    /// memory only has such a text.
    pub fn parse(text: &str) -> Result<Self, CpuListError> {
        let mut set = BTreeSet::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let bad = || CpuListError {
                text: text.trim().chars().take(80).collect(),
                part: part.chars().take(40).collect(),
            };
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (
                number(first).ok_or_else(bad)?,
                number(last).ok_or_else(bad)?,
            );
            if last < first {
                return Err(bad());
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }

    /// Returns the processors in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of processors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// `true` if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lowest processor.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// `true` if the set contains this processor.
    pub fn contains(&self, processor: u32) -> bool {
        self.0.contains(&processor)
    }

    /// Returns the processors that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<T: IntoIterator<Item = u32>>(processors: T) -> Self {
        Self(processors.into_iter().collect())
    }
}

impl Extend<u32> for CpuList {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, processors: T) {
        self.0.extend(processors);
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&rdzv_core::rank::ranges(self.iter()))
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = text.trim();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse().ok()).flatten()?;
    (number < MOST).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        let numbers = |text| CpuList::parse(text).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("5"), [5]);
        assert_eq!(numbers(" 2 - 3 , ,1"), [1, 2, 3]);
        assert!(numbers("\n").is_empty());
    }

    #[test]
    fn what_is_no_list_is_named() {
        for text in [
            "a",
            "1-",
            "-1",
            "3-1",
            "0-3:2/4",
            "65536",
            "0-4294967295",
            "+1",
        ] {
            let error = CpuList::parse(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn neighbours_are_written_as_ranges() {
        let text = |numbers: &[u32]| numbers.iter().copied().collect::<CpuList>().to_string();
        assert_eq!(text(&[0, 1, 2, 4, 6, 7]), "0-2,4,6-7");
        assert_eq!(text(&[3]), "3");
        assert_eq!(text(&[]), "");
    }
}
