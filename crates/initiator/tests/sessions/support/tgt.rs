//! Starts a tgtd for a test, with one target and one unit on a file.

use std::{
    net::{SocketAddr, TcpStream},
    process::Stdio,
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

use program::WaitLimit;
use rig::tgt::{TgtPlan, TgtServer, free_port};
use tempfile::TempDir;

/// The size of the unit in blocks of 512 bytes, which is 16 MiB.
pub const BLOCKS: u64 = 32768;

/// The longest time that a daemon may take to start.
const LIMIT: Duration = Duration::from_secs(10);

const NAME: &str = "iqn.2026-11.io.forebay.test:tgt";

/// A running tgtd. Dropping this kills the process.
pub struct Tgt {
    server: TgtServer,
    portal: SocketAddr,
    number: u8,
    directory: TempDir,
}

impl Tgt {
    /// Starts a daemon. Returns `None` if the tests with other implementations are to be skipped.
    pub fn start() -> Option<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
            eprintln!("left out: FOREBAY_NO_INTEROP=1");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let portal = free_port().expect("loopback");
        // Use another number for each daemon, since the tests of this program run at the same time.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let server = serve(&directory, portal, number);
        Some(Self { server, portal, number, directory })
    }

    /// Makes tgt accept digests, which it refuses by default.
    pub fn allow_digests(&self) {
        for name in ["HeaderDigest", "DataDigest"] {
            let mut update = self.server.admin();
            update.args(["--mode", "target", "--op", "update", "--tid", "1"]);
            update.args(["--name", name, "--value", "CRC32C,None"]).stderr(Stdio::null());
            assert!(update.status().expect("tgtadm runs").success(), "{update:?} failed");
        }
    }

    pub fn portal(&self) -> String {
        self.portal.to_string()
    }

    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Kills the daemon without logging out its initiators, like a power failure.
    pub fn kill(&mut self) {
        self.server.kill().expect("killed");
    }

    /// Starts the daemon again, with the same unit and portal.
    pub fn start_again(&mut self) {
        self.server = serve(&self.directory, self.portal, self.number);
    }
}

fn serve(directory: &TempDir, portal: SocketAddr, number: u8) -> TgtServer {
    let plan = TgtPlan {
        portal: &portal.to_string(),
        number,
        target: NAME,
        backing: &directory.path().join("unit"),
        bytes: BLOCKS * 512,
        events: &directory.path().join("events"),
    };
    let server = TgtServer::start(&plan, &|_| Ok(()), WaitLimit::of(LIMIT));
    let server =
        server.expect("tgt runs (Debian package tgt; FOREBAY_NO_INTEROP=1 leaves this out)");
    let begun = Instant::now();
    while TcpStream::connect(portal).is_err() {
        assert!(begun.elapsed() < LIMIT, "tgtd does not listen");
        std::thread::yield_now();
    }
    server
}
