//! The claim on a unit (CLAIM OUT): the record of the one cache log that may write it, kept over restarts.
//!
//! The claim belongs to one opening of one log, and to the session that presented it last. While it is in
//! force, other initiators may read and change nothing. A session whose claim has been taken over is fenced:
//! its outstanding writes are older than those of the new owner.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use scsi::{BlockCommand, ClaimParameters, ClaimReport, Command, Sense, VendorCommand};

use crate::{
    block::{image::ConsistentPrefixTracker, refused_claims::RefusedClaims},
    sense::UnitCommandFailure,
    store::{UnitRecordKind, UnitStore, damaged},
};

/// The exclusive right to write a unit (claim): who has it, and which sessions have lost it.
pub(crate) struct Ownership {
    store: Arc<dyn UnitStore>,
    /// True while a claim is in force or a session is fenced. Written under the lock of `known`. A command needs that
    /// lock only while this is true and the command comes from a session other than the holder's.
    any: AtomicBool,
    /// The session that has presented the claim in force, or [`NO_SESSION`]. Written under the lock.
    holder: AtomicU64,
    /// Number of changes of `known`. Written under the lock.
    generation: AtomicU64,
    known: Mutex<OwnershipState>,
    image: ConsistentPrefixTracker,
    /// The record that the store is known to hold; `None` while that is uncertain. A change holds this lock until its
    /// record is saved.
    saved: tokio::sync::Mutex<Option<Vec<u8>>>,
}

#[derive(Default)]
struct OwnershipState {
    /// The log to which the unit has granted its last claim; `None` if it has granted none.
    last: Option<ClaimOwner>,
    /// Sessions that have lost their claim, whose commands are therefore refused.
    fenced: HashSet<u64>,
    /// True if a refused write of another initiator has been reported since the claim was granted.
    is_refusal_reported: bool,
    refused_claims: RefusedClaims,
    /// Set while the claim in force has not begun an epoch of its own: true if the open epoch has to be rolled
    /// back first, false if it has to be flushed.
    unbegun: Option<bool>,
}

/// The gateway and log to which the unit has granted its last claim.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct ClaimOwner {
    pub(crate) name: String,
    pub(crate) instance: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) opening: u64,
    pub(crate) is_held: bool,
    pub(crate) is_dirty: bool,
    pub(crate) is_dropped: bool,
    /// Number of the newest write that the log has confirmed; 0 if it never confirmed one.
    pub(crate) confirmed: u64,
}

impl Ownership {
    pub(crate) fn load(store: Arc<dyn UnitStore>) -> io::Result<Self> {
        let record = store.load(UnitRecordKind::Claim)?.unwrap_or_default();
        let last = match record.is_empty() {
            true => None,
            false => Some(
                ClaimOwner::from_record(&record).ok_or_else(|| damaged(UnitRecordKind::Claim))?,
            ),
        };
        let ownership = Self {
            store,
            any: AtomicBool::new(false),
            holder: AtomicU64::new(NO_SESSION),
            generation: AtomicU64::new(0),
            known: Mutex::default(),
            image: ConsistentPrefixTracker::default(),
            saved: tokio::sync::Mutex::new(Some(record)),
        };
        // The owner may have been in the middle of an epoch when this process ended.
        if last.as_ref().is_some_and(|last| last.is_held && last.is_dirty) {
            ownership.image.note_change();
        }
        ownership.change(|known, _| known.last = last);
        Ok(ownership)
    }

    pub(crate) fn last(&self) -> Option<ClaimOwner> {
        self.known.lock().last.clone()
    }

    /// Returns a number that changes whenever the outcome of [`Self::bar`] may change for this session.
    /// Returns `None` for a session other than the owner's: its right to read also depends on the owner's
    /// open epoch.
    pub(crate) fn generation(&self, nexus: u64) -> Option<u64> {
        let generation = self.generation.load(Ordering::Acquire);
        (!self.any.load(Ordering::Acquire) || self.is_holder(nexus)).then_some(generation)
    }

