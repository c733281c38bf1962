//! `forebay attach` with FUSE, a loop device and ext4. Needs root and the devices; without them the tests print a
//! message and end.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/attached.rs"]
mod attached;
mod cached;
mod namespaces;
mod unseen_users;
mod process;

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use attached::{LIMIT, Mount, attach, detach, detached, ends, has_device, is_possible, try_attach};
use program::RunningProgram;
use rustix::process::Signal;
use support::{Place, connect, forebay, start, stderr};

const TARGET: &str = "iqn.2026-11.com.example:attach";

/// Settings of a node. The unit has a serial number that is unique to this test, because a host attaches a volume only
/// once.
fn settings(size: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut test = DefaultHasher::new();
    (std::process::id(), std::thread::current().name()).hash(&mut test);
    let serial = format!("{:016x}", test.finish());
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n[[target.unit]]\n\
         serial = \"{serial}\"\nstack = [ {{ file = {{ path = \"disk.img\", size = \"{size}\" }} }} ]\n"
    )
}

fn check(image: &Path) {
    let output = Command::new("/usr/sbin/e2fsck").args(["-fn"]).arg(image).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = vec![0; length];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

#[test]
fn a_file_system_is_made_once_and_is_there_again_the_next_time() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("128MiB"));
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    for direct in [true, false] {
        let mut arguments = vec![url.as_str(), "--mkfs", "ext4", "--mount", &folder];
        arguments.extend((!direct).then_some("--no-direct-io"));
        let first = attach(&arguments);
        for n in 0..20 {
            let file = mount.file(&format!("{direct}-{n}"));
            fs::write(file, content(n, 300_000 + n as usize)).expect("written");
        }
        detached(first);
        assert!(!mount.is_mounted());
        let second = attach(&arguments);
        for n in 0..20 {
            let file = fs::read(mount.file(&format!("{direct}-{n}"))).expect("read");
            assert!(file == content(n, 300_000 + n as usize), "file {n}");
        }
        // SIGTERM detaches the device as `forebay detach` does.
        second.signal(Signal::TERM);
        let mut second = second;
        assert!(ends(&mut second.program));
        assert!(!mount.is_mounted() && !has_device(&second));
        check(&place.path("disk.img"));
    }
}

#[test]
fn a_device_in_use_stays_attached() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    let attached = attach(&[&url, "--mkfs", "ext4", "--mount", &folder]);
    let open = fs::File::create(mount.file("open")).expect("created");
    let sleep = |folder: &Path| {
        Command::new("sleep").arg("100").current_dir(folder).spawn().expect("sleep runs")
    };
    let mut child = sleep(&mount.0);
    let refused = detach(&folder);
    assert!(!refused.status.success());
    let said = stderr(&refused);
    assert!(said.contains(&format!("process {} (sleep)", child.id())), "{said}");
    assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    // Attaching the volume twice is refused, because the second process could overwrite data of the first.
    let twice = try_attach(&[&url]).map(|_| ()).expect_err("attached twice");
    assert!(twice.contains("is attached already") && twice.contains(&attached.ready), "{twice}");
    // Another spelling of the node's address does not help: volumes are compared by their identity.
    let other = url.replace("127.0.0.1", "127.1");
    let twice = try_attach(&[&other]).map(|_| ()).expect_err("attached twice");
    assert!(twice.contains("is attached already") && twice.contains(&attached.ready), "{twice}");
    child.kill().expect("it ran");
    child.wait().expect("it ends");
    // After a signal the process waits for the last user of the device.
    attached.signal(Signal::TERM);
    (&open).write_all(b"still served").expect("written");
    open.sync_all().expect("stable");
    drop(open);
    let mut attached = attached;
    assert!(ends(&mut attached.program));
    check(&place.path("disk.img"));
}

