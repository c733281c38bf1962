//! Tests adding and removing units of a target while sessions use it.

use std::sync::Arc;

use iscsi::{
    Itt, Pdu,
    pdu::{TaskFunction, TaskFunctionResult},
};
use scsi::{Lun, Sense};
use target::{Portal, PortalGroup, Settings, Target, TargetServer};
use unit::{BlockUnit, LogicalUnit, UnitIdentity};
use volume::{Geometry, MemVolume};

use crate::client::{Client, LOOPBACK, Stalling, TARGET, memory, until};

const READY: [u8; 1] = [0];
const REPORT_TARGET_PORT_GROUPS: [u8; 12] = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

type Units = Vec<(u16, Arc<dyn LogicalUnit>)>;

fn lun(number: u16) -> Lun {
    Lun::from_number(number).unwrap()
}

fn disk(serial: &str) -> Arc<dyn LogicalUnit> {
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(4096)));
    Arc::new(BlockUnit::new(volume, UnitIdentity::new(serial), unit::Settings::default()))
}

async fn serve(units: Units) -> (TargetServer, std::net::SocketAddr) {
    let server = TargetServer::new(Settings::default(), vec![Target::new(TARGET, units)]).unwrap();
    let address = server.listen(LOOPBACK).await.unwrap();
    (server, address)
}

async fn change(server: &TargetServer, units: Units) {
    assert_eq!(server.change(Target::new(TARGET, units)).await, Ok(true));
}

impl Client {
    /// Returns the sense data of a command without data at this unit; `None` for GOOD.
    async fn try_at(&mut self, number: u16, cdb: &[u8]) -> Option<Sense> {
        let mut command = self.command(cdb, 0);
        command.lun = lun(number);
        self.send(Pdu::ScsiCommand(command)).await;
        let response = self.response().await;
        if response.status == 0 {
            return None;
        }
        Some(Sense::from_bytes(&response.sense).expect("sense data"))
    }

    async fn is_ready(&mut self, number: u16) -> Result<(), Sense> {
        self.try_at(number, &READY).await.map_or(Ok(()), Err)
    }

    async fn luns(&mut self) -> Vec<u8> {
        let command = self.command(&REPORT_LUNS, 256);
        let (status, data) = self.read(command).await;
        assert_eq!(status, 0);
        data[8..].chunks(8).map(|lun| lun[1]).collect()
    }

    /// Takes the unit attention conditions of a new nexus.
    async fn greet(&mut self, numbers: &[u16]) {
        for number in numbers {
            assert_eq!(self.is_ready(*number).await, Err(Sense::POWER_ON_OCCURRED));
        }
    }
}

