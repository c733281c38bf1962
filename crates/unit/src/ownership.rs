//! Who alone may change the unit: the cache whose claim it keeps (CLAIM OUT), over restarts.
//!
//! The claim belongs to one opening of one log, and to the session that presented it last. While
//! it is in force, others may read and change nothing. A session whose claim has been taken over is
//! shut out: what it still has on its way would be older than what is written now.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use scsi::{ClaimParameters, ClaimReport, Command, Sense};

use crate::{
    sense::Failure,
    store::{Record, Store, damaged},
};

/// The claim on a unit that has a store.
pub(crate) struct Ownership {
    store: Arc<dyn Store>,
    /// Somebody may be barred from something. Written under the lock; while it is false, or for the
    /// holder, a command need not take the lock.
    any: AtomicBool,
    /// The session that has presented the claim in force, or [`NOBODY`]. Written under the lock.
    holder: AtomicU64,
    known: Mutex<Known>,
    /// Held through a change until it is saved. What the store is known to hold; `None` while that
    /// is not sure.
    saved: tokio::sync::Mutex<Option<Vec<u8>>>,
}

#[derive(Default)]
struct Known {
    /// `None`: nobody ever claimed it.
    last: Option<Owner>,
    /// Sessions whose claim is not in force any more.
    fenced: HashSet<u64>,
    /// It was told that somebody else wanted to change the unit.
    is_told: bool,
}

/// The claim that was granted last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) instance: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) opening: u64,
    pub(crate) is_held: bool,
    pub(crate) is_dirty: bool,
    pub(crate) is_dropped: bool,
}

impl Ownership {
    /// The claim that was saved.
    pub(crate) fn load(store: Arc<dyn Store>) -> io::Result<Self> {
        let record = store.load(Record::Claim)?.unwrap_or_default();
        let last = match record.is_empty() {
            true => None,
            false => Some(Owner::from_record(&record).ok_or_else(|| damaged(Record::Claim))?),
        };
        let ownership = Self {
            store,
            any: AtomicBool::new(false),
            holder: AtomicU64::new(NOBODY),
            known: Mutex::default(),
            saved: tokio::sync::Mutex::new(Some(record)),
        };
        ownership.change(|known, _| known.last = last);
        Ok(ownership)
    }

    /// The claim that was granted last.
    pub(crate) fn last(&self) -> Option<Owner> {
        self.known.lock().last.clone()
    }

