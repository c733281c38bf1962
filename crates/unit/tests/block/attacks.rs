//! Sends commands with values that have crashed other targets or made them read and write outside of their memory.

use scsi::{Command, ScsiStatus};

use crate::host::{Call, Host, geometry, pattern};

/// Regression test for a bug of FreeBSD's CTL, which read beyond its table for unknown service actions.
#[test]
fn cve_2024_42416_every_service_action_may_be_queried() {
    let host = Host::new(geometry());
    let ask = |options: u8, opcode: u8, action: u16, length: u32| {
        let [high, low] = action.to_be_bytes();
        let mut cdb = [0xa3, 0x0c, options, opcode, high, low, 0, 0, 0, 0, 0, 0];
        cdb[6..10].copy_from_slice(&length.to_be_bytes());
        let completion = host.send(&cdb, &[]);
        assert!(
            matches!(completion.status, ScsiStatus::Good | ScsiStatus::CheckCondition),
            "{cdb:02x?}: {completion:?}"
        );
        assert!(completion.data_in.len() <= length as usize);
    };
    for opcode in 0..=255 {
        for options in 0..=255 {
            for action in [0, 1, 0x0c, 0x1f, 0x20, 0xff, 0x7fff, 0xffff] {
                ask(options, opcode, action, 4096);
            }
        }
    }
    for opcode in [0x7f, 0x83, 0x84, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa3, 0xa4, 0xab] {
        for action in 0..=u16::MAX {
            ask(0x82, opcode, action, 12);
        }
    }
    for length in 0..100 {
        ask(0, 0, 0, length);
        ask(0x80, 0, 0, length);
    }
}

/// In LIO, the sum of address and length overflowed its type, so that a command beyond the end was accepted.
#[test]
fn cve_2025_68782_addresses_and_lengths_near_the_largest_integers() {
    let host = Host::new(geometry());
    let before = pattern(3, 8);
    host.good(&Command::parse(&write_10(1015, 8)).expect("known"), &before);
    host.asked();
    let lbas = [1015, 1022, 1023, 1024, u64::from(u32::MAX), u64::MAX - 7, u64::MAX - 1, u64::MAX];
    let lengths = [9, 1023, 1024, 0x7fff_ffff, 0x8000_0000, u32::MAX - 7, u32::MAX];
    for lba in lbas {
        for length in lengths {
            let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
            list.extend(lba.to_be_bytes());
            list.extend(length.to_be_bytes());
            list.extend([0; 4]);
            let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
            host.fails_cdb(&unmap, &list);
            // READ, WRITE, VERIFY, WRITE AND VERIFY, PRE-FETCH and WRITE SAME, each with 16 bytes.
            for opcode in [0x88, 0x8a, 0x8f, 0x8e, 0x90, 0x93] {
                let mut cdb = [0; 16];
                cdb[0] = opcode;
                cdb[2..10].copy_from_slice(&lba.to_be_bytes());
                cdb[10..14].copy_from_slice(&length.to_be_bytes());
                let _ = host.send(&cdb, &before);
            }
        }
    }
    let touched = |call: &Call| matches!(call, Call::Write(..) | Call::Discard(..));
    let asked = host.asked();
    assert!(!asked.iter().any(touched), "{asked:?}");
    for call in asked {
        if let Call::Read(lba, blocks) = call {
            assert!(lba + u64::from(blocks) <= 1023, "{lba} {blocks}");
        }
    }
}

fn write_10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
