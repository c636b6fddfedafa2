//! The flags of `rdzv store`.

use clap::Args;
use rdzv_store::Limits;

/// Flags of `rdzv store`.
#[derive(Debug, Clone, Args, PartialEq, Eq)]
pub(crate) struct StoreArgs {
    /// Name or address to listen on; not given, all addresses of this host
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,

    /// Port to listen on; 0 picks a free one
    ///
    /// The address in use is the first line on stdout.
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    pub(crate) port: u16,

    /// Longest key
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = size)]
    pub(crate) max_key_size: usize,

    /// Longest value of one request
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = size)]
    pub(crate) max_value_size: usize,

    /// Most keys in the store
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub(crate) max_keys: usize,

    /// Most connections at a time
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) max_connections: usize,

    /// Most memory for keys, values and the buffers of all connections
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub(crate) max_memory: usize,
}

impl StoreArgs {
    /// The bounds that these flags set; the others are the server's own.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_key_bytes: self.max_key_size,
            max_value_bytes: self.max_value_size,
            max_keys: self.max_keys,
            max_connections: self.max_connections,
            max_memory_bytes: self.max_memory,
            ..Limits::default()
        }
    }
}

/// Bytes, or a number with KiB, MiB or GiB behind it.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("a size is a number of bytes, or one of KiB, MiB or GiB".to_owned()),
    };
    let number: usize = digits
        .trim()
        .parse()
        .map_err(|_| format!("{digits:?} is no whole number"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "that is more than this machine can address".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreArgs,
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let line = Line::try_parse_from(["store"]).unwrap();
        assert_eq!(line.store.limits(), Limits::default());
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("12"), Ok(12));
        assert_eq!(size("3MiB"), Ok(3 << 20));
        assert_eq!(size("3 KiB"), Ok(3 << 10));
        for bad in ["", "MiB", "3MB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
