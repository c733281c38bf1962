//! Access control of the program: secrets in files, authentication in both directions, and the events about it.

mod support;

use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use iscsi::login::chap::{ChapAlgorithm, ChapSecret, Credential, InitiatorChap};
use support::{
    Place, content,
    raw::{Silent, allow_open_files, connect_from, guess, is_idle, local, log_in},
    read, run, stderr, write,
};
use volume::Volume;

const NODE: &str = "iqn.2026-11.test:node";
const OPEN: &str = "iqn.2026-11.test:open";

fn secret(path: &Path) {
    let made = run(&["secret", path.to_str().expect("a plain path")]);
    assert!(made.status.success(), "{}", stderr(&made));
}

/// Settings of a node with a target for alice, which authenticates itself with its own secret, and an open target.
fn node(place: &Place) -> String {
    for name in ["alice", "storage", "other"] {
        secret(&place.path(name));
    }
    format!(
        r#"
listen = ["127.0.0.1:0"]
[[user]]
name = "alice"
secret_file = "alice"
[[target]]
name = "{NODE}"
allow = [ {{ user = "alice", network = "127.0.0.0/8" }} ]
mutual = {{ name = "storage", secret_file = "storage" }}
[[target.unit]]
stack = [ {{ memory = {{ size = "16MiB" }} }} ]
[[target]]
name = "{OPEN}"
[[target.unit]]
stack = [ {{ memory = {{ size = "1MiB" }} }} ]
"#
    )
}

fn ls(place: &Place, address: SocketAddr, more: &[&str]) -> (bool, String) {
    let output = support::forebay()
        .args(["ls", &format!("iscsi://{address}"), "--json"])
        .args(more)
        .current_dir(place.folder.path())
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    (output.status.success(), text)
}

#[test]
fn each_user_sees_the_targets_that_it_may_log_in_to() {
    let place = Place::new();
    let node = place.serve("node", &node(&place));
    let (listed, text) = ls(&place, node.address, &[]);
    assert!(listed && text.contains(OPEN) && !text.contains(NODE), "{text}");
    let alice = ["--user", "alice", "--secret-file", "alice"];
    let (listed, text) = ls(&place, node.address, &alice);
    assert!(listed && text.contains(OPEN) && text.contains(NODE), "{text}");
    let wrong = ["--user", "alice", "--secret-file", "other"];
    let (listed, text) = ls(&place, node.address, &wrong);
    assert!(!listed && text.contains("AuthenticationFailure"), "{text}");
    assert!(
        text.contains("remedy: the target does not know the user alice, or its secret"),
        "{text}"
    );
    assert!(text.contains("is not the one in the file other"), "{text}");
}

