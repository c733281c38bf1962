//! The places of the parts of a command in its Data-Out and Data-In buffers (OSD-2, 4.16).
//!
//! The CDB names the places of the attributes lists and of the integrity information. No two parts
//! of a buffer may overlap. The check needs the CDB only, so it is made before data is solicited.

use std::ops::Range;

use object::{Command, MAX_VALUE_LENGTH};
use osd::{
    AttributeParameters, OsdCdb, Refusal,
    security::{DATA_IN_INTEGRITY_BYTES, DATA_OUT_INTEGRITY_BYTES, SecurityMethod},
};
use smallvec::SmallVec;

/// Limits of the lists in one command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListLimits {
    /// Maximum number of entries of one attributes list, scatter/gather list or query. 1,024: such a list is parsed in
    /// well under a millisecond.
    pub entries: usize,
    /// Maximum length in bytes of one list or continuation segment. 64 KiB: the longest attribute value fits.
    pub bytes: u32,
}

impl Default for ListLimits {
    fn default() -> Self {
        Self { entries: 1_024, bytes: 64 << 10 }
    }
}

/// The ranges of the parts of a command in its Data-Out buffer, in bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OutLayout {
    pub continuation: Range<u64>,
    pub data: Range<u64>,
    pub set: Range<u64>,
    pub get: Range<u64>,
    /// The range of the integrity information; `None` with methods other than ALLDATA, or if the buffer has no other
    /// part and the CDB names no offset.
    pub integrity: Option<Range<u64>>,
    /// Number of bytes of the buffer that the command needs.
    pub end: u64,
}

/// The ranges of the parts of a command in its Data-In buffer, in bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InLayout {
    /// Maximum length in bytes of the command's data, which begins at offset zero.
    pub data: u64,
    pub retrieved: Option<Range<u64>>,
    pub integrity: Option<Range<u64>>,
}

/// One part of a buffer, and the byte of the CDB to which sense data points if the part is refused.
struct Part {
    range: Range<u64>,
    field: u16,
}

/// The parts of one buffer, at most five.
type Parts = SmallVec<[Part; 5]>;

impl OutLayout {
    /// Returns the ranges in Data-Out for a command with this security method.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to a length above the limits, to the offset of a part that overlaps
    /// another or wraps around, or to a missing offset of integrity information.
    pub fn new(cdb: &OsdCdb, method: SecurityMethod, limits: &ListLimits) -> Result<Self, Refusal> {
        let continuation = u64::from(cdb.continuation_length);
        if cdb.continuation_length > limits.bytes {
            return Err(Refusal::Field(48));
        }
        let data = range(continuation, cdb.command.data_out_length(), 32)?;
        let mut layout = Self { continuation: 0..continuation, data, ..Self::default() };
        let mut parts = Parts::new();
        parts.push(Part { range: layout.continuation.clone(), field: 48 });
        parts.push(Part { range: layout.data.clone(), field: 32 });
        match cdb.attributes {
            AttributeParameters::SetOne { .. } => {}
            AttributeParameters::Page { set, .. } => {
                if let Some(set) = set {
                    if set.length as usize > MAX_VALUE_LENGTH {
                        return Err(Refusal::Field(72));
                    }
                    layout.set = range(set.offset, set.length.into(), 76)?;
                    parts.push(Part { range: layout.set.clone(), field: 76 });
                }
            }
            AttributeParameters::Lists { get, set, .. } => {
                for (list, place, length, field) in
                    [(set, &mut layout.set, 68, 72), (get, &mut layout.get, 52, 56)]
                {
                    let Some(list) = list else { continue };
                    if list.length > limits.bytes {
                        return Err(Refusal::Field(length));
                    }
                    *place = range(list.offset, list.length.into(), field)?;
                    parts.push(Part { range: place.clone(), field });
                }
            }
        }
        let has_parts = parts.iter().any(|part| !part.range.is_empty());
        if method == SecurityMethod::AllData && (has_parts || cdb.data_out_integrity.is_some()) {
            let offset = cdb.data_out_integrity.ok_or(Refusal::Field(DATA_OUT_OFFSET))?;
            let place = range(offset, DATA_OUT_INTEGRITY_BYTES as u64, DATA_OUT_OFFSET)?;
            // The integrity information must be behind all other parts, since it covers everything before it.
            if parts.iter().any(|part| part.range.end > place.start) {
                return Err(Refusal::Field(DATA_OUT_OFFSET));
            }
            layout.integrity = Some(place.clone());
            parts.push(Part { range: place, field: DATA_OUT_OFFSET });
        }
        layout.end = end_of(&parts)?;
        Ok(layout)
    }
}

