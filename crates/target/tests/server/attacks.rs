//! Tests initiators that attack the server: other initiators are not affected, and the attack is reported once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    keys::NegotiationOffer,
    pdu::{DataOut, LoginRequest, LoginStage, LoginStatus},
};
use socket2::SockRef;
use target::{Settings, Target, TargetServer};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use unit::{BlockUnit, LogicalUnit, UnitIdentity};
use volume::{Geometry, MemVolume};

use crate::client::{Client, LOOPBACK, TARGET, memory, refused, server, soon, until};
use crate::events::Log;
use crate::login_limits::closed;

fn login(text: impl Into<bytes::Bytes>) -> Pdu {
    Pdu::LoginRequest(LoginRequest {
        transit: true,
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
        isid: Isid([0x80, 0, 0, 0, 0, 66]),
        itt: Itt(1),
        cid: Cid(1),
        cmd_sn: Serial(1),
        text: text.into(),
        ..LoginRequest::default()
    })
}

/// Waits until `failed` logins have failed, and checks that the session `good` still works.
async fn unharmed(server: &TargetServer, good: &mut Client, failed: u64) {
    until(|| server.statistics().failed_logins >= failed).await;
    assert_eq!(server.statistics().failed_logins, failed);
    assert_eq!(server.statistics().logins_in_progress, 0);
    good.settle().await;
}

#[tokio::test]
async fn spdk_3927_no_pdu_before_login_does_harm() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    let mut count = 0;
    for opcode in (0..=0x3f_u8).filter(|opcode| *opcode != 3) {
        for fill in [0, 0xff] {
            let mut header = [fill; 48];
            header[0] = 0x40 | opcode;
            // Announce neither additional headers nor data, so that the PDU is complete.
            header[4..8].fill(0);
            let mut client = Client::connect(address).await;
            let _ = client.socket().write_all(&header).await;
            closed(&mut client).await;
            count += 1;
        }
    }
    unharmed(&server, &mut good, count).await;
}

#[tokio::test]
async fn cve_2011_0001_lengths_beyond_every_buffer_before_login_are_refused_at_the_header() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    let mut count = 0;
    for opcode in [0x43_u8, 0x03, 0x41, 0x40, 0x44, 0x05] {
        for (ahs, data) in [(0, 0xff_ffff_u32), (0xff, 0xff_ffff), (0, 8193), (0xff, 0)] {
            let mut header = [0; 48];
            header[0] = opcode;
            header[4..8].copy_from_slice(&data.to_be_bytes());
            header[4] = ahs;
            let mut client = Client::connect(address).await;
            client.socket().write_all(&header).await.unwrap();
            // Announce data without sending any. 255 words of additional headers are within the limit of a connection,
            // so the target waits for them; send those.
            if data == 0 {
                let _ = client.socket().write_all(&[0xff; 1020]).await;
            }
            closed(&mut client).await;
            count += 1;
        }
    }
    unharmed(&server, &mut good, count).await;
}

#[tokio::test]
async fn cve_2013_2850_the_longest_keys_of_a_login_are_answered_within_bounds() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    let long = |length: usize| "x".repeat(length);
    let names = format!("InitiatorName=iqn.2026-11.io.forebay:bad\0TargetName={TARGET}\0");
    let texts = [
        long(8192),
        format!("{}=1\0", long(8189)),
        format!("X-key={}\0", long(8185)),
        format!("{names}{}=1\0", long(64)),
        format!("{names}MaxBurstLength={}\0", long(4000)),
        format!("{names}MaxBurstLength={}\0", "9".repeat(4000)),
        format!("InitiatorName=iqn.{}\0TargetName={TARGET}\0", long(3000)),
        format!("{names}InitiatorAlias={}\0", long(3000)),
        "=\0".repeat(4096),
        "\0".repeat(8192),
    ];
    for text in texts {
        let mut client = Client::connect(address).await;
        client.send(login(text)).await;
        while let Some(pdu) = client.receive().await {
            let Pdu::LoginResponse(response) = pdu else { panic!("{pdu:?}") };
            assert!(response.text.len() <= 8192);
            if response.status == LoginStatus::Success {
                break;
            }
        }
    }
    until(|| server.statistics().logins_in_progress == 0).await;
    good.settle().await;
}

