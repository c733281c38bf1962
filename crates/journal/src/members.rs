//! The member records in the superblock of a log that serves several volumes.

use volume::{Geometry, JoinedVolume};

use crate::bytes::{put, put_u32, put_u64, u32_at, u64_at};

/// The record of one of the volumes that share a log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberRecord {
    /// The volume's region in the address space of the log, see [`JoinedVolume`]; less than
    /// [`JoinedVolume::PLACES`].
    pub place: usize,
    /// The name by which the volume is recognised at the next start.
    pub name: String,
    /// The key that identified this volume at the last opening. With the key, an opening can identify the
    /// volume before the volume has answered.
    pub key: u64,
    /// The volume's properties. The size is that of the last opening, or the size to which it has grown
    /// since.
    pub geometry: Geometry,
    /// The log generation whose claim this volume granted last; 0 if it never granted one.
    pub granted: u64,
    /// Number of the log opening to which the claim `granted` was given; 0 if there is none.
    pub opening: u64,
    /// Set if the volume was removed from the log although the log had dirty data for it. The log's content
    /// for it is void.
    pub given_up: Option<GivenUp>,
}

/// Describes the removal of a volume from the log with dirty data. No other volume gets its region while the
/// log or the NVRAM has data for this region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GivenUp {
    /// The number of dirty slots (4096 bytes each) that were discarded.
    pub slots: u64,
    /// True if the volume may share the log again, as a new volume with another region.
    pub may_return: bool,
}

/// Encodes the records one after the other. Returns false if they do not fit into `to`.
pub fn encode(members: &[MemberRecord], to: &mut [u8]) -> bool {
    let mut at = 0;
    for member in members {
        let name = member.name.as_bytes();
        let end = at + NAME_AT + name.len();
        let Some(record) = to.get_mut(at..end) else { return false };
        put_u32(record, PLACE_AT, member.place as u32);
        put_u32(record, NAME_LENGTH_AT, name.len() as u32);
        put_u64(record, KEY_AT, member.key);
        put_u64(record, BLOCKS_AT, member.geometry.blocks);
        put_u32(record, PHYSICAL_AT, member.geometry.physical_block_size);
        let abilities = u32::from(member.geometry.thin) * THIN
            + u32::from(member.geometry.volatile_cache) * VOLATILE
            + u32::from(member.geometry.read_only) * READ_ONLY;
        let given_up = member.given_up;
        let standing = u32::from(given_up.is_some()) * GIVEN_UP
            + u32::from(given_up.is_some_and(|given_up| given_up.may_return)) * MAY_RETURN;
        put_u32(record, FLAGS_AT, abilities + standing);
        put_u64(record, GRANTED_AT, given_up.map_or(member.granted, |given_up| given_up.slots));
        put_u64(record, OPENING_AT, member.opening);
        put(record, NAME_AT, name);
        at = end;
    }
    true
}

/// Decodes `count` records of volumes whose blocks have `block_size` bytes. Returns `None` if any record is
/// invalid or two records have the same region.
pub(crate) fn decode(count: usize, block_size: u32, bytes: &[u8]) -> Option<Vec<MemberRecord>> {
    let mut members: Vec<MemberRecord> = Vec::new();
    let mut rest = bytes;
    for _ in 0..count.min(JoinedVolume::PLACES + 1) {
        let record = rest.get(..NAME_AT)?;
        let length = u32_at(record, NAME_LENGTH_AT) as usize;
        let end = NAME_AT.checked_add(length)?;
        let name = std::str::from_utf8(rest.get(NAME_AT..end)?).ok()?.to_owned();
        let abilities = u32_at(record, FLAGS_AT);
        let geometry = Geometry {
            block_size,
            physical_block_size: u32_at(record, PHYSICAL_AT),
            read_only: abilities & READ_ONLY != 0,
            thin: abilities & THIN != 0,
            volatile_cache: abilities & VOLATILE != 0,
            ..Geometry::with_blocks(u64_at(record, BLOCKS_AT))
        };
        let granted = u64_at(record, GRANTED_AT);
        let given_up = (abilities & GIVEN_UP != 0)
            .then_some(GivenUp { slots: granted, may_return: abilities & MAY_RETURN != 0 });
        members.push(MemberRecord {
            place: u32_at(record, PLACE_AT) as usize,
            name,
            key: u64_at(record, KEY_AT),
            geometry,
            granted: if given_up.is_some() { 0 } else { granted },
            opening: u64_at(record, OPENING_AT),
            given_up,
        });
        rest = &rest[end..];
    }
    let one_each =
        |(at, one): (usize, &MemberRecord)| members[..at].iter().all(|m| m.place != one.place);
    let is_whole = members.len() == count
        && members.iter().all(MemberRecord::makes_sense)
        && members.iter().enumerate().all(one_each);
    is_whole.then_some(members)
}