    /// Returns the failure to report if this session may not execute the command, and `None` if it may. `reads_beside`:
    /// sessions other than the owner's may read. `has_epochs`: such a read gets the last flushed epoch.
    pub(crate) fn bar(
        &self,
        nexus: u64,
        command: &Command,
        reads_beside: bool,
        has_epochs: impl FnOnce() -> bool,
    ) -> Option<UnitCommandFailure> {
        if !self.any.load(Ordering::Acquire) || self.holder.load(Ordering::Acquire) == nexus {
            return None;
        }
        let touch = Touch::of(command);
        let mut known = self.known.lock();
        if known.fenced.contains(&nexus) {
            return (touch != Touch::Nothing).then_some(Sense::CLAIM_FENCED.into());
        }
        let last = known.last.as_ref().filter(|last| last.is_held)?;
        match touch {
            Touch::Changes => {
                let (owner, instance) = (last.name.clone(), hex(&last.instance));
                if !std::mem::replace(&mut known.is_refusal_reported, true) {
                    tracing::warn!(
                        owner,
                        log = instance,
                        "write of another initiator refused: only the owner of the claim may write to the unit"
                    );
                }
                Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into())
            }
            Touch::Reads if !reads_beside => Some(UnitCommandFailure::Conflict),
            Touch::Reads if last.is_dirty && self.image.whole().is_none() && !has_epochs() => {
                Some(self.half_an_epoch())
            }
            Touch::Reads | Touch::Flushes | Touch::Nothing => None,
        }
    }

    /// Returns the failure of a read that would return half an epoch. While the owner has a session this is BUSY, since
    /// its destage round ends soon. Without a session only the owner's return, or the operator, ends this state.
    fn half_an_epoch(&self) -> UnitCommandFailure {
        match self.holder.load(Ordering::Acquire) {
            NO_SESSION => Sense::CLAIM_HALF_AN_EPOCH.into(),
            _ => UnitCommandFailure::Busy,
        }
    }

    /// Records that the claim's owner begins to change blocks. Ignores other sessions.
    pub(crate) fn note_change(&self, nexus: u64) {
        if self.holder.load(Ordering::Acquire) == nexus {
            self.image.note_change();
        }
    }

    /// Returns the number of changes that the owner has begun, for [`Self::note_flush`].
    pub(crate) fn changes(&self) -> u64 {
        self.image.changes()
    }

    /// Notes a successful flush of the owner. `changes` is the value of [`Self::changes`] when it began.
    pub(crate) fn note_flush(&self, nexus: u64, changes: u64) {
        if self.holder.load(Ordering::Acquire) == nexus {
            self.image.note_flush(changes);
        }
    }

    /// Checks that a nexus may change WCE and SWP: both also affect the writes of the claim's owner.
    pub(crate) fn check_modes(&self, nexus: u64) -> Result<(), Sense> {
        if self.known.lock().fenced.contains(&nexus) {
            return Err(Sense::CLAIM_FENCED);
        }
        match self.is_beside(nexus) {
            true => Err(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED),
            false => Ok(()),
        }
    }

    /// Begins a read of an initiator that is not the owner; [`Self::end_read`] takes the number. Fails within an epoch.
    pub(crate) fn begin_read(&self) -> Result<u64, UnitCommandFailure> {
        self.image.whole().ok_or_else(|| self.half_an_epoch())
    }

    /// Ends a read that [`Self::begin_read`] has begun. Fails if the owner has begun to change blocks since
    /// then: the data may be of two epochs.
    pub(crate) fn end_read(&self, changes: u64) -> Result<(), UnitCommandFailure> {
        if self.changes() == changes { Ok(()) } else { Err(self.half_an_epoch()) }
    }

    /// Returns true if this nexus has presented the claim that is in force.
    pub(crate) fn is_holder(&self, nexus: u64) -> bool {
        self.holder.load(Ordering::Acquire) == nexus
    }

    pub(crate) fn is_beside(&self, nexus: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self.holder.load(Ordering::Acquire) != nexus
            && self.is_held()
    }

    /// Returns true if another nexus has the claim and its log may hold data that the unit lacks.
    pub(crate) fn is_beside_dirty(&self, nexus: u64) -> bool {
        self.is_beside(nexus) && self.last().is_some_and(|last| last.is_dirty)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.known.lock().last.as_ref().is_some_and(|last| last.is_held)
    }

    /// Performs CLAIM OUT with the action CLAIM. A failure changes nothing.
    pub(crate) async fn claim(&self, nexus: u64, asked: ClaimParameters) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let is_present = self.holder.load(Ordering::Acquire) != NO_SESSION;
        let decided = match asked.shares {
            true => Err(Sense::CLAIM_NOT_SHARED),
            false => admit(self.known.lock().last.as_ref(), &asked, is_present),
        };
        let is_dirty = asked.is_dirty;
        let next = ClaimOwner::granted(self.known.lock().last.as_ref(), asked);
        if let Err(sense) = decided {
            let is_new = self.known.lock().refused_claims.is_new(next.instance, sense);
            if is_new {
                tracing::warn!(
                    owner = next.name,
                    log = hex(&next.instance),
                    generation = next.generation,
                    %sense,
                    "claim refused"
                );
            }
            return Err(sense);
        }
        self.save(&mut saved, &next).await?;
        // A log without dirty data proves that the volume holds all writes of the owner, also those of an open epoch.
        if !is_dirty {
            self.image.note_flush(self.changes());
        }
        tracing::info!(
            owner = next.name,
            log = hex(&next.instance),
            generation = next.generation,
            dirty = next.is_dirty,
            "claim granted: other initiators cannot write to the unit"
        );
        self.change(|known, holder| {
            let before = std::mem::replace(holder, nexus);
            if before != nexus && before != NO_SESSION {
                known.fenced.insert(before);
            }
            // A session that repeats its claim has lost none of its writes, so its epoch continues.
            if before != nexus {
                let is_held = known.last.as_ref().is_some_and(|last| last.is_held);
                known.unbegun = known.unbegun.or(Some(is_held));
            }
            known.fenced.remove(&nexus);
            known.is_refusal_reported = false;
            known.refused_claims = RefusedClaims::default();
            known.last = Some(next);
        });
        Ok(())
    }

    /// CLAIM OUT: RELEASE. Keeps the record, so that older copies of the log are recognized.
    pub(crate) async fn release(&self, nexus: u64, asked: &ClaimParameters) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let last = self.known.lock().last.clone();
        let is_its = |last: &ClaimOwner| {
            (last.instance, last.opening) == (asked.instance, asked.opening)
                && self.holder.load(Ordering::Acquire) == nexus
        };
        let last = last.filter(is_its).ok_or(Sense::CLAIM_FENCED)?;
        let confirmed = last.confirmed.max(asked.confirmed.unwrap_or(0));
        let next = ClaimOwner { is_held: false, is_dirty: false, confirmed, ..last };
        self.save(&mut saved, &next).await?;
        tracing::info!(owner = next.name, log = hex(&next.instance), "claim released");
        self.change(|known, holder| {
            *holder = NO_SESSION;
            known.unbegun = None;
            known.last = Some(next);
        });
        Ok(())
    }

    /// CLAIM OUT: ADVANCE. Saves the number of the newest write that the log has confirmed, so that an older
    /// copy of the log is refused later. The number is stable when this returns.
    pub(crate) async fn advance(&self, nexus: u64, asked: &ClaimParameters) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let last = self.known.lock().last.clone();
        let is_its = |last: &ClaimOwner| {
            last.is_held && last.is_of(asked) && self.holder.load(Ordering::Acquire) == nexus
        };
        let last = last.filter(is_its).ok_or(Sense::CLAIM_FENCED)?;
        let confirmed = last.confirmed.max(asked.confirmed.unwrap_or(0));
        let next = ClaimOwner { confirmed, ..last };
        self.save(&mut saved, &next).await?;
        self.change(|known, _| known.last = Some(next));
        Ok(())
    }

    /// Returns how the first epoch of the claim in force has to begin: true with a roll-back, false with a
    /// flush. `None` once it has begun.
    pub(crate) fn unbegun(&self) -> Option<bool> {
        self.known.lock().unbegun
    }

    /// Records that the first epoch under the claim in force has begun.
    pub(crate) fn note_begun(&self) {
        self.known.lock().unbegun = None;
    }

    /// Fences the session that has presented the claim in force. The claim itself stays in force.
    pub(crate) fn shut_holder_out(&self) {
        self.change(|known, holder| {
            let before = std::mem::replace(holder, NO_SESSION);
            if before != NO_SESSION {
                known.fenced.insert(before);
            }
        });
    }

    /// Ends the claim on behalf of the operator. The data that only the owner's log holds is lost.
    pub(crate) async fn drop_claim(&self) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let Some(last) = self.known.lock().last.clone() else { return Ok(()) };
        let next = ClaimOwner { is_held: false, is_dropped: true, ..last };
        self.save(&mut saved, &next).await?;
        tracing::warn!(
            owner = next.name,
            log = hex(&next.instance),
            "claim dropped on behalf of the operator"
        );
        self.change(|known, holder| {
            let before = std::mem::replace(holder, NO_SESSION);
            if before != NO_SESSION {
                known.fenced.insert(before);
            }
            known.unbegun = None;
            known.last = Some(next);
        });
        Ok(())
    }

    /// Answers CLAIM IN. Leaves out the numbers of openings: with such a number, another initiator could pose
    /// as the owner.
    pub(crate) fn report(&self) -> ClaimReport {
        let known = self.known.lock();
        let last = known.last.clone().unwrap_or_default();
        ClaimReport {
            owner: last.name,
            instance: last.instance,
            generation: last.generation,
            is_held: last.is_held,
            is_dirty: last.is_dirty,
            is_dropped: last.is_dropped,
            is_present: self.holder.load(Ordering::Acquire) != NO_SESSION,
            confirmed: last.confirmed,
        }
    }

    /// Records that a session has ended. A claim that the session has presented stays in force.
    pub(crate) fn close(&self, nexus: u64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        self.change(|known, holder| {
            if *holder == nexus {
                *holder = NO_SESSION;
            }
            known.fenced.remove(&nexus);
        });
    }

    async fn save(&self, saved: &mut Option<Vec<u8>>, next: &ClaimOwner) -> Result<(), Sense> {
        let record = next.to_record();
        if saved.as_ref() != Some(&record) {
            *saved = None;
            let kept = self.store.save(UnitRecordKind::Claim, record.clone()).await;
            kept.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
            *saved = Some(record);
        }
        Ok(())
    }

    /// Applies `change` to `known`, and then updates the copies in `holder`, `any` and `generation`.
    fn change(&self, change: impl FnOnce(&mut OwnershipState, &mut u64)) {
        let mut known = self.known.lock();
        let mut holder = self.holder.load(Ordering::Acquire);
        change(&mut known, &mut holder);
        self.holder.store(holder, Ordering::Release);
        let any = known.last.as_ref().is_some_and(|l| l.is_held) || !known.fenced.is_empty();
        self.any.store(any, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// Decides whether a claim is granted. `last` is the claim that was granted last; `is_present`: a session
/// holds that claim.
pub(crate) fn admit(
    last: Option<&ClaimOwner>,
    asked: &ClaimParameters,
    is_present: bool,
) -> Result<(), Sense> {
    let accepted = |sense| if asked.accept_loss { Ok(()) } else { Err(sense) };
    let Some(last) = last else {
        // No claim is on record here, although the log was granted one: the node was restored to an older state.
        return if asked.granted > 0 { accepted(Sense::CLAIM_WENT_BACK) } else { Ok(()) };
    };
    if last.instance != asked.instance {
        return if last.is_held && (last.is_dirty || is_present) {
            Err(Sense::CLAIM_HELD_BY_ANOTHER_LOG)
        } else if asked.is_dirty {
            accepted(Sense::CLAIM_OUT_OF_DATE)
        } else {
            Ok(())
        };
    }
    // After the operator has dropped the claim, no copy of the log is the newest: accept_loss admits any copy.
    if last.is_dropped {
        return accepted(Sense::CLAIM_DROPPED);
    }
    admit_opening(last, asked, is_present)?;
    // Check the confirmed number last: a copy of the log that is older than another opening is then refused with the
    // sense data of that check. A copy made during the present opening passes all other checks, but would write its
    // older data over newer data of the unit.
    match asked.confirmed {
        Some(confirmed) if confirmed < last.confirmed => {
            accepted(Sense::CLAIM_BEHIND.with_information(last.confirmed))
        }
        _ => Ok(()),
    }
}

/// Checks that the opening in a claim may follow the last opening of the same log.
fn admit_opening(
    last: &ClaimOwner,
    asked: &ClaimParameters,
    is_present: bool,
) -> Result<(), Sense> {
    let accepted = |sense| if asked.accept_loss { Ok(()) } else { Err(sense) };
    // The log opening whose claim is in force presents the claim again.
    if (last.opening, last.generation) == (asked.opening, asked.generation) {
        return Ok(());
    }
    // This unit granted this very claim once, after the claim on record: the record is from an older backup.
    if asked.granted == asked.generation && asked.granted > last.generation {
        return accepted(Sense::CLAIM_WENT_BACK);
    }
    if asked.predecessors.contains(&last.opening) && asked.generation > last.generation {
        // A copy of the log that was started by accident must not fence the gateway that works with the log.
        let is_at_work = is_present && !asked.takes_over;
        return if is_at_work { Err(Sense::CLAIM_OWNER_IS_PRESENT) } else { Ok(()) };
    }
    if asked.granted > last.generation {
        return accepted(Sense::CLAIM_WENT_BACK);
    }
    Err(Sense::CLAIM_FENCED)
}

/// The effect of a command on blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Touch {
    Nothing,
    /// The command makes earlier writes stable.
    Flushes,
    Reads,
    Changes,
}

/// Returns true for a command that changes blocks.
pub(crate) fn changes(command: &Command) -> bool {
    Touch::of(command) == Touch::Changes
}

/// Returns true for a command whose changes belong to the owner's epoch, which a flush ends. A write with FUA
/// does not: the cache sends it directly to the volume, bypassing its log, and a flush need not follow.
pub(crate) fn needs_a_flush(command: &Command) -> bool {
    let stands_alone =
        matches!(command, Command::Block(BlockCommand::Write(transfer)) if transfer.fua);
    changes(command) && !stands_alone
}

impl Touch {
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Block(command) => Self::of_block(command),
            Command::Vendor(VendorCommand::RollBack) => Self::Changes,
            // The reads and writes of EXTENDED COPY are checked one by one, as commands of their own.
            Command::Vendor(_) | Command::Primary(_) => Self::Nothing,
        }
    }

    fn of_block(command: &BlockCommand) -> Self {
        match command {
            BlockCommand::CompareAndWrite(_)
            | BlockCommand::OrWrite(_)
            | BlockCommand::Sanitize(_)
            | BlockCommand::Unmap { .. }
            | BlockCommand::Write(_)
            | BlockCommand::WriteAndVerify { .. }
            | BlockCommand::WriteAtomic { .. }
            | BlockCommand::WriteSame { .. }
            | BlockCommand::WriteUsingToken { .. } => Self::Changes,
            BlockCommand::PopulateToken { .. }
            | BlockCommand::PreFetch { .. }
            | BlockCommand::Read(_)
            | BlockCommand::Verify { .. } => Self::Reads,
            BlockCommand::StartStop(asked) if asked.flushes() => Self::Flushes,
            BlockCommand::SynchronizeCache { .. } => Self::Flushes,
            _ => Self::Nothing,
        }
    }
}

