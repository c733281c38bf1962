//! Our program beside others: libiscsi's tools and tests, QEMU, and tgt as the far side.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::client::session::Shape;
use crate::client::stamp::{self, Content};
use crate::client::{Answer, Login, Next, Request, Session, Workload};
use crate::node::{Line, Node};
use crate::steps::{Steps, Tally};
use crate::suite::{conformance, tools};
use crate::tgt::Tgt;

/// A unit just under 1 GiB: else some tests of the suite skip themselves.
const SUITE_UNIT: &str = "1023MiB";
const SUITE_BLOCKS: u64 = 1023 * 2048;

/// Units on which tests of the suite run at the same time; most of them wait more than they work.
const SUITE_WORKERS: usize = 3;

/// Every step that needs foreign tools.
pub fn steps(steps: &mut Steps, program: &Path) {
    steps.run("interop: libiscsi tools", || libiscsi(program));
    steps.run("interop: iscsi-test-cu", || test_suite(program));
    for exception in conformance::exceptions() {
        steps.leave_out(exception);
    }
    steps.run("interop: qemu on a target", || qemu_on_target(program));
    steps.run("interop: qemu through a gateway", || qemu_on_gateway(program));
    steps.run("interop: our initiator on tgt", || gateway_over_tgt(program));
}

fn libiscsi(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let node = Node::start(program, folder.path(), "target", &suite_settings())?;
    let portal = format!("iscsi://{}", node.portal());
    let tally = tools::libiscsi(program, &portal, &suite_target(0), SUITE_BLOCKS)?;
    node.stop()?;
    Ok(tally)
}

fn test_suite(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let node = Node::start(program, folder.path(), "target", &suite_settings())?;
    let tally = conformance::run(&conformance::Units {
        writable: (0..SUITE_WORKERS).map(|number| node.url(&suite_target(number), 0)).collect(),
        read_only: node.url(&suite_target(0), 1),
    })?;
    node.stop()?;
    Ok(tally)
}

fn suite_target(number: usize) -> String {
    format!("iqn.2026-11.forebay.test:suite{number}")
}

fn suite_settings() -> String {
    let mut settings = "listen = [\"127.0.0.1:0\"]\n".to_owned();
    for number in 0..SUITE_WORKERS {
        let name = suite_target(number);
        settings += &format!(
            "[[target]]\nname = \"{name}\"\n\
             [[target.unit]]\nlun = 0\nstack = [{{ memory = {{ size = \"{SUITE_UNIT}\" }} }}]\n\
             [[target.unit]]\nlun = 1\nstack = [{{ memory = {{ size = \"{SUITE_UNIT}\" }} }}, \"read-only\"]\n"
        );
    }
    settings
}

const FILE: &str = "iqn.2026-11.forebay.test:file";
const GATEWAY: &str = "iqn.2026-11.forebay.test:gateway";

fn file_settings() -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{FILE}\"\n[[target.unit]]\n\
         stack = [{{ file = {{ path = \"unit.img\", size = \"64MiB\" }} }}]\n"
    )
}

fn gateway_settings(url: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{url}\" }} }},\n\
         {{ cache = {{ log = \"log\", log_size = \"64MiB\", nvram = \"nvram\", dram = \"16MiB\", \
         destage_idle = \"1ms\", dirty_age = \"100ms\" }} }},\n]\n"
    )
}

fn qemu_on_target(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let node = Node::start(program, folder.path(), "target", &file_settings())?;
    let tally = tools::qemu(&node.url(FILE, 0), folder.path())?;
    node.stop()?;
    Ok(tally)
}

fn qemu_on_gateway(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let node = Node::start(program, folder.path(), "node", &file_settings())?;
    let line = Line::start(program, node.portal(), 1.0)?;
    let url = format!("iscsi://{}/{FILE}/0", line.address());
    let gateway = Node::start(program, folder.path(), "gateway", &gateway_settings(&url))?;
    let tally = tools::qemu(&gateway.url(GATEWAY, 0), folder.path())?;
    gateway.stop()?;
    node.stop()?;
    Ok(tally)
}

/// Blocks of 4 KiB written through a gateway whose far side is tgt.
const BLOCKS: u64 = 2048;

fn gateway_over_tgt(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let tgt = Tgt::start(64 << 20)?;
    let far = tgt.login();
    let url = format!("iscsi://{}/{}/{}", far.portal, far.target, far.lun);
    let gateway = Node::start(program, folder.path(), "gateway", &gateway_settings(&url))?;
    let mut tally = Tally::default();
    let near = gateway.login(GATEWAY);
    tally.count(held(pass(&near, true)?));
    tally.count(held(pass(&near, false)?));
    // What arrives at tgt is read past the gateway, until everything has been destaged.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut missing = pass(far, false)?;
    while missing > 0 && Instant::now() < deadline {
        missing = pass(far, false)?;
    }
    tally.count(held(missing));
    gateway.stop()?;
    Ok(tally)
}

fn held(wrong: u64) -> bool {
    if wrong > 0 {
        println!("{wrong} of {BLOCKS} blocks are not as written");
    }
    wrong == 0
}

/// Writes every block, or reads them; returns how many are not as they should be.
fn pass(login: &Login, write: bool) -> Result<u64> {
    let mut session = Session::open(login, Shape { depth: 32, bytes: 4096, keep: true })?;
    let (blocks, sector) = session.capacity()?;
    ensure!(sector == 512 && blocks >= BLOCKS * 8, "the unit has {blocks} blocks of {sector}");
    let mut pass = Pass { write, next: 0, left: BLOCKS, wrong: 0 };
    session.run(&mut pass)?;
    Ok(pass.wrong)
}

struct Pass {
    write: bool,
    next: u64,
    left: u64,
    wrong: u64,
}

impl Workload for Pass {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> Next {
        if self.left == 0 {
            return Next::Stop;
        }
        if self.next == BLOCKS {
            return Next::Wait;
        }
        let block = self.next;
        self.next += 1;
        let lba = block as u32 * 8;
        if self.write {
            stamp::fill(payload, block, 1);
            return Next::Send(Request::write(lba, 8, 512, false), block);
        }
        Next::Send(Request::read(lba, 8, 512), block)
    }

    fn answered(&mut self, _now: Instant, answer: &Answer<'_>) {
        self.left -= 1;
        let right = answer.status == 0
            && (self.write || stamp::read(answer.data, answer.number) == Content::Version(1));
        self.wrong += u64::from(!right);
    }
}
