//! The statistics of a remote volume in the form of the control socket.

use control::{
    FarCallFigures, FarLinkState, FarRecoveryFigures, FarSessionFigures, FarTrafficFigures,
    RemoteFigures,
};
use initiator::{InitiatorStatistics, LinkState, RemoteVolume};

use crate::figures;

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
            pdus_out: counted.traffic.pdus_out,
            pdus_in: counted.traffic.pdus_in,
            commands_by_kind: figures::commands(&remote.session().answered()),
            pdus_out_by_size: figures::sizes(&counted.traffic.sizes_out),
            pdus_in_by_size: figures::sizes(&counted.traffic.sizes_in),
            out_bytes: counted.traffic.bytes_out,
            in_bytes: counted.traffic.bytes_in,
            out_link_bytes: counted.traffic.link_bytes_out,
            in_link_bytes: counted.traffic.link_bytes_in,
        },
        recovery: FarRecoveryFigures {
            connections_lost: counted.recovery.connections_lost,
            reconnects: counted.recovery.reconnects,
            reassigned: counted.recovery.reassigned,
            resent: counted.recovery.resent,
            snacks: counted.recovery.snacks,
            digest_errors: counted.recovery.digest_errors,
            replays: counted.recovery.replays,
        },
        ensemble: congestion.as_ref().and_then(figures::ensemble).map(Into::into),
        ..RemoteFigures::default()
    }
}

fn calls(counted: &InitiatorStatistics) -> FarCallFigures {
    FarCallFigures {
        reads: counted.calls.reads,
        writes: counted.calls.writes,
        flushes: counted.calls.flushes,
        discards: counted.calls.discards,
        failures: counted.calls.failures,
        retries: counted.calls.retries,
        time_outs: counted.calls.time_outs,
        round_trip_mean_us: counted.calls.round_trips.mean_us(),
        round_trip_p99_us: counted.calls.round_trips.quantile_us(0.99),
        round_trip_max_us: counted.calls.round_trips.max_us,
    }
}
