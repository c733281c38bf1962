//! Splits the Data-Out buffer of a command into continuation segment, data and attributes lists.

use std::ops::Range;

use bytes::Bytes;
use object::{
    Attribute, AttributeSelection, Command, Continuation, MAX_VALUE_LENGTH, ObjectRequest,
    ScatterEntry,
};
use osd::{
    AttributeParameters, ContinuationSegment, OsdCdb, Refusal, list, security::DataOutIntegrity,
};
use volume::Data;

use super::layout::{ListLimits, OutLayout};
use crate::security::{Proof, Refused, RefusedReason, Security};

/// Checks the Data-Out buffer of a command, and makes the request to the store from CDB and buffer.
///
/// # Errors
/// The buffer is too short, or was altered; a list or descriptor is invalid; the capability does
/// not permit a list or a range.
pub fn parse(
    security: &Security,
    cdb: &OsdCdb,
    proof: &Proof,
    layout: &OutLayout,
    buffer: &Data,
    limits: &ListLimits,
) -> Result<ObjectRequest, Refused> {
    let refuse = |refusal| Refused::Capability(RefusedReason::Lists, refusal);
    if (buffer.len() as u64) < layout.end {
        return Err(refuse(Refusal::ParameterListLength));
    }
    check_integrity(cdb, proof, layout, buffer)?;
    let mut request = ObjectRequest::new(cdb.command);
    request.options = cdb.options;
    request.data = part(buffer, &layout.data);
    if !layout.continuation.is_empty() {
        let bytes = part(buffer, &layout.continuation).into_bytes();
        let segment = ContinuationSegment::parse(&bytes, cdb.service_action(), limits.entries)
            .map_err(refuse)?;
        let ContinuationSegment { integrity, continuation, .. } = segment;
        security.check_continuation(proof, cdb.nonce, &bytes, integrity, &continuation)?;
        request.continuation = continuation;
    }
    check_kind(&cdb.command, &request.continuation).map_err(refuse)?;
    (request.set, request.get) = parse_lists(cdb, layout, buffer, limits).map_err(refuse)?;
    security.check_lists(proof, &request.set, &request.get)?;
    Ok(request)
}

/// With the method ALLDATA, checks that the buffer was not altered, and that its parts have the lengths that the CDB
/// says.
fn check_integrity(
    cdb: &OsdCdb,
    proof: &Proof,
    layout: &OutLayout,
    buffer: &Data,
) -> Result<(), Refused> {
    let (Some(place), Some(signed)) = (&layout.integrity, &proof.signed) else { return Ok(()) };
    let altered = Refused::Capability(RefusedReason::DataIntegrity, Refusal::DataOutIntegrity);
    let information = part(buffer, place).into_bytes();
    let information = DataOutIntegrity::parse(&information).ok_or(altered.clone())?;
    let length = |range: &Range<u64>| range.end - range.start;
    let lengths = [&layout.data, &layout.set, &layout.get].map(length);
    let before = part(buffer, &(0..place.start));
    let pieces = before.parts().iter().map(Bytes::as_ref);
    let expected = DataOutIntegrity::new(&signed.key, cdb.nonce, pieces, lengths);
    if information == expected { Ok(()) } else { Err(altered) }
}

/// Checks that the descriptor of the continuation segment belongs to the command, and that the ranges of a
/// scatter/gather list have the total length in the CDB.
fn check_kind(command: &Command, continuation: &Continuation) -> Result<(), Refusal> {
    match (command, continuation) {
        (
            Command::Read { length, start, .. } | Command::Write { length, start, .. },
            Continuation::ScatterGather(entries),
        ) => {
            // The entries have positions in the object, so a start in the CDB would contradict them.
            if *start != 0 {
                return Err(Refusal::Field(40));
            }
            let add = |sum: u64, entry: &ScatterEntry| {
                entry.start.checked_add(entry.length)?;
                sum.checked_add(entry.length)
            };
            match entries.iter().try_fold(0, add) {
                Some(sum) if sum == *length => Ok(()),
                _ => Err(Refusal::Field(32)),
            }
        }
        (Command::Query { .. }, Continuation::Query(_))
        | (Command::ReadMapsAndCompare { .. }, Continuation::UserObject(_))
        | (Command::CopyUserObjects { .. }, Continuation::CopySource(_)) => Ok(()),
        // These commands need their descriptor, which names a second object.
        (Command::ReadMapsAndCompare { .. } | Command::CopyUserObjects { .. }, _) => {
            Err(Refusal::Field(48))
        }
        (_, Continuation::None) => Ok(()),
        _ => Err(Refusal::ParameterList(CONTINUATION_HEADER)),
    }
}

fn parse_lists(
    cdb: &OsdCdb,
    layout: &OutLayout,
    buffer: &Data,
    limits: &ListLimits,
) -> Result<(Vec<Attribute>, Vec<AttributeSelection>), Refusal> {
    Ok(match cdb.attributes {
        AttributeParameters::SetOne { id, length, value } => {
            let value = Bytes::copy_from_slice(&value[..usize::from(length)]);
            (vec![Attribute { id, value }], Vec::new())
        }
        AttributeParameters::Page { get, set } => {
            let set = set.map(|set| {
                let value = part(buffer, &layout.set).into_bytes();
                debug_assert!(value.len() <= MAX_VALUE_LENGTH);
                Attribute { id: set.id, value }
            });
            let get = get.map(|get| AttributeSelection::PageFormat(get.page));
            (set.into_iter().collect(), get.into_iter().collect())
        }
        AttributeParameters::Lists { .. } => {
            let mut lists = (Vec::new(), Vec::new());
            if !layout.set.is_empty() {
                let bytes = part(buffer, &layout.set).into_bytes();
                lists.0 = list::parse_attributes(&bytes, limits.entries)?;
            }
            if !layout.get.is_empty() {
                let bytes = part(buffer, &layout.get).into_bytes();
                lists.1 = list::parse_selections(&bytes, limits.entries)?;
            }
            lists
        }
    })
}

/// Returns a part of the Data-Out buffer. The buffer must be long enough for it.
fn part(buffer: &Data, range: &Range<u64>) -> Data {
    if range.is_empty() {
        return Data::new();
    }
    buffer.slice(range.start as usize, (range.end - range.start) as usize)
}

/// Offset in bytes of the first descriptor in a continuation segment.
const CONTINUATION_HEADER: u16 = 40;
