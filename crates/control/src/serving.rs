//! The status of a process that serves volumes: `forebay status --json`.

use std::collections::BTreeSet;

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
    /// Version of the program.
    pub version: String,
    /// Number of this node (global location number), if it takes part in a naming service.
    #[serde(default)]
    pub gln: Option<Gln>,
    /// Conditions of the naming service that an operator has to correct.
    #[serde(default)]
    pub naming_troubles: Vec<NamingProblem>,
    /// Process number.
    pub pid: u32,
    /// Starting, serving or stopping.
    pub state: ServingPhase,
    /// Seconds since the start of the process.
    pub uptime_seconds: u64,
    /// Portals that listen.
    pub portals: Vec<PortalStatus>,
    /// Targets that are served.
    pub targets: Vec<TargetStatus>,
    /// The block device, if `forebay attach` has made one of the process's only unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachedVolumeStatus>,
    /// Open sessions.
    pub sessions: Vec<SessionStatus>,
    /// Counters of the iSCSI side.
    #[serde(serialize_with = "in_order_of_names")]
    pub counters: ProcessCounters,
}

impl ServingStatus {
    /// The figures of each cache once: the units of a common cache show the same cache.
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

/// The phase of a process.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingPhase {
    /// It opens volumes, and has no portal yet.
    #[default]
    Starting,
    /// It answers initiators.
    Serving,
    /// It closes sessions and volumes.
    Stopping,
}

/// One portal.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PortalStatus {
    /// IP address and port, as the kernel chose it if the settings say 0.
    pub address: String,
    /// Tag of its portal group.
    pub group: u16,
    /// Address that discovery reports in place of this one.
    pub advertise: Option<String>,
    /// Address to which logins are redirected.
    pub redirect: Option<String>,
    /// True if connections begin with TLS.
    pub tls: bool,
    /// iSCSI names of the targets that it leads to.
    pub targets: Vec<String>,
}

/// One target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TargetStatus {
    /// iSCSI name.
    pub name: String,
    /// Address to which logins are redirected.
    pub redirect: Option<String>,
    /// Open sessions.
    pub sessions: u64,
    /// SCSI commands since the start of the process, in sessions open and closed.
    pub commands: u64,
    /// Bytes written by initiators since the start of the process.
    pub data_out_bytes: u64,
    /// Bytes read by initiators since the start of the process.
    pub data_in_bytes: u64,
    /// State of the pair that serves the unit, if two gateways do.
    #[serde(default)]
    pub pair: Option<PairStatus>,
    /// Logical units that are served.
    pub units: Vec<UnitStatus>,
    /// Units of the settings that are not served because of their storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedStatus>,
}

/// A unit that is not served.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RefusedStatus {
    /// LUN.
    pub lun: u16,
    /// The reason.
    pub message: String,
    /// The remedy, with the command to run.
    pub remedy: Option<String>,
}

/// This gateway's state in a pair of gateways.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairStatus {
    /// `active`: this gateway serves the unit, and the partner has all data; `alone`: this gateway serves the unit, and
    /// the partner lacks data; `standby`: the partner serves the unit, or nobody does.
    pub role: String,
    /// True if the partner answers.
    pub partner_is_there: bool,
    /// State of each half of the log, this gateway's first; empty while it does not serve.
    pub halves: Vec<String>,
    /// The NVRAM in front of this gateway's half of the log; `None` without `report = "immediate"`.
    #[serde(default)]
    pub nvram: Option<PairNvram>,
    /// Why this gateway does not serve, or lacks its partner.
    pub reason: Option<String>,
}

/// The NVRAM in front of one half of a pair's log.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairNvram {
    /// Bytes in the NVRAM that are not on the log disk yet.
    pub pending_bytes: u64,
    /// True if a write is acknowledged once it is in the NVRAM. False after an error of the NVRAM or of the log disk:
    /// then each write waits for the log disk.
    pub is_used: bool,
}

/// One logical unit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct UnitStatus {
    /// LUN.
    pub lun: u16,
    /// Serial number.
    pub serial: String,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// The claim of a gateway's cache on the unit, or the last one.
    #[serde(default)]
    pub claim: Option<ClaimStatus>,
    /// Layers, bottom first.
    pub layers: Vec<LayerStatus>,
}

impl UnitStatus {
    /// The figures of the topmost cache.
    pub fn cache(&self) -> Option<&CacheFigures> {
        self.layers.iter().rev().find_map(|layer| match &layer.figures {
            LayerFigures::Cache(figures) => Some(&**figures),
            _ => None,
        })
    }

    /// The figures of the remote volume.
    pub fn remote(&self) -> Option<&RemoteFigures> {
        self.layers.iter().find_map(|layer| match &layer.figures {
            LayerFigures::Remote(figures) => Some(&**figures),
            _ => None,
        })
    }
}
