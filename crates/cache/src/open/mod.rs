//! Opens a cache: turns the content of log disk and NVRAM into a running state.
//!
//! [`read_and_check`] and [`Opening::begin`] are the list of the steps. The comment before each step says
//! what a crash right after it leaves: always a state from which the next opening can start again. While the
//! opening may still be refused by a check, only two things are written: the format of a blank log, and whole
//! copies of blocks over damaged copies.

mod checks;
pub(crate) mod older;
mod claim;
mod key;
mod nvram;
mod log;
mod members;
mod assemble;

use std::sync::Arc;

use journal::{
    MAX_SEALED_SLOTS,
    doubt::Doubt,
    identity::LogVolumeIdentity,
    recovery::{NoSuperblock, scan, superblock},
    superblock::Superblock,
};
use volume::{Confirmed, DegradedMirror, Geometry, Holding, Mirror, Stack};

use self::{
    assemble::OpenedParts,
    checks::{check_belongs, check_geometry, check_new},
    key::OpeningKey,
    log::{FoundLog, scan_until_whole, straighten},
    nvram::{FoundNvram, replay},
};
use crate::{
    confirmed::ConfirmedWrites,
    core::{CacheCore, SCRATCH_PAGES, write_copies},
    degraded_pair::PairWitness,
    inspect::{check_size, no_superblock, pool, write_new},
    lower::extent::{DirtyFlags, JoinedMembers},
    mode,
    nvram::{NvramBuffer, StableMemory},
    random::random,
    refusal::CacheOpenError,
    rules::ModeRules,
    settings::Settings,
    slots::pages::SlotPagePool,
    statistics::Counters,
    witness::number,
};

