//! The claim of a gateway's cache on a unit, as the node that serves the unit reports it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The present claim on a unit, or the last one that was in force.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClaimStatus {
    /// iSCSI name of the gateway (`initiator_name`).
    pub owner: String,
    /// Instance id of the gateway's log, in hexadecimal digits.
    pub log: String,
    /// Number of times that the log had been opened when the claim was granted.
    pub generation: u64,
    /// True if the claim is in force: only its owner may write to the unit.
    pub held: bool,
    /// True if the log may hold acknowledged writes that the unit lacks.
    pub dirty: bool,
    /// True if the operator of this node has dropped the claim.
    pub dropped: bool,
    /// True if the gateway is logged in.
    pub present: bool,
    /// Number of the newest write that the log has confirmed, 0 before the first one. A copy of the log that lacks this
    /// write is refused.
    #[serde(default)]
    pub confirmed: u64,
    /// State of this gateway among several that share the unit; `None` for a unit with a single gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareStatus>,
}

/// The ranges that one gateway holds of a unit that several gateways share.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ShareStatus {
    /// True if the node has not received a message from the gateway for the time of a lease.
    pub silent: bool,
    /// True if the gateway has not yet reported, since the start of the node, which ranges it holds for writing. Until
    /// then no gateway is granted a range.
    pub awaited: bool,
    /// Ranges that the gateway holds for reading.
    pub reads: usize,
    /// Ranges that the gateway holds for writing: only this gateway may have their newest data.
    pub writes: usize,
    /// Ranges that other gateways have requested from this gateway.
    pub recalled: usize,
}

impl fmt::Display for ShareStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { silent, awaited, reads, writes, recalled } = self;
        write!(f, "has {reads} ranges for reading and {writes} for writing")?;
        if *recalled > 0 {
            write!(f, ", and others wait for {recalled} of them")?;
        }
        if *awaited {
            write!(f, "; no gateway is granted a range before it is back")?;
        } else if *silent {
            write!(f, "; it is silent")?;
        }
        Ok(())
    }
}

impl fmt::Display for ClaimStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, log, generation, .. } = self;
        let whose = format!("{owner}, log {log}, generation {generation}");
        match self {
            Self { dropped: true, .. } => write!(f, "claim dropped here: {whose}"),
            Self { held: false, .. } => write!(f, "claim released: {whose}"),
            Self { share: Some(share), present, .. } => {
                let away = if *present { "" } else { ", which is away" };
                write!(f, "shared by {whose}{away}: it {share}")
            }
            Self { dirty, present, .. } => {
                let data = if *dirty { "its newest data is with" } else { "claimed by" };
                let away = if *present { "" } else { ", which is away" };
                write!(
                    f,
                    "{data} {whose}{away}; no other initiator may write, and readers see an older \
                     image"
                )
            }
        }
    }
}
