//! Opens the session over which commands are measured, with all its connections.

use std::time::Duration;

use initiator::{
    CommandDistribution, InitiatorConnectionStats, RemoteSession, RemoteVolume, Settings,
};
use transport::{CongestionChoice, SocketOptions};

use super::CommandsWorkload;
use crate::{Error, remote_unit};

/// Time limit until all connections of the session are established. It equals the time limit of a
/// login.
const JOIN_LIMIT: Duration = Duration::from_secs(15);
/// Interval between checks of the number of connections.
const JOIN_LOOK: Duration = Duration::from_millis(10);

/// Opens the session with all connections and the requested congestion control. Fails if the target
/// or the kernel gives fewer connections or another algorithm: the result would describe another
/// configuration.
pub(super) async fn open(commands: &CommandsWorkload, url: &str) -> Result<RemoteVolume, Error> {
    let settings = remote_unit::settings(url)?;
    let congestion = commands.congestion.load().map_err(|error| {
        let remedy = error.remedy().map(|it| format!(" ({it})")).unwrap_or_default();
        Error::Settings(format!("no {}: {error}{remedy}", commands.congestion))
    })?;
    let settings = Settings {
        connections: commands.connections,
        spread: if commands.in_turn {
            CommandDistribution::InTurn
        } else {
            CommandDistribution::LeastToDo
        },
        queue_depth: commands.depth.into(),
        socket: SocketOptions::buffers(commands.socket_buffer.map(|bytes| bytes as usize)),
        congestion,
        ..settings
    };
    let volume = remote_unit::log_in(settings).await?;
    let wanted = usize::from(commands.connections);
    let all_there = async {
        while volume.session().connections().len() < wanted {
            tokio::time::sleep(JOIN_LOOK).await;
        }
    };
    if tokio::time::timeout(JOIN_LIMIT, all_there).await.is_err() {
        let there = volume.session().connections().len();
        let reason = format!("the target allows {there} connections, and {wanted} are needed");
        return Err(Error::Session { act: "open the session".to_owned(), reason });
    }
    check(&commands.congestion, volume.session())?;
    Ok(volume)
}

fn check(congestion: &CongestionChoice, session: &RemoteSession) -> Result<(), Error> {
    let has = session.congestion().unwrap_or_default();
    let is_so = match congestion {
        CongestionChoice::KernelDefault => true,
        CongestionChoice::Ensemble { .. } => has.ensemble.is_some_and(|it| it.members > 0),
        CongestionChoice::Named(name) => has.name == *name,
    };
    if is_so {
        return Ok(());
    }
    let reason = format!("its connections use congestion control {}, not {congestion}", has.name);
    Err(Error::Session { act: "open the session".to_owned(), reason })
}

/// Returns the share of the bytes that each connection has carried. It is zero for a connection
/// that was lost during the measurement.
pub(super) fn shares(
    before: &[InitiatorConnectionStats],
    after: &[InitiatorConnectionStats],
    read: bool,
) -> Vec<f64> {
    let bytes = |it: &InitiatorConnectionStats| if read { it.bytes_in } else { it.bytes_out };
    let moved: Vec<f64> = before
        .iter()
        .map(|then| {
            let now = after.iter().find(|now| now.cid == then.cid).map_or(0, bytes);
            now.saturating_sub(bytes(then)) as f64
        })
        .collect();
    let all: f64 = moved.iter().sum();
    moved.iter().map(|bytes| if all > 0.0 { bytes / all } else { 0.0 }).collect()
}
