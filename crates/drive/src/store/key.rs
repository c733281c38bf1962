//! The keys of the rows: a letter for the kind of row, and big-endian numbers, so that rows sort by number.

use object::{AttributeId, ObjectAddress};
use smallvec::SmallVec;

pub(crate) type Key = SmallVec<[u8; 32]>;

const ROOT: u8 = b'Q';
const PARTITION: u8 = b'P';
const OBJECT: u8 = b'O';
const ATTRIBUTE: u8 = b'A';
const CHUNK: u8 = b'C';
const GROUP: u8 = b'G';
const SUMMARY: u8 = b'H';
const COUNTERS: u8 = b'N';
const COLLECTION: u8 = b'K';
const MEMBER: u8 = b'M';
const SHARED: u8 = b'S';
const TAG: u8 = b'T';
const TAG_ORDER: u8 = b'U';
const TRASH: u8 = b'X';
const WORK: u8 = b'W';
const BUILD: u8 = b'B';
const PROGRESS: u8 = b'D';
const TRACKING: u8 = b'L';
const PENDING: u8 = b'J';
/// Named records have a table of their own, which FORMAT OSD leaves alone.
const RECORD: u8 = b'r';

/// The kinds of rows in the tables, without the named records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RowKind {
    Root,
    Partition,
    Object,
    Attribute,
    Chunk,
    Group,
    Summary,
    Counters,
    Collection,
    Member,
    Shared,
    Tag,
    TagOrder,
    Trash,
    Work,
    Build,
    Progress,
    Tracking,
    Pending,
}

impl RowKind {
    /// Returns the kind of the row that has this key; `None` if the kind is not known.
    pub(crate) fn of(key: &[u8]) -> Option<Self> {
        Some(match *key.first()? {
            ROOT => Self::Root,
            PARTITION => Self::Partition,
            OBJECT => Self::Object,
            ATTRIBUTE => Self::Attribute,
            CHUNK => Self::Chunk,
            GROUP => Self::Group,
            SUMMARY => Self::Summary,
            COUNTERS => Self::Counters,
            COLLECTION => Self::Collection,
            MEMBER => Self::Member,
            SHARED => Self::Shared,
            TAG => Self::Tag,
            TAG_ORDER => Self::TagOrder,
            TRASH => Self::Trash,
            WORK => Self::Work,
            BUILD => Self::Build,
            PROGRESS => Self::Progress,
            TRACKING => Self::Tracking,
            PENDING => Self::Pending,
            _ => return None,
        })
    }

    /// Returns true if keys of this kind of row have `length` bytes.
    pub(crate) fn fits(self, length: usize) -> bool {
        let numbers = match self {
            Self::Root | Self::Counters => 0,
            Self::Partition | Self::Group | Self::Shared => 8,
            Self::TagOrder | Self::Trash | Self::Work => 8,
            Self::Summary | Self::Build => 8,
            Self::Object | Self::Chunk | Self::Collection | Self::Tag => 16,
            Self::Progress => 16,
            Self::Tracking | Self::Pending => 16,
            Self::Attribute | Self::Member => 24,
        };
        length == 1 + numbers
    }
}

fn key(kind: u8, numbers: &[u64]) -> Key {
    let mut key = Key::new();
    key.push(kind);
    numbers.iter().for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
    key
}

/// Returns the key of the row of the root, of a partition, or of a user object or collection.
pub(crate) fn object(address: ObjectAddress) -> Key {
    match (address.partition, address.object) {
        (0, 0) => key(ROOT, &[]),
        (partition, 0) => key(PARTITION, &[partition]),
        (partition, object) => key(OBJECT, &[partition, object]),
    }
}

/// Returns the last number of a key: the identifier of a partition or object, or the number of a chunk or block.
pub(crate) fn last_number(key: &[u8]) -> u64 {
    let at = key.len().saturating_sub(8);
    key[at..].try_into().map_or(0, u64::from_be_bytes)
}

/// Returns number `index` of a key that has only numbers behind its letter; zero if the key ends before it.
pub(crate) fn number(key: &[u8], index: usize) -> u64 {
    let at = 1 + index * 8;
    key.get(at..at + 8).map_or(0, last_number)
}

/// Returns a key behind all partitions.
pub(crate) fn partitions_end() -> Key {
    key(PARTITION + 1, &[])
}

/// Returns a key behind all objects of a partition.
pub(crate) fn objects_end(partition: u64) -> Key {
    after(&key(OBJECT, &[partition]))
}

/// Returns a key before all objects of all partitions.
pub(crate) fn objects_start() -> Key {
    key(OBJECT, &[])
}

/// Returns a key behind all objects of all partitions.
pub(crate) fn all_objects_end() -> Key {
    key(OBJECT + 1, &[])
}

pub(crate) fn attribute(address: ObjectAddress, id: AttributeId) -> Key {
    let mut key = key(ATTRIBUTE, &[address.partition, address.object]);
    key.extend_from_slice(&id.page.to_be_bytes());
    key.extend_from_slice(&id.number.to_be_bytes());
    key
}

/// Returns a key behind all attributes of a page.
pub(crate) fn page_end(address: ObjectAddress, page: u32) -> Key {
    let mut key = key(ATTRIBUTE, &[address.partition, address.object]);
    key.extend_from_slice(&page.to_be_bytes());
    after(&key)
}

