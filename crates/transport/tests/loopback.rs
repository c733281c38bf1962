//! Frames through a real socket, both ways of reading it.

use std::{future::poll_fn, task::Poll};

use bytes::Bytes;
use iscsi::{
    Itt, Pdu, Serial, Ttt,
    codec::{Decoder, Digests, Output},
    pdu::NopOut,
};
use scsi::Lun;
use tokio::net::{TcpListener, TcpStream};
use transport::{Received, Sent, SocketOptions, poll_receive, poll_send, receive_now};

const DIGESTS: Digests = Digests { header: true, data: true };

fn nop(itt: u32, length: usize) -> Pdu {
    Pdu::NopOut(NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt::NONE,
        cmd_sn: Serial(1),
        exp_stat_sn: Serial(1),
        data: Bytes::from(vec![itt as u8; length]),
    })
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    for stream in [&near, &far] {
        SocketOptions { send_buffer_bytes: Some(65_536), ..Default::default() }
            .apply(stream)
            .unwrap();
        assert!(stream.nodelay().unwrap());
    }
    (near, far)
}

async fn write_all(mut stream: TcpStream, count: u32, length: usize) -> TcpStream {
    let mut output = Output::default();
    (0..count).for_each(|itt| output.push(nop(itt, length), DIGESTS));
    poll_fn(|context| match poll_send(&mut stream, &mut output, context).unwrap() {
        Sent::All => Poll::Ready(()),
        Sent::Blocked => Poll::Pending,
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
async fn what_is_written_is_read_though_the_socket_takes_little_at_once() {
    for length in [0, 100, 5000, 200_000] {
        let (near, mut far) = pair().await;
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

#[tokio::test]
async fn reading_now_needs_no_readiness() {
    let (near, far) = pair().await;
    let mut decoder = decoder();
    assert_eq!(receive_now(&far, &mut decoder).unwrap(), Received::Nothing);
    let near = write_all(near, 3, 100).await;
    let mut seen = 0;
    while seen < 3 {
        match receive_now(&far, &mut decoder).unwrap() {
            Received::Nothing => tokio::task::yield_now().await,
            read => assert!(matches!(read, Received::Bytes(1..))),
        }
        check(&mut decoder, &mut seen, 100);
    }
    drop(near);
    let end = poll_fn(|context| match receive_now(&far, &mut decoder).unwrap() {
        Received::Nothing => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        read => Poll::Ready(read),
    });
    assert_eq!(end.await, Received::Closed);
}