#[test]
fn after_a_kill_programs_get_errors_and_the_next_attach_clears_up() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("256MiB"));
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    let mut arguments = vec![url.as_str(), "--mkfs", "ext4", "--mount", &folder];
    for round in 0..4 {
        if round == 2 {
            arguments.push("--no-direct-io");
        }
        let mut attached = attach(&arguments);
        for before in 0..round {
            let file = fs::read(mount.file(&format!("stable-{before}"))).expect("read");
            assert!(file == content(before, 1 << 20), "what fsync answered for is there");
        }
        let stable = mount.file(&format!("stable-{round}"));
        fs::write(&stable, content(round, 1 << 20)).expect("written");
        fs::File::open(&stable).expect("opened").sync_all().expect("stable");
        let load = |flag: &str, name: &str| {
            let mut dd = Command::new("dd");
            dd.args(["if=/dev/zero", "bs=64k", "count=2000000", "status=none", flag])
                .arg(format!("of={}", mount.file(name).display()))
                .args(["conv=notrunc", "seek=1"])
                .stderr(Stdio::null());
            program::start(&mut dd).expect("dd runs")
        };
        // Two programs overwrite all available space.
        let mut writers: Vec<RunningProgram> = ["oflag=direct", "oflag=sync"]
            .iter()
            .enumerate()
            .map(|(n, flag)| load(flag, &format!("load-{n}")))
            .collect();
        let written = || fs::metadata(mount.file("load-0")).map_or(0, |file| file.len());
        let begun = Instant::now();
        while written() < 4 << 20 && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        for writer in &mut writers {
            let ended = writer.ended(Duration::ZERO).expect("a child");
            assert!(ended.is_none(), "it writes until the kill: {ended:?}");
        }
        attached.program.kill();
        attached.wait();
        for writer in &mut writers {
            assert!(!ends(writer), "an I/O error, no success");
        }
        assert!(mount.is_mounted(), "the mount is a leftover");
    }
    let last = attach(&arguments);
    let file = fs::read(mount.file("stable-3")).expect("read");
    assert!(file == content(3, 1 << 20));
    // Attaching with a mount has replayed the journal of the file system, so the image is clean after the detach.
    detached(last);
    check(&place.path("disk.img"));
}

#[test]
fn a_device_whose_process_was_killed_is_cleared_by_detach() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mut attached = attach(&[&node.url(TARGET)]);
    // Leave data in the page cache: after the process is killed, the kernel cannot write it back any more.
    let device = fs::OpenOptions::new().write(true).open(&attached.ready).expect("opens");
    device.write_all_at(&content(1, 1 << 20), 0).expect("in the page cache");
    attached.program.kill();
    attached.wait();
    assert!(device.sync_all().is_err(), "what is lost is said");
    drop(device);
    let output = forebay().args(["detach", "--json", &attached.ready]).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = format!("{{\"device\":\"{}\",\"stable\":false}}", attached.ready);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), told);
    assert!(!has_device(&attached));
    assert!(!detach(&attached.ready).status.success());
}

#[test]
fn space_that_is_discarded_is_given_back() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    // The stack runs in the attaching process itself.
    let config = place.write("local", &settings("64MiB"));
    let config = config.display().to_string();
    let attached = attach(&[TARGET, "--config", &config]);
    let image = place.path("disk.img");
    let used = || fs::metadata(&image).expect("the image").blocks() * 512;
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(&attached.ready)
        .expect("opens");
    let mut bytes = vec![7; (32 << 20) + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    let data = &mut bytes[start..start + (32 << 20)];
    device.write_all_at(data, 0).expect("written");
    device.sync_all().expect("stable");
    let full = used();
    assert!(full >= 32 << 20, "{full}");
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&device, hole, 8 << 20, 16 << 20).expect("discarded");
    assert!(used() <= full - (16 << 20), "{} of {full}", used());
    device.read_exact_at(data, 0).expect("read");
    let zero = (8 << 20)..(24 << 20);
    assert!(
        data.iter().enumerate().all(|(n, byte)| *byte == if zero.contains(&n) { 0 } else { 7 })
    );
    drop(device);
    detached(attached);
}

