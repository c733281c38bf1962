//! How long commands take at their units, by kind.

use std::{sync::Arc, time::Instant};

use volume::{Taken, Times};

/// What a command does, as far as its time tells something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// READ of any form.
    Read,
    /// WRITE of any form.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// All others.
    Other,
}

impl Kind {
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
pub(crate) struct CommandTimes([Times; 4]);

impl CommandTimes {
    pub(crate) fn taken(&self) -> Vec<(Kind, Taken)> {
        Kind::ALL.into_iter().map(|kind| (kind, self.0[kind as usize].taken())).collect()
    }
}

/// Looks at the clock for one session: for every command that has to wait, and for one in
/// [`SAMPLED`] of those that are done at once, which stands for all of these.
pub(crate) struct StopWatch {
    times: Arc<CommandTimes>,
    commands: u64,
}

/// A command that is at its unit.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    kind: Kind,
    /// `None`: nobody looked.
    at: Option<Instant>,
}

impl StopWatch {
    pub(crate) fn new(times: Arc<CommandTimes>) -> Self {
        Self { times, commands: 0 }
    }

    pub(crate) fn start(&mut self, opcode: u8) -> Started {
        self.commands += 1;
        let is_sampled = self.commands % SAMPLED == 0;
        Started { kind: Kind::of(opcode), at: is_sampled.then(Instant::now) }
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
            self.times.0[started.kind as usize].add(at.elapsed(), 1);
        }
    }
}

impl Started {
    /// It has to wait. What it took until now is little beside what comes.
    pub(crate) fn waits(self) -> Self {
        Self { at: self.at.or_else(|| Some(Instant::now())), ..self }
    }
}

/// Looking at the clock twice takes some 50 ns: three for each command.
const SAMPLED: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_at_once_is_sampled_and_what_waits_is_counted() {
        let times = Arc::new(CommandTimes::default());
        let mut watch = StopWatch::new(Arc::clone(&times));
        for _ in 0..160 {
            let started = watch.start(0x28);
            watch.done_at_once(started);
        }
        for _ in 0..10 {
            let started = watch.start(0x2a).waits();
            watch.done(started);
        }
        let counts: Vec<_> = times.taken().iter().map(|(_, taken)| taken.count()).collect();
        assert_eq!(counts, [160, 10, 0, 0]);
    }
}