/// The volumes and the NVRAM of a cache.
pub struct Parts {
    /// The volume that the cache is for.
    pub lower: Stack,
    /// The log disk: blocks of 4096 bytes, not used otherwise.
    pub log: Stack,
    /// The NVRAM, if there is one. Immediate report needs it. In all modes, it makes the loss of the last
    /// segment detectable.
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
    let rules = mode::rules(settings);
    let is_void = older::is_nvram_void(settings, &superblock);
    let key = OpeningKey::for_check(settings, &superblock);
    let nvram = FoundNvram::read(nvram, &superblock, (settings, &rules), &key, is_void)?;
    key.refuse_if(!nvram.held.is_empty())?;
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

/// Opens a cache, and formats a blank log first.
pub(crate) async fn open(
    settings: Settings,
    parts: Parts,
    identity: &LogVolumeIdentity,
    pair: Option<Arc<Mirror>>,
    joining: Option<JoinedMembers>,
) -> Result<Arc<CacheCore>, CacheOpenError> {
    settings.validate().map_err(CacheOpenError::Settings)?;
    if let Some(mirror) = &pair {
        // Do this before anything else: if the mirror becomes degraded from here on, the number in its label
        // names this opening.
        mirror.set_number(number(&settings.owner));
    }
    let (opening, doubt) = read_and_check(settings, parts, identity, pair, joining).await?;
    opening.begin(doubt).await
}

/// Runs the steps of an opening that may refuse it: they read the log and the NVRAM and compare them with the
/// settings, with each other and with the confirmed numbers. Also returns the blocks of the log whose copies
/// differ.
async fn read_and_check(
    settings: Settings,
    Parts { lower, log, nvram: memory }: Parts,
    identity: &LogVolumeIdentity,
    pair: Option<Arc<Mirror>>,
    joining: Option<JoinedMembers>,
) -> Result<(Opening, Doubt), CacheOpenError> {
    let rules = mode::rules(&settings);
    let geometry = lower.geometry();
    check_geometry(identity, geometry)?;

    // Reads the superblock, or formats a blank log. A crash leaves the log blank or formatted: one whole copy of the
    // superblock is enough, and a new superblock has only zeros after its first 512 bytes, which no disk tears.
    let mut superblock = match superblock(&log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => {
            check_new(memory.as_deref(), &settings)?;
            write_new(&log, identity, &settings).await?
        }
        Err(error) => return Err(no_superblock(error)),
    };

    // Checks that log and volume belong together. Up to the scan of the log nothing is written, so a crash
    // leaves everything as it was.
    check_belongs(&log, &superblock, identity, geometry)?;

    // Compares the key of the settings with that of the log. A wrong key is refused below as soon as data is
    // found.
    let key = OpeningKey::new(&settings, &superblock)?;

    // Reads the NVRAM, and the confirmed numbers that are kept elsewhere.
    let confirmed = older::recall(&settings, &superblock)?;
    let is_void = older::is_nvram_void(&settings, &superblock);
    let mut nvram = FoundNvram::read(memory, &superblock, (&settings, &rules), &key, is_void)?;
    key.refuse_if(!nvram.held.is_empty())?;

    // Scans the log. If the log has several copies, this overwrites damaged blocks with the content of a
    // whole copy. A crash leaves more whole copies than before.
    let scanned =
        scan_until_whole(&log, &superblock, (&settings, &rules), geometry, nvram.watermark).await?;
    let (mut found, doubt) = scanned;
    key.refuse_if(found.table.dirty() > 0 || found.scan.loss.is_some())?;

    // Fails if acknowledged data is lost, unless the settings accept the loss. This step writes no data.
    let newest = refuse_or_accept_loss(&settings, &superblock, &mut found, &nvram, confirmed)?;
    if is_void {
        let slots = nvram.buffer.as_ref().map_or(0, NvramBuffer::slots);
        older::report_void_nvram(&settings, &superblock, &found.scan, slots);
    }

    // Matches the volumes that a common log has recorded with those of this opening. Writes nothing: the new
    // list of volumes is written with the superblock of the new generation.
    let dirty_flags = match &joining {
        Some(joining) => members::match_up(joining, &mut superblock, &mut found.table, &mut nvram)?,
        None => DirtyFlags::of_one(),
    };
    let bottom = OpeningBottom { lower, geometry, log, pair, joining };
    Ok((
        Opening { settings, rules, bottom, superblock, key, nvram, found, newest, dirty_flags },
        doubt,
    ))
}

/// Refuses a log from which acknowledged data is missing, and a log or an NVRAM that is an older copy, unless
/// the settings accept that. Returns the serial of the newest write in the log and the NVRAM.
fn refuse_or_accept_loss(
    settings: &Settings,
    superblock: &Superblock,
    found: &mut FoundLog,
    nvram: &FoundNvram,
    confirmed: Option<ConfirmedWrites>,
) -> Result<u64, CacheOpenError> {
    if let Some(loss) = found.scan.loss.take() {
        if !settings.accept_loss {
            return Err(CacheOpenError::Missing(loss));
        }
        tracing::warn!(
            ?loss,
            remedy = "remove `accept_loss` from the settings now, and check the file systems of the \
             volume",
            "opening the log although acknowledged data is missing"
        );
    }
    let newest = nvram.held.iter().map(|held| held.serial).fold(found.scan.serial, u64::max);
    if !settings.accept_loss {
        nvram.check_noted(superblock, &found.scan)?;
        if let Some(confirmed) = confirmed {
            older::check_confirmed(settings, confirmed, (superblock, &found.scan), newest)?;
        }
    }
    Ok(newest)
}

struct OpeningBottom {
    lower: Stack,
    /// The geometry of `lower` when the opening began.
    geometry: Geometry,
    log: Stack,
    pair: Option<Arc<Mirror>>,
    joining: Option<JoinedMembers>,
}

/// An opening of a cache whose checks have passed.
struct Opening {
    settings: Settings,
    rules: ModeRules,
    bottom: OpeningBottom,
    superblock: Superblock,
    key: OpeningKey,
    nvram: FoundNvram,
    found: FoundLog,
    /// The serial of the newest write in the log and the NVRAM.
    newest: u64,
    /// The flags of the volumes of which the log has dirty data.
    dirty_flags: DirtyFlags,
}

impl Opening {
    /// Runs the steps of an opening that write. A crash may interrupt each step; see the comments before them.
    async fn begin(mut self, doubt: Doubt) -> Result<Arc<CacheCore>, CacheOpenError> {
        let log_failed = CacheOpenError::Log;

        // Makes all copies of the log equal, and then flushes: if only the process had ended, the data that
        // was read may not be stable yet, and later writes build on it. A crash leaves the same segments to
        // be found.
        doubt.settle(&self.bottom.log, &self.superblock).await.map_err(log_failed)?;
        self.bottom.log.flush().await.map_err(log_failed)?;

        // Begins a new generation, and writes the superblocks before anything else: from here on, no segment
        // that this scan did not find can be mistaken for data. A crash leaves either the old superblock or
        // the new one. With the new one the next opening finds the same segments. The NVRAM, and the
        // superblock's description of it, are still unchanged.
        let alone = self.begin_generation();
        let scratch = self.scratch()?;
        self.write_superblocks(&scratch).await?;
        if self.settings.log_buffer.is_some() {
            // Flush the superblock before the claim: the lower volume records this opening with the claim, and
            // would later refuse an opening whose superblock lacks it.
            self.bottom.log.flush().await.map_err(log_failed)?;
        }

        // Acquires the claim on the lower volume, before anything is sent there, or fetched from there and
        // kept. A crash leaves a claim of this generation. The next opening may take that over, because the
        // superblock has recorded this opening.
        let claimed = self.claim(&scratch).await?;
        if alone.is_some() && self.bottom.lower.extensions().holding() != Holding::Held {
            return Err(CacheOpenError::Unwitnessed);
        }

        // Takes the NVRAM into use: no other gateway can own the log now. The NVRAM changes first. A crash
        // before the superblock is written leaves an NVRAM without the slots that the log does not need, and
        // a superblock under which the next opening with the same settings accepts it. A crash after that
        // leaves log and NVRAM with every acknowledged write between them.
        let boot = older::boot(&self.settings, &self.rules);
        if self.nvram.take_into_use(&mut self.superblock, (&self.settings, &self.rules), boot)? {
            self.superblock.sequence += 1;
            self.write_superblocks(&scratch).await?;
        }

        // Assembles the running cache. This changes only the number of the newest stable segment in the
        // NVRAM, so a crash leaves the same state as before.
        let held = std::mem::take(&mut self.nvram.held);
        let complete = self.found.scan.complete;
        let kept = held.last().map_or(0, |held| held.serial);
        let core = self.assemble(scratch, claimed, alone, kept)?;
        core.confirming.begin(complete, kept);
        core.start_index();

        // Replays the writes that only the NVRAM holds into the log. A crash leaves these writes in the
        // NVRAM, in the log or in both: an NVRAM slot is released only when the log has its write.
        replay(&core, held, complete)?;

        // Waits until the log has all replayed writes. After a crash here, the superblock may still name the write mode
        // of the opening before, which needs the NVRAM. That does no harm: the next opening finds the log's NVRAM, and
        // no write in it.
        core.settle().await.map_err(log_failed)?;

        // Sets the mode of this opening in the superblock. A crash after this leaves a log in this mode.
        core.forget_old_mode(boot).await?;
        Ok(core)
    }