    /// Why the command is not for this session, if it is not.
    pub(crate) fn bar(&self, nexus: u64, command: &Command, reads_beside: bool) -> Option<Failure> {
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
                if !std::mem::replace(&mut known.is_told, true) {
                    tracing::warn!(
                        owner,
                        log = instance,
                        "somebody beside the owner of the unit's dirty data wants to change it, and may not"
                    );
                }
                Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into())
            }
            Touch::Reads if !reads_beside => Some(Failure::Conflict),
            Touch::Reads | Touch::Flushes | Touch::Nothing => None,
        }
    }

    /// Whether somebody else alone changes the unit.
    pub(crate) fn is_beside(&self, nexus: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self.holder.load(Ordering::Acquire) != nexus
            && self.is_held()
    }

    /// Whether the claim in force is this nexus's.
    pub(crate) fn is_holder(&self, nexus: u64) -> bool {
        self.holder.load(Ordering::Acquire) == nexus && self.is_held()
    }

    /// Whether a claim is in force.
    pub(crate) fn is_held(&self) -> bool {
        self.known.lock().last.as_ref().is_some_and(|last| last.is_held)
    }

    /// CLAIM OUT: CLAIM. Nothing has changed when it fails.
    pub(crate) async fn claim(&self, nexus: u64, asked: ClaimParameters) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let is_present = self.holder.load(Ordering::Acquire) != NOBODY;
        let decided = match asked.shares {
            true => Err(Sense::CLAIM_NOT_SHARED),
            false => admit(self.known.lock().last.as_ref(), &asked, is_present),
        };
        let next = Owner {
            name: asked.owner,
            instance: asked.instance,
            generation: asked.generation,
            opening: asked.opening,
            is_held: true,
            is_dirty: asked.writes_back || asked.is_dirty,
            is_dropped: false,
        };
        if let Err(sense) = decided {
            tracing::warn!(
                owner = next.name,
                log = hex(&next.instance),
                generation = next.generation,
                %sense,
                "a claim is refused"
            );
            return Err(sense);
        }
        self.save(&mut saved, &next).await?;
        tracing::info!(
            owner = next.name,
            log = hex(&next.instance),
            generation = next.generation,
            dirty = next.is_dirty,
            "claimed: nobody else may change the unit"
        );
        self.change(|known, holder| {
            let before = std::mem::replace(holder, nexus);
            if before != nexus && before != NOBODY {
                known.fenced.insert(before);
            }
            known.fenced.remove(&nexus);
            known.is_told = false;
            known.last = Some(next);
        });
        Ok(())
    }

    /// CLAIM OUT: RELEASE. The record stays, so that older copies of the log are known.
    pub(crate) async fn release(&self, nexus: u64, asked: &ClaimParameters) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let last = self.known.lock().last.clone();
        let is_its = |last: &Owner| {
            (last.instance, last.opening) == (asked.instance, asked.opening)
                && self.holder.load(Ordering::Acquire) == nexus
        };
        let last = last.filter(is_its).ok_or(Sense::CLAIM_FENCED)?;
        let next = Owner { is_held: false, is_dirty: false, ..last };
        self.save(&mut saved, &next).await?;
        tracing::info!(owner = next.name, log = hex(&next.instance), "the claim is given back");
        self.change(|known, holder| {
            *holder = NOBODY;
            known.last = Some(next);
        });
        Ok(())
    }

    /// The operator ends the claim, whatever its owner still has.
    pub(crate) async fn drop_claim(&self) -> Result<(), Sense> {
        let mut saved = self.saved.lock().await;
        let Some(last) = self.known.lock().last.clone() else { return Ok(()) };
        let next = Owner { is_held: false, is_dropped: true, ..last };
        self.save(&mut saved, &next).await?;
        tracing::warn!(owner = next.name, log = hex(&next.instance), "the claim is dropped");
        self.change(|known, holder| {
            let before = std::mem::replace(holder, NOBODY);
            if before != NOBODY {
                known.fenced.insert(before);
            }
            known.last = Some(next);
        });
        Ok(())
    }

    /// CLAIM IN. The numbers of openings are not told: who knows them could pass for the owner.
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
            is_present: self.holder.load(Ordering::Acquire) != NOBODY,
        }
    }

    /// A session ended. The claim stays.
    pub(crate) fn close(&self, nexus: u64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        self.change(|known, holder| {
            if *holder == nexus {
                *holder = NOBODY;
            }
            known.fenced.remove(&nexus);
        });
    }

    async fn save(&self, saved: &mut Option<Vec<u8>>, next: &Owner) -> Result<(), Sense> {
        let record = next.to_record();
        if saved.as_ref() != Some(&record) {
            *saved = None;
            let kept = self.store.save(Record::Claim, record.clone()).await;
            kept.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
            *saved = Some(record);
        }
        Ok(())
    }

    /// Changes what is known, and then what follows from it.
    fn change(&self, change: impl FnOnce(&mut Known, &mut u64)) {
        let mut known = self.known.lock();
        let mut holder = self.holder.load(Ordering::Acquire);
        change(&mut known, &mut holder);
        self.holder.store(holder, Ordering::Release);
        let any = known.last.as_ref().is_some_and(|l| l.is_held) || !known.fenced.is_empty();
        self.any.store(any, Ordering::Release);
    }
}

/// Whether a claim is granted after the last one; `is_present`: a session that holds that is there.
pub(crate) fn admit(
    last: Option<&Owner>,
    asked: &ClaimParameters,
    is_present: bool,
) -> Result<(), Sense> {
    let accepted = |sense| if asked.accept_loss { Ok(()) } else { Err(sense) };
    let Some(last) = last else {
        // The log knows of a claim that this unit has never seen.
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
    // Nobody is ahead of anybody any more: one who says so goes on, from whichever copy.
    if last.is_dropped {
        return accepted(Sense::CLAIM_DROPPED);
    }
    // The same opening comes back.
    if (last.opening, last.generation) == (asked.opening, asked.generation) {
        return Ok(());
    }
    // This very claim was granted here once, after the one that stands: no matter that it succeeds that.
    if asked.granted == asked.generation && asked.granted > last.generation {
        return accepted(Sense::CLAIM_WENT_BACK);
    }
    if asked.predecessors.contains(&last.opening) && asked.generation > last.generation {
        // A copy of the log that was started by accident must not stop who works with it.
        let is_at_work = is_present && !asked.takes_over;
        return if is_at_work { Err(Sense::CLAIM_OWNER_IS_PRESENT) } else { Ok(()) };
    }
    if asked.granted > last.generation {
        return accepted(Sense::CLAIM_WENT_BACK);
    }
    Err(Sense::CLAIM_FENCED)
}

/// What a command has to do with the blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Touch {
    Nothing,
    /// Speaks for what was written.
    Flushes,
    Reads,
    Changes,
}

