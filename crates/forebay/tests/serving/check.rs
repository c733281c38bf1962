//! `forebay check`: its report about a gateway's far volume, about the log over it, and about files that `serve` would
//! create.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use support::{Place, connect, content, eventually, gateway, node, read, run, stderr, write};
use volume::Volume;

use crate::support;

/// The settings of a gateway that has a log over the volume of a node. Both have stopped.
struct Stopped {
    place: Place,
    address: std::net::SocketAddr,
}

impl Stopped {
    fn new() -> Self {
        let place = Place::new();
        let far = place.serve("node", &node(place.folder.path(), 0));
        let near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
        let address = far.address;
        for serving in [near, far] {
            assert!(serving.terminate().0.success());
        }
        Self { place, address }
    }

    /// Returns the exit code and the output of `forebay check` for the gateway.
    fn check(&self) -> (Option<i32>, String) {
        check(&self.place, &gateway(self.place.folder.path(), self.address, ""))
    }
}

/// Returns the exit code and the output of `forebay check` for these settings.
fn check(place: &Place, text: &str) -> (Option<i32>, String) {
    let config = place.write("gateway", text);
    let output = run(&["check", "--config", config.to_str().expect("plain")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    (output.status.code(), text)
}

fn unit(listen: &str, stack: &str) -> String {
    format!(
        "listen = {listen}\n[[target]]\nname = 'iqn.2026-11.test:a'\n[[target.unit]]\n\
         stack = [ {stack} ]\n"
    )
}

const LOOPBACK: &str = "['127.0.0.1:0']";

/// Regression: `check` reported that files would be made for which there was no space, and `serve` then failed.
#[test]
fn files_that_serve_could_not_make_are_refused_by_check() {
    let place = Place::new();
    let memory = "{ memory = { size = '16MiB' } }";
    // No disk of this machine has room for a log of 4 TiB.
    let log = format!("{memory}, {{ cache = {{ log = 'l.log', log_size = '4TiB' }} }}");
    let nvram = format!(
        "{memory}, {{ cache = {{ log = 'l.log', log_size = '32MiB', dram = '4TiB', nvram = 'nv', \
         nvram_size = '2TiB', report = 'immediate' }} }}"
    );
    for (stack, what) in [
        (
            "{ file = { path = 'nosuch/v.img', size = '16MiB' } }",
            "create its folder first: mkdir -p",
        ),
        (&*log, "l.log\" needs 4398046511104 bytes more, and its file system has"),
        (&*nvram, "nv: it needs 22"),
        ("{ file = { path = 'v.img' } }", "set `size`"),
    ] {
        let (code, text) = check(&place, &unit(LOOPBACK, stack));
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(what), "{what}: {text}");
    }
    let refused = place.try_serve("gateway", &unit(LOOPBACK, &log)).err().expect("no room");
    assert!(refused.contains("remedy: make room"), "{refused}");
    assert!(!place.path("l.log").exists(), "W7: it would fill the disk");
}

#[test]
fn files_that_fit_their_disk_only_one_by_one_are_refused() {
    let place = Place::new();
    let free = rustix::fs::statvfs(place.folder.path()).expect("a file system");
    let most = free.f_bavail * free.f_frsize * 6 / 10 / 4096 * 4096;
    let cache = |log: &str| {
        format!(
            "{{ memory = {{ size = '16MiB' }} }}, {{ cache = {{ log = '{log}', log_size = '{most}', \
             dram = '8MiB' }} }}"
        )
    };
    let two = unit(LOOPBACK, &cache("a.log"))
        + &unit(LOOPBACK, &cache("b.log"))
            .replace("listen = ['127.0.0.1:0']\n", "")
            .replace(":a'", ":b'");
    let (code, text) = check(&place, &unit(LOOPBACK, &cache("a.log")));
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = check(&place, &two);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("bytes together") && text.contains("remedy: free space"), "{text}");
}

