//! The state of units in the state folder: the process is killed and started again.

use std::{net::SocketAddr, time::Duration};

use initiator::{CommandError, RemoteSession, Settings};
use iscsi::session::initiator::DataPhase;
use scsi::{
    BlockCommand, Command, Overwrite, PersistentReserveIn, PersistentReserveOut, PrimaryCommand,
    Sanitize, SanitizeAction, ScsiStatus, Sense,
    persistent::{OutParameters, ReservationType, ReserveAction, ReserveReport},
};
use support::{Place, Serving, connect, content, eventually, read, run, stderr, write as put};
use volume::Volume;

use crate::support;

const NODE: &str = "iqn.2026-11.test:node";
const KEY: u64 = 0x5ec2_e7a1;

/// Starts a node with a state folder and one file behind several layers, always on the same port.
fn node(place: &Place, port: u16, layers: &str) -> Serving {
    let (state, file) = (place.path("state"), place.path("disk.img"));
    let text = format!(
        r#"
listen = ["127.0.0.1:{port}"]
state = "{}"
[[target]]
name = "{NODE}"
[[target.unit]]
stack = [ {{ file = {{ path = "{}", size = "16MiB" }} }}{layers} ]
"#,
        state.display(),
        file.display()
    );
    place.serve("node", &text)
}

#[test]
fn a_state_folder_that_others_may_write_to_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("state")).expect("made");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.path("state"), open).expect("chmod");
    let text = format!(
        "listen = ['127.0.0.1:0']\nstate = 'state'\n[[target]]\nname = '{NODE}'\n\
         [[target.unit]]\nstack = [ {{ memory = {{ size = '16MiB' }} }} ]\n"
    );
    let error = place.try_serve("node", &text).err().expect("refused");
    let config = place.path("node.toml");
    let checked = support::run(&["check", "--config", config.to_str().expect("plain")]);
    assert_eq!(checked.status.code(), Some(1));
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    for said in [error, checked] {
        assert!(said.contains("may write to the state folder"), "{said}");
        assert!(said.contains("(mode 0777)") && said.contains("remedy: chmod go-w"), "{said}");
    }
}

/// Opens a session from the same initiator port each time.
async fn session(address: SocketAddr, who: &str) -> RemoteSession {
    let mut settings = Settings::new(address.to_string(), NODE, 0);
    settings.initiator_name = format!("iqn.2026-11.test:{who}");
    settings.isid = Settings::lasting_isid(who);
    settings.give_up_after = Duration::from_secs(5);
    RemoteSession::open(settings).await.expect("a login")
}

async fn ask(
    session: &RemoteSession,
    command: Command,
    transfer: DataPhase,
) -> Result<(), CommandError> {
    session.execute(command.encode(), transfer).await.map(drop)
}

async fn reserve(session: &RemoteSession, action: ReserveAction, list: &OutParameters) {
    let list = list.to_bytes();
    let asked = PersistentReserveOut { action, parameter_list_length: list.len() as u32 };
    let command = Command::Primary(PrimaryCommand::PersistentReserveOut(asked));
    ask(session, command, DataPhase::Out(list.into())).await.expect("reserved");
}

async fn write(session: &RemoteSession) -> Result<(), CommandError> {
    let command = Command::write(0, 1, false);
    ask(session, command, DataPhase::Out(vec![7; 512].into())).await
}

/// Returns the reservation holder's key, which every initiator may read.
async fn holder(session: &RemoteSession) -> Vec<u8> {
    let asked = PersistentReserveIn { report: ReserveReport::Reservation, allocation_length: 24 };
    let command = PrimaryCommand::PersistentReserveIn(asked).encode();
    let answer = session.execute(command, DataPhase::In(24)).await.expect("answered");
    let data: volume::Data = answer.data_in.into_iter().collect();
    data.into_bytes().get(8..16).map(<[u8]>::to_vec).unwrap_or_default()
}

