//! Data that a worker publishes about itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdzv_core::escape::escape;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::device::{DeviceData, Node};
use crate::worker::WorkerInfo;

/// Worker with the data that other members need.
///
/// A member is stored as JSON, so that users can read it in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Name and id of the worker.
    pub info: WorkerInfo,
    /// Address of the worker, as its transports encode it.
    #[serde(rename = "contact", with = "as_base64")]
    pub address: Vec<u8>,
    /// Random number that identifies this run of the worker.
    ///
    /// An earlier run with the same name and id has another number.
    pub incarnation: u64,
    /// Devices of the worker.
    #[serde(default)]
    pub device: DeviceData,
}

/// Member that has left the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Name and id of the member.
    pub info: WorkerInfo,
    /// Incarnation of the member.
    pub incarnation: u64,
    /// `true` if the member's lease expired; `false` if the member left.
    pub lost: bool,
}

/// Value in the store that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "cannot parse {what} in the store ({reason}): {beginning:?}; check that all workers run the \
     same version"
)]
pub struct BadRecord {
    /// Name of the expected value.
    pub what: &'static str,
    /// Reason why the value cannot be read.
    pub reason: String,
    /// First bytes of the value; empty if its format is unknown.
    pub beginning: String,
}

/// Returns a value in its stored form.
pub(super) fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("maps with texts as keys, numbers and texts are JSON")
}

/// Reads a value from its stored form.
pub(super) fn read<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, BadRecord> {
    const SHOWN: usize = 80;
    serde_json::from_slice(bytes).map_err(|error| BadRecord {
        what,
        reason: escape(&error.to_string()),
        beginning: String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned(),
    })
}

impl Member {
    /// Returns the member as input for the device rules.
    pub(super) fn node(&self) -> Node<'_> {
        Node {
            name: self.info.name.as_str(),
            data: &self.device,
        }
    }

    /// Returns the stored form of the member.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Reads a member from its stored form.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if the bytes are not a member.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRecord> {
        read("a worker", bytes)
    }
}

mod as_base64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::worker::{WorkerId, WorkerName};

    /// Creates a member without devices. Its incarnation follows from its id.
    pub(in crate::directory) fn member(name: &str, id: u32) -> Member {
        Member {
            info: WorkerInfo {
                id: WorkerId(id),
                name: WorkerName::new(name).unwrap(),
            },
            address: vec![0, 255, 7],
            incarnation: u64::from(id) + 1000,
            device: DeviceData::default(),
        }
    }

    #[test]
    fn a_member_survives_its_written_form_whatever_its_name() {
        let mut member = member("a-b:c_d", 3);
        member.incarnation = u64::MAX;
        let map = crate::device::DeviceMap::new([(0, 1)]).unwrap();
        member.device.device_maps.insert("x".to_owned(), map);
        assert_eq!(Member::decode(&member.encode()).unwrap(), member);
    }

    #[test]
    fn what_is_no_member_is_quoted() {
        let error = Member::decode(b"worker0").unwrap_err().to_string();
        assert!(error.contains("\"worker0\""), "{error}");
        // A name that no worker can have is refused in the store too.
        let text = String::from_utf8(member("ok", 0).encode()).unwrap();
        let hostile = text.replace("\"ok\"", "\"x\\u001b[2J\"");
        let error = Member::decode(hostile.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("x\\u{1b}[2J") && !error.contains('\u{1b}'),
            "{error:?}"
        );
        assert!(Member::decode(text.replace("ok", "o k").as_bytes()).is_err());
    }
}
