//! Tests with targets that report false properties of their unit or redirect logins.

use std::{
    io::Write as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::support::node::{NAME, Node};
use bytes::{BufMut, Bytes};
use initiator::{Error, RemoteVolume, Settings};
use iscsi::{
    Itt, Pdu, Serial, Ttt,
    codec::{Decoder, Digests, PduOutput},
    keys::DigestPolicy,
    pdu::{LoginRequest, LoginResponse, LoginStatus, NopIn, Numbers},
};
use scsi::{AdmittedCommand, Cdb, Lun, ScsiStatus, Sense, SenseKey};
use target::{Target, TargetServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use unit::{Completion, LogicalUnit, Nexus, Task, TaskManagement, UnitReply};
use volume::{Data, Durability, Extent, Geometry, Lba, Volume};

/// A unit that answers with random data. The data depends on the seed and on the command.
struct Noise {
    seed: u64,
    answered: parking_lot::Mutex<u64>,
}

impl LogicalUnit for Noise {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        let mut count = self.answered.lock();
        *count += 1;
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ *count << 32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let length = random() % (u64::from(task.data_in_capacity) + 1);
        let mut data: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        // Make many answers pass the first checks of the initiator, so that its later checks are tested as well.
        if random() % 4 != 0 && data.len() > 12 {
            match task.cdb[0] {
                0x12 => (data[0], data[1]) = (0, task.cdb[2]),
                0x9e => data[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0]),
                _ => {}
            }
        }
        let completion = match random() % 16 {
            0 => Completion::check_condition(Sense::new(SenseKey::IllegalRequest, 0x24, 0)),
            1 => Completion::check_condition(Sense::new(SenseKey::UnitAttention, 0x29, 0)),
            2 => Completion::status(ScsiStatus::ConditionMet),
            _ => Completion::good(Data::from(data)),
        };
        UnitReply::new(async move { completion })
    }

    fn admit(&self, _: &Nexus, _: &Cdb, _: u32) -> Result<Option<AdmittedCommand>, Completion> {
        Ok(None)
    }

    fn task_management(&self, _: &Nexus, _: TaskManagement) {}

    fn nexus_opened(&self, _: &Nexus) {}

    fn nexus_closed(&self, _: &Nexus) {}
}

/// For any answers of the unit, the result is a usable volume or an error.
#[tokio::test]
async fn units_that_answer_with_noise() {
    let (mut volumes, mut errors) = (0, 0);
    for seed in 1..=150 {
        let unit = std::sync::Arc::new(Noise { seed, answered: Default::default() });
        let target = Target::new(NAME, vec![(0, unit)]);
        let server = TargetServer::new(target::Settings::default(), vec![target]).unwrap();
        let address = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut settings = Settings::new(address.to_string(), NAME, 0);
        settings.busy_time_out = Duration::from_millis(50);
        settings.command_time_out = Duration::from_secs(1);
        settings.give_up_after = Duration::ZERO;
        match RemoteVolume::connect(settings).await {
            Ok(volume) => {
                volumes += 1;
                let geometry = volume.geometry();
                assert!(matches!(geometry.block_size, 512 | 4096) && geometry.blocks > 0);
                assert!(geometry.physical_block_size.is_power_of_two());
                let extent = Extent { lba: Lba(0), blocks: 8 };
                if let Ok(data) = volume.read(extent).await {
                    assert_eq!(data.len(), 8 * geometry.block_size as usize);
                }
                let data = Data::zeros(8 * geometry.block_size as usize);
                let _ = volume.write(Lba(0), data, Durability::Stable).await;
                let _ = volume.discard(extent).await;
                let _ = volume.flush().await;
                volume.close().await;
            }
            Err(_) => errors += 1,
        }
        server.shutdown(Duration::ZERO).await;
    }
    assert!(volumes > 10 && errors > 10, "{volumes} volumes, {errors} errors");
}