#[test]
fn a_list_without_a_user_says_that_targets_may_be_hidden() {
    let place = Place::new();
    let text = node(&place);
    // Use the settings without the open target.
    let (guarded, _) = text.rsplit_once("[[target]]").expect("two targets");
    let node = place.serve("node", guarded);
    let (listed, text) = ls(&place, node.address, &[]);
    assert!(listed && text.contains(r#""targets":[]"#), "{text}");
    let command = format!("forebay ls iscsi://{} --user NAME --secret-file FILE", node.address);
    assert!(text.contains("hidden") && text.contains(&command), "{text}");
    let alice = ["--user", "alice", "--secret-file", "alice"];
    let (_, text) = ls(&place, node.address, &alice);
    assert!(text.contains(NODE) && !text.contains("hidden"), "{text}");
}

fn gateway(address: SocketAddr, more: &str) -> String {
    format!(
        r#"
listen = ["127.0.0.1:0"]
[[target]]
name = "iqn.2026-11.test:near"
[[target.unit]]
stack = [ {{ remote = {{ url = "iscsi://{address}/{NODE}/0", start_timeout = "1s", {more} }} }} ]
"#
    )
}

#[tokio::test]
async fn a_gateway_and_its_node_prove_themselves_to_each_other() {
    let place = Place::new();
    let node = place.serve("node", &node(&place));
    let user = "user = { name = 'alice', secret_file = 'alice' }";
    let mutual = "mutual = { name = 'storage', secret_file = 'storage' }";
    let near = place.serve("near", &gateway(node.address, &format!("{user}, {mutual}")));
    let volume = support::connect(near.address, "iqn.2026-11.test:near").await;
    write(&*volume, 3, 1).await.expect("written");
    volume.flush().await.expect("flushed");
    assert_eq!(read(&*volume, 3).await.expect("read"), content(3, 1));

    let refused = |more: &str| {
        let started = place.try_serve("wrong", &gateway(node.address, more));
        started.err().expect("refused")
    };
    let error = refused("queue_depth = 8");
    assert!(error.contains("remedy: give this remote layer a `user` with the name"), "{error}");
    let error = refused("user = { name = 'alice', secret_file = 'other' }");
    assert!(
        error.contains("remedy: the target does not know the user alice, or its secret"),
        "{error}"
    );
    assert!(error.contains("correct `user` of the remote layer"), "{error}");
    let other = "mutual = { name = 'storage', secret_file = 'other' }";
    let error = refused(&format!("{user}, {other}"));
    assert!(error.contains("the target failed to authenticate"), "{error}");
    assert!(error.contains("remedy: set `mutual` to the name and the secret"), "{error}");
    let same = "mutual = { name = 'storage', secret_file = 'alice' }";
    let error = refused(&format!("{user}, {same}"));
    assert!(error.contains("exit status: 2"), "{error}");
    assert!(error.contains("remote.mutual: the secret is also that of target[0]"), "{error}");
}

/// A reload reads the secret file again, and the new secret applies to all later logins.
#[tokio::test(flavor = "multi_thread")]
async fn users_change_while_serving_and_sessions_that_are_open_stay() {
    let place = Place::new();
    let settings = node(&place);
    let serving = place.serve("node", &settings);
    let user = "user = { name = 'alice', secret_file = 'alice' }";
    let near = place.serve("near", &gateway(serving.address, user));
    let volume = support::connect(near.address, "iqn.2026-11.test:near").await;
    write(&*volume, 3, 1).await.expect("written");
    let reload = |text: &str| {
        place.write("node", text);
        let control = serving.control.to_str().expect("plain");
        let output = run(&["reload", "--control", control]);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let changed = "changed: users, or access to discovery\n";
    let with =
        |file: &str| ls(&place, serving.address, &["--user", "alice", "--secret-file", file]);

    fs::copy(place.path("alice"), place.path("former")).expect("copied");
    fs::copy(place.path("other"), place.path("alice")).expect("copied");
    let (listed, text) = with("former");
    assert!(listed && text.contains(NODE), "not before the reload: {text}");
    assert_eq!(reload(&settings), changed, "another secret in the same file is another setting");
    assert_eq!(reload(&settings), "nothing is different\n");
    let (listed, text) = with("former");
    assert!(!listed && text.contains("AuthenticationFailure"), "{text}");
    let (listed, text) = with("other");
    assert!(listed && text.contains(NODE), "{text}");

    let asked =
        settings.replacen("[[target]]", "[[discovery.allow]]\nuser = 'alice'\n[[target]]", 1);
    assert_eq!(reload(&asked), changed);
    let (listed, text) = ls(&place, serving.address, &[]);
    assert!(!listed, "without a user, no target is listed: {text}");
    let (listed, text) = with("other");
    assert!(listed && text.contains(OPEN) && text.contains(NODE), "{text}");

    let renamed = settings.replace("alice\"\nsecret", "bob\"\nsecret");
    let renamed = renamed.replace("user = \"alice\"", "user = \"bob\"");
    let text = reload(&renamed);
    assert!(text.starts_with(changed) && text.contains(&format!("target {NODE}")), "{text}");
    let (listed, text) = with("other");
    assert!(!listed && text.contains("AuthenticationFailure"), "{text}");

    write(&*volume, 4, 2).await.expect("written");
    volume.flush().await.expect("flushed");
    assert_eq!(read(&*volume, 3).await.expect("read"), content(3, 1));
    assert_eq!(near.figure("remote", "reconnects"), 0, "open sessions need not authenticate again");
}

#[test]
fn secrets_that_others_can_read_or_that_are_short_are_refused() {
    let place = Place::new();
    let text = node(&place);
    fs::set_permissions(place.path("alice"), Permissions::from_mode(0o644)).expect("chmod");
    let error = place.try_serve("node", &text).err().expect("refused");
    assert!(error.contains("exit status: 2"), "{error}");
    assert!(error.contains("node.toml:4:1: user[0]: the secret"), "{error}");
    assert!(error.contains("is open to others (mode 644)\n  remedy: chmod 600"), "{error}");
    fs::set_permissions(place.path("alice"), Permissions::from_mode(0o600)).expect("chmod");
    fs::write(place.path("alice"), "short").expect("written");
    let error = place.try_serve("node", &text).err().expect("refused");
    assert!(error.contains("has 5 bytes; CHAP requires 12 to 255"), "{error}");
    fs::copy(place.path("storage"), place.path("alice")).expect("copied");
    let error = place.try_serve("node", &text).err().expect("refused");
    assert!(error.contains("target[0].mutual: the secret is also that of user[0]"), "{error}");
}

#[test]
fn a_secret_is_random_private_and_never_overwritten() {
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two"));
    secret(&one);
    secret(&two);
    let text = fs::read_to_string(&one).expect("made");
    assert_eq!(text.len(), 17);
    assert_ne!(text, fs::read_to_string(&two).expect("made"));
    let mode = fs::metadata(&one).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = run(&["secret", one.to_str().expect("a plain path")]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("remedy: name another file"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(&one).expect("still there"), text);
}

/// Sends a login request in the security stage with these pairs `key=value`, and returns the header of the response.
fn say(stream: &mut TcpStream, pairs: &[&str]) -> Option<[u8; 48]> {
    let text: Vec<u8> = pairs.iter().flat_map(|pair| [pair.as_bytes(), &[0]].concat()).collect();
    let mut pdu = vec![0; 48];
    pdu[0] = 0x43;
    pdu[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    pdu[8] = 0x80;
    pdu.extend(&text);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    stream.write_all(&pdu).expect("sent");
    let mut header = [0; 48];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data).ok()?;
    Some(header)
}

/// CVE-2026-44943 and similar: text from a stranger is shown in one line and marked as such.
#[test]
fn a_name_cannot_forge_a_line_of_events() {
    let place = Place::new();
    let config = place.write("node", &node(&place));
    let serve = &mut support::forebay();
    let mut running = support::start(serve.args(["serve", "--config"]).arg(config)).expect("ready");
    let address = running.ready.clone();
    let connect = || {
        let stream = TcpStream::connect(&address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        stream
    };
    let target = format!("TargetName={NODE}");
    // An initiator name with a line break is refused as invalid, so it cannot forge a line of the events.
    let mut stream = connect();
    let forged = "InitiatorName=iqn.a\n2026-11-21T00:00:00Z  INFO forged: session opened";
    let answer = say(&mut stream, &[forged, &target, "AuthMethod=None"]).expect("an answer");
    assert_eq!(answer[36..38], [2, 0]);
    let mut stream = connect();
    say(&mut stream, &["InitiatorName=iqn.a:host", &target, "AuthMethod=CHAP"]).expect("asked");
    say(&mut stream, &["CHAP_A=5"]).expect("asked");
    let forged = "CHAP_N=bob\n2026-11-21T00:00:00Z  INFO forged: session opened\u{1b}[2J";
    let proof = format!("CHAP_R=0x{}", "00".repeat(16));
    let answer = say(&mut stream, &[forged, &proof]).expect("an answer");
    assert_eq!(answer[36..38], [2, 1]);
    drop(stream);
    running.signal(rustix::process::Signal::TERM);
    let mut events = String::new();
    running.stderr().read_to_string(&mut events).expect("text");
    let forged: Vec<&str> = events.lines().filter(|line| line.contains("forged")).collect();
    assert_eq!(forged.len(), 1, "{events}");
    assert!(forged[0].contains("login failed") && forged[0].contains("127.0.0.1:"), "{events}");
    assert!(forged[0].contains("unknown CHAP user"), "{events}");
    assert!(!forged[0].contains('\u{1b}'), "{events}");
    assert!(!events.contains(fs::read_to_string(place.path("alice")).expect("made").trim()));
}

/// Opens `sockets` connections from eight addresses with unauthenticated discovery sessions. A connection that the node
/// closes is replaced by a new one.
fn discover(to: SocketAddr, sockets: usize, are_open: &AtomicBool, stop: &AtomicBool) {
    /// Maximum number of logins per turn, so that they do not use the whole CPU.
    const MOST_AGAIN: usize = 8;
    let keys = [("InitiatorName", "iqn.2026-11.test:stranger"), ("SessionType", "Discovery")];
    let log_in = |number: usize| {
        let mut stream = connect_from(local(20 + (number % 8) as u8), to);
        assert!(matches!(log_in(&mut stream, number as u16, &keys), Some(0) | None));
        stream.set_nonblocking(true).expect("set");
        (number, stream)
    };
    let mut open = Vec::new();
    for number in 0..sockets {
        if stop.load(Relaxed) {
            return;
        }
        open.push(log_in(number));
    }
    are_open.store(true, Relaxed);
    while !stop.load(Relaxed) {
        let closed = open.iter_mut().filter(|(_, stream)| !is_idle(stream));
        closed.take(MOST_AGAIN).for_each(|entry| *entry = log_in(entry.0));
        open.rotate_left(MOST_AGAIN);
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Stops the threads with wrong logins when it is dropped, also after a failed assertion.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

async fn log_in_as_alice(place: &Place, address: SocketAddr) {
    let secret = fs::read(place.path("alice")).expect("a secret");
    let secret = ChapSecret::new(secret.trim_ascii_end()).expect("a secret");
    let user = Credential { name: "alice".to_owned(), secret };
    let mut settings = initiator::Settings::new(address.to_string(), NODE, 0);
    settings.chap =
        Some(InitiatorChap { user, target: None, algorithms: ChapAlgorithm::ALL.to_vec() });
    initiator::RemoteVolume::connect(settings).await.expect("alice logs in");
}

/// Regression: silent connections, discovery sessions and guesses of secrets locked out or delayed users.
/// FOREBAY_TEST_STRANGERS=1024 opens that many sockets for discovery sessions.
#[test]
fn a_user_logs_in_within_a_second_whatever_strangers_do() {
    let place = Place::new();
    let node = place.serve("node", &node(&place));
    let _silent = Silent::at(node.address);
    let strangers = std::env::var("FOREBAY_TEST_STRANGERS");
    let sockets: usize = strangers.map_or(128, |number| number.parse().expect("a number"));
    allow_open_files(sockets);
    let (are_open, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        scope.spawn(|| discover(node.address, sockets, &are_open, &stop));
        for number in 0..60 {
            let (stop, address) = (&stop, node.address);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    // Guess the secrets of one user from many addresses, and of many users from one address.
                    let (from, user) = if number % 2 == 0 {
                        (local(40 + number), "alice".to_owned())
                    } else {
                        (local(1), format!("user{number}"))
                    };
                    let mut stream = connect_from(from, address);
                    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
                    assert!(matches!(guess(&mut stream, NODE, &user), Some(0x0201) | None));
                    // A guesser whose connection was closed reconnects, at a limited rate.
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let counter = |name: &str| node.status()["counters"][name].as_u64().expect("a number");
        let begun = Instant::now();
        let are_there = || {
            are_open.load(Relaxed)
                && counter("discovery_sessions") >= 60
                && counter("displaced_connections") >= 400
        };
        while !are_there() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", node.status()["counters"]);
        }
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let mut slowest = Duration::ZERO;
        for _ in 0..10 {
            let begun = Instant::now();
            runtime.block_on(log_in_as_alice(&place, node.address));
            slowest = slowest.max(begun.elapsed());
        }
        let alice = ["--user", "alice", "--secret-file", "alice"];
        let (listed, text) = ls(&place, node.address, &alice);
        assert!(listed && text.contains(NODE), "{text}");
        println!(
            "beside {sockets} discovery sockets the slowest login of ten took {slowest:?}; {}",
            node.status()["counters"]
        );
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    });
}
