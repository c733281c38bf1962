//! `forebay serve`: opens what the settings name, listens, answers until a signal, puts away.

use std::{
    fs::File,
    io::Write,
    net::SocketAddr,
    path::Path,
    process::exit,
    sync::Arc,
    time::{Duration, Instant},
};

use iscsi::keys::Offer;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use target::Server;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};
use unit::{Identity, LogicalUnit};

use crate::{
    admission,
    control::{self, Control},
    failure::{FAILED, Failure},
    quantity::Size,
    settings::{Iscsi, IscsiName, Portal, Settings, Target, Unit},
    stack::{self, Opened},
    state,
    status::{PortalStatus, SessionStatus, State, Status, TargetStatus, UnitStatus},
};

/// A stop takes at most this long; systemd and impatient people wait about as much.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Of that, what initiators get to log out.
const LOGOUT_WITHIN: Duration = Duration::from_secs(1);

/// Serves until a signal comes.
pub fn run(config: &Path, ready_fd: Option<i32>) -> Result<(), Failure> {
    let settings = Settings::load(config)?;
    let runtime = runtime(settings.threads)?;
    let result = runtime.block_on(serve(settings, ready_fd));
    // What still runs holds nothing that a kill would harm.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// With one thread there is nobody to share work with, so no cost of sharing it.
fn runtime(threads: u16) -> Result<Runtime, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cpus } else { threads.into() };
    let mut builder =
        if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start {threads} threads: {error}")))
}

async fn serve(settings: Settings, ready_fd: Option<i32>) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let path = match &settings.control {
        Some(path) => path.clone(),
        None => control::default_path()?,
    };
    let mut control = Control::open(&path)?;
    let node = Arc::new(Node::new());
    let told = Arc::clone(&node);
    control.serve(move || told.status()).await.map_err(Failure::new)?;
    let started = tokio::select! {
        started = node.start(&settings) => started,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping before the start is done");
            node.stop(&mut signals).await?;
            return Ok(());
        }
    };
    if let Err(failure) = started {
        // The first failure is the one to tell.
        if let Err(second) = node.stop(&mut signals).await {
            tracing::error!(%second, "stopping after a failed start");
        }
        return Err(failure);
    }
    announce(&node.addresses(), ready_fd)?;
    tracing::info!(control = %path.display(), "serving");
    let name = signals.next().await;
    tracing::info!(signal = name, "stopping");
    node.stop(&mut signals).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Tells whoever started us that initiators can connect.
fn announce(addresses: &[SocketAddr], ready_fd: Option<i32>) -> Result<(), Failure> {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let line = format!("ready {}\n", addresses.join(" "));
    let Some(number) = ready_fd else {
        // Nobody reads it: no reason not to serve.
        if let Err(error) = std::io::stdout().write_all(line.as_bytes()) {
            tracing::debug!(%error, "nobody hears that we are ready");
        }
        return Ok(());
    };
    let path = format!("/proc/self/fd/{number}");
    let told = File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    told.map_err(|error| {
        Failure::new(format!("cannot write to descriptor {number}: {error}"))
            .remedy("give --ready-fd the number of an open pipe or file")
    })
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::new);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Everything that this process serves.
struct Node {
    since: Instant,
    inner: Mutex<Inner>,
}

/// Grows while starting; from then on only `state` changes.
struct Inner {
    state: State,
    targets: Vec<Served>,
    portals: Vec<Group>,
}

/// A target and its units.
struct Served {
    name: String,
    units: Vec<ServedUnit>,
}

struct ServedUnit {
    lun: u16,
    serial: String,
    opened: Arc<Opened>,
}

/// Portals that lead to the same targets.
#[derive(Clone)]
struct Group {
    /// Among the groups, as the settings name them.
    place: usize,
    server: Arc<Server>,
    addresses: Vec<SocketAddr>,
    targets: Vec<String>,
}

impl Node {
    fn new() -> Self {
        let inner = Inner { state: State::Starting, targets: Vec::new(), portals: Vec::new() };
        Self { since: Instant::now(), inner: Mutex::new(inner) }
    }

