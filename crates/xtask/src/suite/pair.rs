//! Moves a unit between two gateways while fio writes to it at random and checks each block. Either the active gateway
//! of a pair is killed, or a log is exported at one gateway and adopted at the other one; in the next round the log
//! moves back. The host has one device, which our initiator serves with the portals of both gateways.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::{RunningProgram, Said};
use rig::device::{self, AttachedTestDevice};
use rig::node::ServeProcess;
use serde_json::Value;

use crate::step_list::StepList;
use crate::steps::StepTally;
use crate::suite::fio;

const GATEWAY: &str = "iqn.2026-11.forebay.test:shared";
const NODE: &str = "iqn.2026-11.forebay.test:below";

/// Longest time that a host's write may take during a takeover, as promised for a pair.
const TAKEOVER: Duration = Duration::from_secs(10);

/// Time limit of fio, which needs some five seconds for its writes on an idle machine.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a gateway of a pair to get its role. Copying one mirror leg of the log takes a
/// second.
const PAIR_LIMIT: Duration = Duration::from_secs(30);

/// How long fio has been running when the unit moves.
const INTO_IT: Duration = Duration::from_millis(1500);

/// Adds all steps of this suite if this machine can attach volumes as block devices.
pub fn steps<'a>(list: &mut StepList<'a>, program: &'a Path, rounds: u32) {
    if let Some(why) = device::missing() {
        return list.leave_out(format!("fio over pairs and handovers: {why}"));
    }
    list.add("pair: fio while the gateway that serves is killed", move || {
        failover(program, rounds, PairSuiteLog::Paired)
    });
    list.add("pair with NVRAMs: fio while the gateway that serves is killed", move || {
        failover(program, rounds, PairSuiteLog::PairedWithNvram)
    });
    let name = "pair: fio while a log is handed over and back";
    list.add(name, move || handover(program, rounds));
}

/// Kills the active gateway once in each round. The gateways take turns: every second takeover
/// moves the unit back.
fn failover(program: &Path, rounds: u32, log: PairSuiteLog) -> Result<StepTally> {
    let mut site = PairSuiteSite::start(program, log)?;
    site.wait_for_role(0, "active")?;
    let device = site.attach()?;
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let (serves, other) = site.turn(round);
        site.wait_for_role(serves, "active")?;
        let load = PairFioLoad::start(&device, round)?;
        site.gateway(serves)?.kill()?;
        longest = longest.max(load.finish()?);
        site.gateways[serves] = None;
        site.serve(serves)?;
        site.wait_for_role(other, "active")?;
    }
    ensure!(longest < TAKEOVER, "a write took {longest:?}");
    device.detach()?;
    site.finish(rounds, longest)
}

/// Moves the log of the unit to the other gateway once in each round.
fn handover(program: &Path, rounds: u32) -> Result<StepTally> {
    let mut site = PairSuiteSite::start(program, PairSuiteLog::Alone)?;
    let device = site.attach()?;
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let (serves, other) = site.turn(round);
        let load = PairFioLoad::start(&device, round)?;
        let exported = site.gateway(serves)?.ask(&["gateway", "export", GATEWAY])?;
        ensure!(exported.success(), "export {}: {}", exported.ending(), exported.tail(5));
        let [from, to] = [serves, other].map(|at| site.path(&format!("{}.log", NAMES[at])));
        // Copy the log and do not move the file: the process that exported the log still has it
        // open.
        fs::copy(from, to)?;
        let settings = site.path(&format!("{}.toml", NAMES[other]));
        fs::write(&settings, &site.settings[other])?;
        let mut adopt = Command::new(program);
        adopt.args(["gateway", "adopt", GATEWAY, "--config"]).arg(settings);
        let adopted = program::run(&mut adopt, LOAD_LIMIT)?;
        ensure!(adopted.success(), "adopt {}: {}", adopted.ending(), adopted.tail(5));
        site.serve(other)?;
        longest = longest.max(load.finish()?);
        site.stop(serves)?;
    }
    device.detach()?;
    site.finish(rounds, longest)
}

/// A node, and two gateways that take turns in serving the same unit.
struct PairSuiteSite<'a> {
    program: &'a Path,
    folder: tempfile::TempDir,
    node: ServeProcess,
    addresses: [SocketAddr; 2],
    settings: [String; 2],
    gateways: [Option<ServeProcess>; 2],
}

