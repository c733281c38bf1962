//! `forebay serve`: opens everything that the settings name, serves until a signal, and closes it.

use std::{fs::File, io::Write, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use config::{Iscsi, Settings, quantity::Size};
use control::{ControlRequest, ControlResponse, Failure, ReloadChanges};
use iscsi::keys::NegotiationOffer;
use node::Node;
use stack::congestion::congestion;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};
use transport::SocketOptions;

use crate::{
    control_socket::{self, ControlSocket},
    events::EventFilter,
    memory_release, open_file_limit,
};

pub fn run(config: &Path, ready_fd: Option<i32>, events: EventFilter) -> Result<(), Failure> {
    // Make the path absolute before the first load. Relative paths in the settings are resolved against this file's
    // folder, and a reload must get the same paths, or it would treat every file as changed.
    let config = std::path::absolute(config).map_err(Failure::new)?;
    let settings = Settings::load(&config)?;
    open_file_limit::raise(server_settings(&settings.iscsi).open_connections());
    let runtime = runtime(settings.threads, !settings.iscsi.busy_poll.0.is_zero())?;
    let result = runtime.block_on(serve(&config, settings, ready_fd, events));
    // Drop tasks that still run after 100 ms. This loses no more than killing the process does.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Number of task polls after which a thread checks for events of other sessions. A session that polls takes about 2 us
/// per poll, so other sessions wait at most 16 us longer. With tokio's default of 61 it would be 120 us.
const POLLS_BETWEEN_EVENTS: u32 = 8;

/// Makes the runtime. With one thread, tokio's single-threaded runtime saves the cost of sharing work.
fn runtime(threads: u16, is_polling: bool) -> Result<Runtime, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cpus } else { threads.into() };
    let mut builder =
        if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    if is_polling {
        builder.event_interval(POLLS_BETWEEN_EVENTS);
    }
    builder.enable_all().build().map_err(|error| {
        Failure::new(format!("cannot start {threads} threads: {error}")).remedy(
            "raise the limit of processes (`ulimit -u`, TasksMax= of systemd), or lower \
             `threads`",
        )
    })
}

async fn serve(
    config: &Path,
    settings: Settings,
    ready_fd: Option<i32>,
    events: EventFilter,
) -> Result<(), Failure> {
    let mut signals = ServeSignals::new()?;
    let path = control_socket::path(&settings)?;
    let mut control = ControlSocket::open(&path)?;
    let node = Arc::new(Node::new(config.to_owned(), settings, server_settings, Box::new(events))?);
    let asked = Arc::clone(&node);
    control
        .serve(move |request| answer(Arc::clone(&asked), request))
        .await
        .map_err(Failure::new)?;
    let started = tokio::select! {
        started = node.start() => started,
        name = signals.end() => {
            tracing::info!(signal = name, "stopping before the start is done");
            node.stop(signals.end()).await?;
            return Ok(());
        }
    };
    if let Err(failure) = started {
        // Return the failure of the start; a failure of the stop is only logged.
        if let Err(second) = node.stop(signals.end()).await {
            tracing::error!(failure = %second, "stopping after a failed start");
        }
        return Err(failure);
    }
    announce(&node.addresses(), ready_fd)?;
    tracing::info!(control = %path.display(), "serving");
    let counted = Arc::clone(&node);
    tokio::spawn(memory_release::give_back(move || counted.ended_connections()));
    let name = loop {
        match signals.next().await {
            Some(end) => break end,
            None => drop(tokio::spawn(reload(Arc::clone(&node)))),
        }
    };
    tracing::info!(signal = name, "stopping");
    node.stop(signals.end()).await?;
    tracing::info!("stopped");
    Ok(())
}

