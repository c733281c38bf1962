//! Tests sessions with several connections on real sockets: connections join, are lost, stall and are reinstated.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use iscsi::{
    Cid, Itt, Pdu, Serial, Tsih,
    keys::NegotiationOffer,
    pdu::{
        AsyncEvent, LoginStatus, LogoutReason, LogoutRequest, LogoutResult, TaskFunction,
        TaskFunctionResult, TaskRequest,
    },
};
use parking_lot::Mutex;
use scsi::{AdmittedCommand, Cdb, Lun, Sense};
use target::{Settings, TargetServer};
use unit::{Completion, LogicalUnit, Nexus, Task, TaskManagement, UnitAbilities, UnitReply};

use crate::client::{Client, Stalling, TARGET, memory, refused, server, soon, until};

fn offer(level: u8) -> NegotiationOffer {
    NegotiationOffer {
        max_connections: 2,
        error_recovery_level: level,
        ..NegotiationOffer::initiator()
    }
}

async fn leading(address: SocketAddr, level: u8) -> Client {
    Client::try_log_in(address, 1, offer(level), Tsih(0), Some(TARGET)).await.unwrap()
}

async fn join(address: SocketAddr, leading: &Client, level: u8, cid: u16) -> Client {
    leading.try_join(address, 1, offer(level), Cid(cid)).await.unwrap()
}

async fn log_out_for_recovery(client: &mut Client, cid: Cid) {
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(LogoutReason::RemoveConnectionForRecovery),
        itt: client.next_itt(),
        cid,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: client.exp_stat_sn,
    };
    client.send(Pdu::LogoutRequest(request)).await;
    match client.receive().await {
        Some(Pdu::LogoutResponse(answer)) => assert_eq!(answer.result, LogoutResult::Closed),
        pdu => panic!("{pdu:?}"),
    }
}

async fn reassign(client: &mut Client, meant: Itt) -> TaskFunctionResult {
    let request = TaskRequest {
        immediate: true,
        function: Ok(TaskFunction::TaskReassign),
        lun: Lun(0),
        itt: client.next_itt(),
        referenced_itt: meant,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: client.exp_stat_sn,
        ref_cmd_sn: client.cmd_sn,
        exp_data_sn: 0,
    };
    client.send(Pdu::TaskRequest(request)).await;
    match client.receive().await {
        Some(Pdu::TaskResponse(response)) => response.result,
        pdu => panic!("{pdu:?}"),
    }
}

async fn expect_drop(client: &mut Client, cid: Cid) {
    match client.receive().await {
        Some(Pdu::Async(message)) => assert!(
            matches!(message.event, AsyncEvent::ConnectionDropped { cid: dropped, .. } if dropped == cid)
        ),
        pdu => panic!("{pdu:?}"),
    }
}

fn read_10(lba: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    let [high, low] = blocks.to_be_bytes();
    [0x28, 0, a, b, c, d, 0, high, low, 0]
}

