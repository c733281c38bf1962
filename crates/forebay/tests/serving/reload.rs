//! Settings that change while a process serves: what is added and removed, what stays, what is refused.

use std::{
    net::SocketAddr,
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use initiator::RemoteVolume;
use support::{Place, Serving, connect, content, eventually, forebay, read, run, stderr, write};
use volume::{Data, Durability, Lba, Volume};

use crate::support;

const NODE: &str = "iqn.2026-11.test:node";

fn target(name: &str, keys: &str, units: &str) -> String {
    format!("[[target]]\nname = 'iqn.2026-11.test:{name}'\n{keys}\n{units}")
}

fn unit(lun: u16, stack: &str) -> String {
    format!("[[target.unit]]\nlun = {lun}\nstack = [ {stack} ]\n")
}

fn memory(lun: u16) -> String {
    unit(lun, "{ memory = { size = '16MiB' } }")
}

/// Settings of a node on a port that the kernel chooses, and that stays the same in every version of the settings.
fn node(rest: &str) -> String {
    format!("listen = ['127.0.0.1:0']\n{}{rest}", target("node", "", &memory(0)))
}

fn reload(serving: &Serving) -> Output {
    let output = forebay().args(["reload", "--control"]).arg(&serving.control).output();
    output.expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Writes new settings, reloads them, and returns the output of `forebay reload`.
fn change(place: &Place, serving: &Serving, text: &str) -> String {
    place.write("node", text);
    stdout(&reload(serving))
}

async fn is_served(address: SocketAddr, target: &str, lun: u16) -> bool {
    let mut settings = initiator::Settings::new(address.to_string(), target, lun);
    settings.give_up_after = Duration::ZERO;
    RemoteVolume::connect(settings).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_and_units_are_added_and_removed_and_other_sessions_stay() {
    let place = Place::new();
    let other = target("other", "", &memory(0));
    let settings = |units: &str, more: &str| format!("{}{other}{more}", node(units));
    let serving = place.serve("node", &settings("", ""));
    let stays = connect(serving.address, "iqn.2026-11.test:other").await;
    write(&*stays, 5, 1).await.expect("written");
    let changed = connect(serving.address, NODE).await;
    write(&*changed, 5, 1).await.expect("written");

    let more = target("more", "", &memory(0));
    let text = change(&place, &serving, &settings(&memory(3), &more));
    assert_eq!(
        text,
        format!("added: {NODE} LUN 3\nadded: target iqn.2026-11.test:more, 1 units\n")
    );
    assert!(is_served(serving.address, NODE, 3).await);
    assert!(is_served(serving.address, "iqn.2026-11.test:more", 0).await);
    // A session of the changed target stays open, too.
    assert_eq!(read(&*changed, 5).await.expect("read"), content(5, 1));

    let text = change(&place, &serving, &settings(&memory(3), &more));
    assert_eq!(text, "nothing is different\n");
    let text = change(&place, &serving, &settings("", ""));
    assert!(text.contains(&format!("removed: {NODE} LUN 3\n")), "{text}");
    assert!(text.contains("removed: target iqn.2026-11.test:more and its sessions\n"), "{text}");
    assert!(!is_served(serving.address, NODE, 3).await);
    assert!(!is_served(serving.address, "iqn.2026-11.test:more", 0).await);
    assert_eq!(read(&*changed, 5).await.expect("read"), content(5, 1));
    assert_eq!(read(&*stays, 5).await.expect("read"), content(5, 1));
    for volume in [&stays, &changed] {
        assert_eq!(volume.statistics().recovery.reconnects, 0, "the session is the same");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_a_removed_unit_is_closed_and_can_be_added_again() {
    let place = Place::new();
    let file = place.path("disk.img");
    let disk =
        |lun| unit(lun, &format!("{{ file = {{ path = '{}', size = '16MiB' }} }}", file.display()));
    let serving = place.serve("node", &node(&disk(1)));
    let mut settings = initiator::Settings::new(serving.address.to_string(), NODE, 1);
    settings.give_up_after = Duration::ZERO;
    let volume = RemoteVolume::connect(settings).await.expect("a login");
    write(&volume, 5, 1).await.expect("written");
    // The session that has used the removed unit stays open, but cannot use it any more.
    change(&place, &serving, &node(""));
    assert!(read(&volume, 5).await.is_err());
    assert_eq!(serving.status()["sessions"].as_array().expect("sessions").len(), 1);
    let text = change(&place, &serving, &node(&disk(2)));
    assert_eq!(text, format!("added: {NODE} LUN 2\n"));
    let settings = initiator::Settings::new(serving.address.to_string(), NODE, 2);
    let again = RemoteVolume::connect(settings).await.expect("a login");
    assert_eq!(read(&again, 5).await.expect("read"), content(5, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn portals_are_added_and_removed() {
    let place = Place::new();
    let serving = place.serve("node", &node(""));
    let volume = connect(serving.address, NODE).await;
    let portal = "[[portal]]\naddress = '[::1]:0'\ngroup = 7\nadvertise = 'storage.example'\n";
    let both = node("").replacen("[[target]]", &format!("{portal}[[target]]"), 1);
    let text = change(&place, &serving, &both);
    assert_eq!(text, "added: portal [::1]:0 in group 7\n");
    let status = serving.status();
    let portals = status["portals"].as_array().expect("portals");
    assert_eq!((&portals[0]["group"], &portals[1]["group"]), (&1.into(), &7.into()));
    assert_eq!(portals[1]["advertise"], "storage.example");
    let six: SocketAddr =
        portals[1]["address"].as_str().expect("text").parse().expect("an address");
    assert!(six.is_ipv6());
    assert!(is_served(six, NODE, 0).await);
    let text = change(&place, &serving, &node(""));
    assert_eq!(text, "removed: portal [::1]:0\n");
    assert!(std::net::TcpStream::connect(six).is_err());
    assert!(read(&*volume, 0).await.is_ok());
    assert_eq!(volume.statistics().recovery.reconnects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_target_is_found_at_its_new_address() {
    let place = Place::new();
    let far = place.serve("far", &node(""));
    let near_settings =
        |more: &str| format!("listen = ['127.0.0.1:0']\n{}{more}", target("other", "", &memory(0)));
    let near = place.serve("node", &near_settings(""));
    let there = format!("redirect = '{}'", far.address);
    let moved = near_settings(&target("node", &there, ""));
    assert_eq!(change(&place, &near, &moved), "added: target iqn.2026-11.test:node, 0 units\n");
    let volume = connect(near.address, NODE).await;
    write(&*volume, 5, 1).await.expect("written");
    assert_eq!(far.status()["sessions"][0]["target"], NODE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_cannot_be_done_completely_changes_nothing() {
    let place = Place::new();
    let serving = place.serve("node", &node(""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("bound");
    let more = target("more", "", &memory(0));
    let beside = format!(
        "{}\n[[target]]\nname = 'iqn.2026-11.test:p'\nlisten = ['{}']\n{}",
        more,
        taken.1,
        memory(0)
    );
    for (text, expected) in [
        (format!("threads = 3\n{}", node(&more)), "refused: threads: it is read at the start only"),
        (node(&beside), "nothing was changed: cannot listen on"),
        (node(&more).replace("16MiB", "32MiB"), "LUN 0: its layers differ"),
        (node("[[target]]\n"), "target[1].name: `name` is missing"),
    ] {
        place.write("node", &text);
        let output = reload(&serving);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{expected} in {}", stderr(&output));
        assert!(stderr(&output).contains("remedy: "), "{}", stderr(&output));
        assert!(!is_served(serving.address, "iqn.2026-11.test:more", 0).await, "{expected}");
        assert!(is_served(serving.address, NODE, 0).await);
    }
    // The refused reload must have closed the files that it had opened.
    change(&place, &serving, &node(&more));
    assert!(is_served(serving.address, "iqn.2026-11.test:more", 0).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reloads() {
    let place = Place::new();
    let serving = place.serve("node", &node(""));
    place.write("node", &node(&memory(9)));
    serving.signal(rustix::process::Signal::HUP);
    let units = || serving.status()["targets"][0]["units"].as_array().expect("units").len();
    eventually("the unit", || units() == 2).await;
    assert!(is_served(serving.address, NODE, 9).await);
}

/// Regression: `serve --config node.toml` resolved the file's relative paths at the start against "" and at a reload
/// against the absolute folder. Every path seemed to have changed, and the reload was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_relative_settings_path_can_be_reloaded() {
    let place = Place::new();
    let file = unit(1, "{ file = { path = 'v.img', size = '16MiB' } }");
    let before = format!("state = 'state'\n{}", node(&file));
    let serving = place.try_serve_by_relative_path("node", &before).expect("it serves");
    let text = change(&place, &serving, &format!("{before}{}", memory(3)));
    assert_eq!(text, format!("added: {NODE} LUN 3\n"));
    place.write("node", &before);
    serving.signal(rustix::process::Signal::HUP);
    let units = || serving.status()["targets"][0]["units"].as_array().expect("units").len();
    eventually("the unit is gone after SIGHUP", || units() == 2).await;
}

#[test]
fn check_says_what_a_reload_would_do() {
    let place = Place::new();
    let serving = place.serve("node", &node(&memory(1)));
    let config = place.write("node", &format!("threads = 3\n{}", node(&memory(2))));
    let output = run(&["check", "--config", config.to_str().expect("plain")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for expected in [
        format!("added: {NODE} LUN 2"),
        format!("removed: {NODE} LUN 1"),
        "refused: threads: ".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} in {text}");
    }
    assert_eq!(output.status.code(), Some(1), "a reload would be refused: {text}");
    assert_eq!(serving.status()["state"], "serving");
}

fn disk(place: &Place, size: &str) -> String {
    let path = place.path("grows.img");
    let layers = format!("{{ file = {{ path = '{}'{size} }} }}", path.display());
    format!("listen = ['127.0.0.1:0']\n{}", target("node", "", &unit(0, &layers)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_grows_while_initiators_use_it() {
    let place = Place::new();
    let serving = place.serve("node", &disk(&place, ", size = '16MiB'"));
    let text = change(&place, &serving, &disk(&place, ", size = '32MiB'"));
    assert_eq!(text, format!("changed: {NODE} LUN 0: its file grows to 32MiB\n"));
    assert_eq!(serving.status()["targets"][0]["units"][0]["bytes"], 32 << 20);
    let volume = connect(serving.address, NODE).await;
    assert_eq!(volume.geometry().bytes(), 32 << 20);
    write(&*volume, 8000, 1).await.expect("written");
    // `forebay resize` refuses to change a size that the settings contain.
    let control = serving.control.to_str().expect("plain");
    let output = run(&["resize", NODE, "0", "48MiB", "--control", control]);
    assert!(stderr(&output).contains("the settings specify the size of its file"));
    let (status, _) = serving.terminate();
    assert!(status.success());

    let serving = place.serve("node", &disk(&place, ""));
    let control = serving.control.to_str().expect("plain");
    let output = run(&["resize", NODE, "0", "48MiB", "--control", control]);
    assert_eq!(stdout(&output), format!("{NODE} LUN 0 has {} bytes\n", 48 << 20));
    for wrong in [["resize", NODE, "0", "16MiB"], ["resize", NODE, "7", "64MiB"]] {
        let output = run(&[&wrong[..], &["--control", control]].concat());
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
    }
    let volume = connect(serving.address, NODE).await;
    assert_eq!(volume.geometry().bytes(), 48 << 20);
    assert_eq!(read(&*volume, 8000).await.expect("read"), content(8000, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_grows_as_far_as_it_fits() {
    let place = Place::new();
    let sized = |file: &str, slice: &str| {
        let path = place.path("sliced.img");
        let file = format!("{{ file = {{ path = '{}', size = '{file}' }} }}", path.display());
        let slice = format!("{{ slice = {{ start = '1MiB', size = '{slice}' }} }}");
        let unit = unit(0, &format!("{file}, {slice}"));
        format!("listen = ['127.0.0.1:0']\n{}", target("node", "", &unit))
    };
    let serving = place.serve("node", &sized("16MiB", "4MiB"));
    let volume = connect(serving.address, NODE).await;
    assert_eq!(volume.geometry().bytes(), 4 << 20);
    let text = change(&place, &serving, &sized("16MiB", "8MiB"));
    assert_eq!(text, format!("changed: {NODE} LUN 0: its slice grows to 8MiB\n"));
    assert_eq!(serving.status()["targets"][0]["units"][0]["bytes"], 8 << 20);
    // The session that was open learns the new size and uses it.
    eventually("the new size", || {
        volume.extensions().refresh();
        volume.geometry().bytes() == 8 << 20
    })
    .await;
    write(&*volume, 2000, 1).await.expect("written");
    assert_eq!(volume.statistics().recovery.reconnects, 0);
    place.write("node", &sized("16MiB", "16MiB"));
    let refused = reload(&serving);
    assert!(stderr(&refused).contains("cannot grow"), "{}", stderr(&refused));
    change(&place, &serving, &sized("32MiB", "16MiB"));
    assert_eq!(serving.status()["targets"][0]["units"][0]["bytes"], 16 << 20);
    assert_eq!(read(&*volume, 2000).await.expect("read"), content(2000, 1));
}

/// An initiator writes all the time while the node is stopped and started again. It gets no error, and no acknowledged
/// write is lost. Its writes are stable writes: a flush after the restart would fail, because the former process may
/// have lost unflushed writes (decision 0004).
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_within_seconds_is_no_error_at_the_initiator() {
    let place = Place::new();
    let first = place.serve("first", &support::node(place.folder.path(), 0));
    let port = first.address.port();
    let mut settings = initiator::Settings::new(first.address.to_string(), NODE, 0);
    settings.give_up_after = Duration::from_secs(30);
    let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a login"));
    let writer = Arc::clone(&volume);
    let writing = tokio::spawn(async move {
        let begun = Instant::now();
        let mut version = 0;
        // Write until both restarts are over. The time limit is far longer than two restarts take.
        while begun.elapsed() < Duration::from_secs(60)
            && writer.statistics().recovery.reconnects < 2
        {
            version += 1;
            for block in 0..16 {
                let data = Data::from(content(block, version));
                let written = writer.write(Lba(block * 8), data, Durability::Stable).await;
                written.expect("no error in all the time");
            }
        }
        version
    });
    let mut serving = first;
    for _ in 0..2 {
        let before = volume.statistics();
        eventually("writes", || volume.statistics().calls.writes > before.calls.writes + 50).await;
        let (status, _) = tokio::task::spawn_blocking(|| serving.terminate()).await.expect("ended");
        assert!(status.success(), "{status}");
        serving = place.serve("again", &support::node(place.folder.path(), port));
        let reconnected = || volume.statistics().recovery.reconnects > before.recovery.reconnects;
        eventually("a new session", reconnected).await;
    }
    let version = writing.await.expect("no error");
    for block in 0..16 {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, version));
    }
}

/// Returns a unit with a slice of a file of 8 MiB.
fn part(lun: u16, keys: &str) -> String {
    let file = "{ file = { path = 'pool.img', size = '8MiB' } }";
    unit(lun, &format!("{file}, {{ slice = {{ {keys} }} }}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn units_have_slices_of_one_file_and_no_byte_belongs_to_two() {
    let place = Place::new();
    let low = part(1, "size = '2MiB'");
    let high = target("other", "", &part(0, "start = '4MiB', size = '4MiB'"));
    let settings = |more: &str, other: &str| format!("{}{other}", node(more));
    let serving = place.serve("node", &settings(&low, &high));
    let (address, other) = (serving.address, "iqn.2026-11.test:other");
    let mut session = initiator::Settings::new(address.to_string(), NODE, 1);
    session.give_up_after = Duration::from_secs(5);
    let low_volume = RemoteVolume::connect(session).await.expect("a login");
    let high_volume = connect(address, other).await;
    for block in 0..4 {
        write(&low_volume, block, 1).await.expect("written");
        write(&*high_volume, block, 2).await.expect("written");
    }
    for block in 0..4 {
        assert_eq!(read(&low_volume, block).await.expect("read"), content(block, 1));
        assert_eq!(read(&*high_volume, block).await.expect("read"), content(block, 2));
    }
    // The slice can grow up to the start of the other slice, and no further.
    let grown = part(1, "size = '4MiB'");
    assert!(change(&place, &serving, &settings(&grown, &high)).contains("its slice grows to 4MiB"));
    place.write("node", &settings(&part(1, "size = '5MiB'"), &high));
    let refused = stderr(&reload(&serving));
    let ranges = "the bytes from 4MiB to 8MiB of pool.img overlap the bytes from 0B to 5MiB";
    assert!(refused.contains(ranges), "{refused}");
    // The slice cannot grow in the reload that removes the other unit either: commands of that unit may still be in
    // progress.
    place.write("node", &settings(&part(1, "size = '5MiB'"), ""));
    let refused = stderr(&reload(&serving));
    assert!(refused.contains("other LUN 0 uses the bytes from 4MiB to 8MiB"), "{refused}");
    assert_eq!(read(&*high_volume, 3).await.expect("read"), content(3, 2));
    change(&place, &serving, &settings(&grown, ""));
    let larger = settings(&part(1, "size = '5MiB'"), "");
    assert!(change(&place, &serving, &larger).contains("its slice grows to 5MiB"));
    // Another unit can use the bytes of the removed unit.
    let newer = target("newer", "", &part(0, "start = '5MiB'"));
    change(&place, &serving, &settings(&part(1, "size = '5MiB'"), &newer));
    assert!(is_served(address, "iqn.2026-11.test:newer", 0).await);
    // The file grows for all units, and with it the slice that extends to its end.
    let text = settings(&part(1, "size = '5MiB'"), &newer);
    change(&place, &serving, &text.replace("size = '8MiB'", "size = '16MiB'"));
    let status = serving.status();
    let targets = status["targets"].as_array().expect("targets");
    let newer = targets.iter().find(|target| target["name"] == "iqn.2026-11.test:newer");
    assert_eq!(newer.expect("it is served")["units"][0]["bytes"], 11 << 20);
}
