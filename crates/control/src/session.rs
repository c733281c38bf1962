//! The status of the initiators' sessions, and the congestion state that their connections share.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SessionStatus {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// IP address and port of the initiator.
    pub address: String,
    /// iSCSI name of the target; empty for a discovery session.
    pub target: String,
    /// Tag of the portal group through which the initiator logged in.
    pub group: Option<u16>,
    /// Number of SCSI commands.
    pub commands: u64,
    /// Bytes that the initiator wrote.
    pub data_out_bytes: u64,
    /// Bytes that the initiator read.
    pub data_in_bytes: u64,
    /// Congestion control of the newest connection, by its name in the kernel.
    #[serde(default)]
    pub congestion: Option<String>,
    /// Ensemble of the connections; `None` unless they share a congestion window.
    #[serde(default)]
    pub ensemble: Option<EnsembleStatus>,
    /// The connections. The list is empty for a while if the initiator has lost its last connection and may still
    /// continue its tasks on a new one (Time2Retain).
    pub connections: Vec<ConnectionStatus>,
}

/// An ensemble: connections that share one congestion window, or one model of the path.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EnsembleStatus {
    /// Number of connections.
    pub members: u32,
    /// Congestion window that all connections share, in segments; with a model of the path, the number of segments that
    /// all of them may have in flight.
    pub cwnd_segments: f64,
    /// Slow start threshold of the shared window, in segments; `None` before the first loss.
    pub ssthresh_segments: Option<f64>,
    /// Smoothed round trip time in microseconds, from the connection that measured it last.
    pub srtt_us: u64,
    /// Variation of the round trip time, in microseconds.
    pub rttvar_us: u64,
    /// Number of times that the window was reduced.
    pub cuts: u64,
    /// Reductions that were delayed until the next acknowledgment.
    pub late_cuts: u64,
    /// Reductions that were reverted.
    pub undone_cuts: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Model of the path; `None` unless the connections share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathStatus>,
}

/// The state of a path, as the members of an ensemble have measured it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PathStatus {
    /// Delivery rate of the ensemble: the best of the last ten round trips, counted in full segments without their
    /// headers; `None` if none of these gave a rate.
    pub delivery_bits_per_second: Option<u64>,
    /// Shortest round trip time in microseconds; `None` before the first measurement.
    pub least_rtt_us: Option<u64>,
    /// True if other traffic keeps a queue on the path.
    pub is_crowded: bool,
    /// Number of times that the members nearly stopped sending to measure the round trip time.
    pub probes: u64,
}

impl fmt::Display for EnsembleStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} share {:.1} segments", self.members, self.cwnd_segments)?;
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(rate) = path.delivery_bits_per_second {
            write!(f, ", {:.1} Mbit/s", rate as f64 / 1e6)?;
        }
        path.least_rtt_us.iter().try_for_each(|us| write!(f, ", {:.1} ms", *us as f64 / 1e3))
    }
}

/// One connection of a session.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ConnectionStatus {
    /// Connection identifier (CID), chosen by the initiator.
    pub cid: u16,
    /// IP address and port of the initiator.
    pub address: String,
    /// IP address and port at the target.
    pub portal: String,
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// Bytes that the initiator wrote.
    pub data_out_bytes: u64,
    /// Bytes that the initiator read.
    pub data_in_bytes: u64,
    /// Traffic before and after compression; `None` for a connection without compression.
    #[serde(default)]
    pub compression: Option<CompressionStatus>,
}

/// Traffic of a compressed connection.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CompressionStatus {
    /// Name of the method: `lz4` or `zstd`.
    pub method: String,
    /// Bytes of PDUs received.
    pub in_bytes: u64,
    /// Bytes that crossed the link for the received PDUs.
    pub in_link_bytes: u64,
    /// Bytes of PDUs sent.
    pub out_bytes: u64,
    /// Bytes that crossed the link for the sent PDUs.
    pub out_link_bytes: u64,
}
