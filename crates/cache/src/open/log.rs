//! The log at an opening: reads it, and enters its segments into the slot table.

use journal::{
    doubt::{Doubt, judge_frames},
    layout::MOST_LAYOUTS,
    recovery::{Scan, mend, scan},
    ring::SegmentRing,
    segment::{LogRecordKind, SegmentHeader},
    superblock::Superblock,
};
use volume::{Geometry, Stack};

use crate::{
    epoch::{Epochs, limit},
    open::key,
    refusal::CacheOpenError,
    rules::ModeRules,
    seals::Seals,
    settings::{DestageOrder, Settings},
    slots::{
        sectors::SLOT_BYTES,
        table::{LogAddress, SlotTable},
    },
};

pub(super) struct FoundLog {
    pub scan: Scan,
    pub table: SlotTable,
    pub epochs: Epochs,
    pub seals: Option<Seals>,
}

/// Reads the log. If a segment is damaged in the copy that was read, and whole in another copy, repairs the damaged
/// copy and reads again. Returns the content, and the blocks whose copies differ. `watermark` is the newest segment
/// that the NVRAM has recorded as stable.
pub(super) async fn scan_until_whole(
    log: &Stack,
    superblock: &Superblock,
    (settings, rules): (&Settings, &ModeRules),
    lower: Geometry,
    watermark: Option<u64>,
) -> Result<(FoundLog, Doubt), CacheOpenError> {
    judge_frames(log, superblock).await.map_err(CacheOpenError::Log)?;
    let mut doubt = Doubt::new(log);
    let mut mended = 0;
    let mut found = loop {
        let found =
            scan_once(log, superblock, (settings, rules), lower, watermark, &mut doubt).await?;
        let end = found.scan.end;
        // Repair each segment at most once: otherwise the loop might never end. Also repair if the copies
        // differ: the copy that was read may lack the last segment without any sign of that.
        if (found.scan.loss.is_some() || !doubt.is_empty())
            && end.0 > mended
            && mend(log, superblock, end).await.map_err(CacheOpenError::Log)?
        {
            mended = end.0;
            continue;
        }
        break found;
    };
    // Recovery has discarded all writes after the last flush, so the epoch ends with the last segment.
    if rules.epochs_end_by_flush && found.scan.ring.segments() > 0 {
        found.epochs.seal(found.scan.ring.next() - 1);
    }
    Ok((found, doubt))
}

async fn scan_once(
    log: &Stack,
    superblock: &Superblock,
    (settings, rules): (&Settings, &ModeRules),
    lower: Geometry,
    watermark: Option<u64>,
    doubt: &mut Doubt,
) -> Result<FoundLog, CacheOpenError> {
    let pages = usize::try_from(settings.dram_bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
    let most_entries = pages + superblock.ring_end() as usize + SPARE_ENTRIES;
    let seals = key::new_seals(settings, superblock);
    let mut table = SlotTable::new(pages);
    let mut epochs = new_epochs((settings, rules), superblock, lower);
    doubt.restart();
    let take = |start, header: &SegmentHeader| {
        doubt.note(start, header);
        if !rules.epochs_end_by_flush {
            epochs.make_room(header.number, header.slots());
        }
        apply(&mut table, &mut epochs, start, header);
        if let Some(seals) = &seals {
            seals.note(start, header);
        }
        if table.len() + epochs.kept() > most_entries {
            epochs.join_all(header.number);
        }
    };
    let scan = scan(log, superblock, watermark, take).await.map_err(CacheOpenError::Log)?;
    Ok(FoundLog { scan, table, epochs, seals })
}

/// Returns an empty list of epochs. Each may be as large as the lower volume accepts at once.
pub(super) fn new_epochs(
    (settings, rules): (&Settings, &ModeRules),
    superblock: &Superblock,
    lower: Geometry,
) -> Epochs {
    let end = superblock.tail - 1;
    if rules.epochs_end_by_flush {
        return Epochs::by_flush(end);
    }
    let mut epochs = Epochs::new(end);
    if settings.order == DestageOrder::Strict && rules.uses_log {
        let slots = lower.epoch_blocks / (SLOT_BYTES as u64 / u64::from(lower.block_size));
        epochs.set_limit(limit(superblock.ring_end(), slots, 0));
    }
    epochs
}

/// Enters the records of one log segment into the slot table.
fn apply(table: &mut SlotTable, epochs: &mut Epochs, start: u32, header: &SegmentHeader) {
    let mut block = start;
    for record in &header.records {
        match record.kind {
            LogRecordKind::Data | LogRecordKind::Zero => {
                let data = record.kind == LogRecordKind::Data;
                block += u32::from(data);
                let place = LogAddress {
                    segment: header.number,
                    block: if data { block } else { start },
                    checksum: record.checksum,
                    mask: record.mask,
                    kind: record.kind,
                };
                for slot in record.slot..record.slot + u64::from(record.count) {
                    let index = table.find_or_insert(slot);
                    epochs.supersede(table, index, place);
                    let entry = table.entry_mut(index);
                    entry.version = record.serial;
                    entry.zero = !data;
                }
            }
            LogRecordKind::Dropped => {
                let slots = record.slot..record.slot + u64::from(record.count);
                if u64::from(record.count) <= u64::from(table.indices()) {
                    slots.filter_map(|slot| table.find(slot)).collect::<Vec<_>>()
                } else {
                    (0..table.indices())
                        .filter(|&i| table.is_used(i) && slots.contains(&table.entry(i).slot))
                        .collect()
                }
                .into_iter()
                .for_each(|index| {
                    table.clear_place(index);
                    table.remove_if_empty(index);
                });
            }
        }
    }
}

/// Makes the ring one zone again if that is possible by now. A resize, also an abandoned one, may have left
/// several zones.
pub(super) fn straighten(ring: &mut SegmentRing, superblock: &mut Superblock) {
    if superblock.layouts.is_empty() {
        return;
    }
    if ring.layouts().count() < MOST_LAYOUTS
        && let Some(layout) = ring.straight(superblock.ring_end())
        && layout.zones != ring.same().zones
    {
        ring.set_layout(layout);
    }
    superblock.keep_layouts(ring.layouts().cloned());
}

/// Number of entries of the table in addition to those with a page or a place of their own: runs of zeros, and fetches
/// in progress. They take some 5 MiB.
pub(super) const SPARE_ENTRIES: usize = 65536;
