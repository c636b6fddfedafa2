//! What a rendezvous backend is configured with, and the text form of its options.

use std::collections::BTreeMap;

use crate::RendezvousError;

fn wrong(what: impl Into<String>) -> RendezvousError {
    RendezvousError::Argument(what.into())
}

/// Backend, endpoint, run and number of nodes, and the backend's own options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousParameters {
    /// Name of the backend (`--rdzv-backend`).
    pub backend: String,
    /// `host:port`, as typed (`--rdzv-endpoint`).
    pub endpoint: String,
    /// The run's name (`--rdzv-id`).
    pub run_id: String,
    /// Fewest nodes.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// The address of this node that others should use; `None` = found out.
    pub local_addr: Option<String>,
    /// The backend's options (`--rdzv-conf`).
    pub config: BTreeMap<String, String>,
}

impl RendezvousParameters {
    /// Checks the name of the backend and the numbers of nodes.
    pub fn new(
        backend: impl Into<String>,
        endpoint: impl Into<String>,
        run_id: impl Into<String>,
        min_nodes: u32,
        max_nodes: u32,
        config: BTreeMap<String, String>,
    ) -> Result<Self, RendezvousError> {
        let backend = backend.into();
        if backend.is_empty() {
            return Err(wrong(
                "The rendezvous backend name must be a non-empty string.",
            ));
        }
        if min_nodes < 1 {
            return Err(wrong(format!(
                "The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
            )));
        }
        if max_nodes < min_nodes {
            return Err(wrong(format!(
                "The maximum number of rendezvous nodes ({max_nodes}) must be greater than or \
                 equal to the minimum number of rendezvous nodes ({min_nodes})."
            )));
        }
        Ok(Self {
            backend,
            endpoint: endpoint.into(),
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            local_addr: None,
            config,
        })
    }

    /// An option as it was given.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// An option as yes or no; the words are `1 true t yes y` and `0 false f no n`, in any case.
    pub fn get_as_bool(&self, key: &str) -> Result<Option<bool>, RendezvousError> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        match text.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
            "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
            _ => Err(wrong(format!(
                "The rendezvous configuration option '{key}' does not represent a valid boolean \
                 value."
            ))),
        }
    }

    /// An option as a whole number.
    pub fn get_as_int(&self, key: &str) -> Result<Option<i64>, RendezvousError> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        text.trim().parse().map(Some).map_err(|_| {
            wrong(format!(
                "The rendezvous configuration option '{key}' does not represent a valid integer \
                 value."
            ))
        })
    }
}

/// Reads options written as `key=value,key=value`. Blank text is no options; a trailing comma is
/// an error.
pub fn parse_config(text: &str) -> Result<BTreeMap<String, String>, RendezvousError> {
    if text.trim().is_empty() {
        return Ok(BTreeMap::new());
    }
    text.split(',')
        .map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() {
                return Err(wrong(
                    "The rendezvous configuration string must be in format \
                     <key1>=<value1>,...,<keyN>=<valueN>.",
                ));
            }
            if value.is_empty() {
                return Err(wrong(format!(
                    "The rendezvous configuration option '{key}' must have a value specified."
                )));
            }
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(config: &str) -> RendezvousParameters {
        let config = parse_config(config).unwrap();
        RendezvousParameters::new("static", "h:1", "run", 1, 2, config).unwrap()
    }

    #[test]
    fn options_are_split_at_the_first_equals_sign() {
        let parameters = with(" a = 1 , b=x=y ");
        assert_eq!(parameters.get("a"), Some("1"));
        assert_eq!(parameters.get("b"), Some("x=y"));
        assert_eq!(parameters.get("c"), None);
        assert!(parse_config(" ").unwrap().is_empty());
    }

    #[test]
    fn malformed_options_are_refused_with_the_texts_of_the_reference() {
        let text = |config| parse_config(config).unwrap_err().to_string();
        let format = "The rendezvous configuration string must be in format \
                      <key1>=<value1>,...,<keyN>=<valueN>.";
        assert_eq!(text("a=1,"), format);
        assert_eq!(text("=1"), format);
        for config in ["a", "a=", "a= "] {
            assert_eq!(
                text(config),
                "The rendezvous configuration option 'a' must have a value specified."
            );
        }
    }

    #[test]
    fn options_have_types() {
        let parameters = with("yes=T,no=No,number= 42,word=apple,float=1.5");
        assert_eq!(parameters.get_as_bool("yes").unwrap(), Some(true));
        assert_eq!(parameters.get_as_bool("no").unwrap(), Some(false));
        assert_eq!(parameters.get_as_bool("absent").unwrap(), None);
        assert_eq!(parameters.get_as_int("number").unwrap(), Some(42));
        assert_eq!(parameters.get_as_int("absent").unwrap(), None);
        assert_eq!(
            parameters.get_as_bool("word").unwrap_err().to_string(),
            "The rendezvous configuration option 'word' does not represent a valid boolean value."
        );
        assert_eq!(
            parameters.get_as_int("float").unwrap_err().to_string(),
            "The rendezvous configuration option 'float' does not represent a valid integer value."
        );
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let text = |backend: &str, min, max| {
            RendezvousParameters::new(backend, "", "", min, max, BTreeMap::new())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text("", 1, 1),
            "The rendezvous backend name must be a non-empty string."
        );
        assert_eq!(
            text("static", 0, 1),
            "The minimum number of rendezvous nodes (0) must be greater than zero."
        );
        assert_eq!(
            text("static", 3, 2),
            "The maximum number of rendezvous nodes (2) must be greater than or equal to the \
             minimum number of rendezvous nodes (3)."
        );
    }
}
