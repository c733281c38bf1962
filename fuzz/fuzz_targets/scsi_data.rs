//! Parses parameter data: the data of a hostile target in our initiator, and the data of a hostile initiator in our
//! unit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scsi::{
    Capacity10, Capacity16, ClaimParameters, ClaimReport, Sense, inquiry, parse_lun_list, parse_unmap_list,
    vpd::{
        BlockDeviceCharacteristics, BlockLimitsPage, DeviceIdentification, ExtendedInquiry,
        LogicalBlockProvisioning, SupportedPages, UnitSerialNumber,
    },
};

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 14 {
        0 => drop(inquiry::StandardInquiry::from_bytes(bytes)),
        1 => drop(scsi::mode::ModeParameters::from_bytes_6(bytes)),
        2 => drop(scsi::mode::ModeParameters::from_bytes_10(bytes)),
        3 => drop(SupportedPages::from_bytes(bytes)),
        4 => drop(UnitSerialNumber::from_bytes(bytes)),
        5 => drop(DeviceIdentification::from_bytes(bytes)),
        6 => drop(ExtendedInquiry::from_bytes(bytes)),
        7 => drop(BlockLimitsPage::from_bytes(bytes)),
        8 => drop(BlockDeviceCharacteristics::from_bytes(bytes)),
        9 => drop(LogicalBlockProvisioning::from_bytes(bytes)),
        10 => {
            let _ = (Capacity10::from_bytes(bytes), Capacity16::from_bytes(bytes));
        }
        11 => {
            if let Some((luns, needed)) = parse_lun_list(bytes) {
                assert!(luns.len() * 8 <= bytes.len());
                let _ = needed;
            }
            if let Ok(descriptors) = parse_unmap_list(bytes) {
                assert!(descriptors.len() * 16 <= bytes.len());
            }
        }
        12 => {
            let _ = (ClaimParameters::from_bytes(bytes), ClaimReport::from_bytes(bytes));
        }
        _ => {
            let _ = Sense::from_bytes(bytes);
        }
    }
});
