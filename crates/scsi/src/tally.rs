//! Counts commands by operation code, and names operation codes for people.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter for each operation code. Only one task may add to the counters; any thread may read
/// them.
#[derive(Debug)]
pub struct OpcodeTally([AtomicU64; 256]);

impl OpcodeTally {
    /// Adds one to the counter of `opcode`. Only one task may call this: of two concurrent calls,
    /// one could be lost.
    pub fn count(&self, opcode: u8) {
        let counter = &self.0[usize::from(opcode)];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the operation codes that were counted at least once, with their counts.
    pub fn counted(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = (0..=u8::MAX)
            .map(|opcode| (opcode, self.0[usize::from(opcode)].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Adds the counts of `other` to this tally. Only the task that counts here may call this; see
    /// [`OpcodeTally::count`].
    pub fn add(&self, other: &OpcodeTally) {
        for (opcode, count) in other.counted() {
            let counter = &self.0[usize::from(opcode)];
            counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        }
    }
}

impl Default for OpcodeTally {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; 256])
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
        a.count(0x28);
        b.count(0x28);
        b.count(0xff);
        a.add(&b);
        assert_eq!(a.counted().collect::<Vec<_>>(), [(0x28, 2), (0xff, 1)]);
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
