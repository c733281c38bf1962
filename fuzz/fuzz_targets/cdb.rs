//! A CDB of a hostile initiator. What parses has one meaning: its own CDB parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scsi::Command;

fuzz_target!(|input: &[u8]| {
    if let Ok(command) = Command::parse(input) {
        assert_eq!(Command::parse(&command.encode()), Ok(command));
    }
});
