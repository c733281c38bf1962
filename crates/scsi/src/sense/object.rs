//! Sense data descriptors of object storage devices (OSD-2): the object that a command was about,
//! the response integrity check value, and the attributes in error.

use super::{
    Sense,
    format::{SenseDescriptor, descriptors},
};
use crate::field::{array_at, u32_at, u64_at};

/// The descriptors that an object storage device adds to a [`Sense`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObjectSense {
    pub object: Option<ObjectIdentification>,
    /// The response integrity check value, which the drive computes over the sense data with zeros
    /// in the place of this value.
    pub response_integrity: Option<[u8; INTEGRITY_BYTES]>,
    /// Page and number of each attribute that the error is about. Those that do not fit the sense
    /// data are not sent.
    pub attributes: Vec<(u32, u32)>,
}

/// The object that a command was about, and the functions of the command that were completed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ObjectIdentification {
    /// A bit for each function of the command that was not begun.
    pub not_initiated: u32,
    /// A bit for each function of the command that was completed.
    pub completed: u32,
    pub partition: u64,
    pub object: u64,
}

/// The descriptors of an object storage device in received sense data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReceivedObjectSense {
    pub descriptors: ObjectSense,
    /// The sense data as received, with zeros for the response integrity check value: the bytes
    /// over which the value is computed.
    pub proven: Vec<u8>,
}

impl ObjectSense {
    /// Encodes sense data in descriptor format with these descriptors, at most 252 bytes. Also
    /// returns the offset of the 32 bytes of [`Self::response_integrity`] if there are any: a drive
    /// encodes the sense data with zeros there, computes the value, and stores it in this struct.
    #[must_use]
    pub fn encode(&self, sense: &Sense) -> (Vec<u8>, Option<usize>) {
        let mut bytes = sense.to_descriptor_bytes();
        if let Some(object) = &self.object {
            bytes.extend_from_slice(&[OBJECT_DESCRIPTOR, OBJECT_LENGTH, 0, 0, 0, 0, 0, 0]);
            bytes.extend_from_slice(&object.not_initiated.to_be_bytes());
            bytes.extend_from_slice(&object.completed.to_be_bytes());
            bytes.extend_from_slice(&object.partition.to_be_bytes());
            bytes.extend_from_slice(&object.object.to_be_bytes());
        }
        let integrity = self.response_integrity.map(|value| {
            bytes.extend_from_slice(&[INTEGRITY_DESCRIPTOR, INTEGRITY_BYTES as u8]);
            bytes.extend_from_slice(&value);
            bytes.len() - INTEGRITY_BYTES
        });
        let room = (MOST_BYTES - bytes.len()).saturating_sub(8) / 8;
        let attributes = &self.attributes[..room.min(self.attributes.len())];
        if !attributes.is_empty() {
            let length = 6 + 8 * attributes.len();
            bytes.extend_from_slice(&[ATTRIBUTE_DESCRIPTOR, length as u8, 0, 0, 0, 0, 0, 0]);
            for (page, number) in attributes {
                bytes.extend_from_slice(&page.to_be_bytes());
                bytes.extend_from_slice(&number.to_be_bytes());
            }
        }
        bytes[7] = (bytes.len() - 8) as u8;
        (bytes, integrity)
    }
}

impl ReceivedObjectSense {
    /// Parses the descriptors of an object storage device. Returns `None` if the sense data has
    /// none. Takes the first of several descriptors of one type, and ignores one that is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut parsed = ObjectSense::default();
        let mut integrity = None;
        for SenseDescriptor { kind, at, body } in descriptors(bytes) {
            match kind {
                OBJECT_DESCRIPTOR if parsed.object.is_none() => {
                    parsed.object = parse_object(body);
                }
                INTEGRITY_DESCRIPTOR if integrity.is_none() => {
                    parsed.response_integrity = array_at(body, 0);
                    integrity = parsed.response_integrity.map(|_| at);
                }
                ATTRIBUTE_DESCRIPTOR if parsed.attributes.is_empty() => {
                    let pairs = body.get(6..).unwrap_or_default().chunks_exact(8);
                    parsed.attributes =
                        pairs.filter_map(|pair| u32_at(pair, 0).zip(u32_at(pair, 4))).collect();
                }
                _ => {}
            }
        }
        if parsed == ObjectSense::default() {
            return None;
        }
        let mut proven = bytes.to_vec();
        if let Some(at) = integrity {
            proven[at..at + INTEGRITY_BYTES].fill(0);
        }
        Some(Self { descriptors: parsed, proven })
    }
}

/// Parses the bytes after type and length of an OSD object identification descriptor.
fn parse_object(body: &[u8]) -> Option<ObjectIdentification> {
    Some(ObjectIdentification {
        not_initiated: u32_at(body, 6)?,
        completed: u32_at(body, 10)?,
        partition: u64_at(body, 14)?,
        object: u64_at(body, 22)?,
    })
}

