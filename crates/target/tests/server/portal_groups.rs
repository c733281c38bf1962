//! Tests servers with several targets, portals and portal groups: which targets each portal shows, and changes at run
//! time.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use iscsi::{
    Isid, Pdu, Serial, Tsih,
    keys::NegotiationOffer,
    login::{InitiatorLogin, InitiatorNames, InitiatorStep},
    pdu::{AsyncEvent, LoginStatus},
};
use scsi::Lun;
use target::{Portal, PortalGroup, Redirect, Settings, Target, TargetServer};

use unit::{BlockUnit, UnitIdentity};
use volume::{FileVolume, FileVolumeOptions};

use crate::client::{Client, LOOPBACK, TARGET, memory, refused, soon, until};

const OTHER: &str = "iqn.2026-11.io.forebay:other";
const FIRST: PortalGroup = PortalGroup { number: 0, tag: 1 };
const SECOND: PortalGroup = PortalGroup { number: 1, tag: 7 };

fn target(name: &str, groups: &[PortalGroup]) -> Target {
    Target { groups: groups.to_vec(), ..Target::new(name, vec![(0, memory())]) }
}

fn portal(address: SocketAddr, group: PortalGroup) -> Portal {
    Portal { group, ..Portal::from(address) }
}

fn serve(targets: Vec<Target>) -> TargetServer {
    TargetServer::new(Settings::default(), targets).unwrap()
}

async fn log_in(address: SocketAddr, target: &str) -> Result<Client, LoginStatus> {
    let login =
        Client::try_log_in(address, 1, NegotiationOffer::initiator(), Tsih(0), Some(target)).await;
    login.map_err(refused)
}

/// Performs a discovery at the portal `address`, and returns the answer.
async fn send_targets(address: SocketAddr) -> String {
    let login = Client::try_log_in(address, 9, NegotiationOffer::initiator(), Tsih(0), None).await;
    let mut client = login.unwrap();
    let text = client.send_targets("All").await;
    text.replace('\0', " ")
}

#[tokio::test]
async fn a_target_is_listed_and_served_through_its_groups_only() {
    let server = serve(vec![target(TARGET, &[FIRST]), target(OTHER, &[FIRST, SECOND])]);
    let first = server.open_portal(portal(LOOPBACK, FIRST)).await.unwrap();
    let second = server.open_portal(portal(LOOPBACK, SECOND)).await.unwrap();
    let third = server.open_portal(portal(LOOPBACK, SECOND)).await.unwrap();
    let expected = format!(
        "TargetName={TARGET} TargetAddress={first},1 TargetName={OTHER} TargetAddress={first},1 "
    );
    assert_eq!(send_targets(first).await, expected);
    let expected = format!("TargetName={OTHER} TargetAddress={third},7 TargetAddress={second},7 ");
    assert_eq!(send_targets(third).await, expected);
    assert_eq!(log_in(second, TARGET).await.err(), Some(LoginStatus::NotFound));
    log_in(second, OTHER).await.unwrap().settle().await;
}

#[tokio::test]
async fn one_initiator_port_has_a_session_in_each_portal_group() {
    let server = serve(vec![target(TARGET, &[FIRST, SECOND])]);
    let first = server.open_portal(portal(LOOPBACK, FIRST)).await.unwrap();
    let second = server.open_portal(portal(LOOPBACK, SECOND)).await.unwrap();
    let mut sessions =
        [log_in(first, TARGET).await.unwrap(), log_in(second, TARGET).await.unwrap()];
    for session in &mut sessions {
        session.settle().await;
    }
    let mut groups: Vec<_> = server.statistics().sessions.iter().map(|s| s.portal_group).collect();
    groups.sort_unstable();
    assert_eq!(groups, [Some(1), Some(7)]);
}

#[tokio::test]
async fn ipv4_and_ipv6_portals_can_share_one_port_number() {
    let server = serve(vec![target(TARGET, &[FIRST])]);
    let four = server.listen("0.0.0.0:0".parse().unwrap()).await.unwrap();
    let six = server.listen(SocketAddr::new("::".parse().unwrap(), four.port())).await.unwrap();
    assert_eq!(four.port(), six.port());
    let six = SocketAddr::new("::1".parse().unwrap(), six.port());
    log_in(six, TARGET).await.unwrap().settle().await;
    let expected = format!("TargetName={TARGET} TargetAddress=[::1]:{},1 ", six.port());
    assert_eq!(send_targets(six).await, expected);
    let four = SocketAddr::new(LOOPBACK.ip(), four.port());
    let expected = format!("TargetName={TARGET} TargetAddress={four},1 ");
    assert_eq!(send_targets(four).await, expected);
}

