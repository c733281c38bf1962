//! The bytes of a drive on its volume, as the tables of `docs/formats/object-drive.md`, which `cargo xtask reference` makes
//! of the constants. The tests compare the offsets with what the code writes.

use bytes::Bytes;
use object::{CurrentCommand, ObjectAddress, ObjectType, Timestamp};

use super::{
    build::{BuildRow, Progress},
    chunk::{self, BlockEntry, ChunkRow},
    conclusion::encode_result,
    key::{Key, RowKind},
    log_record,
    metadata_file::encode_length,
    object_row::{Membership, ObjectRow, ObjectTimes, Quota},
    row_store::Rows,
    superblock::{DriveState, LENGTH_COPIES, LOG_START, Superblock},
    transaction::Counters,
    work_row::WorkRow,
};

/// Name, offset, bytes and meaning of a field.
type FormatField = (&'static str, usize, usize, &'static str);
/// Key, subject and value of a kind of row. The key is a letter and numbers of 8 bytes, big-endian, unless it says
/// otherwise.
type FormatRow = (&'static str, &'static str, &'static str);

/// Places on the volume
///
/// Numbers are little-endian, and checksums are CRC32C.
const PLACES: &[FormatField] = &[
    ("superblock, first copy", 0, 80, "the rest of its block is zero"),
    ("superblock, second copy", 4096, 80, "the copies are written in turn"),
    ("length of the tables, first copy", 8192, 28, "the rest of its block is zero"),
    ("length of the tables, second copy", 12_288, 28, "the copies are written in turn"),
    ("log", 65_536, 0, "records of changed rows that are not in the tables yet"),
    ("tables", 0, 0, "a file of redb 4, behind the log"),
    ("data", 0, 0, "blocks of 4096 bytes from *data start* of the superblock on"),
];

/// Superblock
///
/// Both copies are compared at each start. A damaged copy is written again, and the copy of another drive is refused.
const SUPERBLOCK: &[FormatField] = &[
    ("magic", 0, 8, "`FBYOBJDR`"),
    ("version", 8, 4, "a newer one is refused"),
    ("boot epoch", 12, 2, "increases with each start"),
    ("state", 14, 1, "1 being formatted, 2 in use, 3 closed"),
    (
        "wrapped",
        15,
        1,
        "1: boot epochs have begun again at 1, and capabilities for one are refused",
    ),
    ("sequence", 16, 8, "the intact copy with the higher one counts"),
    ("identity", 24, 16, "the last 16 bytes of the OSD SYSTEM ID"),
    ("volume bytes", 40, 8, "as far as the drive uses the volume; a shorter volume is refused"),
    ("tables bytes", 48, 8, "bytes of the tables"),
    ("data start", 56, 8, "first byte of data"),
    ("data blocks", 64, 8, "a grown drive has more than before"),
    ("log bytes", 72, 4, "bytes of the log"),
    ("checksum", 76, 4, "of bytes 0 to 75"),
];

/// Record of the log
///
/// Generations use the two halves of the log in turn. A record begins at the begin of its half or behind the record
/// before it, in a block of 4096 bytes. Its generation is the number in the table `log` of redb, which increases
/// whenever the rows of the log are written to `rows`, and sequence numbers follow each other. The last record counts
/// only if the blocks of data that it lists have their checksums. After this header come the rows, and then the blocks
/// of data. A row is the length of its key (2), the length of its value (4; all ones: the row is removed), the key and
/// the value; a block is its number (8) and its checksum (4).
const LOG_RECORD: &[FormatField] = &[
    ("magic", 0, 8, "`FBYOBJRC`"),
    ("generation", 8, 8, "of the log"),
    ("sequence", 16, 8, "from 1 on in each generation"),
    ("body", 24, 4, "bytes of the rows and blocks"),
    ("rows", 28, 4, "number of rows"),
    ("blocks", 32, 4, "number of blocks"),
    ("checksum of the body", 36, 4, ""),
    ("before", 40, 8, "records of the generation before, if they are not in `rows` yet"),
    ("zero", 48, 12, ""),
    ("checksum", 60, 4, "of bytes 0 to 59"),
];

/// Length of the tables
const TABLES_LENGTH: &[FormatField] = &[
    ("magic", 0, 8, "`FBYOBJTL`"),
    ("sequence", 8, 8, "the intact copy with the higher one counts"),
    ("length", 16, 8, "bytes of the file; it may be longer than its part of the volume"),
    ("checksum", 24, 4, "of bytes 0 to 23"),
];

/// Rows of the table `rows`
const ROWS: &[FormatRow] = &[
    ("`Q`", "the root", "object row"),
    ("`P` partition", "a partition", "object row"),
    ("`O` partition, object", "a user object or collection", "object row"),
    ("`A` partition, object, page (4), number (4)", "an attribute", "its value"),
    ("`C` content, chunk", "where 1 MiB of a user object is", "up to 256 chunk entries"),
    (
        "`G` group",
        "32,768 blocks",
        "a bit for each block, set if it is in use; zeros at the end are left out",
    ),
    ("`S` block", "a block with several references", "number of further references (4)"),
    ("`K` partition, collection", "a collection of the partition", "nothing"),
    (
        "`M` partition, collection, object",
        "a member",
        "number of its attribute in page 4 (4, big-endian); of a tracking collection: when the object was created (6)",
    ),
    ("`N`", "the drive", "counters"),
    ("`T` tag (16)", "a request tag", "its result"),
    ("`U` sequence", "the order of the tags", "the tag (16)"),
    ("`X` partition", "a partition that is being removed", "nothing"),
    ("`W` content", "chunks that are still to be freed", "work row"),
    ("`B` partition", "a partition that is being made as a copy", "build row"),
    ("`D` partition, object", "an object that was copied in part", "progress row"),
    (
        "`H` part",
        "1,024 groups",
        "number of used blocks of each group (2); zeros at the end are left out",
    ),
    ("`L` partition, collection", "the last command that a collection tracks", "tracking record"),
    (
        "`J` partition, collection",
        "a tracked command that a start goes on with, or undoes",
        "1: QUERY, with the partition (8), the object (8) and the continuation segment; 2: the creation",
    ),
];

/// Tracking record
///
/// The sense data of the ended command follows.
const TRACKING: &[FormatField] = &[
    ("version", 0, 1, "1"),
    ("has ended", 1, 1, ""),
    ("is emptied", 2, 1, "QUERY has removed the former members"),
    ("status", 3, 1, "of the ended command"),
    ("service action", 4, 2, ""),
    ("total", 6, 8, "objects when the command began"),
    ("processed", 14, 8, "objects"),
    ("newer", 22, 8, "members whose identifier has a later object"),
    ("missing", 30, 8, "members that were removed"),
    ("next", 38, 8, "the first identifier that was not looked at"),
];

/// Object row
const OBJECT_ROW: &[FormatField] = &[
    ("version", 0, 1, "1"),
    ("type", 1, 1, "as on the wire"),
    (
        "flags",
        2,
        1,
        "bit 0: blocks may be shared; bit 1: frozen; bit 2: a work row has its content",
    ),
    ("kind", 3, 1, "of a collection; of a partition: 1 snapshot, 2 clone"),
    ("created", 4, 6, "milliseconds, big-endian, like the other times"),
    ("attributes accessed", 10, 6, ""),
    ("attributes modified", 16, 6, ""),
    ("data accessed", 22, 6, ""),
    ("data modified", 28, 6, ""),
    ("length", 34, 8, "of a user object"),
    ("used", 42, 8, "blocks"),
    ("content", 50, 8, "in the keys of its chunks; never given twice"),
    ("longest", 58, 8, "maximum length; 0: that of the partition or root"),
    ("policy tag", 66, 4, ""),
    ("attribute bytes", 70, 4, "of all values"),
    ("members", 74, 8, "this and the following fields: not of a user object"),
    ("collections", 82, 8, ""),
    ("highest", 90, 8, "identifier that was ever used"),
    ("source", 98, 8, "partition of which this is a copy"),
    ("quota bytes", 106, 8, "0: none"),
    ("quota objects", 114, 8, "0: none"),
    ("changes", 122, 4, "creations and removals"),
    ("user policy tag", 126, 4, "of new objects"),
];

/// Chunk entry
///
/// A block is never overwritten while a stable row refers to it, so an entry and its block always agree after a crash.
const CHUNK_ENTRY: &[FormatField] =
    &[("block", 0, 8, "its number plus one; 0: a hole"), ("checksum", 8, 4, "of its 4096 bytes")];

/// Work row
///
/// Readers take the chunks for holes. The ranges, at most 64, ascend.
const WORK_ROW: &[FormatField] = &[
    ("version", 0, 1, "1"),
    ("flags", 1, 1, "bit 0: blocks may be shared"),
    ("zero", 2, 6, ""),
    ("partition", 8, 8, "of the object that still has the content"),
    ("object", 16, 8, "0: it was removed"),
    ("first", 24, 8, "chunk of a range"),
    ("end", 32, 8, "chunk behind the range; further ranges follow"),
];

/// Build row
///
/// The copy is hidden while it has this row. A start undoes a copy of stage 0, and finishes the others.
const BUILD_ROW: &[FormatField] = &[
    ("source", 0, 8, "partition that is copied"),
    ("content", 8, 8, "the newest one at the begin; objects with newer ones are not copied"),
    ("used", 16, 8, "blocks that were copied"),
    ("replaces", 24, 8, "partition that gets the objects of the copy; 0: none"),
    ("stage", 32, 8, "0 copying, 1 removing the old objects, 2 moving the new ones"),
    ("partition", 40, 130, "object row of the copy"),
];

/// Progress row
const PROGRESS_ROW: &[FormatField] = &[
    ("content", 0, 8, "of the copy"),
    ("next", 8, 8, "chunk or member"),
    ("used", 16, 8, "blocks that were copied"),
];

/// Counters
const COUNTERS: &[FormatField] = &[
    ("identifiers", 0, 8, "those below are reserved"),
    ("content", 8, 8, "the last one that was given"),
    ("row bytes", 16, 8, "about the bytes of all keys and rows"),
    ("next tag", 24, 8, "sequence number"),
    ("oldest tag", 32, 8, "sequence number"),
    ("objects", 40, 8, "user objects and collections"),
    ("partitions", 48, 8, ""),
    ("used", 56, 8, "blocks"),
    ("horizon", 64, 16, "the largest tag that was forgotten"),
    ("largest tag", 80, 16, ""),
];

/// Result of a request tag
const TAG_RESULT: &[FormatField] = &[
    ("sequence", 0, 8, "big-endian, like the other numbers"),
    ("type", 8, 1, "of the object"),
    ("partition", 16, 8, ""),
    ("object", 24, 8, ""),
    ("append start", 32, 8, ""),
];

/// Compares fields with the bytes that the code writes. The values come in the order of the table.
fn check(table: &[FormatField], bytes: &[u8], values: &[&[u8]]) {
    assert_eq!(table.len(), values.len());
    for ((name, at, length, _), value) in table.iter().zip(values) {
        assert_eq!(bytes[*at..at + length], **value, "{name}");
    }
    let (_, at, length, _) = table.last().expect("a field");
    assert_eq!(bytes.len(), at + length);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_the_superblocks() {
    let superblock = Superblock {
        state: DriveState::Closed,
        boot_epoch: 0x1234,
        has_wrapped: true,
        sequence: 5,
        identity: [6; 16],
        volume_bytes: 7,
        tables_bytes: 8,
        data_start: 9,
        data_blocks: 10,
        log_bytes: 11,
    };
    let bytes = superblock.encode();
    let number = |n: u64| n.to_le_bytes();
    let numbers = [5, 7, 8, 9, 10].map(number);
    let crc = super::disk::crc32c(&bytes[..76]).to_le_bytes();
    let [sequence, volume, tables, start, blocks] = &numbers;
    let version = super::superblock::VERSION.to_le_bytes();
    let values: [&[u8]; 13] = [
        b"FBYOBJDR",
        &version,
        &[0x34, 0x12],
        &[3],
        &[1],
        sequence,
        &[6; 16],
        volume,
        tables,
        start,
        blocks,
        &11_u32.to_le_bytes(),
        &crc,
    ];
    check(SUPERBLOCK, &bytes, &values);
    let length = encode_length(77, 3);
    let crc = super::disk::crc32c(&length[..24]).to_le_bytes();
    check(TABLES_LENGTH, &length[..28], &[b"FBYOBJTL", &number(3), &number(77), &crc]);
    let places = PLACES.iter().map(|(_, at, ..)| *at as u64).collect::<Vec<_>>();
    assert_eq!(places[2..5], [LENGTH_COPIES[0], LENGTH_COPIES[1], LOG_START]);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_a_record_of_the_log() {
    let rows = Rows::from([(Key::from_slice(b"key"), Some(Bytes::from_static(b"value")))]);
    let record = log_record::encode((1, 2, 6), &rows, &[BlockEntry { block: 3, crc: 4 }]);
    let body = b"\x03\0\x05\0\0\0keyvalue\x03\0\0\0\0\0\0\0\x04\0\0\0";
    assert_eq!(record[64..64 + body.len()], body[..]);
    let short = |n: usize| (n as u32).to_le_bytes();
    let header = &record[..64];
    let crcs =
        [super::disk::crc32c(body), super::disk::crc32c(&header[..60])].map(u32::to_le_bytes);
    let values: [&[u8]; 10] = [
        b"FBYOBJRC",
        &1_u64.to_le_bytes(),
        &2_u64.to_le_bytes(),
        &short(body.len()),
        &short(1),
        &short(1),
        &crcs[0],
        &6_u64.to_le_bytes(),
        &[0; 12],
        &crcs[1],
    ];
    check(LOG_RECORD, header, &values);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_the_rows() {
    let number = |n: u64| n.to_le_bytes();
    let time = Timestamp::from_ms;
    let times = ObjectTimes {
        created: time(1),
        attributes_accessed: time(2),
        attributes_modified: time(3),
        data_accessed: time(4),
        data_modified: time(5),
    };
    let members =
        Membership { count: 10, collections: 11, changes: 12, highest: 13, kind: 14, source: 15 };
    let row = ObjectRow {
        flags: 3,
        times,
        length: 20,
        used: 21,
        content: 22,
        policy_tag: 23,
        attribute_bytes: 24,
        max_length: 25,
        members,
        quota: Quota { bytes: 30, objects: 31, user_policy_tag: 32 },
        ..ObjectRow::new(ObjectType::Partition, time(0))
    };
    let mut values: Vec<Vec<u8>> = [1, ObjectType::Partition as u8, 3, 14].map(|b| vec![b]).into();
    values.extend([1, 2, 3, 4, 5].map(|ms| time(ms).to_bytes().to_vec()));
    values.extend([20, 21, 22, 25].map(|n| number(n).to_vec()));
    values.extend([23_u32, 24].map(|n| n.to_le_bytes().to_vec()));
    values.extend([10, 11, 13, 15, 30, 31].map(|n| number(n).to_vec()));
    values.extend([12_u32, 32].map(|n| n.to_le_bytes().to_vec()));
    check(OBJECT_ROW, &row.encode(), &values.iter().map(|value| &value[..]).collect::<Vec<_>>());

    let mut chunk = ChunkRow::new(None);
    chunk.set(0, Some(BlockEntry { block: 8, crc: 0x0102_0304 }));
    let chunk = chunk.finish().expect("an entry");
    check(CHUNK_ENTRY, &chunk, &[&number(9), &[4, 3, 2, 1]]);
    assert_eq!(chunk.len(), chunk::ENTRY);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_work_and_copies() {
    let number = |n: u64| n.to_le_bytes();
    let object = Some(ObjectAddress::new(2, 3));
    let work = WorkRow { object, may_share: true, chunks: std::iter::once(4..u64::MAX).collect() };
    let numbers = [2, 3, 4, u64::MAX].map(number);
    let [partition, object, first, end] = &numbers;
    check(WORK_ROW, &work.encode(), &[&[1], &[1], &[0; 6], partition, object, first, end]);

    let row = ObjectRow::new(ObjectType::Partition, Timestamp::from_ms(6));
    let partition = row.encode();
    let build = BuildRow { source: 1, newest_content: 2, used: 3, replaces: 4, stage: 5, row };
    let numbers = [1, 2, 3, 4, 5].map(number);
    let [source, content, used, replaces, stage] = &numbers;
    let values: [&[u8]; 6] = [source, content, used, replaces, stage, &partition];
    check(BUILD_ROW, &build.encode(), &values);

    let progress = Progress { content: 1, next: 2, used: 3 };
    check(PROGRESS_ROW, &progress.encode(), &[&number(1), &number(2), &number(3)]);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_a_tracking_record() {
    let numbers = [2_u64, 3, 4, 5, 6].map(u64::to_le_bytes);
    let [total, processed, newer, missing, next] = &numbers;
    let values: [&[u8]; 10] =
        [&[1], &[1], &[1], &[0x40], &[0xa0, 0x88], total, processed, newer, missing, next];
    check(TRACKING, &super::tracking::example(), &values);
}

#[test]
fn the_tables_of_the_page_have_the_offsets_of_counters_and_tags() {
    let counters = Counters {
        next_id: 0,
        reserved_id: 1,
        next_content: 2,
        row_bytes: 3,
        next_tag: 4,
        oldest_tag: 5,
        objects: 6,
        partitions: 7,
        tag_horizon: [9; 16],
        largest_tag: [10; 16],
    };
    let mut values: Vec<Vec<u8>> = (1..=8_u64).map(|n| n.to_le_bytes().to_vec()).collect();
    values.extend([vec![9; 16], vec![10; 16]]);
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    check(COUNTERS, &counters.encode(8), &values);

    let current = CurrentCommand {
        object_type: Some(ObjectType::UserObject),
        object: ObjectAddress::new(2, 3),
        append_start: 4,
        change_in_used: 0,
    };
    let numbers = [1_u64, 2, 3, 4].map(u64::to_be_bytes);
    let object_type = [ObjectType::UserObject as u8];
    let [sequence, partition, object, start] = &numbers;
    let values: [&[u8]; 5] = [sequence, &object_type, partition, object, start];
    check(TAG_RESULT, &encode_result(1, &current), &values);
}

#[test]
fn the_table_of_the_page_has_every_kind_of_row() {
    let kinds: Vec<_> = ROWS.iter().map(|(key, ..)| RowKind::of(&key.as_bytes()[1..])).collect();
    assert!(kinds.iter().all(Option::is_some), "{kinds:?}");
    let known = (0..=u8::MAX).filter(|letter| RowKind::of(&[*letter]).is_some()).count();
    assert_eq!(kinds.len(), known);
}
