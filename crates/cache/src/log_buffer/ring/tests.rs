use sim::Rng;

use super::*;
use crate::nvram::tests::Plain;

const BUFFER: BufferId = [9; 16];

fn new(blocks: usize) -> LogBufferRing {
    let memory = Box::new(Plain(vec![0; RING_AT + blocks * (BLOCK_BYTES + HEADER_BYTES)]));
    let (mut ring, contents) = LogBufferRing::open(memory, BUFFER);
    assert_eq!(contents, LogBufferContents::Blank);
    ring.format(BUFFER);
    ring
}

fn bytes(ring: &LogBufferRing) -> Vec<u8> {
    let mut bytes = vec![0; ring.memory.len()];
    ring.memory.read(0, &mut bytes);
    bytes
}

fn reopen(bytes: Vec<u8>) -> (LogBufferRing, LogBufferContents) {
    LogBufferRing::open(Box::new(Plain(bytes)), BUFFER)
}

fn blocks(byte: u8, count: usize) -> Data {
    vec![byte; count * BLOCK_BYTES].into()
}

#[test]
fn a_reopened_ring_has_every_record_that_was_added_and_not_released() {
    let mut rng = Rng::new(1);
    let mut ring = new(16);
    let mut expected: VecDeque<(u64, u64, u8, u32)> = VecDeque::new();
    let mut full = 0;
    for turn in 0..2000_u32 {
        let (byte, count) = (turn as u8, 1 + rng.below(4) as u32);
        let block = rng.below(1000);
        match ring.put(block, &blocks(byte, count as usize)) {
            Some(number) => expected.push_back((number, block, byte, count)),
            None => {
                full += 1;
                let gone = 1 + rng.below(expected.len() as u64) as usize;
                let (number, ..) = expected[gone - 1];
                expected.drain(..gone);
                ring.release(number);
            }
        }
        let (again, contents) = reopen(bytes(&ring));
        assert_eq!(contents, LogBufferContents::Whole, "turn {turn}");
        let found: VecDeque<_> = again
            .held()
            .map(|record| {
                let data = again.data(record);
                assert!(data.iter().all(|byte| *byte == data[0]));
                (record.number, record.block, data[0], record.blocks)
            })
            .collect();
        assert_eq!(found, expected, "turn {turn}");
        ring = again;
    }
    assert!(full > 100, "{full}");
}

#[test]
fn a_crash_at_any_byte_of_a_write_leaves_the_records_before_it() {
    let mut ring = new(8);
    ring.put(1, &blocks(1, 2)).expect("room");
    let before = bytes(&ring);
    ring.put(5, &blocks(2, 1)).expect("room");
    let after = bytes(&ring);
    // Bytes become stable in the order in which they are written: the data first, then the header.
    let offset = RING_AT + HEADER_BYTES + 2 * BLOCK_BYTES;
    let data = offset + HEADER_BYTES..offset + HEADER_BYTES + BLOCK_BYTES;
    let mut state = before;
    for at in data.chain(offset..offset + HEADER_BYTES) {
        if state == after {
            break;
        }
        let (found, contents) = reopen(state.clone());
        assert_eq!((contents, found.held().count()), (LogBufferContents::Whole, 1), "byte {at}");
        state[at] = after[at];
    }
    assert!(state == after, "nothing else was written");
    assert_eq!(reopen(state).0.held().count(), 2);
}

#[test]
fn a_damaged_record_is_detected_unless_a_crash_may_have_torn_it() {
    let mut ring = new(8);
    for turn in 0..3 {
        ring.put(turn, &blocks(turn as u8, 1)).expect("room");
    }
    let clean = bytes(&ring);
    let length = HEADER_BYTES + BLOCK_BYTES;
    for record in 0..3 {
        for at in [NUMBER_AT, BLOCKS_AT, RECORD_CHECKSUM_AT] {
            let mut bytes = clean.clone();
            bytes[RING_AT + record * length + at] ^= 0x10;
            let expected =
                if record == 2 { LogBufferContents::Whole } else { LogBufferContents::Damaged };
            assert_eq!(reopen(bytes).1, expected, "header of record {record}, byte {at}");
        }
        let mut bytes = clean.clone();
        bytes[RING_AT + record * length + HEADER_BYTES + 77] ^= 1;
        assert_eq!(reopen(bytes).1, LogBufferContents::Damaged, "data of record {record}");
    }
}

#[test]
fn after_a_torn_cell_write_the_previous_cell_is_used() {
    let mut ring = new(8);
    let first = ring.put(1, &blocks(1, 1)).expect("room");
    let second = ring.put(2, &blocks(2, 1)).expect("room");
    ring.release(first);
    ring.release(second);
    let mut bytes = bytes(&ring);
    bytes[CELLS_AT[1 - ring.next_cell]] ^= 1;
    let (found, contents) = reopen(bytes);
    assert_eq!(contents, LogBufferContents::Whole);
    // Record `second` was released, but is found again. The opening writes it to the disk a second
    // time, which changes nothing.
    assert_eq!(found.held().map(|record| record.number).collect::<Vec<_>>(), [second]);
}

#[test]
fn the_memory_of_another_buffer_is_not_used() {
    let mut ring = new(8);
    ring.put(1, &blocks(1, 1)).expect("room");
    let (found, contents) = LogBufferRing::open(Box::new(Plain(bytes(&ring))), [8; 16]);
    assert_eq!((contents, found.held().count()), (LogBufferContents::Other, 0));
    // A crash may come between the clearing of the memory and the write of the mark.
    ring.format([7; 16]);
    assert_eq!(
        LogBufferRing::open(Box::new(Plain(bytes(&ring))), [8; 16]).1,
        LogBufferContents::Blank
    );
    let (found, contents) = LogBufferRing::open(Box::new(Plain(bytes(&ring))), [7; 16]);
    assert_eq!((contents, found.held().count()), (LogBufferContents::Whole, 0));
}

#[test]
fn the_format_page_matches_the_layout_of_the_memory() {
    use crate::format_page::{rows, tables};
    let top = [
        ("magic", 0, 8),
        ("version", VERSION_AT, 4),
        ("buffer id", BUFFER_AT, 16),
        ("length", LENGTH_AT, 8),
        ("checksum", TOP_CHECKSUM_AT, 4),
        ("first cell", CELLS_AT[0], CELL_BYTES),
        ("second cell", CELLS_AT[1], CELL_BYTES),
        ("ring", RING_AT, HEADER_BYTES),
    ];
    let record = [
        ("number", NUMBER_AT, 8),
        ("block", BLOCK_AT, 8),
        ("blocks", BLOCKS_AT, 4),
        ("data checksum", DATA_CHECKSUM_AT, 4),
        ("buffer id", RECORD_BUFFER_AT, 16),
        ("checksum", RECORD_CHECKSUM_AT, 4),
    ];
    let page = include_str!("../../../../../docs/formats/log-buffer.md");
    assert_eq!(tables(page)[1..], [rows(&top), rows(&record)]);
}
