//! What a serving process says about itself: the answer on the control socket, and its table for
//! people.

use std::fmt::{self, Write as _};

use ::names::{Gln, NamingProblem};
use comfy_table::{Cell, CellAlignment, Table, presets};
use fairtcp::PathModel;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use transport::CongestionStatistics;

use crate::{attached::AttachedVolumeStatus, quantity::about};

/// A snapshot of a serving process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ServingStatus {
    /// The program's version.
    pub version: String,
    /// This node's number (global location number), if it takes part in a naming service.
    #[serde(default)]
    pub gln: Option<Gln>,
    /// What an operator has to put right about that service.
    #[serde(default)]
    pub naming_troubles: Vec<NamingProblem>,
    /// The process.
    pub pid: u32,
    /// Where it stands in its life.
    pub state: ServingPhase,
    /// Since it was started.
    pub uptime_seconds: u64,
    /// Where it listens, with ports as the kernel chose them.
    pub portals: Vec<PortalStatus>,
    /// What it serves.
    pub targets: Vec<TargetStatus>,
    /// The block device of this host that `forebay attach` has made of the process's only unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachedVolumeStatus>,
    /// Who is logged in.
    pub sessions: Vec<SessionStatus>,
    /// Counters of the iSCSI side, by name.
    pub counters: Map<String, Value>,
}

/// Where a serving process stands.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingPhase {
    /// Opening volumes; no portal yet.
    Starting,
    /// Answering initiators.
    Serving,
    /// Putting things away.
    Stopping,
}

/// One address and what it leads to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PortalStatus {
    /// IP address and port.
    pub address: String,
    /// The tag of its portal group.
    pub group: u16,
    /// What discovery tells in place of the address.
    pub advertise: Option<String>,
    /// Where logins are sent.
    pub redirect: Option<String>,
    /// Whether connections begin with TLS.
    pub tls: bool,
    /// Names of targets.
    pub targets: Vec<String>,
}

/// One target.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TargetStatus {
    /// Its iSCSI name.
    pub name: String,
    /// Where logins are sent.
    pub redirect: Option<String>,
    /// Sessions that are open.
    pub sessions: u64,
    /// SCSI commands since the start of the process, in sessions open and closed.
    pub commands: u64,
    /// Bytes written since the start of the process.
    pub data_out_bytes: u64,
    /// Bytes read since the start of the process.
    pub data_in_bytes: u64,
    /// How this gateway stands in the pair that it is of.
    #[serde(default)]
    pub pair: Option<PairStatus>,
    /// Its units.
    pub units: Vec<UnitStatus>,
    /// Units of the settings that are not served because of their storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedStatus>,
}

/// A unit that is not served.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RefusedStatus {
    /// The LUN.
    pub lun: u16,
    /// The reason.
    pub message: String,
    /// The remedy, with the command to run.
    pub remedy: Option<String>,
}

/// A gateway of a pair.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairStatus {
    /// "active": it serves the unit, and the partner has everything; "alone": it serves the unit, and
    /// nobody else has everything; "standby": the partner serves it, or nobody does.
    pub role: String,
    /// Whether the partner answers.
    pub partner_is_there: bool,
    /// How the halves of the log stand, its own first, while it serves.
    pub halves: Vec<String>,
    /// The NVRAM in front of this gateway's half of the log; `None` without `report = "immediate"`.
    #[serde(default)]
    pub nvram: Option<PairNvram>,
    /// Why it does not do more.
    pub reason: Option<String>,
}

/// The NVRAM in front of a half of a pair's log.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PairNvram {
    /// Bytes in the NVRAM that are not on the log disk yet.
    pub pending_bytes: u64,
    /// True while a write is answered when the NVRAM holds it. False if the NVRAM or the log disk has failed: then each
    /// write waits for the log disk.
    pub is_used: bool,
}

impl fmt::Display for PairStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partner = if self.partner_is_there { "there" } else { "away" };
        write!(f, "{}, the partner is {partner}", self.role)?;
        if let [_, theirs] = &self.halves[..] {
            write!(f, ", its half: {theirs}")?;
        }
        match &self.nvram {
            Some(PairNvram { is_used: false, .. }) => {
                write!(f, ", the NVRAM or the log disk here has failed: writes wait for the disk")?;
            }
            Some(PairNvram { pending_bytes, .. }) => {
                write!(f, ", NVRAM in use, {} of it not on disk", about(*pending_bytes))?;
            }
            None => {}
        }
        self.reason.iter().try_for_each(|reason| write!(f, " ({reason})"))
    }
}

