//! Wireshark's dissector on a session with a real node: every service action, as the object client sends it.
//!
//! The test needs `tshark` (Debian package tshark); `FOREBAY_NO_INTEROP=1` leaves it out.

use std::{collections::BTreeSet, process::Command as Program, time::Duration};

use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, CopyMethod, CopySource,
    FlushScope, KeyToSet, MapType, ObjectAddress, ObjectRequest, Query, QueryMatch, Timestamp,
};
use osd::{OsdCdb, ServiceAction};
use volume::Data;

use crate::{
    capture::{Capture, Sender, TARGET_PORT},
    commands::{self, OBJECT, PARTITION},
    scene::Scene,
};

/// Time limit of tshark, which takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns a request for a command of `commands.rs`, with what the command needs besides its CDB.
fn request(command: Command) -> ObjectRequest {
    let mut request = ObjectRequest::new(command);
    request.data = Data::from(vec![7; command.data_out_length() as usize]);
    request.continuation = match command {
        Command::Query { .. } => {
            Continuation::Query(Query { match_type: QueryMatch::All, criteria: Vec::new() })
        }
        Command::CopyUserObjects { .. } => Continuation::CopySource(CopySource {
            object: OBJECT,
            with_attributes: true,
            freeze: false,
            time: Timestamp::ZERO,
        }),
        Command::ReadMapsAndCompare { .. } => Continuation::UserObject(OBJECT),
        _ => Continuation::None,
    };
    request
}

/// Sends all commands, first those that later ones need. Returns the service actions that were answered with GOOD.
async fn send_all(scene: &Scene) -> BTreeSet<u16> {
    let mut good = BTreeSet::new();
    for with_lists in [false, true] {
        scene.prepare().await;
        let create = Command::Create { partition: PARTITION, requested: OBJECT.object, count: 1 };
        scene.perform(create).await.expect("an object");
        for (command, _) in commands::all() {
            // Skip these commands: they would remove the keys and objects that the other commands need.
            if matches!(command, Command::FormatOsd { .. } | Command::SetKey(_)) && !with_lists {
                continue;
            }
            let mut request = request(command);
            if with_lists && !matches!(command, Command::FormatOsd { .. }) {
                request.set.push(Attribute::new(0x1_0000, 5, b"value".to_vec()));
                let id = AttributeId::new(0x1_0000, 5);
                request.get.push(AttributeSelection::One(id));
            }
            if scene.through.request(request).await.is_ok() {
                good.insert(OsdCdb::new(command).service_action() as u16);
            }
        }
    }
    send_more(scene, &mut good).await;
    good
}

/// Sends commands on collections and copies that exist, and notes the service actions.
async fn send_more(scene: &Scene, good: &mut BTreeSet<u16>) {
    scene.prepare().await;
    let (partition, requested, method) = (PARTITION, 0, CopyMethod(0));
    let create = Command::Create { partition, requested: OBJECT.object, count: 1 };
    scene.perform(create).await.expect("an object");
    let collection = ObjectAddress::new(PARTITION, OBJECT.object + 0x100);
    let list = commands::LIST;
    let join = Attribute::new(4, 1, collection.object.to_be_bytes().to_vec());
    let value = Attribute::new(0x1_0000, 5, b"value".to_vec());
    let whole = ObjectRequest::new;
    let query = Command::Query { collection, allocation_length: 512, matches: 0, immediate: false };
    let (start, allocation_length, map_type) = (0, 512, MapType::All);
    let map = Command::ReadMap { object: OBJECT, allocation_length, start, map_type };
    let all = [
        whole(Command::CreateCollection { partition, requested: collection.object }),
        whole(Command::SetAttributes { object: OBJECT }).setting(join),
        whole(Command::ListCollection { collection, list }),
        whole(Command::GetMemberAttributes { collection })
            .getting(AttributeSelection::One(value.id)),
        whole(Command::SetMemberAttributes { collection }).setting(value),
        request(query),
        whole(map),
        request(Command::CopyUserObjects { partition, requested, method }),
        whole(Command::FlushCollection { collection, scope: FlushScope::RangeOrEverything }),
        whole(Command::CreateSnapshot { source: partition, requested, method }),
        whole(Command::RemoveMemberObjects { collection }),
        whole(Command::RemoveCollection { collection, force: true }),
        whole(scene.key(KeyToSet::Working { partition, version: 5 })),
        whole(Command::RemovePartition { partition, with_contents: true }),
    ];
    for request in all {
        let command = request.command;
        let done = scene.through.request(request).await;
        assert!(done.is_ok(), "{command:?}: {done:?}");
        good.insert(OsdCdb::new(command).service_action() as u16);
    }
}

fn dissect(capture: &Capture) -> Option<String> {
    if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
        eprintln!("left out: tshark (FOREBAY_NO_INTEROP=1)");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session.pcap");
    std::fs::write(&file, capture.bytes()).expect("the capture is written");
    let mut command = Program::new("tshark");
    // The settings of the user must not change the output.
    command.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path()).env("LC_ALL", "C");
    command.arg("-r").arg(&file);
    command.args(["-n", "-V", "-d", &format!("tcp.port=={TARGET_PORT},iscsi")]);
    let missing = "tshark runs (Debian package tshark; FOREBAY_NO_INTEROP=1 leaves this out)";
    let finished = program::run(&mut command, LIMIT).expect(missing);
    assert!(finished.success(), "{}: {}", finished.ending(), finished.tail(5));
    Some(finished.output)
}

#[tokio::test]
async fn tshark_finds_a_session_with_a_real_node_well_formed() {
    let scene = Scene::new().await;
    // The login must be in the capture, so that tshark knows what was agreed: make a new session.
    scene.proxy.cut_after(0);
    scene.proxy.record();
    let good = send_all(&scene).await;
    let recorded = scene.proxy.recorded();
    // The first connection is the one that was cut.
    let last = recorded.iter().map(|pdu| pdu.connection).max().expect("PDUs");
    let mut capture = Capture::new();
    for pdu in recorded.iter().filter(|pdu| pdu.connection == last) {
        let from = if pdu.is_from_initiator { Sender::Initiator } else { Sender::Target };
        capture.send_bytes(from, &pdu.bytes);
    }
    println!("{} PDUs, {} service actions answered with GOOD", recorded.len(), good.len());
    assert!(good.len() >= 25, "{good:x?}");
    let Some(seen) = dissect(&capture) else { return };
    // Page B0h of an object drive is the OSD information page (OSD-2, 7.7). tshark takes it for the block limits of a
    // disk, and misses the rest of them.
    let is_known = |frame: &&str| {
        frame.contains("Device Type: Object-based Storage Device (0x11)")
            && frame.contains("EVPD Page Code: Block Limits Page")
    };
    let frames = seen.split("\nFrame ").filter(|frame| !is_known(frame));
    let mut malformed = frames.filter(|frame| frame.to_lowercase().contains("malformed"));
    assert_eq!(malformed.next(), None);
    let is_named = |action: &ServiceAction| {
        let code = format!("({:#06x})", *action as u16);
        let mut names = seen.lines().filter(|line| line.contains("Service Action: "));
        names.any(|line| line.trim_end().ends_with(&code))
    };
    let missing: Vec<_> = ServiceAction::ALL.iter().filter(|action| !is_named(action)).collect();
    assert!(missing.is_empty(), "not in the capture: {missing:?}");
}
