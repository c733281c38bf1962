//! The entries of the OSD commands in the answer of REPORT SUPPORTED OPERATION CODES.
//!
//! The CDB usage data comes from the parser itself: a bit is in use if the parser takes a CDB with
//! this bit for another one. The report can therefore not disagree with the parser.

use std::sync::LazyLock;

use object::Command;
use osd::{CAPABILITY, CDB_BYTES, OsdCdb, ServiceAction};
use scsi::OperationCodeEntry;

use super::command::is_served;

/// The OSD commands that the unit performs, ascending by service action.
pub static OPERATIONS: LazyLock<Vec<OperationCodeEntry>> = LazyLock::new(|| {
    let served = ServiceAction::ALL.iter().filter(|action| is_served(**action));
    served.map(|action| entry(*action)).collect()
});

fn entry(action: ServiceAction) -> OperationCodeEntry {
    let (nominal_s, recommended_s) = match action {
        // These commands process a whole drive, partition, collection or object, so their time limits are long.
        ServiceAction::FormatOsd
        | ServiceAction::ObjectStructureCheck
        | ServiceAction::RemovePartition
        | ServiceAction::RemoveMemberObjects
        | ServiceAction::SetMemberAttributes
        | ServiceAction::Query
        | ServiceAction::CopyUserObjects
        | ServiceAction::DetachClone
        | ServiceAction::RefreshSnapshotOrClone
        | ServiceAction::RestorePartitionFromSnapshot => (60, 24 * 3600),
        ServiceAction::Flush
        | ServiceAction::FlushCollection
        | ServiceAction::FlushPartition
        | ServiceAction::FlushOsd => (5, 60),
        _ => (1, 30),
    };
    // Leak one small allocation for each command: the table lives as long as the process.
    let usage = Box::leak(usage(action).to_vec().into_boxed_slice());
    OperationCodeEntry::variable_length(action as u16, usage, nominal_s, recommended_s)
}

/// Returns the CDB usage data of a command: a bit is set if the command uses this bit of its CDB (SPC-4).
fn usage(action: ServiceAction) -> [u8; CDB_BYTES] {
    let mut usage = [0; CDB_BYTES];
    let base = base(action);
    let parsed = OsdCdb::parse(&base);
    // Test the bits of CONTROL, and of the fields of the command.
    for at in (1..2).chain(10..FIXED) {
        for bit in 0..8 {
            let mut changed = base;
            changed[at] ^= 1 << bit;
            if OsdCdb::parse(&changed) != parsed {
                usage[at] |= 1 << bit;
            }
        }
    }
    // Report all bits of attributes parameters, capability and proof as used: CDBFMT in byte 11 decides about the
    // first.
    usage[FIXED..].fill(0xff);
    usage[11] |= 0x30;
    usage[0] = base[0];
    usage[7] = 0xff;
    usage[8..10].fill(0xff);
    usage
}

/// Returns a valid CDB of the command, with zeros in most fields.
fn base(action: ServiceAction) -> [u8; CDB_BYTES] {
    let mut base =
        OsdCdb::new(Command::FlushOsd { scope: object::FlushScope::ContentOrList }).encode();
    base[8..10].copy_from_slice(&(action as u16).to_be_bytes());
    // SET KEY has no valid CDB with zero as KEY TO SET.
    if action == ServiceAction::SetKey {
        base[11] |= 3;
    }
    base
}

/// Offset in bytes of the attributes parameters in the CDB.
const FIXED: usize = 52;
const _: () = assert!(FIXED < CAPABILITY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_served_command_is_reported_with_the_bits_that_its_parser_evaluates() {
        assert_eq!(OPERATIONS.len(), ServiceAction::ALL.len() - 2);
        for (entry, action) in OPERATIONS.iter().zip(ServiceAction::ALL) {
            assert_eq!(entry.usage().len(), CDB_BYTES);
            assert!(entry.service_action.is_some(), "{}", action.name());
        }
        let find = |action: ServiceAction| {
            let is_it = |entry: &&OperationCodeEntry| entry.service_action == Some(action as u16);
            OPERATIONS.iter().find(is_it).unwrap().usage()
        };
        let read = find(ServiceAction::Read);
        assert_eq!(read[..2], [0x7f, 0x04]);
        assert_eq!(read[10], 0x1f, "DPO, FUA, isolation");
        assert_eq!(read[16..48], [0xff; 32], "identifiers, length, start");
        assert_eq!(read[48..52], [0xff; 4], "continuation length");
        let append = find(ServiceAction::Append);
        assert_eq!(append[40..48], [0; 8], "APPEND has no start");
        let key = find(ServiceAction::SetKey);
        assert_eq!(key[24..52], {
            let mut field = [0xff; 28];
            field[0] = 0x0f;
            field
        });
    }

    #[test]
    fn the_report_ascends_and_has_the_common_fields_and_time_outs_of_each_command() {
        assert!(OPERATIONS.is_sorted_by_key(|entry| entry.service_action));
        for entry in OPERATIONS.iter() {
            let usage = entry.usage();
            assert_eq!(usage[7..10], [0xff; 3], "additional length, service action");
            assert_eq!(usage[11] & 0x30, 0x30, "format of the attributes parameters");
            assert!(usage[FIXED..].iter().all(|byte| *byte == 0xff), "attributes and capability");
        }
        let time_out = |action: ServiceAction| {
            let is_it = |entry: &&OperationCodeEntry| entry.service_action == Some(action as u16);
            OPERATIONS.iter().find(is_it).unwrap().recommended_s
        };
        assert_eq!(time_out(ServiceAction::FormatOsd), 24 * 3600);
        assert_eq!(time_out(ServiceAction::RemoveMemberObjects), 24 * 3600);
        assert_eq!(time_out(ServiceAction::FlushOsd), 60);
        assert_eq!(time_out(ServiceAction::Read), 30);
    }
}
