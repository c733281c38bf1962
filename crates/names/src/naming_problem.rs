//! Problems of the naming service that an operator has to solve.

use serde::{Deserialize, Serialize};

/// A problem with the number of a node or with the size of the table. The message says what to do.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, thiserror::Error,
)]
#[serde(rename_all = "lowercase")]
pub enum NamingProblem {
    #[error(
        "another process has the same number (GLN) as this one: one of them is a copy of the other, and hosts are \
         not sent to the volumes of either; stop the copy, delete `gln` in its `state` folder, and start it again"
    )]
    Twin,
    /// Another node spreads a version of this node's record that this node cannot have published.
    #[error(
        "a peer with the secret announces this node with a number of changes far above the node's own, which is \
         ignored; find that peer, and give all other nodes another secret; if other nodes cannot find this node's \
         volumes any more, delete `gln` in its `state` folder and restart it: it then takes part as a new node"
    )]
    Forged,
    #[error(
        "more nodes or volumes are announced than there is room for (256 other nodes, 8192 volumes of theirs): \
         the remaining ones are not found; give some of the nodes separate seeds and a separate secret"
    )]
    Full,
}
