//! An emulated long link between two network namespaces (`forebay lab wan`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wan::LinkReport;

/// A link.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Linked {
    /// Name of the link.
    pub name: String,
    /// Number of the process that carries its packets.
    pub process: u32,
    /// The near end.
    pub near: LinkEnd,
    /// The far end.
    pub far: LinkEnd,
    /// Seed of all random events, such as losses.
    pub seed: u64,
    /// Settings from the near end to the far one.
    pub near_to_far: LinkDirectionSettings,
    /// Settings from the far end to the near one.
    pub far_to_near: LinkDirectionSettings,
    /// Counters since the start.
    pub report: LinkReport,
}

/// One end of a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkEnd {
    /// Name of its network namespace.
    pub namespace: String,
    /// IPv4 address.
    pub address: String,
    /// IPv6 address.
    pub address6: String,
}

/// Settings of one direction: name and value as the command line writes them.
pub type LinkDirectionSettings = BTreeMap<String, String>;
