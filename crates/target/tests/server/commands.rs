//! Tests the way of commands from the socket to the unit, and of their responses.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use iscsi::{
    Pdu, Tsih,
    keys::{DigestPolicy, NegotiationOffer},
    pdu::Residual,
};
use scsi::{
    Lun,
    copy::{CopyList, CopySegment, Cscd},
};
use target::{Settings, Target, TargetServer};
use tokio::sync::Notify;
use unit::{BlockUnit, LogicalUnit, UnitIdentity};
use volume::{Geometry, MemVolume};

use crate::client::{Client, Stalling, TARGET, memory, server, until};

fn read10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

fn write10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 512) as u8).collect()
}

async fn writes_come_back(settings: Settings, offer: NegotiationOffer) {
    let (_server, address) = server(settings, memory()).await;
    let mut client = Client::try_log_in(address, 1, offer, Tsih(0), Some(TARGET)).await.unwrap();
    client.settle().await;
    for blocks in [1, 8, 255] {
        let data = pattern(usize::from(blocks) * 512);
        let length = data.len() as u32;
        let mut command = client.command(&write10(3, blocks), length);
        (command.read, command.write, command.data) = (false, true, data.clone().into());
        assert_eq!(client.read(command).await.0, 0);
        let command = client.command(&read10(3, blocks), length);
        assert_eq!(client.read(command).await, (0, data));
    }
}

#[tokio::test]
async fn written_data_is_read_back() {
    writes_come_back(Settings::default(), NegotiationOffer::initiator()).await;
}

#[tokio::test]
async fn written_data_is_read_back_with_digests() {
    let offer = NegotiationOffer {
        header_digest: DigestPolicy::Require,
        data_digest: DigestPolicy::Require,
        ..NegotiationOffer::initiator()
    };
    writes_come_back(Settings::default(), offer).await;
}

#[tokio::test]
async fn written_data_is_read_back_while_busy_polling() {
    let settings = Settings { busy_poll: Duration::from_millis(5), ..Settings::default() };
    writes_come_back(settings, NegotiationOffer::initiator()).await;
}

#[tokio::test]
async fn a_deep_queue_is_answered_completely_with_data_in_order() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    client.settle().await;
    for _ in 0..100 {
        let command = client.command(&read10(0, 8), 4096);
        client.send(Pdu::ScsiCommand(command)).await;
    }
    for _ in 0..100 {
        let Some(Pdu::DataIn(data_in)) = client.receive().await else { panic!() };
        assert_eq!(data_in.status.unwrap().status, 0);
    }
    until(|| server.statistics().total.data_in_bytes == 409_600).await;
    assert!(server.statistics().total.commands >= 101);
    assert_eq!(server.statistics().sessions[0].target_name.as_deref(), Some(TARGET));
}

#[tokio::test]
async fn the_target_lists_its_units_and_answers_for_absent_ones() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    let report = client.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 256);
    let (status, list) = client.read(report).await;
    assert_eq!((status, &list[..]), (0, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]));
    let mut inquiry = client.command(&[0x12, 0, 0, 0, 36, 0], 36);
    inquiry.lun = Lun(5 << 48);
    let (status, data) = client.read(inquiry).await;
    assert_eq!((status, data[0]), (0, 0x7f));
    let mut ready = client.command(&[0], 0);
    ready.lun = Lun(5 << 48);
    assert_eq!(client.read(ready).await.0, 2);
}

#[tokio::test]
async fn slow_commands_do_not_delay_others() {
    let unit = Arc::new(Stalling::default());
    let (_server, address) = server(Settings::default(), unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    let first = client.start(&[0]).await;
    let second = client.start(&[0]).await;
    until(|| unit.alive() == 2).await;
    let report = client.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 256);
    assert_eq!(client.read(report).await.0, 0);
    unit.go.notify_waiters();
    let mut answered = [client.response().await.itt, client.response().await.itt];
    answered.sort_by_key(|itt| itt.0);
    assert_eq!(answered, [first, second]);
    assert_eq!(unit.alive(), 0);
}

