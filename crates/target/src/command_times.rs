//! Measures how long units take to execute commands, separately for each kind of command.

use std::{sync::Arc, time::Instant};

use scsi::CommandCode;
use volume::{TimeHistogram, TimeHistogramSnapshot};

/// A class of commands with similar times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandKind {
    Read,
    Write,
    Flush,
    Other,
}

impl CommandKind {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    fn of(command: CommandCode) -> Self {
        match command {
            CommandCode::Opcode(opcode) => match opcode {
                0x08 | 0x28 | 0xa8 | 0x88 => Self::Read,
                0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c => Self::Write,
                0x35 | 0x91 => Self::Flush,
                _ => Self::Other,
            },
            // Object commands: READ; WRITE, APPEND, CREATE AND WRITE; FLUSH, FLUSH COLLECTION, FLUSH PARTITION, FLUSH
            // OSD.
            CommandCode::VariableLength(action) => match action {
                0x8885 => Self::Read,
                0x8886 | 0x8887 | 0x8892 => Self::Write,
                0x8888 | 0x889a..=0x889c => Self::Flush,
                _ => Self::Other,
            },
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

/// Measures a sample of one session's commands: one of [`SAMPLED_WAITING`] of the commands that have to wait,
/// and one of [`SAMPLED`] of those that complete at once. Each sample counts as that many commands.
pub(crate) struct StopWatch {
    times: Arc<CommandTimes>,
    commands: u64,
}

/// A command that a unit is executing, with the start of its measurement.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    kind: CommandKind,
    /// True if the command is in the sample of commands that have to wait.
    is_timed: bool,
    /// The time at which the execution began; `None` if this command is not measured.
    at: Option<Instant>,
}

impl StopWatch {
    pub(crate) fn new(times: Arc<CommandTimes>) -> Self {
        Self { times, commands: 0 }
    }

    pub(crate) fn start(&mut self, command: CommandCode) -> Started {
        self.commands += 1;
        let at = self.commands.is_multiple_of(SAMPLED).then(Instant::now);
        let is_timed = self.commands.is_multiple_of(SAMPLED_WAITING);
        Started { kind: CommandKind::of(command), is_timed, at }
    }

    /// Records a command that completed at once.
    pub(crate) fn done_at_once(&self, started: Started) {
        if let Some(at) = started.at {
            self.times.0[started.kind as usize].add(at.elapsed(), SAMPLED);
        }
    }

    /// Records the duration of a command that did not complete at once.
    pub(crate) fn done(&self, started: Started) {
        if let Some(at) = started.at {
            self.times.0[started.kind as usize].add(at.elapsed(), SAMPLED_WAITING);
        }
    }
}

impl Started {
    /// Starts the clock if the command is in the sample of commands that wait, and the clock is not running yet. The
    /// time before this call is negligible for a command that has to wait.
    pub(crate) fn waits(self) -> Self {
        Self { at: self.at.or_else(|| self.is_timed.then(Instant::now)), ..self }
    }
}

/// One of 16 commands that complete at once is measured. Reading the clock twice takes 70 ns, which is 4 ns for each
/// command.
const SAMPLED: u64 = 16;
/// One of four commands that wait is measured. This costs 18 ns for each command that waits, which takes some
/// microseconds in any case. Must be a divisor of `SAMPLED`.
const SAMPLED_WAITING: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_timed_commands_stands_for_all_commands() {
        let times = Arc::new(CommandTimes::default());
        let mut watch = StopWatch::new(Arc::clone(&times));
        for _ in 0..160 {
            let started = watch.start(CommandCode::Opcode(0x28));
            watch.done_at_once(started);
        }
        for _ in 0..12 {
            let started = watch.start(CommandCode::Opcode(0x2a)).waits();
            watch.done(started);
        }
        let counts: Vec<_> = times.taken().iter().map(|(_, taken)| taken.count()).collect();
        assert_eq!(counts, [160, 12, 0, 0]);
    }

    #[test]
    fn object_commands_have_the_kind_of_their_service_action() {
        let of_kind = |kind| -> Vec<u16> {
            let is_it =
                |action: &u16| CommandKind::of(CommandCode::VariableLength(*action)) == kind;
            (0..=u16::MAX).filter(is_it).collect()
        };
        assert_eq!(of_kind(CommandKind::Read), [0x8885]);
        assert_eq!(of_kind(CommandKind::Write), [0x8886, 0x8887, 0x8892]);
        assert_eq!(of_kind(CommandKind::Flush), [0x8888, 0x889a, 0x889b, 0x889c]);
    }
}
