//! The claim by which a cache becomes the exclusive writer of its unit (CLAIM OUT, `docs/protocols.md`): its
//! parameters, and what the initiator does with the unit's answers.

use std::sync::Arc;

use bytes::Bytes;
use iscsi::session::initiator::{DataPhase, InitiatorCommandOutcome};
use parking_lot::Mutex;
use scsi::{
    Cdb, ClaimAction, ClaimParameters, ClaimReport, ScsiStatus, Sense, SenseKey, VendorCommand,
};
use tracing::warn;
use volume::{Claim, Data, Holding};

use crate::{
    Error, Settings,
    error::is_refusal,
    probe::{MOST_UNIT_ATTENTIONS, is_news},
    reservation::{NextReservationCommand, Reserving, ScsiCommandEnd},
    session_io::SessionIo,
};

/// The claim that a volume has requested, and what the unit has answered to it.
#[derive(Default)]
pub(crate) struct Claimed {
    inner: Mutex<RemoteClaimState>,
}

#[derive(Default)]
struct RemoteClaimState {
    claim: Option<Arc<Claim>>,
    holding: Holding,
    was_held: bool,
    /// True if the node runs an older version of Forebay, which does not record confirmed writes.
    is_old: bool,
    /// True if the unit has ever carried out an ADVANCE, so that its node is known to support it.
    has_advanced: bool,
    /// The newest number of a confirmed write that the unit has on stable storage.
    advanced: u64,
}

impl Claimed {
    /// Makes all later sessions present this claim, and not an earlier one. Has no effect after a refusal.
    pub(crate) fn set(&self, claim: Arc<Claim>) {
        let mut inner = self.inner.lock();
        if !matches!(inner.holding, Holding::Refused(_)) {
            *inner = RemoteClaimState {
                claim: Some(claim),
                holding: Holding::Waiting,
                ..RemoteClaimState::default()
            };
        }
    }

    pub(crate) fn get(&self) -> Option<Arc<Claim>> {
        self.inner.lock().claim.clone()
    }

    /// Returns the claim with the current value of the field `granted`. If the unit was restored from an older backup,
    /// the field tells the unit that it has granted the claim before. Without the field, the unit would treat the claim
    /// as that of a new owner.
    pub(crate) fn asked(&self, claim: &Arc<Claim>) -> Claim {
        let inner = self.inner.lock();
        let is_current = inner.claim.as_ref().is_some_and(|current| Arc::ptr_eq(current, claim));
        let was_granted = is_current && inner.was_held;
        let granted = if was_granted { claim.generation } else { claim.granted };
        Claim { granted, ..Claim::clone(claim) }
    }

    /// Returns the version of the CLAIM OUT parameter list to send, which depends on what the unit understands.
    pub(crate) fn list(&self) -> List {
        if self.inner.lock().is_old { List::Old } else { List::Confirmed }
    }

    /// Notes that the node does not record confirmed writes, and logs an event. Returns false if this was noted before.
    pub(crate) fn note_old(&self) -> bool {
        let is_new = !std::mem::replace(&mut self.inner.lock().is_old, true);
        if is_new {
            warn!(
                "the node has an older version, which does not record confirmed writes: it cannot recognize an older \
                 copy of log and NVRAM"
            );
        }
        is_new
    }

    /// Notes that the unit has recorded this confirmed number after an ADVANCE, which also shows that it supports
    /// ADVANCE.
    pub(crate) fn note_advance(&self, confirmed: u64) {
        self.inner.lock().has_advanced = true;
        self.note_advanced(confirmed);
    }

    /// Handles the sense data of a refused ADVANCE. If the unit does not know the action and has never carried it out,
    /// its node has an older version. After any other refusal the number is sent again later.
    pub(crate) fn note_refused_advance(&self, sense: &Sense) {
        let is_unknown = sense.is(Sense::INVALID_COMMAND_OPERATION_CODE)
            || sense.is(Sense::INVALID_FIELD_IN_CDB);
        if is_unknown && !sense.deferred && !self.inner.lock().has_advanced {
            self.note_old();
        }
    }

    /// Returns the confirmed number that the unit does not have yet; `None` if the unit has the newest one, or does not
    /// record confirmed numbers.
    pub(crate) fn to_advance(&self) -> Option<u64> {
        let inner = self.inner.lock();
        let confirmed = inner.claim.as_ref()?.confirmed.get();
        (!inner.is_old && confirmed > inner.advanced).then_some(confirmed)
    }

