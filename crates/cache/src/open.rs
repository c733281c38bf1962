//! Opening a cache: from what is on the log disk and in the NVRAM to a running state.

use std::{
    collections::HashSet,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use volume::{Error, Geometry, Stack};

use crate::{
    checksum::crc32c,
    dram::PagePool,
    log::{
        BLOCK_BYTES,
        recovery::{Loss, NoSuperblock, scan, superblock},
        ring::Ring,
        segment::{Header, Kind},
        superblock::{FIRST_BLOCK, Identity, InstanceId, MAX_NAME, Superblock, least_blocks},
    },
    nvram::{Buffer, Contents, Held, StableMemory},
    settings::Settings,
    slot::{NONE, Place, SLOT_BYTES, SlotTable},
    state::{SCRATCH_PAGES, SegmentIdentity, Shared, State, write_copies},
    statistics::Counters,
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

/// Why a cache could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting is out of range.
    #[error("{0}")]
    Settings(String),
    /// The log disk cannot be read or written.
    #[error("the log disk cannot be used: {0}")]
    Log(#[source] Error),
    /// The log disk holds something that is not a log.
    #[error(
        "the log disk holds something else, or both its superblocks are damaged; to use it as a \
         log, and lose what it holds, format it with force"
    )]
    NotALog,
    /// The log or the NVRAM was written by a newer Forebay.
    #[error("the {what} has format version {found}, this program knows {supported}")]
    Version {
        /// "log" or "NVRAM".
        what: &'static str,
        /// What it says.
        found: u32,
        /// What we write.
        supported: u32,
    },
    /// The log disk has too few or too many blocks, or not of 4096 bytes.
    #[error("the log disk cannot hold a log: {0}")]
    Size(String),
    /// The log disk has become smaller.
    #[error("the log has {recorded} blocks, but the log disk only {found}")]
    Truncated {
        /// Blocks of 4096 bytes when it was formatted.
        recorded: u64,
        /// Blocks of 4096 bytes now.
        found: u64,
    },
    /// The log belongs to another volume.
    #[error(
        "the log belongs to volume \"{found}\", not to \"{expected}\"; use the right log, or drain \
         it into its own volume and format it"
    )]
    OtherVolume {
        /// The volume that was to be cached.
        expected: String,
        /// The volume that the log is for.
        found: String,
    },
    /// The volume has another size than when the log was formatted.
    #[error(
        "the log was made for {recorded_blocks} blocks of {recorded_size} bytes, the volume now \
         has {blocks} of {size}; drain the log with the former size, then format it"
    )]
    Geometry {
        /// Blocks then.
        recorded_blocks: u64,
        /// Bytes in a block then.
        recorded_size: u32,
        /// Blocks now.
        blocks: u64,
        /// Bytes in a block now.
        size: u32,
    },
    /// Acknowledged data is missing in the log.
    #[error(
        "acknowledged data is missing: log segment {} (block {}) is damaged, {} segments before \
         it are whole, but {}; opening with accept_loss uses what is whole and gives up the rest",
        .0.first_missing, .0.block, .0.intact, .0.evidence
    )]
    Missing(Loss),
    /// Acknowledged data may be in an NVRAM that is not there.
    #[error(
        "the cache was not stopped cleanly and reported writes from its NVRAM, which {0}; bring \
         it back, or open with accept_loss to give up what it held"
    )]
    NvramMissing(String),
    /// The NVRAM holds acknowledged writes of another log.
    #[error(
        "the NVRAM holds {held} acknowledged writes of log {found}, this is log {expected}; use \
         the right one, or open with accept_loss to give them up"
    )]
    OtherNvram {
        /// The log it belongs to.
        found: InstanceId,
        /// The log that was opened.
        expected: InstanceId,
        /// How many writes.
        held: usize,
    },
    /// A log with dirty data was to be formatted.
    #[error(
        "log {instance} holds {slots} slots that are not in volume \"{name}\" yet; drain it, or \
         format with force to lose them"
    )]
    Dirty {
        /// The log.
        instance: InstanceId,
        /// The volume it is for.
        name: String,
        /// Slots of 4096 bytes.
        slots: u64,
    },
}