    /// Prepares the superblock of the next generation. Returns the degraded state of the mirror, if the log
    /// of a pair is used with one leg only.
    fn begin_generation(&mut self) -> Option<DegradedMirror> {
        let lower = self.bottom.geometry;
        let Self { superblock, found, nvram, .. } = self;
        superblock.sequence += 1;
        superblock.generation = superblock.generation.max(superblock.granted) + 1;
        superblock.generation_first = found.scan.ring.next();
        if self.key.is_wrong() {
            key::change(superblock, &mut found.scan, &self.settings);
            // The checks above have made sure that no slot is in use. The slots may still contain older data in
            // clear text.
            nvram.change.clears_data = true;
            found.epochs = log::new_epochs((&self.settings, &self.rules), superblock, lower);
        }
        let scan = &mut found.scan;
        superblock.index_first = superblock.index_tail + scan.index.frames.len() as u64;
        straighten(&mut scan.ring, superblock);
        superblock.committed = scan.ring.next() - 1;
        superblock.serial = self.newest;
        superblock.complete = scan.complete;
        // Until the claim is granted, keep the NVRAM, and the superblock's description of it, unchanged: this
        // log may be an older copy, and the NVRAM may hold acknowledged writes of the newest log.
        superblock.immediate &= !superblock.clean;
        superblock.noted &= nvram.noted.is_some_and(|noted| noted >= superblock.committed);
        superblock.clean = false;
        // The volume may have grown: record that before a segment can hold a slot of the new part.
        superblock.identity.geometry.blocks = lower.blocks;
        let alone = self.bottom.pair.as_ref().and_then(|mirror| mirror.alone());
        if let Some(alone) = alone {
            // An earlier opening used this leg without the partner, perhaps without a record in the superblock.
            // Its request to continue alone has used one generation.
            superblock.note_number(alone.number);
            superblock.generation += 1;
        }
        superblock.note_opening(random(&superblock.identity.name));
        alone
    }

