//! Fills a gateway's log. Measures how long the kernel's initiator retries a write that ends with BUSY, and how long it
//! waits for a write without an answer. Then destage resumes, and all finished writes are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rig::node::ServeProcess;
use rig::tgt;

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioFigure, VmScenarioStage};

/// Shell functions for the guest that start, repeat and verify the writes.
const WRITERS: &str = include_str!("../guest/full_log.sh");

/// Script that prints the kernel's last messages about failed writes.
const KERNEL_SAYS: &str =
    "dmesg | grep -E 'timing out|I/O error|abort|EXT4-fs|JBD2|iscsi|Result:' | tail -n 40 || true";

/// A way in which a unit treats a write for which its full log has no space.
struct FullLogCase {
    name: &'static str,
    what: &'static str,
    /// `busy_after` of a gateway whose destage is paused; `None` for a node that does not answer writes at all.
    busy_after: Option<&'static str>,
    /// How long the scenario waits until the kernel fails the write.
    limit: Duration,
    /// The value of `limit` with the option `--all`.
    limit_of_all: Duration,
}

/// Time limit of the cases with BUSY. Linux repeats a write until it is 180 s old: (5 retries + 1) times the command
/// timeout of 30 s. The gateway may hold the last try for 25 s more. The remaining 35 s are for a slow machine.
const BUSY_LIMIT: Duration = Duration::from_secs(240);

/// Time limit for a write without an answer, with `--all`. Linux resets the unit after about three minutes and keeps
/// waiting. This limit is twice as long plus a minute, which is too long for a usual run.
const HELD_LIMIT: Duration = Duration::from_secs(420);

const CASES: &[FullLogCase] = &[
    FullLogCase {
        name: "busy-0s",
        what: "BUSY at once",
        busy_after: Some("0s"),
        limit: BUSY_LIMIT,
        limit_of_all: BUSY_LIMIT,
    },
    FullLogCase {
        name: "busy-15s",
        what: "held for 15 s, then BUSY",
        busy_after: Some("15s"),
        limit: BUSY_LIMIT,
        limit_of_all: BUSY_LIMIT,
    },
    FullLogCase {
        name: "busy-25s",
        what: "held for 25 s, then BUSY",
        busy_after: Some("25s"),
        limit: BUSY_LIMIT,
        limit_of_all: BUSY_LIMIT,
    },
    FullLogCase {
        name: "held",
        what: "held without an answer",
        busy_after: None,
        limit: BUSY_LIMIT,
        limit_of_all: HELD_LIMIT,
    },
];

/// The two ways in which the guest writes: to the disk with `O_DIRECT`, and to files on ext4 with fsync.
const KINDS: [&str; 2] = ["raw", "ext4"];

/// How long every write must wait without an error: more than twice the command timeout of 30 s.
const ENDURED: Duration = Duration::from_secs(75);

/// Time limit for eight logins and four file systems: minutes under emulation on a busy machine.
const SET_UP_LIMIT: Duration = Duration::from_secs(400);

/// Time limit until the logs are full: a log of 8 MiB takes seconds, and longer on a busy machine.
const FILL_LIMIT: Duration = Duration::from_secs(180);

/// Time limit from the first free space in the log to the end of the write. In this time the kernel may also have to
/// log in again, which takes seconds.
const ROOM_LIMIT: Duration = Duration::from_secs(180);

/// Plays the scenario. In the first part every write must wait without an error; in the second, the
/// writes wait until the kernel fails them.
pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let mut servers = Servers::start(stage)?;
    let mut guest = stage.boot(Hardware::default())?;
    run(&mut guest, "log in, make file systems", SET_UP_LIMIT, &set_up(&servers))?;
    let defaults = run(&mut guest, "read the kernel's settings", SHORT, "defaults")?;
    stage.held(format!("settings of the kernel and open-iscsi: {}", one_line(&defaults)));

    servers.take_room(stage)?;
    let endured = ENDURED.as_secs();
    let limit = FILL_LIMIT + ENDURED;
    let wait = format!(
        "{}wait_for {} 'writes to wait' all_wait {endured} $(writers)\nnone_failed",
        fill(),
        limit.as_secs()
    );
    run(&mut guest, "fill the logs, wait", FILL_LIMIT + limit, &wait)?;
    servers.make_room(stage)?;
    let stop = format!("stop_writers {}\n", ROOM_LIMIT.as_secs());
    let check = stop.clone() + "none_failed\n" + &verify();
    run(&mut guest, "room again: finish, compare", ROOM_LIMIT + SET_UP_LIMIT, &check)?;
    stage.held(format!(
        "every write endures {endured} s, and is finished when there is room again; data verified"
    ));

    servers.take_room(stage)?;
    let before = until_they_fail(stage, &mut guest)?;
    servers.make_room(stage)?;
    let report = stop.clone() + "report";
    let after =
        FullLogWriteResult::all(&run(&mut guest, "room again: finish", ROOM_LIMIT * 2, &report)?)?;
    for (case, _, name) in writers() {
        let (before, after) = (&before[&name], &after[&name]);
        println!("    {}", after.line());
        // When the node restarts, its sessions end. Linux then fails writes older than 180 s, so writes without an
        // answer may fail only now.
        let session_lost = case.busy_after.is_none();
        ensure!(session_lost || before.failed() == after.failed(), "{name}: {}", after.line());
    }
    // `verify` also repairs a file system whose journal the kernel has aborted.
    let all: Vec<String> = writers().map(|(.., name)| name).collect();
    let write = start(&all) + &stop + "none_failed\n";
    let again = verify() + &write + &verify() + "go_away";
    run(
        &mut guest,
        "compare, write what failed again, compare",
        ROOM_LIMIT + SET_UP_LIMIT,
        &again,
    )?;
    stage.held("when there is room again, what failed is written again; data verified");
    servers.gateway.stop()?;
    servers.node.context("no node")?.stop()?;
    Ok(())
}