/// `serve` and `check` read the same records of used storage.
#[test]
fn records_that_serve_would_refuse_are_found() {
    let place = Place::new();
    let file = "{ file = { path = 'v.img', size = '16MiB' } }";
    let names = |state: &str| {
        let names =
            "listen = ['127.0.0.1:0']\n[names]\nlisten = ['127.0.0.1:0']\nsecret_file = 'secret'\n";
        unit(LOOPBACK, file).replacen("listen = ['127.0.0.1:0']\n", &format!("{state}{names}"), 1)
    };
    support::nodes::secret(&place, "secret");
    let text = names("state = 'kept'\n");
    assert!(place.serve("gateway", &text).terminate().0.success());
    let (code, said) = check(&place, &text);
    assert!(code == Some(0) && said.contains("this node has the number"), "{said}");
    let refused = |what: &str| {
        let (code, said) = check(&place, &text);
        assert!(code == Some(1) && said.contains(what), "{what}: {said}");
        let told = place.try_serve("gateway", &text).err();
        assert!(told.is_some_and(|told| told.contains(what)), "{what}");
    };
    let state = place.path("kept");
    let (moved, gln) = (state.join("moved"), state.join("gln"));
    let number = fs::read(&gln).expect("a number");
    fs::write(&gln, "7\n").expect("written");
    refused("does not contain this node's number");
    fs::write(&gln, &number).expect("written");
    fs::create_dir(&moved).expect("made");
    fs::write(moved.join("payroll.volume"), "").expect("written");
    refused("does not say whether the volume is here");
    fs::remove_file(&gln).expect("there");
    refused("has records of moves");
    fs::remove_dir_all(&moved).expect("there");
    fs::write(&gln, &number).expect("written");
    let lock = fs::read_dir(&state).expect("a folder").flatten().map(|entry| entry.path());
    let mut lock = lock.filter(|file| file.extension().is_some_and(|it| it == "lock"));
    let claim = lock.next().expect("of the unit").with_extension("claim");
    fs::write(&claim, "damaged").expect("written");
    refused("is damaged");
    fs::remove_file(&claim).expect("there");
    // Without the key `state`, records of used storage are in a folder next to the settings file.
    let beside = place.path("forebay-state");
    let text = unit(LOOPBACK, file);
    fs::write(&beside, "").expect("written");
    let (code, said) = check(&place, &text);
    assert!(code == Some(1) && said.contains("records of storage: "), "{said}");
    assert!(place.try_serve("gateway", &text).is_err());
    fs::remove_file(&beside).expect("there");
    fs::create_dir(&beside).expect("made");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o777)).expect("chmod");
    let (code, said) = check(&place, &text);
    assert!(code == Some(1) && said.contains("(mode 0777)"), "{said}");
    assert!(place.try_serve("gateway", &text).is_err());
}

#[test]
fn check_tries_the_addresses_and_the_control_socket_as_serve_does() {
    let place = Place::new();
    support::nodes::secret(&place, "secret");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let names = |port: u16| {
        let names = format!(
            "listen = ['127.0.0.1:0']\nstate = 'kept'\n[names]\nlisten = ['127.0.0.1:{port}']\n\
             secret_file = 'secret'\n"
        );
        let memory = unit(LOOPBACK, "{ memory = { size = '16MiB' } }");
        memory.replacen("listen = ['127.0.0.1:0']\n", &names, 1)
    };
    let (code, said) = check(&place, &names(port));
    let told = place.try_serve("gateway", &names(port)).err().expect("it is taken");
    assert_eq!(code, Some(1), "{said}");
    for text in [said, told] {
        assert!(text.contains("cannot listen for naming queries"), "{text}");
    }
    drop(taken);
    let (code, said) = check(&place, &names(port));
    assert_eq!(code, Some(0), "{said}");
    // The serving process has the port open, which is no problem.
    let serving = place.serve("gateway", &names(port));
    let (code, said) = check(&place, &names(port));
    assert!(code == Some(0) && said.contains("the serving process has it open"), "{said}");
    drop(serving);
    // A process that does not answer has the socket.
    let lock = fs::File::create(place.path("gateway.sock.lock")).expect("made");
    fs::write(place.path("gateway.sock.lock"), "\x1b[2Jsecret").expect("written");
    lock.lock().expect("taken");
    let (code, said) = check(&place, &names(port));
    assert!(code == Some(1) && said.contains("already running with the control socket"), "{said}");
    assert!(said.contains("(process unknown)") && !said.contains("secret\n"), "{said:?}");
    drop(lock);
    fs::remove_file(place.path("gateway.sock.lock")).expect("there");
    let _ = fs::remove_file(place.path("gateway.sock"));
    fs::write(place.path("gateway.sock"), "").expect("written");
    let (code, said) = check(&place, &names(port));
    assert!(code == Some(1) && said.contains("something that is not a socket"), "{said}");
}

#[test]
fn a_missing_list_has_a_remedy_and_a_target_open_to_every_host_is_a_warning() {
    let place = Place::new();
    let stack = "{ memory = { size = '16MiB' } }";
    let (code, text) = check(&place, &unit("'127.0.0.1'", stack));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("remedy: write a list: listen = ['127.0.0.1']"), "{text}");
    let warning = "warning: every host that reaches 0.0.0.0:";
    let (code, text) = check(&place, &unit("['0.0.0.0:0']", stack));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(warning), "{text}");
    let allowed =
        unit("['0.0.0.0:0']", stack).replace("[[target.unit]]", "allow = []\n[[target.unit]]");
    for text in [allowed, unit(LOOPBACK, stack)] {
        let (_, text) = check(&place, &text);
        assert!(!text.contains("warning"), "{text}");
    }
}