#[test]
fn reads_fail_after_the_time_limit_while_the_node_is_down_and_succeed_when_it_is_back() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let mut node = place.serve("node", &settings("64MiB"));
    let attached = attach(&[&node.url(TARGET), "--give-up-after", "1s"]);
    let open = || {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        fs::OpenOptions::new().read(true).custom_flags(direct).open(&attached.ready).expect("opens")
    };
    let read = |device: &fs::File| {
        let mut bytes = vec![0; 8192];
        let start = bytes.as_ptr().align_offset(4096);
        device.read_exact_at(&mut bytes[start..start + 4096], 0)
    };
    let device = open();
    read(&device).expect("it is there");
    let address = node.address;
    node.kill();
    let begun = Instant::now();
    let error = read(&device).expect_err("no node answers");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let again = settings("64MiB").replace("127.0.0.1:0", &address.to_string());
    let _node = place.serve("node", &again);
    let begun = Instant::now();
    while read(&device).is_err() {
        assert!(begun.elapsed() < LIMIT, "it does not come back");
    }
    drop(device);
    detached(attached);
}

/// Killing a node alone loses nothing, because the kernel has its pages. Therefore the test removes unflushed data from
/// the node's disk while the node is down, as a power failure does.
#[test]
fn a_flush_reports_writes_that_the_far_volume_lost() {
    const BYTES: usize = 8 << 20;
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let mut node = place.serve("node", &settings("64MiB"));
    let (url, address) = (node.url(TARGET), node.address);
    let mut attached = attach(&[&url]);
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = fs::OpenOptions::new();
    let device = options.read(true).write(true).custom_flags(direct).open(&attached.ready);
    let device = device.expect("opens");
    let mut buffer = vec![0; BYTES + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let aligned = &mut buffer[start..start + BYTES];
    let mut model = content(1, BYTES);
    aligned.copy_from_slice(&model);
    device.write_all_at(aligned, 0).expect("written");
    device.sync_all().expect("stable");
    let image = place.path("disk.img");
    for round in [3, 5] {
        let stable = place.path("stable.img");
        fs::copy(&image, &stable).expect("copied");
        for (n, bytes) in content(round, 4096 * 300).chunks(4096).enumerate() {
            // Write at random positions, some of them twice, and discard some blocks.
            let at = (bytes[0] as usize % 64 * 32 + bytes[1] as usize % 40) * 4096 % BYTES;
            let new = &mut model[at..at + 4096];
            if n % 10 == 0 {
                let hole =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&device, hole, at as u64, 4096).expect("discarded");
                new.fill(0);
            } else {
                new.copy_from_slice(bytes);
                aligned[..4096].copy_from_slice(bytes);
                device.write_all_at(&aligned[..4096], at as u64).expect("written");
            }
        }
        node.kill();
        fs::rename(&stable, &image).expect("the power went");
        let again = settings("64MiB").replace("127.0.0.1:0", &address.to_string());
        node = place.serve("node", &again);
        assert!(fs::read(&image).expect("read")[..BYTES] != model[..], "something is lost");
        device.read_exact_at(aligned, 0).expect("read");
        assert!(*aligned == model[..], "it is not read any more");
        device.sync_all().expect("stable");
        assert!(fs::read(&image).expect("read")[..BYTES] == model[..], "it is not there again");
    }
    drop(device);
    let output = forebay().args(["detach", "--json", &attached.ready]).output().expect("it runs");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&told["device"], &told["stable"]), (&attached.ready.clone().into(), &true.into()));
    assert!(ends(&mut attached.program));
}

