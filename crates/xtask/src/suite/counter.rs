//! Writes data, then a counter to another block, and kills gateway and node (`kill -9`). This order
//! of writes is what Open CAS, another cache, broke for its users (Open CAS, issue 253).
//!
//! A turn writes its data, waits for the acknowledgment, and then writes the turn's number as the
//! counter. Afterwards the counter must never be ahead of the data: neither at the gateway, nor on
//! the node's volume alone, which lacks the writes that are still in the gateway's log.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};

use crate::steps::StepTally;
use crate::suite::site::{SuiteSite, SuiteSitePlan, Victim};

/// Number of logical blocks in a block of 4 KiB.
const SECTORS: u16 = 8;
const SECTOR: u32 = 512;
const SHAPE: ClientSessionOptions = ClientSessionOptions { depth: 16, bytes: 4096, keep: true };

/// Number of the block of 4 KiB with the counter. The blocks with the data follow it.
const COUNTER: u64 = 0;
const PLACES: u64 = 512;
/// The blocks that a second, unrelated load writes: number of the first block, and number of
/// blocks.
const LOAD: u64 = 1024;
const LOAD_BLOCKS: u64 = 4096;

/// In each round, the kill follows after at least this many turns, and fewer than twice as many.
const TURNS: u64 = 100;

/// The cache destages every few milliseconds, so that a kill interrupts a destage.
const CACHE: &str =
    "log_size = \"32MiB\", dram = \"8MiB\", dirty_age = \"20ms\", destage_idle = \"1ms\"";

pub fn rounds(program: &Path, rounds: u32) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let mut site =
        SuiteSite::start(program, folder.path(), SuiteSitePlan { cache: CACHE, epochs: true })?;
    let mut told = AcknowledgedCounter { counter: 0, random: 253 };
    let (mut tally, mut behind) = (StepTally::default(), 0);
    for number in 0..rounds {
        let round = round(&mut site, &mut told);
        match &round {
            Ok(turns) => behind += turns,
            Err(error) => {
                println!("round {number}: {error:#}");
                println!("the gateway's last events:\n{}", site.gateway_events());
            }
        }
        tally.count(round.is_ok());
    }
    site.stop()?;
    let turns = told.counter;
    Ok(tally.with_note(format!("{turns} turns; the node alone was behind by {behind} of them")))
}

/// The newest counter value whose write the gateway has acknowledged. This value must survive the kill of the gateway's
/// process.
struct AcknowledgedCounter {
    /// The highest counter value whose write was acknowledged.
    counter: u64,
    random: u64,
}

/// Runs turns, kills both processes, and checks the node's volume without the gateway, and then the volume through the
/// gateway. Returns by how many turns the node's volume was behind.
fn round(site: &mut SuiteSite<'_>, told: &mut AcknowledgedCounter) -> Result<u64> {
    site.raise()?;
    let mut session = ClientSession::open(&site.near()?, SHAPE)?;
    let until = told.counter + TURNS + stamp::next(&mut told.random) % TURNS;
    let mut work = CounterWorkload {
        told,
        site,
        until,
        step: CounterStep::Data,
        writes: 0,
        killed: None,
        wrong: None,
    };
    let ended = session.run(&mut work);
    if let Some(wrong) = work.wrong {
        bail!("{wrong}");
    }
    work.killed.with_context(|| format!("nothing was killed: {ended:?}"))??;

    site.raise_node()?;
    let far = look(&site.far()?).context("the node's volume alone")?;
    site.raise()?;
    let near = look(&site.near()?).context("through the gateway")?;
    let acknowledged = told.counter;
    // The write of the next counter was in flight when the processes were killed; it may or may not
    // have been carried out.
    ensure!(
        near == acknowledged || near == acknowledged + 1,
        "the counter is {near}, and {acknowledged} was acknowledged"
    );
    ensure!(far <= near, "the node's counter is {far}, the gateway's {near}");
    told.counter = near;
    Ok(near - far)
}

/// Reads all blocks and returns the counter. Fails if the data of a turn up to the counter is
/// missing.
fn look(login: &ClientLogin) -> Result<u64> {
    let mut session = ClientSession::open(login, SHAPE)?;
    let mut found = Vec::with_capacity(PLACES as usize + 1);
    for block in 0..=PLACES {
        let (status, data) = session.one(ClientScsiCommand::read(
            block as u32 * u32::from(SECTORS),
            SECTORS,
            SECTOR,
        ))?;
        ensure!(status == 0, "reading block {block} ended with status {status:#04x}");
        found.push(match stamp::read(&data, block) {
            BlockStampState::Empty => 0,
            BlockStampState::Version(version) => version,
            BlockStampState::Damaged => bail!("block {block} is torn or not its own"),
        });
    }
    judge(&found)
}