impl ClaimOwner {
    /// Returns the record for the claim that is now granted after the claim `last`.
    pub(crate) fn granted(last: Option<&Self>, asked: ClaimParameters) -> Self {
        // An older gateway sends no confirmed number. The log is still the same one, so keep the number on
        // record.
        let before = last.filter(|last| last.instance == asked.instance).map(|l| l.confirmed);
        Self {
            confirmed: asked.confirmed.or(before).unwrap_or(0),
            name: asked.owner,
            instance: asked.instance,
            generation: asked.generation,
            opening: asked.opening,
            is_held: true,
            is_dirty: asked.writes_back || asked.is_dirty,
            is_dropped: false,
        }
    }

    /// Returns true if the parameters are of the same log, opened the same time, as the claim on record.
    pub(crate) fn is_of(&self, asked: &ClaimParameters) -> bool {
        (self.instance, self.opening) == (asked.instance, asked.opening)
    }

    pub(crate) fn to_record(&self) -> Vec<u8> {
        let flags =
            u8::from(self.is_held) | u8::from(self.is_dirty) << 1 | u8::from(self.is_dropped) << 2;
        let version = if self.confirmed > 0 { WITH_CONFIRMED } else { VERSION };
        let mut bytes = vec![version, flags, self.name.len() as u8, 0];
        bytes.extend_from_slice(&self.instance);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.opening.to_le_bytes());
        if self.confirmed > 0 {
            bytes.extend_from_slice(&self.confirmed.to_le_bytes());
        }
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// Parses a stored record of a claim; returns `None` if the bytes are invalid.
    pub(crate) fn from_record(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<36>()?;
        let number = |at: usize| fixed[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (confirmed, name) = match fixed[0] {
            VERSION => (0, rest),
            WITH_CONFIRMED => {
                let (confirmed, name) = rest.split_first_chunk()?;
                (u64::from_le_bytes(*confirmed), name)
            }
            _ => return None,
        };
        let is_right = fixed[1] < 8
            && fixed[3] == 0
            && usize::from(fixed[2]) == name.len()
            && name.iter().all(|byte| matches!(byte, b' '..=b'~'));
        is_right.then_some(())?;
        Some(Self {
            name: std::str::from_utf8(name).ok()?.to_owned(),
            instance: *fixed[4..].first_chunk()?,
            generation: number(20)?,
            opening: number(28)?,
            is_held: fixed[1] & 1 != 0,
            is_dirty: fixed[1] & 2 != 0,
            is_dropped: fixed[1] & 4 != 0,
            confirmed,
        })
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Stands for "no session". Real sessions are numbered upwards from a low number.
const NO_SESSION: u64 = u64::MAX;
/// Version of the stored record without a confirmed number; `docs/formats/state.md` describes its bytes.
const VERSION: u8 = 1;
/// Version of the record with a confirmed number.
const WITH_CONFIRMED: u8 = 2;

#[cfg(test)]
mod tests;
