//! Figures of a remote layer: the session with the target and the calls to the far volume. Counters include all
//! sessions since the start of the process.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    session::{EnsembleStatus, PathStatus},
    time_figures::{CommandCounts, PduLengths},
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RemoteFigures {
    #[serde(flatten)]
    pub session: FarSessionFigures,
    #[serde(flatten)]
    pub calls: FarCallFigures,
    #[serde(flatten)]
    pub traffic: FarTrafficFigures,
    #[serde(flatten)]
    pub recovery: FarRecoveryFigures,
    /// The ensemble: connections that share one congestion window, or one model of the path; `None` for other sessions.
    #[serde(flatten)]
    pub ensemble: Option<FarEnsembleFigures>,
    /// Figures that this version of the program does not know, from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// The session with the far target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarSessionFigures {
    /// State of the session. `forebay status` says `silent` for `up` without answers.
    pub link: FarLinkState,
    /// IP address and port of the present portal, or of the last one; `None` before the first login.
    pub portal: Option<String>,
    /// Identity of the far volume (NAA, EUI or serial number), which does not depend on the portal.
    pub identity: String,
    /// Number of open connections.
    pub connections: u64,
    /// Compression of the link: `lz4` or `zstd`; `None` without compression.
    pub compression: Option<String>,
    /// Congestion control of the newest connection, by its name in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
}

/// State of the session with the far target.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FarLinkState {
    /// There is no session. Calls wait for it or fail.
    #[default]
    Down,
    /// There is a session.
    Up,
}

/// Calls to the far volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarCallFigures {
    /// Number of completed READ commands.
    pub reads: u64,
    /// Number of completed WRITE commands.
    pub writes: u64,
    /// Completed SYNCHRONIZE CACHE commands.
    pub flushes: u64,
    /// Completed UNMAP and WRITE SAME commands.
    pub discards: u64,
    /// Commands that failed after all retries.
    pub failures: u64,
    /// Commands sent again because the target was busy or had aborted them.
    pub retries: u64,
    /// Commands that the target did not answer in time.
    pub time_outs: u64,
    /// Mean response time, in microseconds.
    pub round_trip_mean_us: u64,
    /// 99th percentile of the response times, in microseconds.
    pub round_trip_p99_us: u64,
    /// Longest response time, in microseconds.
    pub round_trip_max_us: u64,
}

/// PDUs and bytes exchanged with the far target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarTrafficFigures {
    /// PDUs sent.
    pub pdus_out: u64,
    /// PDUs received.
    pub pdus_in: u64,
    /// SCSI commands answered, by name; commands of logins do not count.
    pub commands_by_kind: CommandCounts,
    /// PDUs sent, by length.
    pub pdus_out_by_size: PduLengths,
    /// PDUs received, by length.
    pub pdus_in_by_size: PduLengths,
    /// Bytes sent, headers included.
    pub out_bytes: u64,
    /// Bytes received, headers included.
    pub in_bytes: u64,
    /// Bytes sent as they crossed the link: fewer with compression.
    pub out_link_bytes: u64,
    /// Bytes received as they crossed the link.
    pub in_link_bytes: u64,
}

/// Failures of connections, and recovery from them (ErrorRecoveryLevel, RFC 7143, 7.1.5).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarRecoveryFigures {
    /// Connections that have failed.
    pub connections_lost: u64,
    /// Connections made in place of a failed one, within the session or with a new session.
    pub reconnects: u64,
    /// Commands that were continued on another connection (level 2).
    pub reassigned: u64,
    /// Commands sent again because the target had not received them.
    pub resent: u64,
    /// Requests for lost or damaged PDUs (SNACK, level 1).
    pub snacks: u64,
    /// PDUs received with a wrong digest.
    pub digest_errors: u64,
    /// Commands sent again because their connection was lost.
    pub replays: u64,
}

/// [`EnsembleStatus`] with the field names that it has among the figures of a layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarEnsembleFigures {
    /// Number of connections in the ensemble.
    pub ensemble_members: u32,
    /// Congestion window that all connections share, in segments.
    pub ensemble_cwnd_segments: f64,
    /// Slow start threshold of the shared window, in segments; `None` before the first loss.
    pub ensemble_ssthresh_segments: Option<f64>,
    /// Smoothed round trip time, in microseconds.
    pub ensemble_srtt_us: u64,
    /// Variation of the round trip time, in microseconds.
    pub ensemble_rttvar_us: u64,
    /// Number of times that the window was reduced.
    pub ensemble_cuts: u64,
    /// Reductions that were delayed until the next acknowledgment.
    pub ensemble_late_cuts: u64,
    /// Reductions that were reverted.
    pub ensemble_undone_cuts: u64,
    /// Number of retransmission timeouts.
    pub ensemble_timeouts: u64,
    /// Model of the path; `None` unless the connections share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble_path: Option<PathStatus>,
}

impl From<EnsembleStatus> for FarEnsembleFigures {
    fn from(ensemble: EnsembleStatus) -> Self {
        Self {
            ensemble_members: ensemble.members,
            ensemble_cwnd_segments: ensemble.cwnd_segments,
            ensemble_ssthresh_segments: ensemble.ssthresh_segments,
            ensemble_srtt_us: ensemble.srtt_us,
            ensemble_rttvar_us: ensemble.rttvar_us,
            ensemble_cuts: ensemble.cuts,
            ensemble_late_cuts: ensemble.late_cuts,
            ensemble_undone_cuts: ensemble.undone_cuts,
            ensemble_timeouts: ensemble.timeouts,
            ensemble_path: ensemble.path,
        }
    }
}