/// With `--shared`, neither attachment caches blocks of the volume.
#[test]
fn shared_attachments_read_the_writes_of_each_other() {
    const BLOCK: usize = 4096;
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let (url, address) = (node.url(TARGET), node.address);
    let attached = attach(&["--shared", &url]);
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = fs::OpenOptions::new();
    let device = options.read(true).write(true).custom_flags(direct).open(&attached.ready);
    let device = device.expect("opens");
    let mut buffer = vec![0; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    let aligned = &mut buffer[start..start + BLOCK];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let other = runtime.block_on(connect(address, TARGET));
    for version in 1..20 {
        aligned.copy_from_slice(&support::content(7, version));
        device.write_all_at(aligned, 7 * BLOCK as u64).expect("written");
        let seen = runtime.block_on(support::read(&*other, 7)).expect("read");
        assert_eq!(seen, support::content(7, version));
        runtime.block_on(support::write(&*other, 7, version + 100)).expect("written");
        device.read_exact_at(aligned, 7 * BLOCK as u64).expect("read");
        assert!(*aligned == support::content(7, version + 100));
    }
    device.sync_all().expect("stable");
    drop((device, other));
    detached(attached);
}

/// An attachment in use is not treated as a leftover, even if its runtime files and its far volume are lost.
#[test]
fn a_running_process_keeps_its_device_even_if_it_cannot_be_reached() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let mut node = place.serve("node", &settings("64MiB"));
    let (url, address) = (node.url(TARGET), node.address);
    // The process has another environment, as a service has. All attachments use the same folder nevertheless.
    let runtime = place.path("runtime");
    fs::create_dir(&runtime).expect("a folder");
    let mut command = forebay();
    command.env("XDG_RUNTIME_DIR", &runtime).args(["attach", &url, "--give-up-after", "1s"]);
    let mut attached = start(&mut command).expect("attached");
    let twice = try_attach(&[&url]).map(|_| ()).expect_err("attached twice");
    assert!(twice.contains("is attached already"), "{twice}");
    // Remove all runtime files of the attachment, as a user might.
    let process = attached.program.id().to_string();
    for file in fs::read_dir("/run/forebay-attach").expect("the folder").map_while(Result::ok) {
        let path = file.path();
        if fs::read_to_string(&path).is_ok_and(|owner| owner.trim() == process) {
            // If the file is the lock of a control socket, remove the socket as well.
            let _ = fs::remove_file(path.with_extension(""));
            fs::remove_file(&path).expect("removed");
        }
    }
    node.kill();
    let refused = detach(&attached.ready);
    assert!(!refused.status.success(), "{refused:?}");
    let said = stderr(&refused);
    assert!(said.contains(&format!("process {process}, which does not answer")), "{said}");
    assert!(has_device(&attached), "it is not cleared");
    let again = settings("64MiB").replace("127.0.0.1:0", &address.to_string());
    let _node = place.serve("node", &again);
    let twice = try_attach(&[&url]).map(|_| ()).expect_err("attached twice");
    assert!(twice.contains("which does not answer"), "{twice}");
    // The far volume has to be back before a detach, because some data may not be stable.
    let begun = Instant::now();
    while let Err(error) = fs::File::open(&attached.ready).and_then(|device| device.sync_all()) {
        assert!(begun.elapsed() < LIMIT, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Close the terminal, so that no program reads the output: the process detaches as after SIGTERM.
    drop(attached.stderr());
    attached.signal(Signal::HUP);
    assert!(ends(&mut attached.program));
    assert!(!has_device(&attached));
}

/// The kernel reports a write error once, discards the data, and treats the device as clean afterwards.
#[test]
fn data_that_the_kernel_discarded_after_an_error_is_never_called_stable() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let mut node = place.serve("node", &settings("64MiB"));
    let (url, address) = (node.url(TARGET), node.address);
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let arguments = [&url, "--give-up-after", "1s", "--mkfs", "ext4", "--mount", &folder];
    let mut attached = attach(&arguments);
    fs::write(mount.file("lost"), content(1, 4 << 20)).expect("in the page cache");
    node.kill();
    let first = detach(&folder);
    assert!(!first.status.success() && stderr(&first).contains("are not stable"), "{first:?}");
    assert!(mount.is_mounted(), "what is not stable is not unmounted");
    let again = settings("64MiB").replace("127.0.0.1:0", &address.to_string());
    let mut node = place.serve("node", &again);
    let begun = Instant::now();
    let last = loop {
        let output = detach(&attached.ready);
        assert!(!output.status.success(), "{output:?}");
        if stderr(&output).contains("is detached") {
            break stderr(&output);
        }
        assert!(begun.elapsed() < LIMIT, "it is not detached: {output:?}");
    };
    assert!(last.contains(" writes failed with I/O errors since "), "{last}");
    assert!(!ends(&mut attached.program), "the process says it, too");
    assert!(!mount.is_mounted() && !has_device(&attached));

    // Lose written data again, this time by a forced detach.
    let mut attached = attach(&arguments[..3]);
    let device = fs::OpenOptions::new().write(true).open(&attached.ready).expect("opens");
    device.write_all_at(&content(1, 1 << 20), 0).expect("in the page cache");
    node.kill();
    let forced = forebay().args(["detach", "--force", &attached.ready]).output().expect("it runs");
    let said = stderr(&forced);
    assert!(!forced.status.success() && said.contains("is detached; "), "{said}");
    assert!(said.contains("may be lost") && said.contains("writes failed"), "{said}");
    assert!(!ends(&mut attached.program));
}

#[test]
fn a_volume_that_grows_grows_the_device() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let image = fs::File::create(place.path("disk.img")).expect("a file");
    image.set_len(64 << 20).expect("sparse");
    let unsized_file = settings("").replace(", size = \"\"", "");
    let node = place.serve("node", &unsized_file);
    let attached = attach(&[&node.url(TARGET)]);
    let name = Path::new(&attached.ready).file_name().expect("a name");
    let file = Path::new("/sys/block").join(name).join("size");
    let sectors =
        || -> u64 { fs::read_to_string(&file).expect("a size").trim().parse().expect("a number") };
    assert_eq!(sectors(), 64 << 11);
    let output = forebay()
        .args(["resize", TARGET, "0", "96MiB", "--control"])
        .arg(&node.control)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let begun = Instant::now();
    while sectors() != 96 << 11 {
        assert!(begun.elapsed() < LIMIT, "the device does not grow");
        std::thread::sleep(Duration::from_millis(20));
    }
    let device = fs::OpenOptions::new().write(true).open(&attached.ready).expect("opens");
    device.write_all_at(&content(5, 4096), 95 << 20).expect("written");
    device.sync_all().expect("stable");
    drop(device);
    detached(attached);
}