#[tokio::test]
async fn sessions_stay_and_receive_a_change_of_units_once() {
    let (first, second) = (disk("first"), disk("second"));
    let (server, address) = serve(vec![(0, first.clone()), (1, second.clone())]).await;
    let mut asks = Client::log_in(address, 1).await;
    let mut lists = Client::log_in(address, 2).await;
    for client in [&mut asks, &mut lists] {
        client.greet(&[0, 1]).await;
    }
    change(&server, vec![(0, first.clone()), (1, second.clone()), (3, disk("third"))]).await;
    // The first unit that is used reports the change, and the others do not (SPC-4, 6.33).
    assert_eq!(asks.is_ready(1).await, Err(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
    assert_eq!(asks.is_ready(1).await, Ok(()));
    assert_eq!(asks.is_ready(0).await, Ok(()));
    assert_eq!(asks.luns().await, [0, 1, 3]);
    // The new unit has its own unit attention condition for the session, like any unit.
    asks.greet(&[3]).await;
    assert_eq!(asks.is_ready(3).await, Ok(()));
    // An initiator that has requested the list gets no unit attention condition.
    assert_eq!(lists.luns().await, [0, 1, 3]);
    assert_eq!(lists.is_ready(0).await, Ok(()));
    assert_eq!(lists.is_ready(1).await, Ok(()));

    change(&server, vec![(0, first.clone()), (1, second)]).await;
    assert_eq!(asks.is_ready(3).await, Err(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    assert_eq!(asks.is_ready(0).await, Err(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
    assert_eq!(asks.is_ready(0).await, Ok(()));
    assert_eq!(asks.luns().await, [0, 1]);
    assert_eq!(lists.is_ready(1).await, Err(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
    // Replace the target by one with another alias but the same units: this raises no unit attention condition.
    assert_eq!(server.statistics().opened_sessions, 2);
    let same = Target { alias: Some("other".into()), ..Target::new(TARGET, vec![(0, first)]) };
    change(&server, same.units.clone()).await;
    assert_eq!(asks.is_ready(0).await, Err(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
    assert_eq!(server.change(same).await, Ok(true));
    assert_eq!(asks.is_ready(0).await, Ok(()));
}

#[tokio::test]
async fn commands_of_a_removed_unit_end_and_others_continue() {
    let (stays, goes) = (Arc::new(Stalling::default()), Arc::new(Stalling::default()));
    let (server, address) = serve(vec![(0, stays.clone()), (1, goes.clone())]).await;
    let mut client = Client::log_in(address, 1).await;
    let here = client.start(&READY).await;
    let mut command = client.command(&READY, 0);
    (command.lun, command.itt) = (lun(1), Itt(77));
    client.send(Pdu::ScsiCommand(command)).await;
    until(|| stays.alive() == 1 && goes.alive() == 1).await;

    let weak = Arc::downgrade(&goes);
    let alive = goes.alive.clone();
    drop(goes);
    change(&server, vec![(0, stays.clone())]).await;
    assert!(weak.upgrade().is_none(), "no session holds the unit any more");
    assert_eq!(alive.load(std::sync::atomic::Ordering::SeqCst), 0);
    let response = client.response().await;
    assert_eq!((response.itt, response.status), (Itt(77), 2));
    assert_eq!(Sense::from_bytes(&response.sense), Some(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    assert_eq!(stays.alive(), 1);
    stays.go.notify_waiters();
    assert_eq!(client.response().await.itt, here);
    client.manage(TaskFunction::LogicalUnitReset, lun(1), Itt::NONE).await;
    match client.receive().await {
        Some(Pdu::TaskResponse(response)) => assert_eq!(response.result, TaskFunctionResult::NoLun),
        pdu => panic!("{pdu:?}"),
    }
}

/// A write for one disk must not be executed by another one that has taken over its LUN.
#[tokio::test]
async fn a_write_in_progress_is_not_performed_by_the_unit_that_replaces_its_unit() {
    let other = disk("other");
    let (server, address) = serve(vec![(0, memory()), (1, disk("gone"))]).await;
    let mut client = Client::log_in(address, 1).await;
    client.greet(&[0, 1]).await;
    let mut write = client.command(&[0x2a, 0, 0, 0, 0, 0, 0, 2, 0, 0], 512 * 512);
    (write.read, write.write, write.lun) = (false, true, lun(1));
    let itt = write.itt;
    client.send(Pdu::ScsiCommand(write)).await;
    let Some(Pdu::ReadyToTransfer(r2t)) = client.receive().await else { panic!("no R2T") };
    change(&server, vec![(0, memory()), (1, other.clone())]).await;
    client.greet(&[1]).await;
    client.send(Pdu::DataOut(client.data_out(&r2t, vec![7; 512 * 512]))).await;
    let response = client.response().await;
    assert_eq!(response.itt, itt);
    assert_eq!(Sense::from_bytes(&response.sense), Some(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    client.luns().await;
    let mut read = client.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512);
    read.lun = lun(1);
    assert_eq!(client.read(read).await, (0, vec![0; 512]));
}

const IN_SEVEN: PortalGroup = PortalGroup { number: 1, tag: 7 };

/// Reads a big-endian number of two bytes at each position in `at`.
fn numbers(bytes: &[u8], at: impl IntoIterator<Item = usize>) -> Vec<u16> {
    at.into_iter().map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]])).collect()
}

impl Client {
    /// Returns the number and the group of the target port that answers, and the numbers of all ports as VPD page 88h
    /// and REPORT TARGET PORT GROUPS list them.
    async fn ports(&mut self) -> (u16, u16, Vec<u16>, Vec<u16>) {
        let command = self.command(&[0x12, 1, 0x83, 1, 0], 256);
        let (_, page) = self.read(command).await;
        let mut names = &page[4..];
        let (mut port, mut group) = (0, 0);
        while names.len() >= 4 {
            let length = usize::from(names[3]);
            match names[1] & 0x0f {
                4 => port = u16::from_be_bytes([names[6], names[7]]),
                5 => group = u16::from_be_bytes([names[6], names[7]]),
                _ => {}
            }
            names = &names[4 + length..];
        }
        let command = self.command(&[0x12, 1, 0x88, 1, 0], 256);
        let (_, page) = self.read(command).await;
        let (mut at, mut listed) = (4, Vec::new());
        while at < page.len() {
            listed.extend(numbers(&page, [at + 2]));
            at += 12 + usize::from(numbers(&page, [at + 10])[0]);
        }
        let command = self.command(&REPORT_TARGET_PORT_GROUPS, 256);
        let (status, groups) = self.read(command).await;
        assert_eq!((status, numbers(&groups, [6])[0]), (0, group), "the only group");
        let count = usize::from(groups[11]);
        assert_eq!(groups.len(), 12 + 4 * count);
        (port, group, listed, numbers(&groups, (0..count).map(|port| 14 + 4 * port)))
    }
}

#[tokio::test]
async fn a_unit_names_the_queried_port_and_all_ports_of_its_target() {
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(4096)));
    let identity = UnitIdentity::new("ports").with_target(TARGET);
    let unit: Arc<dyn LogicalUnit> =
        Arc::new(BlockUnit::new(volume, identity, unit::Settings::default()));
    let target = |groups: &[PortalGroup]| Target {
        groups: groups.to_vec(),
        ..Target::new(TARGET, vec![(0, unit.clone())])
    };
    let both = target(&[IN_SEVEN, PortalGroup::default()]);
    let server = TargetServer::new(Settings::default(), vec![both]).unwrap();
    let one = server.listen(LOOPBACK).await.unwrap();
    let seven = Portal { group: IN_SEVEN, ..LOOPBACK.into() };
    let seven = server.open_portal(seven).await.unwrap();
    let mut first = Client::log_in(one, 1).await;
    let mut other = Client::log_in(seven, 1).await;
    for (client, port) in [(&mut first, 1), (&mut other, 7)] {
        client.greet(&[0]).await;
        assert_eq!(client.ports().await, (port, 1, vec![1, 7], vec![1, 7]));
    }
    // Change the groups of the target. A session that came through the removed group still reports its own port.
    assert_eq!(server.change(target(&[IN_SEVEN])).await, Ok(true));
    assert_eq!(other.ports().await, (7, 1, vec![7], vec![7]));
    assert_eq!(first.ports().await, (1, 1, vec![1, 7], vec![1, 7]));
}
