//! `forebay quickstart`: runs a node, a slow link and a gateway on one machine, measures a load with and without the
//! gateway, and kills the gateway during writes.

mod folder;
mod ledger;
mod load;
mod quickstart_report;
mod page;
mod process;

use std::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use control::{
    CacheFigures, CacheHitFigures, ControlRequest, ControlResponse, Failure, ServingStatus,
};
use indicatif::{ProgressBar, ProgressStyle};
use initiator::RemoteVolume;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::Quickstart,
    control_socket,
    output::print_line,
    relay_link::{RelayLink, RelayLinkSettings, RelayTraffic},
};
use folder::QuickstartFolder;
use ledger::{BLOCK, QuickstartLedger};
use load::{QuickstartLoadKind, QuickstartLoadResult, Subject};
use process::QuickstartProcess;
use quickstart_report::{Crash, PartOutcome, QuickstartMachine, QuickstartReport};

/// The emulated link between gateway and node: 4 ms one-way delay, 1 Gbit/s.
const LINE: RelayLinkSettings =
    RelayLinkSettings { delay: Duration::from_millis(4), rate: 1_000_000_000 };
/// Size of the volume in blocks of 4 KiB: 256 MiB.
const BLOCKS: u64 = 65_536;
/// Duration of the writes before the gateway is killed, as a share of the duration of a part of the load.
const CRASH_SHARE: f64 = 0.5;
/// Time limit for destage after the crash. 256 MiB take 2 s on the link.
const DESTAGE_WITHIN: Duration = Duration::from_secs(15);

const NODE_NAME: &str = "iqn.2026-11.io.forebay:quickstart-node";
const GATEWAY_NAME: &str = "iqn.2026-11.io.forebay:quickstart-gateway";

/// Runs the demonstration. An interrupt stops all processes and removes all files.
pub async fn run(args: &Quickstart) -> Result<(), Failure> {
    if !(0.05..=60.0).contains(&args.seconds) {
        return Err(Failure::settings("--seconds is not between 0.05 and 60")
            .remedy("write, for example, --seconds 3"));
    }
    // Register both signals before any process is started. `ctrl_c` would do that only when it is polled; until then,
    // an interrupt would end this process without removing the folder.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::new)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::new)?;
    let kept = Cell::new(false);
    // Dropping the work kills the processes and removes the folder.
    let how = tokio::select! {
        done = work(args, &kept) => return done,
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "stopped",
    };
    if kept.get() {
        return Ok(());
    }
    Err(Failure::new(format!("{how}; nothing is left running"))
        .remedy("start it again with `forebay quickstart`"))
}

/// Runs all parts of the demonstration. Sets `kept` when they are done and the processes only continue to run.
async fn work(args: &Quickstart, kept: &Cell<bool>) -> Result<(), Failure> {
    let bar = QuickstartProgressBar::new();
    let stage = QuickstartSetup::set(&bar).await?;
    let mut parts = Vec::new();

    let node = stage.subject_over_link().await?;
    for part in QuickstartLoadKind::ALL {
        parts.push(stage.measure(&bar, part, "node", &node, args.seconds, None).await?);
    }
    stage.leave(&node).await;

    bar.begin("starting the gateway");
    let mut gateway = stage.start_gateway().await?;
    let near = stage.subject_of_gateway(gateway.address).await?;
    for part in QuickstartLoadKind::ALL {
        let control = Some(stage.control("gateway"));
        parts.push(stage.measure(&bar, part, "gateway", &near, args.seconds, control).await?);
    }

    let crash = stage.crash(&bar, &mut gateway, near, args.seconds).await?;
    let outcome = QuickstartReport {
        version: env!("CARGO_PKG_VERSION"),
        date: jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        machine: machine(),
        delay_one_way_ms: LINE.delay.as_secs_f64() * 1e3,
        rate_bits_per_second: LINE.rate,
        parts,
        crash,
    };
    bar.end();
    report(&outcome, args)?;
    if !outcome.nothing_lost() {
        return Err(Failure::new("blocks were lost: see the table")
            .remedy("please report it, with the JSON file"));
    }
    if !outcome.crash.destaged {
        return Err(Failure::new(format!(
            "the node was not verified: destage was not done within {} s",
            DESTAGE_WITHIN.as_secs()
        ))
        .remedy("try again when this machine is less busy"));
    }
    if args.keep {
        kept.set(true);
        keep(&stage, &gateway).await?;
    }
    gateway.stop().await?;
    stage.node.stop().await
}

/// The processes of the demonstration, the link between them, and the folder with their files.
struct QuickstartSetup {
    folder: QuickstartFolder,
    program: PathBuf,
    node: QuickstartProcess,
    link: RelayLink,
    ledger: Arc<QuickstartLedger>,
}

