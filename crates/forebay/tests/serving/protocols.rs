//! Compares docs/protocols.md with the code: its tables must list exactly the supported
//! commands and pages.

use std::{
    collections::BTreeSet,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use scsi::{Cdb, Lun, OPERATIONS, ScsiStatus, mode::ModeParameters};
use unit::{BlockUnit, LogicalUnit, Nexus, Settings, Task, TaskAttribute, UnitIdentity};
use volume::{FileVolume, FileVolumeOptions, Geometry, MemVolume, Stack};

const PAGE: &str = include_str!("../../../../docs/protocols.md");

/// Returns the cells of every row of the table below a heading, without the header rows.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(&format!("\n{heading}\n")).expect(heading);
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn hex(text: &str) -> u8 {
    u8::from_str_radix(text, 16).unwrap_or_else(|_| panic!("`{text}` is no code"))
}

/// Parses a table cell such as `08, 28, 9E/10, 5E/00-03` into operation codes with service actions.
fn operations(cell: &str) -> Vec<(u8, Option<u16>)> {
    let one = |text: &str| {
        let Some((opcode, actions)) = text.split_once('/') else { return vec![(hex(text), None)] };
        let (first, last) = actions.split_once('-').unwrap_or((actions, actions));
        let all = u16::from(hex(first))..=u16::from(hex(last));
        all.map(|action| (hex(opcode), Some(action))).collect()
    };
    cell.split(", ").flat_map(one).collect()
}

#[test]
fn every_operation_code_is_on_the_page_once() {
    let told: Vec<_> = table("## Commands").iter().flat_map(|row| operations(row[0])).collect();
    let served: BTreeSet<_> = OPERATIONS.iter().map(|o| (o.opcode, o.service_action)).collect();
    assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), served);
    assert_eq!(told.len(), served.len(), "none is there twice");
}

#[test]
fn every_page_of_a_unit_is_on_the_page() {
    let told = |kind: &str| {
        let rows = table("### Pages of a unit").into_iter().filter(|row| row[0] == kind);
        let code = |row: Vec<&str>| {
            let (page, subpage) = row[1].split_once('/').unwrap_or((row[1], "00"));
            (hex(page), hex(subpage))
        };
        rows.map(code).collect::<BTreeSet<_>>()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let options = FileVolumeOptions {
        create: Some(1 << 20),
        ..FileVolumeOptions::new(folder.path().join("volume"))
    };
    let file: Stack = Arc::new(FileVolume::open(&options).expect("opened"));
    let memory: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(2048)));
    let geometry = Geometry { epoch_blocks: 64, ..Geometry::with_blocks(2048) };
    let epochs: Stack = Arc::new(MemVolume::new(geometry));
    let (mut vpd, mut mode, mut log) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for volume in [file, memory, epochs] {
        let settings = Settings { soft_threshold_percent: Some(80), ..Settings::default() };
        let unit = BlockUnit::new(volume, UnitIdentity::new("f00d"), settings);
        let pages = ask(&unit, &[0x12, 1, 0, 0, 255, 0]);
        vpd.extend(pages[4..].iter().map(|page| (*page, 0)));
        let pages = ask(&unit, &[0x5a, 0x08, 0x3f, 0xff, 0, 0, 0, 4, 0, 0]);
        let pages = ModeParameters::from_bytes_10(&pages).expect("mode parameters").pages;
        mode.extend(pages.iter().map(|page| (page.code, page.subpage)));
        let pages = ask(&unit, &[0x4d, 0, 0x40, 0xff, 0, 0, 0, 4, 0, 0]);
        log.extend(pages[4..].chunks_exact(2).map(|page| (page[0] & 0x3f, page[1])));
    }
    assert_eq!(told("VPD"), vpd);
    assert_eq!(told("mode"), mode);
    assert_eq!(told("log"), log);
}

/// Executes a command that must end with status GOOD, and returns its data.
fn ask(unit: &BlockUnit, cdb: &[u8]) -> Vec<u8> {
    let nexus = Nexus {
        number: 1,
        initiator_port: Arc::from("iqn.2026-11.io.forebay:host,i,0x1"),
        target_port: 1,
    };
    let mut answer = unit.execute(Task {
        nexus,
        lun: Lun(0),
        cdb: Cdb::new(cdb),
        attribute: TaskAttribute::Simple,
        data_out: Default::default(),
        data_in_capacity: u32::MAX,
        admitted: None,
    });
    let Poll::Ready(done) =
        std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("{cdb:x?} waits");
    };
    assert_eq!(done.status, ScsiStatus::Good, "{cdb:x?}: {:?}", done.sense);
    done.data_in.into_bytes().to_vec()
}

#[test]
fn every_key_of_chap_is_on_the_page() {
    for key in ["CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"] {
        assert!(PAGE.contains(key), "{key}");
    }
}