/// One logical unit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct UnitStatus {
    /// Its number.
    pub lun: u16,
    /// Its serial number.
    pub serial: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes in a logical block.
    pub block_size: u32,
    /// The cache elsewhere that has claimed it, or had.
    #[serde(default)]
    pub claim: Option<ClaimStatus>,
    /// Its layers, bottom first.
    pub layers: Vec<LayerStatus>,
}

/// The claim of a gateway's cache on a unit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ClaimStatus {
    /// What its gateway calls itself.
    pub owner: String,
    /// The instance id of its log.
    pub log: String,
    /// How often that had been opened when it was granted.
    pub generation: u64,
    /// It is in force: nobody else may change the unit.
    pub held: bool,
    /// There may be acknowledged writes in that log which the unit does not have.
    pub dirty: bool,
    /// The operator of this node has ended it.
    pub dropped: bool,
    /// Its gateway is logged in.
    pub present: bool,
    /// The newest write that its log has confirmed: an older copy of the log is refused. 0: none yet.
    #[serde(default)]
    pub confirmed: u64,
    /// What it has of a unit that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareStatus>,
}

/// What a gateway has of a unit that several share.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ShareStatus {
    /// Nothing was heard of it for a lease.
    pub silent: bool,
    /// It has not said since the node started what it holds for writing: until then nobody is granted anything.
    pub awaited: bool,
    /// Ranges that it holds for reading.
    pub reads: usize,
    /// Ranges that it holds for writing: it may have data of them that is nowhere else.
    pub writes: usize,
    /// Ranges that others wait for.
    pub recalled: usize,
}

impl From<scsi::ClaimReport> for ClaimStatus {
    fn from(report: scsi::ClaimReport) -> Self {
        Self {
            owner: report.owner,
            log: report.instance.iter().map(|byte| format!("{byte:02x}")).collect(),
            generation: report.generation,
            held: report.is_held,
            dirty: report.is_dirty,
            dropped: report.is_dropped,
            present: report.is_present,
            confirmed: report.confirmed,
            share: None,
        }
    }
}

impl From<unit::Sharer> for ClaimStatus {
    fn from(sharer: unit::Sharer) -> Self {
        let standing = sharer.standing;
        let share = ShareStatus {
            silent: standing.is_silent,
            awaited: standing.is_awaited,
            reads: standing.shared,
            writes: standing.exclusive,
            recalled: standing.recalled,
        };
        Self { share: Some(share), ..Self::from(sharer.claim) }
    }
}

impl fmt::Display for ShareStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { silent, awaited, reads, writes, recalled } = self;
        write!(f, "has {reads} ranges for reading and {writes} for writing")?;
        if *recalled > 0 {
            write!(f, ", and others wait for {recalled} of them")?;
        }
        if *awaited {
            write!(f, "; nobody is granted anything before it has come back")?;
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
            Self { held: false, .. } => write!(f, "claim given back: {whose}"),
            Self { share: Some(share), present, .. } => {
                let away = if *present { "" } else { ", which is away" };
                write!(f, "shared by {whose}{away}: it {share}")
            }
            Self { dirty, present, .. } => {
                let data = if *dirty { "its newest data is with" } else { "claimed by" };
                let away = if *present { "" } else { ", which is away" };
                write!(
                    f,
                    "{data} {whose}{away}; nobody else may write, and who reads sees an older image"
                )
            }
        }
    }
}

/// One layer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LayerStatus {
    /// The word for it in the settings.
    pub layer: String,
    /// What it stands on: a path, a URL, a name.
    pub on: String,
    /// Its counters, by name; the units are in the names.
    pub figures: Map<String, Value>,
}

/// One session.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SessionStatus {
    /// Who.
    pub initiator: String,
    /// From where.
    pub address: String,
    /// To which target; empty: discovery.
    pub target: String,
    /// The tag of the portal group through which it came.
    pub group: Option<u16>,
    /// SCSI commands so far.
    pub commands: u64,
    /// Bytes that the initiator wrote.
    pub data_out_bytes: u64,
    /// Bytes that the initiator read.
    pub data_in_bytes: u64,
    /// The congestion control of its newest connection, by its name in the kernel.
    #[serde(default)]
    pub congestion: Option<String>,
    /// What its connections share, if they share a congestion window.
    #[serde(default)]
    pub ensemble: Option<EnsembleStatus>,
    /// Its connections; none for a while, if it may come back for its tasks.
    pub connections: Vec<ConnectionStatus>,
}

