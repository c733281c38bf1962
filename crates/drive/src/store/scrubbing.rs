//! Performs OBJECT STRUCTURE CHECK and scrub: reads every block of objects and compares it with its checksum.

use std::ops::Range;

use object::{ObjectAddress, ObjectError, ObjectType};

use super::{
    chunk::CHUNK_BLOCKS,
    disk::BLOCK,
    drive_core::DriveCore,
    extents::look_up,
    key,
    listing::ListSource,
    object_row::ObjectRow,
    object_rows::{decode, find},
    reading::ReadPlan,
    transaction::{Step, Transaction},
};

/// The result of a scrub of some objects.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScrubReport {
    pub objects: u64,
    /// Total length of the objects in bytes, with their holes.
    pub bytes: u64,
    /// Ranges without a good copy, at most 1,024 of them.
    pub damaged: Vec<(ObjectAddress, Range<u64>)>,
}

impl DriveCore {
    /// Reads every block of a user object, of all objects of a partition, or of the whole drive. If the volume has
    /// several copies of a damaged block, and one of them is good, the block is repaired.
    pub(crate) async fn scrub(&self, address: ObjectAddress) -> Result<ScrubReport, ObjectError> {
        let mut report = ScrubReport::default();
        let row = self.run(|transaction| find(transaction, address)).await?;
        match row.object_type {
            ObjectType::Root => self.scrub_drive(&mut report).await?,
            ObjectType::Partition => self.scrub_partition(address.partition, &mut report).await?,
            ObjectType::Collection => {}
            ObjectType::UserObject => self.scrub_object(address, &mut report).await?,
        }
        Ok(report)
    }

    async fn scrub_drive(&self, report: &mut ScrubReport) -> Result<(), ObjectError> {
        let mut first = 0;
        loop {
            let (partitions, next) = self.ids(ListSource::Partitions, first, IDS).await?;
            for partition in partitions {
                self.scrub_partition(partition, report).await?;
            }
            if next == 0 {
                return Ok(());
            }
            first = next;
        }
    }

    async fn scrub_partition(
        &self,
        partition: u64,
        report: &mut ScrubReport,
    ) -> Result<(), ObjectError> {
        let mut first = 0;
        loop {
            let found = self.ids(ListSource::UserObjects(partition), first, IDS).await;
            let (ids, next) = match found {
                // Skip a partition that was removed since it was listed.
                Err(ObjectError::NoSuchObject { .. }) => return Ok(()),
                found => found?,
            };
            for id in ids {
                self.scrub_object(ObjectAddress::new(partition, id), report).await?;
            }
            if next == 0 {
                return Ok(());
            }
            first = next;
        }
    }

    async fn scrub_object(
        &self,
        address: ObjectAddress,
        report: &mut ScrubReport,
    ) -> Result<(), ObjectError> {
        report.objects += 1;
        let mut at = 0;
        loop {
            let found = self
                .run(|transaction| {
                    let Some(row) = transaction.get(&key::object(address))? else {
                        return Ok(None);
                    };
                    let row = decode(address, &row)?;
                    let length = row.length.div_ceil(BLOCK);
                    // Holes may be as long as an object can be, so they are left out.
                    let start =
                        next_chunk(transaction, &row, at)?.map_or(length, |next| next.max(at));
                    let end = length.min(start.saturating_add(WINDOW));
                    let mut plan = ReadPlan::default();
                    look_up(transaction, &row, start..end.max(start), |block, entry| {
                        plan.push(block, entry)
                    })?;
                    Ok((at < end).then(|| (plan, end, transaction.enter_epoch())))
                })
                .await?;
            let Some((plan, end, _token)) = found else { return Ok(()) };
            let next = match self.read_plan(address, &plan).await {
                Ok(_) => end,
                Err(ObjectError::Damaged { range, .. }) => {
                    let next = range.end / BLOCK;
                    if report.damaged.len() < MOST_DAMAGED {
                        report.damaged.push((address, range));
                    }
                    next
                }
                Err(error) => return Err(error),
            };
            report.bytes += (next - at) * BLOCK;
            at = next;
        }
    }
}

/// Returns the first block of the first chunk that has block `at` or later ones; `None`: only holes are left.
fn next_chunk(transaction: &mut Transaction<'_>, row: &ObjectRow, at: u64) -> Step<Option<u64>> {
    let start = key::chunk(row.content, at / CHUNK_BLOCKS);
    let page = transaction.page(&start, &key::chunks_end(row.content), 1)?;
    let number = match (page.rows.first(), page.next) {
        (Some((row_key, _)), _) => key::last_number(row_key),
        // The row that was read has been removed since. Its key has a further byte here.
        (None, Some(next)) => key::last_number(&next[..next.len() - 1]).saturating_add(1),
        (None, None) => return Ok(None),
    };
    Ok(Some(number.saturating_mul(CHUNK_BLOCKS)))
}

/// Identifiers that are listed at once.
const IDS: usize = 1024;
/// Number of blocks (4 MiB) that are read at once.
const WINDOW: u64 = 1024;
const MOST_DAMAGED: usize = 1024;
