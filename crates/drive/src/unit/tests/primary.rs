//! Tests of the properties that the unit reports, and of its modes and reservations.

use osd::ServiceAction;
use scsi::vpd::SupportedPages;

use super::*;

#[tokio::test]
async fn inquiry_names_an_object_storage_device() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let inquiry = async |page: Option<u8>| {
        let evpd = u8::from(page.is_some());
        let cdb = [0x12, evpd, page.unwrap_or_default(), 0x10, 0, 0];
        bench.run(&cdb, Vec::new()).await
    };
    let standard = data_in(inquiry(None).await);
    assert_eq!(standard[0], 0x11);
    let descriptors: Vec<u16> = standard[58..74]
        .chunks_exact(2)
        .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
        .collect();
    assert!(descriptors.contains(&0x0440), "OSD-2");
    assert!(!descriptors.contains(&0x04c0), "SBC-3");
    let pages = SupportedPages::from_bytes(&data_in(inquiry(Some(0)).await)).unwrap().0;
    assert_eq!(pages, [0x00, 0x80, 0x83, 0x88, 0xb0, 0xb1]);
    for page in pages {
        let bytes = data_in(inquiry(Some(page)).await);
        assert_eq!((bytes[0], bytes[1]), (0x11, page));
    }
    let information = data_in(inquiry(Some(0xb0)).await);
    assert_eq!(information[4], SecurityMethod::CmdRsp as u8);
    assert_eq!(information[8..28], SYSTEM);
    assert_eq!(data_in(inquiry(Some(0xb1)).await)[4..20], bench.token());
    assert_eq!(codes(&inquiry(Some(0xb2)).await), Some((0x24, 0x00, Some(2))));
}

#[tokio::test]
async fn the_supported_operations_include_every_service_action() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let all = [0xa3, 0x0c, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let all = data_in(bench.run(&all, Vec::new()).await);
    let actions: Vec<u16> = all[4..]
        .chunks_exact(8)
        .filter(|entry| entry[0] == 0x7f)
        .map(|entry| u16::from_be_bytes([entry[2], entry[3]]))
        .collect();
    assert_eq!(actions.len(), ServiceAction::ALL.len() - 2);
    assert!(actions.contains(&0x8885) && !actions.contains(&0x8899));
    let [high, low] = 0x8885u16.to_be_bytes();
    let one = [0xa3, 0x0c, 2, 0x7f, high, low, 0, 0, 1, 0xff, 0, 0];
    let one = data_in(bench.run(&one, Vec::new()).await);
    assert_eq!(one[1] & 7, 3, "supported as in the standard");
    assert_eq!(u16::from_be_bytes([one[2], one[3]]), 236);
    assert_eq!(one.len(), 4 + 236);
}

#[tokio::test]
async fn the_unit_is_ready_and_has_mode_pages_without_block_descriptor() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    data_in(bench.run(&[0; 6], Vec::new()).await);
    let modes = data_in(bench.run(&[0x1a, 0, 0x3f, 0, 0xff, 0], Vec::new()).await);
    assert_eq!(modes[3], 0, "no block descriptor");
    let sense = data_in(bench.run(&[3, 1, 0, 0, 0xff, 0], Vec::new()).await);
    assert_eq!(sense[0], 0x72);
    assert_eq!(codes(&bench.run(&[0x28; 10], Vec::new()).await), Some((0x20, 0x00, None)));
}

#[tokio::test]
async fn a_write_protected_unit_refuses_every_change_and_still_reads() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let modes = data_in(bench.run(&[0x1a, 0, 0x0a, 0, 0xff, 0], Vec::new()).await);
    let mut select = modes;
    select[0] = 0;
    select[2] = 0;
    select[4] &= 0x3f;
    // Set SWP (software write protect) in the Control mode page.
    select[4 + 4] |= 0x08;
    let length = select.len() as u8;
    data_in(bench.run(&[0x15, 0x10, 0, 0, length, 0], select).await);
    let write = OsdCdb::new(Command::Write { object: OBJECT, length: 5, start: 0 }).encode();
    let refused = bench.run(&write, b"hello".to_vec()).await;
    assert_eq!(codes(&refused).map(|codes| codes.0), Some(0x27));
    let read = OsdCdb::new(Command::Read { object: OBJECT, length: 0, start: 0 }).encode();
    data_in(bench.run(&read, Vec::new()).await);
}

#[tokio::test]
async fn the_four_flush_commands_are_flushes() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let flushes = bench.unit.abilities().flushes.unwrap();
    for action in ServiceAction::ALL {
        let mut cdb = OsdCdb::new(Command::Remove { object: OBJECT }).encode();
        cdb[8..10].copy_from_slice(&(*action as u16).to_be_bytes());
        assert_eq!(flushes.is_flush(&cdb), action.name().starts_with("FLUSH"), "{action:?}");
    }
    assert!(!flushes.is_flush(&[0x35; 10]));
    let mut listed = OsdCdb::new(Command::FlushOsd { scope: object::FlushScope::AttributesOnly });
    let id = object::AttributeId::new(1, 9);
    listed.attributes = osd::AttributeParameters::SetOne { id, length: 0, value: [0; 18] };
    assert!(!flushes.is_flush(&listed.encode()), "it has data");
}

#[tokio::test]
async fn a_reservation_of_another_nexus_excludes_object_commands() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let other = nexus(2);
    bench.unit.nexus_opened(&other);
    let reserve = |cdb: &[u8]| Task { nexus: other.clone(), ..bench.task(cdb, Vec::new()) };
    let _ = bench.unit.execute(reserve(&[0; 6])).await;
    data_in(bench.unit.execute(reserve(&[0x16, 0, 0, 0, 0, 0])).await);
    let read = OsdCdb::new(Command::Read { object: OBJECT, length: 0, start: 0 }).encode();
    let completion = bench.run(&read, Vec::new()).await;
    assert_eq!(completion.status, ScsiStatus::ReservationConflict);
}

#[tokio::test]
async fn a_command_of_spc_in_a_command_returns_its_data_or_its_sense() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let perform = async |inner: &[u8]| {
        let mut cdb = [0; 16];
        cdb[..inner.len()].copy_from_slice(inner);
        let cdb = bench.cdb(Command::PerformScsiCommand { cdb }).encode();
        bench.run(&cdb, Vec::new()).await
    };
    let inquiry = [0x12, 0, 0, 0, 36, 0];
    let alone = data_in(bench.run(&inquiry, Vec::new()).await);
    assert_eq!(alone.len(), 36);
    assert_eq!(data_in(perform(&inquiry).await), alone);
    assert!(data_in(perform(&[0; 6]).await).is_empty());
    assert_eq!(codes(&perform(&[0x12, 1, 0xb2, 0, 36, 0]).await).map(|codes| codes.0), Some(0x24));
    let mode_select = [0x55, 0x10, 0, 0, 0, 0, 0, 0, 8, 0];
    assert_eq!(codes(&perform(&mode_select).await), Some((0x24, 0x00, Some(32))));
    let reserve = [0x16, 0, 0, 0, 0, 0];
    assert_eq!(codes(&perform(&reserve).await), Some((0x24, 0x00, Some(32))));
}
