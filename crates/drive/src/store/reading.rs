//! Performs READ and READ MAP, and reads blocks with a check of their checksums.

use std::{ops::Range, sync::atomic::Ordering};

use object::{
    Continuation, MapRun, MapRunKind, MapType, ObjectAddress, ObjectError, ObjectReply,
    ObjectRequest, RefusedField, ReplyData, TimestampControl,
};
use volume::Data;

use super::{
    chunk::{BlockEntry, CHUNK_BLOCKS},
    conclusion::{Conclusion, conclude},
    disk::{BLOCK, crc32c_of},
    drive_core::DriveCore,
    extents::look_up,
    key,
    object_row::ObjectRow,
    object_rows::{find_user, find_with_chunk},
    transaction::{Step, Stop, Transaction},
};

/// Blocks of an object that are adjacent on the volume, or adjacent holes of the object.
#[derive(Clone, Debug)]
pub(crate) struct ReadRun {
    first: u64,
    /// Number of the first block on the drive; `None` for holes.
    place: Option<u64>,
    count: u64,
}

/// The blocks to read for one range of an object, with their checksums.
#[derive(Default)]
pub(crate) struct ReadPlan {
    runs: Vec<ReadRun>,
    crcs: Vec<u32>,
}

impl ReadPlan {
    pub(crate) fn push(&mut self, block: u64, entry: Option<BlockEntry>) {
        if let Some(entry) = entry {
            self.crcs.push(entry.crc);
        }
        if let Some(last) = self.runs.last_mut()
            && last.first + last.count == block
            && match (last.place, entry) {
                (None, None) => true,
                (Some(place), Some(entry)) => place.checked_add(last.count) == Some(entry.block),
                _ => false,
            }
        {
            last.count += 1;
            return;
        }
        self.runs.push(ReadRun { first: block, place: entry.map(|entry| entry.block), count: 1 });
    }
}

impl DriveCore {
    /// Reads the blocks of a plan. The caller must hold the token of the epoch in which it made the plan: otherwise the
    /// blocks could get other content.
    pub(crate) async fn read_plan(
        &self,
        address: ObjectAddress,
        plan: &ReadPlan,
    ) -> Result<Data, ObjectError> {
        let mut all = Data::new();
        let mut crcs = &plan.crcs[..];
        for run in &plan.runs {
            let Some(place) = run.place else {
                all.append(Data::zeros((run.count * BLOCK) as usize));
                continue;
            };
            let (own, rest) = crcs.split_at(run.count as usize);
            crcs = rest;
            let offset = self.tables.offset(place);
            let read = self.tables.disk.read(offset, run.count * BLOCK).await;
            let data = match read {
                Ok(data) if is_right(&data, own) => data,
                Err(error) if !matches!(error, volume::Error::Medium { .. }) => {
                    return Err(ObjectError::Storage(error.to_string()));
                }
                _ => self.examine(address, run, own).await?,
            };
            all.append(data);
        }
        Ok(all)
    }

    /// Reads the blocks of a run one by one, each from a copy on the volume that matches its checksum.
    async fn examine(
        &self,
        address: ObjectAddress,
        run: &ReadRun,
        crcs: &[u32],
    ) -> Result<Data, ObjectError> {
        let place = run.place.expect("holes are not examined");
        let mut all = Data::new();
        for (n, crc) in (0..run.count).zip(crcs) {
            let disk = &self.tables.disk;
            let extent = disk.extent(self.tables.offset(place + n), BLOCK);
            let expected = |data: &Data| crc32c_of(data) == *crc;
            match volume::examine(&**disk.volume(), extent, &expected).await {
                Ok(Some(data)) => {
                    self.repaired.fetch_add(1, Ordering::Relaxed);
                    all.append(data);
                }
                Ok(None) | Err(volume::Error::Medium { .. }) => {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                    let start = (run.first + n) * BLOCK;
                    return Err(ObjectError::Damaged {
                        object: address,
                        range: start..start + BLOCK,
                    });
                }
                Err(error) => return Err(ObjectError::Storage(error.to_string())),
            }
        }
        Ok(all)
    }

