//! Tests how sessions affect each other: replacement, resets, cleared tasks, and session ends.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih,
    keys::NegotiationOffer,
    login::{InitiatorLogin, InitiatorNames},
    pdu::{AsyncEvent, LogoutReason, LogoutRequest, TaskFunction, TaskFunctionResult},
};
use scsi::Lun;
use target::Settings;
use unit::TaskManagement;

use crate::client::{Client, Stalling, TARGET, memory, server, soon, until};

async fn task_result(client: &mut Client) -> TaskFunctionResult {
    match client.receive().await {
        Some(Pdu::TaskResponse(response)) => response.result,
        pdu => panic!("{pdu:?}"),
    }
}

#[tokio::test]
async fn a_new_session_of_the_same_name_replaces_the_old_one_and_aborts_its_commands() {
    let unit = Arc::new(Stalling::default());
    let (server, address) = server(Settings::default(), unit.clone()).await;
    let mut old = Client::log_in(address, 1).await;
    old.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    let mut new = Client::log_in(address, 1).await;
    assert_eq!(unit.alive(), 0, "nothing of the old session is left when the new one is in");
    assert!(old.receive().await.is_none());
    let itt = new.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    unit.go.notify_waiters();
    assert_eq!(new.response().await.itt, itt);
    until(|| unit.nexuses.load(Ordering::SeqCst) == 1).await;
    assert_eq!(server.statistics().sessions.len(), 1);
}

#[tokio::test]
async fn aborting_a_task_cancels_its_work_in_the_unit() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    let first = client.start(&[0]).await;
    let second = client.start(&[0]).await;
    until(|| unit.alive() == 2).await;
    client.manage(TaskFunction::AbortTask, Lun(0), first).await;
    assert_eq!(task_result(&mut client).await, TaskFunctionResult::Complete);
    assert_eq!(unit.alive(), 1);
    unit.go.notify_waiters();
    assert_eq!(client.response().await.itt, second);
}

#[tokio::test]
async fn a_unit_reset_aborts_tasks_of_other_sessions_before_it_is_answered() {
    for (function, told) in [
        (TaskFunction::LogicalUnitReset, TaskManagement::LogicalUnitReset),
        (TaskFunction::ClearTaskSet, TaskManagement::ClearTaskSet),
        (TaskFunction::TargetWarmReset, TaskManagement::TargetWarmReset),
    ] {
        let unit = Arc::new(Stalling::default());
        let (_server, address) = server(Settings::default(), unit.clone()).await;
        let mut clients = [Client::log_in(address, 1).await, Client::log_in(address, 2).await];
        for client in &mut clients {
            client.start(&[0]).await;
            client.start(&[0]).await;
        }
        until(|| unit.alive() == 4).await;
        clients[0].manage(function, Lun(0), Itt::NONE).await;
        assert_eq!(task_result(&mut clients[0]).await, TaskFunctionResult::Complete);
        assert_eq!(unit.alive(), 0);
        assert_eq!(*unit.functions.lock(), [told]);
    }
}

#[tokio::test]
async fn aborting_a_task_set_leaves_other_sessions_alone() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    let mut clients = [Client::log_in(address, 1).await, Client::log_in(address, 2).await];
    for client in &mut clients {
        client.start(&[0]).await;
    }
    until(|| unit.alive() == 2).await;
    clients[0].manage(TaskFunction::AbortTaskSet, Lun(0), Itt::NONE).await;
    assert_eq!(task_result(&mut clients[0]).await, TaskFunctionResult::Complete);
    assert_eq!(unit.alive(), 1);
    unit.go.notify_waiters();
    clients[1].response().await;
}

#[tokio::test]
async fn functions_for_an_absent_unit_are_answered_with_no_lun() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    client.manage(TaskFunction::LogicalUnitReset, Lun(7 << 48), Itt::NONE).await;
    assert_eq!(task_result(&mut client).await, TaskFunctionResult::NoLun);
}

#[tokio::test]
async fn a_cold_reset_is_answered_and_ends_all_sessions() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut clients = [Client::log_in(address, 1).await, Client::log_in(address, 2).await];
    clients[0].manage(TaskFunction::TargetColdReset, Lun(0), Itt::NONE).await;
    assert_eq!(task_result(&mut clients[0]).await, TaskFunctionResult::Complete);
    for client in &mut clients {
        assert!(client.receive().await.is_none());
    }
    until(|| server.statistics().connections == 0).await;
    Client::log_in(address, 1).await.settle().await;
}

