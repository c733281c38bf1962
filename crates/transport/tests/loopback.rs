//! Sends PDUs through real sockets and receives them with every read function: over plain TCP, with
//! TLS, and compressed.

mod certificates;

use std::{future::poll_fn, task::Poll};

use bytes::{Bytes, BytesMut};
use certificates::{Authority, Issued};
use iscsi::{
    Itt, Pdu, Serial, Ttt,
    codec::{Decoder, Digests, PduOutput},
    keys::Compression,
    pdu::NopOut,
};
use scsi::Lun;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use transport::{
    ConnectionStream, Received, SendProgress, SocketOptions, TlsClient, TlsIdentity, TlsServer,
    poll_receive, poll_send, receive, receive_now, send,
};

const DIGESTS: Digests = Digests { header: true, data: true };

fn nop(itt: u32, length: usize) -> Pdu {
    Pdu::NopOut(NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt::NONE,
        cmd_sn: Serial(1),
        exp_stat_sn: Serial(1),
        data: Bytes::from((0..length).map(|at| (at as u32 * 7 + itt) as u8).collect::<Vec<_>>()),
    })
}

/// The layers above TCP in a pair of streams: true if they use TLS, and the compression method.
type Form = (bool, Option<Compression>);

const FORMS: [Form; 5] = [
    (false, None),
    (true, None),
    (false, Some(Compression::Lz4)),
    (false, Some(Compression::Zstd)),
    (true, Some(Compression::Lz4)),
];

async fn pair((secured, compression): Form) -> (ConnectionStream, ConnectionStream) {
    let (near, far) = connect(secured).await;
    match compression {
        Some(method) => {
            let compress = |stream: ConnectionStream| stream.compress(method, BytesMut::new(), 0);
            let (mut near, mut far) = (compress(near), compress(far));
            near.set_read_bytes(65_536);
            far.set_read_bytes(65_536);
            (near, far)
        }
        None => (near, far),
    }
}

async fn connect(secured: bool) -> (ConnectionStream, ConnectionStream) {
    let options = SocketOptions { send_buffer_bytes: Some(65_536), ..Default::default() };
    let socket = TcpSocket::new_v4().unwrap();
    options.apply(&socket).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let port = listener.local_addr().unwrap().port();
    let near = options.connect("127.0.0.1", port, |_| ()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    if !secured {
        return (near.into(), far.into());
    }
    let ours = Authority::new();
    let Issued { certificate, key } = ours.issue("127.0.0.1");
    let own = TlsIdentity { certificate: certificate.as_bytes(), key: key.as_bytes() };
    let server = TlsServer::new(own, ours.certificate.as_bytes()).unwrap();
    let client = TlsClient::new(Some(own), ours.certificate.as_bytes(), None).unwrap();
    let (near, far) = tokio::join!(client.connect("127.0.0.1", near), server.accept(far));
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    near.set_read_bytes(65_536);
    far.set_read_bytes(65_536);
    (near, far)
}

async fn write_all(mut stream: ConnectionStream, count: u32, length: usize) -> ConnectionStream {
    let mut output = PduOutput::default();
    (0..count).for_each(|itt| {
        output.push(nop(itt, length), DIGESTS);
    });
    poll_fn(|context| match poll_send(&mut stream, &mut output, context).unwrap() {
        SendProgress::All => Poll::Ready(()),
        SendProgress::Blocked => {
            assert!(!output.is_empty(), "what is unsent is in the queue");
            Poll::Pending
        }
    })
    .await;
    assert!(output.is_empty());
    stream
}

fn check(decoder: &mut Decoder, seen: &mut u32, length: usize) {
    while let Some(frame) = decoder.next().unwrap() {
        assert!(!frame.data_digest_error);
        assert_eq!(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).unwrap(), nop(*seen, length));
        *seen += 1;
    }
}

fn decoder() -> Decoder {
    let mut decoder = Decoder::new(65_536, 262_144);
    decoder.configure(65_536, 262_144, DIGESTS);
    decoder
}

#[tokio::test]
async fn pdus_arrive_complete_although_the_socket_accepts_little_at_once() {
    let lengths = [0, 100, 5000, 131_072, 200_000];
    for (form, length) in lengths.map(|l| FORMS.map(|form| (form, l))).concat() {
        let (near, mut far) = pair(form).await;
        let writer = tokio::spawn(write_all(near, 20, length));
        let (mut decoder, mut seen) = (decoder(), 0);
        while seen < 20 {
            let read = poll_fn(|context| poll_receive(&mut far, &mut decoder, context)).await;
            assert!(matches!(read.unwrap(), Received::Bytes(1..)));
            check(&mut decoder, &mut seen, length);
        }
        drop(writer.await.unwrap());
        let end = poll_fn(|context| poll_receive(&mut far, &mut decoder, context)).await;
        assert_eq!(end.unwrap(), Received::Closed);
    }
}

