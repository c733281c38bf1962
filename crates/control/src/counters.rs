//! Counters of the iSCSI side of a process: since its start, in sessions open and closed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    layer::by_name,
    time_figures::{CommandCounts, PduLengths, ResponseTimes},
};

/// The counters of a process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ProcessCounters {
    /// Of a process that serves initiators.
    Serving(Box<ServingCounters>),
    /// By name: empty for a process that serves no initiators (`forebay attach`); else the counters come from another
    /// version of the program, and this version cannot read them.
    Untyped(Map<String, Value>),
}

impl Default for ProcessCounters {
    fn default() -> Self {
        Self::Untyped(Map::new())
    }
}

impl ProcessCounters {
    /// The counters of a process that serves initiators.
    pub fn serving(&self) -> Option<&ServingCounters> {
        match self {
            Self::Serving(counters) => Some(counters),
            Self::Untyped(_) => None,
        }
    }

    /// All counters by their names in JSON, in alphabetical order.
    pub fn by_name(&self) -> Map<String, Value> {
        by_name(self)
    }
}

/// The counters of a process that serves initiators.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ServingCounters {
    /// Connections and logins.
    #[serde(flatten)]
    pub logins: LoginCounters,
    /// Commands, PDUs and bytes.
    #[serde(flatten)]
    pub traffic: ServedTraffic,
    /// Response times of commands. Some commands are timed, and each of these counts for several.
    #[serde(flatten)]
    pub times: CommandTimeFigures,
    /// Events that were not written because the reader of stderr was too slow.
    pub events_dropped: u64,
    /// Counters that this version does not know: the answer is from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// Connections and logins.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LoginCounters {
    /// Connections that are open now.
    pub connections: u64,
    /// Connections of these that have not completed their login.
    pub logins_in_progress: u64,
    /// Discovery sessions that are open now.
    pub discovery_sessions: u64,
    /// Connections refused because there was no place for them.
    pub refused_connections: u64,
    /// Connections without a login that were closed to make place for others.
    pub displaced_connections: u64,
    /// Logins that failed.
    pub failed_logins: u64,
    /// Sessions opened.
    pub opened_sessions: u64,
}

/// Commands, PDUs and bytes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ServedTraffic {
    /// SCSI commands.
    pub commands: u64,
    /// SCSI commands by name.
    pub commands_by_kind: CommandCounts,
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// PDUs received, by length.
    pub pdus_in_by_size: PduLengths,
    /// PDUs sent, by length.
    pub pdus_out_by_size: PduLengths,
    /// Bytes that initiators wrote.
    pub data_out_bytes: u64,
    /// Bytes that initiators read.
    pub data_in_bytes: u64,
    /// PDUs answered with a Reject.
    pub rejects: u64,
    /// PDUs that came damaged, by their digest.
    pub digest_errors: u64,
    /// PDUs ignored, as RFC 7143 demands for some that come late or twice.
    pub ignored: u64,
}

/// Response times of commands at their units.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CommandTimeFigures {
    /// READ commands of any form.
    pub time_read: ResponseTimes,
    /// WRITE commands of any form.
    pub time_write: ResponseTimes,
    /// SYNCHRONIZE CACHE commands.
    pub time_flush: ResponseTimes,
    /// All other commands.
    pub time_other: ResponseTimes,
}
