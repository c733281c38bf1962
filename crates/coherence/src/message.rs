//! What gateway and node tell each other. Each may be lost, come twice, and overtake another.

use crate::token::{CoherenceRange, CoherenceToken, Grant, Millis};

/// From a gateway. `life` is what [`CoherenceReply::Joined`] said: what was asked in an earlier one counts for
/// nothing.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceRequest {
    /// It begins here, or goes on at a node that started anew: of what it was ever granted it has
    /// these, for writing, and nothing else.
    Join {
        /// Higher with each one of its session.
        number: u64,
        /// Ascending.
        exclusive: Vec<CoherenceRange>,
    },
    /// Asks for a token; again until it is granted.
    Acquire {
        /// The life it is asked in.
        life: u64,
        /// Of which range.
        range: CoherenceRange,
        /// For what.
        token: CoherenceToken,
        /// Comes back with the grant.
        number: u64,
    },
    /// Gives a grant back; again until it is answered.
    Release {
        /// The life it was granted in.
        life: u64,
        /// Of which range.
        range: CoherenceRange,
        /// Which one.
        grant: Grant,
        /// Keeps it for reading.
        keeps: bool,
    },
    /// It is there.
    Renew {
        /// Its life.
        life: u64,
        /// When this was sent, by its own clock; comes back.
        sent: Millis,
    },
}

/// From the node. `life` is whose it is for: a gateway takes no notice of an earlier one's.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceReply {
    /// To [`CoherenceRequest::Join`].
    Joined {
        /// Which.
        number: u64,
        /// The life that begins.
        life: u64,
        /// What it goes on with: its grants, in the order of the ranges it named.
        grants: Vec<(CoherenceRange, Grant)>,
        /// What it named and has no more: the operator of the node has given it to others.
        lost: Vec<CoherenceRange>,
    },
    /// To [`CoherenceRequest::Acquire`].
    Granted {
        /// Whose.
        life: u64,
        /// Of which range.
        range: CoherenceRange,
        /// At least what was asked for.
        token: CoherenceToken,
        /// The number it was asked with.
        number: u64,
        /// Its own.
        grant: Grant,
    },
    /// Somebody else wants it; again until it is given back.
    Recall {
        /// Whose.
        life: u64,
        /// Of which range.
        range: CoherenceRange,
        /// Which one.
        grant: Grant,
        /// It may be kept for reading.
        keeps: bool,
    },
    /// To [`CoherenceRequest::Release`].
    Released {
        /// Whose.
        life: u64,
        /// Of which range.
        range: CoherenceRange,
        /// Which one.
        grant: Grant,
        /// It is kept for reading: it was asked so, and the node had the grant still. Who keeps one first
        /// and gives it back altogether later must not take an answer to the one for that to the other.
        keeps: bool,
    },
    /// To [`CoherenceRequest::Renew`].
    Renewed {
        /// Whose.
        life: u64,
        /// When that was sent, by the gateway's clock.
        sent: Millis,
    },
    /// The node does not know this life: it has started anew.
    Rejoin {
        /// Which life it does not know.
        life: u64,
    },
}
