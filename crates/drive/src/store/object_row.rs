//! The row of an object in the tables: all its properties that have a fixed size.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use object::{ObjectType, Timestamp};

/// Version of the row's format, its first byte.
const ROW_VERSION: u8 = 1;
const ROW_BYTES: usize = 136;

/// Flag: blocks of the object may be shared with a copy, so a block that is released may still have other references.
pub(crate) const MAY_SHARE: u8 = 1;
/// Flag: the object cannot be changed, because it is in a snapshot, is a frozen copy, or is a partition that is being
/// removed.
pub(crate) const FROZEN: u8 = 2;
/// Flag: chunks of the object are still to be freed, and a work row names them.
pub(crate) const HAS_WORK: u8 = 4;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ObjectRow {
    pub(crate) object_type: ObjectType,
    pub(crate) flags: u8,
    pub(crate) times: ObjectTimes,
    /// Logical length of a user object in bytes.
    pub(crate) length: u64,
    /// Number of blocks: those of a user object, or of all user objects in a partition.
    pub(crate) used: u64,
    /// Number of the object's content, which is in the keys of its chunk rows. No number is assigned twice.
    pub(crate) content: u64,
    pub(crate) policy_tag: u32,
    /// Length in bytes of the values of all attributes that have rows of their own.
    pub(crate) attribute_bytes: u32,
    /// Maximum logical length in bytes. Zero means the default of the partition or root.
    pub(crate) max_length: u64,
    pub(crate) members: Membership,
    pub(crate) quota: Quota,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ObjectTimes {
    pub(crate) created: Timestamp,
    pub(crate) attributes_accessed: Timestamp,
    pub(crate) attributes_modified: Timestamp,
    pub(crate) data_accessed: Timestamp,
    pub(crate) data_modified: Timestamp,
}

/// The counts that the root, a partition or a collection keeps of its content.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Membership {
    /// Number of partitions in the root, of user objects in a partition, or of members in a collection.
    pub(crate) count: u64,
    pub(crate) collections: u64,
    /// Number of creations and removals in it, which wraps. The LIST IDENTIFIER of a list tells a client with it
    /// whether the list has changed.
    pub(crate) changes: u32,
    /// The highest identifier that was ever used in the partition.
    pub(crate) highest: u64,
    /// COLLECTION TYPE of a collection.
    pub(crate) kind: u8,
    /// The PARTITION_ID of the partition from which a snapshot or clone was made.
    pub(crate) source: u64,
}

/// Quotas of a partition; in the row of the root, the quotas that new partitions get. Zero means no quota.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Quota {
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
    pub(crate) user_policy_tag: u32,
}

impl ObjectRow {
    pub(crate) fn new(object_type: ObjectType, now: Timestamp) -> Self {
        let times = ObjectTimes {
            created: now,
            attributes_accessed: now,
            attributes_modified: now,
            data_accessed: now,
            data_modified: now,
        };
        Self {
            object_type,
            flags: 0,
            times,
            length: 0,
            used: 0,
            content: 0,
            policy_tag: 0,
            attribute_bytes: 0,
            max_length: 0,
            members: Membership::default(),
            quota: Quota::default(),
        }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(ROW_BYTES);
        bytes.put_u8(ROW_VERSION);
        bytes.put_u8(self.object_type as u8);
        bytes.put_u8(self.flags);
        bytes.put_u8(self.members.kind);
        let times = &self.times;
        for time in [
            times.created,
            times.attributes_accessed,
            times.attributes_modified,
            times.data_accessed,
            times.data_modified,
        ] {
            bytes.put_slice(&time.to_bytes());
        }
        for number in [self.length, self.used, self.content, self.max_length] {
            bytes.put_u64_le(number);
        }
        bytes.put_u32_le(self.policy_tag);
        bytes.put_u32_le(self.attribute_bytes);
        if self.object_type != ObjectType::UserObject {
            let (members, quota) = (&self.members, &self.quota);
            for number in [
                members.count,
                members.collections,
                members.highest,
                members.source,
                quota.bytes,
                quota.objects,
            ] {
                bytes.put_u64_le(number);
            }
            bytes.put_u32_le(members.changes);
            bytes.put_u32_le(quota.user_policy_tag);
        }
        bytes.freeze()
    }

    /// Decodes the row of an object. Returns `None` for a row of another version or form.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < USER_ROW_BYTES || bytes.get_u8() != ROW_VERSION {
            return None;
        }
        let object_type = ObjectType::from_code(bytes.get_u8())?;
        let (flags, kind) = (bytes.get_u8(), bytes.get_u8());
        let mut time = || {
            let mut six = [0; 6];
            bytes.copy_to_slice(&mut six);
            Timestamp::from_bytes(six)
        };
        let times = ObjectTimes {
            created: time(),
            attributes_accessed: time(),
            attributes_modified: time(),
            data_accessed: time(),
            data_modified: time(),
        };
        let [length, used, content, max_length] = std::array::from_fn(|_| bytes.get_u64_le());
        let (policy_tag, attribute_bytes) = (bytes.get_u32_le(), bytes.get_u32_le());
        let (mut members, mut quota) =
            (Membership { kind, ..Membership::default() }, Quota::default());
        if object_type != ObjectType::UserObject {
            if bytes.len() < 56 {
                return None;
            }
            members.count = bytes.get_u64_le();
            members.collections = bytes.get_u64_le();
            members.highest = bytes.get_u64_le();
            members.source = bytes.get_u64_le();
            quota.bytes = bytes.get_u64_le();
            quota.objects = bytes.get_u64_le();
            members.changes = bytes.get_u32_le();
            quota.user_policy_tag = bytes.get_u32_le();
        }
        (used <= MOST_USED).then_some(Self {
            object_type,
            flags,
            times,
            length,
            used,
            content,
            policy_tag,
            attribute_bytes,
            max_length,
            members,
            quota,
        })
    }
}

/// Length in bytes of the row of a user object.
const USER_ROW_BYTES: usize = 4 + 5 * 6 + 4 * 8 + 2 * 4;

/// Larger numbers of used blocks do not occur: a row with one is damaged. Below it, sums and their products with the
/// length of a block do not overflow.
const MOST_USED: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_decode_as_they_were_encoded() {
        let mut row = ObjectRow::new(ObjectType::Partition, Timestamp::from_ms(77));
        row.members =
            Membership { count: 1, collections: 2, changes: 3, highest: 4, kind: 5, source: 6 };
        row.quota = Quota { bytes: 7, objects: 8, user_policy_tag: 9 };
        (row.length, row.used, row.flags) = (10, 11, FROZEN);
        assert_eq!(ObjectRow::decode(&row.encode()), Some(row.clone()));
        let user =
            ObjectRow { length: 12, ..ObjectRow::new(ObjectType::UserObject, Timestamp::MAX) };
        assert_eq!(user.encode().len(), USER_ROW_BYTES);
        assert_eq!(ObjectRow::decode(&user.encode()), Some(user));
        for length in 0..row.encode().len() {
            assert_eq!(ObjectRow::decode(&row.encode()[..length]), None);
        }
    }
    #[test]
    fn a_row_with_more_used_blocks_than_a_drive_can_have_is_damaged() {
        let row = ObjectRow::new(ObjectType::UserObject, Timestamp::MAX);
        let most = ObjectRow { used: MOST_USED, ..row.clone() };
        assert_eq!(ObjectRow::decode(&most.encode()), Some(most));
        for used in [MOST_USED + 1, u64::MAX] {
            let hostile = ObjectRow { used, ..row.clone() };
            assert_eq!(ObjectRow::decode(&hostile.encode()), None);
        }
    }
}