/// What the connections of a session share.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct EnsembleStatus {
    /// Connections that are members.
    pub members: u32,
    /// The congestion window of all of them; with a model of the path, what all may have in flight.
    pub cwnd_segments: f64,
    /// The slow start threshold of all of them; none before the first loss.
    pub ssthresh_segments: Option<f64>,
    /// The smoothed round trip time that one of them has measured last.
    pub srtt_us: u64,
    /// Its variation.
    pub rttvar_us: u64,
    /// Times that the window was cut.
    pub cuts: u64,
    /// Of these, those that were made with the next acknowledgment only.
    pub late_cuts: u64,
    /// Cuts taken back.
    pub undone_cuts: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// What is known of the path, if they share a model of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathStatus>,
}

/// A path as the members of an ensemble know it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PathStatus {
    /// What it delivers to the ensemble: the best of the last ten round trips, of full segments, without their headers. None
    /// where these told of no rate.
    pub delivery_bits_per_second: Option<u64>,
    /// The least round trip time; none before one was measured.
    pub least_rtt_us: Option<u64>,
    /// Whether others keep a queue on it.
    pub is_crowded: bool,
    /// Times that the members all but stopped to measure the round trip time.
    pub probes: u64,
}

impl PathStatus {
    fn of(path: &PathModel, segment_bytes: u32) -> Self {
        let rate = (path.bandwidth * f64::from(segment_bytes) * 8.0).round() as u64;
        let least_rtt_us = path.least_rtt.as_micros() as u64;
        Self {
            delivery_bits_per_second: Some(rate).filter(|rate| *rate > 0),
            least_rtt_us: Some(least_rtt_us).filter(|us| *us > 0),
            is_crowded: path.is_crowded,
            probes: path.probes,
        }
    }
}

impl EnsembleStatus {
    /// What the connections of a session share, if they share anything.
    pub fn of(congestion: &CongestionStatistics) -> Option<Self> {
        let tenths = |segments: f64| (segments * 10.0).round() / 10.0;
        let block = congestion.ensemble?;
        Some(Self {
            members: block.members,
            cwnd_segments: tenths(block.cwnd),
            ssthresh_segments: block.ssthresh.is_finite().then(|| tenths(block.ssthresh)),
            srtt_us: block.srtt.as_micros() as u64,
            rttvar_us: block.rttvar.as_micros() as u64,
            cuts: block.cuts,
            late_cuts: block.late_cuts,
            undone_cuts: block.undone,
            timeouts: block.timeouts,
            path: block.path.map(|path| PathStatus::of(&path, congestion.segment_bytes)),
        })
    }
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
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ConnectionStatus {
    /// The initiator's number for it.
    pub cid: u16,
    /// From where.
    pub address: String,
    /// The address at this end.
    pub portal: String,
    /// PDUs received on it.
    pub pdus_in: u64,
    /// PDUs sent on it.
    pub pdus_out: u64,
    /// Bytes that the initiator wrote.
    pub data_out_bytes: u64,
    /// Bytes that the initiator read.
    pub data_in_bytes: u64,
    /// What its compression does, if it has one.
    #[serde(default)]
    pub compression: Option<CompressionStatus>,
}

/// What has passed a compressed connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CompressionStatus {
    /// "lz4" or "zstd".
    pub method: String,
    /// Bytes of PDUs received.
    pub in_bytes: u64,
    /// The same as they crossed the link.
    pub in_link_bytes: u64,
    /// Bytes of PDUs sent.
    pub out_bytes: u64,
    /// The same as they crossed the link.
    pub out_link_bytes: u64,
}

impl fmt::Display for CompressionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [in_, in_link, out, out_link] =
            [self.in_bytes, self.in_link_bytes, self.out_bytes, self.out_link_bytes].map(about);
        write!(f, "{}: in {in_} by {in_link}, out {out} by {out_link}", self.method)
    }
}

