//! The servers of a run. Each is started when it is first needed, and ends with the run.

use std::cell::OnceCell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};
use rig::certificates::Certificates;
use rig::destage;
use rig::machine::{self, BenchProcessUsage};
use rig::node::{RelayProcess, ServeProcess, TestProcessPriority};
use rig::tgt::{self, ReferenceTgtd};

use crate::load::{BenchLoad, BenchPoint, histogram, measure};
use crate::plan::{HIT_BYTES, servers};
use crate::raw;

/// The size of the volume of most servers in bytes: far more than the processor's caches.
const UNIT_BYTES: u64 = 256 << 20;

/// The size of the gateway's far volume in bytes. All of it fits in the gateway's DRAM, so that
/// reads are cache hits.
const GATEWAY_BYTES: u64 = 128 << 20;

/// The size of a volume behind a gateway without a cache, in bytes: far more than the processor's
/// caches, and small enough for six such volumes in memory.
const REMOTE_BYTES: u64 = 64 << 20;

/// Time limit of the commands that create a key file and its secret.
const KEY_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of a drain: several times what a slow machine needs for 128 MiB.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

const NAME: &str = "iqn.2026-11.forebay.bench:unit";

/// Size in bytes of the file for appends, which continue at its start when they reach its end.
const FILE_BYTES: u64 = 64 << 20;

/// The servers of a run. An empty cell is a server that has not been started yet.
pub struct BenchServers {
    program: PathBuf,
    folder: tempfile::TempDir,
    raw: OnceCell<raw::RawTcpServer>,
    together: OnceCell<raw::RawTcpServer>,
    tgt: OnceCell<ReferenceTgtd>,
    target: OnceCell<ServeProcess>,
    polling: OnceCell<ServeProcess>,
    tls: OnceCell<Tunnelled>,
    gateway: OnceCell<BenchGateway>,
    destaging: OnceCell<BenchGateway>,
    sealed: OnceCell<BenchGateway>,
    /// The gateways without a cache, in the order of [`REMOTES`].
    remotes: [OnceCell<BenchPassthrough>; REMOTES.len()],
    file: OnceCell<Appender>,
}

struct BenchGateway {
    near: ServeProcess,
    far: ClientLogin,
    node: ServeProcess,
    _line: RelayProcess,
}

/// A gateway without a cache, and the node to which it passes all commands.
struct BenchPassthrough {
    near: ServeProcess,
    node: ServeProcess,
    _line: Option<RelayProcess>,
}

/// The gateways without a cache. Each entry has the name of the server, the compression, and true if the gateway uses
/// the target over a link of 1 Gbit/s, or false over loopback.
const REMOTES: [(&str, &str, bool); 6] = [
    (servers::REMOTE, "none", false),
    (servers::REMOTE_LZ4, "lz4", false),
    (servers::REMOTE_ZSTD, "zstd", false),
    (servers::LINE, "none", true),
    (servers::LINE_LZ4, "lz4", true),
    (servers::LINE_ZSTD, "zstd", true),
];

/// A target with TLS, and the tunnel through which the load generator connects.
struct Tunnelled {
    node: ServeProcess,
    login: ClientLogin,
    _tunnel: RelayProcess,
}

impl BenchServers {
    /// Returns servers of which none is started yet. Logs are in `folder`, which must be on a disk
    /// and not in memory.
    pub fn new(program: &Path, folder: &Path) -> Result<BenchServers> {
        Ok(BenchServers {
            program: program.to_owned(),
            folder: tempfile::Builder::new().prefix("bench").tempdir_in(folder)?,
            raw: OnceCell::new(),
            together: OnceCell::new(),
            tgt: OnceCell::new(),
            target: OnceCell::new(),
            polling: OnceCell::new(),
            tls: OnceCell::new(),
            gateway: OnceCell::new(),
            destaging: OnceCell::new(),
            sealed: OnceCell::new(),
            remotes: [const { OnceCell::new() }; REMOTES.len()],
            file: OnceCell::new(),
        })
    }