/// Regression: if a path named a pipe, `check` and `serve` waited until a program wrote into it.
#[test]
fn a_pipe_in_place_of_a_secret_does_not_block_a_check() {
    let place = Place::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("pipe"), 0o600.into()).expect("made");
    let (pipe, secret) = (place.path("pipe"), place.path("secret"));
    fs::write(&secret, "x".repeat(64)).expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("chmod");
    let user = "[[user]]\nname = 'alice'\nsecret_file = 'pipe'\n";
    let unit = |stack: &str| unit(LOOPBACK, stack);
    let memory = unit("{ memory = { size = '16MiB' } }");
    let key = unit(
        "{ memory = { size = '16MiB' } }, { encrypt = { key = 'pipe', secret_file = 'secret' } }",
    );
    for text in [memory.replace("[[target]]", &format!("{user}[[target]]")), key] {
        let (code, said) = check(&place, &text);
        assert!(code.is_some_and(|code| code > 0), "{said}");
        assert!(said.contains(&format!("{} is not a plain file", pipe.display())), "{said}");
    }
}

/// Regression: every user of the machine could read the data that hosts wrote.
#[test]
fn files_with_data_of_hosts_are_private_to_their_owner() {
    let place = Place::new();
    let mode = |name: &str| {
        let found =
            fs::metadata(place.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.permissions().mode() & 0o7777
    };
    let cache = "log = 'l.log', log_size = '32MiB', dram = '8MiB', nvram = 'nv', nvram_size = '1MiB', \
                 report = 'immediate', read_tier = 'tier', read_tier_size = '64MiB'";
    let text = unit(
        LOOPBACK,
        &format!("{{ file = {{ path = 'v.img', size = '16MiB' }} }}, {{ cache = {{ {cache} }} }}"),
    );
    let names = ["v.img", "l.log", "nv", "tier"];
    let serve = || place.serve("gateway", &text).terminate();
    serve();
    assert_eq!(names.map(mode), [0o600; 4]);
    let open = |name: &str| {
        let mode = fs::Permissions::from_mode(0o664);
        fs::set_permissions(Path::new(&place.path(name)), mode).expect("chmod");
    };
    names.into_iter().for_each(open);
    let (code, said) = check(&place, &text);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(names.map(mode), [0o664; 4], "check changes no access rights");
    serve();
    assert_eq!(names.map(mode), [0o600; 4], "narrowed");
}

#[test]
fn a_check_does_not_fill_an_nvram_file_that_is_too_short() {
    let place = Place::new();
    fs::write(place.path("nv"), [0; 4096]).expect("written");
    let cache = "log = 'l.log', log_size = '32MiB', dram = '8MiB', nvram = 'nv', nvram_size = '1MiB', \
                 report = 'immediate'";
    let text = unit(
        LOOPBACK,
        &format!("{{ memory = {{ size = '16MiB' }} }}, {{ cache = {{ {cache} }} }}"),
    );
    let (code, said) = check(&place, &text);
    assert!(code == Some(0) && said.contains("nv would be made"), "{said}");
    assert_eq!(fs::metadata(place.path("nv")).expect("it is there").len(), 4096);
}

#[test]
fn an_unreachable_far_volume_is_no_fault_if_a_log_records_it() {
    let stopped = Stopped::new();
    let (code, text) = stopped.check();
    assert_eq!(code, Some(0), "{text}");
    let expected = format!("iscsi://{}/iqn.2026-11.test:node/0 does not answer (", stopped.address);
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains("a start continues with the log"), "{text}");
    // Remove the log: without it, the gateway cannot serve while its node does not answer.
    std::fs::remove_file(stopped.place.path("gateway.log")).expect("it was made");
    let (code, text) = stopped.check();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot connect") && text.contains("remedy: "), "{text}");
}

#[test]
fn a_far_volume_that_is_not_the_one_of_the_log_is_refused_with_both_names() {
    let stopped = Stopped::new();
    let port = stopped.address.port();
    let text = node(stopped.place.folder.path(), port);
    let right = stopped.place.serve("node", &text);
    let (code, text_right) = stopped.check();
    assert_eq!(code, Some(0), "{text_right}");
    assert!(text_right.contains("the volume that the log belongs to"), "{text_right}");
    drop(right);

    let other = text.replace("[[target.unit]]\n", "[[target.unit]]\nserial = 'OTHER'\n");
    let _wrong = stopped.place.serve("node", &other);
    let (code, text) = stopped.check();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("but the log over it belongs to \"naa."), "{text}");
    assert!(text.contains("remedy: point `url` at the volume that the log belongs to"), "{text}");
    assert!(text.contains("1 of these things cannot be used as they are"), "{text}");
}

