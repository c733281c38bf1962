//! Prints the complete status of a process as tables for people: `forebay status --all`.

use std::{collections::BTreeMap, fmt::Write as _};

use comfy_table::{Cell, CellAlignment, Table};
use config::quantity::about;
use control::{
    AttachedVolumeStatus, CompressionStatus, LayerStatus, ObjectDriveStatus, PairNvram, PairStatus,
    PortalStatus, RefusedStatus, ServingPhase, ServingStatus, SessionStatus, TargetStatus,
};
use serde_json::{Map, Value};

use crate::table::table;

/// Returns portals, targets, every figure of every layer, sessions, connections and counters as text.
pub fn for_people(status: &ServingStatus) -> String {
    let mut text = first_line(status);
    if let Some(gln) = status.gln {
        let _ = writeln!(text, "its number (GLN) is {gln}");
    }
    for trouble in &status.naming_troubles {
        let _ = writeln!(text, "{trouble}");
    }
    for portal in &status.portals {
        let _ = writeln!(text, "{}", portal_line(portal));
    }
    if let Some(attached) = &status.attached {
        text += &attached_line(attached);
    }
    if !status.targets.is_empty() {
        let _ = writeln!(text, "\n{}", targets(&status.targets));
    }
    for target in &status.targets {
        if let Some(pair) = &target.pair {
            let _ = writeln!(text, "\n{}, of a pair: {}", target.name, pair_in_words(pair));
        }
        for RefusedStatus { lun, message, remedy } in &target.refused {
            let _ = writeln!(text, "\n{} LUN {lun} is not served: {message}", target.name);
            if let Some(remedy) = remedy {
                let _ = writeln!(text, "  remedy: {remedy}");
            }
        }
        for unit in &target.units {
            let _ = writeln!(
                text,
                "\n{} LUN {}: {} in blocks of {} bytes, serial {}",
                target.name,
                unit.lun,
                about(unit.bytes),
                unit.block_size,
                unit.serial
            );
            if let Some(claim) = &unit.claim {
                let _ = writeln!(text, "{claim}");
            }
            if let Some(drive) = &unit.drive {
                text += &drive_in_words(drive);
            }
            let _ = writeln!(text, "{}", layers(&unit.layers));
        }
    }
    // An attached volume has no initiators, so "no sessions" would be no information.
    if status.sessions.is_empty() && status.attached.is_none() {
        text.push_str("\nno sessions\n");
    } else if !status.sessions.is_empty() {
        let _ = writeln!(text, "\n{}", sessions(&status.sessions));
        let _ = writeln!(text, "\n{}", connections(&status.sessions));
    }
    let counted = status.counters.by_name();
    if !counted.is_empty() || status.attached.is_none() {
        let mut counters = table(&["counter", "value"]);
        add_figures(&mut counters, &[], &counted);
        let _ = writeln!(text, "\n{counters}");
    }
    text
}

/// Returns version, process, phase and time since the start.
pub fn first_line(status: &ServingStatus) -> String {
    format!(
        "forebay {} (process {}) is {} for {}\n",
        status.version,
        status.pid,
        match status.state {
            ServingPhase::Starting => "starting",
            ServingPhase::Serving => "serving",
            ServingPhase::Stopping => "stopping",
        },
        duration(status.uptime_seconds)
    )
}

/// Describes the device of an attached volume.
pub fn attached_line(attached: &AttachedVolumeStatus) -> String {
    let mut text = format!("{} is attached as {}", attached.volume, attached.device.display());
    if let Some(mount) = &attached.mount {
        let _ = write!(text, ", mounted on {}", mount.display());
    }
    text + "\n"
}

/// Describes in one line a portal and the targets that initiators reach through it.
fn portal_line(portal: &PortalStatus) -> String {
    let mut text = format!("listening on {} (group {}", portal.address, portal.group);
    if portal.tls {
        text += ", TLS";
    }
    for (what, value) in [("advertised as", &portal.advertise), ("redirects to", &portal.redirect)]
    {
        if let Some(value) = value {
            let _ = write!(text, ", {what} {value}");
        }
    }
    let _ = write!(text, ") for {}", portal.targets.join(", "));
    text
}