#[tokio::test]
async fn an_initiator_that_reads_nothing_gets_no_more_work_and_is_then_dropped() {
    let unit = Arc::new(Stalling::default());
    *unit.data.lock() = vec![7; 1 << 20].into();
    let settings = Settings {
        output_bytes: 1 << 20,
        slow_reader: Duration::from_millis(300),
        socket: transport::SocketOptions { send_buffer_bytes: Some(65_536), ..Default::default() },
        ..Settings::default()
    };
    let (server, address) = server(settings, unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    for _ in 0..100 {
        let command = client.command(&[0x28], 1 << 20);
        client.send(Pdu::ScsiCommand(command)).await;
    }
    until(|| {
        unit.go.notify_waiters();
        server.statistics().connections == 0
    })
    .await;
    assert_eq!(unit.alive(), 0);
}

#[tokio::test]
async fn data_of_commands_in_progress_is_bounded() {
    let unit = Arc::new(Stalling::default());
    let settings = Settings { held_bytes: 256 << 10, ..Settings::default() };
    let (_server, address) = server(settings, unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    for _ in 0..12 {
        let mut command = client.command(&write10(0, 128), 65_536);
        (command.read, command.write, command.data) = (false, true, pattern(65_536).into());
        client.send(Pdu::ScsiCommand(command)).await;
    }
    expect_twelve_in_fours(&unit, &mut client).await;
}

#[tokio::test]
async fn data_that_commands_in_progress_may_return_is_bounded() {
    let unit = Arc::new(Stalling::default());
    let settings = Settings { returned_bytes: 256 << 10, ..Settings::default() };
    let (_server, address) = server(settings, unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    for _ in 0..12 {
        let command = client.command(&read10(0, 128), 65_536);
        client.send(Pdu::ScsiCommand(command)).await;
    }
    expect_twelve_in_fours(&unit, &mut client).await;
}

/// Regression: a write that waited for another one of its connection made the driver reserve memory, return
/// it and wake itself again and again. This kept one processor busy until the first write was done.
#[test]
fn a_session_whose_write_waits_for_another_one_uses_no_processor() {
    let parked = Arc::new(Notify::new());
    let told = Arc::clone(&parked);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().on_thread_park(move || told.notify_one()).build().unwrap();
    runtime.block_on(async {
        let unit = Arc::new(Stalling::default());
        let (_server, address) = server(Settings::default(), unit).await;
        let mut client = Client::log_in(address, 1).await;
        for _ in 0..2 {
            let mut command = client.command(&write10(0, 128), 16 << 20);
            (command.read, command.write) = (false, true);
            client.send(Pdu::ScsiCommand(command)).await;
        }
        assert!(!client.asked().await.is_empty());
        // Discard the notification of a time when the runtime slept before.
        tokio::select! {
            biased;
            () = parked.notified() => {}
            () = std::future::ready(()) => {}
        }
        // Wait less than the 15 s after which a session without progress ends. All tasks must sleep, so the runtime
        // parks within this time.
        let sleeps = tokio::time::timeout(Duration::from_secs(5), parked.notified());
        sleeps.await.expect("nothing is to be done");
    });
}

/// The two connections may hold 256 KiB together, so the target requests at most 128 KiB on each.
#[tokio::test]
async fn data_that_connections_ask_for_is_bounded_together() {
    let settings = Settings { held_bytes: 256 << 10, ..Settings::default() };
    let (_server, address) = server(settings, memory()).await;
    let _other = Client::log_in(address, 2).await;
    let mut client = Client::log_in(address, 1).await;
    client.settle().await;
    let mut waiting = VecDeque::new();
    for _ in 0..6 {
        let mut command = client.command(&write10(0, 128), 65_536);
        (command.read, command.write) = (false, true);
        client.send(Pdu::ScsiCommand(command)).await;
    }
    for done in 0..6 {
        waiting.extend(client.asked().await);
        assert_eq!(waiting.len(), (6 - done).min(2), "with {done} done");
        let r2t = waiting.pop_front().expect("one at least was asked for");
        client.send(Pdu::DataOut(client.data_out(&r2t, pattern(65_536)))).await;
        loop {
            match client.receive().await.expect("open") {
                Pdu::ReadyToTransfer(r2t) => waiting.push_back(r2t),
                Pdu::ScsiResponse(response) => break assert_eq!(response.status, 0),
                pdu => panic!("{pdu:?}"),
            }
        }
    }
}

/// Checks that at most four of twelve commands are executed at a time. If more were executed at once, the first release
/// would end more than four.
async fn expect_twelve_in_fours(unit: &Stalling, client: &mut Client) {
    for _ in 0..3 {
        until(|| unit.alive() == 4).await;
        unit.go.notify_waiters();
        for _ in 0..4 {
            assert_eq!(client.response().await.status, 0);
        }
    }
    assert_eq!(unit.alive(), 0);
}

#[tokio::test]
async fn the_residual_of_a_read_counts_bytes_without_room() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::log_in(address, 1).await;
    client.settle().await;
    for (room, residual) in [
        (0, Residual::Overflow(4096)),
        (512, Residual::Overflow(3584)),
        (700, Residual::Overflow(3396)),
        (4096, Residual::None),
        (5000, Residual::Underflow(904)),
    ] {
        let command = client.command(&read10(0, 8), room);
        client.send(Pdu::ScsiCommand(command)).await;
        let (data, told) = match client.receive().await {
            Some(Pdu::DataIn(data_in)) => {
                (data_in.data.concat().len(), data_in.status.expect("the last").residual)
            }
            Some(Pdu::ScsiResponse(response)) => (0, response.residual),
            pdu => panic!("{pdu:?}"),
        };
        assert_eq!((data, told), (room.min(4096) as usize, residual));
    }
}

/// Returns settings with short keepalive times.
fn impatient(settings: Settings) -> Settings {
    let time = Duration::from_millis(250);
    let session =
        iscsi::session::target::Settings { ping_after: time, dead_after: time, ..settings.session };
    Settings { session, ..settings }
}

/// Returns the processor time that the thread of this test has used.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// Regression: a time-out that had expired while sockets were not read was checked repeatedly without a
/// pause.
#[tokio::test]
async fn a_session_at_its_memory_limit_uses_no_processor_and_ends_no_connection() {
    let unit = Arc::new(Stalling::default());
    let settings = impatient(Settings { held_bytes: 64 << 10, ..Settings::default() });
    let (_server, address) = server(settings, unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    for _ in 0..2 {
        let mut command = client.command(&write10(0, 128), 65_536);
        (command.read, command.write, command.data) = (false, true, pattern(65_536).into());
        client.send(Pdu::ScsiCommand(command)).await;
    }
    until(|| unit.alive() == 1).await;
    let before = worked();
    // Wait twice the time after which a connection counts as silent.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let worked = worked() - before;
    assert!(worked < Duration::from_millis(300), "{worked:?}");
    for _ in 0..2 {
        until(|| unit.alive() == 1).await;
        unit.go.notify_waiters();
        assert_eq!(client.response().await.status, 0);
    }
}

#[tokio::test]
async fn an_initiator_that_reads_slowly_does_not_count_as_silent() {
    const READS: usize = 32;
    let unit = Arc::new(Stalling::default());
    *unit.data.lock() = vec![7; 1 << 20].into();
    let settings = impatient(Settings {
        output_bytes: 1 << 20,
        socket: transport::SocketOptions { send_buffer_bytes: Some(65_536), ..Default::default() },
        ..Settings::default()
    });
    let (_server, address) = server(settings, unit.clone()).await;
    let mut client = Client::log_in(address, 1).await;
    for _ in 0..READS {
        let command = client.command(&[0x28], 1 << 20);
        client.send(Pdu::ScsiCommand(command)).await;
    }
    until(|| unit.alive() == READS).await;
    unit.go.notify_waiters();
    let (mut answered, mut bytes) = (0, 0);
    while answered < READS {
        match client.receive().await.expect("open") {
            Pdu::DataIn(data_in) => {
                bytes += data_in.data.concat().len();
                answered += usize::from(data_in.status.is_some());
            }
            Pdu::NopIn(_) => {}
            pdu => panic!("{pdu:?}"),
        }
        // Read slowly: reading takes three times the time after which a connection counts as silent. Do not wait for
        // the last bytes, which may be in the two socket buffers.
        if bytes < 24 << 20 {
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }
    assert_eq!(bytes, READS << 20);
}

/// CVE-2020-28374: a copy manager that knew all units of the server let any session read and write all of
/// them.
#[tokio::test]
async fn cve_2020_28374_a_session_copies_only_among_the_units_of_its_target() {
    let unit = |serial: &str| -> Arc<dyn LogicalUnit> {
        let volume = Arc::new(MemVolume::new(Geometry::with_blocks(64)));
        Arc::new(BlockUnit::new(volume, UnitIdentity::new(serial), unit::Settings::default()))
    };
    let targets = vec![
        Target::new(TARGET, vec![(0, unit("a")), (1, unit("b"))]),
        Target::new("iqn.2026-11.io.forebay:other", vec![(0, unit("c"))]),
    ];
    let server = TargetServer::new(Settings::default(), targets).unwrap();
    let address = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut client = Client::log_in(address, 1).await;
    client.settle().await;
    let cscd = |serial: &str| Cscd::naa(UnitIdentity::new(serial).naa, 512);
    let segment =
        CopySegment { source: 0, destination: 1, blocks: 8, source_lba: 0, destination_lba: 0 };
    for (from, to, status) in [("a", "b", 0), ("b", "a", 0), ("a", "c", 2), ("c", "a", 2)] {
        let list = CopyList {
            list: 1,
            identified: true,
            cscds: vec![cscd(from), cscd(to)],
            segments: vec![segment],
        };
        let data = list.to_bytes(false);
        let length = data.len() as u32;
        let copy = scsi::Command::Primary(scsi::PrimaryCommand::ExtendedCopy {
            long: false,
            parameter_list_length: length,
        });
        let mut command = client.command(&copy.encode(), length);
        (command.read, command.write, command.data) = (false, true, data.into());
        assert_eq!(client.read(command).await.0, status, "{from} to {to}");
    }
}