    /// Records that the unit has stored the confirmed write number `confirmed`.
    pub(crate) fn note_advanced(&self, confirmed: u64) {
        let mut inner = self.inner.lock();
        inner.advanced = inner.advanced.max(confirmed);
    }

    /// Forgets the claim after its release, so that later sessions do not present it to the unit.
    pub(crate) fn clear(&self) {
        *self.inner.lock() = RemoteClaimState::default();
    }

    pub(crate) fn holding(&self) -> Holding {
        self.inner.lock().holding.clone()
    }

    /// Records the result of a claim. Returns false if another claim has replaced `claim` meanwhile, since the result
    /// does not apply to the new one.
    ///
    /// A refusal is final: the data of an initiator that was fenced is older than the unit's.
    pub(crate) fn note(&self, claim: &Arc<Claim>, holding: Holding) -> bool {
        let mut inner = self.inner.lock();
        let is_current = inner.claim.as_ref().is_some_and(|current| Arc::ptr_eq(current, claim));
        if is_current && !matches!(inner.holding, Holding::Refused(_)) {
            inner.was_held |= holding == Holding::Held;
            inner.holding = holding;
        }
        is_current
    }

    /// Returns an error if the claim was refused. A refused claim must not be presented again. While the rightful owner
    /// is disconnected, the unit might grant it, and would then fence the owner when it returns.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.holding() {
            Holding::Refused(reason) => Err(Error::Fenced(reason)),
            _ => Ok(()),
        }
    }

    /// Presents the current claim, if there is one, in a new session before any other command. If another claim
    /// replaces it meanwhile, presents that one, too.
    pub(crate) async fn present(
        &self,
        io: &mut SessionIo,
        settings: &Settings,
    ) -> Result<(), Error> {
        loop {
            self.check()?;
            let Some(claim) = self.get() else { return Ok(()) };
            let holding = present(self, &self.asked(&claim), io, settings).await?;
            if self.note(&claim, holding) {
                return self.check();
            }
        }
    }
}

async fn present(
    claimed: &Claimed,
    claim: &Claim,
    io: &mut SessionIo,
    settings: &Settings,
) -> Result<Holding, Error> {
    let outcome = loop {
        let (cdb, transfer) = out(ClaimAction::Claim, claim, claimed.list());
        let outcome = ask(io, settings, cdb, transfer).await?;
        let is_old = outcome.sense.as_ref().is_some_and(knows_no_confirmed);
        if !(is_old && claimed.note_old()) {
            break outcome;
        }
    };
    let answer = match (outcome.status, outcome.sense) {
        (ScsiStatus::Good, _) => ClaimOutReply::Granted,
        (_, Some(sense)) => ClaimOutReply::of(sense, claim)
            .ok_or_else(|| Error::unit(format!("the claim is not answered: {sense}")))?,
        (status, None) => {
            return Err(Error::unit(format!("the claim is not answered: {status:?}")));
        }
    };
    Ok(match answer {
        ClaimOutReply::Granted => Holding::Held,
        ClaimOutReply::Unsupported if settings.reserve => {
            let mut reserving = Reserving::new(claim);
            loop {
                let (cdb, transfer) = match reserving.next() {
                    NextReservationCommand::Send(cdb, transfer) => (cdb, transfer),
                    NextReservationCommand::Done(holding) => break holding,
                };
                let InitiatorCommandOutcome { status, sense, data_in, .. } =
                    ask(io, settings, cdb, transfer).await?;
                let data = data_in.into_iter().collect();
                reserving.handle(ScsiCommandEnd { status, sense, data });
            }
        }
        ClaimOutReply::Unsupported => Holding::Unsupported,
        ClaimOutReply::Lost => Holding::Refused(LOST.into()),
        ClaimOutReply::Refused(sense) => {
            let (cdb, transfer) = r#in();
            let told = ask(io, settings, cdb, transfer).await?;
            let told: Data = told.data_in.into_iter().collect();
            let report = ClaimReport::from_bytes(&told.into_bytes());
            Holding::Refused(reason(sense, claim, report.as_ref()))
        }
    })
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ClaimOutReply {
    Granted,
    /// The unit does not support claims.
    Unsupported,
    /// The unit has granted a claim of this log before, but does not support claims now.
    Lost,
    Refused(Sense),
}

impl ClaimOutReply {
    /// Interprets sense data as an answer to a claim. Returns `None` if it does not answer the claim.
    pub(crate) fn of(sense: Sense, claim: &Claim) -> Option<Self> {
        if is_refusal(&sense) {
            return Some(Self::Refused(sense));
        }
        let is_unknown = sense.key == SenseKey::IllegalRequest && matches!(sense.asc, 0x20 | 0x24);
        match (is_unknown, claim.granted > 0 && !claim.accept_loss) {
            (true, true) => Some(Self::Lost),
            (true, false) => Some(Self::Unsupported),
            _ => None,
        }
    }
}

pub(crate) const LOST: &str =
    "the unit has granted a claim of this log before, but no longer supports claims";

/// The version of the parameter list that CLAIM OUT sends to a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum List {
    /// Version 2, which has the number of the confirmed write.
    Confirmed,
    /// Version 1. An older node refuses version 2.
    Old,
}

