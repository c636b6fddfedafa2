//! What a worker tells the others of itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdzv_core::escape::escape;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::device::{DeviceData, Node};
use crate::worker::WorkerInfo;

/// A worker as the others have to know it.
///
/// Written as JSON, so that people can read it in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name and id.
    pub info: WorkerInfo,
    /// Its address, as its transports encode it.
    #[serde(rename = "contact", with = "as_base64")]
    pub address: Vec<u8>,
    /// Tells this life of the worker from an earlier one of the same name and id; drawn at random.
    pub incarnation: u64,
    /// Its devices.
    #[serde(default)]
    pub device: DeviceData,
}

/// Somebody who is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Who it was.
    pub info: WorkerInfo,
    /// In which life.
    pub incarnation: u64,
    /// `true` if its lease ran out; else it said good-bye.
    pub lost: bool,
}

/// A value in the store that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{what} in the store cannot be read ({reason}): {beginning:?}; do all workers run the same version?"
)]
pub struct BadRecord {
    /// What it should be.
    pub what: &'static str,
    /// What is wrong with it.
    pub reason: String,
    /// How it begins.
    pub beginning: String,
}

/// A value as it is kept in a store.
pub(super) fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("maps with texts as keys, numbers and texts are JSON")
}

/// A value out of a store.
pub(super) fn read<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, BadRecord> {
    const SHOWN: usize = 80;
    serde_json::from_slice(bytes).map_err(|error| BadRecord {
        what,
        reason: escape(&error.to_string()),
        beginning: String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned(),
    })
}

impl Member {
    /// The member as the rules of device maps see it.
    pub(super) fn node(&self) -> Node<'_> {
        Node {
            name: self.info.name.as_str(),
            data: &self.device,
        }
    }

    /// As it is kept in a store.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Out of a store.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it is something else.
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

    /// A member without devices; its incarnation follows from its id.
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
        // A name that no worker can have is none in the store either.
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