    /// Performs READ.
    pub(crate) async fn read(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        ranges: &[Range<u64>],
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let chunk = ranges.first().map_or(0, |range| range.start / BLOCK / CHUNK_BLOCKS);
        let (mut reply, plans, past_end, _token) = self
            .run(|transaction| {
                let mut row = find_with_chunk(transaction, address, chunk)?;
                // A READ that ends early only because the initiator has no more room has not passed the end.
                let past_end = ranges.iter().any(|range| range.end > row.length);
                let mut plans = Vec::with_capacity(ranges.len());
                let mut room = request.data_in_capacity;
                check_amount(ranges, &row, room)?;
                for range in ranges {
                    let present = clip(range, &row, &mut room);
                    let mut plan = ReadPlan::default();
                    if present.start < present.end {
                        let blocks = present.start / BLOCK..present.end.div_ceil(BLOCK);
                        look_up(transaction, &row, blocks, |block, entry| plan.push(block, entry))?;
                    }
                    plans.push((present, plan));
                }
                note_access(transaction, request, address, &mut row, now)?;
                let conclusion = Conclusion::new(self, request, address, now);
                let reply = conclude(transaction, &conclusion, &mut row, false)?;
                Ok((reply, plans, past_end, transaction.enter_epoch()))
            })
            .await?;
        let mut all = Data::new();
        for (present, plan) in &plans {
            if present.start < present.end {
                let blocks = self.read_plan(address, plan).await?;
                let skip = (present.start % BLOCK) as usize;
                let length = (present.end - present.start) as usize;
                match skip == 0 && length == blocks.len() {
                    true => all.append(blocks),
                    false => all.append(blocks.slice(skip, length)),
                }
            }
        }
        reply.read_past_end = past_end.then_some(all.len() as u64);
        reply.data = ReplyData::Bytes(all);
        Ok(reply)
    }

    /// Performs READ MAP.
    pub(crate) async fn read_map(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        start: u64,
        wanted: MapType,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let (mut reply, plan, row, _token) = self
            .run(|transaction| {
                let mut row = find_user(transaction, address)?;
                let mut plan = ReadPlan::default();
                let blocks =
                    start / BLOCK..row.length.div_ceil(BLOCK).min(start / BLOCK + MAP_BLOCKS);
                look_up(transaction, &row, blocks, |block, entry| plan.push(block, entry))?;
                let conclusion = Conclusion::new(self, request, address, now);
                let reply = conclude(transaction, &conclusion, &mut row, false)?;
                Ok((reply, plan, row, transaction.enter_epoch()))
            })
            .await?;
        let mut runs: Vec<MapRun> = Vec::new();
        let mut crcs = &plan.crcs[..];
        for run in &plan.runs {
            let kinds = match run.place {
                None => vec![MapRunKind::Hole; run.count as usize],
                Some(_) => {
                    let (own, rest) = crcs.split_at(run.count as usize);
                    crcs = rest;
                    self.kinds(run, own).await?
                }
            };
            for (n, kind) in (0..).zip(kinds) {
                let first = ((run.first + n) * BLOCK).max(start);
                let end = ((run.first + n + 1) * BLOCK).min(row.length);
                add_run(&mut runs, kind, first..end);
            }
        }
        runs.retain(|run| wanted == MapType::All || wanted as u16 == run.kind as u16);
        reply.data = ReplyData::Map(runs);
        Ok(reply)
    }

    /// Reads the blocks of a run, and returns for each of them whether it is damaged.
    async fn kinds(&self, run: &ReadRun, crcs: &[u32]) -> Result<Vec<MapRunKind>, ObjectError> {
        let mut kinds = Vec::with_capacity(crcs.len());
        let place = run.place.expect("holes are not read");
        for (n, crc) in (0..).zip(crcs) {
            let disk = &self.tables.disk;
            let extent = disk.extent(self.tables.offset(place + n), BLOCK);
            let expected = |data: &Data| crc32c_of(data) == *crc;
            kinds.push(match volume::examine(&**disk.volume(), extent, &expected).await {
                Ok(Some(_)) => MapRunKind::Written,
                Ok(None) | Err(volume::Error::Medium { .. }) => MapRunKind::DamagedData,
                Err(error) => return Err(ObjectError::Storage(error.to_string())),
            });
        }
        Ok(kinds)
    }
}

