//! An emulated long link between two network namespaces (`forebay lab wan`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wan::LinkReport;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Linked {
    pub name: String,
    /// Process id of the process that carries the packets of the link.
    pub process: u32,
    pub near: LinkEnd,
    pub far: LinkEnd,
    /// Seed of all random events, such as losses.
    pub seed: u64,
    pub near_to_far: LinkDirectionSettings,
    pub far_to_near: LinkDirectionSettings,
    /// Counters since the start of the link.
    pub report: LinkReport,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkEnd {
    /// Network namespace of this end.
    pub namespace: String,
    pub address: String,
    pub address6: String,
}

/// Settings of one direction: names and values as on the command line.
pub type LinkDirectionSettings = BTreeMap<String, String>;