/// Returns true for the sense data with which an older node, which supports only version 1, refuses a list of version
/// 2: 5/26/00 that points at the version, or 5/1A/00.
pub(crate) fn knows_no_confirmed(sense: &Sense) -> bool {
    sense.key == SenseKey::IllegalRequest && matches!(sense.asc, 0x1a | 0x26)
}

/// Encodes a CLAIM OUT command with this action and the parameters of `claim`.
pub(crate) fn out(action: ClaimAction, claim: &Claim, list: List) -> (Cdb, DataPhase) {
    let owner = printable_owner(claim);
    let most = claim.predecessors.len().min(Claim::MOST_PREDECESSORS);
    let list = ClaimParameters {
        owner: if owner.is_empty() { "?".into() } else { owner },
        instance: claim.instance,
        generation: claim.generation,
        opening: claim.opening,
        granted: claim.granted,
        predecessors: claim.predecessors[..most].to_vec(),
        writes_back: claim.writes_back,
        is_dirty: claim.is_dirty.get(),
        accept_loss: claim.accept_loss,
        takes_over: claim.takes_over,
        shares: claim.shares,
        confirmed: (list == List::Confirmed).then(|| claim.confirmed.get()),
    }
    .to_bytes();
    let parameter_list_length = list.len() as u16;
    let command = VendorCommand::ClaimOut { action, parameter_list_length };
    (command.encode(), DataPhase::Out(Bytes::from(list)))
}

/// Returns the owner's name as the unit receives it: characters other than printable ASCII become `?`.
fn printable_owner(claim: &Claim) -> String {
    let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    claim.owner.chars().map(printable).take(Claim::MOST_OWNER).collect()
}

/// Follows the owner's name in the reason of a refused claim if the owner is this same gateway. The log with which this
/// gateway made that claim is then missing.
pub const OURSELVES: &str = "(this gateway itself)";

/// Text in the reason of a refusal because another gateway has claimed the unit, with another log.
pub const DATA_ELSEWHERE: &str = "its dirty data is with";

/// Text in the reason of a refusal because another gateway uses a copy of the same log.
pub const COPY_IN_USE: &str = "uses a copy of this log";

/// Part of the reason of a refused claim if the node was restored from an older backup.
pub const NODE_IS_OLDER: &str = "the node was restored from an older backup";

/// Logs in and reads the claim on the unit of `settings.lun`. Returns `None` if the unit does not support claims. The
/// report of a unit that was never claimed has an empty owner.
pub async fn claim_of(settings: &Settings) -> Result<Option<ClaimReport>, Error> {
    let mut io = SessionIo::open(settings, false).await?;
    let (cdb, transfer) = r#in();
    let told = ask(&mut io, settings, cdb, transfer).await?;
    io.log_out().await;
    let is_good = told.status == ScsiStatus::Good;
    let told: Data = told.data_in.into_iter().collect();
    Ok(ClaimReport::from_bytes(&told.into_bytes()).filter(|_| is_good))
}

/// Encodes a CLAIM IN command, which asks the unit for the claim in force.
pub(crate) fn r#in() -> (Cdb, DataPhase) {
    let length = ClaimReport::MOST_BYTES as u16;
    let command = VendorCommand::ClaimIn { allocation_length: length };
    (command.encode(), DataPhase::In(length.into()))
}

