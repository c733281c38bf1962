//! The CDB continuation segment at the begin of the Data-Out buffer (OSD-2, 5.4).
//!
//! A header of 40 bytes (format, service action, integrity check value) precedes descriptors: type,
//! number of pad bytes, length, content. A command of Forebay has at most one descriptor.

use bytes::Bytes;
use object::{
    AttributeId, Continuation, CopySource, ObjectAddress, Query, QueryCriterion, QueryMatch,
    ScatterEntry, Timestamp,
};

use crate::{
    bytes::{array_at, padding, put, u16_at, u32_at, u64_at},
    layout::CONTINUATION_INTEGRITY,
    refusal::Refusal,
    security::IntegrityCheckValue,
    service_action::ServiceAction,
};

const HEADER: usize = 40;
const DESCRIPTOR_HEADER: usize = 8;
const FORMAT: u8 = 0x01;

const NONE: u16 = 0x0000;
const SCATTER_GATHER: u16 = 0x0001;
const QUERY: u16 = 0x0002;
const USER_OBJECT: u16 = 0x0100;
const COPY_SOURCE: u16 = 0x0101;

/// Length in bytes of an entry of a scatter/gather list.
const SCATTER_ENTRY: usize = 16;
const CPY_ATTR: u8 = 0x01;
const FREEZE: u8 = 0x02;

/// The types of descriptor that Forebay accepts, for the root attributes "supported CDB
/// continuation descriptor types".
pub const DESCRIPTOR_TYPES: [u16; 4] = [SCATTER_GATHER, QUERY, USER_OBJECT, COPY_SOURCE];

/// A CDB continuation segment (OSD-2, 5.4).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContinuationSegment {
    /// The service action of the command to which the segment belongs.
    pub service_action: ServiceAction,
    pub integrity: IntegrityCheckValue,
    pub continuation: Continuation,
}

impl ContinuationSegment {
    /// Parses the segment of a CDB with this service action. Lists have at most `max_entries`
    /// entries. Values of queries share memory with `bytes`.
    ///
    /// # Errors
    /// 5/26/00 for the segment of another command, an unknown format or descriptor, a second
    /// descriptor, or a field that lies; 5/1A/00 for a segment that ends within a descriptor.
    pub fn parse(
        bytes: &Bytes,
        service_action: ServiceAction,
        max_entries: usize,
    ) -> Result<Self, Refusal> {
        if bytes.len() < HEADER + DESCRIPTOR_HEADER {
            return Err(Refusal::ParameterListLength);
        }
        if bytes[0] != FORMAT {
            return Err(Refusal::ParameterList(0));
        }
        if u16_at(bytes, 2) != Some(service_action as u16) {
            return Err(Refusal::ParameterList(2));
        }
        let integrity = IntegrityCheckValue(
            array_at(bytes, CONTINUATION_INTEGRITY).ok_or(Refusal::ParameterListLength)?,
        );
        let mut continuation = Continuation::None;
        let mut at = HEADER;
        while at < bytes.len() {
            let (next, descriptor) = parse_descriptor(bytes, at, max_entries)?;
            if descriptor != Continuation::None {
                if continuation != Continuation::None {
                    return Err(Refusal::ParameterList(pointer(at)));
                }
                continuation = descriptor;
            }
            at = next;
        }
        Ok(Self { service_action, integrity, continuation })
    }

    /// Encodes the segment. The length is a multiple of 8.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[0] = FORMAT;
        put(&mut bytes, 2, &(self.service_action as u16).to_be_bytes());
        put(&mut bytes, CONTINUATION_INTEGRITY, &self.integrity.0);
        let (kind, body) = match &self.continuation {
            Continuation::None => (NONE, Vec::new()),
            Continuation::ScatterGather(entries) => (SCATTER_GATHER, encode_entries(entries)),
            Continuation::Query(query) => (QUERY, encode_query(query)),
            Continuation::UserObject(object) => (USER_OBJECT, encode_address(*object)),
            Continuation::CopySource(source) => (COPY_SOURCE, encode_source(source)),
        };
        let pad = padding(body.len());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&[0, pad as u8]);
        bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes.resize(bytes.len() + pad, 0);
        bytes
    }
}

