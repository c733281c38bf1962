//! A unit that several gateways write to, each to the ranges for which it has coherence tokens (decision
//! 0016). Each gateway claims the unit as a single owner would (`ownership.rs`), but the claims of all are in
//! force together.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use coherence::{
    CoherenceRange, CoherenceRequest, Grantor, Millis, SharingMember, Terms, write_answers,
};
use parking_lot::Mutex;
use scsi::{BlockCommand, ClaimParameters, ClaimReport, Command, Sense};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use volume::{Extent, Geometry, Lba};

use crate::{
    abilities::Sharer,
    block::{
        limits::Share,
        ownership::{ClaimOwner, Touch, admit, hex},
        refused_claims::RefusedClaims,
    },
    sense::UnitCommandFailure,
    store::{UnitRecordKind, UnitStore, damaged},
    unit::Nexus,
};

/// The gateways that share a unit under coherence tokens.
///
/// Lock order: `saved` before `state`.
pub(crate) struct UnitSharing {
    store: Arc<dyn UnitStore>,
    grain: u32,
    started: Instant,
    state: Mutex<UnitSharingState>,
    /// Held while the set of owners changes, until the record of the change is saved.
    saved: tokio::sync::Mutex<()>,
    /// Wakes the sessions that wait in [`Self::hear`].
    told: Notify,
}

struct UnitSharingState {
    /// The gateways that share the unit. The index of a gateway in this list is its member number.
    owners: Vec<ClaimOwner>,
    grantor: Grantor,
    /// Sessions that have presented a claim which is in force, with their members.
    present: HashMap<u64, SharingMember>,
    /// Sessions whose claim is no longer in force, whose commands are therefore refused.
    fenced: HashSet<u64>,
    refused_claims: RefusedClaims,
}

impl UnitSharing {
    /// Loads the saved claims. `former` is the exclusive writer that the unit had before it was shared.
    pub(crate) fn load(
        share: Share,
        geometry: &Geometry,
        store: Arc<dyn UnitStore>,
        former: Option<ClaimOwner>,
    ) -> io::Result<Self> {
        let mut owners = Self::owners(&*store)?;
        match former {
            Some(former) if former.is_held => {
                return Err(io::Error::other(format!(
                    "gateway {} still has the exclusive claim on the unit: drain and stop that gateway first",
                    former.name
                )));
            }
            // Keep this record: the log of the former owner knows that it was granted a claim here.
            Some(former) if owners.is_empty() => owners.push(former),
            _ => {}
        }
        let grain = (share.grain_bytes / geometry.block_size).max(1);
        let ranges = ranges(geometry.blocks, grain).ok_or_else(|| {
            io::Error::other("the unit has too many ranges: set a larger `share_grain`")
        })?;
        let terms = Terms { lease: share.lease_ms.into(), ranges };
        let mut first = [0; 8];
        getrandom::fill(&mut first).map_err(io::Error::other)?;
        // Begin the grantor's numbers at a random one, which is far from those of earlier starts. The shift leaves room
        // to count up.
        let first = u64::from_ne_bytes(first) >> 2 | 1;
        let known = || numbered(&owners).filter(|(_, owner)| owner.is_held || owner.is_dropped);
        let mut grantor = Grantor::new(terms, first, known().map(|(member, _)| member), 0);
        // A gateway whose claim was dropped may still read until its lease has expired: the drop may have happened a
        // moment before the restart.
        for (dropped, _) in known().filter(|(_, owner)| owner.is_dropped) {
            grantor.expel(dropped, 0);
        }
        let state = UnitSharingState {
            owners,
            grantor,
            present: HashMap::new(),
            fenced: HashSet::new(),
            refused_claims: RefusedClaims::default(),
        };
        Ok(Self {
            store,
            grain,
            started: Instant::now(),
            state: Mutex::new(state),
            saved: tokio::sync::Mutex::default(),
            told: Notify::new(),
        })
    }

    /// Returns true if the store records gateways that still share the unit. Such a unit must not be served
    /// unshared.
    pub(crate) fn is_left(store: &dyn UnitStore) -> io::Result<bool> {
        Ok(Self::owners(store)?.iter().any(|owner| owner.is_held))
    }

    fn owners(store: &dyn UnitStore) -> io::Result<Vec<ClaimOwner>> {
        let record = store.load(UnitRecordKind::Sharing)?.unwrap_or_default();
        if record.is_empty() {
            return Ok(Vec::new());
        }
        read_record(&record).ok_or_else(|| damaged(UnitRecordKind::Sharing))
    }

