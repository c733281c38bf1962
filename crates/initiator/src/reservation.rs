//! Reserves a unit whose target does not support claims. A persistent reservation (write exclusive, registrants only;
//! SPC-4, 5.13) then replaces the claim. Its key identifies the log and its opening.
//!
//! The reservation keeps other initiators from writing, and a later opening of a log preempts an earlier one. The
//! reservation cannot distinguish two copies of a log that were opened equally often: the first of them gets the
//! reservation.

use std::sync::Arc;

use bytes::Bytes;
use iscsi::session::initiator::DataPhase;
use scsi::{
    Cdb, PersistentReserveIn, PersistentReserveOut, PrimaryCommand, ScsiStatus, Sense,
    persistent::{OutParameters, ReservationType, ReserveAction, ReserveReport},
};
use volume::{Claim, Data, Holding};

pub(crate) struct ScsiCommandEnd {
    pub(crate) status: ScsiStatus,
    pub(crate) sense: Option<Sense>,
    pub(crate) data: Data,
}

/// Returns the reservation key for an opening of a log. The upper half of the key identifies the log, and the lower
/// half is its generation.
pub(crate) fn key(claim: &Claim) -> u64 {
    // Use FNV-1a, whose result does not depend on the version of the compiler.
    let hash = claim.instance.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash & 0xffff_ffff_0000_0000 | u64::from(claim.generation as u32).max(1)
}

/// Registers a session and takes the reservation, if necessary from earlier openings of the log. This is a state
/// machine: `next` returns the next command to send, and `handle` receives its result.
pub(crate) struct Reserving {
    ours: u64,
    step: ReservingStep,
    /// The keys of earlier openings of this log. All of them are preempted, whether they hold the reservation or not.
    earlier: Vec<u64>,
}

enum ReservingStep {
    Register,
    Keys,
    Preempt,
    Reserve,
    Reservation {
        reserved: String,
    },
    /// A later opening of this log is registered. Remove our registration, then end with this reason.
    Withdraw(Arc<str>),
    Done(Holding),
}

/// The next step for the caller of [`Reserving::next`].
pub(crate) enum NextReservationCommand {
    Send(Cdb, DataPhase),
    Done(Holding),
}

impl Reserving {
    pub(crate) fn new(claim: &Claim) -> Self {
        Self { ours: key(claim), step: ReservingStep::Register, earlier: Vec::new() }
    }

    pub(crate) fn next(&self) -> NextReservationCommand {
        let ours = OutParameters { key: self.ours, ..OutParameters::default() };
        let (cdb, transfer) = match &self.step {
            ReservingStep::Register => {
                let action_key = self.ours;
                let first = OutParameters { action_key, persist: true, ..OutParameters::default() };
                out(ReserveAction::RegisterAndIgnoreExistingKey, &first)
            }
            ReservingStep::Keys => ask(ReserveReport::Keys),
            ReservingStep::Preempt => {
                let action_key = self.earlier.last().copied().unwrap_or_default();
                out(ReserveAction::PreemptAndAbort(KIND), &OutParameters { action_key, ..ours })
            }
            ReservingStep::Reserve => out(ReserveAction::Reserve(KIND), &ours),
            ReservingStep::Reservation { .. } => ask(ReserveReport::Reservation),
            ReservingStep::Withdraw(_) => out(ReserveAction::Register, &ours),
            ReservingStep::Done(holding) => return NextReservationCommand::Done(holding.clone()),
        };
        NextReservationCommand::Send(cdb, transfer)
    }

    pub(crate) fn handle(&mut self, ended: ScsiCommandEnd) {
        let refused = |why: String| ReservingStep::Done(Holding::Refused(why.into()));
        self.step = match std::mem::replace(&mut self.step, ReservingStep::Register) {
            ReservingStep::Register if ended.status == ScsiStatus::Good => ReservingStep::Keys,
            ReservingStep::Register => refused(format!(
                "the target does not support reservations that persist over a loss of power ({})",
                told(&ended)
            )),
            ReservingStep::Keys => self.judge(&ended.data.into_bytes()),
            ReservingStep::Preempt => {
                self.earlier.pop();
                self.preempt()
            }
            ReservingStep::Reserve => ReservingStep::Reservation { reserved: told(&ended) },
            ReservingStep::Reservation { reserved } => {
                let held = ended.data.into_bytes();
                let held = body(&held);
                match held.first_chunk::<8>().map(|key| u64::from_be_bytes(*key)) {
                    Some(key) if key == self.ours && held.get(13) == Some(&(KIND as u8)) => {
                        ReservingStep::Done(Holding::Reserved)
                    }
                    Some(key) => refused(format!(
                        "another initiator has reserved the unit with the key {key:016x}"
                    )),
                    None => refused(format!("the target did not reserve the unit ({reserved})")),
                }
            }
            ReservingStep::Withdraw(reason) => ReservingStep::Done(Holding::Refused(reason)),
            done @ ReservingStep::Done(_) => done,
        };
    }

    /// Decides by the keys that are registered: a later opening of this log wins over this one, and this one preempts
    /// earlier ones.
    fn judge(&mut self, report: &[u8]) -> ReservingStep {
        let ours = self.ours;
        let of_this_log = body(report).chunks_exact(8).map(be64).filter(|k| k >> 32 == ours >> 32);
        let (later, earlier): (Vec<u64>, _) =
            of_this_log.filter(|key| *key != ours).partition(|key| *key > ours);
        self.earlier = earlier;
        match later.first() {
            Some(later) => ReservingStep::Withdraw(
                format!(
                    "another copy of this log is in use as generation {}; this one is generation {}",
                    *later as u32, ours as u32
                )
                .into(),
            ),
            None => self.preempt(),
        }
    }

    fn preempt(&self) -> ReservingStep {
        if self.earlier.is_empty() { ReservingStep::Reserve } else { ReservingStep::Preempt }
    }
}

/// Encodes the command that removes this initiator's registration and thus also its reservation.
pub(crate) fn give_back(claim: &Claim) -> (Cdb, DataPhase) {
    out(ReserveAction::Register, &OutParameters { key: key(claim), ..OutParameters::default() })
}

fn out(action: ReserveAction, parameters: &OutParameters) -> (Cdb, DataPhase) {
    let list = parameters.to_bytes();
    let parameter_list_length = list.len() as u32;
    let command = PrimaryCommand::PersistentReserveOut(PersistentReserveOut {
        action,
        parameter_list_length,
    });
    (command.encode(), DataPhase::Out(Bytes::from(list)))
}

fn ask(report: ReserveReport) -> (Cdb, DataPhase) {
    let asked = PersistentReserveIn { report, allocation_length: REPORT_BYTES };
    (PrimaryCommand::PersistentReserveIn(asked).encode(), DataPhase::In(REPORT_BYTES.into()))
}

/// Returns the data that follows PRGENERATION and ADDITIONAL LENGTH in a report, as far as it was received.
fn body(report: &[u8]) -> &[u8] {
    let length =
        report.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b));
    let rest = report.get(8..).unwrap_or_default();
    &rest[..rest.len().min(length as usize)]
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn told(ended: &ScsiCommandEnd) -> String {
    ended.sense.map_or_else(|| format!("{:?}", ended.status), |sense| sense.to_string())
}

const KIND: ReservationType = ReservationType::WriteExclusiveRegistrantsOnly;
/// The allocation length of a report, enough for 511 keys, which is more than the hosts that write to one unit.
const REPORT_BYTES: u16 = 4096;
