//! Counts commands by operation code, and names operation codes for people.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{VARIABLE_LENGTH_CDB, operation::service_action};

/// The kind of a command for counters: its operation code or its service action.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CommandCode {
    Opcode(u8),
    /// The service action of a variable-length CDB, all of which have the same operation code.
    VariableLength(u16),
}

impl CommandCode {
    /// Returns the kind of the command that has this CDB.
    #[must_use]
    pub fn of(cdb: &[u8]) -> Self {
        let opcode = cdb.first().copied().unwrap_or_default();
        match service_action(cdb) {
            Some(action) if opcode == VARIABLE_LENGTH_CDB => Self::VariableLength(action),
            _ => Self::Opcode(opcode),
        }
    }
}

/// One counter for each operation code, and for each service action of the object commands. Only
/// one task may add to the counters; any thread may read them.
#[derive(Debug)]
pub struct OpcodeTally {
    opcodes: [AtomicU64; 256],
    object_commands: [AtomicU64; OBJECT_COMMANDS],
}

/// The service actions of object commands (OSD-2, 6). Other service actions of variable-length CDBs
/// have one counter in common, so that a peer which sends many of them takes no memory.
const OBJECT_ACTIONS: RangeInclusive<u16> = 0x8880..=0x88bf;
/// The service actions PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION of OSD-2.
const PERFORM_ACTIONS: RangeInclusive<u16> = 0x8f7c..=0x8f7d;
const OBJECT_COMMANDS: usize = 64 + 2;

impl OpcodeTally {
    /// Adds one to the counter of a command. Only one task may call this: of two concurrent calls,
    /// one could be lost.
    pub fn count(&self, command: CommandCode) {
        self.add_to(command, 1);
    }

