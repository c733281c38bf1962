//! Tests the bytes that INQUIRY, MODE SENSE, READ CAPACITY and REPORT SUPPORTED OPERATION CODES return.

use std::sync::Arc;

use scsi::{
    BlockCommand, Capacity10, Capacity16, Command, ModeSense, OPERATIONS, PageControl,
    PrimaryCommand, Reporting, Sense,
    inquiry::StandardInquiry,
    mode::{CachingModePage, ControlModePage, ModeParameters},
    vpd::{
        BlockDeviceCharacteristics, BlockLimitsPage, DesignatorKind, DeviceIdentification,
        ExtendedInquiry, LogicalBlockProvisioning, SupportedPages, UnitSerialNumber,
    },
};
use unit::{Settings, Share};
use volume::Geometry;

use crate::host::{Host, geometry};

fn vpd(page: u8) -> Command {
    Command::Primary(PrimaryCommand::Inquiry { page: Some(page), allocation_length: 255 })
}

fn thick() -> Geometry {
    Geometry { thin: false, ..geometry() }
}

#[test]
fn standard_inquiry_claims_a_disk() {
    let host = Host::new(geometry());
    let command = |allocation_length| {
        Command::Primary(PrimaryCommand::Inquiry { page: None, allocation_length })
    };
    let bytes = host.good(&command(255), &[]);
    let inquiry = StandardInquiry::from_bytes(&bytes).unwrap();
    assert_eq!((inquiry.qualifier, inquiry.device_type, inquiry.removable), (0, 0, false));
    assert_eq!(&inquiry.vendor, b"FOREBAY ");
    assert!(inquiry.command_queueing && !inquiry.protect);
    assert_eq!(usize::from(bytes[4]) + 5, bytes.len());
    for length in [0, 5, 36, 95] {
        assert_eq!(host.good(&command(length), &[]), bytes[..usize::from(length)]);
    }
    assert_eq!(host.good(&command(512), &[]), bytes);
}

#[test]
fn a_page_without_evpd_and_an_unknown_page_are_refused() {
    let host = Host::new(geometry());
    let sense = Sense::INVALID_FIELD_IN_CDB;
    assert_eq!(host.fails_cdb(&[0x12, 0, 1, 1, 0, 0], &[]), sense);
    assert_eq!(host.fails(&vpd(0x89), &[]), sense);
}