    async fn start(&self, settings: &Settings) -> Result<(), Failure> {
        let initiator_name = settings.initiator_name.clone().unwrap_or_else(stack::name_of_host);
        // Targets that share their portals, in the order of the settings; those that need nothing
        // remote first, since what they serve may be remote to the others.
        let mut groups: Vec<(&[Portal], Vec<&Target>)> = Vec::new();
        for target in &settings.target {
            let portals = target.listen.as_deref().unwrap_or(&settings.listen);
            match groups.iter_mut().find(|(listen, _)| *listen == portals) {
                Some((_, targets)) => targets.push(target),
                None => groups.push((portals, vec![target])),
            }
        }
        let mut groups: Vec<_> = groups.into_iter().enumerate().collect();
        groups.sort_by_key(|(_, (_, targets))| targets.iter().any(|target| target.has_remote()));
        for (place, (portals, targets)) in groups {
            let group = self.open_group(settings, portals, &targets, &initiator_name).await?;
            self.inner.lock().portals.push(Group { place, ..group });
        }
        // Told in the order of the settings.
        self.inner.lock().portals.sort_by_key(|group| group.place);
        self.inner.lock().state = State::Serving;
        Ok(())
    }

    /// Opens the stacks of some targets and listens for them.
    async fn open_group(
        &self,
        settings: &Settings,
        portals: &[Portal],
        targets: &[&Target],
        initiator_name: &IscsiName,
    ) -> Result<Group, Failure> {
        let mut served = Vec::new();
        for target in targets {
            self.inner
                .lock()
                .targets
                .push(Served { name: target.name.0.clone(), units: Vec::new() });
            let mut units = Vec::new();
            for unit in &target.unit {
                let opened = stack::open(unit, initiator_name).await?;
                let state = settings.state.as_deref();
                units.push((unit.lun, self.add(target, unit, opened, state)?));
            }
            let mut shown = target::Target::new(target.name.0.clone(), units);
            shown.alias.clone_from(&target.alias);
            shown.access = admission::access(target);
            served.push(shown);
        }
        let names = served.iter().map(|target| target.name.clone()).collect();
        let security = admission::security(settings);
        let server = target::Settings { security, ..server_settings(&settings.iscsi) };
        let server = Server::new(server, served);
        let server = Arc::new(server.map_err(Failure::settings)?);
        let mut group = Group { place: 0, server, addresses: Vec::new(), targets: names };
        for portal in portals {
            let listening = group.server.listen(portal.0).await;
            group.addresses.push(listening.map_err(|error| cannot_listen(portal, &error))?);
        }
        Ok(group)
    }

    fn add(
        &self,
        target: &Target,
        unit: &Unit,
        opened: Opened,
        state: Option<&Path>,
    ) -> Result<Arc<dyn LogicalUnit>, Failure> {
        let serial = unit.serial.clone().unwrap_or_else(|| serial_of(target, unit));
        let mut identity = Identity::new(&serial).with_target(&target.name.0, PORTAL_GROUP);
        identity.product.clone_from(&unit.product);
        let top = Arc::clone(&opened.top);
        let opened = Arc::new(opened);
        if let Some(served) = self.inner.lock().targets.last_mut() {
            served.units.push(ServedUnit { lun: unit.lun, serial, opened });
        }
        Ok(Arc::new(state::open_unit(unit, top, identity, state)?))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.inner.lock().portals.iter().flat_map(|group| group.addresses.clone()).collect()
    }

    /// Initiators first, then what they wrote to. A second signal ends it at once: what is
    /// acknowledged is safe all the same.
    async fn stop(&self, signals: &mut Signals) -> Result<(), Failure> {
        self.inner.lock().state = State::Stopping;
        let put_away = async {
            let groups = self.inner.lock().portals.clone();
            let close = |group: Group| async move { group.server.shutdown(LOGOUT_WITHIN).await };
            futures_util::future::join_all(groups.into_iter().map(close)).await;
            let units: Vec<_> = {
                let inner = self.inner.lock();
                let units = inner.targets.iter().flat_map(|target| &target.units);
                units.map(|unit| Arc::clone(&unit.opened)).collect()
            };
            let stopped = units.iter().map(|unit| unit.stop());
            futures_util::future::join_all(stopped).await.into_iter().collect::<Result<(), _>>()
        };
        tokio::select! {
            stopped = put_away => stopped,
            () = tokio::time::sleep(STOP_WITHIN - Duration::from_millis(300)) => {
                tracing::warn!("not everything could be put away in time; the log has what was \
                acknowledged");
                Ok(())
            }
            name = signals.next() => {
                tracing::warn!(signal = name, "ending at once");
                exit(FAILED.into());
            }
        }
    }

