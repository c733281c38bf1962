//! Checks of everything else than the storage itself: folders of records, the node's number, records of moves, and the
//! addresses of the naming service.

use std::{io::ErrorKind, net::TcpListener};

use config::{Layer, Settings};
use control::{ControlRequest, ControlResponse, Failure, ServingStatus};
use node::{
    moves::Moves,
    naming::{self, Naming},
};
use stack::state_folder;

use super::report::SettingsCheckReport;
use crate::control_socket;

/// Checks the folders of records: the `state` folder, and the one next to the settings file if any storage is recorded
/// there.
pub(super) fn folders(
    settings: &Settings,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let is_recorded = |layer: &Layer| matches!(layer, Layer::File(_) | Layer::Cache(_));
    let mut units = settings.target.iter().flat_map(|target| &target.unit);
    let records = settings.records_folder();
    let (place, folder) = match &settings.state {
        Some(state) => ("state", state),
        None if !settings.common_cache.is_empty()
            || units.any(|unit| unit.stack.iter().any(is_recorded)) =>
        {
            ("records of storage", &records)
        }
        None => return Ok(()),
    };
    let found = state_folder::check(folder).and_then(|()| state_folder::can_be_used(folder));
    report.say(place, found.map(|()| format!("the folder {} can be used", folder.display())))
}

/// Checks the node's number (GLN) and the addresses on which the node answers naming requests.
pub(super) fn names(
    settings: &Settings,
    running: Option<&ServingStatus>,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let Some(names) = &settings.names else { return Ok(()) };
    report.say("names", Naming::check(settings))?;
    if settings.state.is_none() {
        // Without a `state` folder the process only asks other nodes, and listens on no address.
        return Ok(());
    }
    let ports = |status: &ServingStatus| -> Option<Vec<String>> {
        status.gln?;
        match control_socket::ask(&control_socket::path(settings).ok()?, ControlRequest::Names) {
            Ok(ControlResponse::Names(known)) => Some(known.nodes.into_iter().next()?.addresses),
            _ => None,
        }
    };
    let open = running.and_then(ports).unwrap_or_default();
    let mut held = Vec::new();
    for address in &names.listen {
        // Compare only the ports: a process that listens on all addresses may report another address.
        let port = format!(":{}", address.0.port());
        let is_open = || open.iter().any(|told| told.ends_with(&port));
        let found = match TcpListener::bind(address.0) {
            Ok(listener) => {
                held.push(listener);
                Ok("it is free".to_owned())
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_open() => {
                Ok("the serving process has it open".to_owned())
            }
            Err(error) => Err(naming::cannot_listen(address.0, &error)),
        };
        report.say(&format!("names {}", address.0), found)?;
    }
    Ok(())
}

/// Applies the records of moves to the settings: volumes that have moved away are not checked, and volumes that have
/// moved here are.
pub(super) fn moves(
    settings: &mut Settings,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let moves = match Moves::open(settings) {
        Ok(moves) => moves,
        Err(failure) => return report.say("moves", Err(failure)),
    };
    for (volume, failure) in moves.apply(settings) {
        report.say(&format!("volume {volume}"), Err(failure))?;
    }
    Ok(())
}