async fn answer(node: Arc<Node>, request: ControlRequest) -> ControlResponse {
    match request {
        ControlRequest::Status => ControlResponse::Status(Box::new(node.status())),
        ControlRequest::Reload => respond(reload(node).await, ControlResponse::Changes),
        ControlRequest::Compare { config } => {
            respond(node.compare(&config), ControlResponse::Changes)
        }
        ControlRequest::Cache { unit, order } => {
            respond(node.order(&unit, order).await, ControlResponse::Cache)
        }
        ControlRequest::Claim { unit } => respond(node.claims(&unit), ControlResponse::Claims),
        ControlRequest::Names => respond(node.known().await, ControlResponse::Names),
        ControlRequest::Locate { volume } => {
            respond(node.locate(&volume).await, ControlResponse::Located)
        }
        ControlRequest::DropClaim { unit, lose_dirty_data, hosts_unmounted } => {
            let dropped = node.drop_claim(&unit, lose_dirty_data, hosts_unmounted);
            respond(dropped.await, ControlResponse::Claims)
        }
        ControlRequest::TakeOver { unit } => {
            respond(node.take_over(&unit).await, ControlResponse::Pair)
        }
        ControlRequest::Export { unit } => {
            respond(node.export(&unit).await, ControlResponse::Exported)
        }
        ControlRequest::Move { volume, to, rate, pause_ms } => {
            let pause = Duration::from_millis(pause_ms);
            let moving = node.move_volume(&volume, &to, rate, pause).await;
            respond(moving, ControlResponse::Moving)
        }
        ControlRequest::Moving { volume } => {
            respond(node.move_of(&volume), ControlResponse::Moving)
        }
        ControlRequest::CancelMove { volume } => {
            respond(node.cancel_move(&volume).await, ControlResponse::Moving)
        }
        ControlRequest::Moves => ControlResponse::Moves(node.listed_moves()),
        ControlRequest::Attachment
        | ControlRequest::Detach { .. }
        | ControlRequest::DrainAndDetach => ControlResponse::Failure(
            Failure::new("this process serves, and has attached nothing")
                .remedy("name the device, folder or volume of a process of `forebay attach`"),
        ),
        ControlRequest::Link { .. } => ControlResponse::Failure(
            Failure::new("this process serves, and emulates no link")
                .remedy("name a link: `forebay lab wan status --name NAME`"),
        ),
        ControlRequest::Resize { target, lun, bytes } => {
            let resized = node.resize(&target, lun, bytes).await;
            respond(resized, |bytes| ControlResponse::Resized { bytes })
        }
    }
}

fn respond<T>(
    result: Result<T, Failure>,
    response: impl FnOnce(T) -> ControlResponse,
) -> ControlResponse {
    result.map_or_else(ControlResponse::Failure, response)
}

async fn reload(node: Arc<Node>) -> Result<ReloadChanges, Failure> {
    let done = node.reload().await;
    match &done {
        Ok(changes) if changes.is_empty() => tracing::info!("reloaded: nothing is different"),
        Ok(changes) => changes.lines().for_each(|line| tracing::info!("reloaded: {line}")),
        Err(failure) => tracing::error!(%failure, "not reloaded"),
    }
    done
}

/// Reports to the parent process that initiators can now connect at these addresses.
fn announce(addresses: &[SocketAddr], ready_fd: Option<i32>) -> Result<(), Failure> {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let line = format!("ready {}\n", addresses.join(" "));
    let Some(number) = ready_fd else {
        // A closed stdout must not prevent the process from serving.
        if let Err(error) = std::io::stdout().write_all(line.as_bytes()) {
            tracing::debug!(%error, "cannot report that the process is ready");
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

/// Signals that `forebay serve` handles: SIGTERM and SIGINT end it, SIGHUP reloads the settings.
struct ServeSignals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl ServeSignals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::new);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            reload: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Returns its name if it ends the process, or `None` for a reload.
    async fn next(&mut self) -> Option<&'static str> {
        tokio::select! {
            _ = self.terminate.recv() => Some("SIGTERM"),
            _ = self.interrupt.recv() => Some("SIGINT"),
            _ = self.reload.recv() => None,
        }
    }

    /// Waits for a signal that ends the process (SIGTERM or SIGINT), and returns its name.
    async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

pub fn server_settings(iscsi: &Iscsi) -> target::Settings {
    let bytes = |size: Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    let mut settings = target::Settings::default();
    settings.offer = NegotiationOffer {
        header_digest: stack::digest(iscsi.header_digest),
        data_digest: stack::digest(iscsi.data_digest),
        compression: iscsi.compression.iter().filter_map(|method| method.method()).collect(),
        initial_r2t: iscsi.initial_r2t,
        immediate_data: iscsi.immediate_data,
        max_recv_data_segment_length: bytes(iscsi.max_recv_data_segment_length),
        max_burst_length: bytes(iscsi.max_burst_length),
        first_burst_length: bytes(iscsi.first_burst_length),
        max_outstanding_r2t: iscsi.max_outstanding_r2t,
        ..settings.offer
    };
    settings.congestion = congestion(&iscsi.congestion);
    settings.socket = SocketOptions::buffers(iscsi.socket_buffer.map(|size| size.0 as usize));
    settings.session.queue_commands = iscsi.queue_depth.into();
    settings.session.login_time = iscsi.login_timeout.0;
    settings.session.ping_after =
        if iscsi.ping_interval.0.is_zero() { NEVER } else { iscsi.ping_interval.0 };
    settings.max_connections = iscsi.max_connections as usize;
    settings.max_logins = iscsi.max_logins as usize;
    settings.max_logins_per_address = iscsi.max_logins_per_address as usize;
    settings.max_discovery_sessions = iscsi.max_discovery_sessions as usize;
    settings.max_discovery_sessions_per_address = iscsi.max_discovery_sessions_per_address as usize;
    settings.discovery_idle = iscsi.discovery_timeout.0;
    settings.waiting_bytes = iscsi.waiting_data.0 as usize;
    settings.batch_commands = iscsi.batch_commands;
    settings.busy_poll = iscsi.busy_poll.0;
    settings
}

/// Time limit for settings in which zero means "never": 100 years.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