/// What is known of a log without opening it.
#[derive(Clone, Debug)]
pub struct LogInfo {
    /// The volume it is for, with the geometry it had.
    pub identity: Identity,
    /// The id that all its records carry.
    pub instance: InstanceId,
    /// How often it was opened.
    pub generation: u64,
    /// It was stopped cleanly.
    pub clean: bool,
    /// Blocks of 4096 bytes, superblocks included.
    pub log_blocks: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Live segments.
    pub segments: u64,
    /// Number of the newest.
    pub newest_segment: u64,
    /// Slots of 4096 bytes that are not in the lower volume yet.
    pub dirty_slots: u64,
    /// Acknowledged data that is missing.
    pub loss: Option<Loss>,
}

/// Makes a new log for a volume. With dirty data in it, or something that is no log, only with
/// `force`.
pub async fn format(log: &Stack, identity: &Identity, force: bool) -> Result<(), OpenError> {
    let settings = Settings::default();
    if !force {
        match inspect(log).await {
            Ok(info) if info.dirty_slots > 0 || info.loss.is_some() => {
                return Err(OpenError::Dirty {
                    instance: info.instance,
                    name: info.identity.name,
                    slots: info.dirty_slots,
                });
            }
            Ok(_) | Err(InspectError::Blank) => {}
            Err(InspectError::Open(error)) => return Err(error),
        }
    }
    write_new(log, identity, settings.segment_slots).await.map(drop)
}

/// Why a log could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// A new disk.
    #[error("the log disk is blank: it was never used")]
    Blank,
    /// Anything else.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Looks at a log without changing it.
pub async fn inspect(log: &Stack) -> Result<LogInfo, InspectError> {
    let superblock = match superblock(log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => return Err(InspectError::Blank),
        Err(error) => return Err(no_superblock(error).into()),
    };
    check_size(log, &superblock)?;
    let mut dirty = HashSet::new();
    let scan = scan(log, &superblock, None, |_, header| {
        for record in &header.records {
            let slots = record.slot..record.slot + u64::from(record.count);
            match record.kind {
                Kind::Data | Kind::Zero => dirty.extend(slots),
                Kind::Dropped if u64::from(record.count) > dirty.len() as u64 => {
                    dirty.retain(|slot| !slots.contains(slot));
                }
                Kind::Dropped => slots.for_each(|slot| {
                    dirty.remove(&slot);
                }),
            }
        }
    })
    .await
    .map_err(OpenError::Log)?;
    Ok(LogInfo {
        instance: superblock.instance,
        generation: superblock.generation,
        clean: superblock.clean,
        log_blocks: superblock.log_blocks,
        used_blocks: u64::from(scan.ring.used()),
        segments: scan.ring.segments() as u64,
        newest_segment: scan.ring.next() - 1,
        dirty_slots: dirty.len() as u64,
        loss: scan.loss,
        identity: superblock.identity,
    })
}