#[tokio::test]
async fn two_connections_share_one_session() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut first = leading(address, 0).await;
    first.settle().await;
    let mut second = join(address, &first, 0, 2).await;
    second.settle().await;
    first.cmd_sn = second.cmd_sn;
    first.settle().await;
    let statistics = server.statistics();
    assert_eq!((statistics.sessions.len(), statistics.connections), (1, 2));
    let session = &statistics.sessions[0];
    let cids: Vec<u16> = session.connections.iter().map(|connection| connection.cid).collect();
    assert_eq!(cids, [1, 2]);
    let commands = session.connections.iter().map(|connection| connection.counters.commands);
    assert_eq!(commands.sum::<u64>(), session.counters.commands);
    let refusal = first.try_join(address, 1, offer(0), Cid(3)).await.err().unwrap();
    assert_eq!(refused(refusal), LoginStatus::TooManyConnections);
    first.tsih = Tsih(first.tsih.0 ^ 0x5555);
    let refusal = first.try_join(address, 1, offer(0), Cid(3)).await.err().unwrap();
    assert_eq!(refused(refusal), LoginStatus::SessionDoesNotExist);
    // The connection that was refused is not counted among the open connections.
    until(|| server.statistics().connections == 2).await;
    second.cmd_sn = first.cmd_sn;
    second.settle().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_ends_its_own_commands_only() {
    let unit = Arc::new(Stalling::default());
    let (server, address) = server(Settings::default(), unit.clone()).await;
    let mut first = leading(address, 0).await;
    let mut second = join(address, &first, 0, 2).await;
    let kept = first.start(&[0]).await;
    second.cmd_sn = first.cmd_sn;
    second.start(&[0]).await;
    until(|| unit.alive() == 2).await;
    drop(second);
    until(|| unit.alive() == 1).await;
    expect_drop(&mut first, Cid(2)).await;
    let told = Sense::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT;
    assert_eq!(*unit.attentions.lock(), [told], "RFC 7143, 11.14.5");
    unit.go.notify_waiters();
    assert_eq!(first.response().await.itt, kept);
    assert_eq!(server.statistics().sessions.len(), 1);
    assert_eq!(unit.nexuses.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_command_outlives_its_connection_and_is_answered_on_another() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    let mut first = leading(address, 2).await;
    let mut second = join(address, &first, 2, 2).await;
    let itt = second.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    drop(second);
    expect_drop(&mut first, Cid(2)).await;
    first.cmd_sn = first.cmd_sn.next();
    assert_eq!(reassign(&mut first, itt).await, TaskFunctionResult::StillAllegiant);
    log_out_for_recovery(&mut first, Cid(2)).await;
    assert_eq!(reassign(&mut first, itt).await, TaskFunctionResult::Complete);
    assert_eq!(unit.alive(), 1, "it was never interrupted");
    unit.go.notify_waiters();
    assert_eq!(first.response().await.itt, itt);
}

/// A server with a session that has lost its only connection during a command.
struct Waiting {
    server: TargetServer,
    address: SocketAddr,
    unit: Arc<Stalling>,
    tsih: Tsih,
    cmd_sn: Serial,
    itt: Itt,
}

async fn waiting() -> Waiting {
    let unit = Arc::new(Stalling::default());
    let (server, address) = server(Settings::default(), unit.clone()).await;
    let mut only = leading(address, 2).await;
    let itt = only.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    let (tsih, cmd_sn) = (only.tsih, only.cmd_sn);
    drop(only);
    until(|| server.statistics().connections == 0).await;
    assert_eq!(server.statistics().sessions.len(), 1);
    Waiting { server, address, unit, tsih, cmd_sn, itt }
}

#[tokio::test]
async fn the_only_connection_may_be_restored_within_its_time() {
    let Waiting { server: _server, address, unit, tsih, cmd_sn, itt } = waiting().await;
    let mut again = Client::connect(address).await;
    (again.tsih, again.cmd_sn) = (tsih, cmd_sn);
    let mut again = again.try_join(address, 1, offer(2), Cid(1)).await.unwrap();
    assert_eq!(reassign(&mut again, itt).await, TaskFunctionResult::Complete);
    unit.go.notify_waiters();
    assert_eq!(again.response().await.itt, itt);
}

#[tokio::test]
async fn a_session_that_waits_for_a_connection_does_not_delay_shutdown() {
    let Waiting { server, unit, .. } = waiting().await;
    soon(server.shutdown(Duration::from_millis(20))).await;
    assert_eq!((unit.alive(), server.statistics().sessions.len()), (0, 0));
}

#[tokio::test]
async fn a_new_session_replaces_one_of_its_name_that_waits_for_a_connection() {
    let Waiting { server, address, unit, .. } = waiting().await;
    let _second = leading(address, 2).await;
    assert_eq!(unit.alive(), 0);
    assert_eq!(server.statistics().sessions.len(), 1);
}

#[tokio::test]
async fn answers_in_flight_on_a_cut_connection_arrive_on_the_other_one() {
    const READS: u32 = 64;
    const BLOCKS: u16 = 128;
    let (server, address) = server(Settings::default(), memory()).await;
    let mut first = leading(address, 2).await;
    first.settle().await;
    let length = u32::from(BLOCKS) * 512;
    let pattern = |lba: u32| -> Vec<u8> {
        (0..length).map(|at| ((at >> 9) + lba).wrapping_mul(37) as u8 ^ at as u8).collect()
    };
    for n in 0..READS {
        let lba = n * u32::from(BLOCKS);
        let mut cdb = read_10(lba, BLOCKS);
        cdb[0] = 0x2a;
        let mut command = first.command(&cdb, length);
        (command.read, command.write) = (false, true);
        command.data = pattern(lba).into();
        assert_eq!(first.read(command).await.0, 0);
    }
    let mut second = join(address, &first, 2, 2).await;
    let before = server.statistics().total.commands;
    let mut asked = Vec::new();
    for n in 0..READS {
        let command = second.command(&read_10(n * u32::from(BLOCKS), BLOCKS), length);
        asked.push((command.itt, n * u32::from(BLOCKS)));
        second.send(Pdu::ScsiCommand(command)).await;
    }
    // Receive half of the responses, and then lose the connection.
    let mut arrived = 0;
    while arrived < READS / 2 {
        if let Some(Pdu::DataIn(data_in)) = second.receive().await {
            arrived += u32::from(data_in.status.is_some());
        }
    }
    until(|| server.statistics().total.commands == before + u64::from(READS)).await;
    first.cmd_sn = second.cmd_sn;
    drop(second);
    expect_drop(&mut first, Cid(2)).await;
    log_out_for_recovery(&mut first, Cid(2)).await;
    for (itt, lba) in asked.into_iter().skip(arrived as usize) {
        assert_eq!(reassign(&mut first, itt).await, TaskFunctionResult::Complete);
        let (status, data) = first.answer(itt).await;
        assert_eq!(status, 0);
        assert!(data == pattern(lba), "the data of block {lba}");
    }
    first.settle().await;
}

#[tokio::test]
async fn a_connection_whose_initiator_does_not_read_blocks_no_other() {
    let settings = Settings { output_bytes: 65_536, ..Settings::default() };
    let (_server, address) = server(settings, memory()).await;
    let mut first = leading(address, 0).await;
    first.settle().await;
    let mut second = join(address, &first, 0, 2).await;
    // Read much more data than the socket buffers of both ends hold, so that the responses cannot all be sent.
    for _ in 0..100 {
        let command = second.command(&read_10(0, 2048), 1 << 20);
        second.send(Pdu::ScsiCommand(command)).await;
    }
    // The connections share the command window. The commands of the other connection that are not finished occupy a
    // part of it; the rest must be enough for this connection.
    first.cmd_sn = second.cmd_sn;
    let mut served = 0;
    while served < 20 {
        let command = first.command(&[0], 0);
        assert_eq!(first.read(command).await.0, 0);
        served += 1;
    }
}

/// A unit in memory that records the operation codes of its commands in the order of their arrival.
struct Noting {
    unit: Arc<dyn LogicalUnit>,
    came: Mutex<Vec<u8>>,
}

impl LogicalUnit for Noting {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        self.came.lock().push(task.cdb[0]);
        self.unit.execute(task)
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        length: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        self.unit.admit(nexus, cdb, length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.unit.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.unit.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.unit.nexus_closed(nexus);
    }

    fn abilities(&self) -> UnitAbilities<'_> {
        self.unit.abilities()
    }
}

