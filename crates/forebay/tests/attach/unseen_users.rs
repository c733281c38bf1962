//! A user of the device that no list of processes shows, and that goes away a moment later.

use std::{
    fs::File,
    io::{BufRead, BufReader, IoSlice},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
};

use attached::{LIMIT, Mount, detach, has_device, is_possible};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use support::{Place, forebay, start, stderr};

use crate::{TARGET, attached, settings, support};

/// Regression: a detach just after the end of fio failed with "its users are unknown". A file on its way through a socket
/// stands for a file that the kernel still holds of a process that has ended.
#[test]
fn a_detach_waits_for_a_user_that_cannot_be_seen() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    let mut command = forebay();
    command.args(["attach", &url, "--mkfs", "ext4", "--mount", &folder]);
    let mut running = start(&mut command).unwrap_or_else(|error| panic!("not attached: {error}"));
    let events = BufReader::new(running.stderr());

    let (sends, receives) = UnixStream::pair().expect("a pair of sockets");
    let file = File::create(mount.file("used")).expect("made");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&sends, &[IoSlice::new(b"f")], &mut rights, SendFlags::empty()).expect("sent");
    drop(file);

    let device = running.ready.clone();
    let detaching = std::thread::spawn(move || detach(device));
    let waits = |line: &String| line.contains("users of the device that cannot be seen");
    let (tells, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = events.lines().map_while(Result::ok).filter(waits);
        lines.for_each(|line| drop(tells.send(line)));
    });
    told.recv_timeout(LIMIT).expect("the detach waits for the user");
    drop((sends, receives));
    let output = detaching.join().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(running.wait().success() && !has_device(&running));
    assert_eq!(told.iter().count(), 0, "one event for any number of attempts");
}
