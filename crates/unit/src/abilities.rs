//! Optional abilities of a unit besides answering commands. A node or a copy manager asks a unit for its
//! abilities and need not know its device type.

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc};

use coherence::SharingMemberStatus;
use scsi::{ClaimReport, Sense, copy::TOKEN_BYTES};

use crate::{Rod, UnitIdentity};

/// The optional abilities of one unit; `None` for each ability that the unit does not have.
#[derive(Clone, Copy, Default)]
pub struct UnitAbilities<'a> {
    /// The unit takes part in third-party copies.
    pub copies: Option<&'a dyn CopyMember>,
    /// Set if one gateway can claim the exclusive right to write the unit, or several can share it.
    pub claims: Option<&'a dyn ClaimedUnit>,
    /// Set if the unit can move to another node.
    pub moves: Option<&'a dyn MovableUnit>,
    /// The unit has flush commands, which the target must begin in the order of arrival.
    pub flushes: Option<&'a dyn FlushedUnit>,
    /// True if all sense data about the unit must have descriptor format, also sense data that the session or the
    /// target makes. Never changes. Object storage devices require it (OSD-2).
    pub descriptor_sense_only: bool,
}

/// A unit with commands that make earlier writes stable. A target with several connections must begin such a
/// command when it arrives. If it began later, writes that arrived meanwhile on other connections would be
/// performed before it.
pub trait FlushedUnit: Send + Sync {
    /// Returns true for a CDB that makes earlier writes stable and returns no data.
    fn is_flush(&self, cdb: &[u8]) -> bool;
}

/// A unit that takes part in third-party copies (SPC-4, 5.16).
pub trait CopyMember: Send + Sync {
    /// Returns the NAA designator by which copy commands name the unit.
    fn naa(&self) -> [u8; 16];

    /// Returns the blocks that a ROD token of this unit represents.
    ///
    /// # Errors
    /// Sense data with the reason why the token is not valid here.
    fn rod(&self, token: &[u8; TOKEN_BYTES]) -> Result<Arc<Rod>, Sense>;
}

/// A unit that an exclusive writer can claim (CLAIM OUT), or that several gateways share.
pub trait ClaimedUnit: Send + Sync {
    /// Returns the claim that was granted last. `None` if no claim was ever granted, or if the unit cannot be
    /// claimed.
    fn claim_report(&self) -> Option<ClaimReport>;

    /// Returns the gateways that share the unit, those whose claim was dropped included. Empty if the unit is
    /// not shared.
    fn sharers(&self) -> Vec<Sharer>;

    /// Ends the claim on behalf of the unit's operator. If several gateways share the unit, ends the claims
    /// of the absent ones: those without a session, or silent for longer than a lease. Data that only the
    /// logs of these gateways hold is lost: the unit refuses it from then on.
    ///
    /// # Errors
    /// See [`NotDropped`]. The claim is still in force, and the call may be repeated.
    fn drop_claim(&self) -> UnitFuture<'_, Result<(), NotDropped>>;
}

/// The calls that move a unit to another node.
pub trait MovableUnit: Send + Sync {
    /// Returns the unit's names. They stay the same when the unit moves to another node.
    fn identity(&self) -> &UnitIdentity;

    /// Waits for all commands that have begun. Delays new commands until the result is dropped, except those
    /// at the head of the queue, which change nothing.
    fn hold(&self) -> UnitFuture<'_, HeldUnit<'_>>;

    /// Returns the record of reservations for the node that will serve the unit. The record includes
    /// reservations that a loss of power here would end.
    fn reservations_to_move(&self) -> Vec<u8>;

    /// Returns true if the unit must not move now, because a SANITIZE is running or has failed.
    fn is_sanitizing(&self) -> bool;
}

pub type UnitFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// New commands of the unit wait until this value is dropped.
pub struct HeldUnit<'a> {
    _held: Box<dyn Send + 'a>,
}

impl<'a> HeldUnit<'a> {
    /// Keeps the locks `held`, which delay new commands of the unit, until the result is dropped.
    pub(crate) fn new(held: impl Send + 'a) -> Self {
        Self { _held: Box::new(held) }
    }
}

/// A gateway that shares the unit with others, as the status report shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sharer {
    pub claim: ClaimReport,
    /// The coherence tokens that the gateway holds, and its lease.
    pub standing: SharingMemberStatus,
}

/// The reason why a claim could not be dropped. The claim is still in force.
#[derive(Clone, Debug)]
pub enum NotDropped {
    /// The volume could not be rolled back to the last flush of the owner.
    NotRolledBack(volume::Error),
    /// The unit's store could not save that the claim has ended, so the claim is still in force.
    NotSaved,
}

impl fmt::Display for NotDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRolledBack(error) => {
                write!(
                    f,
                    "the writes that the claim's owner has not flushed cannot be rolled back: {error}"
                )
            }
            Self::NotSaved => f.write_str("the record of the claim cannot be saved"),
        }
    }
}

impl Error for NotDropped {}