    /// Returns the commands that were counted at least once, with their counts. Variable-length
    /// CDBs with a service action that has no counter of its own are counted with their operation
    /// code.
    pub fn counted(&self) -> impl Iterator<Item = (CommandCode, u64)> {
        let opcodes = (0..=u8::MAX).map(CommandCode::Opcode);
        let actions = OBJECT_ACTIONS.chain(PERFORM_ACTIONS).map(CommandCode::VariableLength);
        let counts = opcodes
            .chain(actions)
            .map(|command| (command, self.counter(command).load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Adds the counts of `other` to this tally. Only the task that counts here may call this; see
    /// [`OpcodeTally::count`].
    pub fn add(&self, other: &OpcodeTally) {
        for (command, count) in other.counted() {
            self.add_to(command, count);
        }
    }

    fn add_to(&self, command: CommandCode, count: u64) {
        let counter = self.counter(command);
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn counter(&self, command: CommandCode) -> &AtomicU64 {
        let place = |range: RangeInclusive<u16>, action| usize::from(action - range.start());
        match command {
            CommandCode::Opcode(opcode) => &self.opcodes[usize::from(opcode)],
            CommandCode::VariableLength(action) if OBJECT_ACTIONS.contains(&action) => {
                &self.object_commands[place(OBJECT_ACTIONS, action)]
            }
            CommandCode::VariableLength(action) if PERFORM_ACTIONS.contains(&action) => {
                &self.object_commands[OBJECT_ACTIONS.len() + place(PERFORM_ACTIONS, action)]
            }
            CommandCode::VariableLength(_) => &self.opcodes[usize::from(VARIABLE_LENGTH_CDB)],
        }
    }
}

impl Default for OpcodeTally {
    fn default() -> Self {
        Self {
            opcodes: [const { AtomicU64::new(0) }; 256],
            object_commands: [const { AtomicU64::new(0) }; OBJECT_COMMANDS],
        }
    }
}

/// Returns the name of an operation code (SPC-4, SBC-3), or its number in hexadecimal if this
/// function has no name for it.
pub fn name_of_opcode(opcode: u8) -> String {
    let name = match opcode {
        0x00 => "TEST UNIT READY",
        0x03 => "REQUEST SENSE",
        0x04 => "FORMAT UNIT",
        0x08 => "READ(6)",
        0x0a => "WRITE(6)",
        0x12 => "INQUIRY",
        0x15 => "MODE SELECT(6)",
        0x16 => "RESERVE(6)",
        0x17 => "RELEASE(6)",
        0x1a => "MODE SENSE(6)",
        0x1b => "START STOP UNIT",
        0x1d => "SEND DIAGNOSTIC",
        0x1e => "PREVENT ALLOW MEDIUM REMOVAL",
        0x25 => "READ CAPACITY(10)",
        0x28 => "READ(10)",
        0x2a => "WRITE(10)",
        0x2e => "WRITE AND VERIFY(10)",
        0x2f => "VERIFY(10)",
        0x34 => "PRE-FETCH(10)",
        0x35 => "SYNCHRONIZE CACHE(10)",
        0x37 => "READ DEFECT DATA(10)",
        0x41 => "WRITE SAME(10)",
        0x42 => "UNMAP",
        0x48 => "SANITIZE",
        0x4c => "LOG SELECT",
        0x4d => "LOG SENSE",
        0x55 => "MODE SELECT(10)",
        0x56 => "RESERVE(10)",
        0x57 => "RELEASE(10)",
        0x5a => "MODE SENSE(10)",
        0x5e => "PERSISTENT RESERVE IN",
        0x5f => "PERSISTENT RESERVE OUT",
        0x7f => "VARIABLE LENGTH CDB",
        0x83 => "THIRD-PARTY COPY OUT",
        0x84 => "THIRD-PARTY COPY IN",
        0x88 => "READ(16)",
        0x89 => "COMPARE AND WRITE",
        0x8a => "WRITE(16)",
        0x8b => "ORWRITE(16)",
        0x8e => "WRITE AND VERIFY(16)",
        0x8f => "VERIFY(16)",
        0x90 => "PRE-FETCH(16)",
        0x91 => "SYNCHRONIZE CACHE(16)",
        0x93 => "WRITE SAME(16)",
        0x9c => "WRITE ATOMIC(16)",
        0x9e => "SERVICE ACTION IN(16)",
        0xa0 => "REPORT LUNS",
        0xa3 => "MAINTENANCE IN",
        0xa4 => "MAINTENANCE OUT",
        0xa8 => "READ(12)",
        0xaa => "WRITE(12)",
        0xae => "WRITE AND VERIFY(12)",
        0xaf => "VERIFY(12)",
        0xb7 => "READ DEFECT DATA(12)",
        _ => return format!("{opcode:02X}h"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_counts_are_reported_and_added() {
        let (a, b) = (OpcodeTally::default(), OpcodeTally::default());
        let (read, last) = (CommandCode::of(&[0x28; 10]), CommandCode::of(&[0xff]));
        a.count(read);
        b.count(read);
        b.count(last);
        a.add(&b);
        assert_eq!(a.counted().collect::<Vec<_>>(), [(read, 2), (last, 1)]);
    }

    #[test]
    fn object_commands_are_counted_by_service_action() {
        let code = |action: u16| {
            let [high, low] = action.to_be_bytes();
            CommandCode::of(&[0x7f, 0, 0, 0, 0, 0, 0, 0xe4, high, low, 0])
        };
        let (a, b) = (OpcodeTally::default(), OpcodeTally::default());
        for action in 0..=u16::MAX {
            a.count(code(action));
        }
        b.count(code(0x8885));
        b.count(CommandCode::of(&[0x7f, 0, 0, 0, 0, 0, 0, 0, 0x88]));
        a.add(&b);
        let counted: Vec<_> = a.counted().collect();
        assert_eq!(counted.len(), 1 + OBJECT_COMMANDS);
        assert_eq!(counted[0], (CommandCode::Opcode(0x7f), (1 << 16) - OBJECT_COMMANDS as u64 + 1));
        for (command, count) in &counted[1..] {
            assert_eq!(*count, if *command == code(0x8885) { 2 } else { 1 }, "{command:?}");
        }
        for action in [0x8880, 0x8885, 0x88b2, 0x8f7c, 0x8f7d] {
            assert!(counted.iter().any(|(command, _)| *command == code(action)));
        }
    }

    #[test]
    fn every_served_opcode_has_a_name_or_is_vendor_specific() {
        for operation in crate::OPERATIONS {
            let is_named = !name_of_opcode(operation.opcode).ends_with('h');
            assert!(is_named || operation.opcode >= 0xc0, "{:02x}", operation.opcode);
        }
        assert_eq!(name_of_opcode(0xc1), "C1h");
    }
}
