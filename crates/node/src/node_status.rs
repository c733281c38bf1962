//! Collects the status of a node: its targets, units, sessions, counters and moves.

use std::{collections::BTreeMap, net::SocketAddr};

use control::{
    ClaimStatus, CommandTimeFigures, CompressionStatus, ConnectionStatus, LoginCounters,
    PortalStatus, ProcessCounters, ServedTraffic, ServingCounters, ServingStatus, SessionStatus,
    TargetStatus, UnitStatus, VolumeMoveStatus,
};
use stack::figures;
use target::CommandKind;
use unit::LogicalUnit;

use super::{Node, ServedTarget};
use crate::moves::{CopyStage, VolumeMoveRecord};

impl Node {
    pub fn ended_connections(&self) -> u64 {
        self.server.ended_connections()
    }

    pub fn status(&self) -> ServingStatus {
        let statistics = self.server.statistics();
        let inner = self.inner.lock();
        let portals = self.server.portals();
        let portals = inner.portals.iter().filter_map(|listening| {
            let portal = portals.iter().find(|portal| portal.address == listening.bound)?;
            let groups = inner.settings.groups();
            let is_its = |group: &&config::PortalGroupSettings| {
                group.portals.iter().any(|(address, _)| *address == listening.wanted)
            };
            let group = groups.iter().find(is_its)?;
            let targets = inner.settings.target.iter().filter(|t| t.is_reached_through(group));
            Some(PortalStatus {
                address: portal.address.to_string(),
                group: portal.group.tag,
                advertise: portal.advertise.clone(),
                tls: portal.tls.is_some(),
                redirect: portal.redirect.as_ref().map(|redirect| redirect.address.clone()),
                targets: targets.map(|target| target.name.0.clone()).collect(),
            })
        });
        let targets = inner.targets.iter().map(|served| {
            let settings = inner.settings.target.iter().find(|t| t.name.0 == served.name);
            TargetStatus {
                redirect: settings.and_then(|target| Some(target.redirect.as_ref()?.0.clone())),
                pair: Self::pair_status(&inner.pairs, &served.name),
                refused: Self::refused_of(&inner.refused, &served.name),
                ..served.status(&statistics)
            }
        });
        ServingStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gln: self.naming.as_ref().map(|naming| naming.gln()),
            naming_troubles: self.naming.iter().flat_map(|naming| naming.troubles()).collect(),
            pid: std::process::id(),
            state: inner.state,
            uptime_seconds: self.since.elapsed().as_secs(),
            portals: portals.collect(),
            targets: targets.collect(),
            attached: None,
            sessions: statistics.sessions.iter().map(session).collect(),
            counters: ProcessCounters::Serving(Box::new(counters(
                &statistics,
                self.events.dropped(),
            ))),
        }
    }
}

impl Node {
    /// Returns the volumes that are moving now, that have moved away, and that have moved to this node.
    pub fn listed_moves(&self) -> Vec<VolumeMoveStatus> {
        let leaving: Vec<_> = {
            let moving = self.moving.lock();
            moving.leaving.values().map(|leaving| leaving.progress()).collect()
        };
        let leaving = leaving.into_iter().filter(|progress| progress.stage.is_under_way());
        let mut listed: Vec<VolumeMoveStatus> = leaving
            .map(|progress| VolumeMoveStatus {
                volume: progress.volume.clone(),
                how: "leaving".to_owned(),
                node: progress.to.clone(),
                progress: Some(progress),
                why: None,
            })
            .collect();
        let mut why: BTreeMap<_, _> = self.moving.lock().unknown.clone();
        why.extend(
            self.blocked().into_iter().map(|(volume, failure)| (volume, failure.to_string())),
        );
        for (volume, VolumeMoveRecord { gone, come, .. }) in self.moves.all() {
            let is_leaving = listed.iter().any(|listed| listed.volume == volume);
            let tell = |how: &str, node: String| VolumeMoveStatus {
                volume: volume.clone(),
                how: how.to_owned(),
                node,
                progress: None,
                why: None,
            };
            listed.extend(gone.map(|gone| tell("gone", format!("{} ({})", gone.to_node, gone.to))));
            listed.extend(come.filter(|_| !is_leaving).map(|come| {
                let how = match come.stage {
                    CopyStage::Arriving => "arriving",
                    CopyStage::Ready => "waiting",
                    CopyStage::Here => "here",
                };
                let why = why.remove(&volume);
                VolumeMoveStatus { why, ..tell(how, format!("{} ({})", come.from_node, come.from)) }
            }));
        }
        listed
    }
}

