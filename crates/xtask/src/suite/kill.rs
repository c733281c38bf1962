//! Kills (SIGKILL) the gateway while it writes and destages, or the node behind it. Afterwards each block must hold the
//! data of its last acknowledged write, or of a write that was in flight, and never a mixture of two writes.
//!
//! The link to the node has a delay of 4 ms, and no privilege is needed. The module `power` has
//! rounds for every mode.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};

use crate::steps::StepTally;
use crate::suite::site::{SuiteSite, SuiteSitePlan, Victim};

/// Number of blocks of 4 KiB that are written to: 16 MiB.
const BLOCKS: u64 = 4096;

/// Number of logical blocks in a block of 4 KiB.
const SECTORS: u16 = 8;
const SECTOR: u32 = 512;

/// Shape of a session: 16 commands in flight; it keeps the data that each command reads.
const SHAPE: ClientSessionOptions = ClientSessionOptions { depth: 16, bytes: 4096, keep: true };

/// Number of writes before the kill. By then the log has dirty data, and the gateway destages.
const WRITES: u64 = 1500;

/// After this number of writes, the load sends a flush.
const FLUSH_EVERY: u64 = 64;

/// The processes that are killed, in one entry for each round.
const VICTIMS: [Victim; 4] = [Victim::Gateway, Victim::Node, Victim::Gateway, Victim::Both];

/// Runs the rounds with this value of the setting `report`. Each round is a case of the result. The check of the node's
/// own volume after the last round is one more case.
pub fn rounds(program: &Path, report: &str) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let cache = format!(
        "log_size = \"32MiB\", dram = \"8MiB\", report = \"{report}\", \
         dirty_age = \"50ms\", destage_idle = \"1ms\""
    );
    let mut site =
        SuiteSite::start(program, folder.path(), SuiteSitePlan { cache: &cache, epochs: false })?;
    let mut ledger = KillRoundLedger::new(report.len() as u64);
    let mut tally = StepTally::default();
    for (number, victim) in (1..).zip(VICTIMS) {
        let round = round(&mut site, victim, &mut ledger);
        if let Err(error) = &round {
            println!("round {number}, {victim:?} killed, report {report}: {error:#}");
            println!("the gateway's last events:\n{}", site.gateway_events());
        }
        tally.count(round.is_ok());
    }
    let settled =
        site.settle().and_then(|()| ledger.verify(&mut ClientSession::open(&site.far()?, SHAPE)?));
    if let Err(error) = &settled {
        println!("the node's volume, report {report}: {error:#}");
        println!("the gateway's last events:\n{}", site.gateway_events());
    }
    tally.count(settled.is_ok());
    site.stop()?;
    Ok(tally.with_note(format!(
        "{} writes acknowledged, {} blocks verified, {} of them in flight at the kill",
        ledger.acknowledged, ledger.verified, ledger.ambiguous
    )))
}

/// Writes, kills the victim while writes are in flight, starts the processes again, and reads
/// everything back.
fn round(site: &mut SuiteSite<'_>, victim: Victim, ledger: &mut KillRoundLedger) -> Result<()> {
    site.raise()?;
    let mut session = ClientSession::open(&site.near()?, SHAPE)?;
    let mut writer = Writer { ledger, site, victim, writes: 0, killed: None, wrong: None };
    let ended = session.run(&mut writer);
    let (killed, wrong) = (writer.killed.take(), writer.wrong.take());
    if let Some(wrong) = wrong {
        bail!("{wrong}");
    }
    killed.context("nothing was killed")??;
    if victim == Victim::Node {
        // The gateway was not killed: it must answer every command in flight, and the ledger
        // records these answers.
        ended?;
        let mut rest = Writer { ledger, site, victim, writes: u64::MAX, killed: None, wrong: None };
        session.drain(&mut rest)?;
    } else {
        ensure!(ended.is_err(), "a killed gateway still answered");
    }
    drop(session);
    site.raise()?;
    ledger.verify(&mut ClientSession::open(&site.near()?, SHAPE)?)
}

/// The versions that each block may hold after a kill.
struct KillRoundLedger {
    held: Vec<u64>,
    under_way: Vec<Option<u64>>,
    last_version: u64,
    random: u64,
    acknowledged: u64,
    verified: u64,
    ambiguous: u64,
}

impl KillRoundLedger {
    fn new(seed: u64) -> KillRoundLedger {
        let blocks = BLOCKS as usize;
        KillRoundLedger {
            held: vec![0; blocks],
            under_way: vec![None; blocks],
            last_version: 0,
            random: seed,
            acknowledged: 0,
            verified: 0,
            ambiguous: 0,
        }
    }

    /// Chooses a block without a write in flight, and the version to write to it.
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

    /// Records that a write was not carried out: if a later read finds the version of this write, that is a fault of
    /// the program.
    fn forget(&mut self, block: u64) {
        if let Some(under_way) = self.under_way.get_mut(block as usize) {
            *under_way = None;
        }
    }

