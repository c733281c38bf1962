//! Tests `forebay serve`: its portals, its control socket and its shutdown.

mod support;

use std::{
    io::{BufRead, BufReader, PipeReader},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use support::{
    Place, Serving, connect, content,
    raw::{self, FIRST_BURST, FIRST_BURST_KEYS, connect_from, full_pipe, log_in, write_command},
    read, run, stderr, write,
};
use volume::Volume;

const NAME: &str = "iqn.2026-11.test:memory";

fn memory(listen: &str) -> String {
    stack(listen, "{ memory = { size = '16MiB' } }, { observe = { name = 'all' } }")
}

fn stack(listen: &str, layers: &str) -> String {
    format!(
        r#"
listen = [{listen}]
[[target]]
name = "{NAME}"
[[target.unit]]
stack = [ {layers} ]
"#
    )
}

fn serve(place: &Place) -> Serving {
    place.serve("node", &memory("'127.0.0.1:0'"))
}

#[tokio::test]
async fn written_data_reads_back_and_is_counted() {
    let place = Place::new();
    let node = serve(&place);
    let volume = connect(node.address, NAME).await;
    assert_eq!(volume.geometry().bytes(), 16 << 20);
    write(&*volume, 5, 1).await.expect("written");
    volume.flush().await.expect("flushed");
    assert_eq!(read(&*volume, 5).await.expect("read"), content(5, 1));
    assert_eq!(node.figure("observe", "written_bytes"), 4096);
    let status = node.status();
    assert_eq!(status["state"], "serving");
    let session = &status["sessions"][0];
    assert_eq!(session["target"], NAME);
    let connections = session["connections"].as_array().expect("connections");
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0]["portal"], node.address.to_string());
    assert_eq!(connections[0]["address"], session["address"]);
    assert_eq!(connections[0]["data_out_bytes"], 4096);
    let table = run(&["status", "--all", "--control", node.control.to_str().expect("plain")]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let shown = format!("{} ┆ {}", session["address"].as_str().expect("text"), node.address);
    assert!(table.contains("PDUs in") && table.contains(&shown), "{table}");
    assert_eq!(status["portals"][0]["address"], node.address.to_string());
}

#[test]
fn the_control_socket_is_the_users_own() {
    let place = Place::new();
    let node = serve(&place);
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    };
    assert_eq!(mode(&node.control), 0o600);
    let control = node.control.clone();
    let (status, _) = node.terminate();
    assert!(status.success());
    assert!(!control.exists(), "it goes with the process");
}

#[test]
fn a_folder_made_for_the_control_socket_is_private() {
    let place = Place::new();
    let text =
        memory("'127.0.0.1:0'").replace("listen", "initiator_name = 'iqn.2026-11.a:b'\nlisten");
    let config = place.path("n.toml");
    std::fs::write(&config, format!("control = 'run/c.sock'\n{text}")).expect("written");
    let mut child = support::forebay()
        .args(["serve", "--config"])
        .arg(&config)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("ready");
    let mode = std::fs::metadata(place.path("run")).expect("made").permissions().mode() & 0o777;
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert_eq!(mode, 0o700);
}

#[test]
fn two_processes_cannot_share_a_control_socket_unless_the_first_is_dead() {
    let place = Place::new();
    let mut first = serve(&place);
    let second = place.try_serve("node", &memory("'127.0.0.1:0'"));
    let error = second.err().expect("refused");
    assert!(error.contains("exit status: 1"), "{error}");
    assert!(error.contains("already running"), "{error}");
    assert!(error.contains("remedy: stop it first"), "{error}");
    assert_eq!(first.status()["state"], "serving", "the first is not harmed");
    first.kill();
    assert!(first.control.exists(), "a killed process leaves its socket");
    let third = serve(&place);
    assert_eq!(third.status()["state"], "serving");
}

#[test]
fn a_file_in_place_of_the_control_socket_is_left_alone() {
    let place = Place::new();
    std::fs::write(place.path("node.sock"), "precious").expect("written");
    let error = place.try_serve("node", &memory("'127.0.0.1:0'")).err().expect("refused");
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(place.path("node.sock")).expect("still there"), b"precious");
}

