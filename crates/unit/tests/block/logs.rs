//! Tests the log pages, and the soft threshold of a thin volume.

use scsi::{
    Command, LogSelect, LogSense, ModeSense, PageControl, PrimaryCommand, Sense, log::LogPage,
    mode::ModeParameters, vpd::LogicalBlockProvisioning,
};
use unit::Settings;
use volume::{Geometry, ThinSpaceUsage};

use crate::host::{Host, geometry, pattern};

fn log_sense(page: u8, subpage: u8) -> LogSense {
    LogSense {
        save: false,
        // PC 01b requests cumulative values in LOG SENSE, but changeable values in MODE SENSE.
        control: PageControl::Changeable,
        page,
        subpage,
        first_parameter: 0,
        allocation_length: 255,
    }
}

fn page(host: &Host, page: u8, subpage: u8) -> Vec<u8> {
    host.good(&PrimaryCommand::LogSense(log_sense(page, subpage)), &[])
}

/// Returns the space usage of a volume of 100 MiB, of which `mib` MiB are in use.
fn used(mib: u64) -> Option<ThinSpaceUsage> {
    Some(ThinSpaceUsage { used: mib << 20, available: (100 - mib) << 20, shared: true })
}

#[test]
fn every_listed_log_page_is_served() {
    let host = Host::new(geometry());
    assert_eq!(page(&host, 0, 0)[4..], [0x00, 0x2f]);
    *host.calls.usage.lock() = used(30);
    assert_eq!(page(&host, 0, 0)[4..], [0x00, 0x0c, 0x2f]);
    let listed = page(&host, 0, 0xff)[4..].to_vec();
    assert_eq!(listed, [0, 0, 0, 0xff, 0x0c, 0, 0x2f, 0]);
    for pair in listed.chunks_exact(2) {
        let bytes = page(&host, pair[0], pair[1]);
        assert_eq!((bytes[0] & 0x3f, bytes[1]), (pair[0], pair[1]));
        assert_eq!(bytes.len(), 4 + usize::from(bytes[3]));
    }
}

#[test]
fn the_space_of_a_thin_volume() {
    let host = Host::new(geometry());
    *host.calls.usage.lock() = used(30);
    let log = LogPage::from_bytes(&page(&host, 0x0c, 0)).unwrap();
    let values: Vec<_> = log.parameters.iter().map(|p| (p.code, p.value[3], p.value[4])).collect();
    assert_eq!(values, [(1, 70, 2), (2, 30, 2)], "in threshold sets of 1 MiB, shared");
    let bytes = host.good(&PrimaryCommand::Inquiry { page: Some(0xb2), allocation_length: 8 }, &[]);
    assert_eq!(LogicalBlockProvisioning::from_bytes(&bytes).unwrap().threshold_exponent, 11);
    let second = LogSense { first_parameter: 2, ..log_sense(0x0c, 0) };
    assert_eq!(host.good(&PrimaryCommand::LogSense(second), &[]).len(), 4 + 12);
    let thick = Host::new(Geometry { thin: false, ..geometry() });
    *thick.calls.usage.lock() = used(30);
    let missing = PrimaryCommand::LogSense(log_sense(0x0c, 0));
    assert_eq!(thick.fails(&missing, &[]), Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn unknown_log_pages_and_values_are_refused() {
    let host = Host::new(geometry());
    let asked = log_sense(0x2f, 0);
    for wrong in [
        LogSense { page: 0x0d, ..asked },
        LogSense { subpage: 1, ..asked },
        LogSense { save: true, ..asked },
        LogSense { control: PageControl::Saved, ..asked },
        LogSense { first_parameter: 1, ..asked },
    ] {
        let sense = host.fails(&PrimaryCommand::LogSense(wrong), &[]);
        assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB, "{wrong:?}");
    }
}

#[test]
fn log_select_has_no_parameter_to_reset_or_to_set() {
    let host = Host::new(geometry());
    let asked = LogSelect {
        reset: true,
        save: false,
        control: PageControl::Changeable,
        page: 0,
        subpage: 0,
        parameter_list_length: 0,
    };
    host.good(&PrimaryCommand::LogSelect(asked), &[]);
    let list = LogSelect { reset: false, parameter_list_length: 8, ..asked };
    let sense = host.fails(&PrimaryCommand::LogSelect(list), &[0; 8]);
    assert_eq!(sense, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    for wrong in [
        LogSelect { save: true, ..asked },
        LogSelect { page: 0x0d, ..asked },
        LogSelect { parameter_list_length: 8, ..asked },
    ] {
        let sense = host.fails(&PrimaryCommand::LogSelect(wrong), &[0; 8]);
        assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB, "{wrong:?}");
    }
}

#[test]
fn a_soft_threshold_is_reported_to_every_session_once() {
    let settings = Settings { soft_threshold_percent: Some(80), ..Settings::default() };
    let host = Host::with_settings(geometry(), settings);
    let other = host.other(2);
    *host.calls.usage.lock() = used(81);
    host.good(&Command::write(0, 1, false), &pattern(1, 1));
    let told = Some(Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
    for nexus in [&host.nexus, &other] {
        assert_eq!(host.ready_as(nexus), told);
        assert_eq!(host.ready_as(nexus), None);
    }
    let asked = ModeSense {
        ten: false,
        long_lba: false,
        no_block_descriptors: true,
        control: PageControl::Current,
        page: 0x1c,
        subpage: 0x02,
        allocation_length: 255,
    };
    let bytes = host.good(&PrimaryCommand::ModeSense(asked), &[]);
    let page = &ModeParameters::from_bytes_6(&bytes).unwrap().pages[0];
    assert_eq!(page.parameters[12..], [0x81, 2, 0, 0, 0, 0, 0, 80]);
}