impl Touch {
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::CompareAndWrite(_)
            | Command::OrWrite(_)
            | Command::RollBack
            | Command::Sanitize(_)
            | Command::Unmap { .. }
            | Command::Write(_)
            | Command::WriteAndVerify { .. }
            | Command::WriteAtomic { .. }
            | Command::WriteSame { .. }
            | Command::WriteUsingToken { .. } => Self::Changes,
            Command::PopulateToken { .. }
            | Command::PreFetch { .. }
            | Command::Read(_)
            | Command::Verify { .. } => Self::Reads,
            Command::SynchronizeCache { .. } => Self::Flushes,
            // What an EXTENDED COPY reads and writes it does by commands of its own.
            _ => Self::Nothing,
        }
    }
}

impl Owner {
    pub(crate) fn to_record(&self) -> Vec<u8> {
        let flags =
            u8::from(self.is_held) | u8::from(self.is_dirty) << 1 | u8::from(self.is_dropped) << 2;
        let mut bytes = vec![VERSION, flags, self.name.len() as u8, 0];
        bytes.extend_from_slice(&self.instance);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.opening.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// Reads a record. `None` if it is none.
    pub(crate) fn from_record(bytes: &[u8]) -> Option<Self> {
        let (fixed, name) = bytes.split_first_chunk::<36>()?;
        let number = |at: usize| fixed[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let is_right = fixed[0] == VERSION
            && fixed[1] < 8
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
        })
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// No session: they are numbered from below.
const NOBODY: u64 = u64::MAX;
/// Of the record; `docs/formats/state.md` has its bytes.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(generation: u64, opening: u64) -> Owner {
        Owner {
            name: "iqn.a:a".into(),
            instance: [1; 16],
            generation,
            opening,
            is_held: true,
            is_dirty: true,
            is_dropped: false,
        }
    }

    fn asked(generation: u64, opening: u64, granted: u64, predecessors: &[u64]) -> ClaimParameters {
        ClaimParameters {
            owner: "iqn.a:a".into(),
            instance: [1; 16],
            generation,
            opening,
            granted,
            predecessors: predecessors.to_vec(),
            writes_back: true,
            is_dirty: true,
            accept_loss: false,
            takes_over: false,
            shares: false,
        }
    }

    fn accepting(asked: &ClaimParameters) -> ClaimParameters {
        ClaimParameters { accept_loss: true, ..asked.clone() }
    }

    #[test]
    fn the_first_claim_is_granted_and_its_successors_are() {
        assert_eq!(admit(None, &asked(2, 20, 0, &[]), false), Ok(()));
        let last = owner(2, 20);
        assert_eq!(admit(Some(&last), &asked(2, 20, 2, &[]), true), Ok(()), "it comes back");
        assert_eq!(admit(Some(&last), &asked(3, 30, 2, &[20]), false), Ok(()));
        // Cut off after it was granted, before its log knew.
        assert_eq!(admit(Some(&last), &asked(3, 30, 1, &[10, 20]), false), Ok(()));
    }

    #[test]
    fn of_two_copies_of_a_log_the_second_is_fenced_whatever_its_generation() {
        let last = owner(3, 30);
        for generation in [3, 4, 99] {
            let copy = asked(generation, 31, 2, &[20]);
            assert_eq!(admit(Some(&last), &copy, false), Err(Sense::CLAIM_FENCED));
            // No setting of the copy's own gets it in.
            assert_eq!(admit(Some(&last), &accepting(&copy), false), Err(Sense::CLAIM_FENCED));
        }
        let given_back = Owner { is_held: false, is_dirty: false, ..last };
        let copy = asked(4, 31, 2, &[20]);
        assert_eq!(admit(Some(&given_back), &copy, false), Err(Sense::CLAIM_FENCED));
    }