pub(crate) fn attributes_end(address: ObjectAddress) -> Key {
    after(&key(ATTRIBUTE, &[address.partition, address.object]))
}

/// Returns the page and number of the attribute with this key.
pub(crate) fn attribute_id(key: &[u8]) -> AttributeId {
    let number = |at: usize| {
        key.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
    };
    AttributeId::new(number(17), number(21))
}

pub(crate) fn chunk(content: u64, chunk: u64) -> Key {
    key(CHUNK, &[content, chunk])
}

pub(crate) fn chunks_end(content: u64) -> Key {
    after(&key(CHUNK, &[content]))
}

pub(crate) fn group(group: u64) -> Key {
    key(GROUP, &[group])
}

pub(crate) fn groups_end() -> Key {
    key(GROUP + 1, &[])
}

/// The numbers of used blocks of 1,024 groups.
pub(crate) fn summary(part: u64) -> Key {
    key(SUMMARY, &[part])
}

pub(crate) fn summaries_end() -> Key {
    key(SUMMARY + 1, &[])
}

pub(crate) fn counters() -> Key {
    key(COUNTERS, &[])
}

pub(crate) fn collection(partition: u64, collection: u64) -> Key {
    key(COLLECTION, &[partition, collection])
}

pub(crate) fn collections_end(partition: u64) -> Key {
    after(&key(COLLECTION, &[partition]))
}

pub(crate) fn member(collection: ObjectAddress, object: u64) -> Key {
    key(MEMBER, &[collection.partition, collection.object, object])
}

pub(crate) fn members_end(collection: ObjectAddress) -> Key {
    after(&key(MEMBER, &[collection.partition, collection.object]))
}

/// Returns the key of the reference count of a block, which is kept only for a shared block.
pub(crate) fn shared(block: u64) -> Key {
    key(SHARED, &[block])
}

pub(crate) fn shared_end() -> Key {
    key(SHARED + 1, &[])
}

pub(crate) fn tag(tag: &[u8; 16]) -> Key {
    let mut key = key(TAG, &[]);
    key.extend_from_slice(tag);
    key
}

pub(crate) fn tag_order(sequence: u64) -> Key {
    key(TAG_ORDER, &[sequence])
}

pub(crate) fn trash(content: u64) -> Key {
    key(TRASH, &[content])
}

pub(crate) fn trash_end() -> Key {
    key(TRASH + 1, &[])
}

/// Returns the key of the work row, which names the chunks of `content` that are still to be freed.
pub(crate) fn work(content: u64) -> Key {
    key(WORK, &[content])
}

pub(crate) fn works_end() -> Key {
    key(WORK + 1, &[])
}

/// The row about a partition that is being made as a copy.
pub(crate) fn build(partition: u64) -> Key {
    key(BUILD, &[partition])
}

pub(crate) fn builds_end() -> Key {
    key(BUILD + 1, &[])
}

/// How far the copy of an object into a new partition is.
pub(crate) fn progress(partition: u64, object: u64) -> Key {
    key(PROGRESS, &[partition, object])
}

pub(crate) fn progress_end(partition: u64) -> Key {
    after(&key(PROGRESS, &[partition]))
}

/// The record of the last command that a collection tracks.
pub(crate) fn tracking(collection: ObjectAddress) -> Key {
    key(TRACKING, &[collection.partition, collection.object])
}

/// A command that the drive goes on with, or undoes, after a restart. The address is that of the collection that
/// tracks the command.
pub(crate) fn pending(collection: ObjectAddress) -> Key {
    key(PENDING, &[collection.partition, collection.object])
}

pub(crate) fn pending_end() -> Key {
    key(PENDING + 1, &[])
}

/// Returns the collection of a key of a pending command.
pub(crate) fn pending_collection(key: &[u8]) -> ObjectAddress {
    ObjectAddress::new(number(key, 0), number(key, 1))
}

pub(crate) fn record(name: &str) -> Key {
    let mut key = key(RECORD, &[]);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Returns true if the row with this key is a named record, which has a table of its own.
pub(crate) fn is_record(key: &[u8]) -> bool {
    key.first() == Some(&RECORD)
}

/// Returns the first key after all keys that begin with `prefix`.
fn after(prefix: &[u8]) -> Key {
    let mut key = Key::from_slice(prefix);
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return key;
        }
    }
    unreachable!("the first byte is a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_range_is_behind_every_key_of_it_and_before_the_next() {
        let last = object(ObjectAddress::new(u64::MAX, u64::MAX));
        assert!(last < objects_end(u64::MAX) && objects_end(u64::MAX) == Key::from_slice(b"P"));
        let address = ObjectAddress::new(5, u64::MAX);
        assert!(object(address) < objects_end(5));
        assert!(objects_end(5) <= object(ObjectAddress::new(6, 1)));
        let id = AttributeId::new(3, u32::MAX);
        assert!(attribute(address, id) < page_end(address, 3));
        assert!(page_end(address, 3) <= attribute(address, AttributeId::new(4, 0)));
        assert_eq!(attribute_id(&attribute(address, id)), id);
        assert_eq!(last_number(&object(address)), u64::MAX);
    }
}
