//! Opening a cache: from what is on the log disk and in the NVRAM to a running state.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{Confirmed, Geometry, Holding, Mirror, Stack};

use crate::{
    alone::PairWitness,
    checksum::crc32c,
    confirmed::Confirming,
    core::{
        CacheCore, CacheLimits, CacheLog, CacheSignals, LowerVolume, SCRATCH_PAGES,
        SegmentIdentity, write_copies,
    },
    dram::SlotPagePool,
    epoch::{Epochs, limit},
    frames::LogIndexFrames,
    heard::Heard,
    inspect::{check_size, no_superblock, pool, write_new},
    log::{
        MAX_SEALED_SLOTS,
        doubt::{Doubt, judge_frames},
        layout::MOST_LAYOUTS,
        members::MemberRecord,
        recovery::{FoundIndex, NoSuperblock, Scan, mend, scan, superblock},
        ring::SegmentRing,
        seal::{LogKey, Salt, draw_salt},
        segment::{LogRecordKind, SegmentHeader},
        superblock::{FIRST_BLOCK, LogVolumeIdentity, Superblock, most_segment_slots},
    },
    mutant::Mutation,
    nvram::{HeldNvramSlot, NvramBuffer, NvramContents, StableMemory, owner},
    older, ownership,
    random::random,
    reach::{DirtyFlags, JoinedMembers, MemberExtents, place_of},
    refusal::{CacheOpenError, KeyRefusal},
    seals::Seals,
    settings::{DestageOrder, LogErrorPolicy, Settings, WriteMode},
    slot::{Came, LogAddress, NONE, SLOT_BYTES, SlotTable},
    state::CacheState,
    statistics::{AllTimes, Counters},
    tier::MOST_BUFFERED,
    witness::number,
};

/// What a cache is made of.
pub struct Parts {
    /// The volume that is cached.
    pub lower: Stack,
    /// The log disk: blocks of 4096 bytes, used by nothing else.
    pub log: Stack,
    /// The NVRAM, if there is one; immediate report needs it, and it makes the loss of the last
    /// segment known.
    pub nvram: Option<Box<dyn StableMemory>>,
}

/// Checks the NVRAM against its log as an opening with these settings would. `log` is `None` if the log does not
/// exist yet. Changes nothing.
///
/// # Errors
/// See [`CacheOpenError`].
pub async fn check_nvram(
    settings: &Settings,
    log: Option<&Stack>,
    nvram: Option<Box<dyn StableMemory>>,
) -> Result<(), CacheOpenError> {
    let Some(log) = log else { return check_new(nvram.as_deref(), settings) };
    let superblock = match superblock(log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => return check_new(nvram.as_deref(), settings),
        Err(error) => return Err(no_superblock(error)),
    };
    check_size(log, &superblock)?;
    let is_void = older::is_nvram_void(settings, &superblock);
    // The salt is used only by writes, and this check makes none.
    let sealing = settings.log_key.clone().map(|key| (key, Salt::default()));
    let wrong_key = wrong_key(settings, &superblock);
    let opens = (sealing, wrong_key.is_none());
    let nvram = look_at_nvram(nvram, &superblock, settings, opens, is_void)?;
    check_held(&nvram.held, &superblock, settings)?;
    if let Some(refusal) = wrong_key.filter(|_| !nvram.held.is_empty()) {
        return Err(CacheOpenError::Key(refusal));
    }
    let found = scan(log, &superblock, nvram.watermark, |_, _| {}).await;
    let found = found.map_err(CacheOpenError::Log)?;
    if settings.accept_loss {
        return Ok(());
    }
    if let Some(loss) = found.loss {
        return Err(CacheOpenError::Missing(loss));
    }
    nvram.check_noted(&superblock, &found)
}