impl QuickstartSetup {
    async fn set(bar: &QuickstartProgressBar) -> Result<Self, Failure> {
        bar.begin("starting the node");
        let folder = QuickstartFolder::make()?;
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(format!("cannot find our own program: {error}"))
                .remedy("mount /proc, and start the program again")
        })?;
        let config =
            folder.write("node.toml", &folder.node_settings(NODE_NAME, BLOCKS * BLOCK as u64))?;
        let node = QuickstartProcess::start("node", &program, &config, folder.path()).await?;
        let link = RelayLink::open(LOOPBACK, node.address, LINE).await;
        let link = link.map_err(|error| {
            Failure::new(format!("cannot open the link: {error}")).remedy(
                "allow this user to listen on 127.0.0.1, raise the limit of open files \
                 (`ulimit -n`), and start again",
            )
        })?;
        let stage =
            Self { folder, program, node, link, ledger: Arc::new(QuickstartLedger::new(BLOCKS)) };
        bar.begin("filling the volume at the node");
        let subject = stage.subject(stage.node.address, NODE_NAME).await?;
        subject.fill().await.map_err(|error| failed("filling the volume", &error))?;
        stage.leave(&subject).await;
        Ok(stage)
    }

    async fn start_gateway(&self) -> Result<QuickstartProcess, Failure> {
        let text = self.folder.gateway_settings(GATEWAY_NAME, self.link.address(), NODE_NAME);
        let config = self.folder.write("gateway.toml", &text)?;
        QuickstartProcess::start("gateway", &self.program, &config, self.folder.path()).await
    }

    async fn subject_over_link(&self) -> Result<Connected, Failure> {
        self.subject(self.link.address(), NODE_NAME).await
    }

    async fn subject_of_gateway(&self, address: SocketAddr) -> Result<Connected, Failure> {
        self.subject(address, GATEWAY_NAME).await
    }

    async fn subject(&self, address: SocketAddr, target: &str) -> Result<Connected, Failure> {
        let mut session = initiator::Settings::new(address.to_string(), target, 0);
        session.initiator_name = "iqn.2026-11.io.forebay:quickstart".into();
        // Use short time-outs, so that the writers notice soon that the gateway was killed.
        session.give_up_after = Duration::from_secs(2);
        let volume = RemoteVolume::connect(session).await;
        let volume =
            Arc::new(volume.map_err(|error| failed(&format!("logging in to {target}"), &error))?);
        let subject = Subject {
            volume: Arc::clone(&volume) as volume::Stack,
            ledger: Arc::clone(&self.ledger),
        };
        Ok(Connected { subject, volume })
    }

    async fn leave(&self, connected: &Connected) {
        connected.volume.close().await;
    }

    fn control(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    async fn measure(
        &self,
        bar: &QuickstartProgressBar,
        part: QuickstartLoadKind,
        way: &'static str,
        subject: &Subject,
        seconds: f64,
        gateway: Option<PathBuf>,
    ) -> Result<PartOutcome, Failure> {
        bar.begin(&format!("{way}: {}", part.name()));
        let before = (self.link.traffic(), gateway.as_deref().map(hits).transpose()?);
        let time = Duration::from_secs_f64(seconds);
        let measured: QuickstartLoadResult = subject
            .run(part, time)
            .await
            .map_err(|error| failed(&format!("{way}: {}", part.name()), &error))?;
        let after: (RelayTraffic, _) =
            (self.link.traffic(), gateway.as_deref().map(hits).transpose()?);
        let reads =
            matches!(part, QuickstartLoadKind::RandomReads | QuickstartLoadKind::StreamRead);
        let ratio = before
            .1
            .zip(after.1)
            .filter(|_| reads)
            .and_then(|(before, after)| before.ratio_to(after));
        Ok(PartOutcome::new(part, way, &measured, after.0.since(before.0), ratio))
    }

    /// Kills the gateway during writes, starts it again, and reads every block: first through the gateway, then at the
    /// node after the destage.
    async fn crash(
        &self,
        bar: &QuickstartProgressBar,
        gateway: &mut QuickstartProcess,
        near: Connected,
        seconds: f64,
    ) -> Result<Crash, Failure> {
        bar.begin("writing, then killing the gateway");
        let mut crash = Crash::default();
        let control = self.control("gateway");
        let kill = async {
            tokio::time::sleep(Duration::from_secs_f64(seconds * CRASH_SHARE)).await;
            let dirty = status(&control)?.caches().map(|cache| cache.dirty.dirty_bytes).sum();
            gateway.kill().map_err(|error| failed("killing the gateway", &error))?;
            Ok::<_, Failure>(dirty)
        };
        let (acknowledged, dirty) = tokio::join!(near.subject.write_until_it_fails(), kill);
        crash.writes_acknowledged = acknowledged;
        crash.dirty_bytes_at_kill = dirty?;
        drop(near);

        bar.begin("starting the gateway again");
        *gateway = self.start_gateway().await?;
        crash.recovered_ms = u64::try_from(gateway.ready_after.as_millis()).unwrap_or(u64::MAX);
        bar.begin("reading every block through the gateway");
        let near = self.subject_of_gateway(gateway.address).await?;
        crash.blocks_verified = self.ledger.acknowledged();
        crash.blocks_lost = near
            .subject
            .verify()
            .await
            .map_err(|error| failed("reading through the gateway", &error))?;
        self.leave(&near).await;

        bar.begin("waiting for destage");
        crash.destaged = self.destaged(&control).await?;
        if crash.destaged {
            bar.begin("reading every block at the node");
            let node = self.subject(self.node.address, NODE_NAME).await?;
            crash.blocks_verified_at_node = self.ledger.acknowledged();
            crash.blocks_lost_at_node = node
                .subject
                .verify()
                .await
                .map_err(|error| failed("reading at the node", &error))?;
            self.leave(&node).await;
        }
        Ok(crash)
    }

    /// Waits until the gateway has destaged all data. Returns false if that takes too long.
    async fn destaged(&self, control: &Path) -> Result<bool, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < DESTAGE_WITHIN {
            let is_clean = |cache: &CacheFigures| {
                cache.dirty.dirty_bytes == 0 && cache.dirty.pending_slots == 0
            };
            if status(control)?.caches().all(is_clean) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(false)
    }
}

