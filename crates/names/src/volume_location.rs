//! Finds the location of a volume in the records of all known nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    gln::Gln,
    node_record::{NodeName, NodeRecord, NodeVolumeEntry, PortalAddress, VolumeName},
};

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct VolumeLocation {
    pub node: NodeName,
    pub gln: Gln,
    pub target: String,
    pub lun: u16,
    pub portals: Vec<PortalAddress>,
}

/// The reason why a volume has no location.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unresolved {
    #[error("no known node has a volume {0}")]
    Unknown(VolumeName),
    /// Several nodes have the volume. No node is chosen, because writes would go to only one of the copies.
    #[error("several nodes have a volume {volume}: {nodes}")]
    Ambiguous { volume: VolumeName, nodes: String },
}

/// A node with its record, as the status report lists it.
#[derive(Clone, Debug)]
pub struct ListedNode<'a> {
    pub record: &'a NodeRecord,
    /// Time since the last sign of life of the node; 0 for this node itself.
    pub age: Duration,
    /// True if `age` is longer than [`NodeExpiryTimes::stale_after`](crate::NodeExpiryTimes::stale_after).
    pub is_stale: bool,
    /// The time since two processes with this GLN were last known to be alive; `None` if that was never seen, or was
    /// too long ago to count.
    pub twins: Option<Duration>,
}

/// Looks among `others` for nodes that have a unit of ours (the same name, target and LUN) with a higher generation
/// than ours. Returns the location and the generation of the unit at the node with the highest one.
pub(crate) fn newer<'a>(
    others: impl Iterator<Item = ListedNode<'a>>,
    ours: &NodeVolumeEntry,
) -> Option<(u64, VolumeLocation)> {
    let told = others
        .flat_map(|listed| listed.record.volumes.iter().map(move |entry| (listed.record, entry)));
    let is_it = |entry: &NodeVolumeEntry| {
        (&entry.volume, &entry.target, entry.lun) == (&ours.volume, &ours.target, ours.lun)
            && entry.generation > ours.generation
    };
    let newest = told.filter(|(_, entry)| is_it(entry)).max_by_key(|(_, e)| e.generation);
    newest.map(|(record, entry)| (entry.generation, VolumeLocation::of(record, entry)))
}

/// Returns the location of a volume: the node with the highest generation. If several nodes have this generation,
/// prefers one with signs of life, since the volume may have been started again at another node. If several nodes
/// remain, or two processes have the node's number, the result is ambiguous.
pub(crate) fn resolve<'a>(
    nodes: impl Iterator<Item = ListedNode<'a>>,
    volume: &VolumeName,
) -> Result<VolumeLocation, Unresolved> {
    let mut found: Vec<(ListedNode<'_>, &NodeVolumeEntry)> = Vec::new();
    for listed in nodes {
        let entry = listed.record.volumes.iter().find(|entry| entry.volume == *volume);
        found.extend(entry.map(|entry| (listed, entry)));
    }
    // Ignore entries with a lower generation: these nodes have older copies of the volume, even if they are alive.
    let newest = found.iter().map(|(_, entry)| entry.generation).max();
    found.retain(|(_, entry)| Some(entry.generation) == newest);
    if found.iter().any(|(listed, _)| !listed.is_stale) {
        found.retain(|(listed, _)| !listed.is_stale);
    }
    match found.as_slice() {
        [] => Err(Unresolved::Unknown(volume.clone())),
        [(ListedNode { record, twins: None, .. }, entry)] => Ok(VolumeLocation::of(record, entry)),
        several => {
            let who = several.iter().map(|(ListedNode { record, twins, .. }, _)| {
                let both = if twins.is_some() { ", used by two processes" } else { "" };
                format!("{} ({}{both})", record.node, record.stamp.gln)
            });
            let nodes = who.collect::<Vec<_>>().join(", ");
            Err(Unresolved::Ambiguous { volume: volume.clone(), nodes })
        }
    }
}

impl VolumeLocation {
    fn of(record: &NodeRecord, entry: &NodeVolumeEntry) -> Self {
        Self {
            node: record.node.clone(),
            gln: record.stamp.gln,
            target: entry.target.clone(),
            lun: entry.lun,
            portals: entry.portals.clone(),
        }
    }
}
