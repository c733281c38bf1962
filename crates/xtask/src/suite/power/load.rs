//! The load of a round: writes and flushes until the failure, and reading every sector afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};

use super::model::{DurabilityPromise, LONGEST, Model, SECTOR, SECTORS};
use crate::powercut::{Chance, Supply};

/// Shape of a session: 16 commands in flight; it keeps the data that each command reads.
pub const SHAPE: ClientSessionOptions =
    ClientSessionOptions { depth: 16, bytes: (LONGEST * SECTOR as u64) as usize, keep: true };

/// Maximum number of writes and flushes before the failure begins.
const MOST_WRITES: u64 = 4000;

/// How long reads that end with BUSY are sent again: a gateway needs some seconds to find a node that was down.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Pause before a read that was answered with BUSY is sent again.
const READ_PAUSE: Duration = Duration::from_millis(5);

/// Returns true if the unit did nothing for a command, so that it may be sent again: BUSY, TASK SET
/// FULL (SAM-5, 5.3.1) or a unit attention (SAM-5, 5.14).
fn is_not_now(answer: &ClientResponse<'_>) -> bool {
    match answer.status {
        0x08 | 0x28 => true,
        0x02 => answer.sense[0] == 0x06,
        _ => false,
    }
}

/// A load of random writes, with a flush in 3 of 100 commands.
pub struct PowerRoundLoad<'a> {
    pub model: &'a mut Model,
    pub chance: &'a mut Chance,
    pub supply: &'a Arc<Supply>,
    pub promise: DurabilityPromise,
    pub writes: u64,
    /// The error of a write or flush that failed although the power was on.
    pub wrong: Option<String>,
}

impl ClientWorkload for PowerRoundLoad<'_> {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        if self.supply.is_cut() || self.wrong.is_some() || self.writes >= MOST_WRITES {
            return ClientSlotAction::Stop;
        }
        self.writes += 1;
        let (request, number) = match self.chance.percent(3) {
            true => self.model.flush(),
            false => self.model.write(self.chance, payload),
        };
        ClientSlotAction::Send(request, number)
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        match answer.status {
            0 => self.model.good(answer.number, self.promise),
            _ if is_not_now(answer) => self.model.not_done(answer.number),
            status => {
                self.model.refused(answer.number);
                // An error is expected after the cut, when the node may be down. Before the cut it is a fault of the
                // program.
                if !self.supply.is_cut() {
                    let sense = answer.sense;
                    self.wrong =
                        Some(format!("a write ended with status {status:#04x}, sense {sense:x?}"));
                }
            }
        }
    }
}

/// Reads every sector of the volume.
pub fn read(login: &ClientLogin) -> Result<Vec<BlockStampState>> {
    let mut reader = PowerRoundReader {
        found: vec![BlockStampState::Empty; SECTORS as usize],
        wanted: (0..SECTORS / LONGEST).rev().map(|at| at * LONGEST).collect(),
        left: SECTORS,
        deadline: Instant::now() + READ_LIMIT,
        wrong: None,
    };
    ClientSession::open(login, SHAPE)?.run(&mut reader)?;
    ensure!(reader.wrong.is_none(), "{}", reader.wrong.unwrap_or_default());
    Ok(reader.found)
}

struct PowerRoundReader {
    found: Vec<BlockStampState>,
    /// First sectors of the reads that are still to be sent. They are taken from the end of the
    /// list.
    wanted: Vec<u64>,
    /// Number of sectors for which no read was answered yet.
    left: u64,
    deadline: Instant,
    wrong: Option<String>,
}

impl ClientWorkload for PowerRoundReader {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        if self.left == 0 || self.wrong.is_some() {
            return ClientSlotAction::Stop;
        }
        match self.wanted.pop() {
            Some(first) => ClientSlotAction::Send(
                ClientScsiCommand::read(first as u32, LONGEST as u16, SECTOR),
                first,
            ),
            None => ClientSlotAction::Wait,
        }
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        if is_not_now(answer) && now < self.deadline {
            self.wanted.push(answer.number);
            std::thread::sleep(READ_PAUSE);
            return;
        }
        self.left -= LONGEST;
        if answer.status != 0 {
            let (first, status, sense) = (answer.number, answer.status, answer.sense);
            self.wrong =
                Some(format!("reading sector {first} ended with status {status:#04x}, {sense:x?}"));
            return;
        }
        for (at, bytes) in answer.data.chunks_exact(SECTOR as usize).enumerate() {
            let sector = answer.number + at as u64;
            self.found[sector as usize] = stamp::read(bytes, sector);
        }
    }
}
