//! The messages between gateway and node. Each may be lost, duplicated or reordered.

use crate::token::{CoherenceRange, CoherenceToken, Grant, Millis};

/// A message of a gateway. `life` is the number of [`CoherenceReply::Joined`]; the node ignores requests of an
/// earlier life.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceRequest {
    /// The gateway starts, or continues after a restart of the node. The gateway holds exclusive tokens for these
    /// ranges and no other tokens.
    Join {
        /// The number of this Join. It increases with each Join of the session.
        number: u64,
        /// The ranges in ascending order.
        exclusive: Vec<CoherenceRange>,
    },
    /// Requests a token; repeated until it is granted.
    Acquire {
        life: u64,
        range: CoherenceRange,
        token: CoherenceToken,
        /// The number of this request. The grant repeats it.
        number: u64,
    },
    /// Releases a grant; repeated until the node answers it.
    Release {
        /// The number of the life in which the token was granted; see [`CoherenceReply::Joined`].
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// The gateway keeps a shared token for the range.
        keeps: bool,
    },
    /// Asks the node to renew the lease.
    Renew {
        life: u64,
        /// The time of sending by the gateway's clock, which the answer repeats.
        sent: Millis,
    },
}

/// A message of the node. `life` is the life of the receiver: a gateway ignores messages for an earlier life.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceReply {
    /// The answer to [`CoherenceRequest::Join`].
    Joined {
        /// The number of the Join request that this answers.
        number: u64,
        /// The number of the life that begins: later messages carry it.
        life: u64,
        /// The grants with which the gateway continues, in the order of the ranges that it has named.
        grants: Vec<(CoherenceRange, Grant)>,
        /// The ranges that the gateway has named and no longer holds: the operator of the node has expelled the
        /// gateway, and other gateways may hold these ranges.
        lost: Vec<CoherenceRange>,
    },
    /// The answer to [`CoherenceRequest::Acquire`].
    Granted {
        life: u64,
        range: CoherenceRange,
        /// The granted token: at least the requested one.
        token: CoherenceToken,
        /// The number of the Acquire request that this answers.
        number: u64,
        /// The number of the grant, which the gateway names when it releases the token.
        grant: Grant,
    },
    /// Another gateway wants the range; repeated until the gateway releases it.
    Recall {
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// The gateway may keep a shared token.
        keeps: bool,
    },
    /// The answer to [`CoherenceRequest::Release`].
    Released {
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// The gateway keeps a shared token: it has asked for that, and the grant was still valid. The field tells
        /// two answers apart: a gateway may first keep a shared token and later release the same grant completely.
        keeps: bool,
    },
    /// The answer to [`CoherenceRequest::Renew`].
    Renewed {
        life: u64,
        /// When the renewal was sent, by the gateway's clock.
        sent: Millis,
    },
    /// The node does not know the life of the request, because it was restarted since. The gateway has to join again.
    Rejoin { life: u64 },
}