const NAMES: [&str; 2] = ["a", "b"];

/// The kind of the log whose unit moves between gateways.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PairSuiteLog {
    /// The log of a single gateway, which is handed over.
    Alone,
    /// The log of a pair of gateways, mirrored on both of them.
    Paired,
    /// The log of a pair, with an NVRAM in front of each mirror leg.
    PairedWithNvram,
}

impl<'a> PairSuiteSite<'a> {
    /// Starts the node, and both gateways if the log belongs to a pair; otherwise only the first
    /// gateway.
    fn start(program: &'a Path, log: PairSuiteLog) -> Result<PairSuiteSite<'a>> {
        let folder = tempfile::tempdir()?;
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\nstate = \"node.state\"\n[[target]]\nname = \"{NODE}\"\n\
             [[target.unit]]\nstack = [{{ file = {{ path = \"node.img\", size = \"64MiB\" }} }}]\n"
        );
        let node = ServeProcess::start(program, folder.path(), "node", &text)?;
        // Keep both sockets open until both ports are known; otherwise the kernel could choose one
        // port twice.
        let held = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let addresses = [held[0].local_addr()?, held[1].local_addr()?];
        drop(held);
        // A volume can be attached to a host only once, so concurrent runs of this suite use
        // different serial numbers.
        let serial = format!("pair-{log:?}-{}", std::process::id());
        let paired = log != PairSuiteLog::Alone;
        let settings = [0, 1].map(|at| {
            let cache = format!(
                "log = \"{}.log\", log_size = \"16MiB\", nvram_size = \"1MiB\", dram = \"8MiB\"",
                NAMES[at]
            );
            let cache = match paired {
                true => format!("{cache}, {}", partner(addresses, at)),
                false => cache,
            };
            let cache = match log {
                PairSuiteLog::PairedWithNvram => {
                    format!("{cache}, report = \"immediate\", nvram = \"{}.nvram\"", NAMES[at])
                }
                PairSuiteLog::Alone | PairSuiteLog::Paired => cache,
            };
            format!(
                "initiator_name = \"iqn.2026-11.forebay.test:host-{}\"\nlisten = [\"{}\"]\n\
                 [[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nserial = \"{serial}\"\nstack = [\n\
                 {{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }},\n{{ cache = {{ {cache} }} }},\n]\n{}",
                NAMES[at],
                addresses[at],
                node.portal(),
                if paired { half(at) } else { String::new() },
            )
        });
        let gateways = [None, None];
        let mut site = PairSuiteSite { program, folder, node, addresses, settings, gateways };
        for at in 0..if paired { 2 } else { 1 } {
            site.serve(at)?;
        }
        Ok(site)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the index of the gateway that serves at the start of a round, and of the other one.
    fn turn(&self, round: u32) -> (usize, usize) {
        let serves = round as usize % 2;
        (serves, 1 - serves)
    }

    fn serve(&mut self, at: usize) -> Result<()> {
        let folder = self.folder.path();
        self.gateways[at] =
            Some(ServeProcess::start(self.program, folder, NAMES[at], &self.settings[at])?);
        Ok(())
    }

    fn gateway(&mut self, at: usize) -> Result<&mut ServeProcess> {
        self.gateways[at].as_mut().context("the gateway is down")
    }

    fn stop(&mut self, at: usize) -> Result<()> {
        self.gateways[at].take().context("the gateway is down")?.stop().map(drop)
    }

    /// Attaches the unit as a block device, through the portals of both gateways.
    fn attach(&self) -> Result<AttachedTestDevice> {
        let [a, b] = self.addresses;
        let url = format!("iscsi://{a},{b}/{GATEWAY}/0");
        AttachedTestDevice::attach(self.program, self.folder.path(), &[&url])
    }

    fn wait_for_role(&mut self, at: usize, role: &str) -> Result<()> {
        let gateway = self.gateway(at)?;
        gateway.wait_for_role(GATEWAY, role, PAIR_LIMIT).context(NAMES[at])
    }

    /// Reads and checks every block: on a newly attached device, and in the node's own file.
    fn finish(mut self, rounds: u32, longest: Duration) -> Result<StepTally> {
        let (serves, other) = self.turn(rounds);
        let last = rounds - 1;
        let device = self.attach()?;
        check(device.path(), last)?;
        device.detach()?;
        let drained = self.gateway(serves)?.ask(&["gateway", "drain", GATEWAY])?;
        ensure!(drained.success(), "drain {}: {}", drained.ending(), drained.tail(5));
        if self.gateways[other].is_some() {
            self.stop(other)?;
        }
        self.stop(serves)?;
        let image = self.path("node.img").display().to_string();
        self.node.stop()?;
        check(&image, last)?;
        let tally = StepTally { passed: u64::from(rounds) + 2, ..StepTally::default() };
        Ok(tally.with_note(format!("longest write {:.1} s", longest.as_secs_f64())))
    }
}

/// Returns the setting `pair` of a gateway: it has the URL of the partner's mirror leg.
fn partner(addresses: [SocketAddr; 2], at: usize) -> String {
    let (address, name, first) = (addresses[1 - at], NAMES[1 - at], at == 0);
    format!(
        "pair = {{ partner = {{ url = \"iscsi://{address}/{GATEWAY}-half-{name}/0\" }}, \
         dead_after = \"2s\", first = {first} }}"
    )
}

/// Returns the settings of the target with which this gateway exports its own mirror leg.
fn half(at: usize) -> String {
    format!(
        "[[target]]\nname = \"{GATEWAY}-half-{}\"\n[[target.unit]]\n\
         stack = [{{ half = {{ of = \"{GATEWAY}\" }} }}]\n",
        NAMES[at]
    )
}

/// A running fio. It writes 6144 blocks at random, and reads each back and checks it soon after the
/// write.
struct PairFioLoad {
    running: RunningProgram,
    report: Said,
}

/// Returns the arguments of fio. The arguments depend only on the round. fio therefore writes the same content when it
/// is started again for a round, and can verify what the first run has written.
fn job(round: u32) -> Vec<String> {
    let seed = format!("--randseed={}", round + 1);
    vec!["--name=changes".to_owned(), "--bs=4k".to_owned(), "--size=24m".to_owned(), seed]
}

fn check(path: &str, round: u32) -> Result<()> {
    let job = job(round);
    let mut arguments: Vec<&str> = job.iter().map(String::as_str).collect();
    arguments.extend(["--verify_only", "--filename", path]);
    fio::run(&arguments)
}

impl PairFioLoad {
    /// Starts fio, and returns when it has been running for the time [`INTO_IT`].
    fn start(device: &AttachedTestDevice, round: u32) -> Result<PairFioLoad> {
        let report = Said::new()?;
        let job = job(round);
        let mut arguments: Vec<&str> = job.iter().map(String::as_str).collect();
        arguments.extend(["--direct=1", "--ioengine=libaio", "--iodepth=8", "--do_verify=1"]);
        arguments.extend(["--verify_backlog=64", "--rate_iops=4000,1500"]);
        arguments.extend(["--output-format=json", "--filename", device.path()]);
        let mut command = fio::command(&arguments)?;
        report.take_all_of(&mut command)?;
        let mut load = PairFioLoad { running: program::start(&mut command)?, report };
        let ended = load.running.ended(INTO_IT)?;
        ensure!(ended.is_none(), "fio ended before the unit moved: {}", load.told()?);
        Ok(load)
    }

    /// Waits until all blocks are written and checked. Returns the time of the longest write.
    fn finish(mut self) -> Result<Duration> {
        let ended = self.running.ended(LOAD_LIMIT)?;
        let told = self.told()?;
        ensure!(ended.is_some_and(|status| status.success()), "fio ends with {ended:?}:\n{told}");
        let json = told.find('{').map_or("", |at| &told[at..]);
        let report: Value = serde_json::from_str(json).with_context(|| told.clone())?;
        let job = &report["jobs"][0];
        ensure!(job["error"] == 0, "{told}");
        let longest = job["write"]["clat_ns"]["max"].as_u64().with_context(|| told.clone())?;
        Ok(Duration::from_nanos(longest))
    }

    fn told(&self) -> Result<String> {
        Ok(self.report.text()?)
    }
}