/// A regression test. TLS may read more than one PDU from the socket. A reader that reads once per
/// wake-up must then be woken again for the rest.
#[tokio::test]
async fn a_reader_is_woken_for_data_that_tls_has_read_ahead() {
    for form in FORMS {
        let (near, mut far) = pair(form).await;
        let writer = tokio::spawn(write_all(near, 200, 5000));
        let (mut decoder, mut seen) = (decoder(), 0);
        while seen < 200 {
            far.readable().await.unwrap();
            poll_fn(|context| far.poll_read_ready(context)).await.unwrap();
            receive(&mut far, &mut decoder).unwrap();
            check(&mut decoder, &mut seen, 5000);
        }
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn both_ends_send_concurrently() {
    for form in FORMS {
        let (near, far) = pair(form).await;
        let ends = [near, far].map(|mut stream| {
            tokio::spawn(async move {
                let (mut decoder, mut seen, mut output) = (decoder(), 0, PduOutput::default());
                (0..100).for_each(|itt| {
                    output.push(nop(itt, 131_072), DIGESTS);
                });
                poll_fn(|context| {
                    while let Poll::Ready(read) = poll_receive(&mut stream, &mut decoder, context) {
                        assert!(matches!(read.unwrap(), Received::Bytes(1..)));
                        check(&mut decoder, &mut seen, 131_072);
                        if seen == 100 {
                            break;
                        }
                    }
                    let sent = poll_send(&mut stream, &mut output, context).unwrap();
                    if seen == 100 && sent == SendProgress::All {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
                stream
            })
        });
        let [near, far] = ends;
        let _open = (near.await.unwrap(), far.await.unwrap());
    }
}

#[tokio::test]
async fn an_immediate_read_needs_no_readiness() {
    for form in FORMS {
        let (near, mut far) = pair(form).await;
        let mut decoder = decoder();
        assert_eq!(receive_now(&mut far, &mut decoder).unwrap(), Received::Nothing);
        let near = write_all(near, 3, 100).await;
        let mut seen = 0;
        while seen < 3 {
            match receive_now(&mut far, &mut decoder).unwrap() {
                Received::Nothing => tokio::task::yield_now().await,
                read => assert!(matches!(read, Received::Bytes(1..))),
            }
            check(&mut decoder, &mut seen, 100);
        }
        drop(near);
        let end = poll_fn(|context| match receive_now(&mut far, &mut decoder).unwrap() {
            Received::Nothing => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            read => Poll::Ready(read),
        });
        assert_eq!(end.await, Received::Closed);
    }
}

/// The last bytes of the login are not compressed, even if compressed bytes follow in the same
/// packet.
#[tokio::test]
async fn compression_begins_after_the_login() {
    let (near, mut far) = connect(false).await;
    let mut output = PduOutput::default();
    output.push(nop(0, 100), DIGESTS);
    let mut near = near.compress(Compression::Lz4, BytesMut::new(), output.len());
    for itt in 1..50 {
        output.push(nop(itt, 5000), DIGESTS);
    }
    let all = output.len();
    while send(&mut near, &mut output).unwrap() == SendProgress::Blocked {
        near.writable().await.unwrap();
    }
    let sent = near.link_bytes().unwrap();
    assert!(sent.out_packed < sent.out / 8, "{sent:?} of {all}");

    let (mut decoder, mut seen) = (decoder(), 0);
    let first = loop {
        far.readable().await.unwrap();
        receive(&mut far, &mut decoder).unwrap();
        if let Some(frame) = decoder.next().unwrap() {
            break frame;
        }
    };
    assert_eq!(Pdu::parse(&first.bhs, &first.ahs, first.data).unwrap(), nop(seen, 100));
    seen += 1;
    let mut far = far.compress(Compression::Lz4, decoder.take_rest(), 0);
    while seen < 50 {
        far.readable().await.unwrap();
        receive(&mut far, &mut decoder).unwrap();
        check(&mut decoder, &mut seen, 5000);
    }
    let received = far.link_bytes().unwrap();
    assert_eq!((received.in_, received.in_packed), (sent.out, sent.out_packed));
}

#[tokio::test]
async fn a_corrupt_compressed_frame_ends_the_connection() {
    let bombs: [&[u8]; 3] =
        [&[0, 9, 0, 9, 1], &[0, 0, 0, 0], &[0xff, 0xff, 0, 4, 0x0f, 9, 9, 0xff]];
    for bytes in bombs {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let far = ConnectionStream::from(listener.accept().await.unwrap().0);
        let mut far = far.compress(Compression::Lz4, BytesMut::new(), 0);
        assert_eq!(near.try_write(bytes).unwrap(), bytes.len());
        far.readable().await.unwrap();
        let error = receive(&mut far, &mut decoder()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    }
}

/// Returns the number of bytes that a socket accepts while its peer does not read.
async fn taken(limit: Option<u32>) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let options = |send, receive| SocketOptions {
        send_buffer_bytes: Some(send),
        receive_buffer_bytes: Some(receive),
    };
    options(4 << 20, 64 << 10).apply(&near).unwrap();
    options(64 << 10, 64 << 10).apply(&far).unwrap();
    let mut near = ConnectionStream::from(near);
    if let Some(bytes) = limit {
        near.limit_unsent(bytes).unwrap();
    }
    let ConnectionStream::Plain(socket) = &mut near else { unreachable!() };
    let socket = socket.stream_mut();
    let mut taken = 0;
    loop {
        socket.writable().await.unwrap();
        // Acknowledgments may make space for more, so write until the socket stays full.
        match socket.try_write(&[0; 16 << 10]) {
            Ok(bytes) => taken += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn the_limit_of_unsent_bytes_holds_for_a_large_buffer() {
    let (without, with) = (taken(None).await, taken(Some(64 << 10)).await);
    if without <= 1 << 20 {
        println!("not run: without CAP_NET_ADMIN the send buffer is small ({without})");
        return;
    }
    // The bytes accepted are those in the peer's receive buffer, the unsent bytes within the limit,
    // and one write that may exceed it.
    assert!(with < 512 << 10, "{with} of {without}");
}