#[test]
fn every_listed_vpd_page_is_served() {
    let host = Host::new(geometry());
    let pages = SupportedPages::from_bytes(&host.good(&vpd(0), &[])).unwrap().0;
    assert_eq!(pages, [0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
    for page in pages {
        let bytes = host.good(&vpd(page), &[]);
        assert_eq!(bytes[1], page);
        assert_eq!(bytes.len(), 4 + usize::from(bytes[3]));
    }
}

#[test]
fn names_match_the_identity_of_the_unit() {
    let host = Host::new(geometry());
    let serial = UnitSerialNumber::from_bytes(&host.good(&vpd(0x80), &[])).unwrap();
    assert_eq!(serial.0, "f00d");
    let names = DeviceIdentification::from_bytes(&host.good(&vpd(0x83), &[])).unwrap();
    assert_eq!(names.logical_unit().unwrap().name, host.unit.identity().naa);
    let port = names.0.iter().find(|d| d.kind == DesignatorKind::ScsiNameString).unwrap();
    assert!(port.name.starts_with(b"iqn.2026-11.io.forebay:a,t,0x0001\0"));
}

#[test]
fn limits_and_provisioning_of_a_thin_volume() {
    let host = Host::new(geometry());
    let limits = BlockLimitsPage::from_bytes(&host.good(&vpd(0xb0), &[])).unwrap();
    assert_eq!((limits.maximum_blocks, limits.write_same_blocks), (32768, 32768));
    assert_eq!((limits.unmap_blocks, limits.unmap_descriptors), (131_072, 256));
    assert_eq!((limits.unmap_granularity_blocks, limits.unmap_alignment), (8, Some(0)));
    let thin = LogicalBlockProvisioning::from_bytes(&host.good(&vpd(0xb2), &[])).unwrap();
    assert!(thin.unmap && thin.write_same_10 && thin.write_same_16 && thin.reads_zeros);
    assert!(!thin.anchor);
    let medium = BlockDeviceCharacteristics::from_bytes(&host.good(&vpd(0xb1), &[])).unwrap();
    assert_eq!(medium.rotation_rate, 1);
}

#[test]
fn a_thick_volume_announces_no_unmap_anywhere() {
    let host = Host::new(thick());
    let limits = BlockLimitsPage::from_bytes(&host.good(&vpd(0xb0), &[])).unwrap();
    assert_eq!((limits.unmap_blocks, limits.unmap_descriptors), (0, 0));
    let page = LogicalBlockProvisioning::from_bytes(&host.good(&vpd(0xb2), &[])).unwrap();
    assert!(!page.unmap && !page.write_same_10 && !page.write_same_16 && !page.reads_zeros);
    let command = BlockCommand::ReadCapacity16 { allocation_length: 32 };
    let capacity = Capacity16::from_bytes(&host.good(&command, &[])).unwrap();
    assert!(!capacity.provisioning && !capacity.reads_zeros);
    let all = supported(&host, Reporting::All, false);
    assert!(!all[4..].chunks_exact(8).any(|d| d[0] == 0x42));
    assert_eq!(supported(&host, Reporting::OperationCode(0x42), false)[1] & 7, 1);
}

#[test]
fn capacity_in_both_sizes() {
    let host = Host::new(geometry());
    let short = Capacity10::from_bytes(&host.good(&BlockCommand::ReadCapacity10, &[])).unwrap();
    assert_eq!((short.last_lba, short.block_size), (1022, 512));
    let command =
        |allocation_length| Command::Block(BlockCommand::ReadCapacity16 { allocation_length });
    let bytes = host.good(&command(32), &[]);
    let long = Capacity16::from_bytes(&bytes).unwrap();
    assert_eq!((long.last_lba, long.block_size, long.physical_exponent), (1022, 512, 3));
    for length in 0..16 {
        assert_eq!(host.good(&command(length), &[]), bytes[..length as usize]);
    }
}

#[test]
fn a_volume_too_large_for_read_capacity_10() {
    let host = Host::new(Geometry::with_blocks(1 << 33));
    let short = Capacity10::from_bytes(&host.good(&BlockCommand::ReadCapacity10, &[])).unwrap();
    assert_eq!(short.last_lba, u32::MAX);
}

fn mode_sense(page: u8) -> ModeSense {
    ModeSense {
        ten: false,
        long_lba: false,
        no_block_descriptors: false,
        control: PageControl::Current,
        page,
        subpage: 0,
        allocation_length: 255,
    }
}

#[test]
fn all_mode_pages_and_one() {
    let host = Host::new(geometry());
    let six = host.good(&PrimaryCommand::ModeSense(mode_sense(0x3f)), &[]);
    assert_eq!(usize::from(six[0]) + 1, six.len());
    let all = ModeParameters::from_bytes_6(&six).unwrap();
    let codes: Vec<u8> = all.pages.iter().map(|page| page.code).collect();
    assert_eq!(codes, [0x01, 0x08, 0x0a, 0x1c]);
    assert_eq!(all.block.unwrap().blocks, 1023);
    assert!(all.dpo_fua && !all.write_protected);
    for page in &all.pages {
        let asked = ModeSense { ten: true, no_block_descriptors: true, ..mode_sense(page.code) };
        let one = host.good(&PrimaryCommand::ModeSense(asked), &[]);
        let one = ModeParameters::from_bytes_10(&one).unwrap();
        assert_eq!((one.pages, one.block), (vec![page.clone()], None));
    }
    let cut = ModeSense { allocation_length: 4, ..mode_sense(0x3f) };
    assert_eq!(host.good(&PrimaryCommand::ModeSense(cut), &[]), six[..4]);
}

#[test]
fn the_write_cache_of_the_volume_is_reported() {
    for volatile_cache in [true, false] {
        let host = Host::new(Geometry { volatile_cache, ..geometry() });
        let bytes = host.good(&PrimaryCommand::ModeSense(mode_sense(0x08)), &[]);
        let parameters = ModeParameters::from_bytes_6(&bytes).unwrap();
        let caching = CachingModePage::from_page(&parameters.pages[0]).unwrap();
        assert_eq!(caching.write_cache, volatile_cache);
        let extended = ExtendedInquiry::from_bytes(&host.good(&vpd(0x86), &[])).unwrap();
        assert_eq!(extended.volatile_cache, volatile_cache);
    }
}

#[test]
fn unknown_mode_pages_are_refused() {
    let host = Host::new(geometry());
    let missing = PrimaryCommand::ModeSense(mode_sense(0x19));
    assert_eq!(host.fails(&missing, &[]), Sense::INVALID_FIELD_IN_CDB);
    let subpage = PrimaryCommand::ModeSense(ModeSense { subpage: 1, ..mode_sense(0x0a) });
    assert_eq!(host.fails(&subpage, &[]), Sense::INVALID_FIELD_IN_CDB);
    let all = PrimaryCommand::ModeSense(ModeSense { subpage: 0xff, ..mode_sense(0x0a) });
    let parameters = ModeParameters::from_bytes_6(&host.good(&all, &[])).unwrap();
    assert!(!ControlModePage::from_page(&parameters.pages[0]).unwrap().descriptor_sense);
}

#[test]
fn a_read_only_volume_reports_write_protection() {
    let host = Host::new(Geometry { read_only: true, ..geometry() });
    let bytes = host.good(&PrimaryCommand::ModeSense(mode_sense(0x3f)), &[]);
    assert!(ModeParameters::from_bytes_6(&bytes).unwrap().write_protected);
}

#[test]
fn the_long_block_descriptor_is_returned_on_request() {
    let host = Host::new(Geometry::with_blocks(1 << 33));
    let asked = ModeSense { ten: true, long_lba: true, ..mode_sense(0x0a) };
    let bytes = host.good(&PrimaryCommand::ModeSense(asked), &[]);
    let block = ModeParameters::from_bytes_10(&bytes).unwrap().block.unwrap();
    assert_eq!((block.blocks, block.long), (1 << 33, true));
}

fn supported(host: &Host, reporting: Reporting, timeouts: bool) -> Vec<u8> {
    let allocation_length = 65535;
    let command =
        PrimaryCommand::ReportSupportedOperationCodes { reporting, timeouts, allocation_length };
    host.good(&command, &[])
}

#[test]
fn a_single_command_is_queried_with_the_reporting_option_of_its_kind() {
    // Together the two units have all optional commands.
    let with_epochs = Geometry { epoch_blocks: 800, key_erasable: true, ..geometry() };
    let alone = Host::with_store(with_epochs, &Arc::default());
    let share = Some(Share { grain_bytes: 64 << 10, lease_ms: 1000 });
    let settings = Settings { share, ..Settings::default() };
    let shared = Host::with_store_and_settings(geometry(), settings, &Arc::default());
    let refused = |host: &Host, reporting| {
        let command = PrimaryCommand::ReportSupportedOperationCodes {
            reporting,
            timeouts: false,
            allocation_length: 65535,
        };
        assert_eq!(host.fails(&command, &[]), Sense::INVALID_FIELD_IN_CDB);
    };
    for operation in OPERATIONS {
        let opcode = operation.opcode;
        // TOKEN OUT and TOKEN IN exist on the shared unit only. That unit has no epochs, so the other commands are
        // asked of the first one.
        let host = if matches!(opcode, 0xc3 | 0xc4) { &shared } else { &alone };
        let one = if let Some(action) = operation.service_action {
            refused(host, Reporting::OperationCode(opcode));
            supported(host, Reporting::ServiceAction(opcode, action), false)
        } else {
            refused(host, Reporting::ServiceAction(opcode, 0));
            supported(host, Reporting::OperationCode(opcode), false)
        };
        assert_eq!(one[1], 3);
        assert_eq!(&one[4..], operation.usage());
        let action = operation.service_action.unwrap_or(0);
        assert_eq!(supported(host, Reporting::Either(opcode, action), false), one);
    }
    let host = alone;
    assert_eq!(supported(&host, Reporting::OperationCode(0x7f), true), [0, 1, 0, 0]);
    assert_eq!(supported(&host, Reporting::ServiceAction(0x9e, 0x1f), false), [0, 1, 0, 0]);
    assert_eq!(supported(&host, Reporting::Either(0x28, 1), false), [0, 1, 0, 0]);
}

#[test]
fn exactly_the_reported_commands_are_served() {
    let host = Host::new(geometry());
    let all = supported(&host, Reporting::All, true);
    let reported: Vec<(u8, u8)> = all[4..].chunks_exact(20).map(|d| (d[0], d[3])).collect();
    for opcode in 0..=255u8 {
        for action in 0..32u8 {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (opcode, action);
            let sense = host.send(&cdb, &[]).sense;
            let has_action =
                OPERATIONS.iter().any(|o| o.opcode == opcode && o.service_action.is_some());
            let unknown = sense == Some(Sense::INVALID_COMMAND_OPERATION_CODE)
                || has_action && sense == Some(Sense::invalid_bit_in_cdb(1, 4));
            // The unit does not have REPORT LUNS, which the target answers.
            let here =
                opcode != 0xa0 && reported.contains(&(opcode, if has_action { action } else { 0 }));
            assert_eq!(!unknown, here, "{opcode:02x}/{action:02x}");
        }
    }
}
