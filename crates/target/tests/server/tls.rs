//! Tests portals with TLS: successful and failed handshakes.

use std::{net::SocketAddr, time::Duration};

use iscsi::{Cid, Serial, Tsih, keys::NegotiationOffer};
use target::{Portal, Settings, Target, TargetServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use transport::{ConnectionStream, TlsClient, TlsIdentity, TlsServer};

use crate::{
    certificates::{Authority, Issued},
    client::{Client, LOOPBACK, TARGET, login, memory, soon, until},
    events::Log,
};

/// Returns a server and a client with certificates of this authority. The server's certificate is for 127.0.0.1.
fn ends(authority: &Authority) -> (TlsServer, TlsClient) {
    let (node, host) = (authority.issue("127.0.0.1"), authority.issue("host"));
    let trusted = authority.certificate.as_bytes();
    let server = TlsServer::new(identity(&node), trusted).unwrap();
    (server, TlsClient::new(Some(identity(&host)), trusted, None).unwrap())
}

fn identity(issued: &Issued) -> TlsIdentity<'_> {
    TlsIdentity { certificate: issued.certificate.as_bytes(), key: issued.key.as_bytes() }
}

async fn serve(settings: Settings, tls: &TlsServer) -> (TargetServer, SocketAddr) {
    let target = Target::new(TARGET, vec![(0, memory())]);
    let server = TargetServer::new(settings, vec![target]).unwrap();
    let portal = Portal { tls: Some(tls.clone()), ..LOOPBACK.into() };
    let address = server.open_portal(portal).await.unwrap();
    (server, address)
}

async fn connect(address: SocketAddr, tls: &TlsClient) -> std::io::Result<ConnectionStream> {
    let stream = soon(TcpStream::connect(address)).await?;
    soon(tls.connect("127.0.0.1", stream)).await
}

async fn log_in(address: SocketAddr, tls: &TlsClient, who: u8) -> Client {
    let client = Client::on(connect(address, tls).await.unwrap());
    let login = login(who, NegotiationOffer::initiator(), Tsih(0), Some(TARGET), Cid(1), Serial(1));
    client.run(login).await.unwrap()
}

/// Reads 256 KiB several times: first one read after the other, then several reads at once.
async fn reads(client: &mut Client) {
    client.settle().await;
    let mut tags = Vec::new();
    for _ in 0..4 {
        let command = client.command(&[0x28, 0, 0, 0, 0, 0, 0, 2, 0, 0], 262_144);
        tags.push(client.begin(command).await);
    }
    for tag in tags {
        let (status, data) = client.answer(tag).await;
        assert_eq!((status, data.len()), (0, 262_144));
    }
}

