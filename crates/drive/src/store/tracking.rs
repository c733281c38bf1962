//! Command tracking: the record of the last command on the members of a collection, and its attributes page.
//!
//! REMOVE MEMBER OBJECTS, SET MEMBER ATTRIBUTES, QUERY into a collection and CREATE USER TRACKING COLLECTION change one
//! object in each step. Each step is atomic with the progress in the record, so after a crash the record and the
//! objects agree. A collection has one such command at a time.
//!
//! | how the command ends | effect | ended command status |
//! |---|---|---|
//! | all objects were processed | whole | GOOD |
//! | an object could not be changed | on the objects before that one | CHECK CONDITION, with sense data |
//! | it is aborted, or a crash comes before its answer | on a prefix of the objects, in the order of identifiers | TASK ABORTED |
//! | QUERY with IMMED_TR, and a crash comes after its answer | the drive goes on with it after the restart | |
//! | CREATE USER TRACKING COLLECTION does not end with GOOD | none: the drive removes the new collection | |
//!
//! A repeated REMOVE MEMBER OBJECTS goes on with the members that are left; a repeated QUERY begins again.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use object::{Command, Continuation, ObjectAddress, ObjectError, Query, RefusedField};
use osd::{ContinuationSegment, OsdCdb, ServiceAction, security::IntegrityCheckValue};
use scsi::{ObjectIdentification, ObjectSense, ScsiStatus};

use super::{
    key,
    tables::Tables,
    transaction::{Step, Stop, Transaction},
    works::{Progress, WorkId},
};
use crate::error_sense::sense_of;

/// The command tracking page of a collection.
pub(crate) const TRACKING_PAGE: u32 = 0x6000_0004;
/// COLLECTION TYPE of a user tracking collection.
pub(crate) const TRACKING_COLLECTION: u8 = 1;

/// The record of the last command.
#[derive(Clone, Debug, Eq, PartialEq)]
struct TrackingRow {
    action: u16,
    /// `None`: the command has not ended.
    ended: Option<Ended>,
    progress: Progress,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Ended {
    status: u8,
    sense: Bytes,
}

/// A command that is about to begin.
pub(crate) struct NewWork<'a> {
    pub(crate) command: &'a Command,
    /// The collection that tracks the command.
    pub(crate) collection: ObjectAddress,
    /// The object whose user objects the command looks at.
    pub(crate) source: ObjectAddress,
    pub(crate) total: u64,
    pub(crate) is_background: bool,
}

/// A command whose rest is in the tables, because a restart must go on with it or undo it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Pending {
    /// QUERY with IMMED_TR goes on.
    Query { source: ObjectAddress, query: Query },
    /// The tracking collection is removed.
    Creation,
}

/// Takes a command off the list of commands at work at its end, also if it is dropped.
pub(crate) struct WorkGuard {
    tables: Arc<Tables>,
    pub(crate) id: WorkId,
}

impl WorkGuard {
    pub(crate) fn new(tables: &Arc<Tables>, id: WorkId) -> Self {
        Self { tables: Arc::clone(tables), id }
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.tables.state.lock().works.end(self.id);
    }
}

/// Fails if a command is at work that the collection tracks.
pub(crate) fn check_idle(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    field: RefusedField,
) -> Step<()> {
    match transaction.works().is_active(collection) {
        true => Err(Stop::Failed(ObjectError::InvalidField { field })),
        false => Ok(()),
    }
}

/// Writes the record of a command that begins. The transaction must not fail any more, because the command is at work
/// from now on.
pub(crate) fn begin(transaction: &mut Transaction<'_>, new: &NewWork<'_>) -> Step<WorkId> {
    let action = OsdCdb::new(*new.command).service_action() as u16;
    let progress = Progress { total: new.total, ..Progress::default() };
    let row = TrackingRow { action, ended: None, progress };
    transaction.put(key::tracking(new.collection), Some(row.encode()))?;
    let is_background = new.is_background;
    Ok(transaction.works().begin(new.collection, new.source, is_background, progress))
}

