//! The statistics of a remote volume in the form of the control socket.

use control::{
    FarCallFigures, FarLinkState, FarRecoveryFigures, FarSessionFigures, FarTrafficFigures,
    RemoteFigures,
};
use initiator::{InitiatorStatistics, LinkState, RemoteVolume};

use crate::figures;

/// All figures of a remote volume.
pub fn of(remote: &RemoteVolume) -> RemoteFigures {
    let counted = remote.statistics();
    let congestion = remote.session().congestion();
    RemoteFigures {
        session: FarSessionFigures {
            link: match remote.session().state() {
                LinkState::Up => FarLinkState::Up,
                _ => FarLinkState::Down,
            },
            portal: remote.session().portal().as_deref().map(str::to_owned),
            identity: remote.identity().to_owned(),
            connections: remote.session().connections().len() as u64,
            compression: counted.compression.map(|method| method.name().to_owned()),
            congestion: congestion.as_ref().map(|congestion| congestion.name.clone()),
        },
        calls: calls(&counted),
        traffic: FarTrafficFigures {
            pdus_out: counted.pdus_out,
            pdus_in: counted.pdus_in,
            commands_by_kind: figures::commands(&remote.session().answered()),
            pdus_out_by_size: figures::sizes(&counted.sizes_out),
            pdus_in_by_size: figures::sizes(&counted.sizes_in),
            out_bytes: counted.bytes_out,
            in_bytes: counted.bytes_in,
            out_link_bytes: counted.link_bytes_out,
            in_link_bytes: counted.link_bytes_in,
        },
        recovery: FarRecoveryFigures {
            connections_lost: counted.connections_lost,
            reconnects: counted.reconnects,
            reassigned: counted.reassigned,
            resent: counted.resent,
            snacks: counted.snacks,
            digest_errors: counted.digest_errors,
            replays: counted.replays,
        },
        ensemble: congestion.as_ref().and_then(figures::ensemble).map(Into::into),
        ..RemoteFigures::default()
    }
}

fn calls(counted: &InitiatorStatistics) -> FarCallFigures {
    FarCallFigures {
        reads: counted.reads,
        writes: counted.writes,
        flushes: counted.flushes,
        discards: counted.discards,
        failures: counted.failures,
        retries: counted.retries,
        time_outs: counted.time_outs,
        round_trip_mean_us: counted.round_trips.mean_us(),
        round_trip_p99_us: counted.round_trips.quantile_us(0.99),
        round_trip_max_us: counted.round_trips.max_us,
    }
}
