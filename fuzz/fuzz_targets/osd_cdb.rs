//! Parses a CDB of a hostile OSD initiator, with its capability. An accepted CDB must have the same fields after it is
//! written and read again, and the check of a capability must end.
#![no_main]

use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use osd::{CDB_BYTES, Capability, OsdCdb, ServiceAction};

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let action = usize::from(choices.byte());
    let mut cdb = choices.rest().to_vec();
    // Set the operation code and a service action: the parser would refuse most random CDBs for these bytes.
    if action < ServiceAction::ALL.len() {
        cdb.resize(CDB_BYTES, 0);
        (cdb[0], cdb[1], cdb[7]) = (osd::OPERATION_CODE, 0, 228);
        cdb[8..10].copy_from_slice(&(ServiceAction::ALL[action] as u16).to_be_bytes());
    }
    let Ok(parsed) = OsdCdb::parse(&cdb) else { return };
    assert_eq!(OsdCdb::parse(&parsed.encode()), Ok(parsed));
    if let Ok(Some(capability)) = parsed.capability() {
        assert_eq!(Capability::parse(&capability.to_bytes()), Ok(Some(capability)));
        let permitted = capability.check(&parsed.command).is_ok();
        assert!(!permitted || capability.permissions.suffice_for(&parsed.command));
    }
});
