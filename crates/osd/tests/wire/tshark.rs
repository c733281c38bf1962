//! Wireshark's dissector on a capture of every service action. The dissector was written
//! from the text of OSD-2 and shares no code with Forebay.
//!
//! Version 4.0 of tshark decodes the fields of nine commands and knows the names of eleven more.
//! The bytes of all commands are compared in `golden.rs`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use osd::{AttributeParameters, OsdCdb, PageToGet, ServiceAction, Space};
use scsi::{ObjectIdentification, ObjectSense, Sense};

use crate::capture::TARGET_PORT;
use crate::commands::{self, OBJECT};
use crate::exchange::{Exchange, Session};
use crate::requests;

/// Time limit for tshark, which normally takes a second.
const LIMIT: Duration = Duration::from_secs(60);

const CHECK_CONDITION: u8 = 2;

/// The lines that tshark prints for the commands of `commands.rs` whose fields it decodes.
const DECODED: [(ServiceAction, &[&str]); 9] = [
    (
        ServiceAction::List,
        &[
            "Service Action: List (OSD-2)",
            "LIST ATTR flag: True",
            "Sort Order: Ascending",
            "Partition Id: 0x0000000000010000",
            "Allocation Length: 512",
            "Initial Object Id: 0000000000010003",
            "List Identifier: 77",
        ],
    ),
    (
        ServiceAction::CreatePartition,
        &[
            "Service Action: Create Partition (OSD-2)",
            "Requested Partition Id: 0x0000000017171717",
            "CDB Continuation Length: 0",
        ],
    ),
    (
        ServiceAction::RemovePartition,
        &[
            "Service Action: Remove Partition (OSD-2)",
            "Partition Id: 0x0000000017171717",
            "Remove scope: Remove collections and user objects in the partition",
        ],
    ),
    (
        ServiceAction::GetAttributes,
        &[
            "Service Action: Get Attributes (OSD-2)",
            "Partition Id: 0x0000000000010000",
            "User Object Id: 0000000000010001",
        ],
    ),
    (
        ServiceAction::SetAttributes,
        &[
            "Service Action: Set Attributes (OSD-2)",
            "Partition Id: 0x0000000000010000",
            "User Object Id: 0000000000010001",
        ],
    ),
    (
        ServiceAction::CreateUserTrackingCollection,
        &[
            "Service Action: Create User Tracking Collection",
            "Partition Id: 0x0000000000010000",
            "Requested Collection Object Id: 0000000000010007",
            "Source Collection Object ID: 0000000000010009",
        ],
    ),
    (
        ServiceAction::RemoveCollection,
        &[
            "Service Action: Remove Collection (OSD-2)",
            "Partition Id: 0x0000000000010000",
            "Collection Object Id: 0000000000010001",
            "FCR: Set",
        ],
    ),
    (
        ServiceAction::ListCollection,
        &[
            "Service Action: List Collection (OSD-2)",
            "LIST ATTR flag: True",
            "Partition Id: 0x0000000000010000",
            "Collection Object Id: 0000000000010001",
            "Allocation Length: 512",
            "Initial Object Id: 0000000000010003",
            "List Identifier: 77",
        ],
    ),
    (
        ServiceAction::Query,
        &[
            "Service Action: Query (OSD-2)",
            "Partition Id: 0x0000000000010000",
            "Collection Object Id: 0000000000010001",
            "CDB Continuation Length: 80",
            "CDB Continuation Format: OSD2 (0x01)",
            "Continued Service Action: 0x88a0",
            "Descriptor Type: Query list (0x0002)",
            "Descriptor Length: 26",
            "Query Type: Match all",
            "Entry Length: 18",
            "Minimum Attribute Value Length: 4",
            "Maximum Attribute Value Length: 2",
        ],
    ),
];

/// The commands whose fields tshark does not decode, and the names that it prints for them.
const NAMED: [(ServiceAction, &str); 11] = [
    (ServiceAction::Create, "Create (OSD-2)"),
    (ServiceAction::Read, "Read (OSD-2)"),
    (ServiceAction::Write, "Write (OSD-2)"),
    (ServiceAction::Append, "Append (OSD-2)"),
    (ServiceAction::Clear, "Clear (OSD-2)"),
    (ServiceAction::Remove, "Remove (OSD-2)"),
    (ServiceAction::CreateAndWrite, "Create And Write (OSD-2)"),
    (ServiceAction::CopyUserObjects, "Copy User Objects (OSD-2)"),
    (ServiceAction::RemoveMemberObjects, "Remove Member Objects (OSD-2)"),
    (ServiceAction::GetMemberAttributes, "Get Member Attributes (OSD-2)"),
    (ServiceAction::SetMemberAttributes, "Set Member Attributes (OSD-2)"),
];