/// Waits until every write has failed or reached its limit. Records how long each write waited.
fn until_they_fail(
    stage: &mut VmScenarioStage<'_>,
    guest: &mut Guest,
) -> Result<BTreeMap<String, FullLogWriteResult>> {
    let limit = |case: &FullLogCase| if stage.all { case.limit_of_all } else { case.limit };
    let longest = CASES.iter().map(limit).max().unwrap_or_default() + FILL_LIMIT;
    let waits = writers().map(|(case, _, name)| {
        format!("wait_for {} {name} waits {name} {}\n", longest.as_secs(), limit(case).as_secs())
    });
    let script = fill() + &waits.collect::<String>() + "report";
    let report = run(guest, "fill the logs, wait for errors", longest + FILL_LIMIT, &script)?;
    let endings = FullLogWriteResult::all(&report)?;
    println!("{}", run(guest, "the kernel's messages", LONG, KERNEL_SAYS)?.trim_end());
    for (case, kind, name) in writers() {
        let ending = endings.get(&name).with_context(|| format!("no {name} in {report}"))?;
        println!("    {}", ending.line());
        let seconds = ending.time_ms / 1e3;
        let how = if ending.failed() { "fails after" } else { "still waits after" };
        stage.held(format!("{}, {kind}: a write {how} {seconds:.0} s", case.what));
        stage.figures.push(VmScenarioFigure {
            what: "how long a write endures a full log",
            name: name.clone(),
            unit: "s",
            value: seconds,
        });
    }
    Ok(endings)
}

/// The gateway whose logs fill, and the node that holds writes.
struct Servers {
    gateway: ServeProcess,
    node: Option<ServeProcess>,
    /// The port of the node. A restarted node must use it again, or the guest cannot log in again.
    node_port: u16,
}

impl Servers {
    fn start(stage: &VmScenarioStage<'_>) -> Result<Servers> {
        let gateway =
            stage.serve("gateway", &settings(0, |case| case.busy_after.is_some(), false))?;
        let node_port = tgt::free_port()?.port();
        let mut servers = Servers { gateway, node: None, node_port };
        servers.start_node(stage, false)?;
        Ok(servers)
    }

    fn start_node(&mut self, stage: &VmScenarioStage<'_>, holds: bool) -> Result<()> {
        self.node = None;
        let settings = settings(self.node_port, |case| case.busy_after.is_none(), holds);
        self.node = Some(stage.serve("node", &settings)?);
        Ok(())
    }

    /// Begins to hold up writes: pauses the gateways' destage, so that their logs fill, and restarts the node with
    /// settings with which it answers no writes.
    fn take_room(&mut self, stage: &VmScenarioStage<'_>) -> Result<()> {
        self.each_gateway("pause")?;
        self.start_node(stage, true)
    }

    fn make_room(&mut self, stage: &VmScenarioStage<'_>) -> Result<()> {
        self.each_gateway("resume")?;
        self.start_node(stage, false)?;
        println!("    room made");
        Ok(())
    }

    fn each_gateway(&self, command: &str) -> Result<()> {
        for (case, _, name) in writers().filter(|(case, ..)| case.busy_after.is_some()) {
            let asked = self.gateway.ask(&["gateway", command, &target(&name)])?;
            ensure!(asked.success(), "forebay gateway {command}, {}: {}", case.name, asked.tail(5));
        }
        Ok(())
    }

    /// Returns the target and portal of a writer's unit, as addressed from the guest.
    fn unit(&self, case: &FullLogCase, name: &str) -> String {
        let port = case.busy_after.map_or(self.node_port, |_| self.gateway.portal().port());
        format!("{} {}:{port}", target(name), HOSTS[0])
    }
}

/// Returns all writers: each combination of case and kind, and the writer's name.
fn writers() -> impl Iterator<Item = (&'static FullLogCase, &'static str, String)> {
    let both = |case: &'static FullLogCase| {
        KINDS.map(|kind| (case, kind, format!("{}-{kind}", case.name)))
    };
    CASES.iter().flat_map(both)
}