/// Regression: the file behind a symbolic link was emptied, and overwritten with the process number.
#[test]
fn a_symbolic_link_in_place_of_the_lock_file_is_not_followed() {
    let place = Place::new();
    std::fs::write(place.path("victim"), "precious").expect("written");
    std::os::unix::fs::symlink(place.path("victim"), place.path("node.sock.lock")).expect("linked");
    let error = place.try_serve("node", &memory("'127.0.0.1:0'")).err().expect("refused");
    assert!(error.contains("node.sock.lock is a symbolic link"), "{error}");
    assert_eq!(std::fs::read(place.path("victim")).expect("still there"), b"precious");
}

#[test]
fn readiness_is_written_to_the_given_descriptor() {
    let place = Place::new();
    let config = place.write("node", &memory("'127.0.0.1:0', '127.0.0.1:0'"));
    let mut child = support::forebay()
        .args(["serve", "--ready-fd", "2", "--log-level", "off", "--config"])
        .arg(&config)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().expect("piped"));
    std::io::BufRead::read_line(&mut stderr, &mut line).expect("a line");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let words: Vec<_> = line.split_whitespace().collect();
    assert!(matches!(words[..], ["ready", first, second] if first != second), "{line}");
}

#[test]
fn a_port_in_use_is_named_with_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let place = Place::new();
    let error = place.try_serve("node", &memory(&format!("'{address}'"))).err().expect("refused");
    assert!(error.contains("exit status: 1"), "{error}");
    assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
    assert!(error.contains("remedy: stop the process that uses it"), "{error}");
}

