//! Mounts in other mount namespaces: those that keep a device in use, and those that other programs do not see.

use std::{fs, io::Read, process::Command, time::Instant};

use attached::{LIMIT, Mount, attach, detach, detached, has_device, is_possible};
use program::RunningProgram;
use support::{Place, forebay, start, stderr};

use crate::{TARGET, attached, settings, support};

/// Regression: the message did not name the mount, but reported an unknown user of the device.
#[test]
fn a_mount_in_another_namespace_is_named_with_the_command_that_ends_it() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mount = Mount::alone(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    let attached = attach(&[&url, "--mkfs", "ext4", "--mount", &folder]);
    let sleeper = sleep_in_namespace("private");
    let refused = detach(&folder);
    let said = stderr(&refused);
    assert!(!refused.status.success());
    let id = sleeper.id();
    let where_ = format!("mounted on {folder} in the mount namespace of process {id} (sleep)");
    assert!(said.contains(&where_), "{said}");
    assert!(mount.is_mounted() && has_device(&attached), "nothing is done by half");
    let (_, command) = said.split_once("run `").expect("a command");
    let (command, _) = command.split_once('`').expect("its end");
    assert!(command.starts_with("nsenter "), "{command}");
    let ran = Command::new("sh").args(["-c", command]).status().expect("sh runs");
    assert!(ran.success(), "{command}");
    detached(attached);
}

/// On hosts with systemd, services have mount namespaces of their own. They must not count as users of the device.
#[test]
fn a_mount_in_another_namespace_that_receives_our_unmount_does_not_stop_a_detach() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let parent = Mount::alone(&place);
    let run = |arguments: &[&str]| {
        let ran = Command::new("mount").args(arguments).arg(&parent.0).status();
        assert!(ran.expect("mount runs").success(), "{arguments:?}");
    };
    run(&["--bind", parent.0.to_str().expect("a plain path")]);
    run(&["--make-shared"]);
    let folder = parent.file("mnt");
    fs::create_dir(&folder).expect("a folder");
    let folder = folder.display().to_string();
    let attached = attach(&[&node.url(TARGET), "--mkfs", "ext4", "--mount", &folder]);
    let _sleeper = sleep_in_namespace("slave");
    detached(attached);
}

/// Starts a process with a copy of all mounts in a mount namespace of its own.
fn sleep_in_namespace(propagation: &str) -> RunningProgram {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", propagation, "sleep", "100"]);
    let sleeping = program::start(&mut command).expect("unshare runs");
    let begun = Instant::now();
    let name = format!("/proc/{}/comm", sleeping.id());
    while fs::read_to_string(&name).expect("it runs").trim() != "sleep" {
        assert!(begun.elapsed() < LIMIT, "it does not start");
        std::thread::yield_now();
    }
    sleeping
}

/// Regression test: other programs saw an empty folder, and no message explained why.
#[test]
fn a_mount_that_other_programs_do_not_see_is_reported() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mount = Mount::alone(&place);
    let folder = mount.0.display().to_string();
    let events = |prefix: &[&str]| {
        let program = forebay();
        let words = prefix.iter().map(std::ffi::OsStr::new).chain([program.get_program()]);
        let words: Vec<_> = words.collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["attach", &node.url(TARGET), "--mkfs", "ext4"]);
        let mut running = start(command.args(["--mount", &folder])).expect("attached");
        let mut events = running.stderr();
        let is_seen = mount.is_mounted();
        detached(running);
        let mut text = String::new();
        events.read_to_string(&mut text).expect("text");
        (is_seen, text)
    };
    let (is_seen, text) = events(&["unshare", "--mount"]);
    assert!(!is_seen && text.contains("in the mount namespace of this process only"), "{text}");
    assert!(text.contains("nsenter --net=/run/netns/NAME"), "{text}");
    let (is_seen, text) = events(&[]);
    assert!(is_seen && !text.contains("mount namespace"), "{text}");
}
