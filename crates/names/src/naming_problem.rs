//! Problems of the naming service that an operator has to solve.

use serde::{Deserialize, Serialize};

/// A problem with the number of a node or with the size of the table. The message says what to do.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, thiserror::Error,
)]
#[serde(rename_all = "lowercase")]
pub enum NamingProblem {
    /// Another process uses our number.
    #[error(
        "another process has the same number (GLN) as this one: one was made as a copy of the other, and nobody \
         is sent to the volumes of either; stop the copy, delete `gln` in its `state` folder, and start it again"
    )]
    Twin,
    /// Another node has a version of our record that we cannot have published.
    #[error(
        "somebody who has the secret tells of this node under a count that is far beyond its own, which is not \
         believed; find out who does, and give all others another secret; if they find this node's volumes no \
         more, delete `gln` in its `state` folder and restart it: it takes part as a new one"
    )]
    Forged,
    /// There are more nodes or volumes than the table can hold.
    #[error(
        "more nodes or volumes are told of than there is room for (256 other nodes, 8192 volumes of theirs): \
         those beyond are not found; give some of them seeds and a secret of their own"
    )]
    Full,
}