/// In CVE-2026-44943, names of initiators could break a line of the log, or lead out of a directory.
#[tokio::test]
async fn cve_2026_44943_names_that_break_lines_or_leave_directories_are_refused() {
    let log = Log::start();
    let (server, address) = server(Settings::default(), memory()).await;
    let names: [&[u8]; 6] = [
        b"iqn.2026-11.io.forebay:a\nINFO session opened",
        b"iqn.2026-11.io.forebay:\x1b[2J",
        b"iqn.2026-11.io.forebay:../../../etc/passwd",
        b"../../etc/passwd",
        b"iqn.2026-11.io.forebay:\xff\xfe",
        b"iqn.2026-11.io.forebay:%n%n%s",
    ];
    for name in names {
        for key in ["InitiatorName", "TargetName"] {
            let other = match key {
                "InitiatorName" => format!("TargetName={TARGET}"),
                _ => "InitiatorName=iqn.2026-11.io.forebay:bad".to_owned(),
            };
            let text = [key.as_bytes(), b"=", name, b"\0", other.as_bytes(), b"\0"].concat();
            let mut client = Client::connect(address).await;
            client.send(login(text)).await;
            if let Some(pdu) = client.receive().await {
                let Pdu::LoginResponse(response) = pdu else { panic!("{pdu:?}") };
                assert_ne!(response.status, LoginStatus::Success, "{name:?} as {key}");
            }
        }
    }
    until(|| server.statistics().failed_logins == 12).await;
    for line in log.lines() {
        assert!(line.contains(' ') && !line.starts_with("INFO session"), "{line}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
}

#[tokio::test]
async fn a_segment_of_2_24_minus_1_bytes_after_login_ends_its_session_alone() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    let mut bad = Client::log_in(address, 2).await;
    let mut header = [0; 48];
    (header[0], header[1]) = (0x40, 0x80);
    header[5..8].fill(0xff);
    bad.socket().write_all(&header).await.unwrap();
    closed(&mut bad).await;
    until(|| server.statistics().connections == 1).await;
    good.settle().await;
}

/// A session must not be able to send data for a write of another session.
#[tokio::test]
async fn data_out_with_the_tags_of_another_session_touches_nothing() {
    let (_server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    good.settle().await;
    let mut bad = Client::log_in(address, 2).await;
    bad.settle().await;
    let mut write = good.command(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0], 4096);
    (write.read, write.write) = (false, true);
    good.send(Pdu::ScsiCommand(write)).await;
    let Some(Pdu::ReadyToTransfer(r2t)) = good.receive().await else { panic!("no R2T") };
    let data = |byte: u8| good.data_out(&r2t, vec![byte; 4096]);
    for ttt in [r2t.ttt, Ttt::NONE, Ttt(0), Ttt(r2t.ttt.0.wrapping_add(1))] {
        bad.send(Pdu::DataOut(DataOut { ttt, ..data(6) })).await;
    }
    // The response or the close shows that the target has processed the Data-Out PDUs.
    let question = bad.command(&[0], 0);
    bad.send(Pdu::ScsiCommand(question)).await;
    while !matches!(bad.receive().await, None | Some(Pdu::ScsiResponse(_))) {}
    good.send(Pdu::DataOut(data(7))).await;
    assert_eq!(good.response().await.status, 0);
    let read = good.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], 4096);
    assert_eq!(good.read(read).await, (0, vec![7; 4096]));
}

/// LIO and tcmu-runner copied from and to any unit that an initiator could name, regardless of its access.
#[tokio::test]
async fn cve_2020_28374_a_copy_cannot_use_a_unit_of_a_target_without_a_session() {
    const SECRET: &str = "iqn.2026-11.io.forebay:secret";
    let target = |name: &str| Target::new(name, vec![(0, block_unit(name))]);
    let server =
        TargetServer::new(Settings::default(), vec![target(TARGET), target(SECRET)]).unwrap();
    let address = server.open_portal(LOOPBACK.into()).await.unwrap();
    let offer = NegotiationOffer::initiator();
    let owner = Client::try_log_in(address, 1, offer, Tsih(0), Some(SECRET)).await;
    let mut owner = owner.unwrap();
    let mut bad = Client::log_in(address, 2).await;
    owner.settle().await;
    bad.settle().await;
    write(&mut owner, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]).await;
    write(&mut bad, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[6; 512]).await;

    let (theirs, own) = (designators(&mut owner).await, designators(&mut bad).await);
    assert!(!theirs.is_empty() && !own.is_empty());
    for a in &theirs {
        for b in &own {
            for (from, to) in [(a, b), (b, a), (a, a)] {
                let list = copy_list(from, to);
                let mut cdb = [0; 16];
                cdb[0] = 0x83;
                cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
                assert_ne!(write(&mut bad, &cdb, &list).await, 0, "it must not succeed");
            }
        }
    }
    let read = bad.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512);
    assert_eq!(bad.read(read).await, (0, vec![6; 512]), "nothing came over");
    let read = owner.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512);
    assert_eq!(owner.read(read).await, (0, vec![7; 512]), "nothing went over");
}

