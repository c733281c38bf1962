//! The messages between gateway and node. Each may be lost, duplicated or reordered.

use crate::token::{CoherenceRange, CoherenceToken, Grant, Millis};

/// A message of a gateway. `life` is the number of [`CoherenceReply::Joined`]; the node ignores requests of an
/// earlier life.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceRequest {
    /// The gateway starts, or continues after a restart of the node. The gateway holds exclusive tokens for these
    /// ranges and no other tokens.
    Join {
        /// The number of this Join message, which increases with each Join of a session.
        number: u64,
        /// The ranges for which the gateway claims to hold exclusive tokens, in ascending order.
        exclusive: Vec<CoherenceRange>,
    },
    /// Requests a token from the node. The gateway repeats this until the token is granted.
    Acquire {
        life: u64,
        range: CoherenceRange,
        token: CoherenceToken,
        /// The number of this request, which the grant repeats.
        number: u64,
    },
    /// Releases a granted token. The gateway repeats this until the node answers.
    Release {
        /// The number of the life in which the token was granted; see [`CoherenceReply::Joined`].
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// True if the gateway keeps a shared token for the range.
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
    /// The node's answer to [`CoherenceRequest::Join`].
    Joined {
        /// The number of the Join message that is answered.
        number: u64,
        /// The number of the membership (life) that begins now. All later messages carry this number.
        life: u64,
        /// The grants with which the gateway continues, in the order of the ranges that it has named.
        grants: Vec<(CoherenceRange, Grant)>,
        /// The ranges that the gateway has named and no longer holds: the operator of the node has expelled the
        /// gateway, and other gateways may hold these ranges.
        lost: Vec<CoherenceRange>,
    },
    /// The node's answer to [`CoherenceRequest::Acquire`].
    Granted {
        life: u64,
        range: CoherenceRange,
        /// The granted token, which is the requested one or a stronger one.
        token: CoherenceToken,
        /// The number of the Acquire request that is answered.
        number: u64,
        /// The number of the grant, by which the gateway names the token when it releases it.
        grant: Grant,
    },
    /// Recalls a token, because another gateway wants the range. The node repeats this until the token is released.
    Recall {
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// True if the gateway may keep a shared token.
        keeps: bool,
    },
    /// The node's answer to [`CoherenceRequest::Release`].
    Released {
        life: u64,
        range: CoherenceRange,
        grant: Grant,
        /// True if the gateway keeps a shared token: it has asked for that, and the grant was still valid. The field
        /// tells two answers apart: a gateway may first keep a shared token and later release the same grant
        /// completely.
        keeps: bool,
    },
    /// The node's answer to [`CoherenceRequest::Renew`].
    Renewed {
        life: u64,
        /// When the renewal was sent, by the gateway's clock.
        sent: Millis,
    },
    /// The node does not know the life of the request, because it was restarted since. The gateway has to join again.
    Rejoin { life: u64 },
}