impl ServedTarget {
    fn status(&self, statistics: &target::TargetStatistics) -> TargetStatus {
        let units = self.units.iter().map(|unit| {
            // Make the layers look for a new size before the status shows it. A far volume answers later, so its new
            // size appears in a later status.
            unit.opened.top.extensions().refresh();
            let geometry = unit.opened.top.geometry();
            UnitStatus {
                lun: unit.lun,
                serial: unit.serial.clone(),
                bytes: geometry.bytes(),
                block_size: geometry.block_size,
                claim: claim(&*unit.unit),
                drive: unit.drive.as_ref().map(|drive| drive.status()),
                layers: unit.opened.status(),
            }
        });
        let is_its =
            |session: &&target::SessionStatistics| session.target_name.as_ref() == Some(&self.name);
        let counted = statistics.by_target.get(&self.name).copied().unwrap_or_default();
        TargetStatus {
            name: self.name.clone(),
            redirect: None,
            pair: None,
            refused: Vec::new(),
            sessions: statistics.sessions.iter().filter(is_its).count() as u64,
            commands: counted.commands,
            data_out_bytes: counted.data_out_bytes,
            data_in_bytes: counted.data_in_bytes,
            units: units.collect(),
        }
    }
}

fn session(session: &target::SessionStatistics) -> SessionStatus {
    let congestion = session.congestion.as_ref();
    SessionStatus {
        initiator: session.initiator_name.clone(),
        address: session.address.to_string(),
        target: session.target_name.clone().unwrap_or_default(),
        group: session.portal_group,
        commands: session.counters.commands,
        data_out_bytes: session.counters.data_out_bytes,
        data_in_bytes: session.counters.data_in_bytes,
        congestion: congestion.map(|it| it.name.clone()),
        ensemble: congestion.and_then(figures::ensemble),
        connections: session.connections.iter().map(connection).collect(),
    }
}

fn connection(connection: &target::TargetConnectionStats) -> ConnectionStatus {
    let shown = |address: Option<SocketAddr>| address.map_or(String::new(), |a| a.to_string());
    let counters = &connection.counters;
    ConnectionStatus {
        cid: connection.cid,
        address: shown(connection.address),
        portal: shown(connection.local),
        pdus_in: counters.pdus_in,
        pdus_out: counters.pdus_out,
        data_out_bytes: counters.data_out_bytes,
        data_in_bytes: counters.data_in_bytes,
        compression: connection.link_bytes.map(|bytes| CompressionStatus {
            method: bytes.method.name().to_owned(),
            in_bytes: bytes.in_,
            in_link_bytes: bytes.in_packed,
            out_bytes: bytes.out,
            out_link_bytes: bytes.out_packed,
        }),
    }
}

/// Returns the counters of all sessions since the start.
fn counters(statistics: &target::TargetStatistics, events_dropped: u64) -> ServingCounters {
    let total = &statistics.total;
    ServingCounters {
        logins: LoginCounters {
            connections: statistics.connections as u64,
            logins_in_progress: statistics.logins_in_progress as u64,
            discovery_sessions: statistics.discovery_sessions as u64,
            refused_connections: statistics.refused_connections,
            displaced_connections: statistics.displaced_connections,
            failed_logins: statistics.failed_logins,
            opened_sessions: statistics.opened_sessions,
        },
        traffic: ServedTraffic {
            commands: total.commands,
            commands_by_kind: figures::commands(&statistics.commands),
            pdus_in: total.pdus_in,
            pdus_out: total.pdus_out,
            pdus_in_by_size: figures::sizes(&total.sizes_in),
            pdus_out_by_size: figures::sizes(&total.sizes_out),
            data_out_bytes: total.data_out_bytes,
            data_in_bytes: total.data_in_bytes,
            rejects: total.rejects,
            digest_errors: total.digest_errors,
            ignored: total.ignored,
        },
        times: command_times(statistics),
        events_dropped,
        ..ServingCounters::default()
    }
}

fn command_times(statistics: &target::TargetStatistics) -> CommandTimeFigures {
    let mut times = CommandTimeFigures::default();
    for (kind, taken) in &statistics.times {
        let place = match kind {
            CommandKind::Read => &mut times.time_read,
            CommandKind::Write => &mut times.time_write,
            CommandKind::Flush => &mut times.time_flush,
            CommandKind::Other => &mut times.time_other,
        };
        *place = figures::times(taken);
    }
    times
}

/// Returns the last claim on a unit; for a shared unit that of an absent gateway, if there is one.
fn claim(unit: &dyn LogicalUnit) -> Option<ClaimStatus> {
    let unit = unit.abilities().claims?;
    let sharers = unit.sharers().into_iter();
    let first = sharers.min_by_key(|sharer| sharer.claim.is_present).map(figures::sharer);
    first.or_else(|| unit.claim_report().map(figures::claim))
}
