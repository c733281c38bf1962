//! Plans of the changes that commands make to the data of a user object. A plan does no I/O.

use std::ops::Range;

use object::{ObjectError, RefusedField};
use volume::Data;

use super::{disk::BLOCK, object_row::ObjectRow, pieces::Segment};

/// A planned change of an object's data. The plan is valid for the object as it is now.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataChange {
    pub(crate) segments: Vec<Segment>,
    /// Ranges of block numbers of the object that become holes.
    pub(crate) holes: Vec<Range<u64>>,
    /// All blocks from the first number on move down to the second number.
    pub(crate) shift: Option<(u64, u64)>,
    pub(crate) length: u64,
    /// The plan is valid only while the object keeps its length.
    pub(crate) needs_length: bool,
    /// All segments are zeros, so a part of a block that is a hole need not be written.
    pub(crate) is_zeroing: bool,
    pub(crate) append_start: u64,
}

/// Returns `data` as one segment; an empty list if there is no data.
pub(crate) fn segments_of(start: u64, data: &Data) -> Vec<Segment> {
    match data.is_empty() {
        true => Vec::new(),
        false => vec![Segment { start, data: data.clone() }],
    }
}

/// Returns the change of WRITE: the data goes to `ranges`, in their order.
pub(crate) fn write_change(ranges: &[Range<u64>], data: &Data) -> Result<DataChange, ObjectError> {
    let wanted =
        ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.end - range.start));
    if wanted != Some(data.len() as u64) {
        return Err(ObjectError::InvalidField { field: RefusedField::Length });
    }
    let mut change = DataChange::default();
    let mut at = 0;
    for range in ranges {
        let length = (range.end - range.start) as usize;
        change.segments.extend(segments_of(range.start, &data.slice(at, length)));
        at += length;
        change.length = change.length.max(if length > 0 { range.end } else { 0 });
    }
    Ok(change)
}

/// Returns the change that makes the bytes of `range` zero. The length of the object does not change.
pub(crate) fn clear_change(row: &ObjectRow, range: Range<u64>) -> DataChange {
    let end = range.end.min(row.length);
    let mut change = DataChange {
        length: row.length,
        needs_length: true,
        is_zeroing: true,
        ..DataChange::default()
    };
    if range.start < end {
        zero(&mut change, range.start, end, row.length);
    }
    change
}

/// Adds to a change that the bytes from `start` to `end` become zero. Whole blocks become holes, parts of blocks are
/// written. `length` is the length of the object.
fn zero(change: &mut DataChange, start: u64, end: u64, length: u64) {
    let first = start.div_ceil(BLOCK);
    // The rest of the object's last block is zero already, so this block can become a hole, too.
    let last = if end >= length { end.div_ceil(BLOCK) } else { end / BLOCK };
    if first < last {
        change.holes.push(first..last);
    }
    let mut part = |start: u64, end: u64| {
        if start < end {
            let data = Data::zeros((end - start) as usize);
            change.segments.push(Segment { start, data });
        }
    };
    part(start, end.min(first * BLOCK));
    part((last * BLOCK).max(start).max(first * BLOCK), end);
}

/// Returns the change that gives an object another logical length.
pub(crate) fn length_change(row: &ObjectRow, length: u64) -> DataChange {
    let mut change =
        DataChange { length, needs_length: true, is_zeroing: true, ..DataChange::default() };
    if length < row.length {
        zero(&mut change, length, row.length, row.length);
    }
    change
}

/// Returns the change of PUNCH if only entries of the map must move: for a range of whole blocks, or one that reaches
/// the end. `None` if bytes must be moved.
pub(crate) fn punch_change(row: &ObjectRow, range: &Range<u64>) -> Option<DataChange> {
    let (start, end) = (range.start.min(row.length), range.end.min(row.length));
    if end == row.length {
        return Some(length_change(row, start));
    }
    if !start.is_multiple_of(BLOCK) || !end.is_multiple_of(BLOCK) {
        return None;
    }
    let (first, last) = (start / BLOCK, end / BLOCK);
    let length = row.length - (end - start);
    let shift = (first < last).then_some((last, first));
    Some(DataChange {
        holes: std::iter::once(first..last).collect(),
        shift,
        length,
        needs_length: true,
        ..DataChange::default()
    })
}

#[cfg(test)]
mod tests {
    use object::{ObjectType, Timestamp};

    use super::*;

    fn row(length: u64) -> ObjectRow {
        ObjectRow { length, ..ObjectRow::new(ObjectType::UserObject, Timestamp::ZERO) }
    }

    #[test]
    fn a_clear_makes_holes_of_whole_blocks_and_zeros_of_the_rest() {
        let change = clear_change(&row(20_000), 100..12_400);
        assert_eq!(change.holes, [Range { start: 1, end: 3 }]);
        let parts: Vec<_> = change.segments.iter().map(|s| (s.start, s.data.len())).collect();
        assert_eq!(parts, [(100, 3996), (12_288, 112)]);
        let to_end = clear_change(&row(20_000), 8192..1 << 40);
        assert_eq!(
            (to_end.holes, to_end.segments.len(), to_end.length),
            (vec![Range { start: 2, end: 5 }], 0, 20_000)
        );
        let inside = clear_change(&row(20_000), 100..200);
        assert_eq!((inside.holes.len(), inside.segments.len()), (0, 1));
        assert_eq!(clear_change(&row(10), 10..20).segments.len(), 0);
    }

    #[test]
    fn a_punch_of_whole_blocks_moves_entries_only() {
        let change = punch_change(&row(20_000), &(4096..8192)).unwrap();
        assert_eq!((change.shift, change.length), (Some((2, 1)), 15_904));
        assert!(change.segments.is_empty());
        assert!(punch_change(&row(20_000), &(1..2)).is_none());
        assert_eq!(punch_change(&row(20_000), &(5..30_000)).unwrap().length, 5);
    }
}