/// Parses the descriptor at offset `at`. Also returns the offset of the next descriptor.
fn parse_descriptor(
    bytes: &Bytes,
    at: usize,
    max_entries: usize,
) -> Result<(usize, Continuation), Refusal> {
    let short = Refusal::ParameterListLength;
    let kind = u16_at(bytes, at).ok_or(short)?;
    let pad = usize::from(bytes.get(at + 3).ok_or(short)? & 0x07);
    let length = u32_at(bytes, at + 4).ok_or(short)? as usize;
    let begin = at + DESCRIPTOR_HEADER;
    let end = begin.checked_add(length).ok_or(short)?;
    let next = end.checked_add(pad).ok_or(short)?;
    if next > bytes.len() {
        return Err(short);
    }
    if !(length + pad).is_multiple_of(8) {
        return Err(Refusal::ParameterList(pointer(at + 3)));
    }
    let body = bytes.slice(begin..end);
    let invalid = |field: usize| Refusal::ParameterList(pointer(begin + field));
    let continuation = match kind {
        NONE => Continuation::None,
        SCATTER_GATHER => Continuation::ScatterGather(parse_entries(&body, max_entries)?),
        QUERY => Continuation::Query(parse_query(&body, max_entries).map_err(invalid)?),
        USER_OBJECT => Continuation::UserObject(parse_address(&body).ok_or(short)?),
        COPY_SOURCE => Continuation::CopySource(parse_source(&body).ok_or(short)?),
        _ => return Err(Refusal::ParameterList(pointer(at))),
    };
    Ok((next, continuation))
}