impl ServingStatus {
    /// The same as tables for people.
    pub fn for_people(&self) -> String {
        let mut text = format!(
            "forebay {} (process {}) is {} for {}\n",
            self.version,
            self.pid,
            match self.state {
                ServingPhase::Starting => "starting",
                ServingPhase::Serving => "serving",
                ServingPhase::Stopping => "stopping",
            },
            duration(self.uptime_seconds)
        );
        if let Some(gln) = self.gln {
            let _ = writeln!(text, "its number (GLN) is {gln}");
        }
        for trouble in &self.naming_troubles {
            let _ = writeln!(text, "{trouble}");
        }
        for portal in &self.portals {
            let _ = writeln!(text, "{}", portal.for_people());
        }
        if let Some(attached) = &self.attached {
            let _ =
                write!(text, "{} is attached as {}", attached.volume, attached.device.display());
            if let Some(mount) = &attached.mount {
                let _ = write!(text, ", mounted on {}", mount.display());
            }
            text.push('\n');
        }
        if !self.targets.is_empty() {
            let _ = writeln!(text, "\n{}", targets(&self.targets));
        }
        for target in &self.targets {
            if let Some(pair) = &target.pair {
                let _ = writeln!(text, "\n{}, of a pair: {pair}", target.name);
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
                let _ = writeln!(text, "{}", layers(&unit.layers));
            }
        }
        // Initiators do not log in to an attached volume, so "no sessions" would say nothing.
        if self.sessions.is_empty() && self.attached.is_none() {
            text.push_str("\nno sessions\n");
        } else if !self.sessions.is_empty() {
            let _ = writeln!(text, "\n{}", sessions(&self.sessions));
            let _ = writeln!(text, "\n{}", connections(&self.sessions));
        }
        if !self.counters.is_empty() || self.attached.is_none() {
            let mut counters = table(&["counter", "value"]);
            add_figures(&mut counters, &[], &self.counters);
            let _ = writeln!(text, "\n{counters}");
        }
        text
    }
}

impl PortalStatus {
    fn for_people(&self) -> String {
        let mut text = format!("listening on {} (group {}", self.address, self.group);
        if self.tls {
            text += ", TLS";
        }
        for (what, value) in [("told as", &self.advertise), ("redirects to", &self.redirect)] {
            if let Some(value) = value {
                let _ = write!(text, ", {what} {value}");
            }
        }
        let _ = write!(text, ") for {}", self.targets.join(", "));
        text
    }
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
    // Most have none, and a line has no room to spare.
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

/// Session by session, in the order of the table above it.
fn connections(sessions: &[SessionStatus]) -> Table {
    let head = ["initiator", "connection", "from", "to", "PDUs in", "PDUs out", "written", "read"];
    // Most have none, and a line has no room to spare.
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
                row.push(compression.map_or("-".into(), ToString::to_string));
            }
            table.add_row(row);
        }
    }
    table
}

/// An empty table with this head.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head);
    table
}

fn layers(layers: &[LayerStatus]) -> Table {
    let mut table = table(&["layer", "on", "figure", "value"]);
    // Top first, as a request meets them.
    for layer in layers.iter().rev() {
        if layer.figures.is_empty() {
            table.add_row([layer.layer.as_str(), &layer.on]);
        }
        add_figures(&mut table, &[&layer.layer, &layer.on], &layer.figures);
    }
    table
}

/// A row for each figure, the first of them beginning with `first`.
fn add_figures(table: &mut Table, first: &[&str], figures: &Map<String, Value>) {
    for (index, (name, value)) in figures.iter().enumerate() {
        let lead = first.iter().map(|text| Cell::new(if index == 0 { text } else { "" }));
        let value = Cell::new(figure(name, value)).set_alignment(CellAlignment::Right);
        table.add_row(lead.chain([Cell::new(name.replace('_', " ")), value]).collect::<Vec<_>>());
    }
}

/// A value as its name says it is meant.
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