#[tokio::test]
async fn a_stop_with_open_sessions_is_quick_and_clean() {
    let place = Place::new();
    let node = serve(&place);
    let volume = connect(node.address, NAME).await;
    write(&*volume, 1, 1).await.expect("written");
    let (status, took) = tokio::task::spawn_blocking(|| node.terminate()).await.expect("no panic");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn an_unknown_target_is_reported_with_a_remedy() {
    let place = Place::new();
    let node = serve(&place);
    let url = format!("iscsi://{}/iqn.2026-11.test:other/0", node.address);
    let output = run(&["ls", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot list"), "{}", stderr(&output));
    let gateway = stack("'127.0.0.1:0'", &format!("{{ remote = {{ url = '{url}' }} }}"));
    let error = place.try_serve("gateway", &gateway).err().expect("refused");
    assert!(
        error.contains("exit status: 1") && error.contains("iqn.2026-11.test:other"),
        "{error}"
    );
    assert!(error.contains("remedy: check that the target has that name"), "{error}");
}

#[test]
fn targets_and_units_are_listed() {
    let place = Place::new();
    let node = serve(&place);
    let output = run(&["ls", &format!("iscsi://{}", node.address), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(listed["targets"][0]["name"], NAME);
    assert_eq!(listed["targets"][0]["units"][0]["bytes"], 16 << 20);
    let table = run(&["ls", &format!("iscsi://{}", node.address)]);
    assert!(String::from_utf8_lossy(&table.stdout).contains(&node.url(NAME)));
}

#[test]
fn a_volume_in_use_is_not_served_twice() {
    let place = Place::new();
    let text = support::node(place.folder.path(), 0);
    let _first = place.serve("first", &text);
    let error = place.try_serve("second", &text).err().expect("refused");
    assert!(error.contains("node.img\" is in use"), "{error}");
    assert!(error.contains("remedy: stop the other process"), "{error}");
}

#[test]
fn a_file_of_another_size_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("node.img"), vec![0; 8192]).expect("written");
    let text = support::node(place.folder.path(), 0);
    let error = place.try_serve("node", &text).err().expect("refused");
    assert!(error.contains("has 8192 bytes, not 67108864"), "{error}");
    assert!(error.contains("write \"8KiB\""), "{error}");
}

#[tokio::test]
async fn a_read_only_layer_refuses_writes() {
    let place = Place::new();
    let layers = "{ memory = { size = '16MiB' } }, { slice = { start = '1MiB', size = '2MiB' } }, \
                  'read-only'";
    let text = stack("'127.0.0.1:0'", layers);
    let node = place.serve("node", &text);
    let volume = connect(node.address, NAME).await;
    assert_eq!(volume.geometry().bytes(), 2 << 20);
    assert!(volume.geometry().read_only);
    assert!(write(&*volume, 0, 1).await.is_err());
}

/// Logs in and out `times` times as an initiator with a long name, which causes some 600 bytes of events each time.
fn come_and_go(node: &Serving, times: u16) {
    let initiator = format!("iqn.2026-11.test:{}", "x".repeat(190));
    for isid in 0..times {
        let mut stream = connect_from(IpAddr::V4(Ipv4Addr::LOCALHOST), node.address);
        let keys = [("InitiatorName", initiator.as_str()), ("TargetName", NAME)];
        assert_eq!(log_in(&mut stream, isid, &keys), Some(0), "login {isid}");
    }
}

fn dropped(node: &Serving) -> u64 {
    node.status()["counters"]["events_dropped"].as_u64().expect("a number")
}

/// Returns a node whose stderr is a pipe that no program reads, after logins whose events have filled the pipe.
async fn unread(place: &Place) -> (Serving, PipeReader) {
    let (reader, writer) = full_pipe();
    // At log level debug, each session causes an event, without a limit for one address.
    let text = format!("log_level = 'debug'\n{}", memory("'127.0.0.1:0'"));
    let node = place.serve_with("node", &text, writer);
    come_and_go(&node, 300);
    let volume = connect(node.address, NAME).await;
    write(&*volume, 5, 1).await.expect("written");
    assert_eq!(read(&*volume, 5).await.expect("read"), content(5, 1));
    assert_eq!(node.status()["state"], "serving");
    (node, reader)
}

/// Regression: a stopped log collector, or a terminal with Ctrl-S, blocked sessions, logins, `status` and SIGTERM.
#[tokio::test]
async fn a_full_stderr_pipe_does_not_block_the_server() {
    let place = Place::new();
    let (node, _reader) = unread(&place).await;
    let (status, took) = node.terminate();
    assert!(status.success());
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test]
async fn events_that_do_not_fit_are_counted_and_reported_when_the_reader_reads_again() {
    let place = Place::new();
    let (node, reader) = unread(&place).await;
    while dropped(&node) == 0 {
        come_and_go(&node, 500);
    }
    let table = run(&["status", "--all", "--control", node.control.to_str().expect("plain")]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("events dropped"));
    let mut lines = BufReader::new(reader).lines().map(|line| line.expect("text"));
    let report = lines.find(|line| line.contains("events were dropped")).expect("a report");
    assert!(report.contains("dropped="), "{report}");
    let before = dropped(&node);
    come_and_go(&node, 1);
    lines.find(|line| line.contains("session opened")).expect("events come again");
    assert_eq!(dropped(&node), before);
}

/// Returns the soft and the hard limit of open files of the process (proc(5)).
fn open_files(node: &Serving) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.id())).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("there");
    let mut numbers = line["Max open files".len()..].split_whitespace().map(str::to_owned);
    (numbers.next().expect("soft"), numbers.next().expect("hard"))
}

/// With the usual soft limit of 1,024, a thousand connections of strangers locked everybody out, and state files could
/// not be opened either.
#[test]
fn the_limit_of_open_files_is_raised_and_one_that_is_too_low_is_reported() {
    let place = Place::new();
    let limited = |limits: &str| {
        let mut command = std::process::Command::new("sh");
        let script = format!("{limits} && exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(support::forebay().get_program());
        command
    };
    let text = memory("'127.0.0.1:0'");
    let node = place.try_serve_by(limited("ulimit -Sn 200"), "node", &text).expect("serves");
    let (soft, hard) = open_files(&node);
    assert_eq!(soft, hard);
    assert_ne!(soft, "200");
    node.terminate();

    let config = place.write("node", &text);
    let mut command = limited("ulimit -n 900");
    let mut running =
        support::start(command.args(["serve", "--config"]).arg(&config)).expect("serves");
    running.signal(rustix::process::Signal::TERM);
    let mut events = String::new();
    std::io::Read::read_to_string(&mut running.stderr(), &mut events).expect("text");
    assert!(events.contains("the limit of open files is too low"), "{events}");
    assert!(events.contains("limit=900 needed=1664"), "{events}");
}

/// Returns the resident memory of the process in bytes (proc(5)).
fn resident(node: &Serving) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib = line.split_whitespace().nth(1).expect("a number");
    kib.parse::<usize>().expect("a number") << 10
}