/// Asserts that the state folder has the number of the last confirmed write of a log, readable only by its owner.
fn assert_keeps_the_number(state: &Path) {
    let mut found = fs::read_dir(state).expect("a folder").flatten();
    let is_number = |name: &str| name.starts_with("log-") && name.ends_with(".confirmed");
    assert!(found.any(|entry| is_number(&entry.file_name().to_string_lossy())));
    let mode = state.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Regression: `check` accepted an older copy of log and NVRAM that `serve` then refused. Without `state`, neither of
/// them noticed the copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_put_back_from_a_copy_is_refused_as_serve_does() {
    const LAZY: &str = "destage_idle = '60s'\ndestage_threshold = 0.9\ndirty_age = '1h'\n";
    let nvram = format!("{LAZY}report = 'immediate'\nnvram = 'nvram'\n");
    for (node_top, near_top, more, who) in [
        ("", "", LAZY, "was confirmed"),
        ("", "state = 'near state'\n", &*nvram, "was confirmed"),
        ("state = 'far'\n", "", LAZY, "the node had confirmation of write"),
    ] {
        let place = Place::new();
        let far = format!("{node_top}{}", node(place.folder.path(), 0));
        let far = place.serve("node", &far);
        let settings = format!("{near_top}{}", gateway(place.folder.path(), far.address, more));
        let mut near = place.serve("gateway", &settings);
        let volume = connect(near.address, "iqn.2026-11.test:gateway").await;
        let files = [place.path("gateway.log"), place.path("nvram")];
        write(&*volume, 0, 1).await.expect("written");
        volume.flush().await.expect("flushed");
        let copies = files.clone().map(|file| fs::read(file).ok());
        for block in (0..8).rev() {
            write(&*volume, block, 2).await.expect("written");
        }
        volume.flush().await.expect("flushed");
        if who != "was confirmed" {
            // The gateway has no state folder and keeps no number itself. The node gets the number within a second.
            let confirmed =
                || far.status()["targets"][0]["units"][0]["claim"]["confirmed"].as_u64();
            eventually("a confirmed number", || confirmed().is_some_and(|number| number > 8)).await;
        }
        near.kill();
        drop(volume);
        let newest = files.clone().map(|file| fs::read(file).ok());
        let put_back = |copies: &[Option<Vec<u8>>; 2]| {
            for (file, copy) in files.iter().zip(copies) {
                if let Some(copy) = copy {
                    fs::write(file, copy).expect("put back");
                }
            }
        };
        if who == "was confirmed" {
            let state = near_top.split('\'').nth(1).unwrap_or("forebay-state");
            assert_keeps_the_number(&place.path(state));
        } else {
            let _ = fs::remove_dir_all(place.path("forebay-state"));
        }
        put_back(&copies);
        let (code, checked) = check(&place, &settings);
        let told = place.try_serve("gateway", &settings).err().expect("it is an older copy");
        // `check` does not claim the volume, and the node reports its number only when it refuses a claim. Therefore
        // `check` notices the older copy only if the gateway itself has kept the number.
        let is_own = who == "was confirmed";
        assert_eq!(code, Some(i32::from(is_own)), "{checked}");
        let texts = if is_own { vec![&checked, &told] } else { vec![&told] };
        // The message must contain the whole command, ready to be pasted.
        let forget = format!(
            "`forebay forget {} --config {} --lose-data --hosts-unmounted`",
            files[0].display(),
            place.path("gateway.toml").display()
        );
        for text in &texts {
            assert!(text.contains(who) && text.contains("older copy"), "{who}: {text}");
            assert!(text.contains(&forget), "{forget}: {text}");
        }
        put_back(&newest);
        let (code, checked) = check(&place, &settings);
        assert_eq!(code, Some(0), "{checked}");
        let near = place.serve("gateway", &settings);
        let volume = connect(near.address, "iqn.2026-11.test:gateway").await;
        assert_eq!(read(&*volume, 0).await.expect("read"), content(0, 2));
    }
}

/// Regression: a pipe without a writer blocked `forebay forget` forever.
#[test]
fn forget_reports_a_log_path_that_is_neither_a_file_nor_a_device() {
    let stopped = Stopped::new();
    let log = stopped.place.path("gateway.log");
    fs::remove_file(&log).expect("it was made");
    rustix::fs::mkfifoat(rustix::fs::CWD, &log, 0o600.into()).expect("made");
    let config = stopped.place.path("gateway.toml").display().to_string();
    let log = log.display().to_string();
    let told = run(&["forget", &log, "--config", &config, "--lose-data"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(stderr(&told).contains("neither a file nor a block device"), "{}", stderr(&told));
    fs::remove_file(&log).expect("it was made");
    let told = run(&["forget", &log, "--config", &config, "--lose-data", "--hosts-unmounted"]);
    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
}
