//! What a process knows from the naming service (`forebay names`).

use names::{Gln, NamingProblem, NodeName, NodeVolumeEntry};
use serde::{Deserialize, Serialize};

/// All known nodes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct NamingStatus {
    /// Number of this node.
    pub gln: Gln,
    /// All nodes, this one first.
    pub nodes: Vec<KnownNode>,
    /// Conditions that an operator has to correct.
    pub troubles: Vec<NamingProblem>,
}

/// A node and its volumes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct KnownNode {
    /// Number of the node.
    pub gln: Gln,
    /// Name of the node, for people.
    pub node: NodeName,
    /// Addresses at which the node answers questions about names.
    pub addresses: Vec<String>,
    /// Seconds since its last sign of life.
    pub heard_seconds: u64,
    /// True if it has been silent for longer than `stale_after`.
    pub stale: bool,
    /// True if two processes use its number: nobody is sent to its volumes.
    pub twins: bool,
    /// The volumes that it serves.
    pub volumes: Vec<NodeVolumeEntry>,
}