/// Opens sessions and sends writes on each of them, but omits the first CmdSN, so that the writes wait behind this
/// hole. Returns the sessions, and the time of the first write.
fn send_behind_holes(
    address: SocketAddr,
    sessions: usize,
    writes: u32,
) -> (Vec<TcpStream>, Instant) {
    let open = (0..sessions).map(|number| {
        let mut stream = connect_from(IpAddr::V4(Ipv4Addr::LOCALHOST), address);
        let initiator = format!("iqn.2026-11.test:hole-{number}");
        let mut keys = vec![("InitiatorName", initiator.as_str()), ("TargetName", NAME)];
        keys.extend(FIRST_BURST_KEYS);
        assert_eq!(log_in(&mut stream, number as u16, &keys), Some(0));
        stream
    });
    let mut open: Vec<_> = open.collect();
    let begun = Instant::now();
    for stream in &mut open {
        for cmd_sn in 2..2 + writes {
            std::io::Write::write_all(stream, &write_command(cmd_sn)).expect("it is read");
        }
    }
    (open, begun)
}

/// Regression: the data that 32 sessions sent behind a hole in CmdSN took 1.05 GB, and 0.5 to 1.2 GB stayed after their
/// end. FOREBAY_TEST_HOLES=1024 uses that many sessions, which takes minutes on a slow machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_behind_holes_in_the_command_order_is_bounded_over_all_sessions() {
    let holes = std::env::var("FOREBAY_TEST_HOLES");
    let sessions: usize = holes.map_or(32, |number| number.parse().expect("a number"));
    // All sessions together send at least 512 MiB.
    let writes = (2048 / sessions).clamp(4, 126) as u32;
    let place = Place::new();
    raw::allow_open_files(sessions);
    // Permit enough connections for these sessions, the user's session, and those that only log in and out.
    let places = (sessions + 16).max(1024);
    let text = format!("{}[iscsi]\nmax_connections = {places}\n", memory("'127.0.0.1:0'"));
    let node = place.serve("node", &text);
    let volume = connect(node.address, NAME).await;
    write(&*volume, 5, 1).await.expect("written");
    come_and_go(&node, 20);
    let before = resident(&node);
    let address = node.address;
    let filling = tokio::task::spawn_blocking(move || send_behind_holes(address, sessions, writes));
    let (mut most, mut took) = (0, Vec::new());
    while !filling.is_finished() || took.len() < 100 {
        let begun = Instant::now();
        write(&*volume, 5, took.len() as u64).await.expect("written");
        took.push(begun.elapsed());
        most = most.max(resident(&node));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (open, begun) = filling.await.expect("filled");
    // A session that was ended would hold no data, so all of them must still be open.
    let status = node.status();
    let is_stalled = begun.elapsed() >= Duration::from_secs(15);
    let listed = status["sessions"].as_array().expect("a list");
    let holes = listed.iter().filter(|session| {
        session["initiator"].as_str().is_some_and(|name| name.contains(":hole-"))
    });
    let held = holes.count();
    assert!(held == sessions || is_stalled, "{held} of {sessions} sessions are open");
    took.sort();
    let p99 = took[took.len() * 99 / 100];
    let mib = |bytes: usize| bytes >> 20;
    println!(
        "{held} of {sessions} sessions open, with {writes} writes of 256 KiB each: {} MiB before, {} MiB at most; \
         of {} writes the 99th percentile took {p99:?}",
        mib(before),
        mib(most),
        took.len()
    );
    // The sessions may use the whole limit for waiting data except the shares that are reserved for other connections.
    // Another 64 MiB are for memory that does not hold waiting data.
    let waiting = 384 << 20;
    let share = FIRST_BURST.min((waiting - (64 << 20)) / places);
    let settings = waiting - share * (places - sessions);
    assert!(most <= before + settings + (64 << 20), "{} MiB", mib(most));
    assert!(p99 < Duration::from_millis(100), "{p99:?}");
    drop(open);
    let mut after = most;
    support::eventually("memory that is given back", || {
        after = resident(&node);
        after <= before + (64 << 20)
    })
    .await;
    println!("{} MiB after they have ended", mib(after));
}