    /// Starts the server `server`, unless it is running already.
    pub fn prepare(&self, server: &str) -> Result<()> {
        if let Some(at) = remote(server) {
            return fill(&self.remotes[at], || self.start_remote(REMOTES[at]));
        }
        match server {
            servers::RAW | servers::RAW_MEMORY => {
                fill(&self.raw, || raw::RawTcpServer::start(false))
            }
            servers::RAW_TOGETHER | servers::RAW_TOGETHER_MEMORY => {
                fill(&self.together, || raw::RawTcpServer::start(true))
            }
            servers::TGT => fill(&self.tgt, || {
                let tgt = ReferenceTgtd::start(UNIT_BYTES)?;
                write_all(&tgt_login(&tgt), UNIT_BYTES)?;
                Ok(tgt)
            }),
            servers::FOREBAY => fill(&self.target, || self.memory_target("target", "0s")),
            // Poll for 50 microseconds, as the prototype did when its figures were measured.
            servers::POLLING => fill(&self.polling, || self.memory_target("polling", "50us")),
            servers::TLS => fill(&self.tls, || self.start_tls()),
            servers::GATEWAY | servers::FAR => {
                fill(&self.gateway, || self.start_gateway("gateway", ""))
            }
            // Have dirty data destaged after a millisecond, so that destage rounds follow each other without a pause.
            servers::GATEWAY_DESTAGING => {
                fill(&self.destaging, || self.start_gateway("destaging", "dirty_age = \"1ms\","))
            }
            servers::GATEWAY_SEALED => fill(&self.sealed, || {
                self.make_key()?;
                let keys = "log_key = \"log.key\", log_secret_file = \"log.secret\",";
                self.start_gateway("sealed", keys)
            }),
            servers::DISK => {
                fill(&self.file, || Appender::open(&self.folder.path().join("appends")))
            }
            _ => bail!("no server is called {server}"),
        }
    }

    /// Starts the server `server` if necessary, and measures a load on it.
    pub fn measure(&self, server: &str, load: &BenchLoad, time: Duration) -> Result<BenchPoint> {
        self.prepare(server)?;
        let on = |node: Option<&ServeProcess>| {
            let node = node.context("server not prepared")?;
            measure(&ClientLogin::new(node.portal(), NAME, 0), load, &[node.id()], time)
        };
        if let Some(at) = remote(server) {
            let BenchPassthrough { near, node, .. } =
                self.remotes[at].get().context("server not prepared")?;
            // Include the CPU time of the processes at both ends of the link.
            return measure(
                &ClientLogin::new(near.portal(), NAME, 0),
                load,
                &[near.id(), node.id()],
                time,
            )
            .with_context(|| format!("measuring {server}"));
        }
        match server {
            servers::RAW => self.raw.get().context("server not prepared")?.measure(load, 0, time),
            servers::RAW_TOGETHER => {
                self.together.get().context("server not prepared")?.measure(load, 0, time)
            }
            servers::RAW_TOGETHER_MEMORY => {
                let raw = self.together.get().context("server not prepared")?;
                raw.measure(load, (UNIT_BYTES / load.sessions as u64) as u32, time)
            }
            servers::RAW_MEMORY => {
                let raw = self.raw.get().context("server not prepared")?;
                raw.measure(load, UNIT_BYTES as u32, time)
            }
            servers::TGT => {
                let tgt = self.tgt.get().context("server not prepared")?;
                measure(&tgt_login(tgt), load, &[tgt.id()], time)
            }
            servers::FOREBAY => on(self.target.get()),
            servers::TLS => {
                let Tunnelled { node, login, .. } =
                    self.tls.get().context("server not prepared")?;
                measure(login, load, &[node.id()], time)
            }
            servers::POLLING => on(self.polling.get()),
            servers::GATEWAY | servers::GATEWAY_SEALED => {
                let is_sealed = server == servers::GATEWAY_SEALED;
                let gateway = if is_sealed { self.sealed.get() } else { self.gateway.get() };
                let gateway = gateway.context("server not prepared")?;
                // Wait until the dirty data of earlier points is destaged. Otherwise destage would take CPU time from
                // this point, because here node and link run on the same CPUs as the gateway; in practice they run
                // elsewhere.
                destage::drained(&gateway.near, DRAIN_LIMIT)?;
                on(Some(&gateway.near))
            }
            servers::GATEWAY_DESTAGING => on(self.destaging.get().map(|gateway| &gateway.near)),
            servers::FAR => {
                let gateway = self.gateway.get().context("server not prepared")?;
                measure(&gateway.far, load, &[gateway.node.id()], time)
            }
            _ => self.file.get().context("server not prepared")?.measure(time),
        }
        .with_context(|| format!("measuring {server}"))
    }