/// Times, for people.
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
            "{count}: half below {}, 99 % {}, 99.9 % {}",
            time("p50_us"),
            time("p99_us"),
            time("p999_us")
        ),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_layers_and_figures() {
        let figures = serde_json::json!({
            "dirty_bytes": 1536, "rounds": 7, "last": null, "commands_by_kind": { "READ(10)": 9 },
            "time_read": { "count": 2, "p50_us": 12.5, "p99_us": 1500.0, "p999_us": 2e6 },
        });
        let layer = LayerStatus {
            layer: "cache".into(),
            on: "/x/log".into(),
            figures: figures.as_object().unwrap().clone(),
        };
        let unit = UnitStatus {
            lun: 3,
            serial: "S".into(),
            bytes: 1 << 30,
            block_size: 512,
            claim: None,
            layers: vec![layer],
        };
        let status = ServingStatus {
            version: "0".into(),
            gln: None,
            naming_troubles: vec![NamingProblem::Twin],
            pid: 1,
            state: ServingPhase::Serving,
            uptime_seconds: 61,
            portals: vec![PortalStatus {
                address: "10.0.0.1:3260".into(),
                group: 7,
                advertise: Some("s.example".into()),
                redirect: None,
                tls: true,
                targets: vec!["iqn.x".into()],
            }],
            targets: vec![TargetStatus {
                pair: None,
                name: "iqn.x".into(),
                redirect: Some("h:1".into()),
                sessions: 2,
                commands: 9,
                data_out_bytes: 2048,
                data_in_bytes: 0,
                units: vec![unit],
                refused: vec![RefusedStatus {
                    lun: 4,
                    message: "its volume is missing".into(),
                    remedy: Some("mount its disk".into()),
                }],
            }],
            sessions: vec![SessionStatus {
                initiator: "iqn.i".into(),
                address: "10.0.0.9:40000".into(),
                target: "iqn.x".into(),
                group: Some(7),
                commands: 9,
                data_out_bytes: 2048,
                data_in_bytes: 0,
                congestion: Some("fairtcp".into()),
                ensemble: Some(EnsembleStatus {
                    members: 4,
                    cwnd_segments: 31.5,
                    ssthresh_segments: None,
                    srtt_us: 8010,
                    rttvar_us: 90,
                    cuts: 3,
                    late_cuts: 0,
                    undone_cuts: 1,
                    timeouts: 0,
                    path: None,
                }),
                connections: vec![ConnectionStatus {
                    cid: 5,
                    address: "10.0.0.9:40001".into(),
                    portal: "10.0.0.1:3261".into(),
                    pdus_in: 77,
                    pdus_out: 78,
                    data_out_bytes: 2048,
                    data_in_bytes: 0,
                    compression: Some(CompressionStatus {
                        method: "lz4".into(),
                        in_bytes: 4096,
                        in_link_bytes: 1024,
                        out_bytes: 0,
                        out_link_bytes: 0,
                    }),
                }],
            }],
            counters: Map::new(),
            attached: Some(AttachedVolumeStatus {
                device: "/dev/loop7".into(),
                volume: "iqn.x/3 of /x.toml".into(),
                bytes: 1 << 30,
                block_size: 512,
                read_only: false,
                direct_io: true,
                mount: Some("/srv/data".into()),
                process: 1,
            }),
        };
        let text = status.for_people();
        for expected in [
            "another process has the same number (GLN)",
            "iqn.x/3 of /x.toml is attached as /dev/loop7, mounted on /srv/data\n",
            "iqn.x LUN 3: 1.0 GiB",
            "iqn.x LUN 4 is not served: its volume is missing\n  remedy: mount its disk\n",
            "iqn.x (redirects to h:1)",
            "listening on 10.0.0.1:3260 (group 7, TLS, told as s.example) for iqn.x",
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
            "2: half below 12.5 us, 99 % 1.5 ms, 99.9 % 2.0 s",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<ServingStatus>(&json).unwrap(), status);
    }

    #[test]
    fn a_model_is_told_in_bits_and_time() {
        let path = |bandwidth, least_rtt| PathModel { bandwidth, least_rtt, ..Default::default() };
        let ensemble = |path: Option<PathModel>| {
            let block = fairtcp::EnsembleControlBlock {
                members: 4,
                cwnd: 63.0,
                path,
                ..Default::default()
            };
            let name = "fairtcp".to_owned();
            EnsembleStatus::of(&CongestionStatistics {
                name,
                segment_bytes: 1448,
                ensemble: Some(block),
            })
            .unwrap()
        };
        let known = ensemble(Some(path(8000.0, std::time::Duration::from_micros(4020))));
        let of = known.path.as_ref().unwrap();
        assert_eq!((of.delivery_bits_per_second, of.least_rtt_us), (Some(92_672_000), Some(4020)));
        assert_eq!(known.to_string(), "4 share 63.0 segments, 92.7 Mbit/s, 4.0 ms");
        let new = ensemble(Some(path(0.0, Default::default())));
        let of = new.path.as_ref().unwrap();
        assert_eq!((of.delivery_bits_per_second, of.least_rtt_us), (None, None));
        assert_eq!(new.to_string(), "4 share 63.0 segments");
        for (it, has_path) in [(known, true), (new, true), (ensemble(None), false)] {
            let json = serde_json::to_value(&it).unwrap();
            assert_eq!(json.get("path").is_some(), has_path, "{json}");
            assert_eq!(serde_json::from_value::<EnsembleStatus>(json).unwrap(), it);
        }
    }
}