/// Returns the ranges of the object that READ or WRITE transfers: the scatter/gather list, or the range in the CDB.
pub(crate) fn ranges_of(
    request: &ObjectRequest,
    start: u64,
    length: u64,
) -> Result<Vec<Range<u64>>, ObjectError> {
    let wraps = ObjectError::InvalidField { field: object::RefusedField::Length };
    match &request.continuation {
        Continuation::ScatterGather(entries) => entries
            .iter()
            .map(|entry| {
                let end = entry.start.checked_add(entry.length).ok_or_else(|| wraps.clone())?;
                Ok(entry.start..end)
            })
            .collect(),
        _ => {
            let end = start.checked_add(length).ok_or(wraps)?;
            Ok(std::iter::once(start..end).collect())
        }
    }
}

/// Refuses a READ that would return more than [`MOST_READ`] bytes.
fn check_amount(ranges: &[Range<u64>], row: &ObjectRow, room: u64) -> Step<()> {
    let present =
        |range: &Range<u64>| range.end.min(row.length).saturating_sub(range.start.min(row.length));
    let all = ranges.iter().map(present).fold(0, u64::saturating_add);
    match all.min(room) > MOST_READ {
        true => Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Length })),
        false => Ok(()),
    }
}

/// Returns the part of a range that exists and fits into the `room` for data, and takes it off the room.
fn clip(range: &Range<u64>, row: &ObjectRow, room: &mut u64) -> Range<u64> {
    let start = range.start.min(row.length);
    let end = range.end.min(row.length).min(start.saturating_add(*room));
    *room -= (end.saturating_sub(start)).min(*room);
    start..end.max(start)
}

fn is_right(data: &Data, crcs: &[u32]) -> bool {
    let block = BLOCK as usize;
    crcs.len() * block == data.len()
        && (0..).zip(crcs).all(|(n, crc)| {
            if let [part] = data.parts() {
                return super::disk::crc32c(&part[n * block..(n + 1) * block]) == *crc;
            }
            if data.parts().len() == crcs.len() && data.parts()[n].len() == block {
                return super::disk::crc32c(&data.parts()[n]) == *crc;
            }
            crc32c_of(&data.slice(n * block, block)) == *crc
        })
}

/// Notes the time of a READ as "data accessed time", unless the noted time is less than a minute old.
fn note_access(
    transaction: &mut Transaction<'_>,
    request: &ObjectRequest,
    address: ObjectAddress,
    row: &mut ObjectRow,
    now: object::Timestamp,
) -> Step<()> {
    let is_old = now.as_ms() >= row.times.data_accessed.as_ms() + ACCESS_STEP_MS;
    if is_old && request.options.timestamps == TimestampControl::Update {
        row.times.data_accessed = now;
        // A reader does not wait until the object is copied into a new snapshot: the time is no part of its content.
        transaction.put(key::object(address), Some(row.encode()))?;
    }
    Ok(())
}

/// Adds bytes to the runs of a map.
pub(crate) fn add_run(runs: &mut Vec<MapRun>, kind: MapRunKind, bytes: Range<u64>) {
    if bytes.start >= bytes.end {
        return;
    }
    match runs.last_mut() {
        Some(last) if last.kind == kind && last.start + last.length == bytes.start => {
            last.length += bytes.end - bytes.start;
        }
        _ => runs.push(MapRun { kind, start: bytes.start, length: bytes.end - bytes.start }),
    }
}

/// Most bytes that one READ returns: more than any session transfers with a command. They are in memory at once.
const MOST_READ: u64 = 64 << 20;
/// Maximum number of blocks (1 GiB) that one READ MAP examines: it reads them to find damaged ones.
const MAP_BLOCKS: u64 = 1 << 18;
/// Age in milliseconds after which "data accessed time" is noted again: otherwise every READ would write a row.
const ACCESS_STEP_MS: u64 = 60_000;