/// Checks the versions of all blocks, the counter's first, and returns the counter. The block of a
/// turn must hold that turn's data, or data of the next turn if that uses the same block.
fn judge(found: &[u64]) -> Result<u64> {
    let counter = found[COUNTER as usize];
    for turn in counter.saturating_sub(PLACES - 1).max(1)..=counter {
        let version = found[place(turn) as usize];
        let next = version == counter + 1 && place(counter + 1) == place(turn);
        ensure!(
            version == turn || next,
            "the counter is {counter}, and the place of turn {turn} has {version}"
        );
    }
    Ok(counter)
}

/// Returns the number of the block with the data of a turn. The factor 37 is odd and the number of
/// blocks a power of two, so 512 turns in a row use different blocks.
fn place(turn: u64) -> u64 {
    1 + turn * 37 % PLACES
}

/// The next step of a turn: which write to send, or whose acknowledgment to wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CounterStep {
    Data,
    DataAnswer,
    Counter,
    CounterAnswer,
}

/// Alternates writes of data and counter, each sent after the other was acknowledged. While it
/// waits, it sends writes of a second, unrelated load.
struct CounterWorkload<'a, 'b> {
    told: &'a mut AcknowledgedCounter,
    site: &'a mut SuiteSite<'b>,
    until: u64,
    step: CounterStep,
    writes: u64,
    killed: Option<Result<()>>,
    wrong: Option<String>,
}

/// The command numbers of a turn's writes, and of the second load's writes.
const TURN: u64 = 0;
const OTHER: u64 = 1;

impl ClientWorkload for CounterWorkload<'_, '_> {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        if self.told.counter >= self.until && self.killed.is_none() {
            self.killed = self.site.kill_in_destage(Victim::Both);
        }
        if self.wrong.is_some() || matches!(self.killed, Some(Err(_))) {
            return ClientSlotAction::Stop;
        }
        let turn = self.told.counter + 1;
        let (block, version, number) = match self.step {
            CounterStep::Data => (place(turn), turn, TURN),
            CounterStep::Counter => (COUNTER, turn, TURN),
            CounterStep::DataAnswer | CounterStep::CounterAnswer => {
                self.writes += 1;
                let block = LOAD + stamp::next(&mut self.told.random) % LOAD_BLOCKS;
                (block, self.writes, OTHER)
            }
        };
        self.step = match self.step {
            CounterStep::Data => CounterStep::DataAnswer,
            CounterStep::Counter => CounterStep::CounterAnswer,
            waiting => waiting,
        };
        stamp::fill(payload, block, version);
        let lba = block as u32 * u32::from(SECTORS);
        ClientSlotAction::Send(ClientScsiCommand::write(lba, SECTORS, SECTOR, false), number)
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        let ours = answer.number == TURN;
        match (answer.status, self.step) {
            (0, CounterStep::DataAnswer) if ours => self.step = CounterStep::Counter,
            (0, CounterStep::CounterAnswer) if ours => {
                self.told.counter += 1;
                self.step = CounterStep::Data;
            }
            (0, _) => {}
            // BUSY or TASK SET FULL: the command was not carried out (SAM-5, 5.3.1). Send it again.
            (0x08 | 0x28, CounterStep::DataAnswer) if ours => self.step = CounterStep::Data,
            (0x08 | 0x28, CounterStep::CounterAnswer) if ours => self.step = CounterStep::Counter,
            (0x08 | 0x28, _) => {}
            (status, _) => {
                let sense = answer.sense;
                self.wrong =
                    Some(format!("a write ended with status {status:#04x}, sense {sense:x?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_ahead_of_its_data_is_found() {
        let mut found = vec![0; PLACES as usize + 1];
        for turn in 1..=600 {
            found[place(turn) as usize] = turn;
        }
        found[0] = 600;
        assert_eq!(judge(&found).unwrap(), 600);
        found[place(601) as usize] = 601;
        assert_eq!(judge(&found).unwrap(), 600);
        found[0] = 602;
        assert!(judge(&found).is_err());
        found[0] = 599;
        assert!(judge(&found).is_err(), "data of 601 before the counter was 600");
    }
}