    #[test]
    fn who_is_at_work_is_shut_out_on_purpose_only() {
        let last = owner(2, 20);
        let next = asked(3, 30, 2, &[20]);
        let refused = Err(Sense::CLAIM_OWNER_IS_PRESENT);
        assert_eq!(admit(Some(&last), &next, true), refused);
        assert_eq!(admit(Some(&last), &accepting(&next), true), refused);
        let adopts = ClaimParameters { takes_over: true, ..next };
        assert_eq!(admit(Some(&last), &adopts, true), Ok(()));
    }

    #[test]
    fn a_unit_of_an_earlier_day_is_noticed() {
        let later = asked(8, 80, 7, &[70]);
        for last in [None, Some(&owner(5, 50))] {
            assert_eq!(admit(last, &later, false), Err(Sense::CLAIM_WENT_BACK));
            assert_eq!(admit(last, &accepting(&later), false), Ok(()));
        }
        // Its session comes again, and it was granted when the one of 70 was the last.
        let again = asked(8, 80, 8, &[70]);
        for last in [None, Some(&owner(7, 70))] {
            assert_eq!(admit(last, &again, false), Err(Sense::CLAIM_WENT_BACK));
            assert_eq!(admit(last, &accepting(&again), false), Ok(()));
        }
        assert_eq!(admit(Some(&owner(8, 80)), &again, false), Ok(()));
    }

    #[test]
    fn another_log_waits_until_the_claim_is_given_back() {
        let other = ClaimParameters { instance: [2; 16], is_dirty: false, ..asked(2, 9, 0, &[]) };
        let held = owner(3, 30);
        let refused = Err(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
        assert_eq!(admit(Some(&held), &other, false), refused);
        assert_eq!(admit(Some(&held), &accepting(&other), false), refused);
        // Nothing can be lost of who only reads ahead, once it is gone.
        let clean = Owner { is_dirty: false, ..owner(3, 30) };
        assert_eq!(admit(Some(&clean), &other, true), refused);
        assert_eq!(admit(Some(&clean), &other, false), Ok(()));
        let free = Owner { is_held: false, is_dirty: false, ..owner(3, 30) };
        assert_eq!(admit(Some(&free), &other, false), Ok(()));
        let dirty = ClaimParameters { is_dirty: true, ..other };
        assert_eq!(admit(Some(&free), &dirty, false), Err(Sense::CLAIM_OUT_OF_DATE));
        assert_eq!(admit(Some(&free), &accepting(&dirty), false), Ok(()));
    }

    #[test]
    fn what_the_operator_dropped_comes_back_only_if_its_own_operator_says_so() {
        let dropped = Owner { is_held: false, is_dropped: true, ..owner(3, 30) };
        let same = asked(3, 30, 2, &[20]);
        assert_eq!(admit(Some(&dropped), &same, false), Err(Sense::CLAIM_DROPPED));
        let next = asked(4, 40, 3, &[30]);
        assert_eq!(admit(Some(&dropped), &next, false), Err(Sense::CLAIM_DROPPED));
        assert_eq!(admit(Some(&dropped), &accepting(&next), false), Ok(()));
        // A copy that had been shut out is let in as well, if all that came after it is gone.
        let copy = asked(3, 31, 2, &[20]);
        assert_eq!(admit(Some(&dropped), &copy, false), Err(Sense::CLAIM_DROPPED));
        assert_eq!(admit(Some(&dropped), &accepting(&copy), false), Ok(()));
    }

    #[test]
    fn the_record_byte_by_byte_and_back() {
        let record = owner(0x0201, 0x0403).to_record();
        assert_eq!(record[..4], [1, 3, 7, 0]);
        assert_eq!(record[4..20], [1; 16]);
        assert_eq!(record[20..36], [1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record[36..], *b"iqn.a:a");
        assert_eq!(Owner::from_record(&record), Some(owner(0x0201, 0x0403)));
        for length in 0..record.len() {
            assert_eq!(Owner::from_record(&record[..length]), None, "{length}");
        }
        for (at, byte) in [(0, 2), (1, 8), (2, 8), (3, 1), (36, 0x1b)] {
            let mut bytes = record.clone();
            bytes[at] = byte;
            assert_eq!(Owner::from_record(&bytes), None, "{at}");
        }
    }
}