impl InLayout {
    /// Returns the ranges in Data-In for a command with this security method.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to the offset of a part that overlaps another or wraps around, or to
    /// a missing offset of integrity information.
    pub fn new(cdb: &OsdCdb, method: SecurityMethod) -> Result<Self, Refusal> {
        let mut layout = Self { data: data_in_length(&cdb.command), ..Self::default() };
        let field = match cdb.attributes {
            AttributeParameters::Page { .. } => 60,
            _ => 64,
        };
        let mut parts = Parts::new();
        if let Some(space) = cdb.attributes.space() {
            let place = range(space.offset, space.allocation_length.into(), field)?;
            layout.retrieved = Some(place.clone());
            parts.push(Part { range: place, field });
        }
        let has_parts = layout.data > 0 || !parts.is_empty();
        if method == SecurityMethod::AllData && (has_parts || cdb.data_in_integrity.is_some()) {
            let offset = cdb.data_in_integrity.ok_or(Refusal::Field(DATA_IN_OFFSET))?;
            let place = range(offset, DATA_IN_INTEGRITY_BYTES as u64, DATA_IN_OFFSET)?;
            if parts.iter().any(|part| part.range.end > place.start) {
                return Err(Refusal::Field(DATA_IN_OFFSET));
            }
            layout.integrity = Some(place.clone());
            parts.push(Part { range: place, field: DATA_IN_OFFSET });
        }
        // Command data without other parts behind it may have any length: the transport cuts it at the initiator's
        // capacity.
        if !parts.is_empty() {
            parts.push(Part { range: 0..layout.data, field: 32 });
        }
        end_of(&parts)?;
        Ok(layout)
    }
}

/// Returns the bytes of command data that a command may return.
fn data_in_length(command: &Command) -> u64 {
    match *command {
        Command::Read { length, .. } => length,
        Command::List { list, .. } | Command::ListCollection { list, .. } => list.allocation_length,
        Command::Query { allocation_length, .. }
        | Command::ReadMap { allocation_length, .. }
        | Command::ReadMapsAndCompare { allocation_length, .. } => allocation_length,
        Command::PerformScsiCommand { cdb } => osd::performed_allocation_length(&cdb).into(),
        _ => 0,
    }
}

/// Returns the range of a part. Refuses a range that wraps around, with a pointer to byte `field` of the CDB.
fn range(start: u64, length: u64, field: u16) -> Result<Range<u64>, Refusal> {
    start.checked_add(length).map(|end| start..end).ok_or(Refusal::Field(field))
}

/// Returns the end of the last part, after a check that no parts overlap.
///
/// # Errors
/// Two parts overlap: the refusal points to the offset of the later one in the buffer.
fn end_of(parts: &[Part]) -> Result<u64, Refusal> {
    let mut parts: SmallVec<[&Part; 5]> =
        parts.iter().filter(|part| !part.range.is_empty()).collect();
    parts.sort_by_key(|part| (part.range.start, part.range.end));
    for pair in parts.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            // Command data and continuation segment have no offset in the CDB, so point to that of the other part.
            let field = if pair[1].field == 32 { pair[0].field } else { pair[1].field };
            return Err(Refusal::Field(field));
        }
    }
    Ok(parts.last().map_or(0, |part| part.range.end))
}

const DATA_IN_OFFSET: u16 = 228;
const DATA_OUT_OFFSET: u16 = 232;

#[cfg(test)]
mod tests {
    use object::{AttributeId, ObjectAddress};
    use osd::{ListInBuffer, PageToGet, Space, ValueInBuffer};

    use super::*;

