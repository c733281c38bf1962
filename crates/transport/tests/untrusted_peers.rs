//! Tests TLS handshakes that must fail, and the errors that both ends report.

mod certificates;

use std::{io, time::Duration};

use certificates::{Authority, Issued};
use iscsi::{
    Pdu,
    codec::{Decoder, Digests, PduOutput},
    pdu::LoginRequest,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use transport::{
    DistrustCause, Received, TlsClient, TlsIdentity, TlsMaterial, TlsServer, distrust, receive,
    send,
};

fn identity(issued: &Issued) -> TlsIdentity<'_> {
    TlsIdentity { certificate: issued.certificate.as_bytes(), key: issued.key.as_bytes() }
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// Awaits a future that must complete soon; panics if it takes too long.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("this hangs")
}

/// Performs the handshake. The client then sends a login and reads the answer. Returns the errors
/// of the client and of the server.
async fn meet(client: TlsClient, server: TlsServer) -> (Option<String>, Option<String>) {
    let (near, far) = sockets().await;
    let far = tokio::spawn(async move { server.accept(far).await.map(drop) });
    let client = async {
        let mut near = client.connect("127.0.0.1", near).await?;
        let mut output = PduOutput::default();
        output.push(Pdu::LoginRequest(LoginRequest::default()), Digests::default());
        let mut decoder = Decoder::new(16_384, 8192);
        loop {
            send(&mut near, &mut output)?;
            match receive(&mut near, &mut decoder)? {
                Received::Nothing => near.readable().await?,
                other => return Err::<(), _>(io::Error::other(format!("{other:?}"))),
            }
        }
    };
    let (near, far) = tokio::join!(soon(client), soon(far));
    let said = |end: io::Result<()>| match end {
        Ok(_) => None,
        Err(error) => Some(
            distrust(&error).map_or_else(|| error.to_string(), |distrust| distrust.to_string()),
        ),
    };
    (said(near), said(far.unwrap()))
}

#[tokio::test]
async fn both_ends_report_why_they_reject_a_certificate() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (node, host, stranger) =
        (ours.issue("127.0.0.1"), ours.issue("host"), theirs.issue("127.0.0.1"));
    let elsewhere = ours.issue("elsewhere.example");
    let server = |own: &Issued| TlsServer::new(identity(own), ours.certificate.as_bytes()).unwrap();
    let client = |own: Option<&Issued>, name: Option<&str>| {
        TlsClient::new(own.map(identity), ours.certificate.as_bytes(), name).unwrap()
    };
    #[track_caller]
    fn check(
        (near, far): (Option<String>, Option<String>),
        expected: (Option<&str>, Option<&str>),
    ) {
        for (found, expected) in [(&near, expected.0), (&far, expected.1)] {
            match (found, expected) {
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => assert_eq!(found.as_deref(), expected),
            }
        }
    }
    // This handshake succeeds. The server then drops the connection, so the client sees it closed.
    check(meet(client(Some(&host), None), server(&node)).await, (Some("Closed"), None));
    check(
        meet(client(Some(&stranger), None), server(&node)).await,
        (Some("does not accept our certificate"), Some("UnknownIssuer")),
    );
    check(
        meet(client(None, None), server(&node)).await,
        (Some("does not accept our certificate (CertificateRequired)"), Some("no certificates")),
    );
    check(
        meet(client(Some(&host), None), server(&stranger)).await,
        (Some("UnknownIssuer"), Some("does not accept our certificate (UnknownCA)")),
    );
    check(
        meet(client(Some(&host), None), server(&elsewhere)).await,
        (Some("not valid for name"), Some("does not accept our certificate (BadCertificate)")),
    );
    // An authority was replaced by a new one with the same name but another key.
    let [old, new] = ["storage CA"; 2].map(Authority::named);
    let (old_node, new_host) = (old.issue("127.0.0.1"), new.issue("host"));
    let old_server = TlsServer::new(identity(&old_node), old.certificate.as_bytes()).unwrap();
    let new_client = TlsClient::new(Some(identity(&new_host)), old.certificate.as_bytes(), None);
    check(
        meet(new_client.unwrap(), old_server.clone()).await,
        (Some("does not accept our certificate (DecryptError)"), Some("BadSignature")),
    );
    let new_client = TlsClient::new(Some(identity(&new_host)), new.certificate.as_bytes(), None);
    check(
        meet(new_client.unwrap(), old_server).await,
        (Some("BadSignature"), Some("does not accept our certificate (DecryptError)")),
    );
    let by_name = client(Some(&host), Some("elsewhere.example"));
    check(meet(by_name, server(&elsewhere)).await, (Some("Closed"), None));
}