/// Sense data descriptor types (SPC-4, table 29).
const OBJECT_DESCRIPTOR: u8 = 0x06;
const INTEGRITY_DESCRIPTOR: u8 = 0x07;
const ATTRIBUTE_DESCRIPTOR: u8 = 0x08;
/// ADDITIONAL LENGTH of the OSD object identification descriptor, which has 32 bytes.
const OBJECT_LENGTH: u8 = 0x1e;
/// The length in bytes of a response integrity check value.
const INTEGRITY_BYTES: usize = 32;
/// The most bytes of sense data (SPC-4, 4.5.1).
const MOST_BYTES: usize = 252;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SenseKey;

    const OBJECT: ObjectIdentification = ObjectIdentification {
        not_initiated: 0x0102_0304,
        completed: 0x1000_0000,
        partition: 0x1_0000,
        object: 0x1_0001,
    };

    fn decoded(sense: &Sense, object: &ObjectSense) -> Option<ObjectSense> {
        let (bytes, _) = object.encode(sense);
        ReceivedObjectSense::from_bytes(&bytes).map(|received| received.descriptors)
    }

    #[test]
    fn each_descriptor_byte_by_byte() {
        let sense = Sense::new(SenseKey::IllegalRequest, 0x24, 0);
        let object = ObjectSense { object: Some(OBJECT), ..Default::default() };
        let mut expected = vec![0x72, 5, 0x24, 0, 0, 0, 0, 32, 6, 0x1e, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(&[1, 2, 3, 4, 0x10, 0, 0, 0]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(object.encode(&sense), (expected, None));

        let proof = ObjectSense { response_integrity: Some([9; 32]), ..Default::default() };
        let (bytes, at) = proof.encode(&sense);
        assert_eq!(bytes[..10], [0x72, 5, 0x24, 0, 0, 0, 0, 34, 7, 0x20]);
        assert_eq!((&bytes[10..], at), (&[9; 32][..], Some(10)));

        let attributes = ObjectSense { attributes: vec![(1, 0x82), (2, 3)], ..Default::default() };
        let (bytes, _) = attributes.encode(&sense);
        assert_eq!(bytes[7..16], [24, 8, 22, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], [0, 0, 0, 1, 0, 0, 0, 0x82, 0, 0, 0, 2, 0, 0, 0, 3]);
    }

    #[test]
    fn the_integrity_value_is_found_behind_all_other_descriptors() {
        let sense = Sense::invalid_field_in_cdb(24).with_information(7).with_command_specific(8);
        let value = [0xab; 32];
        let object = ObjectSense {
            object: Some(OBJECT),
            response_integrity: Some([0; 32]),
            attributes: vec![(1, 1)],
        };
        let (zeros, at) = object.encode(&sense);
        let at = at.unwrap();
        let filled = ObjectSense { response_integrity: Some(value), ..object.clone() };
        let (bytes, again) = filled.encode(&sense);
        assert_eq!((again, &bytes[at..at + 32]), (Some(at), &value[..]));
        let received = ReceivedObjectSense::from_bytes(&bytes).unwrap();
        assert_eq!((received.descriptors, received.proven), (filled, zeros));
        assert_eq!(Sense::from_bytes(&bytes), Some(sense));
    }

    #[test]
    fn sense_data_is_never_longer_than_252_bytes() {
        let sense = Sense::invalid_field_in_cdb(24).with_information(7).with_command_specific(8);
        for count in 0..100 {
            let object = ObjectSense {
                object: Some(OBJECT),
                response_integrity: Some([1; 32]),
                attributes: (0..count).map(|number| (1, number)).collect(),
            };
            let (bytes, _) = object.encode(&sense);
            assert!(bytes.len() <= 252 && usize::from(bytes[7]) == bytes.len() - 8);
            let kept = ReceivedObjectSense::from_bytes(&bytes).unwrap().descriptors;
            assert_eq!(kept.attributes[..], object.attributes[..kept.attributes.len()]);
            assert_eq!(kept.attributes.len(), usize::min(count as usize, 17));
        }
    }

    #[test]
    fn sense_data_without_descriptors_of_objects_has_none() {
        let sense = Sense::invalid_field_in_cdb(24);
        assert_eq!(decoded(&sense, &ObjectSense::default()), None);
        assert_eq!(ReceivedObjectSense::from_bytes(&sense.to_fixed_bytes()), None);
        assert_eq!(ReceivedObjectSense::from_bytes(&[]), None);
    }

    #[test]
    fn a_descriptor_that_is_too_short_is_ignored() {
        let whole = ObjectSense { object: Some(OBJECT), ..Default::default() };
        let (mut bytes, _) = whole.encode(&Sense::NO_SENSE);
        (bytes[7], bytes[9]) = (31, 29);
        bytes.truncate(39);
        assert_eq!(ReceivedObjectSense::from_bytes(&bytes), None);
        let proof = ObjectSense { response_integrity: Some([9; 32]), ..Default::default() };
        let (mut bytes, _) = proof.encode(&Sense::NO_SENSE);
        (bytes[7], bytes[9]) = (33, 31);
        assert_eq!(ReceivedObjectSense::from_bytes(&bytes), None);
    }

    proptest! {
        #[test]
        fn descriptors_read_back(
            object in proptest::option::of(any::<[u32; 6]>()),
            response_integrity in proptest::option::of(any::<[u8; 32]>()),
            attributes in proptest::collection::vec(any::<(u32, u32)>(), 0..17),
        ) {
            let object = object.map(|[a, b, c, d, e, f]| ObjectIdentification {
                not_initiated: a,
                completed: b,
                partition: u64::from(c) << 32 | u64::from(d),
                object: u64::from(e) << 32 | u64::from(f),
            });
            let sense = ObjectSense { object, response_integrity, attributes };
            let is_empty = sense == ObjectSense::default();
            prop_assert_eq!(decoded(&Sense::NO_SENSE, &sense), (!is_empty).then_some(sense));
        }

        #[test]
        fn hostile_descriptors_do_no_harm(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..300),
            kinds in proptest::collection::vec((0u8..10, 0u8..40), 0..10),
        ) {
            bytes[0] = 0x72;
            let mut at = 8;
            for (kind, length) in kinds {
                if at + 1 < bytes.len() {
                    (bytes[at], bytes[at + 1]) = (kind, length);
                    at += 2 + usize::from(length);
                }
            }
            let _ = Sense::from_bytes(&bytes);
            if let Some(received) = ReceivedObjectSense::from_bytes(&bytes) {
                prop_assert_eq!(received.proven.len(), bytes.len());
            }
        }
    }
}