#[tokio::test]
async fn discovery_returns_the_advertised_address() {
    let server = serve(vec![target(TARGET, &[FIRST])]);
    let advertise = Some("storage.example:3261".to_owned());
    let portal = Portal { advertise, ..Portal::from(LOOPBACK) };
    let address = server.open_portal(portal).await.unwrap();
    let expected = format!("TargetName={TARGET} TargetAddress=storage.example:3261,1 ");
    assert_eq!(send_targets(address).await, expected);
}

/// Logs in to `target` at the portal `address`, and returns the portal to which the login is redirected.
async fn sent_to(address: SocketAddr, target: &str) -> (String, bool) {
    let mut client = Client::connect(address).await;
    let names = InitiatorNames {
        initiator_name: "iqn.2026-11.io.forebay:initiator-1".into(),
        initiator_alias: None,
        target_name: Some(target.into()),
    };
    let offer = NegotiationOffer::initiator();
    let isid = Isid([0x80, 0, 0, 0, 0, 1]);
    let mut login = InitiatorLogin::new(offer, names, isid, Tsih(0), iscsi::Cid(1), Serial(1));
    client.send(Pdu::LoginRequest(login.start())).await;
    let Some(Pdu::LoginResponse(response)) = client.receive().await else { panic!() };
    match login.handle_response(response) {
        InitiatorStep::Redirected { address, permanent } => (address, permanent),
        step => panic!("{step:?}"),
    }
}

#[tokio::test]
async fn a_target_or_a_portal_can_redirect_its_initiators() {
    let redirect = |address: &str, permanent| Some(Redirect { address: address.into(), permanent });
    let moved = Target { redirect: redirect("10.0.0.2:3260", true), ..target(OTHER, &[FIRST]) };
    let server = serve(vec![target(TARGET, &[FIRST]), moved]);
    let address = server.listen(LOOPBACK).await.unwrap();
    assert_eq!(sent_to(address, OTHER).await, ("10.0.0.2:3260".into(), true));
    log_in(address, TARGET).await.unwrap().settle().await;
    let portal = Portal { redirect: redirect("[::2]:3260", false), ..Portal::from(address) };
    assert!(server.change_portal(portal));
    assert_eq!(sent_to(address, TARGET).await, ("[::2]:3260".into(), false));
    assert_eq!(sent_to(address, OTHER).await, ("10.0.0.2:3260".into(), true));
}

#[tokio::test]
async fn a_removed_target_ends_its_own_sessions_only() {
    let server = serve(vec![target(TARGET, &[FIRST]), target(OTHER, &[FIRST])]);
    let address = server.listen(LOOPBACK).await.unwrap();
    let mut stays = log_in(address, TARGET).await.unwrap();
    let mut goes = log_in(address, OTHER).await.unwrap();
    stays.settle().await;
    until(|| server.statistics().sessions.len() == 2).await;
    soon(server.remove(OTHER, Duration::from_millis(20))).await;
    match goes.receive().await {
        Some(Pdu::Async(message)) => {
            assert!(matches!(message.event, AsyncEvent::LogoutRequested { .. }));
        }
        pdu => panic!("{pdu:?}"),
    }
    assert!(
        matches!(goes.receive().await, Some(Pdu::Async(_))),
        "the initiator is informed of the drop"
    );
    assert!(goes.receive().await.is_none());
    assert_eq!(log_in(address, OTHER).await.err(), Some(LoginStatus::NotFound));
    stays.settle().await;
    server.add(target(OTHER, &[FIRST])).unwrap();
    log_in(address, OTHER).await.unwrap().settle().await;
}