/// Starts a portal that redirects every login to another address. Returns the portal's own address.
async fn redirect_to(address: impl FnOnce(SocketAddr) -> SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let here = listener.local_addr().expect("bound");
    let there = address(here);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let request = read_login(&mut stream).await;
            let response = LoginResponse {
                current_stage: request.current_stage,
                isid: request.isid,
                itt: request.itt,
                numbers: Numbers {
                    stat_sn: request.exp_stat_sn,
                    exp_cmd_sn: request.cmd_sn,
                    max_cmd_sn: Serial(request.cmd_sn.0 + 1),
                },
                status: LoginStatus::TargetMovedTemporarily,
                text: Bytes::from(format!("TargetAddress={there},1\0")),
                ..LoginResponse::default()
            };
            let mut output = PduOutput::default();
            output.push(Pdu::LoginResponse(response), Digests::default());
            while !output.is_empty() {
                let mut slices = [std::io::IoSlice::new(&[]); 8];
                let used = output.slices(&mut slices);
                let count = stream.write_vectored(&slices[..used]).await.expect("the initiator");
                output.advance(count);
            }
        }
    });
    here
}

/// Relays the first connection until the test sends `flood`. Then sends NOP-Ins to the initiator on this connection, as
/// fast as it accepts them. Relays later connections normally.
async fn flooding_relay(to: SocketAddr, flood: oneshot::Receiver<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let here = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.expect("the initiator");
        let mut far = TcpStream::connect(to).await.expect("the node");
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => panic!("it ended by itself"),
            told = flood => told.expect("the test"),
        }
        let near = near.into_std().expect("a socket");
        near.set_nonblocking(false).expect("a socket");
        // The thread ends when the initiator closes the connection.
        std::thread::spawn(move || {
            let ping = NopIn {
                lun: Lun(0),
                itt: Itt::NONE,
                ttt: Ttt::NONE,
                numbers: Numbers::default(),
                data: Bytes::new(),
            };
            let many = Pdu::NopIn(ping).encode().0.repeat(20_000);
            while (&near).write_all(&many).is_ok() {}
        });
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(to).await.expect("the node");
            tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        }
    });
    here
}

/// The initiator closes a connection within the time-out of the command if the target sends PDUs all the time but does
/// not answer the command.
#[tokio::test]
async fn no_flood_keeps_a_command_from_its_time_out() {
    let node = Node::start(Geometry::with_blocks(1024)).await;
    let (flood, told) = oneshot::channel();
    let portal = flooding_relay(node.address, told).await;
    let mut settings = Settings { portal: portal.to_string(), ..node.settings() };
    // At higher levels, the NOP-Ins would need valid sequence numbers.
    settings.error_recovery_level = 0;
    settings.offer.header_digest = DigestPolicy::Off;
    settings.command_time_out = Duration::from_millis(100);
    settings.timing.abort_time_out = Duration::from_millis(100);
    let volume = RemoteVolume::connect(settings).await.unwrap();
    flood.send(()).expect("the relay");
    let begun = Instant::now();
    let read = volume.read(Extent { lba: Lba(0), blocks: 8 });
    // The limit is twenty times the normal duration. If sockets were polled before the clock, the read would take twice
    // as long as this limit.
    let read = tokio::time::timeout(Duration::from_secs(4), read).await;
    read.expect("an end").expect("by way of another connection");
    assert!(begun.elapsed() >= Duration::from_millis(200), "the flood alone ended nothing");
}

async fn read_login(stream: &mut TcpStream) -> LoginRequest {
    let mut decoder = Decoder::new(16384, 8192);
    loop {
        if let Some(frame) = decoder.next().expect("sound") {
            match Pdu::parse(&frame.bhs, &frame.ahs, frame.data).expect("a PDU") {
                Pdu::LoginRequest(request) => return request,
                other => panic!("{other:?}"),
            }
        }
        let byte = stream.read_u8().await.expect("the initiator");
        decoder.buffer().put_u8(byte);
    }
}

#[tokio::test]
async fn a_redirected_login_uses_the_new_address() {
    let node = Node::start(Geometry::with_blocks(1024)).await;
    let portal = redirect_to(|_| node.address).await;
    let volume = RemoteVolume::connect(Settings::new(portal.to_string(), NAME, 0)).await.unwrap();
    assert_eq!(volume.geometry().blocks, 1024);
}

#[tokio::test]
async fn redirections_in_a_circle_end() {
    let portal = redirect_to(|here| here).await;
    let error = RemoteVolume::connect(Settings::new(portal.to_string(), NAME, 0)).await.err();
    assert!(matches!(error, Some(Error::Redirected(_))), "{error:?}");
}