/// The target delays the commands of a connection whose initiator does not read its responses. But the target must not
/// delay a flush: later writes on another connection would be performed first, and the flush would end an epoch that
/// holds a part of the next epoch.
#[tokio::test]
async fn a_flush_is_not_delayed_behind_answers_that_are_not_read() {
    const FLUSH: u8 = 0x35;
    let unit = Arc::new(Noting { unit: memory(), came: Mutex::default() });
    let settings = Settings { output_bytes: 65_536, ..Settings::default() };
    let (_server, address) = server(settings, unit.clone()).await;
    let mut first = leading(address, 0).await;
    first.settle().await;
    let mut second = join(address, &first, 0, 2).await;
    for _ in 0..100 {
        let command = second.command(&read_10(0, 2048), 1 << 20);
        second.send(Pdu::ScsiCommand(command)).await;
    }
    let flush = second.command(&[FLUSH, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    second.send(Pdu::ScsiCommand(flush)).await;
    first.cmd_sn = second.cmd_sn;
    let later = first.command(&[0], 0);
    assert_eq!(first.read(later).await.0, 0);
    let came = unit.came.lock().clone();
    let reads = came.iter().filter(|opcode| **opcode == 0x28).count();
    assert!(reads < 100, "some are held back");
    let at = |wanted: u8| came.iter().rposition(|opcode| *opcode == wanted);
    assert!(at(FLUSH).is_some() && at(FLUSH) < at(0), "{came:x?}");
}

#[tokio::test]
async fn a_server_that_stops_announces_that_on_every_connection() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut first = leading(address, 0).await;
    let mut second = join(address, &first, 0, 2).await;
    soon(server.shutdown(Duration::from_millis(20))).await;
    for client in [&mut first, &mut second] {
        let events: Vec<AsyncEvent> = [client.receive().await, client.receive().await]
            .into_iter()
            .map(|pdu| match pdu {
                Some(Pdu::Async(message)) => message.event,
                pdu => panic!("{pdu:?}"),
            })
            .collect();
        assert_eq!(events[0], AsyncEvent::LogoutRequested { time: 1 });
        assert!(matches!(events[1], AsyncEvent::SessionDropped { time2retain: 0, .. }));
        assert!(client.receive().await.is_none());
    }
}

/// Regression: waiting sessions held their limits, tasks and responses for up to two hours, and there could
/// be as many as TSIHs.
#[tokio::test]
async fn sessions_that_wait_for_their_initiators_are_bounded() {
    let unit = Arc::new(Stalling::default());
    let settings = Settings { max_connections: 8, ..Settings::default() };
    let (server, address) = server(settings, unit.clone()).await;
    let abandon = async |who: u8| {
        let tasks = unit.alive();
        let mut client =
            Client::try_log_in(address, who, offer(2), Tsih(0), Some(TARGET)).await.unwrap();
        client.start(&[0]).await;
        until(|| unit.alive() == tasks + 1).await;
        let seen = (client.tsih, client.cmd_sn);
        let connections = server.statistics().connections;
        drop(client);
        until(|| server.statistics().connections == connections - 1).await;
        seen
    };
    let names = || -> Vec<String> {
        let sessions = server.statistics().sessions.into_iter();
        sessions.map(|session| session.initiator_name[33..].to_owned()).collect()
    };
    abandon(1).await;
    let second = abandon(2).await;
    assert_eq!(names(), ["1", "2"]);
    abandon(3).await;
    until(|| names() == ["2", "3"] && unit.alive() == 2).await;
    // The session that gets its connection back does not wait any more, so it is not closed for the newer ones.
    let mut again = Client::connect(address).await;
    (again.tsih, again.cmd_sn) = second;
    let _again = again.try_join(address, 2, offer(2), Cid(1)).await.unwrap();
    abandon(4).await;
    assert_eq!(names(), ["2", "3", "4"]);
    abandon(5).await;
    until(|| names() == ["2", "4", "5"] && unit.alive() == 3).await;
}