/// Opens a cache, formatting a blank log.
pub(crate) async fn open(
    settings: Settings,
    parts: Parts,
    identity: &Identity,
) -> Result<Arc<Shared>, OpenError> {
    settings.validate().map_err(OpenError::Settings)?;
    let Parts { lower, log, nvram } = parts;
    check_geometry(identity, lower.geometry())?;
    let mut superblock = match superblock(&log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => write_new(&log, identity, settings.segment_slots).await?,
        Err(error) => return Err(no_superblock(error)),
    };
    check_size(&log, &superblock)?;
    check_identity(&superblock.identity, identity)?;
    let (nvram, held, watermark) = open_nvram(nvram, &superblock, &settings)?;

    let mut table = SlotTable::new();
    let found =
        scan(&log, &superblock, watermark, |start, header| apply(&mut table, start, header))
            .await
            .map_err(OpenError::Log)?;
    if let Some(loss) = found.loss {
        if !settings.accept_loss {
            return Err(OpenError::Missing(loss));
        }
        tracing::warn!(?loss, "opening the log although acknowledged data is missing");
    }
    // A new generation before anything else is written: from here on, no segment that this scan
    // did not find can ever be taken for data.
    let newest = held.iter().map(|held| held.serial).fold(found.serial, u64::max);
    superblock.sequence += 1;
    superblock.generation += 1;
    superblock.generation_first = found.ring.next();
    superblock.committed = found.ring.next() - 1;
    superblock.serial = newest;
    superblock.clean = false;
    superblock.immediate = settings.report.is_immediate() || !held.is_empty();
    let scratch = pool(SCRATCH_PAGES)?;
    write_copies(&log, &scratch, &superblock).await.map_err(OpenError::Log)?;

    let counters = Counters::default();
    counters.recovered_segments.add(found.ring.segments() as u64);
    counters.recovered_slots.add(table.dirty() as u64);
    let shared = assemble(
        settings,
        (lower, log),
        (found.ring, table, nvram),
        (superblock, newest),
        (scratch, counters),
    )?;
    recover_nvram(&shared, held, found.complete)?;
    shared.start_commit();
    shared.settle().await.map_err(OpenError::Log)?;
    let immediate = shared.settings.report.is_immediate();
    let stale = shared.superblock.lock().await.immediate != immediate;
    if stale {
        let forget = |superblock: &mut Superblock| superblock.immediate = immediate;
        shared.write_superblock(forget).await.map_err(OpenError::Log)?;
    }
    Ok(shared)
}

fn assemble(
    settings: Settings,
    (lower, log): (Stack, Stack),
    (ring, table, mut nvram): (Ring, SlotTable, Option<Buffer>),
    (superblock, serial): (Superblock, u64),
    (scratch, counters): (Arc<PagePool>, Counters),
) -> Result<Arc<Shared>, OpenError> {
    let geometry = lower.geometry();
    let pages = u32::try_from(settings.dram_bytes / SLOT_BYTES as u64)
        .map_err(|_| OpenError::Settings("dram_bytes is too large".into()))?;
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
    let entries_limit = pages as usize + ring.blocks() as usize + SPARE_ENTRIES;
    let reserve = (ring.blocks() / 16).clamp(ring.longest_data() + 1, MOST_RESERVED);
    let identity =
        SegmentIdentity { instance: superblock.instance, generation: superblock.generation };
    let mut state = State::new(table, ring, nvram, serial);
    state.dirty_since = (state.table.dirty() > 0).then(Instant::now);
    Ok(Arc::new(Shared {
        lower,
        log,
        geometry,
        slots: geometry.bytes().div_ceil(SLOT_BYTES as u64),
        pool: pool(pages)?,
        scratch,
        pending_limit,
        identity,
        entries_limit,
        reserve,
        state: Mutex::new(state),
        superblock: tokio::sync::Mutex::new(superblock),
        changed: Notify::new(),
        wake_destage: Notify::new(),
        counters,
        requests: AtomicU64::new(0),
        host_fetches: AtomicUsize::new(0),
        settings,
    }))
}