fn block_unit(name: &str) -> Arc<dyn LogicalUnit> {
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(2048)));
    let identity = UnitIdentity::new(name).with_target(name);
    Arc::new(BlockUnit::new(volume, identity, unit::Settings::default()))
}

/// Executes a command that sends data, and returns its status.
async fn write(client: &mut Client, cdb: &[u8], data: &[u8]) -> u8 {
    let mut command = client.command(cdb, data.len() as u32);
    (command.read, command.write) = (false, true);
    client.send(Pdu::ScsiCommand(command)).await;
    loop {
        match client.receive().await.expect("open") {
            Pdu::ScsiResponse(response) => return response.status,
            Pdu::ReadyToTransfer(r2t) => {
                client.send(Pdu::DataOut(client.data_out(&r2t, data.to_vec()))).await;
            }
            pdu => panic!("{pdu:?}"),
        }
    }
}

/// Returns the designators of the unit: code set, association with type, designator.
async fn designators(client: &mut Client) -> Vec<(u8, u8, Vec<u8>)> {
    let inquiry = client.command(&[0x12, 1, 0x83, 2, 0, 0], 512);
    let (status, page) = client.read(inquiry).await;
    assert_eq!(status, 0);
    let mut rest = &page[4..];
    let mut found = Vec::new();
    while let [code_set, kind, _, length, ..] = *rest {
        let designator = rest[4..4 + usize::from(length)].to_vec();
        if kind & 0x30 == 0 && designator.len() <= 20 {
            found.push((code_set & 0xf, kind & 0x3f, designator));
        }
        rest = &rest[4 + usize::from(length)..];
    }
    found
}

/// Returns the parameter list of an EXTENDED COPY (LID1) that copies one block (SPC-4, 6.3).
fn copy_list(from: &(u8, u8, Vec<u8>), to: &(u8, u8, Vec<u8>)) -> Vec<u8> {
    let mut list = vec![0; 16];
    for (code_set, kind, designator) in [from, to] {
        let mut descriptor = [0; 32];
        descriptor[0] = 0xe4;
        (descriptor[4], descriptor[5]) = (*code_set, *kind);
        descriptor[7] = designator.len() as u8;
        descriptor[8..8 + designator.len()].copy_from_slice(designator);
        descriptor[30] = 2;
        list.extend(descriptor);
    }
    let mut segment = [0; 28];
    (segment[0], segment[3]) = (2, 24);
    (segment[7], segment[11]) = (1, 1);
    list.extend(segment);
    (list[3], list[11]) = (64, 28);
    list
}

#[tokio::test]
async fn a_connection_reset_in_the_middle_of_data_out_leaves_nothing_behind() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    good.settle().await;
    for who in 2..10 {
        let mut bad = Client::log_in(address, who).await;
        bad.settle().await;
        let mut write = bad.command(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 128, 0], 65536);
        (write.read, write.write) = (false, true);
        bad.send(Pdu::ScsiCommand(write)).await;
        let Some(Pdu::ReadyToTransfer(r2t)) = bad.receive().await else { panic!("no R2T") };
        // Send the header of a Data-Out and half of the data that it announces, then close the connection.
        let mut bytes = [6; 48 + 20_000];
        bytes[..48].fill(0);
        bytes[0] = 5;
        bytes[5..8].copy_from_slice(&40_000_u32.to_be_bytes()[1..]);
        bytes[16..20].copy_from_slice(&r2t.itt.0.to_be_bytes());
        bytes[20..24].copy_from_slice(&r2t.ttt.0.to_be_bytes());
        bad.socket().write_all(&bytes).await.unwrap();
        SockRef::from(&*bad.socket()).set_linger(Some(Duration::ZERO)).unwrap();
        drop(bad);
    }
    until(|| server.statistics().connections == 1).await;
    let read = good.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 128, 0], 65536);
    assert_eq!(good.read(read).await, (0, vec![0; 65536]), "no part of a write was done");
}

#[tokio::test]
async fn a_thousand_connections_leave_a_session_unharmed() {
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(soon(TcpStream::connect(address)).await.unwrap());
        if idle.len() % 100 == 0 {
            good.settle().await;
        }
    }
    let limit = Settings::default().max_logins_per_address;
    until(|| server.statistics().displaced_connections as usize >= 1000 - limit).await;
    assert!(server.statistics().logins_in_progress <= limit);
    good.settle().await;
    drop(idle);
    until(|| server.statistics().connections == 1).await;
    Client::log_in(address, 2).await.settle().await;
}

