//! Tests limits and time-outs of logins, invalid login data and invalid names.

use std::{io::ErrorKind, time::Duration};

use iscsi::{
    Itt, Pdu, Tsih, Ttt,
    keys::NegotiationOffer,
    pdu::{LoginStatus, NopOut},
};
use scsi::Lun;
use target::{Settings, Target, TargetError, TargetServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{Client, TARGET, memory, refused, server, soon, until};

/// Reads until the target closes the connection.
pub async fn closed(client: &mut Client) {
    let mut buffer = [0; 1024];
    loop {
        match soon(client.socket().read(&mut buffer)).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_connection_that_does_not_log_in_is_closed_and_counted() {
    let mut settings = Settings::default();
    settings.session.login_time = Duration::from_millis(100);
    let (server, address) = server(settings, memory()).await;
    let mut silent = Client::connect(address).await;
    let mut half = Client::connect(address).await;
    half.socket().write_all(&[0x43, 0x87, 0, 0, 0, 0, 0, 100]).await.unwrap();
    closed(&mut silent).await;
    closed(&mut half).await;
    until(|| server.statistics().failed_logins == 2).await;
    assert_eq!(server.statistics().logins_in_progress, 0);
}

#[tokio::test]
async fn connections_before_login_are_limited_and_logged_in_ones_are_not_counted() {
    let settings = Settings { max_logins: 2, ..Settings::default() };
    let (server, address) = server(settings, memory()).await;
    let mut inside = Client::log_in(address, 1).await;
    inside.settle().await;
    let waiting = [Client::connect(address).await, Client::connect(address).await];
    until(|| server.statistics().logins_in_progress == 2).await;
    let [mut longest, _other] = waiting;
    let third = Client::connect(address).await;
    closed(&mut longest).await;
    until(|| server.statistics().displaced_connections == 1).await;
    assert_eq!(server.statistics().logins_in_progress, 2);
    inside.settle().await;
    drop(third);
}

#[tokio::test]
async fn connections_in_all_are_limited() {
    let settings = Settings { max_connections: 1, ..Settings::default() };
    let (server, address) = server(settings, memory()).await;
    let first = Client::log_in(address, 1).await;
    let second =
        Client::try_log_in(address, 2, NegotiationOffer::initiator(), Tsih(0), Some(TARGET)).await;
    assert_eq!(refused(second.err().unwrap()), LoginStatus::OutOfResources);
    assert_eq!(server.statistics().refused_connections, 1);
    // The limit does not refuse a login that replaces a session of the same name.
    let again = Client::log_in(address, 1).await;
    drop((first, again));
    until(|| server.statistics().connections == 0).await;
    Client::log_in(address, 2).await.settle().await;
}

#[tokio::test]
async fn garbage_closes_its_own_connection_only() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: example\r\n\r\n................................"[..],
        &[0xff; 5000],
        &[0; 48],
    ] {
        let mut client = Client::connect(address).await;
        // Ignore errors: the target may close the connection before the test has written all bytes.
        let _ = client.socket().write_all(garbage).await;
        closed(&mut client).await;
    }
    until(|| server.statistics().failed_logins == 3).await;
    good.settle().await;
}

#[tokio::test]
async fn a_first_pdu_that_is_no_login_closes_the_connection_without_an_answer() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::connect(address).await;
    let nop = NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(1),
        ttt: Ttt::NONE,
        cmd_sn: iscsi::Serial(1),
        exp_stat_sn: iscsi::Serial(1),
        data: Default::default(),
    };
    client.send(Pdu::NopOut(nop)).await;
    assert!(client.receive().await.is_none());
}

#[tokio::test]
async fn names_that_are_not_served_are_refused() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let unknown = Some("iqn.2026-11.io.forebay:other");
    for (tsih, target, status) in [
        (Tsih(0), unknown, LoginStatus::NotFound),
        (Tsih(9), Some(TARGET), LoginStatus::SessionDoesNotExist),
    ] {
        let login =
            Client::try_log_in(address, 1, NegotiationOffer::initiator(), tsih, target).await;
        assert_eq!(refused(login.err().unwrap()), status);
    }
}

#[tokio::test]
async fn discovery_names_the_portal_that_was_queried() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut client =
        Client::try_log_in(address, 1, NegotiationOffer::initiator(), Tsih(0), None).await.unwrap();
    let text = client.send_targets("All").await;
    assert_eq!(text, format!("TargetName={TARGET}\0TargetAddress={address},1\0"));
}

#[test]
fn an_invalid_target_is_refused_with_an_error_that_names_it() {
    let target = |name: &str, luns: &[u16]| {
        Target::new(name, luns.iter().map(|lun| (*lun, memory())).collect())
    };
    let check = |targets, error| {
        assert_eq!(TargetServer::new(Settings::default(), targets).err(), Some(error));
    };
    check(vec![target("disk", &[0])], TargetError::Name("disk".into()));
    check(vec![target("iqn.Big", &[0])], TargetError::Name("iqn.Big".into()));
    check(vec![target("iqn.a", &[]), target("iqn.a", &[])], TargetError::Twice("iqn.a".into()));
    for luns in [[1, 1], [0, 16_384]] {
        let error = TargetError::Unit { name: "iqn.a".into(), lun: luns[1] };
        check(vec![target("iqn.a", &luns)], error);
    }
}