#[tokio::test]
async fn commands_of_a_disconnected_client_are_ended() {
    let unit = Arc::new(Stalling::default());
    let (server, address) = server(Settings::default(), unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    client.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    drop(client);
    until(|| unit.alive() == 0 && unit.nexuses.load(Ordering::SeqCst) == 0).await;
    until(|| server.statistics().sessions.is_empty()).await;
    assert_eq!(server.statistics().total.commands, 1);
}

async fn log_out(client: &mut Client) {
    ask_to_log_out(client).await;
    assert!(matches!(client.receive().await, Some(Pdu::LogoutResponse(_))));
    assert!(client.receive().await.is_none());
}

async fn ask_to_log_out(client: &mut Client) {
    let itt = client.next_itt();
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(LogoutReason::CloseSession),
        itt,
        cid: Cid(1),
        cmd_sn: Serial(1),
        exp_stat_sn: Serial(0),
    };
    client.send(Pdu::LogoutRequest(request)).await;
}

#[tokio::test]
async fn logout_is_answered_and_closes() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    log_out(&mut client).await;
    until(|| server.statistics().connections == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_logout_is_answered_when_the_units_have_removed_the_session() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    let slow_end = unit.slow_end.lock().await;
    let mut client = Client::log_in(address, 1).await;
    client.start(&[0]).await;
    ask_to_log_out(&mut client).await;
    assert!(matches!(client.receive().await, Some(Pdu::LogoutResponse(_))));
    assert_eq!((unit.alive(), unit.nexuses.load(Ordering::SeqCst)), (0, 0));
    drop(slow_end);
}

/// Logs in as initiator 1, but with an ISID that its first session does not have.
async fn log_in_with_another_isid(address: SocketAddr) -> Client {
    let names = InitiatorNames {
        initiator_name: "iqn.2026-11.io.forebay:initiator-1".to_owned(),
        initiator_alias: None,
        target_name: Some(TARGET.to_owned()),
    };
    let client = Client::connect(address).await;
    let isid = Isid([0x80, 0, 0, 0, 1, 1]);
    let login = InitiatorLogin::new(
        NegotiationOffer::initiator(),
        names,
        isid,
        Tsih(0),
        Cid(1),
        client.cmd_sn,
    );
    client.run(login).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_waits_until_the_units_have_removed_closed_sessions_of_its_initiator() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    for round in 0..50 {
        let slow_end = if round == 0 { Some(unit.slow_end.lock().await) } else { None };
        let mut old = Client::log_in(address, 1).await;
        old.start(&[0]).await;
        drop(old);
        let new = log_in_with_another_isid(address).await;
        assert_eq!(unit.nexuses.load(Ordering::SeqCst), 1, "only that of the new session");
        drop((slow_end, new));
        until(|| unit.nexuses.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn shutdown_requests_logout_and_ends_when_all_sessions_have_ended() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    let idle = Client::connect(address).await;
    until(|| server.statistics().connections == 2).await;
    let server = Arc::new(server);
    let stopping = server.clone();
    let shutdown = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(600)).await });
    let Some(Pdu::Async(message)) = client.receive().await else { panic!() };
    assert_eq!(message.event, AsyncEvent::LogoutRequested { time: 600 });
    log_out(&mut client).await;
    soon(shutdown).await.unwrap();
    assert_eq!(server.statistics().connections, 0);
    drop(idle);
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the portal is closed");
}

#[tokio::test]
async fn shutdown_closes_sessions_that_do_not_log_out() {
    let unit = Arc::new(Stalling::default());
    let (server, address) = server(Settings::default(), unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    client.start(&[0]).await;
    until(|| unit.alive() == 1).await;
    soon(server.shutdown(Duration::from_millis(50))).await;
    assert_eq!((unit.alive(), server.statistics().connections), (0, 0));
    for _ in ["asked to log out", "the initiator is informed that the session is dropped"] {
        assert!(matches!(client.receive().await, Some(Pdu::Async(_))));
    }
    assert!(client.receive().await.is_none());
}