#[tokio::test]
async fn cve_2024_7409_a_stop_ends_while_connections_are_opened_and_closed() {
    let (server, address) = server(Settings::default(), memory()).await;
    let _good = Client::log_in(address, 1).await;
    let mut waiting = Vec::new();
    for n in 0..60 {
        let mut stream = soon(TcpStream::connect(address)).await.unwrap();
        let _ = stream.write_all(&[0x43; 48][..n % 48]).await;
        if n % 3 != 0 {
            waiting.push(stream);
        }
    }
    let started = Instant::now();
    soon(server.shutdown(Duration::ZERO)).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(server.statistics().connections, 0);
}

#[tokio::test]
async fn a_login_that_trickles_is_closed_at_its_deadline() {
    let mut settings = Settings::default();
    settings.session.login_time = Duration::from_millis(200);
    let (server, address) = server(settings, memory()).await;
    let mut client = Client::connect(address).await;
    let started = Instant::now();
    let mut sent = 0;
    while client.socket().write_all(&[0x43]).await.is_ok() && sent < 4000 {
        sent += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if server.statistics().failed_logins == 1 {
            break;
        }
    }
    closed(&mut client).await;
    assert!(started.elapsed() < Duration::from_secs(10), "each byte did not prolong it");
    assert!(sent > 10, "it was slow: {sent}");
    until(|| server.statistics().failed_logins == 1).await;
}

#[tokio::test]
async fn a_session_that_misbehaves_is_reported_once_with_address_and_name() {
    let log = Log::start();
    let (server, address) = server(Settings::default(), memory()).await;
    let mut good = Client::log_in(address, 1).await;
    for (who, misdeed) in [(2, 0x3f_u8), (3, 0x43), (4, 0x40), (5, 0x01)] {
        let mut bad = Client::log_in(address, who).await;
        let here = bad.socket().local_addr().unwrap().to_string();
        let mut header = [0xff; 48];
        header[0] = misdeed;
        for _ in 0..100 {
            let _ = bad.socket().write_all(&header).await;
        }
        closed(&mut bad).await;
        until(|| server.statistics().connections == 1).await;
        let lines = log.lines();
        let about: Vec<_> = lines.iter().filter(|line| line.contains(&here)).collect();
        let dropped: Vec<_> = about.iter().filter(|line| line.contains("WARN")).collect();
        assert_eq!(dropped.len(), 1, "{misdeed:#x}: {about:?}");
        let name = format!("iqn.2026-11.io.forebay:initiator-{who}");
        assert!(dropped[0].contains(&name), "{dropped:?}");
        assert!(about.len() <= 2, "opened and dropped: {about:?}");
    }
    good.settle().await;
}

#[tokio::test]
async fn a_login_that_fails_is_reported_once_with_its_address() {
    let log = Log::start();
    let (server, address) = server(Settings::default(), memory()).await;
    let mut client = Client::connect(address).await;
    let here = client.socket().local_addr().unwrap().to_string();
    let _ = client.socket().write_all(&[0xff; 5000]).await;
    closed(&mut client).await;
    until(|| server.statistics().failed_logins == 1).await;
    let lines = log.lines();
    let about = lines.iter().filter(|line| line.contains(&here)).count();
    assert_eq!(about, 1, "{lines:?}");
}

#[tokio::test]
async fn refusals_that_are_normal_after_a_restart_are_no_warnings() {
    let log = Log::start();
    let mut away = Target::new("iqn.2026-11.io.forebay:away", vec![(0, memory())]);
    away.is_unavailable = true;
    let here = Target::new(TARGET, vec![(0, memory())]);
    let server = TargetServer::new(Settings::default(), vec![here, away]).unwrap();
    let address = server.listen(LOOPBACK).await.unwrap();
    for (tsih, target, status) in [
        (Tsih(9), TARGET, LoginStatus::SessionDoesNotExist),
        (Tsih(0), "iqn.2026-11.io.forebay:away", LoginStatus::ServiceUnavailable),
        (Tsih(0), "iqn.2026-11.io.forebay:none", LoginStatus::NotFound),
    ] {
        let login =
            Client::try_log_in(address, 1, NegotiationOffer::initiator(), tsih, Some(target)).await;
        assert_eq!(refused(login.err().unwrap()), status);
    }
    until(|| server.statistics().failed_logins == 3).await;
    let lines = log.lines();
    let warnings: Vec<_> = lines.iter().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("forebay:none"), "{lines:?}");
}
