//! The messages between gateway and node. Each may be lost, duplicated or reordered.

use crate::token::{CoherenceRange, CoherenceToken, Grant, Millis};

/// A message of a gateway. `life` is the number of [`CoherenceReply::Joined`]; the node ignores requests of an
/// earlier life.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceRequest {
    /// The gateway starts, or continues after a restart of the node. Of all tokens that it was ever granted it holds
    /// exclusive ones for these ranges, and no others.
    Join {
        /// Increases with each Join of the session.
        number: u64,
        /// The ranges in ascending order.
        exclusive: Vec<CoherenceRange>,
    },
    /// Requests a token; repeated until it is granted.
    Acquire {
        /// The life of the gateway.
        life: u64,
        /// The requested range.
        range: CoherenceRange,
        /// The requested token.
        token: CoherenceToken,
        /// The number of the request, which the grant repeats.
        number: u64,
    },
    /// Releases a grant; repeated until it is answered.
    Release {
        /// The life in which it was granted.
        life: u64,
        /// The range of the grant.
        range: CoherenceRange,
        /// The grant to be released.
        grant: Grant,
        /// The gateway keeps a shared token.
        keeps: bool,
    },
    /// Renews the lease.
    Renew {
        /// The life of the gateway.
        life: u64,
        /// The time of sending by the gateway's clock, which the answer repeats.
        sent: Millis,
    },
}

/// A message of the node. `life` is the life of the receiver: a gateway ignores messages for an earlier life.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceReply {
    /// Answers [`CoherenceRequest::Join`].
    Joined {
        /// The number of the Join.
        number: u64,
        /// The life that begins.
        life: u64,
        /// The grants with which the gateway continues, in the order of the ranges that it has named.
        grants: Vec<(CoherenceRange, Grant)>,
        /// The ranges that it has named and holds no more: the operator of the node has given them to others.
        lost: Vec<CoherenceRange>,
    },
    /// Answers [`CoherenceRequest::Acquire`].
    Granted {
        /// The life of the gateway.
        life: u64,
        /// The granted range.
        range: CoherenceRange,
        /// The granted token: at least the requested one.
        token: CoherenceToken,
        /// The number of the request.
        number: u64,
        /// The number of the grant.
        grant: Grant,
    },
    /// Another gateway wants the range; repeated until it is released.
    Recall {
        /// The life of the gateway.
        life: u64,
        /// The range of the grant.
        range: CoherenceRange,
        /// The grant to be released.
        grant: Grant,
        /// The gateway may keep a shared token.
        keeps: bool,
    },
    /// Answers [`CoherenceRequest::Release`].
    Released {
        /// The life of the gateway.
        life: u64,
        /// The range of the grant.
        range: CoherenceRange,
        /// The released grant.
        grant: Grant,
        /// The gateway keeps a shared token: it has asked for that, and the node still had the grant. A gateway that
        /// first keeps a shared token and later releases the same grant completely must not mistake the answer to the
        /// first release for that to the second.
        keeps: bool,
    },
    /// Answers [`CoherenceRequest::Renew`].
    Renewed {
        /// The life of the gateway.
        life: u64,
        /// When the renewal was sent, by the gateway's clock.
        sent: Millis,
    },
    /// The node does not know this life, because it has been restarted.
    Rejoin {
        /// The unknown life.
        life: u64,
    },
}