    /// Allocates the pages for headers of segments and superblocks.
    fn scratch(&self) -> Result<Arc<SlotPagePool>, CacheOpenError> {
        pool(SCRATCH_PAGES + if self.found.seals.is_some() { SEALED_PAGES } else { 0 })
    }

    /// Writes both copies of the superblock. Takes `&mut self`, because an NVRAM cannot be shared between
    /// threads.
    async fn write_superblocks(
        &mut self,
        scratch: &Arc<SlotPagePool>,
    ) -> Result<(), CacheOpenError> {
        write_copies(&self.bottom.log, scratch, &self.superblock).await.map_err(CacheOpenError::Log)
    }

    /// Claims the lower volume. Returns the number of the newest write that the claim counts as confirmed.
    async fn claim(&mut self, scratch: &Arc<SlotPagePool>) -> Result<Confirmed, CacheOpenError> {
        let OpeningBottom { lower, log, pair, joining, .. } = &self.bottom;
        let held = &self.nvram.held;
        let dirty = self.dirty_flags.first();
        if joining.is_none() {
            dirty.set(self.found.table.dirty() > 0 || !held.is_empty());
        }
        let complete = self.found.scan.complete;
        // Count writes that only the NVRAM holds if the NVRAM was declared to survive the loss of power.
        let was_stable = self.superblock.boot.is_none();
        let kept = held.last().filter(|_| was_stable).map_or(0, |held| held.serial);
        let claimed = Confirmed::new(complete.max(kept));
        let joined = joining.as_ref().map(|joining| &*joining.joined);
        let asking = (lower, joined, pair.is_some());
        let told = (dirty, claimed.clone());
        let superblock = &mut self.superblock;
        claim::claim(
            (&self.settings, self.rules.writes_back),
            asking,
            log,
            scratch,
            superblock,
            told,
        )
        .await?;
        Ok(claimed)
    }

    /// Makes the core of the running cache. `kept` is the serial of the newest write in the NVRAM.
    fn assemble(
        self,
        scratch: Arc<SlotPagePool>,
        claimed: Confirmed,
        alone: Option<DegradedMirror>,
        kept: u64,
    ) -> Result<Arc<CacheCore>, CacheOpenError> {
        let counters = Counters::default();
        counters.recovery.segments.add(self.found.scan.ring.segments() as u64);
        counters.recovery.unflushed_segments.add(self.found.scan.unflushed);
        counters.recovery.slots.add(self.found.table.dirty() as u64);
        let complete = self.found.scan.complete;
        let buffered = self.settings.log_buffer.is_some();
        let OpeningBottom { lower, log, pair, joining, .. } = self.bottom;
        let parts = OpenedParts {
            settings: self.settings,
            rules: self.rules,
            lower,
            log,
            joining,
            superblock: self.superblock,
            found: self.found,
            nvram: self.nvram.buffer,
            newest: self.newest,
            salt: self.key.salt(),
            pair: pair.map(|mirror| PairWitness::new(mirror, alone)),
            scratch,
            claimed,
            counters,
        };
        let core = parts.assemble()?;
        {
            let mut state = core.state.lock();
            state.destage.dirty_flags = self.dirty_flags;
            (state.commits.logged, state.commits.kept) = (complete, kept);
            state.commits.log_is_buffered = buffered;
        }
        Ok(core)
    }
}

impl CacheCore {
    /// Sets the mode and the boot of this opening in the superblock, if it still has those of an earlier
    /// opening.
    async fn forget_old_mode(&self, boot: Option<[u8; 16]>) -> Result<(), CacheOpenError> {
        let immediate = self.rules.keeps_in_nvram;
        let is_stale = {
            let superblock = self.log.superblock.lock().await;
            (superblock.immediate, superblock.boot) != (immediate, boot)
        };
        if is_stale {
            let forget = |superblock: &mut Superblock| {
                (superblock.immediate, superblock.boot) = (immediate, boot);
            };
            self.write_superblock(forget).await.map_err(CacheOpenError::Log)?;
        }
        Ok(())
    }
}

/// Number of pages for the blocks of two sealed segments.
const SEALED_PAGES: u32 = 2 * MAX_SEALED_SLOTS;
