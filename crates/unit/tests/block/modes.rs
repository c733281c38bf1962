//! Tests MODE SELECT: which values can be changed, the unit attention conditions for other nexuses, and saved values.

use std::sync::Arc;

use scsi::{
    Command, ModeSelect, ModeSense, PageControl, PrimaryCommand, ScsiStatus, Sense, SenseKey,
    mode::{CachingModePage, ControlModePage, ModePage, ModeParameters},
};
use unit::{LogicalUnit, TaskManagement};
use volume::{Durability, Geometry};

use crate::host::{Call, Host, MemoryStore, geometry, pattern};

fn sense(host: &Host, control: PageControl, page: u8) -> ModeParameters {
    let asked = ModeSense {
        ten: false,
        long_lba: false,
        no_block_descriptors: true,
        control,
        page,
        subpage: 0,
        allocation_length: 255,
    };
    ModeParameters::from_bytes_6(&host.good(&PrimaryCommand::ModeSense(asked), &[])).unwrap()
}

fn caching(host: &Host, control: PageControl) -> CachingModePage {
    CachingModePage::from_page(&sense(host, control, CachingModePage::PAGE).pages[0]).unwrap()
}

fn control(host: &Host, control: PageControl) -> ControlModePage {
    ControlModePage::from_page(&sense(host, control, ControlModePage::PAGE).pages[0]).unwrap()
}

fn select(list: &[u8], ten: bool, save: bool) -> Command {
    Command::Primary(PrimaryCommand::ModeSelect(ModeSelect {
        ten,
        page_format: true,
        revert: false,
        save,
        parameter_list_length: list.len() as u16,
    }))
}

fn list(pages: &[ModePage]) -> ModeParameters {
    ModeParameters { pages: pages.to_vec(), ..ModeParameters::default() }
}

fn set(host: &Host, page: ModePage, save: bool) {
    let bytes = list(&[page]).to_bytes_6();
    host.good(&select(&bytes, false, save), &bytes);
}

/// Sends a MODE SELECT with these pages, which must fail, and returns the sense data.
fn refused(host: &Host, pages: &[ModePage]) -> Sense {
    let bytes = list(pages).to_bytes_6();
    host.fails(&select(&bytes, false, false), &bytes)
}

fn write_through() -> ModePage {
    CachingModePage { write_cache: false, read_cache_disabled: false }.to_page()
}

fn protected(write_protect: bool, descriptor_sense: bool) -> ModePage {
    ControlModePage {
        descriptor_sense,
        unrestricted_reordering: true,
        write_protect,
        busy_timeout: 0xffff,
    }
    .to_page()
}

#[test]
fn a_write_cache_turned_off_makes_every_write_stable() {
    let host = Host::new(geometry());
    assert!(caching(&host, PageControl::Changeable).write_cache);
    set(&host, write_through(), false);
    assert_eq!(host.asked(), [Call::Flush], "writes answered before are stable, too");
    assert!(!caching(&host, PageControl::Current).write_cache);
    assert!(caching(&host, PageControl::Default).write_cache);
    host.asked();
    host.good(&Command::write(3, 1, false), &pattern(1, 1));
    assert_eq!(host.asked(), [Call::Write(3, 512, Durability::Stable)]);
    set(&host, CachingModePage { write_cache: true, read_cache_disabled: false }.to_page(), false);
    host.good(&Command::write(3, 1, false), &pattern(1, 1));
    assert_eq!(host.asked(), [Call::Write(3, 512, Durability::Volatile)]);
}