    /// Reads each block, and checks that its content is allowed after the kills.
    fn verify(&mut self, session: &mut ClientSession) -> Result<()> {
        let mut reader = KillRoundReader { ledger: self, next: 0, left: BLOCKS, wrong: vec![] };
        session.run(&mut reader)?;
        let wrong = reader.wrong;
        let count = wrong.len();
        ensure!(count == 0, "{count} of {BLOCKS} blocks: {}", wrong[..count.min(5)].join("; "));
        Ok(())
    }

    /// Judges the content of a block: it must be the last acknowledged version, or the one that was
    /// in flight.
    fn judge(&mut self, block: u64, content: BlockStampState) -> Result<(), String> {
        let found = match content {
            BlockStampState::Empty => 0,
            BlockStampState::Version(version) => version,
            BlockStampState::Damaged => {
                return Err(format!("block {block} is torn or not its own"));
            }
        };
        let held = self.held[block as usize];
        let under_way = self.under_way[block as usize].take();
        if found != held && Some(found) != under_way {
            return Err(format!(
                "block {block} holds version {found}; acknowledged was {held}, in flight {under_way:?}"
            ));
        }
        self.verified += 1;
        self.ambiguous += u64::from(under_way.is_some());
        self.held[block as usize] = found;
        Ok(())
    }
}

/// Writes random blocks, and kills the victim after [`WRITES`] writes.
struct Writer<'a, 'b> {
    ledger: &'a mut KillRoundLedger,
    site: &'a mut SuiteSite<'b>,
    victim: Victim,
    writes: u64,
    killed: Option<Result<()>>,
    wrong: Option<String>,
}

/// Number of a flush command; the number of a write is that of its block.
const FLUSH: u64 = u64::MAX;

/// The statuses BUSY and TASK SET FULL: the command was not carried out, which is no error (SAM-5,
/// 5.3.1).
const NOT_NOW: [u8; 2] = [0x08, 0x28];

impl ClientWorkload for Writer<'_, '_> {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        if self.writes >= WRITES && self.killed.is_none() {
            self.killed = self.site.kill_in_destage(self.victim);
        }
        let done = self.victim == Victim::Node && self.killed.is_some();
        if self.wrong.is_some() || done || matches!(self.killed, Some(Err(_))) {
            return ClientSlotAction::Stop;
        }
        self.writes += 1;
        if self.writes.is_multiple_of(FLUSH_EVERY) {
            return ClientSlotAction::Send(ClientScsiCommand::flush(), FLUSH);
        }
        let (block, version) = self.ledger.draw();
        stamp::fill(payload, block, version);
        let fua = version.is_multiple_of(4);
        let lba = block as u32 * u32::from(SECTORS);
        ClientSlotAction::Send(ClientScsiCommand::write(lba, SECTORS, SECTOR, fua), block)
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        match answer.status {
            0 if answer.number == FLUSH => {}
            0 => self.ledger.acknowledge(answer.number),
            // The unit did not carry out this command: if a later read finds its data, that is a fault of the program.
            status if NOT_NOW.contains(&status) => self.ledger.forget(answer.number),
            status => {
                let sense = answer.sense;
                self.wrong =
                    Some(format!("a write ended with status {status:#04x}, sense {sense:x?}"));
            }
        }
    }
}

/// A workload that reads each block once and checks its content.
struct KillRoundReader<'a> {
    ledger: &'a mut KillRoundLedger,
    next: u64,
    left: u64,
    wrong: Vec<String>,
}

impl ClientWorkload for KillRoundReader<'_> {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        if self.left == 0 {
            return ClientSlotAction::Stop;
        }
        if self.next == BLOCKS {
            return ClientSlotAction::Wait;
        }
        let block = self.next;
        self.next += 1;
        ClientSlotAction::Send(
            ClientScsiCommand::read(block as u32 * u32::from(SECTORS), SECTORS, SECTOR),
            block,
        )
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
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
        let mut ledger = KillRoundLedger::new(1);
        let (block, first) = ledger.draw();
        ledger.acknowledge(block);
        assert!(ledger.judge(block, BlockStampState::Version(first)).is_ok());
        assert!(
            ledger.judge(block, BlockStampState::Empty).is_err(),
            "an acknowledged write is lost"
        );
        ledger.under_way[block as usize] = Some(first + 7);
        assert!(ledger.judge(block, BlockStampState::Version(first + 7)).is_ok());
        assert!(
            ledger.judge(block, BlockStampState::Version(first)).is_err(),
            "what was seen goes back"
        );
        assert!(ledger.judge(block, BlockStampState::Damaged).is_err());
        ledger.under_way[block as usize] = Some(first + 8);
        ledger.forget(block);
        assert!(
            ledger.judge(block, BlockStampState::Version(first + 8)).is_err(),
            "BUSY, and it is there"
        );
        ledger.forget(FLUSH);
    }

    #[test]
    fn a_block_is_not_written_twice_at_once() {
        let mut ledger = KillRoundLedger::new(1);
        let mut drawn: Vec<u64> = (0..BLOCKS / 2).map(|_| ledger.draw().0).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len() as u64, BLOCKS / 2);
    }
}