fn target(name: &str) -> String {
    format!("iqn.2026-11.forebay.vm:{name}")
}

/// Returns settings with a target for each writer of the cases that `wanted` selects.
fn settings(port: u16, wanted: impl Fn(&FullLogCase) -> bool, holds: bool) -> String {
    let mut text = format!("listen = [\"127.0.0.1:{port}\"]\n");
    for (case, _, name) in writers().filter(|(case, ..)| wanted(case)) {
        let file = format!("{{ file = {{ path = \"{name}.img\", size = \"64MiB\" }} }}");
        let above = match case.busy_after {
            Some(busy_after) => format!(
                ", {{ cache = {{ log = \"{name}.log\", log_size = \"8MiB\", dram = \"16MiB\", \
                 busy_after = \"{busy_after}\" }} }}"
            ),
            None if holds => ", { fault = { operation = \"write\", error = \"hang\" } }".to_owned(),
            None => String::new(),
        };
        text += &format!(
            "[[target]]\nname = \"{}\"\n[[target.unit]]\nserial = \"{name}\"\n\
             stack = [{file}{above}]\n",
            target(&name)
        );
    }
    text
}

/// Returns the script that logs in to every target and prepares a writer on each disk.
fn set_up(servers: &Servers) -> String {
    let mut script = format!("start_initiator {INITIATOR}\n");
    for (case, kind, name) in writers() {
        let unit = servers.unit(case, &name);
        script += &format!("record {unit}\nlogin {unit}\nmake_writer {name} {kind} {unit}\n");
    }
    script
}

/// Returns the script that fills the logs. Then it starts the writers to the node, so that the writes of all writers
/// begin to wait at about the same time.
fn fill() -> String {
    let (near, far): (Vec<_>, Vec<_>) = writers().partition(|(case, ..)| case.busy_after.is_some());
    let near: Vec<String> = near.into_iter().map(|(.., name)| name).collect();
    let far: Vec<String> = far.into_iter().map(|(.., name)| name).collect();
    let limit = FILL_LIMIT.as_secs();
    let wait = format!("wait_for {limit} 'full logs' all_wait 5 {}\n", near.join(" "));
    start(&near) + &wait + &start(&far)
}

fn start(names: &[String]) -> String {
    names.iter().map(|name| format!("start_writer {name}\n")).collect()
}

fn verify() -> String {
    writers().map(|(_, _, name)| format!("verify {name}\n")).collect()
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

fn run(guest: &mut Guest, what: &str, limit: Duration, script: &str) -> Result<String> {
    guest.run(what, limit, &format!("{WRITERS}\n{script}"))
}

/// The result of a writer's last write, parsed from the output of the shell function `report`.
#[derive(Debug, PartialEq)]
struct FullLogWriteResult {
    name: String,
    /// The state of the write as a word: `failed`, `finished` or `waits`.
    word: String,
    time_ms: f64,
    /// The error message of dd, if the write failed.
    error: String,
}

impl FullLogWriteResult {
    /// Parses a report. The keys of the result are the writers' names.
    fn all(report: &str) -> Result<BTreeMap<String, FullLogWriteResult>> {
        let lines = report.lines().map(|line| {
            let mut words = line.splitn(4, ' ').map(str::to_owned);
            let mut next = || words.next().with_context(|| format!("'{line}' is not a result"));
            let (name, word, time_ms) = (next()?, next()?, next()?.parse()?);
            let error = words.next().unwrap_or_default();
            Ok((name.clone(), FullLogWriteResult { name, word, time_ms, error }))
        });
        lines.collect()
    }

    fn failed(&self) -> bool {
        self.word == "failed"
    }

    fn line(&self) -> String {
        let FullLogWriteResult { name, word, time_ms, error } = self;
        format!("{name} {word} {:.1} s {error}", time_ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_which_writes_failed() {
        let report = "a failed 181250 dd: error writing: EIO\nb waits 240007\nc finished 90001\n";
        let endings = FullLogWriteResult::all(report).unwrap();
        assert_eq!(endings.len(), 3);
        assert_eq!(endings["a"].line(), "a failed 181.2 s dd: error writing: EIO");
        assert_eq!((&*endings["b"].word, endings["b"].time_ms), ("waits", 240_007.0));
        assert!(FullLogWriteResult::all("cmp: differ").is_err());
    }

    #[test]
    fn held_writes_are_served_without_a_cache() {
        let held = settings(3260, |case| case.busy_after.is_none(), true);
        assert_eq!(held.matches("hang").count(), KINDS.len());
        assert!(!held.contains("cache"));
        assert!(!settings(3260, |case| case.busy_after.is_none(), false).contains("hang"));
        let gateway = settings(0, |case| case.busy_after.is_some(), false);
        assert_eq!(gateway.matches("busy_after").count(), (CASES.len() - 1) * KINDS.len());
    }
}