    /// Returns the share of a CPU that the polling server uses while its only session is idle.
    pub fn idle_share(&self) -> Result<f64> {
        self.prepare(servers::POLLING)?;
        let node = self.polling.get().context("server not prepared")?;
        let shape = ClientSessionOptions { depth: 1, bytes: 4096, keep: false };
        let mut session = ClientSession::open(&ClientLogin::new(node.portal(), NAME, 0), shape)?;
        session.one(ClientScsiCommand::test_unit_ready())?;
        let (before, start) = (BenchProcessUsage::of(node.id())?, Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let used = BenchProcessUsage::of(node.id())?.since(before);
        Ok(used.cpu_ns as f64 / start.elapsed().as_nanos() as f64)
    }

    fn memory_target(&self, name: &str, busy_poll: &str) -> Result<ServeProcess> {
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[iscsi]\nbusy_poll = \"{busy_poll}\"\n{}",
            memory_unit(UNIT_BYTES)
        );
        let node = ServeProcess::start_as(
            TestProcessPriority::Pinned,
            &self.program,
            self.folder.path(),
            name,
            &settings,
        )?;
        write_all(&ClientLogin::new(node.portal(), NAME, 0), UNIT_BYTES)?;
        Ok(node)
    }

    fn start_tls(&self) -> Result<Tunnelled> {
        let folder = self.folder.path();
        let settings = format!(
            "listen = []\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
             tls = {{ certificate = \"end.pem\", key = \"end.key\", client_ca = \"ca.pem\" }}\n{}",
            memory_unit(UNIT_BYTES)
        );
        let certificates = Certificates::make(folder)?;
        let node = ServeProcess::start_as(
            TestProcessPriority::Pinned,
            &self.program,
            folder,
            "tls",
            &settings,
        )?;
        let tunnel = RelayProcess::tunnel(&self.program, node.portal(), &certificates)?;
        let login =
            ClientLogin { portal: tunnel.address(), ..ClientLogin::new(node.portal(), NAME, 0) };
        write_all(&login, UNIT_BYTES)?;
        Ok(Tunnelled { node, login, _tunnel: tunnel })
    }

    /// Makes the key for an encrypted log, and the secret with which the key is protected.
    fn make_key(&self) -> Result<()> {
        for arguments in [
            &["secret", "log.secret", "--characters", "64"][..],
            &["key", "log.key", "--secret-file", "log.secret"],
        ] {
            let mut command = Command::new(&self.program);
            command.args(arguments).current_dir(self.folder.path());
            let made = program::run(&mut command, KEY_LIMIT)?;
            ensure!(made.success(), "forebay {}: {}", arguments[0], made.tail(5));
        }
        Ok(())
    }

    fn start_remote(
        &self,
        (_, compression, lined): (&str, &str, bool),
    ) -> Result<BenchPassthrough> {
        let folder = self.folder.path();
        let name = format!("remote-{compression}-{}", if lined { "line" } else { "loopback" });
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[iscsi]\ncompression = [\"lz4\", \"zstd\"]\n{}",
            memory_unit(REMOTE_BYTES)
        );
        let far = format!("{name}-far");
        let node = ServeProcess::start_as(
            TestProcessPriority::Preferred,
            &self.program,
            folder,
            &far,
            &settings,
        )?;
        let start_line = || {
            RelayProcess::start_as(
                TestProcessPriority::Preferred,
                &self.program,
                node.portal(),
                0.0,
            )
        };
        let line = lined.then(start_line).transpose()?;
        let portal = line.as_ref().map_or(node.portal(), RelayProcess::address);
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [ \
             {{ remote = {{ url = \"iscsi://{portal}/{NAME}/0\", compression = \"{compression}\" }} }} ]\n"
        );
        let near = ServeProcess::start_as(
            TestProcessPriority::Pinned,
            &self.program,
            folder,
            &name,
            &settings,
        )?;
        write_all(&ClientLogin::new(near.portal(), NAME, 0), REMOTE_BYTES)?;
        Ok(BenchPassthrough { near, node, _line: line })
    }

    /// Starts a gateway with further settings of its cache. The names of its files begin with
    /// `name`.
    fn start_gateway(&self, name: &str, keys: &str) -> Result<BenchGateway> {
        let folder = self.folder.path();
        let settings = format!("listen = [\"127.0.0.1:0\"]\n{}", memory_unit(GATEWAY_BYTES));
        let far = format!("{name}-far");
        let node = ServeProcess::start_as(
            TestProcessPriority::Preferred,
            &self.program,
            folder,
            &far,
            &settings,
        )?;
        let line = RelayProcess::start_as(
            TestProcessPriority::Preferred,
            &self.program,
            node.portal(),
            4.0,
        )?;
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
             {{ remote = {{ url = \"iscsi://{}/{NAME}/0\" }} }},\n\
             {{ cache = {{ log = \"{name}.log\", log_size = \"1GiB\", nvram = \"{name}.nvram\", \
             dram = \"256MiB\", {keys} report = \"after-complete\" }} }},\n]\n",
            line.address()
        );
        let near = ServeProcess::start_as(
            TestProcessPriority::Pinned,
            &self.program,
            folder,
            name,
            &settings,
        )?;
        // Write the region that loads with cache hits read: written data stays in DRAM.
        write_all(&ClientLogin::new(near.portal(), NAME, 0), HIT_BYTES)?;
        let far =
            ClientLogin { portal: line.address(), ..ClientLogin::new(node.portal(), NAME, 0) };
        Ok(BenchGateway { near, far, node, _line: line })
    }
}

fn tgt_login(tgt: &ReferenceTgtd) -> ClientLogin {
    ClientLogin::new(tgt.portal(), tgt::NAME, tgt::LUN)
}

fn remote(server: &str) -> Option<usize> {
    REMOTES.iter().position(|(name, ..)| *name == server)
}

/// Returns the settings of a target whose volume is in memory.
fn memory_unit(bytes: u64) -> String {
    format!(
        "[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [{{ memory = {{ size = {bytes} }} }}]\n"
    )
}

fn fill<T>(cell: &OnceCell<T>, start: impl FnOnce() -> Result<T>) -> Result<()> {
    if cell.get().is_none() {
        let _ = cell.set(start()?);
    }
    Ok(())
}

/// Writes every block once. Otherwise the measurement would include the page faults of memory that
/// was never used.
pub fn write_all(login: &ClientLogin, bytes: u64) -> Result<()> {
    let mut session = ClientSession::open(
        login,
        ClientSessionOptions { depth: 8, bytes: 64 << 10, keep: false },
    )?;
    let (_, block_bytes) = session.capacity()?;
    let mut once = Once { block_bytes, next: 0, left: bytes >> 16, end: bytes >> 16, failed: None };
    session.run(&mut once)?;
    match once.failed {
        None => Ok(()),
        Some(status) => bail!("a write ended with status {status:#04x}"),
    }
}

struct Once {
    block_bytes: u32,
    next: u64,
    left: u64,
    end: u64,
    failed: Option<u8>,
}

impl ClientWorkload for Once {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        if self.left == 0 {
            return ClientSlotAction::Stop;
        }
        if self.next == self.end {
            return ClientSlotAction::Wait;
        }
        let blocks = (64 << 10) / self.block_bytes;
        let lba = self.next as u32 * blocks;
        self.next += 1;
        ClientSlotAction::Send(
            ClientScsiCommand::write(lba, blocks as u16, self.block_bytes, false),
            0,
        )
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        self.left -= 1;
        if answer.status != 0 {
            self.failed = Some(answer.status);
        }
    }
}

/// Makes durable appends of 4 KiB, one after the other. At the end of the file, which has allocated blocks, the appends
/// continue at its start.
pub struct Appender {
    file: std::fs::File,
    buffer: Vec<u8>,
}

/// Alignment that O_DIRECT needs for addresses, lengths and offsets.
const ALIGNMENT: usize = 4096;

impl Appender {
    pub fn open(path: &Path) -> Result<Appender> {
        std::fs::write(path, vec![0x5a; FILE_BYTES as usize])?;
        // Without this the file system still allocates the blocks while appends are measured.
        std::fs::File::open(path)?.sync_all()?;
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let file = std::fs::File::options().write(true).custom_flags(flags).open(path);
        let file = file.context("the folder of the logs must be on a disk (O_DIRECT)")?;
        Ok(Appender { file, buffer: vec![0xa5; 2 * ALIGNMENT] })
    }

    /// Measures appends from the CPU that is reserved for servers, since a gateway writes its log there: the cost of a
    /// disk's interrupts differs between CPUs.
    pub fn measure(&self, time: Duration) -> Result<BenchPoint> {
        std::thread::scope(|scope| {
            let appends = scope.spawn(|| {
                machine::confine(machine::SERVER_CPU)?;
                self.append(time)
            });
            appends.join().expect("the thread does not panic")
        })
    }

    fn append(&self, time: Duration) -> Result<BenchPoint> {
        let skip = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let block = &self.buffer[skip..skip + ALIGNMENT];
        let mut latency = histogram();
        let (own, start) = (std::process::id(), Instant::now());
        let before = BenchProcessUsage::of(own)?;
        let (mut now, mut offset) = (start, 0);
        while now - start < time {
            let written = rustix::io::pwrite(&self.file, block, offset)?;
            anyhow::ensure!(written == ALIGNMENT, "a short append");
            offset = (offset + ALIGNMENT as u64) % FILE_BYTES;
            let then = Instant::now();
            latency.saturating_record((then - now).as_nanos() as u64);
            now = then;
        }
        let server = BenchProcessUsage::of(own)?.since(before);
        Ok(BenchPoint { operations: latency.len(), time: start.elapsed(), latency, server })
    }
}
