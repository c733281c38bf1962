//! Killing (SIGKILL) the gateway while it writes and destages, and the node behind it, round after
//! round: what was acknowledged must be there, whole, and nothing else but what was under way.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::client::session::Shape;
use crate::client::stamp::{self, Content};
use crate::client::{Answer, Next, Request, Session, Workload};
use crate::destage::{self, Destage};
use crate::node::{Line, Node};
use crate::steps::Tally;

/// Blocks of 4 KiB that are written to: 16 MiB, four times what the log holds at once.
const BLOCKS: u64 = 4096;

/// Logical blocks in one of them, and their size.
const SECTORS: u16 = 8;
const SECTOR: u32 = 512;

/// Commands in flight.
const DEPTH: usize = 16;

/// Writes before the kill: enough for the log to be full of dirty data and for destage to be under way.
const WRITES: u64 = 1500;

/// A flush after so many writes.
const FLUSH_EVERY: u64 = 64;

/// Destaging the last of the dirty data takes a second or two.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

const NODE: &str = "iqn.2026-11.forebay.test:node";
const GATEWAY: &str = "iqn.2026-11.forebay.test:gateway";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Gateway,
    Node,
    Both,
}

const VICTIMS: &[Victim] = &[
    Victim::Gateway,
    Victim::Gateway,
    Victim::Node,
    Victim::Gateway,
    Victim::Both,
    Victim::Gateway,
];

/// Six rounds with one kind of report; every round is one case, and the look at the node's own
/// volume at the end is another.
pub fn rounds(program: &Path, report: &str) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let mut pair = Pair::start(program, folder.path(), report)?;
    let mut ledger = Ledger::new(report.len() as u64);
    let mut tally = Tally::default();
    for (number, victim) in VICTIMS.iter().enumerate() {
        let round = pair.round(*victim, &mut ledger);
        if let Err(error) = &round {
            println!("round {}, {victim:?} killed, report {report}: {error:#}", number + 1);
            println!("the gateway's last events:\n{}", pair.gateway_events());
        }
        tally.count(round.is_ok());
    }
    let settled = pair.settle(&mut ledger);
    if let Err(error) = &settled {
        println!("the node's volume, report {report}: {error:#}");
        println!("the gateway's last events:\n{}", pair.gateway_events());
    }
    tally.count(settled.is_ok());
    Ok(tally.with_note(format!(
        "{} writes acknowledged, {} blocks verified, {} of them under way when killed",
        ledger.acknowledged, ledger.verified, ledger.ambiguous
    )))
}

/// A node, a line of 4 ms one way, and a gateway.
struct Pair<'a> {
    program: &'a Path,
    folder: &'a Path,
    node_settings: String,
    gateway_settings: String,
    node: Option<Node>,
    gateway: Option<Node>,
    _line: Line,
}