/// Opens a cache, formatting a blank log.
pub(crate) async fn open(
    settings: Settings,
    parts: Parts,
    identity: &LogVolumeIdentity,
    pair: Option<Arc<Mirror>>,
    joining: Option<JoinedMembers>,
) -> Result<Arc<CacheCore>, CacheOpenError> {
    settings.validate().map_err(CacheOpenError::Settings)?;
    let Parts { lower, log, nvram } = parts;
    if let Some(mirror) = &pair {
        // Before anything else: from here on, whenever it goes on alone, that can be told.
        mirror.set_number(number(&settings.owner));
    }
    let lower_geometry = lower.geometry();
    check_geometry(identity, lower_geometry)?;
    let mut superblock = match superblock(&log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => {
            check_new(nvram.as_deref(), &settings)?;
            write_new(&log, identity, &settings).await?
        }
        Err(error) => return Err(no_superblock(error)),
    };
    check_size(&log, &superblock)?;
    check_identity(&superblock.identity, identity)?;
    check_geometry(&superblock.identity, lower_geometry)?;
    let salt = settings.log_key.is_some().then(draw_salt).transpose();
    let salt = salt.map_err(|error| CacheOpenError::Settings(error.into()))?;
    let wrong_key = wrong_key(&settings, &superblock);
    // With a wrong key what is in the NVRAM is not opened; whether it counts is all that matters.
    let sealing = settings.log_key.clone().zip(salt);
    let confirmed = older::recall(&settings, &superblock)?;
    let is_void = older::is_nvram_void(&settings, &superblock);
    let opens = (sealing, wrong_key.is_none());
    let mut nvram = look_at_nvram(nvram, &superblock, &settings, opens, is_void)?;
    check_held(&nvram.held, &superblock, &settings)?;
    if let Some(refusal) = wrong_key.filter(|_| !nvram.held.is_empty()) {
        return Err(CacheOpenError::Key(refusal));
    }

    let pages = usize::try_from(settings.dram_bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
    let by_flush = settings.report == WriteMode::AtFlush;
    let mut mended = 0;
    judge_frames(&log, &superblock).await.map_err(CacheOpenError::Log)?;
    let mut doubt = Doubt::new(&log);
    let (mut found, mut table, mut epochs, seals) = loop {
        let seals = new_seals(&settings, &superblock);
        let mut table = SlotTable::new(pages);
        let mut epochs = epochs(&settings, &superblock, lower_geometry);
        doubt.restart();
        let apply = |start, header: &SegmentHeader| {
            doubt.note(start, header);
            if !by_flush {
                epochs.make_room(header.number, header.slots());
            }
            apply(&mut table, &mut epochs, start, header);
            if let Some(seals) = &seals {
                seals.note(start, header);
            }
            let limit = pages + superblock.ring_end() as usize + SPARE_ENTRIES;
            if table.len() + epochs.kept() > limit {
                epochs.join_all(header.number);
            }
        };
        let found =
            scan(&log, &superblock, nvram.watermark, apply).await.map_err(CacheOpenError::Log)?;
        // Once for each segment, or this might never end. The last one may be missing without
        // a trace, in the copy that is read alone.
        if (found.loss.is_some() || !doubt.is_empty())
            && found.end.0 > mended
            && mend(&log, &superblock, found.end).await.map_err(CacheOpenError::Log)?
        {
            mended = found.end.0;
            continue;
        }
        break (found, table, epochs, seals);
    };
    if let Some(refusal) = wrong_key.filter(|_| table.dirty() > 0 || found.loss.is_some()) {
        return Err(CacheOpenError::Key(refusal));
    }
    if let Some(loss) = found.loss.take() {
        if !settings.accept_loss {
            return Err(CacheOpenError::Missing(loss));
        }
        tracing::warn!(?loss, "opening the log although acknowledged data is missing");
    }
    let newest = nvram.held.iter().map(|held| held.serial).fold(found.serial, u64::max);
    if !settings.accept_loss {
        nvram.check_noted(&superblock, &found)?;
        if let Some(confirmed) = confirmed {
            older::check_confirmed(&settings, confirmed, (&superblock, &found), newest)?;
        }
    }
    if is_void {
        let slots = nvram.buffer.as_ref().map_or(0, NvramBuffer::slots);
        older::tell_of_void_nvram(&settings, &superblock, &found, slots);
    }
    let dirty_flags = match &joining {
        Some(joining) => several(joining, &mut superblock, &mut table, &mut nvram)?,
        None => DirtyFlags::of_one(),
    };
    if by_flush && found.ring.segments() > 0 {
        epochs.seal(found.ring.next() - 1);
    }
    doubt.settle(&log, &superblock).await.map_err(CacheOpenError::Log)?;
    // What this found may not be stable, if only the process had ended: what is built on it is.
    log.flush().await.map_err(CacheOpenError::Log)?;
    // A new generation before anything else is written: from here on, no segment that this scan
    // did not find can ever be taken for data.
    superblock.sequence += 1;
    superblock.generation = superblock.generation.max(superblock.granted) + 1;
    superblock.generation_first = found.ring.next();
    if wrong_key.is_some() {
        change_key(&mut superblock, &mut found, &settings);
        // No slot is in use, as was checked above, but the slots may still contain older data in clear text.
        nvram.change.clears_data = true;
        epochs = self::epochs(&settings, &superblock, lower_geometry);
    }
    superblock.index_first = superblock.index_tail + found.index.frames.len() as u64;
    straighten(&mut found.ring, &mut superblock);
    superblock.committed = found.ring.next() - 1;
    superblock.serial = newest;
    superblock.complete = found.complete;
    // Until the claim is granted, keep the NVRAM, and what the superblock says about it, as they were: this log may be
    // an older copy, and the NVRAM may hold acknowledged writes of the newest log.
    superblock.immediate &= !superblock.clean;
    superblock.noted &= nvram.noted.is_some_and(|noted| noted >= superblock.committed);
    superblock.clean = false;
    // The volume may have grown: note that before a segment can hold a slot of the new part.
    superblock.identity.geometry.blocks = lower_geometry.blocks;
    let was_stable = superblock.boot.is_none();
    let alone = pair.as_ref().and_then(|mirror| mirror.alone());
    if let Some(alone) = alone {
        // This half went on without the partner, perhaps without a note of that here: one generation was for that.
        superblock.note_number(alone.number);
        superblock.generation += 1;
    }
    superblock.note_opening(random(&identity.name));
    let scratch = pool(SCRATCH_PAGES + if seals.is_some() { SEALED_PAGES } else { 0 })?;
    write_copies(&log, &scratch, &superblock).await.map_err(CacheOpenError::Log)?;
    if settings.log_buffer.is_some() {
        // The lower volume notes this opening next. It would refuse a later opening whose superblock lacks this one.
        log.flush().await.map_err(CacheOpenError::Log)?;
    }
    // Before anything is sent down, or fetched and kept.
    let dirty = dirty_flags.first();
    if joining.is_none() {
        dirty.set(table.dirty() > 0 || !nvram.held.is_empty());
    }
    let kept = nvram.held.last().map_or(0, |held| held.serial);
    let claimed = Confirmed::new(match was_stable {
        true => found.complete.max(kept),
        false => found.complete,
    });
    let joined = joining.as_ref().map(|joining| &*joining.joined);
    let asking = (&lower, joined, pair.is_some());
    let told = (dirty.clone(), claimed.clone());
    ownership::claim(&settings, asking, &log, &scratch, &mut superblock, told).await?;
    if alone.is_some() && lower.extensions().holding() != Holding::Held {
        return Err(CacheOpenError::Unwitnessed);
    }
    let boot = older::boot(&settings);
    if nvram.take_into_use(&mut superblock, &settings, boot)? {
        superblock.sequence += 1;
        write_copies(&log, &scratch, &superblock).await.map_err(CacheOpenError::Log)?;
    }

    let counters = Counters::default();
    counters.recovered_segments.add(found.ring.segments() as u64);
    counters.unflushed_segments.add(found.unflushed);
    counters.recovered_slots.add(table.dirty() as u64);
    let shared = assemble(
        settings,
        (lower, log, joining),
        (found.ring, table, epochs, nvram.buffer),
        found.index,
        (superblock, newest, claimed),
        (scratch, counters),
        (seals.zip(salt), pair.map(|mirror| PairWitness::new(mirror, alone))),
    )?;
    {
        let mut state = shared.state.lock();
        state.destage.dirty_flags = dirty_flags;
        (state.commits.logged, state.commits.kept) = (found.complete, kept);
        state.commits.log_is_buffered = shared.settings.log_buffer.is_some();
    }
    shared.confirming.begin(found.complete, kept);
    shared.start_index();
    recover_nvram(&shared, nvram.held, found.complete)?;
    shared.settle().await.map_err(CacheOpenError::Log)?;
    let immediate = shared.settings.report.is_immediate();
    let stale = {
        let superblock = shared.log.superblock.lock().await;
        (superblock.immediate, superblock.boot) != (immediate, boot)
    };
    if stale {
        let forget = |superblock: &mut Superblock| {
            (superblock.immediate, superblock.boot) = (immediate, boot);
        };
        shared.write_superblock(forget).await.map_err(CacheOpenError::Log)?;
    }
    Ok(shared)
}

fn assemble(
    settings: Settings,
    (lower, log, joining): (Stack, Stack, Option<JoinedMembers>),
    (ring, table, epochs, mut nvram): (SegmentRing, SlotTable, Epochs, Option<NvramBuffer>),
    index: FoundIndex,
    (superblock, serial, claimed): (Superblock, u64, Confirmed),
    (scratch, counters): (Arc<SlotPagePool>, Counters),
    (seals, pair): (Option<(Seals, Salt)>, Option<PairWitness>),
) -> Result<Arc<CacheCore>, CacheOpenError> {
    let opened = Geometry { blocks: superblock.identity.geometry.blocks, ..lower.geometry() };
    let pages = u32::try_from(settings.dram_bytes / SLOT_BYTES as u64)
        .map_err(|_| CacheOpenError::Settings("dram_bytes is too large".into()))?;
    let mut pending_limit = (settings.nvram_bytes / SLOT_BYTES as u64) as usize;
    if let Some(nvram) = &mut nvram {
        // Twice: a higher number that no longer holds may be in either cell.
        nvram.set_watermark(superblock.committed);
        nvram.set_watermark(superblock.committed);
        if settings.report.is_immediate() {
            // One to spare: the newer version of a slot comes before the older one goes.
            pending_limit = pending_limit.min(nvram.slots() as usize - 1);
        }
    }
    let (seals, salt) = seals.unzip();
    let Superblock { instance, generation, .. } = superblock;
    let noted = settings.report.is_immediate();
    let identity = SegmentIdentity { instance, generation, salt, noted };
    let mut epoch_slots = 0;
    if settings.report == WriteMode::AtFlush {
        epoch_slots = slots_between_flushes(&ring);
        if epoch_slots < LEAST_EPOCH_SLOTS {
            let message = "it is too small to hold all that is between two flushes";
            return Err(CacheOpenError::Size(message.into()));
        }
    }
    let mut state = CacheState::new((table, epochs), ring, nvram, serial);
    state.destage.dirty_since = (state.table.dirty() > 0).then(Instant::now);
    let times = Arc::<AllTimes>::default();
    let extents = joining
        .as_ref()
        .map_or_else(|| MemberExtents::of_one(opened.blocks), MemberExtents::of_several);
    // In strict order everything came to the lower volume through the log.
    let is_stable = settings.order == DestageOrder::Strict
        && !settings.report.is_past()
        && settings.on_log_error == LogErrorPolicy::StopWrites;
    let index = LogIndexFrames::new(&superblock, settings.index_segments, index);
    Ok(Arc::new(CacheCore {
        lower: LowerVolume::new(
            Heard::new(lower, Arc::clone(&times)),
            joining.map(|joining| joining.joined),
            (opened, extents),
            is_stable,
        ),
        log: CacheLog::new(log, superblock, index, seals, identity, scratch),
        pair,
        pages: pool(pages + MOST_BUFFERED)?,
        limits: CacheLimits {
            pending_slots: pending_limit,
            epoch_slots,
            entries_beside_log: pages as usize + SPARE_ENTRIES,
        },
        state: Mutex::new(state),
        signals: CacheSignals::default(),
        counters,
        times,
        confirming: Confirming::new(
            claimed,
            settings.confirmed_in.clone(),
            settings.boot.filter(|_| !settings.keeps_over_power_loss()),
            settings.keeps_over_power_loss(),
        ),
        mutation: Mutation::default(),
        settings,
    }))
}

/// No epochs yet, of the size that goes down at once.
fn epochs(settings: &Settings, superblock: &Superblock, lower: Geometry) -> Epochs {
    let end = superblock.tail - 1;
    if settings.report == WriteMode::AtFlush {
        return Epochs::by_flush(end);
    }
    let mut epochs = Epochs::new(end);
    if settings.order == DestageOrder::Strict
        && !matches!(settings.report, WriteMode::Through | WriteMode::Around)
    {
        let slots = lower.epoch_blocks / (SLOT_BYTES as u64 / u64::from(lower.block_size));
        epochs.set_limit(limit(superblock.ring_end(), slots, 0));
    }
    epochs
}

/// How many slots an epoch may have: each might come alone, with a header of its own, and there is
/// room beside them for what is kept and for what the ring loses at its end.
fn slots_between_flushes(ring: &SegmentRing) -> u64 {
    let lost = 2 * (ring.longest_data() + 1) + ring.reserve() + 4;
    u64::from(ring.blocks().saturating_sub(lost) / 2)
}

/// Takes one segment of the log into the table.
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

/// Notes which volumes the log is for from now on, and which of them it has dirty data of. None may be of
/// one that is not there, unless that was given up.
fn several(
    joining: &JoinedMembers,
    superblock: &mut Superblock,
    table: &mut SlotTable,
    nvram: &mut FoundNvram,
) -> Result<DirtyFlags, CacheOpenError> {
    let given_up = forget_given_up(&superblock.members, table, nvram);
    let mut dirty: Vec<u64> = nvram.held.iter().map(|held| held.slot).collect();
    table.rewind();
    while let Some(index) = table.next_dirty() {
        dirty.push(table.entry(index).slot);
    }
    dirty.sort_unstable();
    dirty.dedup();
    if let Some((name, slots)) = joining.absent(&superblock.members, &dirty) {
        return Err(CacheOpenError::Absent { name, slots });
    }
    if let Some((name, slots)) = joining.beyond(&dirty) {
        return Err(CacheOpenError::Beyond { name, slots });
    }
    let records = &joining.records;
    let mut kept = Vec::new();
    for (record, is_in_log) in given_up {
        let is_needed = records.iter().any(|other| other.place == record.place);
        let is_back = records.iter().any(|other| other.name == record.name);
        match is_in_log {
            // What is new there would be taken for what is void.
            true if is_needed => return Err(no_place(&record)),
            true => kept.push(record),
            false if is_back => {}
            false if is_needed => tracing::warn!(
                volume = %record.name,
                "its place is needed: from now on the log does not know any more that it was given up"
            ),
            false => kept.push(record),
        }
    }
    superblock.members = records.iter().cloned().chain(kept).collect();
    let flags = DirtyFlags::of_several(&joining.joined);
    dirty.iter().for_each(|slot| flags.set(*slot));
    Ok(flags)
}

/// Takes what the log and the NVRAM have of volumes that were given up for nothing. Gives these, each with
/// whether there was anything. The superblock has said of them that they are since before this opening.
fn forget_given_up(
    members: &[MemberRecord],
    table: &mut SlotTable,
    nvram: &mut FoundNvram,
) -> Vec<(MemberRecord, bool)> {
    let given_up = members.iter().filter(|member| !member.counts()).cloned();
    let mut given_up: Vec<_> = given_up.map(|member| (member, false)).collect();
    let mut is_void = |slot: u64| {
        let its = given_up.iter_mut().find(|(member, _)| member.place == place_of(slot));
        its.map(|(_, is_in_log)| *is_in_log = true).is_some()
    };
    let mut void = Vec::new();
    table.rewind();
    while let Some(index) = table.next_dirty() {
        if is_void(table.entry(index).slot) {
            void.push(index);
        }
    }
    for index in void {
        table.clear_place(index);
        table.entry_mut(index).zero = false;
        table.remove_if_empty(index);
    }
    let (void, held) = nvram.held.drain(..).partition(|held| is_void(held.slot));
    nvram.held = held;
    nvram.change.released.extend(void.iter().map(|held: &HeldNvramSlot| held.index));
    given_up
}

fn no_place(record: &MemberRecord) -> CacheOpenError {
    CacheOpenError::Settings(format!(
        "they are too many while the log has something in it of volume \"{}\", which was given up",
        record.name
    ))
}

/// How the key that was given is not that of the log, if it is not.
fn wrong_key(settings: &Settings, superblock: &Superblock) -> Option<KeyRefusal> {
    match (&settings.log_key, superblock.key) {
        (None, None) => None,
        (None, Some(_)) => Some(KeyRefusal::Missing),
        (Some(_), None) => Some(KeyRefusal::Needless),
        (Some(key), Some(check)) => {
            (key.check(&superblock.instance.0) != check).then_some(KeyRefusal::Other)
        }
    }
}

/// What seals and opens the blocks of a log with the key of the settings.
fn new_seals(settings: &Settings, superblock: &Superblock) -> Option<Seals> {
    let blocks = superblock.ring_end() as usize;
    settings.log_key.clone().map(|key| Seals::new(key, superblock.instance, blocks))
}

/// Prepares a log without data for the key of the settings, which the superblock gets when the NVRAM is taken into
/// use. The next segment is the log's first one: recovery never reads older segments, of another shape or key.
fn change_key(superblock: &mut Superblock, found: &mut Scan, settings: &Settings) {
    let key = settings.log_key.as_ref();
    superblock.segment_slots = superblock.segment_slots.min(most_segment_slots(key.is_some()));
    superblock.index_tail += found.index.frames.len() as u64;
    found.index = FoundIndex::default();
    let (next, block) = (found.ring.next(), found.ring.position());
    (superblock.tail, superblock.tail_block) = (next, block);
    superblock.layouts.clear();
    let longest = superblock.segment_slots + 1;
    found.ring = SegmentRing::new(FIRST_BLOCK, superblock.ring_end(), longest, next, block);
    tracing::info!(encrypted = key.is_some(), "the log is empty, and gets another key");
}

/// Makes the ring one zone again, if it can be by now: what a resize has left, or one that was given up.
fn straighten(ring: &mut SegmentRing, superblock: &mut Superblock) {
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

/// Fails if the NVRAM is in use by a log: that log is missing, and formatting the blank one
/// would make the loss look like a fresh start.
fn check_new(nvram: Option<&dyn StableMemory>, settings: &Settings) -> Result<(), CacheOpenError> {
    match nvram.and_then(owner) {
        Some(found) if !settings.accept_loss => Err(CacheOpenError::LogMissing { found }),
        _ => Ok(()),
    }
}

/// An NVRAM that was found at an opening, and its contents.
struct FoundNvram {
    buffer: Option<NvramBuffer>,
    /// The mark by which the log recognizes its NVRAM; 0 if there is no NVRAM.
    mark: u32,
    /// Acknowledged writes, in serial order.
    held: Vec<HeldNvramSlot>,
    /// The newest segment that the NVRAM has noted as stable.
    watermark: Option<u64>,
    /// The newest segment that the NVRAM has noted as stable or as begun.
    noted: Option<u64>,
    /// The changes to make once no check can refuse the opening any more.
    change: NvramChange,
}

/// The changes to make to an NVRAM before it is used.
#[derive(Default)]
struct NvramChange {
    /// The NVRAM is new to this log.
    formats: bool,
    /// Slots whose writes the log does not need.
    released: Vec<u32>,
    clears_data: bool,
}

impl FoundNvram {
    /// Refuses an NVRAM that is an older copy.
    fn check_noted(&self, superblock: &Superblock, found: &Scan) -> Result<(), CacheOpenError> {
        match self.noted {
            Some(noted) => older::check_nvram(superblock, found, noted),
            None => Ok(()),
        }
    }

    /// Makes the changes, and sets in the superblock what the log relies on from now on. Returns true if
    /// the superblock has changed.
    fn take_into_use(
        &mut self,
        superblock: &mut Superblock,
        settings: &Settings,
        boot: Option<[u8; 16]>,
    ) -> Result<bool, CacheOpenError> {
        let is_immediate = settings.report.is_immediate();
        let mut noted = false;
        if let Some(buffer) = &mut self.buffer {
            if self.change.formats {
                buffer.format(superblock.instance, self.mark);
            } else {
                buffer.mend();
                self.change.released.iter().for_each(|index| buffer.release(*index));
                if self.change.clears_data {
                    buffer.clear_data();
                }
            }
            check_readable(buffer)?;
            // Every segment up to this one is stable, so recovery after a crash may rely on the number. Note
            // it twice: either cell may still hold a higher number that is no longer valid.
            buffer.note_begun(superblock.committed);
            buffer.note_begun(superblock.committed);
            noted = is_immediate && buffer.is_sound();
        }
        // Do not bind writes that were acknowledged as surviving a power failure to this boot: a start after a
        // reboot would give them up.
        let keeps_boot = !self.held.is_empty() && superblock.boot.is_none();
        let key = settings.log_key.as_ref().map(|key| key.check(&superblock.instance.0));
        let next = Superblock {
            // The key is set only now: the NVRAM holds no more data in clear text or under another key.
            key,
            immediate: is_immediate || !self.held.is_empty(),
            boot: if keeps_boot { None } else { boot },
            noted,
            // From now on no other NVRAM is accepted as the holder of this log's writes.
            nvram: self.mark,
            ..superblock.clone()
        };
        let is_new = next != *superblock;
        *superblock = next;
        Ok(is_new)
    }
}

/// Reads the NVRAM, and decides how to use it. Changes nothing, since later checks may still refuse the
/// opening.
fn look_at_nvram(
    memory: Option<Box<dyn StableMemory>>,
    superblock: &Superblock,
    settings: &Settings,
    (sealing, fits): (Option<(LogKey, Salt)>, bool),
    is_void: bool,
) -> Result<FoundNvram, CacheOpenError> {
    // Only in this case can acknowledged data be in the NVRAM alone.
    let needed = superblock.immediate && !superblock.clean && !settings.accept_loss && !is_void;
    let missing = |what: &str| Err(CacheOpenError::NvramMissing(what.into()));
    let mut change = NvramChange::default();
    let Some(memory) = memory else {
        if settings.report.is_immediate() {
            return Err(CacheOpenError::Settings("immediate report needs an NVRAM".into()));
        }
        let none = FoundNvram {
            buffer: None,
            mark: 0,
            held: Vec::new(),
            watermark: None,
            noted: None,
            change,
        };
        return if needed { missing("is not configured") } else { Ok(none) };
    };
    let instance = superblock.instance;
    let (buffer, mut contents) = NvramBuffer::open(memory, instance, sealing);
    check_readable(&buffer)?;
    let may_be_ours = matches!(
        contents,
        NvramContents::Ours { .. } | NvramContents::DamagedSlots(_) | NvramContents::Damaged(_)
    );
    if is_void && may_be_ours {
        contents = NvramContents::Blank;
    }
    if fits
        && let NvramContents::Ours { held, .. } = &contents
        && let Some(slot) = not_opened(&buffer, held)
    {
        contents = NvramContents::DamagedSlots(format!("its key does not open slot {slot}"));
    }
    let (mark, held, watermark, noted) = match contents {
        NvramContents::Ours { mark, .. } if mark != superblock.nvram && needed => {
            return missing("was given up when the log was opened without it");
        }
        NvramContents::Ours { mark, held, watermark, begun }
            if mark == superblock.nvram && superblock.immediate && !superblock.clean =>
        {
            (mark, held, Some(watermark), Some(watermark.max(begun)))
        }
        // The log has every acknowledged write, so the NVRAM's slots can be released.
        NvramContents::Ours { mark, held, watermark, .. } if mark == superblock.nvram => {
            change.released = held.iter().map(|held| held.index).collect();
            (mark, Vec::new(), Some(watermark), None)
        }
        NvramContents::Blank if needed => return missing("is blank"),
        NvramContents::DamagedSlots(how) if needed => {
            return missing(&format!("is damaged ({how})"));
        }
        NvramContents::Damaged(how) if !settings.accept_loss => {
            return Err(CacheOpenError::NvramMissing(format!("is damaged ({how})")));
        }
        NvramContents::Other { instance: found, held } if held > 0 && !settings.accept_loss => {
            return Err(CacheOpenError::OtherNvram { found, expected: instance, held });
        }
        NvramContents::Other { .. } if needed => return missing("is of another log"),
        NvramContents::Version(found) => {
            let supported = crate::log::VERSION;
            return Err(CacheOpenError::Version { what: "NVRAM", found, supported });
        }
        // Format the NVRAM. Slots of this log, damaged or whole, are not needed: the log has every acknowledged write.
        NvramContents::Ours { .. }
        | NvramContents::Blank
        | NvramContents::Damaged(_)
        | NvramContents::DamagedSlots(_)
        | NvramContents::Other { .. } => {
            let [a, b, c, d, ..] = random(&superblock.identity.name);
            change.formats = true;
            (u32::from_le_bytes([a, b, c, d]).max(1), Vec::new(), None, None)
        }
    };
    check_readable(&buffer)?;
    let slots = if change.formats { buffer.most_slots() } else { buffer.slots() };
    if settings.report.is_immediate() && slots < LEAST_NVRAM_SLOTS {
        return Err(CacheOpenError::Settings(format!(
            "the NVRAM has {slots} slots, immediate report needs at least {LEAST_NVRAM_SLOTS}"
        )));
    }
    Ok(FoundNvram { buffer: Some(buffer), mark, held, watermark, noted, change })
}

/// Whether the writes that the NVRAM holds can be this volume's, and fit into memory.
fn check_held(
    held: &[HeldNvramSlot],
    superblock: &Superblock,
    settings: &Settings,
) -> Result<(), CacheOpenError> {
    let slots = superblock.identity.geometry.bytes().div_ceil(SLOT_BYTES as u64);
    let wrong = held.iter().find(|held| {
        held.slot >= slots || held.mask == 0 || !(1..u64::MAX / 2).contains(&held.serial)
    });
    if let Some(wrong) = wrong {
        let how = format!("is damaged (it holds slot {} of {slots})", wrong.slot);
        return Err(CacheOpenError::NvramMissing(how));
    }
    if held.len() as u64 > settings.dram_bytes / SLOT_BYTES as u64 {
        return Err(CacheOpenError::Settings("dram_bytes is less than the NVRAM holds".into()));
    }
    Ok(())
}

/// The first slot whose content in the NVRAM is not what was put there.
fn not_opened(buffer: &NvramBuffer, held: &[HeldNvramSlot]) -> Option<u64> {
    let mut page = [0; SLOT_BYTES];
    held.iter().find(|held| !buffer.read(**held, &mut page)).map(|held| held.slot)
}

/// Makes the writes that only the NVRAM holds the newest content of their slots, on their way to
/// the log. Those that the log has are released.
fn recover_nvram(
    shared: &Arc<CacheCore>,
    held: Vec<HeldNvramSlot>,
    complete: u64,
) -> Result<(), CacheOpenError> {
    let mut state = shared.state.lock();
    let state = &mut *state;
    for held in held {
        let nvram = state.nvram.as_mut().expect("it holds what was found in it");
        let logged = state.table.find(held.slot).map_or(0, |i| state.table.entry(i).version);
        if held.serial <= complete || held.serial <= logged {
            nvram.release(held.index);
            continue;
        }
        let mut page = shared.pages.take().expect("it was checked that they fit");
        assert!(nvram.read(held, &mut page), "it was checked that it can be opened");
        check_readable(nvram)?;
        let checksum = crc32c(&page);
        let index = state.table.find_or_insert(held.slot);
        state.table.set_page(index, page.freeze(), held.mask, Came::Wanted);
        let entry = state.table.entry_mut(index);
        entry.checksum = checksum;
        let older = std::mem::replace(&mut entry.nvram, held.index);
        if older != NONE {
            nvram.release(older);
        }
        state.queue_slot(index, held.serial);
        // Not in the log yet, so nobody may take it for that.
        state.commits.durable = state.commits.durable.min(held.serial - 1);
        shared.counters.recovered_nvram.add(1);
    }
    shared.start_commit(state);
    Ok(())
}

/// Refuses an NVRAM with a page that could not be read: such a page reads as zeros, which look like free slots.
fn check_readable(buffer: &NvramBuffer) -> Result<(), CacheOpenError> {
    buffer.error().map_or(Ok(()), |error| Err(CacheOpenError::Nvram(error.to_string())))
}

fn check_geometry(identity: &LogVolumeIdentity, geometry: Geometry) -> Result<(), CacheOpenError> {
    if identity.fits(geometry) {
        return Ok(());
    }
    Err(CacheOpenError::Geometry {
        recorded_blocks: identity.geometry.blocks,
        recorded_size: identity.geometry.block_size,
        blocks: geometry.blocks,
        size: geometry.block_size,
    })
}

fn check_identity(
    recorded: &LogVolumeIdentity,
    identity: &LogVolumeIdentity,
) -> Result<(), CacheOpenError> {
    if recorded.name != identity.name {
        return Err(CacheOpenError::OtherVolume {
            expected: identity.name.clone(),
            found: recorded.name.clone(),
        });
    }
    check_geometry(recorded, identity.geometry)
}

/// Entries of the table beside those with a page or a place of their own: runs of zeros and marks
/// of fetches. Some 5 MiB.
const SPARE_ENTRIES: usize = 65536;
/// Pages for the blocks of two segments that are sealed.
const SEALED_PAGES: u32 = 2 * MAX_SEALED_SLOTS;
/// Slots of the smallest epoch that is worth the name.
const LEAST_EPOCH_SLOTS: u64 = 8;
/// Slots of the smallest NVRAM that immediate report works with.
const LEAST_NVRAM_SLOTS: u32 = 8;