#[test]
fn a_volume_without_a_write_cache_has_none_to_turn_on() {
    let host = Host::new(Geometry { volatile_cache: false, ..geometry() });
    assert!(!caching(&host, PageControl::Changeable).write_cache);
    let on = CachingModePage { write_cache: true, read_cache_disabled: false }.to_page();
    assert_eq!(refused(&host, &[on]), Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    set(&host, write_through(), false);
}

#[test]
fn software_write_protect_refuses_writes_until_it_is_cleared() {
    let host = Host::new(geometry());
    assert!(control(&host, PageControl::Changeable).write_protect);
    set(&host, protected(true, false), false);
    assert!(sense(&host, PageControl::Current, 0x3f).write_protected);
    let write = Command::write(0, 1, false);
    assert_eq!(host.fails(&write, &pattern(1, 1)), Sense::WRITE_PROTECTED);
    host.good(&Command::read(0, 1), &[]);
    set(&host, protected(false, false), false);
    host.good(&write, &pattern(1, 1));
}

#[test]
fn sense_data_has_descriptor_format_on_request() {
    let host = Host::new(geometry());
    let beyond = Command::read(1 << 40, 1).encode();
    assert!(!host.send(&beyond, &[]).sense.unwrap().descriptor_format);
    set(&host, protected(false, true), false);
    let sense = host.send(&beyond, &[]).sense.unwrap();
    assert_eq!(sense.to_bytes()[0], 0x72);
    assert!(control(&host, PageControl::Current).descriptor_sense);
}

#[test]
fn a_change_of_mode_parameters_is_reported_to_the_other_sessions() {
    let host = Host::new(geometry());
    let other = host.other(2);
    set(&host, write_through(), false);
    assert_eq!(host.ready_as(&other), Some(Sense::MODE_PARAMETERS_CHANGED));
    assert_eq!(host.ready_as(&host.nexus), None);
    set(&host, write_through(), false);
    assert_eq!(host.ready_as(&other), None, "nothing changed");
}

#[test]
fn saved_values_are_those_after_a_reset_and_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    set(&host, write_through(), true);
    set(&host, protected(true, false), false);
    assert!(control(&host, PageControl::Current).write_protect);
    assert!(!caching(&host, PageControl::Saved).write_cache);
    host.unit.task_management(&host.nexus, TaskManagement::LogicalUnitReset);
    assert_eq!(host.ready_as(&host.nexus), Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
    assert!(!control(&host, PageControl::Current).write_protect, "was not saved");
    assert!(!caching(&host, PageControl::Current).write_cache);
    let again = Host::with_store(geometry(), &store);
    assert!(!caching(&again, PageControl::Current).write_cache);
    assert!(caching(&again, PageControl::Default).write_cache);
}

#[test]
fn without_a_store_no_mode_parameter_is_saved() {
    let host = Host::new(geometry());
    let asked = ModeSense {
        ten: false,
        long_lba: false,
        no_block_descriptors: false,
        control: PageControl::Saved,
        page: 0x3f,
        subpage: 0,
        allocation_length: 255,
    };
    let saved = host.fails(&PrimaryCommand::ModeSense(asked), &[]);
    assert_eq!(saved, Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
    let bytes = list(&[write_through()]).to_bytes_6();
    assert_eq!(host.fails(&select(&bytes, false, true), &bytes), Sense::INVALID_FIELD_IN_CDB);
    assert!(caching(&host, PageControl::Current).write_cache, "nothing was done");
}

#[test]
fn a_list_with_a_parameter_that_cannot_be_changed_changes_nothing() {
    let host = Host::new(geometry());
    let fixed = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
    let rcd = CachingModePage { write_cache: false, read_cache_disabled: true }.to_page();
    assert_eq!(refused(&host, std::slice::from_ref(&rcd)), fixed);
    let unknown = ModePage { code: 0x19, ..write_through() };
    assert_eq!(refused(&host, &[write_through(), unknown]), fixed);
    let short = ModePage { parameters: vec![4; 4], ..write_through() };
    assert_eq!(refused(&host, &[protected(true, false), short]), fixed);
    assert!(caching(&host, PageControl::Current).write_cache);
    assert!(!control(&host, PageControl::Current).write_protect);
    let mut changeable = 0;
    for page in sense(&host, PageControl::Changeable, 0x3f).pages {
        changeable += page.parameters.iter().map(|byte| byte.count_ones()).sum::<u32>();
    }
    assert_eq!(changeable, 3, "WCE, SWP and D_SENSE");
}

#[test]
fn mode_select_takes_both_forms_and_checks_the_block_descriptor() {
    let host = Host::new(geometry());
    let block =
        |blocks, block_size| Some(scsi::mode::BlockDescriptor { blocks, block_size, long: false });
    let with = |block| ModeParameters { block, ..list(&[write_through()]) };
    for blocks in [0, 1023, u64::from(u32::MAX)] {
        let bytes = with(block(blocks, 512)).to_bytes_10();
        host.good(&select(&bytes, true, false), &bytes);
    }
    for wrong in [block(1022, 512), block(1023, 4096)] {
        let bytes = with(wrong).to_bytes_6();
        let sense = host.fails(&select(&bytes, false, false), &bytes);
        assert_eq!(sense, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let bytes = with(None).to_bytes_6();
    let cut = host.fails(&select(&bytes[..10], false, false), &bytes[..10]);
    assert_eq!(cut, Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(host.fails(&select(&bytes, false, false), &bytes[..8]), cut, "less than announced");
    host.good(&select(&[], false, false), &[]);
}

#[test]
fn a_read_only_volume_is_not_made_writable() {
    let host = Host::new(Geometry { read_only: true, ..geometry() });
    set(&host, protected(false, false), false);
    let sense = host.fails(&Command::write(0, 1, false), &pattern(1, 1));
    assert_eq!((sense.key, sense.asc), (SenseKey::DataProtect, 0x27));
    assert_eq!(host.send(&Command::read(0, 1).encode(), &[]).status, ScsiStatus::Good);
}