impl MemberRecord {
    fn makes_sense(&self) -> bool {
        let Geometry { block_size, physical_block_size, blocks, .. } = self.geometry;
        self.place < JoinedVolume::PLACES
            && blocks <= JoinedVolume::STRIDE_BYTES / u64::from(block_size.max(1))
            && physical_block_size.is_power_of_two()
            && self.granted < u64::MAX / 2
            && self.given_up.is_none_or(|given_up| given_up.slots < u64::MAX / 2)
    }

    /// Returns true if the log's content for this volume is valid: the volume was not removed with dirty
    /// data.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.given_up.is_none()
    }
}

const THIN: u32 = 1;
const VOLATILE: u32 = 2;
const READ_ONLY: u32 = 4;
const GIVEN_UP: u32 = 8;
const MAY_RETURN: u32 = 16;

const PLACE_AT: usize = 0;
const NAME_LENGTH_AT: usize = 4;
const KEY_AT: usize = 8;
const BLOCKS_AT: usize = 16;
const PHYSICAL_AT: usize = 24;
const FLAGS_AT: usize = 28;
const GRANTED_AT: usize = 32;
const OPENING_AT: usize = 40;
const NAME_AT: usize = 48;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Name, offset and length in bytes of each field of a member record. A test compares them with
    /// docs/formats/log-disk.md.
    pub(crate) const FIELDS: &[(&str, usize, usize)] = &[
        ("place", PLACE_AT, 4),
        ("name length", NAME_LENGTH_AT, 4),
        ("key", KEY_AT, 8),
        ("blocks", BLOCKS_AT, 8),
        ("physical block size", PHYSICAL_AT, 4),
        ("flags", FLAGS_AT, 4),
        ("granted", GRANTED_AT, 8),
        ("opening", OPENING_AT, 8),
    ];

    pub(crate) fn sample(place: usize, name: &str) -> MemberRecord {
        let geometry = Geometry::with_blocks(1000 + place as u64);
        let (granted, opening, given_up) = (3, 9, None);
        MemberRecord { place, name: name.into(), key: 77, geometry, granted, opening, given_up }
    }

    #[test]
    fn a_record_of_a_removed_member_is_decoded_as_it_was_encoded() {
        let given_up = |slots, may_return| {
            let given_up = Some(GivenUp { slots, may_return });
            MemberRecord { granted: 0, given_up, ..sample(3, "a") }
        };
        for member in [given_up(70, false), given_up(0, true), sample(3, "a")] {
            let mut bytes = [0; 400];
            assert!(encode(std::slice::from_ref(&member), &mut bytes));
            assert_eq!(decode(1, 512, &bytes), Some(vec![member]));
        }
    }

    #[test]
    fn members_with_one_region_or_outside_of_the_regions_are_refused() {
        let mut bytes = [0; 400];
        assert!(encode(&[sample(3, "a"), sample(3, "b")], &mut bytes));
        assert_eq!(decode(2, 512, &bytes), None);
        assert!(encode(&[sample(3, "a"), sample(16, "b")], &mut bytes));
        assert_eq!(decode(2, 512, &bytes), None);
        assert!(!encode(&[sample(0, &"a".repeat(353))], &mut bytes));
    }
}