/// Writes the progress of a command. Fails if the command must end.
pub(crate) fn advance(
    transaction: &mut Transaction<'_>,
    id: WorkId,
    progress: &Progress,
) -> Step<()> {
    let mut row = active(transaction, id)?;
    row.progress = *progress;
    transaction.put(key::tracking(id.collection), Some(row.encode()))?;
    transaction.works().note(id, *progress);
    Ok(())
}

/// Fails if the command must end: it was aborted, or its collection was removed.
pub(crate) fn check(transaction: &mut Transaction<'_>, id: WorkId) -> Step<()> {
    match transaction.works().is_aborted(id) {
        true => Err(Stop::Failed(ObjectError::NoSuchObject { object: id.collection })),
        false => Ok(()),
    }
}

/// Writes the record of a command that has ended, unless its collection was removed.
pub(crate) fn end(
    transaction: &mut Transaction<'_>,
    id: WorkId,
    result: &Result<(), ObjectError>,
) -> Step<()> {
    let is_aborted = transaction.works().is_aborted(id);
    transaction.put(key::pending(id.collection), None)?;
    let Some(mut row) = find(transaction, id.collection)? else { return Ok(()) };
    row.progress = transaction.works().progress(id.collection).unwrap_or(row.progress);
    row.ended = Some(match result {
        Ok(()) => Ended::default(),
        Err(_) if is_aborted => Ended::ABORTED,
        Err(error) => Ended {
            status: ScsiStatus::CheckCondition as u8,
            sense: sense_bytes(error, id.collection),
        },
    });
    transaction.put(key::tracking(id.collection), Some(row.encode()))
}

/// Removes the record of a collection that is removed.
pub(crate) fn forget(transaction: &mut Transaction<'_>, collection: ObjectAddress) -> Step<()> {
    transaction.works().abort(collection);
    transaction.put(key::pending(collection), None)?;
    transaction.put(key::tracking(collection), None)
}

/// Ends the commands at work that were answered, and that began under the policy access tag of `object`. They do not
/// go on after a restart either.
pub(crate) fn abort_background(
    transaction: &mut Transaction<'_>,
    object: ObjectAddress,
) -> Step<()> {
    for collection in transaction.works().abort_background(object) {
        transaction.put(key::pending(collection), None)?;
    }
    Ok(())
}

/// Puts a command that was interrupted by a restart back on the list of commands at work.
pub(crate) fn resume(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    pending: &Pending,
) -> Step<Option<(WorkId, Progress)>> {
    let Some(row) = find(transaction, collection)? else { return Ok(None) };
    let (source, progress) = match pending {
        Pending::Query { source, .. } => (*source, row.progress),
        Pending::Creation => (collection, row.progress),
    };
    Ok(Some((transaction.works().begin(collection, source, true, progress), progress)))
}

/// Returns an attribute of the command tracking page; `None`: it has no value.
pub(crate) fn value(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    number: u32,
) -> Step<Option<Bytes>> {
    let Some(mut row) = find(transaction, collection)? else {
        return Ok((number == ACTIVE_STATUS).then(|| Bytes::from_static(&[0; 2])));
    };
    match transaction.works().progress(collection) {
        Some(progress) if row.ended.is_none() => row.progress = progress,
        // The command is no longer at work.
        _ if row.ended.is_none() => row.ended = Some(Ended::ABORTED),
        _ => {}
    }
    let long = |value: u64| Some(Bytes::copy_from_slice(&value.to_be_bytes()));
    let short = |value: u16| Some(Bytes::copy_from_slice(&value.to_be_bytes()));
    let is_active = row.ended.is_none();
    let ended = row.ended.unwrap_or_default();
    Ok(match number {
        PERCENT => Some(Bytes::copy_from_slice(&[percent(&row.progress, is_active, &ended)])),
        ACTIVE_STATUS => short(if is_active { row.action } else { 0 }),
        ENDED_STATUS => short(if is_active { NOT_ENDED } else { u16::from(ended.status) }),
        SENSE_DATA => Some(ended.sense).filter(|sense| !sense.is_empty()),
        0x11 => long(row.progress.processed),
        0x12 => long(row.progress.newer),
        0x13 => long(row.progress.missing),
        _ => None,
    })
}