fn is_conflict(result: Result<(), CommandError>) -> bool {
    matches!(result, Err(CommandError::Status(ScsiStatus::ReservationConflict)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_reservation_is_in_force_after_a_kill() {
    let place = Place::new();
    let mut serving = node(&place, 0, "");
    let address = serving.address;
    for persist in [false, true] {
        let holding = session(address, "holder").await;
        let register = OutParameters { action_key: KEY, persist, ..OutParameters::default() };
        reserve(&holding, ReserveAction::RegisterAndIgnoreExistingKey, &register).await;
        let held = OutParameters { key: KEY, ..OutParameters::default() };
        let kind = ReservationType::WriteExclusive;
        reserve(&holding, ReserveAction::Reserve(kind), &held).await;
        assert!(is_conflict(write(&session(address, "other").await).await));
        // Close the session before the restart: otherwise it would reconnect and replace the session with the same
        // name.
        holding.close().await;
        serving.kill();
        serving = node(&place, address.port(), "");
        let other = session(address, "other").await;
        if persist {
            assert!(is_conflict(write(&other).await), "APTPL: still reserved");
            assert_eq!(holder(&other).await, KEY.to_be_bytes());
            write(&session(address, "holder").await).await.expect("the holder's own");
        } else {
            write(&other).await.expect("nothing was to last");
            assert!(holder(&other).await.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sanitize_continues_after_a_kill() {
    let place = Place::new();
    let slow = ", { delay = { write = '200ms' } }";
    let mut serving = node(&place, 0, slow);
    let address = serving.address;
    let list = Overwrite { invert: false, passes: 1, pattern: vec![0x5a] }.to_bytes();
    let command = Command::Block(BlockCommand::Sanitize(Sanitize {
        action: SanitizeAction::Overwrite,
        immediate: true,
        unrestricted_exit: false,
        parameter_list_length: list.len() as u16,
    }));
    let asking = session(address, "host").await;
    ask(&asking, command, DataPhase::Out(list.into())).await.expect("begun");
    asking.close().await;
    serving.kill();
    let disk = || std::fs::read(place.path("disk.img")).expect("there");
    let is_done = || disk().iter().all(|byte| *byte == 0x5a);
    assert!(!is_done(), "sixteen writes of 200 ms");
    let _serving = node(&place, address.port(), slow);
    let host = session(address, "host").await;
    match ask(&host, Command::read(0, 1), DataPhase::In(512)).await {
        Err(CommandError::Check(sense)) => {
            let told = (sense.key, sense.asc, sense.ascq);
            let going = Sense::SANITIZE_IN_PROGRESS;
            assert_eq!(told, (going.key, going.asc, going.ascq));
        }
        // Our initiator retries while the unit is not ready. If the command succeeds, the sanitize has ended meanwhile.
        Err(CommandError::Busy) => {}
        Ok(()) => assert!(is_done(), "a read during the sanitize must fail"),
        Err(other) => panic!("{other}"),
    }
    eventually("the end", is_done).await;
}

const OTHER: &str = "iqn.2026-11.test:other";

/// Settings of a node with a target on `disk.img` and one on `other.img`; `top` contains more keys.
fn two_volumes(place: &Place, top: &str) -> String {
    let unit = |name: &str, file: &str| {
        let path = place.path(file).display().to_string();
        format!(
            "[[target]]\nname = '{name}'\n[[target.unit]]\n\
             stack = [ {{ file = {{ path = '{path}', size = '8MiB' }} }} ]\n"
        )
    };
    format!("{top}listen = ['127.0.0.1:0']\n{}{}", unit(NODE, "disk.img"), unit(OTHER, "other.img"))
}

/// Serves `two_volumes`, writes block 1 of each, and stops the process.
async fn written(place: &Place, top: &str) {
    let serving = place.serve("node", &two_volumes(place, top));
    for target in [NODE, OTHER] {
        let volume = connect(serving.address, target).await;
        put(&*volume, 1, 7).await.expect("written");
        volume.flush().await.expect("flushed");
    }
    assert!(serving.terminate().0.success());
}

/// Runs `forebay COMMAND… --config node.toml`, and returns the exit code and the output.
fn command(place: &Place, arguments: &[&str]) -> (Option<i32>, String) {
    let config = place.path("node.toml").display().to_string();
    let output = run(&[arguments, &["--config", &config]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    (output.status.code(), text)
}

/// Returns the message of `forebay status` about the first target's refused unit.
fn refused(serving: &Serving) -> String {
    let refused = &serving.status()["targets"][0]["refused"];
    assert_eq!(refused.as_array().map_or(0, Vec::len), 1, "{refused}");
    refused[0].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_volume_file_is_not_created_again_and_the_others_are_served() {
    for state in ["", "state = 'kept'\n"] {
        let place = Place::new();
        written(&place, state).await;
        let (disk, away) = (place.path("disk.img"), place.path("away.img"));
        std::fs::rename(&disk, &away).expect("its disk is not mounted");

        let (code, text) = command(&place, &["check"]);
        assert_eq!(code, Some(1), "{text}");
        let path = disk.canonicalize().unwrap_or(disk.clone()).display().to_string();
        assert!(text.contains("is missing") && text.contains("8388608 bytes"), "{text}");

        let serving = place.serve("node", &two_volumes(&place, state));
        let told = refused(&serving);
        assert!(told.contains(&path) && told.contains("last opened 20"), "{told}");
        assert!(told.contains("forebay forget") && told.contains("--lose-data"), "{told}");
        assert!(!disk.exists(), "nothing was made in its place");
        let other = connect(serving.address, OTHER).await;
        assert_eq!(read(&*other, 1).await.expect("served"), content(1, 7));

        std::fs::rename(&away, &disk).expect("mounted again");
        let (code, text) = command(&place, &["reload"]);
        assert_eq!(code, Some(0), "{text}");
        let back = connect(serving.address, NODE).await;
        assert_eq!(read(&*back, 1).await.expect("served"), content(1, 7));
        assert!(serving.status()["targets"][0].get("refused").is_none());
    }
}

/// The far volume of the cache was replaced by a smaller one. The other units must still be served.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_over_a_volume_of_another_size_does_not_stop_other_units() {
    let place = Place::new();
    let text = |size: &str| {
        let (log, other) = (place.path("a.log"), place.path("other.img"));
        format!(
            "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NODE}'\n[[target.unit]]\n\
             stack = [ {{ memory = {{ size = '{size}' }} }}, {{ cache = {{ log = '{}', \
             log_size = '16MiB', dram = '8MiB', nvram_size = '1MiB' }} }} ]\n\
             [[target]]\nname = '{OTHER}'\n[[target.unit]]\n\
             stack = [ {{ file = {{ path = '{}', size = '8MiB' }} }} ]\n",
            log.display(),
            other.display()
        )
    };
    let serving = place.serve("node", &text("16MiB"));
    put(&*connect(serving.address, OTHER).await, 1, 7).await.expect("written");
    assert!(serving.terminate().0.success());
    let serving = place.serve("node", &text("8MiB"));
    let told = refused(&serving);
    assert!(told.contains("the log was made for") && told.contains("former size"), "{told}");
    let other = connect(serving.address, OTHER).await;
    assert_eq!(read(&*other, 1).await.expect("served"), content(1, 7));
}

/// A hung process may still have the file open, although the file has lost its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_removed_when_the_process_ends_and_not_while_it_does_not_answer() {
    let place = Place::new();
    written(&place, "").await;
    let disk = place.path("disk.img").display().to_string();
    std::fs::remove_file(&disk).expect("it was made");
    let socket = place.path("node.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    // The process that has the socket accepts the request and does not answer.
    let (asked, known) = std::sync::mpsc::channel();
    let silent = std::thread::spawn(move || {
        let client = listener.accept().expect("it is asked");
        known.recv().expect("the command has ended");
        // The process that owns the socket now ends before it answers a request.
        let next = listener.accept().expect("it is asked again");
        drop((client, next, listener));
    });
    let (code, text) = command(&place, &["forget", &disk, "--lose-data", "--hosts-unmounted"]);
    assert!(code == Some(1) && text.contains("it is not known whether"), "{text}");
    asked.send(()).expect("it waits");
    let (code, text) = command(&place, &["forget", &disk, "--lose-data", "--hosts-unmounted"]);
    assert_eq!(code, Some(0), "{text}");
    silent.join().expect("asked twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_volume_is_created_again() {
    let place = Place::new();
    written(&place, "").await;
    let disk = place.path("disk.img").display().to_string();
    let serving = place.serve("node", &two_volumes(&place, ""));
    let (code, text) = command(&place, &["forget", &disk, "--lose-data"]);
    assert!(code == Some(1) && text.contains("in use"), "{text}");
    drop(serving);
    std::fs::remove_file(&disk).expect("it was made");
    let (code, text) = command(&place, &["forget", &disk]);
    assert!(code == Some(1) && text.contains("--lose-data"), "{text}");
    // Without --hosts-unmounted the command fails: a host that still has the volume mounted would write to the new one.
    let (code, text) = command(&place, &["forget", &disk, "--lose-data"]);
    assert!(code == Some(1) && text.contains("all hosts have unmounted"), "{text}");
    let (code, text) = command(&place, &["forget", &disk, "--lose-data", "--hosts-unmounted"]);
    assert_eq!(code, Some(0), "{text}");
    let serving = place.serve("node", &two_volumes(&place, ""));
    let volume = connect(serving.address, NODE).await;
    assert_eq!(read(&*volume, 1).await.expect("served"), content(1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_in_place_of_another_is_not_served() {
    let place = Place::new();
    written(&place, "").await;
    let [disk, other, kept] = ["disk.img", "other.img", "kept.img"].map(|name| place.path(name));
    let settings = two_volumes(&place, "").replace(", size = '8MiB'", "");
    let all = || std::fs::read(&kept).expect("a volume");
    let expect = |why: &str| {
        let serving = place.serve("node", &settings);
        let told = refused(&serving);
        assert!(told.contains(why), "{told}");
        std::fs::remove_file(&disk).expect("it was put there");
    };
    std::fs::rename(&disk, &kept).expect("moved");
    std::fs::write(&disk, &all()[..4 << 20]).expect("shorter");
    expect("was replaced by a file of 4194304 bytes");
    std::fs::write(&disk, [all(), all()].concat()).expect("longer");
    expect("was replaced by a file of 16777216 bytes");
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("blank");
    expect("was replaced by a blank file");

    // A file restored from a backup has the right size, but not the id of the volume file.
    std::fs::write(&disk, all()).expect("from a backup");
    let serving = place.serve("node", &settings);
    let volume = connect(serving.address, NODE).await;
    assert_eq!(read(&*volume, 1).await.expect("served"), content(1, 7));
    drop((volume, serving));

    // The two files were exchanged, so neither is served and no unit is left.
    std::fs::rename(&disk, &kept).expect("moved");
    std::fs::rename(&other, &disk).expect("moved");
    std::fs::rename(&kept, &other).expect("moved");
    let told = place.try_serve("node", &settings).err().expect("nothing is left to serve");
    assert!(told.contains("was replaced by the volume recorded as"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_has_grown_is_recorded_with_its_new_size() {
    let place = Place::new();
    written(&place, "").await;
    let grown = two_volumes(&place, "").replace("8MiB", "16MiB");
    let serving = place.serve("node", &two_volumes(&place, ""));
    place.write("node", &grown);
    let (code, text) = command(&place, &["reload"]);
    assert_eq!(code, Some(0), "{text}");
    drop(serving);
    let file = std::fs::File::options().write(true).open(place.path("disk.img")).expect("there");
    file.set_len(8 << 20).expect("cut");
    let told = place.serve("node", &grown.replace(", size = '16MiB'", ""));
    assert!(refused(&told).contains("was truncated to 8388608 bytes"));
}

/// A write beyond the new end would restore the file's full size, with zeros in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_truncated_in_use_takes_no_writes_and_is_refused_at_the_next_start() {
    let place = Place::new();
    let settings = two_volumes(&place, "").replace(", size = '8MiB'", "");
    written(&place, "").await;
    let events = std::fs::File::create(place.path("events")).expect("made");
    let serving = place.serve_with("node", &settings, events);
    let volume = connect(serving.address, NODE).await;
    let file = std::fs::File::options().write(true).open(place.path("disk.img")).expect("there");
    file.set_len(4 << 20).expect("cut");
    // A query of the size must not make the smaller size valid.
    serving.status();
    let told = || std::fs::read_to_string(place.path("events")).expect("text");
    eventually("an event", || told().contains("was truncated to 4194304 of 8388608 bytes")).await;
    assert!(told().contains("the bytes behind its new end are lost"), "{}", told());
    assert!(put(&*volume, 3, 7).await.is_err(), "it takes no more writes");
    assert!(put(&*volume, 2047, 7).await.is_err(), "nor behind the end");
    assert!(volume.flush().await.is_err(), "nothing is promised");
    // A host that logs in after the truncation gets the smaller size.
    drop(volume);
    let volume = connect(serving.address, NODE).await;
    assert_eq!(read(&*volume, 1).await.expect("what is left"), content(1, 7));
    drop(volume);
    serving.terminate();
    let (code, text) = command(&place, &["check"]);
    assert!(code == Some(1) && text.contains("was truncated to 4194304 bytes"), "{text}");
    let serving = place.serve("node", &settings);
    let told = refused(&serving);
    assert!(
        told.contains("was truncated to 4194304 bytes") && told.contains("8388608 bytes"),
        "{told}"
    );
}

/// The file was copied onto a larger one, or has grown, and the settings still have the former size.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_whose_size_differs_from_the_settings_does_not_stop_other_units() {
    let place = Place::new();
    written(&place, "").await;
    let file = std::fs::File::options().write(true).open(place.path("disk.img")).expect("there");
    file.set_len(16 << 20).expect("longer");
    let serving = place.serve("node", &two_volumes(&place, ""));
    let told = refused(&serving);
    assert!(told.contains("has 16777216 bytes, not 8388608"), "{told}");
    assert!(told.contains("omit `size`"), "{told}");
    let other = connect(serving.address, OTHER).await;
    assert_eq!(read(&*other, 1).await.expect("served"), content(1, 7));
    place.write("node", &two_volumes(&place, "").replacen(", size = '8MiB'", "", 1));
    let (code, text) = command(&place, &["reload"]);
    assert_eq!(code, Some(0), "{text}");
    let back = connect(serving.address, NODE).await;
    assert_eq!(read(&*back, 1).await.expect("served"), content(1, 7));
    // A size that is not a multiple of the block size is an error in the settings.
    drop((back, other, serving));
    let wrong = two_volumes(&place, "").replacen("'8MiB'", "'8388609'", 1);
    assert!(place.try_serve("node", &wrong).is_err());
}

/// A folder of records that is lost, or on a disk that is not mounted, looks like a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_with_data_but_without_a_record_is_reported() {
    let place = Place::new();
    let told = |text: &str| {
        let events = std::fs::File::create(place.path("events")).expect("made");
        let serving = place.serve_with("node", text, events);
        assert!(serving.terminate().0.success());
        let events = std::fs::read_to_string(place.path("events")).expect("text");
        events.matches("holds data, but has no record").count()
    };
    let text = two_volumes(&place, "");
    assert_eq!(told(&text), 0, "new files");
    written(&place, "").await;
    assert_eq!(told(&text), 0, "their records are there");
    std::fs::rename(place.path("forebay-state"), place.path("away")).expect("not mounted");
    assert_eq!(told(&text), 2);
    assert_eq!(told(&text), 0, "recorded by now");
}

/// A dangling link means that the disk with the volume is not mounted, and the path resolves to another name than the
/// recorded one.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_behind_a_dangling_link_is_missing_and_the_others_are_served() {
    let place = Place::new();
    std::fs::create_dir(place.path("mounted")).expect("made");
    std::os::unix::fs::symlink(place.path("mounted"), place.path("link")).expect("linked");
    let text = two_volumes(&place, "").replace("disk.img", "link/disk.img");
    let serving = place.serve("node", &text);
    put(&*connect(serving.address, NODE).await, 1, 7).await.expect("written");
    assert!(serving.terminate().0.success());
    std::fs::rename(place.path("mounted"), place.path("away")).expect("moved");
    let serving = place.serve("node", &text);
    let told = refused(&serving);
    assert!(told.contains("is missing") && told.contains("mount its disk"), "{told}");
    drop(serving);
    std::fs::rename(place.path("away"), place.path("mounted")).expect("moved");
    let serving = place.serve("node", &text);
    let volume = connect(serving.address, NODE).await;
    assert_eq!(read(&*volume, 1).await.expect("served"), content(1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_or_outdated_records_do_not_stop_any_volume() {
    let place = Place::new();
    written(&place, "").await;
    let records = place.path("forebay-state");
    std::fs::rename(&records, place.path("older")).expect("there are some");
    drop(place.serve("node", &two_volumes(&place, "")));
    assert!(records.exists(), "recorded again");
    std::fs::remove_dir_all(&records).expect("removed");
    std::fs::rename(place.path("older"), &records).expect("put back");
    let serving = place.serve("node", &two_volumes(&place, ""));
    let volume = connect(serving.address, NODE).await;
    assert_eq!(read(&*volume, 1).await.expect("served"), content(1, 7));
}

#[test]
fn a_node_that_cannot_write_records_does_not_start() {
    let place = Place::new();
    std::fs::write(place.path("forebay-state"), "a file").expect("written");
    let told = place.try_serve("node", &two_volumes(&place, "")).err().expect("refused");
    assert!(told.contains("cannot write the record of storage"), "{told}");
    assert!(told.contains("name another folder with `state`"), "{told}");
    // A volume in memory needs no record.
    let memory = "listen = ['127.0.0.1:0']\n[[target]]\nname = 'iqn.a:b'\n[[target.unit]]\n\
                  stack = [ { memory = { size = '1MiB' } } ]\n";
    drop(place.serve("node", memory));
}