    /// Returns the failure to report if this session may not execute the command, and `None` if it
    /// may.
    pub(crate) fn bar(
        &self,
        nexus: u64,
        command: &Command,
        reads_beside: bool,
    ) -> Option<UnitCommandFailure> {
        let touch = Touch::of(command);
        if touch == Touch::Nothing {
            return None;
        }
        let state = self.state.lock();
        if state.fenced.contains(&nexus) {
            return Some(Sense::CLAIM_FENCED.into());
        }
        let is_member = state.present.contains_key(&nexus);
        if !is_member && !state.owners.iter().any(|owner| owner.is_held) {
            return None;
        }
        match touch {
            Touch::Nothing | Touch::Flushes => None,
            Touch::Reads => (!is_member && !reads_beside).then_some(UnitCommandFailure::Conflict),
            // Admit only commands whose changed blocks are known from the CDB, so that they can be compared with the
            // member's tokens.
            Touch::Changes => match command {
                Command::Block(BlockCommand::Write(transfer))
                | Command::Block(BlockCommand::WriteSame { transfer, .. })
                    if is_member =>
                {
                    let (lba, blocks) = (Lba(transfer.lba), transfer.blocks.max(1));
                    state.check(nexus, Extent { lba, blocks }, self.grain).err()
                }
                _ => Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into()),
            },
        }
    }

    /// Checks that a session may change these blocks now. Call this with the blocks locked: a release of
    /// their range waits for that lock.
    pub(crate) fn check(&self, nexus: u64, extent: Extent) -> Result<(), UnitCommandFailure> {
        let state = self.state.lock();
        if !state.owners.iter().any(|owner| owner.is_held) {
            return Ok(());
        }
        state.check(nexus, extent, self.grain)
    }

    pub(crate) fn extent(&self, range: CoherenceRange) -> Extent {
        let lba = Lba(u64::from(range.0) * u64::from(self.grain));
        Extent { lba, blocks: self.grain }
    }

    /// CLAIM OUT: CLAIM. Changes nothing if it fails.
    ///
    /// # Errors
    /// 5/26/00 if the owner's name is not the initiator's; 7/27/81 if the list of members is full, if the
    /// session has the claim of another log, or if the initiator has [`MOST_OF_ONE`] members already;
    /// otherwise as with a claim on an unshared unit.
    pub(crate) async fn claim(&self, from: &Nexus, asked: ClaimParameters) -> Result<(), Sense> {
        let nexus = from.number;
        let _saving = self.saved.lock().await;
        let (owners, member) = {
            let mut state = self.state.lock();
            let admitted =
                is_own_name(from, &asked.owner).and_then(|()| state.admit(nexus, &asked));
            let member = admitted.inspect_err(|sense| {
                if state.refused_claims.is_new(asked.instance, *sense) {
                    tracing::warn!(owner = asked.owner, log = hex(&asked.instance), %sense, "claim refused");
                }
            })?;
            let mut owners = state.owners.clone();
            let next = ClaimOwner::granted(owners.get(member.0 as usize), asked);
            match owners.get_mut(member.0 as usize) {
                Some(owner) => *owner = next,
                None => owners.push(next),
            }
            (owners, member)
        };
        self.save(&owners).await?;
        let owner = &owners[member.0 as usize];
        tracing::info!(
            owner = owner.name,
            log = hex(&owner.instance),
            "claim granted on a shared unit"
        );
        let now = self.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let before: Vec<u64> = state.sessions_of(member).filter(|other| *other != nexus).collect();
        for before in before {
            state.present.remove(&before);
            state.fenced.insert(before);
        }
        state.fenced.remove(&nexus);
        state.refused_claims = RefusedClaims::default();
        state.owners = owners;
        // If the session only repeats its claim, do not attach it again: it keeps its tokens.
        if state.present.insert(nexus, member) != Some(member) {
            state.grantor.attach(member, now);
        }
        Ok(())
    }

    /// CLAIM OUT: RELEASE. No command of the session may be in progress. The record stays, so that older
    /// copies of the log are recognized.
    pub(crate) async fn release(&self, nexus: u64, asked: &ClaimParameters) -> Result<(), Sense> {
        let _saving = self.saved.lock().await;
        let (owners, member) = {
            let state = self.state.lock();
            let member = *state.present.get(&nexus).ok_or(Sense::CLAIM_FENCED)?;
            let mut owners = state.owners.clone();
            let owner = &mut owners[member.0 as usize];
            if !owner.is_of(asked) {
                return Err(Sense::CLAIM_FENCED);
            }
            (owner.is_held, owner.is_dirty) = (false, false);
            owner.confirmed = owner.confirmed.max(asked.confirmed.unwrap_or(0));
            (owners, member)
        };
        self.save(&owners).await?;
        let now = self.now();
        let mut state = self.state.lock();
        state.owners = owners;
        state.present.remove(&nexus);
        state.grantor.remove(member, now);
        drop(state);
        self.told.notify_waiters();
        Ok(())
    }

    /// Performs CLAIM OUT with the action ADVANCE. See [`crate::block::ownership::Ownership::advance`].
    pub(crate) async fn advance(&self, nexus: u64, asked: &ClaimParameters) -> Result<(), Sense> {
        let _saving = self.saved.lock().await;
        let owners = {
            let state = self.state.lock();
            let member = *state.present.get(&nexus).ok_or(Sense::CLAIM_FENCED)?;
            let mut owners = state.owners.clone();
            let owner = &mut owners[member.0 as usize];
            if !owner.is_of(asked) {
                return Err(Sense::CLAIM_FENCED);
            }
            owner.confirmed = owner.confirmed.max(asked.confirmed.unwrap_or(0));
            owners
        };
        self.save(&owners).await?;
        self.state.lock().owners = owners;
        Ok(())
    }

    /// Drops the claims of the absent gateways on behalf of the operator; their dirty data is lost. No
    /// command of these gateways may be in progress.
    pub(crate) async fn drop_absent(&self) -> Result<(), Sense> {
        let _saving = self.saved.lock().await;
        let now = self.now();
        let (owners, dropped) = {
            let state = self.state.lock();
            let mut owners = state.owners.clone();
            let mut dropped = Vec::new();
            for (at, owner) in owners.iter_mut().enumerate() {
                let member = SharingMember(at as u32);
                if owner.is_held && !state.is_there(member, now) {
                    (owner.is_held, owner.is_dropped) = (false, true);
                    dropped.push(member);
                }
            }
            (owners, dropped)
        };
        self.save(&owners).await?;
        let mut state = self.state.lock();
        let state = &mut *state;
        for member in &dropped {
            tracing::warn!(
                owner = owners[member.0 as usize].name,
                "claim dropped on behalf of the operator"
            );
            state.grantor.expel(*member, now);
            // Fence the session of a dropped gateway as well: a gateway that was cut off from the network may still
            // have one.
            let sessions: Vec<u64> = state.sessions_of(*member).collect();
            for session in sessions {
                state.present.remove(&session);
                state.fenced.insert(session);
            }
        }
        state.owners = owners;
        self.told.notify_waiters();
        Ok(())
    }

    /// CLAIM IN: reports the session's own claim. For a session without a claim, reports one of the claims in
    /// force, preferably that of an absent gateway.
    pub(crate) fn report(&self, nexus: u64) -> ClaimReport {
        let state = self.state.lock();
        let now = self.now();
        let own = state.present.get(&nexus).copied();
        let held = || {
            let held = numbered(&state.owners).filter(|(_, owner)| owner.is_held);
            // `false` sorts first, so an absent gateway is preferred.
            held.min_by_key(|(member, _)| state.is_there(*member, now)).map(|(m, _)| m)
        };
        own.or_else(held).map(|member| state.report(member, now)).unwrap_or_default()
    }

    /// Returns the gateways that share the unit, including those whose claim was dropped.
    pub(crate) fn sharers(&self) -> Vec<Sharer> {
        let now = self.now();
        let state = self.state.lock();
        let held = numbered(&state.owners).filter(|(_, owner)| owner.is_held || owner.is_dropped);
        held.map(|(member, _)| Sharer {
            claim: state.report(member, now),
            standing: state.grantor.standing(member, now),
        })
        .collect()
    }

    /// Handles one request of TOKEN OUT. `blocks` is the present size of the unit, which may have grown.
    pub(crate) fn ask(
        &self,
        nexus: u64,
        request: CoherenceRequest,
        blocks: u64,
    ) -> Result<(), Sense> {
        let now = self.now();
        let mut state = self.state.lock();
        // If the unit has grown beyond the largest number of ranges, the first ranges stay shared.
        if let Some(ranges) = ranges(blocks, self.grain) {
            state.grantor.grow(ranges);
        }
        let member = *state.present.get(&nexus).ok_or(Sense::CLAIM_FENCED)?;
        state.grantor.handle(member, request, now);
        drop(state);
        self.told.notify_waiters();
        Ok(())
    }

    /// TOKEN IN: waits until there are answers for the session, but no longer than `wait`.
    pub(crate) async fn hear(
        &self,
        nexus: u64,
        wait: Duration,
        most: usize,
    ) -> Result<Vec<u8>, Sense> {
        let until = Instant::now() + wait.min(MOST_WAIT);
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            {
                let now = self.now();
                let mut state = self.state.lock();
                let member = *state.present.get(&nexus).ok_or(Sense::CLAIM_FENCED)?;
                state.grantor.handle_timeout(now);
                let terms = state.grantor.terms();
                let is_some = state.grantor.answers(member).next().is_some();
                if is_some || Instant::now() >= until {
                    let answers = state.grantor.answers(member);
                    let (list, count) = write_answers(terms, self.grain, answers, most);
                    state.grantor.told(member, count);
                    return Ok(list);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            let _ = timeout(left.min(LOOK_EVERY), told).await;
        }
    }

    /// Records that a session has ended. The claim and the tokens of its gateway stay in force.
    pub(crate) fn close(&self, nexus: u64) {
        let mut state = self.state.lock();
        state.present.remove(&nexus);
        state.fenced.remove(&nexus);
    }

    async fn save(&self, owners: &[ClaimOwner]) -> Result<(), Sense> {
        let kept = self.store.save(UnitRecordKind::Sharing, to_record(owners)).await;
        kept.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)
    }

    fn now(&self) -> Millis {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Returns the number of ranges in this many blocks; `None` if it exceeds a u32.
fn ranges(blocks: u64, grain: u32) -> Option<u32> {
    u32::try_from(blocks.div_ceil(u64::from(grain))).ok()
}

impl UnitSharingState {
    /// Returns the member that a granted claim creates, or the reason why the claim is refused.
    fn admit(&self, nexus: u64, asked: &ClaimParameters) -> Result<SharingMember, Sense> {
        if !asked.shares {
            return Err(Sense::CLAIM_NOT_SHARED);
        }
        // A gateway has one session for each of its logs. Member numbers outlast sessions and restarts. Limit the logs
        // per session and the members per initiator name, so that one initiator cannot take all member numbers.
        let holds = self.present.get(&nexus).map(|member| &self.owners[member.0 as usize]);
        if holds.is_some_and(|owner| owner.instance != asked.instance) {
            return Err(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
        }
        let known = numbered(&self.owners).find(|(_, owner)| owner.instance == asked.instance);
        let is_present = known.is_some_and(|(member, _)| self.sessions_of(member).next().is_some());
        // The ranges of a dropped gateway may have been granted to others. Do not let this gateway rejoin while it may
        // still name these ranges as its own, even with accept_loss: after a restart, the node would wait for it.
        let may_name = |owner: &ClaimOwner| asked.is_dirty || asked.opening == owner.opening;
        if known.is_some_and(|(_, owner)| owner.is_dropped && may_name(owner)) {
            return Err(Sense::CLAIM_DROPPED);
        }
        admit(known.map(|(_, owner)| owner), asked, is_present)?;
        if let Some((member, _)) = known {
            return Ok(member);
        }
        let is_its = |owner: &&ClaimOwner| owner.is_held && owner.name == asked.owner;
        if self.owners.iter().filter(is_its).count() >= MOST_OF_ONE {
            return Err(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
        }
        if self.owners.len() < MOST_MEMBERS {
            return Ok(SharingMember(self.owners.len() as u32));
        }
        let free = numbered(&self.owners).find(|(_, owner)| !owner.is_held && !owner.is_dropped);
        free.map(|(member, _)| member).ok_or(Sense::CLAIM_HELD_BY_ANOTHER_LOG)
    }

    fn check(&self, nexus: u64, extent: Extent, grain: u32) -> Result<(), UnitCommandFailure> {
        let member =
            self.present.get(&nexus).ok_or(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)?;
        // Answer BUSY until the gateway has reported which coherence tokens it holds.
        if !self.grantor.is_joined(*member) {
            return Err(UnitCommandFailure::Busy);
        }
        let grain = u64::from(grain);
        let mut ranges = extent.lba.0 / grain..=(extent.end().0 - 1) / grain;
        let may = |range| {
            u32::try_from(range)
                .is_ok_and(|range| self.grantor.may_write(*member, CoherenceRange(range)))
        };
        if ranges.all(may) {
            Ok(())
        } else {
            Err(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into())
        }
    }

    fn sessions_of(&self, member: SharingMember) -> impl Iterator<Item = u64> {
        self.present.iter().filter(move |(_, of)| **of == member).map(|(nexus, _)| *nexus)
    }

    /// Returns true if the gateway has a session and has sent a message within its lease. The session alone is not
    /// enough: a session stays for a while after its connection was lost.
    fn is_there(&self, member: SharingMember, now: Millis) -> bool {
        let is_silent = self.grantor.standing(member, now).is_silent;
        !is_silent && self.sessions_of(member).next().is_some()
    }

    fn report(&self, member: SharingMember, now: Millis) -> ClaimReport {
        let owner = &self.owners[member.0 as usize];
        ClaimReport {
            owner: owner.name.clone(),
            instance: owner.instance,
            generation: owner.generation,
            is_held: owner.is_held,
            is_dirty: owner.is_dirty,
            is_dropped: owner.is_dropped,
            is_present: self.is_there(member, now),
            confirmed: owner.confirmed,
        }
    }
}

/// Messages show a claim by its owner's name, so this must be the name with which the initiator has
/// logged in. Gateways send that name with `?` in place of characters that are not printable ASCII.
fn is_own_name(from: &Nexus, owner: &str) -> Result<(), Sense> {
    let port = &*from.initiator_port;
    let name = port.rsplit_once(",i,0x").map_or(port, |(name, _)| name);
    let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    match name.chars().map(printable).eq(owner.chars()) {
        true => Ok(()),
        false => Err(Sense::invalid_field_in_parameter_list(OWNER_LENGTH)),
    }
}

fn numbered(owners: &[ClaimOwner]) -> impl Iterator<Item = (SharingMember, &ClaimOwner)> {
    owners.iter().enumerate().map(|(at, owner)| (SharingMember(at as u32), owner))
}

fn to_record(owners: &[ClaimOwner]) -> Vec<u8> {
    let mut bytes = vec![VERSION, owners.len() as u8];
    for owner in owners {
        let record = owner.to_record();
        bytes.extend_from_slice(&(record.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&record);
    }
    bytes
}

/// Parses a stored record of claims; returns `None` if it is invalid.
fn read_record(bytes: &[u8]) -> Option<Vec<ClaimOwner>> {
    let (&[version, count], mut rest) = bytes.split_first_chunk()?;
    let mut owners = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let record = after.get(..length)?;
        owners.push(ClaimOwner::from_record(record)?);
        rest = &after[length..];
    }
    let is_right = version == VERSION && rest.is_empty() && owners.len() <= MOST_MEMBERS;
    is_right.then_some(owners)
}

/// Maximum number of gateways of one unit, those included that have released it: more than share one volume anywhere we
/// know of.
const MOST_MEMBERS: usize = 16;
/// Maximum number of members with one initiator name. The gateways of one host have the same name if the settings give
/// them none.
const MOST_OF_ONE: usize = 4;
/// Offset of the byte with the length of the owner's name in the CLAIM OUT parameter list.
const OWNER_LENGTH: u16 = 13;
/// Longest wait of a TOKEN IN: well below the time-outs of initiators.
const MOST_WAIT: Duration = Duration::from_secs(5);
/// Interval at which a waiting TOKEN IN checks for expired leases: a small part of the shortest lease.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Version of the stored record; `docs/formats/state.md` describes its bytes.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_encoded_byte_by_byte_and_decoded_again() {
        let owner =
            ClaimOwner { name: "iqn.a:a".into(), instance: [1; 16], ..ClaimOwner::default() };
        let owners = vec![owner.clone(), ClaimOwner { is_held: true, ..owner }];
        let record = to_record(&owners);
        assert_eq!(record[..4], [1, 2, 43, 0]);
        assert_eq!(record.len(), 2 + 2 * (2 + 43));
        assert_eq!(read_record(&record), Some(owners));
        for length in 0..record.len() {
            assert_eq!(read_record(&record[..length]), None, "{length}");
        }
        let mut other = record;
        other[0] = 2;
        assert_eq!(read_record(&other), None);
    }
}