/// Returns the percentage of objects that were processed: 100 only if the command has ended with GOOD.
fn percent(progress: &Progress, is_active: bool, ended: &Ended) -> u8 {
    if !is_active && ended.status == ScsiStatus::Good as u8 {
        return 100;
    }
    let done = progress.processed + progress.newer + progress.missing;
    (u128::from(done) * 100 / u128::from(progress.total.max(1))).min(99) as u8
}

fn sense_bytes(error: &ObjectError, collection: ObjectAddress) -> Bytes {
    let ObjectAddress { partition, object } = collection;
    let object = ObjectIdentification { not_initiated: 0, completed: 0, partition, object };
    let descriptors = ObjectSense { object: Some(object), ..ObjectSense::default() };
    Bytes::from(descriptors.encode(&sense_of(error)).0)
}

fn active(transaction: &mut Transaction<'_>, id: WorkId) -> Step<TrackingRow> {
    check(transaction, id)?;
    let gone = || ObjectError::NoSuchObject { object: id.collection };
    Ok(find(transaction, id.collection)?.ok_or_else(gone)?)
}

fn find(transaction: &mut Transaction<'_>, collection: ObjectAddress) -> Step<Option<TrackingRow>> {
    let Some(row) = transaction.get(&key::tracking(collection))? else { return Ok(None) };
    let damaged =
        || ObjectError::Storage(format!("the tracking record of {collection} is damaged"));
    Ok(Some(TrackingRow::decode(&row).ok_or_else(damaged)?))
}

impl Ended {
    const ABORTED: Self = Self { status: ScsiStatus::TaskAborted as u8, sense: Bytes::new() };
}

impl TrackingRow {
    fn encode(&self) -> Bytes {
        let ended = self.ended.clone().unwrap_or_default();
        let mut bytes = BytesMut::with_capacity(ROW_BYTES + ended.sense.len());
        bytes.put_u8(ROW_VERSION);
        bytes.put_u8(u8::from(self.ended.is_some()));
        bytes.put_u8(u8::from(self.progress.is_emptied));
        bytes.put_u8(ended.status);
        bytes.put_u16_le(self.action);
        let Progress { total, processed, newer, missing, next, .. } = self.progress;
        for number in [total, processed, newer, missing, next] {
            bytes.put_u64_le(number);
        }
        bytes.put_slice(&ended.sense);
        bytes.freeze()
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < ROW_BYTES || bytes.get_u8() != ROW_VERSION {
            return None;
        }
        let (has_ended, is_emptied) = (bytes.get_u8() != 0, bytes.get_u8() != 0);
        let (status, action) = (bytes.get_u8(), bytes.get_u16_le());
        let [total, processed, newer, missing, next] = std::array::from_fn(|_| bytes.get_u64_le());
        let sense = Bytes::copy_from_slice(bytes);
        Some(Self {
            action,
            ended: has_ended.then_some(Ended { status, sense }),
            progress: Progress { total, processed, newer, missing, next, is_emptied },
        })
    }
}