#[tokio::test]
async fn a_peer_without_tls_is_distinguished_from_a_lost_connection() {
    let ours = Authority::new();
    let node = ours.issue("127.0.0.1");
    let server = TlsServer::new(identity(&node), ours.certificate.as_bytes()).unwrap();
    let client = TlsClient::new(Some(identity(&node)), ours.certificate.as_bytes(), None).unwrap();

    // Send, in place of a TLS handshake, an iSCSI login, other bytes and an HTTP request.
    for said in [&[0x43, 0x87, 0, 0, 0, 0, 1, 0][..], &[0xff; 300], b"GET / HTTP/1.1\r\n\r\n"] {
        let (mut near, far) = sockets().await;
        near.write_all(said).await.unwrap();
        let error = soon(server.accept(far)).await.unwrap_err();
        assert_eq!(distrust(&error).unwrap().cause, DistrustCause::NoTls);
    }
    let (near, mut far) = sockets().await;
    let answer = tokio::spawn(async move {
        let mut hello = [0; 64];
        far.read_exact(&mut hello).await.unwrap();
        far.write_all(&[0x23; 48]).await.unwrap();
        far
    });
    let error = soon(client.connect("127.0.0.1", near)).await.unwrap_err();
    assert_eq!(distrust(&error).unwrap().cause, DistrustCause::NoTls);
    drop(answer);
    let (near, far) = sockets().await;
    drop(far);
    let error = soon(client.connect("127.0.0.1", near)).await.unwrap_err();
    assert_eq!(distrust(&error), None, "it may be back soon: {error}");
}

#[tokio::test]
async fn an_endless_handshake_is_ended() {
    let ours = Authority::new();
    let node = ours.issue("127.0.0.1");
    let server = TlsServer::new(identity(&node), ours.certificate.as_bytes()).unwrap();
    let (mut near, far) = sockets().await;
    // Send a ClientHello of 65,000 bytes in records of 4 KiB.
    let mut hello = vec![1, 0, 0xfd, 0xe8, 3, 3];
    hello.resize(65_004, 0);
    for record in hello.chunks(4096) {
        let length = (record.len() as u16).to_be_bytes();
        let header = [22, 3, 1, length[0], length[1]];
        near.write_all(&[&header, record].concat()).await.unwrap();
    }
    let error = soon(server.accept(far)).await.unwrap_err();
    assert_eq!(error.to_string(), "the TLS handshake exceeds 16384 bytes");
}

#[test]
fn invalid_certificate_files_are_named() {
    let ours = Authority::new();
    let (one, other) = (ours.issue("a"), ours.issue("b"));
    let (certificate, key) = (one.certificate.as_bytes(), one.key.as_bytes());
    let authorities = ours.certificate.as_bytes();
    let part = |certificate, key, authorities| {
        TlsServer::new(TlsIdentity { certificate, key }, authorities).unwrap_err().part
    };
    assert_eq!(part(b"", key, authorities), TlsMaterial::Certificate);
    assert_eq!(part(key, key, authorities), TlsMaterial::Certificate);
    assert_eq!(part(certificate, certificate, authorities), TlsMaterial::Key);
    assert_eq!(part(certificate, other.key.as_bytes(), authorities), TlsMaterial::Certificate);
    assert_eq!(part(certificate, key, b"no PEM"), TlsMaterial::Authorities);
    let own = TlsIdentity { certificate, key };
    let named = TlsClient::new(Some(own), authorities, Some("not a name"));
    assert_eq!(named.unwrap_err().part, TlsMaterial::Name);
}