/// Converts a byte offset to the 16 bits of a field pointer in sense data. A larger offset becomes
/// FFFFh.
fn pointer(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

fn parse_entries(body: &[u8], max_entries: usize) -> Result<Vec<ScatterEntry>, Refusal> {
    if !body.len().is_multiple_of(SCATTER_ENTRY) || body.len() / SCATTER_ENTRY > max_entries {
        return Err(Refusal::ParameterListLength);
    }
    let entry = |entry: &[u8]| ScatterEntry {
        start: u64_at(entry, 0).unwrap_or_default(),
        length: u64_at(entry, 8).unwrap_or_default(),
    };
    Ok(body.chunks_exact(SCATTER_ENTRY).map(entry).collect())
}

fn encode_entries(entries: &[ScatterEntry]) -> Vec<u8> {
    let bytes = |entry: &ScatterEntry| [entry.start, entry.length].map(u64::to_be_bytes).concat();
    entries.iter().flat_map(bytes).collect()
}

/// Parses the criteria of QUERY. An error is the offset of the invalid field.
fn parse_query(body: &Bytes, max_entries: usize) -> Result<Query, usize> {
    let match_type = match body.first() {
        Some(0) => QueryMatch::Any,
        Some(1) => QueryMatch::All,
        _ => return Err(0),
    };
    let mut criteria = Vec::new();
    let mut at = 4;
    while at < body.len() {
        let length = usize::from(u16_at(body, at + 2).ok_or(at)?);
        let begin = at + 4;
        let end = begin + length;
        if end > body.len() || criteria.len() == max_entries {
            return Err(at + 2);
        }
        let entry = body.slice(begin..end);
        criteria.push(parse_criterion(&entry).ok_or(begin)?);
        at = end;
    }
    Ok(Query { match_type, criteria })
}

fn parse_criterion(entry: &Bytes) -> Option<QueryCriterion> {
    let id = AttributeId::new(u32_at(entry, 0)?, u32_at(entry, 4)?);
    let minimum_end = 10 + usize::from(u16_at(entry, 8)?);
    let maximum_begin = minimum_end + 2;
    let maximum_end = maximum_begin + usize::from(u16_at(entry, minimum_end)?);
    if maximum_end != entry.len() {
        return None;
    }
    let (minimum, maximum) =
        (entry.slice(10..minimum_end), entry.slice(maximum_begin..maximum_end));
    Some(QueryCriterion { id, minimum, maximum })
}

fn encode_query(query: &Query) -> Vec<u8> {
    let mut bytes = vec![query.match_type as u8, 0, 0, 0];
    for criterion in &query.criteria {
        let length = 12 + criterion.minimum.len() + criterion.maximum.len();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        bytes.extend_from_slice(&criterion.id.page.to_be_bytes());
        bytes.extend_from_slice(&criterion.id.number.to_be_bytes());
        for bound in [&criterion.minimum, &criterion.maximum] {
            bytes.extend_from_slice(&(bound.len() as u16).to_be_bytes());
            bytes.extend_from_slice(bound);
        }
    }
    bytes
}

fn parse_address(body: &[u8]) -> Option<ObjectAddress> {
    Some(ObjectAddress::new(u64_at(body, 0)?, u64_at(body, 8)?))
}

fn encode_address(object: ObjectAddress) -> Vec<u8> {
    [object.partition, object.object].map(u64::to_be_bytes).concat()
}

fn parse_source(body: &[u8]) -> Option<CopySource> {
    let flags = *body.get(16)?;
    Some(CopySource {
        object: parse_address(body)?,
        with_attributes: flags & CPY_ATTR != 0,
        freeze: flags & FREEZE != 0,
        time: array_at(body, 17).map_or(Timestamp::ZERO, Timestamp::from_bytes),
    })
}

fn encode_source(source: &CopySource) -> Vec<u8> {
    let mut bytes = encode_address(source.object);
    let attributes = if source.with_attributes { CPY_ATTR } else { 0 };
    let freeze = if source.freeze { FREEZE } else { 0 };
    bytes.push(attributes | freeze);
    bytes.extend_from_slice(&source.time.to_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(continuation: Continuation) -> ContinuationSegment {
        let integrity = IntegrityCheckValue([3; 32]);
        ContinuationSegment { service_action: ServiceAction::Read, integrity, continuation }
    }

    fn all() -> Vec<Continuation> {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let criterion = QueryCriterion {
            id: AttributeId::new(0x1_0000, 3),
            minimum: Bytes::from_static(b"abc"),
            maximum: Bytes::from_static(b""),
        };
        let criteria = vec![criterion.clone(), criterion];
        vec![
            Continuation::None,
            Continuation::ScatterGather(vec![ScatterEntry { start: 1, length: 2 }; 4]),
            Continuation::Query(Query { match_type: QueryMatch::All, criteria }),
            Continuation::UserObject(object),
            Continuation::CopySource(CopySource {
                object,
                with_attributes: true,
                freeze: true,
                time: Timestamp::from_ms(77),
            }),
        ]
    }

    fn parse(bytes: &[u8]) -> Result<ContinuationSegment, Refusal> {
        ContinuationSegment::parse(&Bytes::copy_from_slice(bytes), ServiceAction::Read, 4)
    }

    #[test]
    fn every_descriptor_decodes_to_the_encoded_one() {
        for continuation in all() {
            let segment = segment(continuation);
            let bytes = segment.encode();
            assert!(bytes.len().is_multiple_of(8));
            assert_eq!(parse(&bytes), Ok(segment));
        }
    }

    #[test]
    fn four_scatter_entries_take_112_bytes_as_in_the_osd_test_of_linux() {
        assert_eq!(segment(all()[1].clone()).encode().len(), 112);
    }

    #[test]
    fn segments_that_lie_are_refused() {
        let bytes = segment(all()[1].clone()).encode();
        let changed = |at: usize, value: &[u8]| {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, value);
            parse(&bytes).map(|_| ())
        };
        assert_eq!(changed(0, &[2]), Err(Refusal::ParameterList(0)), "format 2");
        assert_eq!(changed(2, &[0x88, 0x86]), Err(Refusal::ParameterList(2)), "of a WRITE");
        assert_eq!(changed(40, &[0, 9]), Err(Refusal::ParameterList(40)), "descriptor 9");
        assert_eq!(changed(43, &[1]), Err(Refusal::ParameterListLength), "pad of 1 byte");
        assert_eq!(changed(44, &[0, 0, 0, 65]), Err(Refusal::ParameterListLength));
        assert_eq!(changed(44, &[0xff; 4]), Err(Refusal::ParameterListLength));
        assert_eq!(changed(44, &[0, 0, 0, 56]), Err(Refusal::ParameterListLength), "3.5 entries");
        let many = ContinuationSegment::parse(&Bytes::from(bytes.clone()), ServiceAction::Read, 3);
        assert_eq!(many, Err(Refusal::ParameterListLength), "more entries than allowed");
        assert_eq!(parse(&bytes[..47]), Err(Refusal::ParameterListLength));
        let twice = [&bytes[..], &bytes[40..]].concat();
        assert_eq!(parse(&twice), Err(Refusal::ParameterList(112)), "a second descriptor");
    }

    proptest! {
        #[test]
        fn a_hostile_segment_ends_in_a_descriptor_or_a_refusal(
            bytes in prop::collection::vec(any::<u8>(), 0..160),
            kind in prop::sample::select(vec![0u16, 1, 2, 0x100, 0x101, 9]),
        ) {
            let mut bytes = bytes;
            bytes.resize(bytes.len() + 48, 0);
            bytes[0] = FORMAT;
            put(&mut bytes, 2, &(ServiceAction::Read as u16).to_be_bytes());
            put(&mut bytes, 40, &kind.to_be_bytes());
            let _ = parse(&bytes);
            let length = (bytes.len() - 48) as u32;
            bytes[43] = 0;
            put(&mut bytes, 44, &length.to_be_bytes());
            let _ = parse(&bytes);
        }
    }
}