#[tokio::test]
async fn a_portal_with_tls_serves_initiators_with_a_certificate() {
    let (tls, ours) = ends(&Authority::new());
    for busy_poll in [Duration::ZERO, Duration::from_millis(1)] {
        let settings = Settings { busy_poll, ..Settings::default() };
        let (server, address) = serve(settings, &tls).await;
        let (mut one, mut other) =
            (log_in(address, &ours, 1).await, log_in(address, &ours, 2).await);
        reads(&mut one).await;
        reads(&mut other).await;
        reads(&mut one).await;
        server.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn discovery_lists_tls_portals_over_tls_and_plain_portals_otherwise() {
    let (tls, ours) = ends(&Authority::new());
    let (server, secured) = serve(Settings::default(), &tls).await;
    let also_secured = Portal { tls: Some(tls.clone()), ..LOOPBACK.into() };
    let also_secured = server.open_portal(also_secured).await.unwrap();
    let plain = server.listen(LOOPBACK).await.unwrap();
    let also_plain = server.listen(LOOPBACK).await.unwrap();
    let told = |addresses: [SocketAddr; 2]| {
        let addresses = addresses.map(|address| format!("TargetAddress={address},1\0"));
        format!("TargetName={TARGET}\0{}", addresses.concat())
    };
    let discovery = || login(1, NegotiationOffer::initiator(), Tsih(0), None, Cid(1), Serial(1));
    let without = Client::connect(plain).await.run(discovery()).await;
    assert_eq!(without.unwrap().send_targets("All").await, told([plain, also_plain]));
    let with = Client::on(connect(secured, &ours).await.unwrap()).run(discovery()).await;
    assert_eq!(with.unwrap().send_targets("All").await, told([secured, also_secured]));
}

#[tokio::test]
async fn a_failed_handshake_is_reported_once_with_its_address() {
    let log = Log::start();
    let (tls, ours) = ends(&Authority::new());
    let (_, strange) = ends(&Authority::new());
    let (server, address) = serve(Settings::default(), &tls).await;
    let mut good = log_in(address, &ours, 1).await;
    let mut here = Vec::new();
    let said = [&[0x43; 48][..], &[0xff; 5000], b"GET / HTTP/1.1\r\n\r\n"];
    for (number, said) in (2..).zip(said) {
        // Use another address for each connection: a repeated failure of one address is reported only once in
        // ten minutes.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, number], 0).into()).unwrap();
        let mut stream = soon(socket.connect(address)).await.unwrap();
        here.push(stream.local_addr().unwrap());
        stream.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let _ = soon(stream.read_to_end(&mut heard)).await;
        assert!(heard.len() < 16, "an alert at most: {heard:?}");
    }
    // The client does not trust the server's certificate, and ends the handshake with an alert.
    let stream = soon(TcpStream::connect(address)).await.unwrap();
    here.push(stream.local_addr().unwrap());
    soon(strange.connect("127.0.0.1", stream)).await.unwrap_err();
    until(|| server.statistics().failed_logins == 4).await;
    for here in here {
        let lines = log.lines();
        let about: Vec<_> = lines.iter().filter(|l| l.contains(&here.to_string())).collect();
        assert!(about.len() == 1 && about[0].contains("TLS: "), "{about:?}");
    }
    reads(&mut good).await;
    assert_eq!(server.statistics().logins_in_progress, 0);
}

#[tokio::test]
async fn a_stalled_handshake_ends_at_the_login_timeout_and_affects_no_other_connection() {
    let (tls, ours) = ends(&Authority::new());
    let mut settings = Settings { max_logins: 3, ..Settings::default() };
    settings.session.login_time = Duration::from_secs(1);
    let (server, address) = serve(settings, &tls).await;
    let mut good = log_in(address, &ours, 1).await;
    // The first connection sends no bytes, and the second one sends only the beginning of a TLS handshake.
    let mut silent = soon(TcpStream::connect(address)).await.unwrap();
    let mut slow = soon(TcpStream::connect(address)).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    until(|| server.statistics().logins_in_progress == 2).await;
    reads(&mut good).await;
    let mut late = log_in(address, &ours, 2).await;
    for stream in [&mut silent, &mut slow] {
        let mut heard = Vec::new();
        let _ = soon(stream.read_to_end(&mut heard)).await;
        assert!(heard.len() < 64, "{heard:?}");
    }
    until(|| server.statistics().failed_logins == 2).await;
    reads(&mut late).await;
    assert_eq!(server.statistics().logins_in_progress, 0);
}

#[tokio::test]
async fn new_certificates_apply_to_the_next_connection() {
    let (first, second) = (Authority::new(), Authority::new());
    let ((tls, ours), (new, theirs)) = (ends(&first), ends(&second));
    let (server, address) = serve(Settings::default(), &tls).await;
    let mut old = log_in(address, &ours, 1).await;
    assert!(connect(address, &theirs).await.is_err());
    assert!(server.change_portal(Portal { tls: Some(new), ..address.into() }));
    assert!(connect(address, &ours).await.is_err());
    log_in(address, &theirs, 2).await.settle().await;
    reads(&mut old).await;
}
