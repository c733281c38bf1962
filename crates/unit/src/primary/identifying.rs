//! Identifying information: the names that an operator gives the unit.

use std::{io, sync::Arc};

use parking_lot::Mutex;
use scsi::{IdentifyingType, Sense};

use crate::store::{UnitRecordKind, UnitStore, damaged};

/// The identifying information of a unit. Only a unit with a store has any, because the information persists
/// (SPC-4, 5.6).
pub(crate) struct Identifying {
    store: Arc<dyn UnitStore>,
    /// Held while identifying information changes, until the record of the change is saved.
    changing: tokio::sync::Mutex<()>,
    known: Mutex<Information>,
}

/// Indexed by the position of the type in [`IdentifyingType::ALL`].
type Information = [Vec<u8>; IdentifyingType::ALL.len()];

impl Identifying {
    pub(crate) fn load(store: Arc<dyn UnitStore>) -> io::Result<Self> {
        let known = match store.load(UnitRecordKind::Identifying)? {
            None => Information::default(),
            Some(bytes) => {
                from_record(&bytes).ok_or_else(|| damaged(UnitRecordKind::Identifying))?
            }
        };
        Ok(Self { store, changing: tokio::sync::Mutex::default(), known: Mutex::new(known) })
    }

    pub(crate) fn of(&self, kind: IdentifyingType) -> Vec<u8> {
        self.known.lock()[place(kind)].clone()
    }

    /// Sets the identifying information of type `kind`. Returns true if that is a change.
    pub(crate) async fn set(&self, kind: IdentifyingType, bytes: Vec<u8>) -> Result<bool, Sense> {
        let _one_at_a_time = self.changing.lock().await;
        let mut wanted = self.known.lock().clone();
        if wanted[place(kind)] == bytes {
            return Ok(false);
        }
        wanted[place(kind)] = bytes;
        let saved = self.store.save(UnitRecordKind::Identifying, to_record(&wanted)).await;
        saved.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
        *self.known.lock() = wanted;
        Ok(true)
    }
}

fn place(kind: IdentifyingType) -> usize {
    match kind {
        IdentifyingType::Unit => 0,
        IdentifyingType::Text => 1,
    }
}

fn to_record(information: &Information) -> Vec<u8> {
    let mut bytes = vec![VERSION, 0];
    for one in information {
        bytes.extend_from_slice(&(one.len() as u16).to_le_bytes());
        bytes.extend_from_slice(one);
    }
    bytes
}

fn from_record(bytes: &[u8]) -> Option<Information> {
    let mut rest = bytes.strip_prefix(&[VERSION, 0])?;
    let mut information = Information::default();
    for (kind, one) in IdentifyingType::ALL.iter().zip(&mut information) {
        let (length, after) = rest.split_first_chunk()?;
        let length = u16::from_le_bytes(*length);
        let (bytes, after) = after.split_at_checked(usize::from(length))?;
        if length > kind.most() {
            return None;
        }
        *one = bytes.to_vec();
        rest = after;
    }
    rest.is_empty().then_some(information)
}

/// Version of the record. The record has this byte, a zero, and then length and bytes of each type:
/// `docs/formats/state.md`.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_encoded_byte_by_byte_and_decoded_again() {
        let information = [vec![7, 8], b"db\0".to_vec()];
        let bytes = to_record(&information);
        assert_eq!(bytes, [1, 0, 2, 0, 7, 8, 3, 0, b'd', b'b', 0]);
        assert_eq!(from_record(&bytes), Some(information));
        for length in 0..bytes.len() {
            assert_eq!(from_record(&bytes[..length]), None, "{length}");
        }
        let longer = to_record(&[vec![0; 512], vec![0; 257]]);
        assert_eq!(from_record(&longer), None);
    }
}