impl<'a> Pair<'a> {
    fn start(program: &'a Path, folder: &'a Path, report: &str) -> Result<Pair<'a>> {
        let settings = |listen: &str| {
            format!(
                "listen = [\"{listen}\"]\n[[target]]\nname = \"{NODE}\"\n[[target.unit]]\n\
                 stack = [{{ file = {{ path = \"node.img\", size = \"64MiB\" }} }}]\n"
            )
        };
        let node = Node::start(program, folder, "node", &settings("127.0.0.1:0"))?;
        // Started again, it must be where the line leads to.
        let node_settings = settings(&node.portal().to_string());
        let line = Line::start(program, node.portal(), 4.0)?;
        let gateway_settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nstack = [\n\
             {{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }},\n\
             {{ cache = {{ log = \"log\", log_size = \"32MiB\", nvram = \"nvram\", nvram_size = \"1MiB\", \
             dram = \"8MiB\", report = \"{report}\", dirty_age = \"50ms\", destage_idle = \"1ms\" }} }},\n]\n",
            line.address()
        );
        let gateway = Node::start(program, folder, "gateway", &gateway_settings)?;
        Ok(Pair {
            program,
            folder,
            node_settings,
            gateway_settings,
            node: Some(node),
            gateway: Some(gateway),
            _line: line,
        })
    }

    fn gateway_events(&self) -> String {
        let events = fs::read_to_string(self.folder.join("gateway.events")).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn gateway(&self) -> Result<&Node> {
        self.gateway.as_ref().context("the gateway is down")
    }

    /// Writes, kills in mid-write, starts again, and reads everything back.
    fn round(&mut self, victim: Victim, ledger: &mut Ledger) -> Result<()> {
        self.raise()?;
        let shape = Shape { depth: DEPTH, bytes: 4096, keep: true };
        let mut session = Session::open(&self.gateway()?.login(GATEWAY), shape)?;
        let mut writer =
            Writer { ledger, pair: self, victim, writes: 0, killed: None, wrong: None };
        let ended = session.run(&mut writer);
        let (killed, wrong) = (writer.killed.take(), writer.wrong.take());
        if let Some(wrong) = wrong {
            bail!("{wrong}");
        }
        killed.context("nothing was killed")??;
        if victim == Victim::Node {
            // The gateway lives: everything in flight is answered, and its answers count.
            ended?;
            let mut rest =
                Writer { ledger, pair: self, victim, writes: u64::MAX, killed: None, wrong: None };
            session.drain(&mut rest)?;
        } else {
            ensure!(ended.is_err(), "a killed gateway went on answering");
        }
        drop(session);
        self.raise()?;
        let portal = self.gateway()?.login(GATEWAY);
        ledger.verify(&mut Session::open(&portal, shape)?)
    }

    /// Kills a victim, at a moment when dirty data is on its way to the node.
    fn kill(&mut self, victim: Victim) -> Result<()> {
        let gateway = self.gateway()?;
        let deadline = Instant::now() + DRAIN_LIMIT;
        let before = Destage::of(gateway)?.destaged;
        loop {
            // More has just gone down, and more waits: the next writes to the node are in flight.
            let now = Destage::of(gateway)?;
            if now.destaged > before && now.dirty > 0 {
                break;
            }
            ensure!(Instant::now() < deadline, "no destage is ever in flight");
        }
        if victim != Victim::Node {
            self.gateway.take().context("the gateway is down")?.running().kill()?;
        }
        if victim != Victim::Gateway {
            self.node.take().context("the node is down")?.running().kill()?;
        }
        Ok(())
    }

    /// Starts again whoever is down.
    fn raise(&mut self) -> Result<()> {
        if self.node.is_none() {
            self.node = Some(Node::start(self.program, self.folder, "node", &self.node_settings)?);
        }
        if self.gateway.is_none() {
            let gateway =
                Node::start(self.program, self.folder, "gateway", &self.gateway_settings)?;
            self.gateway = Some(gateway);
        }
        Ok(())
    }

    /// Lets the gateway destage everything, stops it, and reads the node's own volume.
    fn settle(&mut self, ledger: &mut Ledger) -> Result<()> {
        self.raise()?;
        let gateway = self.gateway()?;
        destage::drained(gateway, DRAIN_LIMIT)?;
        let took = self.gateway.take().context("the gateway is down")?.stop()?;
        ensure!(took < Duration::from_secs(5), "the gateway took {took:?} to stop");
        let node = self.node.take().context("the node is down")?;
        let shape = Shape { depth: DEPTH, bytes: 4096, keep: true };
        ledger.verify(&mut Session::open(&node.login(NODE), shape)?)?;
        node.stop().map(|_| ())
    }
}

/// Which version each block must hold.
struct Ledger {
    held: Vec<u64>,
    under_way: Vec<Option<u64>>,
    last_version: u64,
    random: u64,
    acknowledged: u64,
    verified: u64,
    ambiguous: u64,
}

impl Ledger {
    fn new(seed: u64) -> Ledger {
        let blocks = BLOCKS as usize;
        Ledger {
            held: vec![0; blocks],
            under_way: vec![None; blocks],
            last_version: 0,
            random: seed,
            acknowledged: 0,
            verified: 0,
            ambiguous: 0,
        }
    }

    /// A block that is not being written now, with its next version.
    fn draw(&mut self) -> (u64, u64) {
        loop {
            let block = stamp::next(&mut self.random) % BLOCKS;
            if self.under_way[block as usize].is_none() {
                self.last_version += 1;
                self.under_way[block as usize] = Some(self.last_version);
                return (block, self.last_version);
            }
        }
    }

    fn acknowledge(&mut self, block: u64) {
        self.acknowledged += 1;
        if let Some(version) = self.under_way[block as usize].take() {
            self.held[block as usize] = version;
        }
    }

    /// Reads every block through a session.
    fn verify(&mut self, session: &mut Session) -> Result<()> {
        let mut reader = Reader { ledger: self, next: 0, left: BLOCKS, wrong: vec![] };
        session.run(&mut reader)?;
        let wrong = reader.wrong;
        let count = wrong.len();
        ensure!(count == 0, "{count} of {BLOCKS} blocks: {}", wrong[..count.min(5)].join("; "));
        Ok(())
    }

    /// Judges what a block holds: the version it must hold, or the one that was under way.
    fn judge(&mut self, block: u64, content: Content) -> Result<(), String> {
        let found = match content {
            Content::Empty => 0,
            Content::Version(version) => version,
            Content::Damaged => return Err(format!("block {block} is torn or not its own")),
        };
        let held = self.held[block as usize];
        let under_way = self.under_way[block as usize].take();
        if found != held && Some(found) != under_way {
            return Err(format!(
                "block {block} holds version {found}, acknowledged was {held}, under way {under_way:?}"
            ));
        }
        self.verified += 1;
        self.ambiguous += u64::from(under_way.is_some());
        self.held[block as usize] = found;
        Ok(())
    }
}

/// Writes blocks at random, and kills when enough is written.
struct Writer<'a, 'b> {
    ledger: &'a mut Ledger,
    pair: &'a mut Pair<'b>,
    victim: Victim,
    writes: u64,
    killed: Option<Result<()>>,
    wrong: Option<String>,
}

/// The number of a flush; blocks have theirs.
const FLUSH: u64 = u64::MAX;

/// BUSY and TASK SET FULL: not accepted, not an error (SAM-5, 5.3.1).
const NOT_NOW: [u8; 2] = [0x08, 0x28];

impl Workload for Writer<'_, '_> {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> Next {
        if self.writes >= WRITES && self.killed.is_none() {
            self.killed = Some(self.pair.kill(self.victim));
        }
        let done = self.victim == Victim::Node && self.killed.is_some();
        if self.wrong.is_some() || done || matches!(self.killed, Some(Err(_))) {
            return Next::Stop;
        }
        self.writes += 1;
        if self.writes.is_multiple_of(FLUSH_EVERY) {
            return Next::Send(Request::flush(), FLUSH);
        }
        let (block, version) = self.ledger.draw();
        stamp::fill(payload, block, version);
        let fua = version.is_multiple_of(4);
        let lba = block as u32 * u32::from(SECTORS);
        Next::Send(Request::write(lba, SECTORS, SECTOR, fua), block)
    }

    fn answered(&mut self, _now: Instant, answer: &Answer<'_>) {
        match answer.status {
            0 if answer.number == FLUSH => {}
            0 => self.ledger.acknowledge(answer.number),
            // It stays under way: whether it was written is not said.
            status if NOT_NOW.contains(&status) => {}
            status => {
                let sense = answer.sense;
                self.wrong =
                    Some(format!("a write ended with status {status:#04x}, sense {sense:x?}"));
            }
        }
    }
}

/// Reads every block once.
struct Reader<'a> {
    ledger: &'a mut Ledger,
    next: u64,
    left: u64,
    wrong: Vec<String>,
}

impl Workload for Reader<'_> {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> Next {
        if self.left == 0 {
            return Next::Stop;
        }
        if self.next == BLOCKS {
            return Next::Wait;
        }
        let block = self.next;
        self.next += 1;
        Next::Send(Request::read(block as u32 * u32::from(SECTORS), SECTORS, SECTOR), block)
    }

    fn answered(&mut self, _now: Instant, answer: &Answer<'_>) {
        self.left -= 1;
        let block = answer.number;
        let judged = match answer.status {
            0 => self.ledger.judge(block, stamp::read(answer.data, block)),
            status => Err(format!("reading block {block} ended with status {status:#04x}")),
        };
        self.wrong.extend(judged.err());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_what_was_acknowledged_or_was_under_way() {
        let mut ledger = Ledger::new(1);
        let (block, first) = ledger.draw();
        ledger.acknowledge(block);
        assert!(ledger.judge(block, Content::Version(first)).is_ok());
        assert!(ledger.judge(block, Content::Empty).is_err(), "an acknowledged write is lost");
        ledger.under_way[block as usize] = Some(first + 7);
        assert!(ledger.judge(block, Content::Version(first + 7)).is_ok());
        assert!(ledger.judge(block, Content::Version(first)).is_err(), "what was seen goes back");
        assert!(ledger.judge(block, Content::Damaged).is_err());
    }

    #[test]
    fn a_block_is_not_written_twice_at_once() {
        let mut ledger = Ledger::new(1);
        let mut drawn: Vec<u64> = (0..BLOCKS / 2).map(|_| ledger.draw().0).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len() as u64, BLOCKS / 2);
    }
}