/// Describes the role of a gateway in its pair, and the state of the partner.
pub fn pair_in_words(pair: &PairStatus) -> String {
    let partner = if pair.partner_is_there { "there" } else { "away" };
    let mut text = format!("{}, the partner is {partner}", pair.role);
    if let [_, theirs] = &pair.halves[..] {
        let _ = write!(text, ", its leg: {theirs}");
    }
    match &pair.nvram {
        Some(PairNvram { is_used: false, .. }) => {
            text += ", the NVRAM or the log disk here has failed: writes wait for the disk";
        }
        Some(PairNvram { pending_bytes, .. }) => {
            let _ = write!(text, ", NVRAM in use, {} of it not on disk", about(*pending_bytes));
        }
        None => {}
    }
    if let Some(reason) = &pair.reason {
        let _ = write!(text, " ({reason})");
    }
    text
}

/// Describes an object drive: what it holds, the commands since its start, and those that were refused.
fn drive_in_words(drive: &ObjectDriveStatus) -> String {
    let counted = |counts: &BTreeMap<String, u64>| {
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        counts.join(", ")
    };
    let mut text = format!(
        "object drive: {} objects, {} in use of {}\n",
        drive.objects,
        about(drive.used_bytes),
        about(drive.capacity_bytes)
    );
    for (what, counts) in [("commands", &drive.service_actions), ("refused", &drive.refused)] {
        if !counts.is_empty() {
            let _ = writeln!(text, "{what}: {}", counted(counts));
        }
    }
    if drive.damaged_blocks + drive.repaired_blocks > 0 {
        let _ = writeln!(
            text,
            "{} damaged blocks, {} repaired from another copy",
            drive.damaged_blocks, drive.repaired_blocks
        );
    }
    text
}

fn compression_in_words(compression: &CompressionStatus) -> String {
    let CompressionStatus { method, in_bytes, in_link_bytes, out_bytes, out_link_bytes } =
        compression;
    let [in_, in_link, out, out_link] =
        [in_bytes, in_link_bytes, out_bytes, out_link_bytes].map(|bytes| about(*bytes));
    format!("{method}: in {in_} by {in_link}, out {out} by {out_link}")
}

fn targets(targets: &[TargetStatus]) -> Table {
    let mut table = table(&["target", "units", "sessions", "commands", "written", "read"]);
    for target in targets {
        let name = match &target.redirect {
            Some(redirect) => format!("{} (redirects to {redirect})", target.name),
            None => target.name.clone(),
        };
        table.add_row([
            name,
            target.units.len().to_string(),
            target.sessions.to_string(),
            target.commands.to_string(),
            about(target.data_out_bytes),
            about(target.data_in_bytes),
        ]);
    }
    table
}

fn sessions(sessions: &[SessionStatus]) -> Table {
    let head = ["initiator", "address", "target", "group", "commands", "written", "read"];
    // Few sessions share a congestion window, so leave the column out if none does.
    let has_ensembles = sessions.iter().any(|session| session.ensemble.is_some());
    let mut table = match has_ensembles {
        true => table(&[&head[..], &["congestion"]].concat()),
        false => table(&head),
    };
    for session in sessions {
        let target =
            if session.target.is_empty() { "(discovery)" } else { session.target.as_str() };
        let mut row = vec![
            session.initiator.clone(),
            session.address.clone(),
            target.to_owned(),
            session.group.map_or("-".to_owned(), |group| group.to_string()),
            session.commands.to_string(),
            about(session.data_out_bytes),
            about(session.data_in_bytes),
        ];
        if has_ensembles {
            let ensemble = session.ensemble.as_ref().map(ToString::to_string);
            row.push(ensemble.or_else(|| session.congestion.clone()).unwrap_or_default());
        }
        table.add_row(row);
    }
    table
}