/// The text that `tshark -V` prints for each frame of a capture.
struct Dissection(Vec<String>);

impl Dissection {
    /// Lets tshark decode the capture of a session. Returns `None` if tests with foreign tools are
    /// left out.
    fn of(session: &Session) -> Option<Self> {
        if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
            eprintln!("left out: tshark (FOREBAY_NO_INTEROP=1)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("objects.pcap");
        std::fs::write(&file, session.capture.bytes()).expect("the capture is written");
        let output = tshark(&file, folder.path());
        let frames = output.split("\nFrame ").skip(1);
        let frames: Vec<String> = frames.map(str::to_owned).collect();
        assert!(!frames.is_empty(), "{output}");
        Some(Self(frames))
    }

    /// Returns the lines that tshark prints for a frame, without indentation and without the bits
    /// of bit fields.
    fn lines(&self, frame: usize) -> impl Iterator<Item = &str> {
        self.0[frame - 1].lines().map(|line| {
            let line = line.trim_start();
            line.split_once(" = ").map_or(line, |(_, value)| value)
        })
    }

    fn assert_says(&self, frame: usize, expected: &str) {
        let is_said = self.lines(frame).any(|line| line.starts_with(expected));
        assert!(is_said, "no '{expected}' in frame {frame}:\n{}", self.0[frame - 1]);
    }

    /// Returns the lines that complain about a frame: malformed PDUs, and messages above the
    /// severity Note. Attributes that tshark does not know are only notes.
    fn complaints(&self, frame: usize) -> Vec<&str> {
        let is_complaint = |line: &&str| {
            let severity = line.strip_prefix("[Severity level: ");
            let is_severe =
                severity.is_some_and(|s| !s.starts_with("Note") && !s.starts_with("Chat"));
            is_severe || line.to_lowercase().contains("malformed")
        };
        self.lines(frame).filter(is_complaint).collect()
    }

    fn assert_well_formed(&self) {
        for frame in 1..=self.0.len() {
            let complaints = self.complaints(frame);
            assert!(complaints.is_empty(), "{complaints:?} in frame {}", self.0[frame - 1]);
        }
    }
}

fn tshark(file: &Path, home: &Path) -> String {
    let mut command = Command::new("tshark");
    // Leave the user's settings out: they could change the output.
    command.env("HOME", home).env("XDG_CONFIG_HOME", home).env("LC_ALL", "C");
    command.arg("-r").arg(file);
    command.args(["-n", "-V", "-d", &format!("tcp.port=={TARGET_PORT},iscsi")]);
    let missing = "tshark runs (Debian package tshark; FOREBAY_NO_INTEROP=1 leaves this out)";
    let finished = program::run(&mut command, LIMIT).expect(missing);
    assert!(finished.success(), "{}: {}", finished.ending(), finished.tail(5));
    finished.output
}

/// A command in the capture, and the number of its frame.
struct Sent {
    action: ServiceAction,
    frame: usize,
    exchange: Exchange,
}

/// Adds every command of `commands.rs` to the capture, with the buffers that `request` makes.
fn perform_all(session: &mut Session, request: fn(object::Command) -> Exchange) -> Vec<Sent> {
    let commands = commands::all().into_iter();
    let sent = commands.map(|(command, _)| {
        let exchange = request(command);
        let frame = session.perform(&exchange);
        Sent { action: OsdCdb::new(command).service_action(), frame, exchange }
    });
    sent.collect()
}

#[test]
fn tshark_finds_every_service_action_well_formed() {
    let mut session = Session::new();
    let plain = perform_all(&mut session, requests::plain);
    let with_lists = perform_all(&mut session, requests::with_lists);
    let Some(seen) = Dissection::of(&session) else { return };
    seen.assert_well_formed();
    for Sent { action, frame, exchange } in plain.iter().chain(&with_lists) {
        seen.assert_says(*frame, &format!("AHS Length: {}", 236 - 15));
        seen.assert_says(*frame, "AHS Type: Extended CDB (1)");
        let out = exchange.data_out.len();
        let back = exchange.data_in.len();
        let expected = if out > 0 { out } else { back };
        seen.assert_says(*frame, &format!("ExpectedDataTransferLength: {expected} "));
        let words = if out > 0 && back > 0 {
            seen.assert_says(*frame, &format!("Bidirectional Read Data Length: {back}"));
            58
        } else {
            56
        };
        seen.assert_says(*frame, &format!("TotalAHSLength: {words} "));
        let name = seen.lines(*frame).find(|line| line.starts_with("Service Action: "));
        let code = format!("({:#06x})", *action as u16);
        assert!(name.is_some_and(|name| name.ends_with(&code)), "{name:?} of {action:?}");
    }
}

#[test]
fn tshark_reads_the_fields_that_were_written() {
    let mut session = Session::new();
    let plain = perform_all(&mut session, requests::plain);
    let with_lists = perform_all(&mut session, requests::with_lists);
    let Some(seen) = Dissection::of(&session) else { return };
    for Sent { action, frame, .. } in plain.iter().chain(&with_lists) {
        for (_, lines) in DECODED.iter().filter(|(decoded, _)| decoded == action) {
            lines.iter().for_each(|line| seen.assert_says(*frame, line));
        }
        for (_, name) in NAMED.iter().filter(|(named, _)| named == action) {
            seen.assert_says(*frame, &format!("Service Action: {name}"));
        }
    }
    for Sent { frame, exchange, .. } in with_lists.iter().filter(|sent| is_decoded(sent.action)) {
        // The lists are at the end of their buffers: 40 bytes to set, 24 to get, 48 retrieved.
        let (out, back) = (exchange.data_out.len(), exchange.data_in.len());
        seen.assert_says(*frame, "GET/SET CDBFMT: Get and set attributes using a list");
        seen.assert_says(*frame, "Set Attributes List Length: 40 ");
        seen.assert_says(*frame, &format!("Set Attributes List Offset: {:#010x}", out - 64));
        seen.assert_says(*frame, "Get Attributes List Length: 24 ");
        seen.assert_says(*frame, &format!("Get Attributes List Offset: {:#010x}", out - 24));
        seen.assert_says(*frame, "Get Attributes Allocation Length: 48 ");
        seen.assert_says(*frame, &format!("Retrieved Attributes Offset: {:#010x}", back - 48));
        // The values of the attributes in Data-Out and Data-In.
        seen.assert_says(*frame, "Attributes Page: Unknown (0x00010000)");
        seen.assert_says(*frame, "Attribute Length: 16");
        seen.assert_says(*frame + 1, "User Object Logical Length: 4096");
    }
}

fn is_decoded(action: ServiceAction) -> bool {
    DECODED.iter().any(|(decoded, _)| *decoded == action)
}

#[test]
fn tshark_reads_sense_data_and_a_page_to_get() {
    let mut cdb = OsdCdb::new(object::Command::GetAttributes { object: OBJECT });
    let space = Space { offset: 0, allocation_length: 64 };
    let get = Some(PageToGet { page: 0x8000, space });
    cdb.attributes = AttributeParameters::Page { get, set: None };
    let object = ObjectIdentification {
        not_initiated: 0x1000_0010,
        completed: 0x8000_0000,
        partition: OBJECT.partition,
        object: OBJECT.object,
    };
    let descriptors = ObjectSense {
        object: Some(object),
        response_integrity: Some([7; 32]),
        attributes: Vec::new(),
    };
    let (sense, _) = descriptors.encode(&Sense::INVALID_FIELD_IN_CDB);
    let mut session = Session::new();
    let frame = session.perform(&Exchange {
        cdb: cdb.encode().to_vec(),
        data_in: vec![0; 64],
        status: CHECK_CONDITION,
        sense,
        ..Exchange::default()
    });
    let Some(seen) = Dissection::of(&session) else { return };
    seen.assert_well_formed();
    seen.assert_says(frame, "GET/SET CDBFMT: Get an attributes page and set an attribute value");
    seen.assert_says(frame, "Get Attributes Page: 0x00008000");
    seen.assert_says(frame, "Get Attributes Allocation Length: 64 ");
    seen.assert_says(frame, "Retrieved Attributes Offset: 0xb0000000");
    let response = frame + 2;
    for line in [
        "Additional Sense Code+Qualifier: Invalid Field In Cdb (0x2400)",
        "Sense data descriptor type: OSD object identification (0x06)",
        "Not initiated: 0x10000010",
        "Completed: 0x80000000",
        "Partition ID: 0x0000000000010000",
        "Object ID: 0x0000000000010001",
        "Sense data descriptor type: OSD response integrity check value (0x07)",
        "Sense data descriptor length: 32",
    ] {
        seen.assert_says(response, line);
    }
}

#[test]
fn tshark_complains_about_a_cdb_that_ends_early() {
    let mut session = Session::new();
    let mut list = requests::plain(object::Command::List { partition: 1, list: commands::LIST });
    list.cdb.truncate(60);
    let frame = session.perform(&list);
    let Some(seen) = Dissection::of(&session) else { return };
    assert!(!seen.complaints(frame).is_empty(), "{}", seen.0[frame - 1]);
}
