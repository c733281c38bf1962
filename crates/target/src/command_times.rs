//! How long commands take at their units, by kind.

use std::{sync::Arc, time::Instant};

use volume::{TimeHistogram, TimeHistogramSnapshot};

/// What a command does, as far as its time tells something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandKind {
    /// READ of any form.
    Read,
    /// WRITE of any form.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// All others.
    Other,
}

impl CommandKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    fn of(opcode: u8) -> Self {
        match opcode {
            0x08 | 0x28 | 0xa8 | 0x88 => Self::Read,
            0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c => Self::Write,
            0x35 | 0x91 => Self::Flush,
            _ => Self::Other,
        }
    }
}

/// The times of all commands of a server.
#[derive(Debug, Default)]
pub(crate) struct CommandTimes([TimeHistogram; 4]);

impl CommandTimes {
    pub(crate) fn taken(&self) -> Vec<(CommandKind, TimeHistogramSnapshot)> {
        CommandKind::ALL.into_iter().map(|kind| (kind, self.0[kind as usize].taken())).collect()
    }
}

/// Looks at the clock for one session: for one in [`SAMPLED_WAITING`] of the commands that have to wait,
/// and for one in [`SAMPLED`] of those that are done at once. Each stands for as many.
pub(crate) struct StopWatch {
    times: Arc<CommandTimes>,
    commands: u64,
}

/// A command that is at its unit.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    kind: CommandKind,
    /// It is timed if it waits.
    is_timed: bool,
    /// `None`: nobody looked.
    at: Option<Instant>,
}

impl StopWatch {
    pub(crate) fn new(times: Arc<CommandTimes>) -> Self {
        Self { times, commands: 0 }
    }

    pub(crate) fn start(&mut self, opcode: u8) -> Started {
        self.commands += 1;
        let at = self.commands.is_multiple_of(SAMPLED).then(Instant::now);
        let is_timed = self.commands.is_multiple_of(SAMPLED_WAITING);
        Started { kind: CommandKind::of(opcode), is_timed, at }
    }

    /// It was done at once.
    pub(crate) fn done_at_once(&self, started: Started) {
        if let Some(at) = started.at {
            self.times.0[started.kind as usize].add(at.elapsed(), SAMPLED);
        }
    }

    /// It has had to wait, and is done.
    pub(crate) fn done(&self, started: Started) {
        if let Some(at) = started.at {
            self.times.0[started.kind as usize].add(at.elapsed(), SAMPLED_WAITING);
        }
    }
}

impl Started {
    /// It has to wait. What it took until now is little beside what comes.
    pub(crate) fn waits(self) -> Self {
        Self { at: self.at.or_else(|| self.is_timed.then(Instant::now)), ..self }
    }
}

/// Looking at the clock twice takes 70 ns: four for each command.
const SAMPLED: u64 = 16;
/// And 18 for each command that waits, which takes some microseconds in any case. A divisor of the other.
const SAMPLED_WAITING: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_timed_and_stand_for_all() {
        let times = Arc::new(CommandTimes::default());
        let mut watch = StopWatch::new(Arc::clone(&times));
        for _ in 0..160 {
            let started = watch.start(0x28);
            watch.done_at_once(started);
        }
        for _ in 0..12 {
            let started = watch.start(0x2a).waits();
            watch.done(started);
        }
        let counts: Vec<_> = times.taken().iter().map(|(_, taken)| taken.count()).collect();
        assert_eq!(counts, [160, 12, 0, 0]);
    }
}
