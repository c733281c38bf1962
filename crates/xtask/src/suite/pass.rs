//! Writes or reads a range of a unit once, in commands of one size. Every sector is stamped with
//! its number and a version.

use std::time::Instant;

use anyhow::{Result, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};

/// Size in bytes of a logical block. All units that this module writes have this size.
const SECTOR: usize = 512;

/// A range at the start of a unit, and the commands that write or read it.
#[derive(Clone, Copy, Debug)]
pub struct StampedPass {
    /// Number of sectors that each command reads or writes.
    pub each: u16,
    /// Number of commands that cover the range.
    pub commands: u64,
    /// Number of commands in flight at the same time.
    pub depth: usize,
}

/// Writes the range with a version in every sector. Fails if any command fails.
pub fn write(login: &ClientLogin, range: StampedPass, version: u64) -> Result<()> {
    let failed = run(login, range, version, true)?;
    ensure!(failed == 0, "{failed} of {} writes failed", range.commands);
    Ok(())
}

/// Reads the range. Returns the number of commands that failed or read a sector without that
/// version.
pub fn read(login: &ClientLogin, range: StampedPass, version: u64) -> Result<u64> {
    run(login, range, version, false)
}

fn run(login: &ClientLogin, range: StampedPass, version: u64, write: bool) -> Result<u64> {
    let bytes = usize::from(range.each) * SECTOR;
    let mut session =
        ClientSession::open(login, ClientSessionOptions { depth: range.depth, bytes, keep: true })?;
    let (blocks, sector) = session.capacity()?;
    let needed = range.commands * u64::from(range.each);
    ensure!(
        sector as usize == SECTOR && blocks >= needed,
        "the unit has {blocks} blocks of {sector}"
    );
    let mut pass = Pass { range, version, write, next: 0, left: range.commands, wrong: 0 };
    session.run(&mut pass)?;
    Ok(pass.wrong)
}

struct Pass {
    range: StampedPass,
    version: u64,
    write: bool,
    next: u64,
    left: u64,
    wrong: u64,
}

impl Pass {
    /// Returns the first sector of a command.
    fn start(&self, command: u64) -> u64 {
        command * u64::from(self.range.each)
    }
}

impl ClientWorkload for Pass {
    fn next(&mut self, _now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        if self.left == 0 {
            return ClientSlotAction::Stop;
        }
        if self.next == self.range.commands {
            return ClientSlotAction::Wait;
        }
        let command = self.next;
        self.next += 1;
        let (start, each) = (self.start(command), self.range.each);
        if !self.write {
            return ClientSlotAction::Send(
                ClientScsiCommand::read(start as u32, each, SECTOR as u32),
                command,
            );
        }
        for (sector, lba) in payload.chunks_exact_mut(SECTOR).zip(start..) {
            stamp::fill(sector, lba, self.version);
        }
        ClientSlotAction::Send(
            ClientScsiCommand::write(start as u32, each, SECTOR as u32, false),
            command,
        )
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        self.left -= 1;
        let start = self.start(answer.number);
        let whole = || {
            let mut sectors = answer.data.chunks_exact(SECTOR).zip(start..);
            sectors.all(|(sector, lba)| {
                stamp::read(sector, lba) == BlockStampState::Version(self.version)
            })
        };
        self.wrong += u64::from(answer.status != 0 || !(self.write || whole()));
    }
}
