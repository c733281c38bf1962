//! What some units can do besides answering commands. A unit hands these abilities out, so that a node or a copy
//! manager need not know which device type it has.

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc};

use coherence::SharingMemberStatus;
use scsi::{ClaimReport, Sense, copy::TOKEN_BYTES};

use crate::{Rod, UnitIdentity};

/// The abilities of one unit; `None` for an ability that it does not have.
#[derive(Clone, Copy, Default)]
pub struct UnitAbilities<'a> {
    /// The unit takes part in third-party copies.
    pub copies: Option<&'a dyn CopyMember>,
    /// An exclusive writer can claim the unit, or several gateways can share it.
    pub claims: Option<&'a dyn ClaimedUnit>,
    /// The unit can be served by another node from now on.
    pub moves: Option<&'a dyn MovableUnit>,
    /// The unit has commands that make earlier writes stable.
    pub flushes: Option<&'a dyn FlushedUnit>,
}

/// A unit with commands that make earlier writes stable. A target with several connections must not perform such a
/// command later than it came: writes that arrive meanwhile on other connections would be performed before it.
pub trait FlushedUnit: Send + Sync {
    /// Returns true for a CDB that makes earlier writes stable and returns no data.
    fn is_flush(&self, cdb: &[u8]) -> bool;
}

/// A unit that takes part in third-party copies (SPC-4, 5.16).
pub trait CopyMember: Send + Sync {
    /// The NAA designator by which a copy names the unit.
    fn naa(&self) -> [u8; 16];

    /// The blocks that a token of this unit stands for.
    ///
    /// # Errors
    /// The reason for which the token is not valid here.
    fn rod(&self, token: &[u8; TOKEN_BYTES]) -> Result<Arc<Rod>, Sense>;
}

/// A unit that an exclusive writer can claim (CLAIM OUT), or that several gateways share.
pub trait ClaimedUnit: Send + Sync {
    /// The claim that was granted last; `None` if there never was one, or cannot be.
    fn claim_report(&self) -> Option<ClaimReport>;

    /// The gateways that share the unit, or did until they were dropped; none if it is not shared.
    fn sharers(&self) -> Vec<Sharer>;

    /// Ends the claim on behalf of the unit's operator. Where several gateways share the unit, ends the claims of
    /// those that have no session here. The data that only their logs have is lost: the unit refuses it from then
    /// on.
    ///
    /// # Errors
    /// See [`NotDropped`]. The claim is still in force, and the call may be repeated.
    fn drop_claim(&self) -> UnitFuture<'_, Result<(), NotDropped>>;
}

/// A unit that can be served by another node from now on.
pub trait MovableUnit: Send + Sync {
    /// The unit's names, which it keeps where it moves.
    fn identity(&self) -> &UnitIdentity;

    /// Waits for all commands that have begun, and holds up those that come until the result is dropped. Commands
    /// at the head of the queue are not held up; they change nothing.
    fn hold(&self) -> UnitFuture<'_, HeldUnit<'_>>;

    /// The record of reservations for the node that serves the unit from now on. It has also the reservations that
    /// would not outlast a loss of power here.
    fn reservations_to_move(&self) -> Vec<u8>;

    /// Returns true if the unit may not move now, since work on all of it goes on or has failed (SANITIZE).
    fn is_sanitizing(&self) -> bool;
}

/// A call on a unit that takes a while.
pub type UnitFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Holds up the commands of a unit until it is dropped.
pub struct HeldUnit<'a> {
    _held: Box<dyn Send + 'a>,
}

impl<'a> HeldUnit<'a> {
    /// Keeps `held` until this is dropped.
    pub(crate) fn new(held: impl Send + 'a) -> Self {
        Self { _held: Box::new(held) }
    }
}

/// One gateway of a shared unit, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sharer {
    /// The state of its claim.
    pub claim: ClaimReport,
    /// The ranges and the lease that it has.
    pub standing: SharingMemberStatus,
}

/// The reason for which a claim could not be dropped. The claim is still in force.
#[derive(Clone, Debug)]
pub enum NotDropped {
    /// The volume could not be rolled back to the last flush of the owner.
    NotRolledBack(volume::Error),
    /// The end of the claim could not be saved.
    NotSaved,
}

impl fmt::Display for NotDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRolledBack(error) => {
                write!(f, "what its owner has sent and not flushed cannot be rolled back: {error}")
            }
            Self::NotSaved => f.write_str("the record of the claim cannot be saved"),
        }
    }
}

impl Error for NotDropped {}
