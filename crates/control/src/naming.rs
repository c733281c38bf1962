//! The entries that a process has received from the naming service (`forebay names`).

use names::{Gln, NamingProblem, NodeName, NodeVolumeEntry};
use serde::{Deserialize, Serialize};

/// All nodes that this process has an entry of.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct NamingStatus {
    /// Number of this node (global location number).
    pub gln: Gln,
    /// All nodes, this one first.
    pub nodes: Vec<KnownNode>,
    /// Conditions that an operator has to correct.
    pub troubles: Vec<NamingProblem>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct KnownNode {
    /// Global location number of the node.
    pub gln: Gln,
    /// Name of the node for people.
    pub node: NodeName,
    /// Addresses at which the node answers naming requests.
    pub addresses: Vec<String>,
    /// Seconds since the last message from the node.
    pub heard_seconds: u64,
    /// True if the node has been silent for longer than `stale_after`.
    pub stale: bool,
    /// True if two processes use the number of this node. No gateway is then directed to its volumes.
    pub twins: bool,
    pub volumes: Vec<NodeVolumeEntry>,
}