    fn status(&self) -> Status {
        let inner = self.inner.lock();
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state: inner.state,
            uptime_seconds: self.since.elapsed().as_secs(),
            portals: Vec::new(),
            targets: inner.targets.iter().map(Served::status).collect(),
            sessions: Vec::new(),
            counters: Map::new(),
        };
        for group in &inner.portals {
            let targets = &group.targets;
            let portals = group.addresses.iter().map(|address| PortalStatus {
                address: address.to_string(),
                targets: targets.clone(),
            });
            status.portals.extend(portals);
            add_statistics(&mut status, &group.server.statistics());
        }
        status
    }
}

impl Served {
    fn status(&self) -> TargetStatus {
        let units = self.units.iter().map(|unit| {
            let geometry = unit.opened.top.geometry();
            UnitStatus {
                lun: unit.lun,
                serial: unit.serial.clone(),
                bytes: geometry.bytes(),
                block_size: geometry.block_size,
                layers: unit.opened.status(),
            }
        });
        TargetStatus { name: self.name.clone(), units: units.collect() }
    }
}

/// All our portals are one portal group.
const PORTAL_GROUP: u16 = 1;

/// Sixteen hexadecimal digits that last as long as the target's name and the unit's number.
fn serial_of(target: &Target, unit: &Unit) -> String {
    // FNV-1a: the same with every compiler.
    let name = format!("{}/{}", target.name, unit.lun);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016X}")
}

fn cannot_listen(portal: &Portal, error: &std::io::Error) -> Failure {
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "stop who uses it (`ss -ltnp 'sport = :{}'` names the process), or change `listen`",
            portal.0.port()
        ),
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address (`ip addr` lists those it has): change `listen`"
                .into()
        }
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege: change `listen`".into()
        }
        _ => "change `listen`".into(),
    };
    Failure::new(format!("cannot listen on {portal}: {error}")).remedy(remedy)
}

fn server_settings(iscsi: &Iscsi) -> target::Settings {
    let bytes = |size: Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    let mut settings = target::Settings::default();
    settings.offer = Offer {
        header_digest: stack::digest(iscsi.header_digest),
        data_digest: stack::digest(iscsi.data_digest),
        initial_r2t: iscsi.initial_r2t,
        immediate_data: iscsi.immediate_data,
        max_recv_data_segment_length: bytes(iscsi.max_recv_data_segment_length),
        max_burst_length: bytes(iscsi.max_burst_length),
        first_burst_length: bytes(iscsi.first_burst_length),
        max_outstanding_r2t: iscsi.max_outstanding_r2t,
        ..settings.offer
    };
    settings.session.queue_commands = iscsi.queue_depth.into();
    settings.session.login_time = iscsi.login_timeout.0;
    settings.session.ping_after =
        if iscsi.ping_interval.0.is_zero() { NEVER } else { iscsi.ping_interval.0 };
    settings.max_connections = iscsi.max_connections as usize;
    settings.max_logins = iscsi.max_logins as usize;
    settings.max_logins_per_address = iscsi.max_logins_per_address as usize;
    settings.batch_commands = iscsi.batch_commands;
    settings.busy_poll = iscsi.busy_poll.0;
    settings
}

/// Longer than any session lasts.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Adds one server's share.
fn add_statistics(status: &mut Status, statistics: &target::Statistics) {
    let total = &statistics.total;
    for (name, count) in [
        ("connections", statistics.connections as u64),
        ("logins_in_progress", statistics.logins_in_progress as u64),
        ("refused_connections", statistics.refused_connections),
        ("failed_logins", statistics.failed_logins),
        ("opened_sessions", statistics.opened_sessions),
        ("commands", total.commands),
        ("pdus_in", total.pdus_in),
        ("pdus_out", total.pdus_out),
        ("data_out_bytes", total.data_out_bytes),
        ("data_in_bytes", total.data_in_bytes),
        ("rejects", total.rejects),
        ("digest_errors", total.digest_errors),
        ("ignored", total.ignored),
    ] {
        let before = status.counters.get(name).and_then(Value::as_u64).unwrap_or(0);
        status.counters.insert(name.to_owned(), (before + count).into());
    }
    status.sessions.extend(statistics.sessions.iter().map(|session| SessionStatus {
        initiator: session.initiator_name.clone(),
        address: session.address.to_string(),
        target: session.target_name.clone().unwrap_or_default(),
        commands: session.counters.commands,
        data_out_bytes: session.counters.data_out_bytes,
        data_in_bytes: session.counters.data_in_bytes,
    }));
}