/// Takes one segment of the log into the table.
fn apply(table: &mut SlotTable, start: u32, header: &Header) {
    let mut block = start;
    for record in &header.records {
        match record.kind {
            Kind::Data | Kind::Zero => {
                let data = record.kind == Kind::Data;
                block += u32::from(data);
                let place = Place {
                    segment: header.number,
                    block: if data { block } else { start },
                    checksum: record.checksum,
                    mask: record.mask,
                    kind: record.kind,
                };
                for slot in record.slot..record.slot + u64::from(record.count) {
                    let index = table.find_or_insert(slot);
                    table.set_place(index, place);
                    let entry = table.entry_mut(index);
                    entry.version = record.serial;
                    entry.zero = !data;
                }
            }
            Kind::Dropped => {
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

/// Looks into the NVRAM: the buffer, the writes that it holds, the newest segment it has seen.
fn open_nvram(
    memory: Option<Box<dyn StableMemory>>,
    superblock: &Superblock,
    settings: &Settings,
) -> Result<(Option<Buffer>, Vec<Held>, Option<u64>), OpenError> {
    // Only then can acknowledged data be in the NVRAM alone.
    let needed = superblock.immediate && !superblock.clean && !settings.accept_loss;
    let missing = |what: &str| Err(OpenError::NvramMissing(what.into()));
    let Some(memory) = memory else {
        if settings.report.is_immediate() {
            return Err(OpenError::Settings("immediate report needs an NVRAM".into()));
        }
        return if needed { missing("is not configured") } else { Ok((None, Vec::new(), None)) };
    };
    let instance = superblock.instance;
    let (mut buffer, contents) = Buffer::open(memory, instance);
    let (held, watermark) = match contents {
        Contents::Ours { held, watermark } => (held, Some(watermark)),
        Contents::Blank if needed => return missing("is blank"),
        Contents::Damaged(how) if !settings.accept_loss => {
            return Err(OpenError::NvramMissing(format!("is damaged ({how})")));
        }
        Contents::Other { instance: found, held } if held > 0 && !settings.accept_loss => {
            return Err(OpenError::OtherNvram { found, expected: instance, held });
        }
        Contents::Other { .. } if needed => return missing("is of another log"),
        Contents::Version(found) => {
            let supported = crate::log::VERSION;
            return Err(OpenError::Version { what: "NVRAM", found, supported });
        }
        Contents::Blank | Contents::Damaged(_) | Contents::Other { .. } => {
            buffer.format(instance);
            (Vec::new(), None)
        }
    };
    if settings.report.is_immediate() && buffer.slots() < LEAST_NVRAM_SLOTS {
        return Err(OpenError::Settings(format!(
            "the NVRAM has {} slots, immediate report needs at least {LEAST_NVRAM_SLOTS}",
            buffer.slots()
        )));
    }
    Ok((Some(buffer), held, watermark))
}

/// Makes the writes that only the NVRAM holds the newest content of their slots, on their way to
/// the log. Those that the log has are released.
fn recover_nvram(shared: &Shared, held: Vec<Held>, complete: u64) -> Result<(), OpenError> {
    let mut state = shared.state.lock();
    let state = &mut *state;
    for held in held {
        let nvram = state.nvram.as_mut().expect("it holds what was found in it");
        let logged = state.table.find(held.slot).map_or(0, |i| state.table.entry(i).version);
        if held.serial <= complete || held.serial <= logged {
            nvram.release(held.index);
            continue;
        }
        if held.slot >= shared.slots || held.mask == 0 || held.serial == 0 {
            let how = format!("is damaged (it holds slot {})", held.slot);
            return Err(OpenError::NvramMissing(how));
        }
        let Some(mut page) = shared.pool.take() else {
            return Err(OpenError::Settings("dram_bytes is less than the NVRAM holds".into()));
        };
        nvram.read(held.index, &mut page);
        let checksum = crc32c(&page);
        let index = state.table.find_or_insert(held.slot);
        state.table.set_page(index, page.freeze(), held.mask, true);
        let entry = state.table.entry_mut(index);
        entry.checksum = checksum;
        let older = std::mem::replace(&mut entry.nvram, held.index);
        if older != NONE {
            nvram.release(older);
        }
        state.queue_slot(index, held.serial);
        state.durable = state.durable.min(held.serial - 1);
        shared.counters.recovered_nvram.add(1);
    }
    Ok(())
}

/// Writes the superblocks of a new log: last of all, since nothing before them is of this
/// instance.
async fn write_new(
    log: &Stack,
    identity: &Identity,
    segment_slots: u32,
) -> Result<Superblock, OpenError> {
    if identity.name.len() > MAX_NAME {
        let message = format!("the name of the volume is longer than {MAX_NAME} bytes");
        return Err(OpenError::Settings(message));
    }
    let geometry = log.geometry();
    let least = least_blocks(segment_slots);
    if geometry.block_size as usize != BLOCK_BYTES {
        let message = format!("its blocks have {} bytes, not 4096", geometry.block_size);
        return Err(OpenError::Size(message));
    }
    if geometry.blocks < least {
        let message =
            format!("it has {} blocks of 4096 bytes, {least} are needed", geometry.blocks);
        return Err(OpenError::Size(message));
    }
    let superblock = Superblock {
        sequence: 1,
        instance: new_instance(identity),
        identity: identity.clone(),
        log_blocks: geometry.blocks.min(u64::from(u32::MAX / 2)),
        segment_slots,
        generation: 1,
        generation_first: 1,
        tail: 1,
        tail_block: FIRST_BLOCK,
        committed: 0,
        serial: 0,
        clean: true,
        immediate: false,
    };
    write_copies(log, &pool(1)?, &superblock).await.map_err(OpenError::Log)?;
    Ok(superblock)
}

/// A number that no other log has: from the keys that the system gives at random to every
/// process, and what else is different.
fn new_instance(identity: &Identity) -> InstanceId {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_nanos());
    let mut id = [0; 16];
    for half in id.chunks_mut(8) {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(time);
        hasher.write(identity.name.as_bytes());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    InstanceId(id)
}

fn check_geometry(identity: &Identity, geometry: Geometry) -> Result<(), OpenError> {
    if identity.fits(geometry) {
        return Ok(());
    }
    Err(OpenError::Geometry {
        recorded_blocks: identity.geometry.blocks,
        recorded_size: identity.geometry.block_size,
        blocks: geometry.blocks,
        size: geometry.block_size,
    })
}

fn check_identity(recorded: &Identity, identity: &Identity) -> Result<(), OpenError> {
    if recorded.name != identity.name {
        return Err(OpenError::OtherVolume {
            expected: identity.name.clone(),
            found: recorded.name.clone(),
        });
    }
    check_geometry(recorded, identity.geometry)
}

fn check_size(log: &Stack, superblock: &Superblock) -> Result<(), OpenError> {
    let geometry = log.geometry();
    if geometry.block_size as usize != BLOCK_BYTES {
        let message = format!("its blocks have {} bytes, not 4096", geometry.block_size);
        return Err(OpenError::Size(message));
    }
    if geometry.blocks < superblock.log_blocks {
        return Err(OpenError::Truncated {
            recorded: superblock.log_blocks,
            found: geometry.blocks,
        });
    }
    Ok(())
}

fn no_superblock(error: NoSuperblock) -> OpenError {
    match error {
        NoSuperblock::Blank | NoSuperblock::Garbage => OpenError::NotALog,
        NoSuperblock::Version(found) => {
            OpenError::Version { what: "log", found, supported: crate::log::VERSION }
        }
        NoSuperblock::Io(error) => OpenError::Log(error),
    }
}

fn pool(pages: u32) -> Result<Arc<PagePool>, OpenError> {
    PagePool::new(pages)
        .map_err(|error| OpenError::Settings(format!("no memory for {pages} pages: {error}")))
}

/// Entries of the table beside those with a page or a place of their own: runs of zeros and marks
/// of fetches. Some 5 MiB.
const SPARE_ENTRIES: usize = 65536;
/// Blocks kept for bypassed writes in the largest logs: 16 MiB, each of them a bypassed write.
const MOST_RESERVED: u32 = 4096;
/// Slots of the smallest NVRAM that immediate report works with.
const LEAST_NVRAM_SLOTS: u32 = 8;