#[test]
fn an_impossible_attach_is_refused_at_once() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    let mount = Mount::new(&place);
    let folder = mount.0.display().to_string();
    let url = node.url(TARGET);
    let refused = |arguments: &[&str], why: &str| {
        let output = forebay().arg("attach").args(arguments).output().expect("the binary runs");
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&[&url, "--mount", "/nowhere/at/all"], "mkdir -p /nowhere/at/all");
    refused(&[&url, "--mount", &folder], "hold zeros only: if it is a new volume, `--mkfs TYPE`");
    refused(&[&url, "--mkfs", "nosuchfs"], "there is no program mkfs.nosuchfs");
    refused(&[&url, "--mkfs", "../ext4"], "such as ext4");
    refused(&["iscsi://127.0.0.1:1/iqn.x:y/0"], "start the target there");
    refused(&["http://a"], "iscsi://HOST");
    let attached = attach(&[&url, "--read-only"]);
    let wrote = fs::OpenOptions::new().write(true).open(&attached.ready);
    assert!(wrote.is_err() || wrote.is_ok_and(|file| file.write_all_at(&[1; 512], 0).is_err()));
    detached(attached);
    // Content of any kind is protected from being overwritten.
    let attached = attach(&[&url]);
    let mut device = fs::OpenOptions::new().write(true).open(&attached.ready).expect("opens");
    device.write_all(&content(3, 4096)).expect("written");
    drop(device);
    detached(attached);
    refused(&[&url, "--mkfs", "ext4"], "no file system is made");
    refused(&[&url, "--mount", &folder], "`--mkfs TYPE --force`");
    assert_eq!(fs::read(place.path("disk.img")).expect("read")[..4096], content(3, 4096));
    let forced = attach(&[&url, "--mkfs", "ext4", "--force", "--mount", &folder]);
    assert!(mount.file("lost+found").is_dir());
    detached(forced);
}
