//! Parses a CDB of a hostile initiator. If a CDB is accepted, its encoding must parse to the same command.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scsi::Command;

fuzz_target!(|input: &[u8]| {
    if let Ok(command) = Command::parse(input) {
        assert_eq!(Command::parse(&command.encode()), Ok(command));
    }
});