#[tokio::test]
async fn a_closed_portal_accepts_no_connection_and_its_sessions_stay() {
    let server = serve(vec![target(TARGET, &[FIRST])]);
    let stays = server.listen(LOOPBACK).await.unwrap();
    let closes = server.listen(LOOPBACK).await.unwrap();
    let mut client = log_in(closes, TARGET).await.unwrap();
    client.settle().await;
    server.close_portal(closes).await;
    assert!(tokio::net::TcpStream::connect(closes).await.is_err());
    client.settle().await;
    assert_eq!(send_targets(stays).await, format!("TargetName={TARGET} TargetAddress={stays},1 "));
    assert_eq!(server.listen(closes).await.unwrap(), closes, "its address is free again");
}

/// Regression: a server that was shut down closed its listening sockets some time later, so that the next one could
/// not use their addresses.
#[tokio::test]
async fn when_shutdown_returns_the_portals_are_free() {
    for _ in 0..20 {
        let server = serve(vec![target(TARGET, &[FIRST])]);
        let address = server.listen(LOOPBACK).await.unwrap();
        server.shutdown(Duration::ZERO).await;
        std::net::TcpListener::bind(address).unwrap();
    }
}

/// 64 sessions that all send commands are spread over eight targets and two portal groups.
#[tokio::test]
async fn many_sessions_on_many_targets() {
    let name = |n: usize| format!("iqn.2026-11.io.forebay:disk-{n}");
    let server = serve((0..8).map(|n| target(&name(n), &[FIRST, SECOND])).collect());
    let portals = [
        server.open_portal(portal(LOOPBACK, FIRST)).await.unwrap(),
        server.open_portal(portal(LOOPBACK, SECOND)).await.unwrap(),
    ];
    let sessions = (0..64_usize).map(|n| {
        let (address, target) = (portals[n / 8 % 2], name(n % 8));
        tokio::spawn(async move {
            let (who, offer) = (n as u8, NegotiationOffer::initiator());
            let login = Client::try_log_in(address, who, offer, Tsih(0), Some(&target)).await;
            let mut client = login.unwrap();
            client.settle().await;
            for _ in 0..16 {
                let command = client.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8], 4096);
                let (status, data) = client.read(command).await;
                assert_eq!((status, data.len()), (0, 4096));
            }
            client
        })
    });
    let sessions: Vec<_> = sessions.collect();
    let mut open = Vec::new();
    for session in sessions {
        open.push(session.await.unwrap());
    }
    let statistics = server.statistics();
    assert_eq!(statistics.sessions.len(), 64);
    for n in 0..8 {
        let of_target = |s: &&target::SessionStatistics| s.target_name.as_ref() == Some(&name(n));
        assert_eq!(statistics.sessions.iter().filter(of_target).count(), 8);
    }
    until(|| server.statistics().total.data_in_bytes == 64 * 16 * 4096).await;
    assert!(statistics.sessions.iter().all(|session| session.counters.commands > 16));
}

/// TEST UNIT READY: status, sense key and additional sense code.
async fn ready(client: &mut Client, lun: u16) -> (u8, Option<(u8, u8, u8)>) {
    let mut command = client.command(&[0], 0);
    command.lun = Lun(u64::from(lun) << 48);
    client.send(Pdu::ScsiCommand(command)).await;
    let response = client.response().await;
    let sense = response.sense;
    (response.status, sense.get(13).map(|ascq| (sense[2] & 0xf, sense[12], *ascq)))
}

#[tokio::test]
async fn a_grown_file_is_reported_to_every_session() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileVolumeOptions {
        create: Some(1 << 20),
        ..FileVolumeOptions::new(directory.path().join("disk"))
    };
    let volume = Arc::new(FileVolume::open(&options).unwrap());
    let unit =
        BlockUnit::new(volume.clone(), UnitIdentity::new("grows"), unit::Settings::default());
    let server = serve(vec![Target::new(TARGET, vec![(0, Arc::new(unit))])]);
    let address = server.listen(LOOPBACK).await.unwrap();
    let mut clients = [Client::log_in(address, 1).await, Client::log_in(address, 2).await];
    for client in &mut clients {
        client.settle().await;
    }
    volume.grow(Some(3 << 20)).unwrap();
    for client in &mut clients {
        assert_eq!(ready(client, 0).await, (2, Some((6, 0x2a, 0x09))));
        let command = client.command(&[0x25], 8);
        let (status, data) = client.read(command).await;
        assert_eq!((status, &data[..4]), (0, &(3 * 2048_u32 - 1).to_be_bytes()[..]));
    }
}