struct Connected {
    subject: Subject,
    volume: Arc<RemoteVolume>,
}

impl std::ops::Deref for Connected {
    type Target = Subject;

    fn deref(&self) -> &Subject {
        &self.subject
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn status(control: &Path) -> Result<ServingStatus, Failure> {
    match control_socket::ask(control, ControlRequest::Status)? {
        ControlResponse::Status(status) => Ok(*status),
        other => Err(other.unexpected()),
    }
}

/// Numbers of slots read so far: those that the gateway found in its cache, and those that it did not.
#[derive(Clone, Copy)]
struct Hits {
    hits: u64,
    misses: u64,
}

impl Hits {
    fn ratio_to(self, later: Self) -> Option<f64> {
        let (hits, misses) = (later.hits - self.hits, later.misses - self.misses);
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }
}

fn hits(control: &Path) -> Result<Hits, Failure> {
    let status = status(control)?;
    let of = |CacheHitFigures { hits_nvram, hits_dram, hits_log, .. }: &CacheHitFigures| {
        hits_nvram + hits_dram + hits_log
    };
    Ok(Hits {
        hits: status.caches().map(|cache| of(&cache.hits)).sum(),
        misses: status.caches().map(|cache| cache.hits.misses).sum(),
    })
}

fn machine() -> QuickstartMachine {
    QuickstartMachine {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
    }
}

fn report(outcome: &QuickstartReport, args: &Quickstart) -> Result<(), Failure> {
    print_line(outcome.table())?;
    print_line(format_args!(
        "The link: {} ms one way, {} Mbit/s; loss is not emulated. Killed with {} in the log \
         that the \
         node did not have; listening again after {} ms.",
        outcome.delay_one_way_ms,
        outcome.rate_bits_per_second / 1_000_000,
        config::quantity::about(outcome.crash.dirty_bytes_at_kill),
        outcome.crash.recovered_ms,
    ))?;
    if !outcome.crash.destaged {
        print_line("Destage was not done in time, so the node was not read.")?;
    }
    let folder = Path::new("forebay-quickstart");
    let json = args.json.clone().unwrap_or_else(|| folder.join("result.json"));
    let html = args.html.clone().unwrap_or_else(|| folder.join("result.html"));
    let text = serde_json::to_string_pretty(outcome).map_err(Failure::new)?;
    for (path, text) in [(&json, text), (&html, page::page(outcome))] {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let made = folder.map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(path, text))
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    }
    print_line(format_args!("Written: {} and {}", json.display(), html.display()))
}

async fn keep(stage: &QuickstartSetup, gateway: &QuickstartProcess) -> Result<(), Failure> {
    print_line(format_args!(
        "\nEverything keeps running until Ctrl-C. To connect:\n\
         \n  gateway  iscsi://{gateway}/{GATEWAY_NAME}/0\
         \n  node     iscsi://{node}/{NODE_NAME}/0   (not both at once)\n\
         \n  forebay ls iscsi://{gateway}\
         \n  forebay status --control {control}\
         \n  iscsi-ls -s iscsi://{gateway}\
         \n  qemu-img convert -n -O raw DISK.img iscsi://{gateway}/{GATEWAY_NAME}/0\
         \n  qemu-io -f raw -c 'write -P 7 0 64k' -c flush -c 'read -P 7 0 64k' \
         iscsi://{gateway}/{GATEWAY_NAME}/0\n",
        gateway = gateway.address,
        node = stage.node.address,
        control = stage.control("gateway").display(),
    ))?;
    // Wait forever: on Ctrl-C, `run` drops this future.
    std::future::pending().await
}

fn failed(doing: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("{doing}: {error}"))
}

/// Shows the progress of the quickstart on a terminal; otherwise prints nothing.
struct QuickstartProgressBar(ProgressBar);

impl QuickstartProgressBar {
    fn new() -> Self {
        let bar = ProgressBar::new(STEPS);
        let style = ProgressStyle::with_template("{spinner} [{bar:30}] {elapsed:>4} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    fn begin(&self, what: &str) {
        tracing::info!(what, "quickstart");
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Number of steps of the quickstart: calls of [`QuickstartProgressBar::begin`].
const STEPS: u64 = 16;