/// Returns a table of all connections, session by session, in the order of the table of sessions.
fn connections(sessions: &[SessionStatus]) -> Table {
    let head = ["initiator", "connection", "from", "to", "PDUs in", "PDUs out", "written", "read"];
    // Few connections are compressed, so leave the column out if none is.
    let mut all = sessions.iter().flat_map(|session| &session.connections);
    let is_compressed = all.any(|connection| connection.compression.is_some());
    let mut table = match is_compressed {
        true => table(&[&head[..], &["compression"]].concat()),
        false => table(&head),
    };
    for session in sessions {
        for (index, connection) in session.connections.iter().enumerate() {
            let mut row = vec![
                if index == 0 { session.initiator.clone() } else { String::new() },
                connection.cid.to_string(),
                connection.address.clone(),
                connection.portal.clone(),
                connection.pdus_in.to_string(),
                connection.pdus_out.to_string(),
                about(connection.data_out_bytes),
                about(connection.data_in_bytes),
            ];
            if is_compressed {
                let compression = connection.compression.as_ref();
                row.push(compression.map_or("-".into(), compression_in_words));
            }
            table.add_row(row);
        }
    }
    table
}

fn layers(layers: &[LayerStatus]) -> Table {
    let mut table = table(&["layer", "on", "figure", "value"]);
    // The top layer comes first: this is the order in which a request passes the layers.
    for layer in layers.iter().rev() {
        let figures = layer.figures.by_name();
        if figures.is_empty() {
            table.add_row([layer.layer.as_str(), &layer.on]);
        }
        add_figures(&mut table, &[&layer.layer, &layer.on], &figures);
    }
    table
}

/// Adds a row for each figure. Only the first row contains the cells `first`.
fn add_figures(table: &mut Table, first: &[&str], figures: &Map<String, Value>) {
    for (index, (name, value)) in figures.iter().enumerate() {
        let lead = first.iter().map(|text| Cell::new(if index == 0 { text } else { "" }));
        let value = Cell::new(figure(name, value)).set_alignment(CellAlignment::Right);
        table.add_row(lead.chain([Cell::new(name.replace('_', " ")), value]).collect::<Vec<_>>());
    }
}

/// Formats a value. The suffix of its name is the unit: values named `…bytes` are shown in KiB and larger units.
fn figure(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if name.ends_with("bytes") => about(bytes),
            _ => number.to_string(),
        },
        Value::Null => "-".into(),
        Value::Object(map) => match map.get("p50_us") {
            Some(_) => in_short(map),
            None => {
                let parts: Vec<_> = map
                    .iter()
                    .map(|(name, value)| format!("{}: {value}", name.replace('_', " ")))
                    .collect();
                if parts.is_empty() { "-".into() } else { parts.join(", ") }
            }
        },
        other => other.to_string(),
    }
}

/// Formats number, median and high percentiles of response times.
fn in_short(times: &Map<String, Value>) -> String {
    let us = |name: &str| times.get(name).and_then(Value::as_f64).unwrap_or_default();
    let time = |name: &str| match us(name) {
        us if us >= 1e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.1} us"),
    };
    match times.get("count").and_then(Value::as_u64) {
        None | Some(0) => "-".into(),
        Some(count) => format!(
            "{count}: median {}, 99 % {}, 99.9 % {}",
            time("p50_us"),
            time("p99_us"),
            time("p999_us")
        ),
    }
}

