//! Request tags, an extension of ours: an initiator that lost its session finds out whether the drive performed a
//! command that must not be performed twice.
//!
//! | attribute of page F0010000h | place | value |
//! |---|---|---|
//! | 1 | set list of the command; set list of the GET ATTRIBUTES that looks the command up | [`RequestTag`] |
//! | 2 | get list of GET ATTRIBUTES | the [`RequestResult`] of the tag; empty if the drive has none |
//! | 3 | get list of GET ATTRIBUTES | the horizon, a [`RequestTag`] |
//! | 4 | get list of GET ATTRIBUTES | the boot epoch, 2 bytes: it increases with each start of the drive |
//!
//! The drive keeps the result of a tagged command that succeeded in a bounded table, atomically
//! with the effect of the command. An initiator looks up a command with GET ATTRIBUTES of the root.
//! A tag needs no permission of its own. An initiator that finds another boot epoch than before
//! knows that changes which it did not flush may be lost.
//!
//! The drive may have forgotten the results of tags up to the *horizon*, and of no tag above it. The horizon is zero
//! while nothing was forgotten. A tag above the horizon without a result therefore belongs to a command that was not
//! performed.

use object::{AttributeId, ObjectAddress, ObjectType, Timestamp};

use crate::bytes::{array_at, put, u64_at};

/// The number of the attributes page with request tags and their results.
pub const REQUEST_TAG_PAGE: u32 = 0xf001_0000;
pub const REQUEST_TAG: AttributeId = AttributeId::new(REQUEST_TAG_PAGE, 1);
pub const REQUEST_RESULT: AttributeId = AttributeId::new(REQUEST_TAG_PAGE, 2);
pub const REQUEST_HORIZON: AttributeId = AttributeId::new(REQUEST_TAG_PAGE, 3);
pub const BOOT_EPOCH: AttributeId = AttributeId::new(REQUEST_TAG_PAGE, 4);

pub const REQUEST_TAG_BYTES: usize = 16;
pub const REQUEST_RESULT_BYTES: usize = 40;

/// Identifies one command of one initiator. Tags are ordered by time.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestTag {
    /// The time at which the initiator made the tag, by the drive's clock.
    pub time: Timestamp,
    pub random: [u8; 10],
}

impl RequestTag {
    #[must_use]
    pub fn to_bytes(self) -> [u8; REQUEST_TAG_BYTES] {
        let mut bytes = [0; REQUEST_TAG_BYTES];
        put(&mut bytes, 0, &self.time.to_bytes());
        put(&mut bytes, 6, &self.random);
        bytes
    }

    /// Parses a request tag; `None` for a value of another length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != REQUEST_TAG_BYTES {
            return None;
        }
        let time = Timestamp::from_bytes(array_at(bytes, 0)?);
        Some(Self { time, random: array_at(bytes, 6)? })
    }
}

/// The result of a tagged command. Encoded: its number (8 bytes), type of its object (1 byte, then
/// 7 reserved), identifiers of its object, and the position of the first byte that APPEND wrote.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RequestResult {
    /// Number of the tagged command. The drive numbers such commands in the order of their effects.
    pub sequence: u64,
    pub object_type: Option<ObjectType>,
    /// The object of the command; for CREATE, the first object that it created.
    pub object: ObjectAddress,
    pub append_start: u64,
}

impl RequestResult {
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REQUEST_RESULT_BYTES] {
        let mut bytes = [0; REQUEST_RESULT_BYTES];
        put(&mut bytes, 0, &self.sequence.to_be_bytes());
        bytes[8] = self.object_type.map_or(0, |object_type| object_type as u8);
        put(&mut bytes, 16, &self.object.partition.to_be_bytes());
        put(&mut bytes, 24, &self.object.object.to_be_bytes());
        put(&mut bytes, 32, &self.append_start.to_be_bytes());
        bytes
    }

    /// Parses the result of a tagged command; `None` for a value of another length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != REQUEST_RESULT_BYTES {
            return None;
        }
        Some(Self {
            sequence: u64_at(bytes, 0)?,
            object_type: ObjectType::from_code(bytes[8]),
            object: ObjectAddress::new(u64_at(bytes, 16)?, u64_at(bytes, 24)?),
            append_start: u64_at(bytes, 32)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_ordered_by_time_also_as_bytes() {
        let tag = |ms, random| RequestTag { time: Timestamp::from_ms(ms), random: [random; 10] };
        let (early, late) = (tag(255, 9), tag(256, 1));
        assert!(early < late && early.to_bytes() < late.to_bytes());
        assert_eq!(RequestTag::parse(&late.to_bytes()), Some(late));
        assert_eq!(RequestTag::parse(&[0; 15]), None);
        assert_eq!(RequestTag::parse(&[]), None);
    }

    #[test]
    fn a_result_of_another_length_is_none() {
        let result = RequestResult {
            sequence: 5,
            object_type: Some(ObjectType::UserObject),
            object: ObjectAddress::new(0x1_0000, 0x1_0001),
            append_start: 7,
        };
        assert_eq!(RequestResult::parse(&result.to_bytes()), Some(result));
        assert_eq!(RequestResult::parse(&[0; 39]), None);
        assert_eq!(RequestResult::parse(&[0; 41]), None);
    }
}
