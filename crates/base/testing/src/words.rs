//! Arguments of a program.

/// Arguments of a program: one text that is split at blanks, or a list.
/// A pair of two such values is their concatenation.
pub trait Words {
    /// Returns each argument.
    fn words(self) -> Vec<String>;
}

impl Words for &str {
    fn words(self) -> Vec<String> {
        self.split_whitespace().map(str::to_owned).collect()
    }
}

impl Words for &[&str] {
    fn words(self) -> Vec<String> {
        self.iter().map(|&word| word.to_owned()).collect()
    }
}

impl<const N: usize> Words for &[&str; N] {
    fn words(self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl Words for &Vec<&str> {
    fn words(self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl Words for Vec<String> {
    fn words(self) -> Vec<String> {
        self
    }
}

impl<A: Words, B: Words> Words for (A, B) {
    fn words(self) -> Vec<String> {
        [self.0.words(), self.1.words()].concat()
    }
}
