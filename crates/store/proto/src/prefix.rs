//! Names of the keys of a prefix store inside the wrapped store: `prefix/key`.
//!
//! The innermost wrapper's prefix comes first: "outer" around "inner" around a TCP store turns
//! `a` into `/inner/outer/a` on the wire.

/// Returns the name that `key` has in the wrapped store.
pub fn join(prefix: &str, key: &str) -> String {
    format!("{prefix}/{key}")
}

/// Returns the key whose name in the wrapped store is `name`.
///
/// `None` if `name` is not below the prefix. Only names that begin with the prefix *and* the slash
/// are below it: `ab/y` is not below `a`.
pub fn strip<'a>(prefix: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(prefix)?.strip_prefix('/')
}

#[cfg(test)]
mod tests {
    use super::{join, strip};

    #[test]
    fn stripping_undoes_joining() {
        for (prefix, key) in [("p", "a"), ("", "a"), ("p/", "a"), ("p", ""), ("p", "/")] {
            assert_eq!(strip(prefix, &join(prefix, key)), Some(key));
        }
        assert_eq!(join("inner", &join("outer", "a")), "inner/outer/a");
    }

    #[test]
    fn neighbours_that_only_start_alike_are_not_below() {
        assert_eq!(strip("a", "ab/y"), None);
        assert_eq!(strip("a", "abc"), None);
        assert_eq!(strip("a", "a"), None);
    }
}