impl Pending {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = vec![PENDING_CREATION];
        if let Self::Query { source, query } = self {
            bytes[0] = PENDING_QUERY;
            bytes.extend_from_slice(&source.partition.to_be_bytes());
            bytes.extend_from_slice(&source.object.to_be_bytes());
            let segment = ContinuationSegment {
                service_action: ServiceAction::Query,
                integrity: IntegrityCheckValue([0; 32]),
                continuation: Continuation::Query(query.clone()),
            };
            bytes.extend_from_slice(&segment.encode());
        }
        bytes.into()
    }

    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        match bytes.first() {
            Some(&PENDING_CREATION) => Some(Self::Creation),
            Some(&PENDING_QUERY) => {
                let source = ObjectAddress::new(number(1)?, number(9)?);
                let segment = bytes.slice(17..);
                // The segment was checked when the command came.
                let segment =
                    ContinuationSegment::parse(&segment, ServiceAction::Query, usize::MAX);
                match segment.ok()?.continuation {
                    Continuation::Query(query) => Some(Self::Query { source, query }),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

const ROW_VERSION: u8 = 1;
/// Bytes of a record without sense data.
const ROW_BYTES: usize = 6 + 5 * 8;
const PENDING_QUERY: u8 = 1;
const PENDING_CREATION: u8 = 2;

/// Numbers of the attributes of the page.
const PERCENT: u32 = 1;
const ACTIVE_STATUS: u32 = 2;
const ENDED_STATUS: u32 = 3;
const SENSE_DATA: u32 = 4;
/// The ended command status of a command that is at work.
const NOT_ENDED: u16 = 0xffff;

/// Returns a record with a different value in each field, for the page about the format.
#[cfg(test)]
pub(super) fn example() -> Bytes {
    let progress =
        Progress { total: 2, processed: 3, newer: 4, missing: 5, next: 6, is_emptied: true };
    TrackingRow { action: 0x88a0, ended: Some(Ended::ABORTED), progress }.encode()
}

/// Returns true if the row of the last command that a collection tracks has the form of its kind.
pub(crate) fn is_record(row: &[u8]) -> bool {
    TrackingRow::decode(row).is_some()
}

#[cfg(test)]
mod tests {
    use object::{AttributeId, QueryCriterion, QueryMatch};

    use super::*;

    #[test]
    fn records_decode_as_they_were_encoded() {
        let progress =
            Progress { total: 1, processed: 2, newer: 3, missing: 4, next: 5, is_emptied: true };
        let sense = Bytes::from_static(b"sense");
        for ended in [None, Some(Ended { status: 2, sense }), Some(Ended::ABORTED)] {
            let row = TrackingRow { action: 0x88a0, ended, progress };
            let bytes = row.encode();
            assert_eq!(TrackingRow::decode(&bytes), Some(row));
            for length in 0..ROW_BYTES {
                assert_eq!(TrackingRow::decode(&bytes[..length]), None);
            }
        }
        let criterion = QueryCriterion {
            id: AttributeId::new(1, 9),
            minimum: Bytes::from_static(b"a"),
            maximum: Bytes::new(),
        };
        let query = Query { match_type: QueryMatch::Any, criteria: vec![criterion] };
        let pending = Pending::Query { source: ObjectAddress::new(5, 6), query };
        for pending in [pending, Pending::Creation] {
            let bytes = pending.encode();
            assert_eq!(Pending::decode(&bytes), Some(pending.clone()));
            for length in 0..bytes.len() {
                assert_ne!(Pending::decode(&bytes.slice(..length)), Some(pending.clone()));
            }
        }
    }

    #[test]
    fn a_command_is_complete_only_when_it_has_ended_with_good() {
        let progress = Progress { total: 3, processed: 3, ..Progress::default() };
        assert_eq!(percent(&progress, true, &Ended::default()), 99);
        assert_eq!(percent(&progress, false, &Ended::ABORTED), 99);
        assert_eq!(percent(&progress, false, &Ended::default()), 100);
        let none = Progress::default();
        assert_eq!(percent(&none, true, &Ended::default()), 0);
        let third = Progress { processed: 0, missing: 1, ..progress };
        assert_eq!(percent(&third, true, &Ended::default()), 33);
    }
}
