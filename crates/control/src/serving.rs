//! The status of a process that serves volumes: `forebay status --json`.

use std::collections::{BTreeMap, BTreeSet};

use names::{Gln, NamingProblem};
use serde::{Deserialize, Serialize};

use crate::{
    attachment::AttachedVolumeStatus,
    cache_figures::CacheFigures,
    claim::ClaimStatus,
    counters::ProcessCounters,
    layer::{LayerFigures, LayerStatus, in_order_of_names},
    remote_figures::RemoteFigures,
    session::SessionStatus,
};

/// The status of a process at one moment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ServingStatus {
    /// Version of `forebay`.
    pub version: String,
    /// Global location number of this node; `None` without a naming service.
    #[serde(default)]
    pub gln: Option<Gln>,
    /// Problems of the naming service that an operator has to correct.
    #[serde(default)]
    pub naming_troubles: Vec<NamingProblem>,
    /// Process id.
    pub pid: u32,
    /// Stage of the process.
    pub state: ServingPhase,
    /// Seconds since the start of the process.
    pub uptime_seconds: u64,
    /// Portals on which the process listens.
    pub portals: Vec<PortalStatus>,
    /// Targets that are served.
    pub targets: Vec<TargetStatus>,
    /// Block device of `forebay attach`; `None` for other processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachedVolumeStatus>,
    /// Sessions of initiators, discovery sessions included.
    pub sessions: Vec<SessionStatus>,
    /// Counters of the iSCSI side, since the start of the process.
    #[serde(serialize_with = "in_order_of_names")]
    pub counters: ProcessCounters,
}

impl ServingStatus {
    /// Returns the figures of each cache once: all units of a common cache have the same cache.
    pub fn caches(&self) -> impl Iterator<Item = &CacheFigures> {
        let mut logs = BTreeSet::new();
        let units = self.targets.iter().flat_map(|target| &target.units);
        let layers = units.flat_map(|unit| &unit.layers);
        layers.filter_map(move |layer| match &layer.figures {
            LayerFigures::Cache(figures) if logs.insert(&layer.on) => Some(&**figures),
            _ => None,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingPhase {
    /// The process opens its volumes and does not listen yet.
    #[default]
    Starting,
    Serving,
    /// The process closes sessions and volumes.
    Stopping,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PortalStatus {
    /// IP address and port; the port that the kernel chose if the settings say 0.
    pub address: String,
    /// TargetPortalGroupTag of the portal's group.
    pub group: u16,
    /// Address that discovery reports in place of `address`.
    pub advertise: Option<String>,
    /// Address to which logins are redirected.
    pub redirect: Option<String>,
    /// True if connections begin with TLS.
    pub tls: bool,
    /// iSCSI names of the targets that are reached through the portal.
    pub targets: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TargetStatus {
    /// iSCSI name of the target.
    pub name: String,
    /// Address to which logins are redirected.
    pub redirect: Option<String>,
    /// Number of open sessions.
    pub sessions: u64,
    /// SCSI commands since the start of the process, over all sessions, open and closed.
    pub commands: u64,
    /// Bytes written by initiators since the start of the process.
    pub data_out_bytes: u64,
    /// Bytes read by initiators since the start of the process.
    pub data_in_bytes: u64,
    /// State of the pair that serves the unit; `None` without a pair.
    #[serde(default)]
    pub pair: Option<PairStatus>,
    /// Units that are served.
    pub units: Vec<UnitStatus>,
    /// Units of the settings that are not served because their storage was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedStatus>,
}

/// A unit that is not served.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RefusedStatus {
    /// Number of the unit.
    pub lun: u16,
    /// Reason why the unit is not served.
    pub message: String,
    /// Remedy, with the command to run.
    pub remedy: Option<String>,
}

/// State of this gateway in a pair of gateways.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairStatus {
    /// Role of this gateway. `active`: it serves the unit, and the partner has all data. `alone`: it serves the unit,
    /// but the partner lacks data (degraded). `standby`: the partner serves the unit, or neither does.
    pub role: String,
    /// True if the partner answers.
    pub partner_is_there: bool,
    /// State of each mirror leg of the log, this gateway's leg first; empty while it does not serve.
    pub halves: Vec<String>,
    /// NVRAM in front of this gateway's leg of the log; `None` without `report = "immediate"`.
    #[serde(default)]
    pub nvram: Option<PairNvram>,
    /// Reason why this gateway does not serve, or why the partner lacks data.
    pub reason: Option<String>,
}

/// The NVRAM in front of one mirror leg of a pair's log.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairNvram {
    /// Bytes in the NVRAM that are not on the log disk yet.
    pub pending_bytes: u64,
    /// True if a write is acknowledged once it is in the NVRAM. False after an error of the NVRAM or of the log disk:
    /// each write then waits for the log disk.
    pub is_used: bool,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UnitStatus {
    /// Number of the unit.
    pub lun: u16,
    /// Serial number by which hosts recognize the unit.
    pub serial: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Size of a logical block in bytes.
    pub block_size: u32,
    /// The claim of a gateway's cache on the unit, or the last one that was in force.
    #[serde(default)]
    pub claim: Option<ClaimStatus>,
    /// Figures of an object drive; `None` for a disk, whose keys in JSON are those above and below only.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub drive: Option<ObjectDriveStatus>,
    /// Layers of the stack, the bottom layer first.
    pub layers: Vec<LayerStatus>,
}

/// The status of a unit that is an object drive.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ObjectDriveStatus {
    /// Always "object".
    pub kind: String,
    /// Number of user objects and collections.
    pub objects: u64,
    /// Bytes of data blocks in use.
    pub used_bytes: u64,
    /// Bytes of all data blocks.
    pub capacity_bytes: u64,
    /// Blocks since the start that did not match their checksum, and had no good copy.
    pub damaged_blocks: u64,
    /// Blocks since the start that did not match their checksum, and were repaired from another copy.
    pub repaired_blocks: u64,
    /// Number of commands since the start by service action.
    pub service_actions: BTreeMap<String, u64>,
    /// Number of commands since the start that the check of capabilities refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl UnitStatus {
    /// Returns the figures of the topmost cache in the unit's stack; `None` without a cache.
    pub fn cache(&self) -> Option<&CacheFigures> {
        self.layers.iter().rev().find_map(|layer| match &layer.figures {
            LayerFigures::Cache(figures) => Some(&**figures),
            _ => None,
        })
    }

    /// Returns the figures of the unit's remote layer; `None` without one.
    pub fn remote(&self) -> Option<&RemoteFigures> {
        self.layers.iter().find_map(|layer| match &layer.figures {
            LayerFigures::Remote(figures) => Some(&**figures),
            _ => None,
        })
    }
}