/// Formats `seconds` in the two largest units, such as minutes and seconds.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use ::names::NamingProblem;
    use control::{ConnectionStatus, EnsembleStatus, LayerFigures, ProcessCounters, UnitStatus};

    use super::*;

    fn target() -> TargetStatus {
        let figures = serde_json::json!({
            "dirty_bytes": 1536, "rounds": 7, "last": null, "commands_by_kind": { "READ(10)": 9 },
            "time_read": { "count": 2, "p50_us": 12.5, "p99_us": 1500.0, "p999_us": 2e6 },
        });
        let layer = LayerStatus {
            layer: "cache".into(),
            on: "/x/log".into(),
            figures: LayerFigures::Untyped(figures.as_object().unwrap().clone()),
        };
        let unit = UnitStatus {
            lun: 3,
            serial: "S".into(),
            bytes: 1 << 30,
            block_size: 512,
            drive: None,
            claim: None,
            layers: vec![layer],
        };
        let refused = RefusedStatus {
            lun: 4,
            message: "its volume is missing".into(),
            remedy: Some("mount its disk".into()),
        };
        TargetStatus {
            name: "iqn.x".into(),
            redirect: Some("h:1".into()),
            sessions: 2,
            commands: 9,
            data_out_bytes: 2048,
            units: vec![unit],
            refused: vec![refused],
            ..TargetStatus::default()
        }
    }

    fn session() -> SessionStatus {
        let ensemble = EnsembleStatus {
            members: 4,
            cwnd_segments: 31.5,
            srtt_us: 8010,
            rttvar_us: 90,
            cuts: 3,
            undone_cuts: 1,
            ..EnsembleStatus::default()
        };
        let compression = CompressionStatus {
            method: "lz4".into(),
            in_bytes: 4096,
            in_link_bytes: 1024,
            ..CompressionStatus::default()
        };
        let connection = ConnectionStatus {
            cid: 5,
            address: "10.0.0.9:40001".into(),
            portal: "10.0.0.1:3261".into(),
            pdus_in: 77,
            pdus_out: 78,
            data_out_bytes: 2048,
            data_in_bytes: 0,
            compression: Some(compression),
        };
        SessionStatus {
            initiator: "iqn.i".into(),
            address: "10.0.0.9:40000".into(),
            target: "iqn.x".into(),
            group: Some(7),
            commands: 9,
            data_out_bytes: 2048,
            data_in_bytes: 0,
            congestion: Some("fairtcp".into()),
            ensemble: Some(ensemble),
            connections: vec![connection],
        }
    }

    fn status() -> ServingStatus {
        let portal = PortalStatus {
            address: "10.0.0.1:3260".into(),
            group: 7,
            advertise: Some("s.example".into()),
            redirect: None,
            tls: true,
            targets: vec!["iqn.x".into()],
        };
        let attached = AttachedVolumeStatus {
            device: "/dev/loop7".into(),
            volume: "iqn.x/3 of /x.toml".into(),
            bytes: 1 << 30,
            block_size: 512,
            read_only: false,
            direct_io: true,
            mount: Some("/srv/data".into()),
            process: 1,
        };
        ServingStatus {
            version: "0".into(),
            gln: None,
            naming_troubles: vec![NamingProblem::Twin],
            pid: 1,
            state: ServingPhase::Serving,
            uptime_seconds: 61,
            portals: vec![portal],
            targets: vec![target()],
            sessions: vec![session()],
            counters: ProcessCounters::default(),
            attached: Some(attached),
        }
    }

    #[test]
    fn the_table_names_layers_and_figures() {
        let status = status();
        let text = for_people(&status);
        for expected in [
            "another process has the same number (GLN)",
            "iqn.x/3 of /x.toml is attached as /dev/loop7, mounted on /srv/data\n",
            "iqn.x LUN 3: 1.0 GiB",
            "iqn.x LUN 4 is not served: its volume is missing\n  remedy: mount its disk\n",
            "iqn.x (redirects to h:1)",
            "listening on 10.0.0.1:3260 (group 7, TLS, advertised as s.example) for iqn.x",
            "dirty bytes",
            "1.5 KiB",
            "rounds",
            "1 min 1 s",
            "10.0.0.9:40001",
            "10.0.0.1:3261",
            "PDUs out",
            "lz4: in 4.0 KiB by 1.0 KiB",
            "4 share 31.5 segments",
            "READ(10): 9",
            "2: median 12.5 us, 99 % 1.5 ms, 99.9 % 2.0 s",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<ServingStatus>(&json).unwrap(), status);
    }
}