    const OBJECT: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);

    fn write(length: u64) -> OsdCdb {
        OsdCdb::new(Command::Write { object: OBJECT, length, start: 0 })
    }

    fn out(cdb: &OsdCdb) -> Result<OutLayout, u16> {
        let layout = OutLayout::new(cdb, SecurityMethod::CmdRsp, &ListLimits::default());
        layout.map_err(|refusal| refusal.pointer().unwrap())
    }

    fn lists(set: (u32, u64), get: (u32, u64)) -> AttributeParameters {
        let list =
            |(length, offset): (u32, u64)| (length > 0).then_some(ListInBuffer { length, offset });
        AttributeParameters::Lists { set: list(set), get: list(get), retrieved: None }
    }

    #[test]
    fn parts_in_any_order_are_found() {
        let mut cdb = write(100);
        cdb.continuation_length = 112;
        cdb.attributes = lists((40, 256), (24, 216));
        let layout = out(&cdb).unwrap();
        assert_eq!(layout.data, 112..212);
        assert_eq!((layout.set, layout.get, layout.end), (256..296, 216..240, 296));
    }

    #[test]
    fn overlapping_and_wrapping_parts_are_refused() {
        for (set, get, field) in [
            ((40, 96), (0, 0), 72),
            ((40, 104), (24, 136), 56),
            ((40, 136), (24, 120), 72),
            ((40, u64::MAX - 7), (0, 0), 72),
            ((0, 0), (24, u64::MAX - 7), 56),
            ((40, 0), (0, 0), 72),
            ((40, 200), (40, 200), 56),
        ] {
            let mut cdb = write(100);
            cdb.attributes = lists(set, get);
            assert_eq!(out(&cdb), Err(field), "{set:?} {get:?}");
        }
        let mut cdb = write(u64::MAX - 50);
        cdb.continuation_length = 64;
        assert_eq!(out(&cdb), Err(32));
    }

    #[test]
    fn lists_and_values_above_the_limits_are_refused() {
        let mut cdb = write(0);
        cdb.attributes = lists(((64 << 10) + 8, 0), (0, 0));
        assert_eq!(out(&cdb), Err(68));
        cdb.attributes = lists((0, 0), ((64 << 10) + 8, 0));
        assert_eq!(out(&cdb), Err(52));
        cdb.attributes = lists((64 << 10, 0), (0, 0));
        assert_eq!(out(&cdb).unwrap().end, 64 << 10);
        let id = AttributeId::new(1, 9);
        let value = ValueInBuffer { id, length: 0xffff, offset: 0 };
        cdb.attributes = AttributeParameters::Page { get: None, set: Some(value) };
        assert_eq!(out(&cdb), Err(72));
        let mut cdb = write(0);
        cdb.continuation_length = (64 << 10) + 8;
        assert_eq!(out(&cdb), Err(48));
    }

    #[test]
    fn integrity_information_comes_behind_everything_that_it_covers() {
        let all = |cdb: &OsdCdb| {
            let layout = OutLayout::new(cdb, SecurityMethod::AllData, &ListLimits::default());
            layout.map_err(|refusal| refusal.pointer().unwrap())
        };
        let mut cdb = write(100);
        cdb.attributes = lists((40, 104), (0, 0));
        assert_eq!(all(&cdb), Err(232), "no place");
        cdb.data_out_integrity = Some(96);
        assert_eq!(all(&cdb), Err(232), "in the data");
        cdb.data_out_integrity = Some(136);
        assert_eq!(all(&cdb), Err(232), "before the end of the list");
        cdb.data_out_integrity = Some(144);
        assert_eq!(all(&cdb).unwrap().integrity, Some(144..200));
        assert_eq!(all(&cdb).unwrap().end, 200);
        let mut empty = write(0);
        assert_eq!(all(&empty).unwrap().integrity, None, "nothing to cover");
        empty.data_out_integrity = Some(0);
        assert_eq!(all(&empty).unwrap().integrity, Some(0..56), "sent nevertheless");
    }

    #[test]
    fn retrieved_attributes_must_not_overlap_command_data() {
        let read = |length, offset, method| {
            let mut cdb = OsdCdb::new(Command::Read { object: OBJECT, length, start: 0 });
            let space = Space { offset, allocation_length: 64 };
            let get = Some(PageToGet { page: 1, space });
            cdb.attributes = AttributeParameters::Page { get, set: None };
            cdb.data_in_integrity = Some(4_200);
            InLayout::new(&cdb, method).map_err(|refusal| refusal.pointer().unwrap())
        };
        let (cmd, all) = (SecurityMethod::CmdRsp, SecurityMethod::AllData);
        assert_eq!(read(4_096, 4_096, cmd).unwrap().retrieved, Some(4_096..4_160));
        assert_eq!(read(4_097, 4_096, cmd), Err(60));
        assert_eq!(read(u64::MAX, 4_096, cmd), Err(60));
        assert_eq!(read(4_096, u64::MAX - 7, cmd), Err(60));
        assert_eq!(read(4_096, 4_096, all).unwrap().integrity, Some(4_200..4_248));
        assert_eq!(read(4_096, 4_144, all), Err(228));
        let cdb = OsdCdb::new(Command::Read { object: OBJECT, length: u64::MAX, start: 0 });
        assert!(InLayout::new(&cdb, cmd).is_ok(), "the transport cuts it");
        assert_eq!(InLayout::new(&cdb, all).unwrap_err(), Refusal::Field(228));
    }
}