/// Describes a refused claim in words. `report` is what the unit reports about the owner of the claim in force.
pub(crate) fn reason(sense: Sense, claim: &Claim, report: Option<&ClaimReport>) -> Arc<str> {
    let ours = format!("this one is generation {}", claim.generation);
    if sense.ascq == Sense::CLAIM_BEHIND.ascq {
        let ends = claim.confirmed.get();
        let confirmed = sense.information.unwrap_or(0);
        return format!(
            "the log {}: it ends at write {ends}, and the node had confirmation of write {confirmed} from \
             it",
            Claim::OLDER_LOG
        )
        .into();
    }
    let Some(ClaimReport { owner, instance, generation, is_dropped, .. }) = report else {
        return format!("the unit refuses the claim ({sense}); {ours}").into();
    };
    let log: String = instance.iter().map(|byte| format!("{byte:02x}")).collect();
    match sense.ascq {
        0x80 if *is_dropped => {
            format!("the operator of the node has dropped the claim of this log (generation {generation})")
        }
        0x80 if *instance == claim.instance => format!(
            "another copy of this log was taken up by {owner} as generation {generation}; {ours}"
        ),
        0x81 | 0x80 if *owner == printable_owner(claim) => format!(
            "its dirty data is with {owner} {OURSELVES}, in another log: {log}, generation {generation}"
        ),
        0x81 | 0x80 => format!(
            "{DATA_ELSEWHERE} {owner}, in log {log}, generation {generation}"
        ),
        0x82 if *instance != claim.instance => format!(
            "the node knows nothing of this log, which was generation {} there: {NODE_IS_OLDER}, and later \
             writes are missing from it",
            claim.granted
        ),
        0x82 => format!(
            "the node knows this log as generation {generation}, and the log was generation {} \
             there: {NODE_IS_OLDER}, and later writes are missing from it",
            claim.granted
        ),
        0x83 => format!(
            "the operator of the node has dropped the claim of this log (generation {generation}): \
             other initiators may have written to the volume since; {ours}"
        ),
        0x85 => format!(
            "{owner} {COPY_IN_USE} at present (generation {generation}), and {ours}"
        ),
        0x86 if claim.shares => "the unit is not shared: set this in its settings".to_owned(),
        0x86 => "the unit is shared with other gateways: this gateway has to share it as well".to_owned(),
        _ => format!(
            "{owner} has used the volume with another log ({log}) since: the data in this log may be older"
        ),
    }
    .into()
}

/// Performs a command in a new session. Repeats it after the unit attentions with which the unit answers the first
/// commands of a new nexus.
async fn ask(
    io: &mut SessionIo,
    settings: &Settings,
    cdb: Cdb,
    transfer: DataPhase,
) -> Result<InitiatorCommandOutcome, Error> {
    let mut attentions = 0;
    loop {
        let outcome = io.execute(settings, cdb.clone(), transfer.clone()).await?;
        match &outcome.sense {
            Some(sense) if is_news(sense) && attentions < MOST_UNIT_ATTENTIONS => attentions += 1,
            _ => return Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(generation: u64, confirmed: u64) -> Arc<Claim> {
        Arc::new(Claim {
            owner: "a".into(),
            instance: [7; 16],
            generation,
            opening: generation,
            granted: 0,
            predecessors: Vec::new(),
            writes_back: true,
            is_dirty: volume::Dirty::new(false),
            accept_loss: false,
            takes_over: true,
            shares: false,
            confirmed: volume::Confirmed::new(confirmed),
        })
    }

    #[test]
    fn a_refused_advance_is_tried_again_unless_the_node_never_supported_it() {
        let refused_by = |sense, has_advanced: bool| {
            let claimed = Claimed::default();
            claimed.set(claim(1, 9));
            if has_advanced {
                claimed.note_advance(8);
            }
            claimed.note_refused_advance(&sense);
            claimed.to_advance()
        };
        for older in [Sense::INVALID_COMMAND_OPERATION_CODE, Sense::INVALID_FIELD_IN_CDB] {
            assert_eq!(refused_by(older, false), None, "{older}");
            assert_eq!(refused_by(older, true), Some(9), "{older}");
        }
        let passing = [
            Sense::LOGICAL_UNIT_NOT_SUPPORTED,
            Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE,
            Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        ];
        for sense in passing {
            assert_eq!(refused_by(sense, false), Some(9), "{sense}");
        }
    }

    #[test]
    fn only_the_current_claim_is_granted_or_refused_and_a_refusal_stays() {
        let claimed = Claimed::default();
        let [first, second, third] = [1, 2, 3].map(|generation| claim(generation, 0));
        let refused = Holding::Refused("another one has it".into());
        claimed.set(first.clone());
        claimed.set(second.clone());
        for answer in [Holding::Held, refused.clone()] {
            assert!(!claimed.note(&first, answer));
            assert_eq!(claimed.holding(), Holding::Waiting);
        }
        assert!(claimed.note(&second, refused.clone()));
        claimed.set(third.clone());
        assert_eq!(claimed.holding(), refused);
        assert!(!claimed.note(&third, Holding::Held));
        assert!(claimed.check().is_err());
    }
}
