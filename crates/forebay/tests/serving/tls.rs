//! TLS at portals and on the link to the far volume: a gateway that uses it, certificates that change or are refused,
//! and the commands in the documentation that create them.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
};

use support::{Place, Serving, connect, content, eventually, forebay, read, stderr, write};
use volume::Volume;

use crate::support;

const NODE: &str = "iqn.2026-11.test:node";
const GATEWAY: &str = "iqn.2026-11.test:gateway";

/// Creates an authority `ca`, and the certificates `node` (for this machine's address) and `host` that it has issued.
fn certificates() -> Place {
    let place = Place::new();
    let ours = place.authority("ca");
    place.certificate(&ours, "node", "127.0.0.1");
    place.certificate(&ours, "host", "host");
    place
}

fn node() -> String {
    format!(
        r#"
[[portal]]
address = "127.0.0.1:0"
tls = {{ certificate = "node.pem", key = "node.key", client_ca = "ca.pem" }}
[[target]]
name = "{NODE}"
[[target.unit]]
stack = [ {{ memory = {{ size = "64MiB" }} }} ]
"#
    )
}

fn gateway(node: SocketAddr, tls: &str) -> String {
    format!(
        r#"
listen = ["127.0.0.1:0"]
[[target]]
name = "{GATEWAY}"
[[target.unit]]
[[target.unit.stack]]
remote = {{ url = "iscsi://{node}/{NODE}/0", {tls}connections = 2, start_timeout = "1s" }}
[[target.unit.stack]]
[target.unit.stack.cache]
log = "gateway.log"
log_size = "32MiB"
dram = "8MiB"
nvram_size = "1MiB"
"#
    )
}

const TLS: &str = "tls = { ca = 'ca.pem', certificate = 'host.pem', key = 'host.key' }, ";

/// Runs `forebay ls` for the node, in the folder of the certificates.
fn list(place: &Place, node: &Serving, options: &[&str]) -> Output {
    let mut ls = forebay();
    ls.args(["ls", "--json", &format!("iscsi://{}", node.address)]).args(options);
    ls.current_dir(place.folder.path()).output().expect("the binary runs")
}

const LS: [&str; 6] = ["--ca", "ca.pem", "--certificate", "host.pem", "--key", "host.key"];

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_reaches_its_node_through_tls() {
    let place = certificates();
    let far = place.serve("node", &node());
    let near = place.serve("gateway", &gateway(far.address, TLS));
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..256 {
        write(&*volume, block, 1).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    assert_eq!(near.figure("remote", "connections"), 2);
    near.terminate();
    // Use a new log, so that no data comes from the first gateway.
    fs::remove_file(place.path("gateway.log")).expect("removed");
    let near = place.serve("gateway", &gateway(far.address, TLS));
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..256 {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
    }
}

#[test]
fn a_portal_with_tls_is_listed_with_a_certificate_only() {
    let place = certificates();
    place.authority("theirs");
    let far = place.serve("node", &node());
    let listed = list(&place, &far, &LS);
    assert!(listed.status.success(), "{}", stderr(&listed));
    assert!(String::from_utf8_lossy(&listed.stdout).contains(NODE));
    for (options, expected) in [
        (&[][..], "whether the portal requires TLS: --ca FILE"),
        (&["--ca", "ca.pem"], "does not accept our certificate"),
        (&["--ca", "ca.pem"], "`client_ca`: --certificate FILE --key FILE"),
        (&["--ca", "theirs.pem"], "UnknownIssuer"),
        (
            &["--ca", "theirs.pem"],
            "remedy: name the authority that signed the target's certificate: --ca FILE",
        ),
        (&["--ca", "ca.pem", "--server-name", "other"], "not valid for name"),
        (&["--ca", "ca.pem", "--server-name", "other"], "or give that name: --server-name NAME"),
        (&["--ca", "none.pem"], "cannot use none.pem: No such file"),
        (&["--certificate", "host.pem", "--key", "host.key"], "--ca <FILE>"),
    ] {
        let refused = list(&place, &far, options);
        assert!(!refused.status.success());
        assert!(stderr(&refused).contains(expected), "{options:?}: {}", stderr(&refused));
    }
}

#[test]
fn a_node_that_rejects_our_certificate_ends_the_start_at_once() {
    let place = certificates();
    let far = place.serve("node", &node());
    let without = "tls = { ca = 'ca.pem' }, ";
    let Err(error) = place.try_serve("gateway", &gateway(far.address, without)) else {
        panic!("it starts")
    };
    assert!(error.contains("does not accept our certificate"), "{error}");
    assert!(error.contains("remedy: show a certificate of an authority"), "{error}");
}

/// Returns the message with which `forebay check` refuses these settings.
fn refusal(place: &Place, text: &str) -> String {
    let config = place.write("wrong", text);
    let output = forebay().args(["check", "--config"]).arg(config).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn certificates_that_cannot_be_used_are_named_with_their_place_in_the_settings() {
    let place = certificates();
    let far = "127.0.0.1:1".parse().expect("an address");
    fs::write(place.path("text.pem"), "no certificate").expect("written");
    let others = place.authority("theirs");
    place.certificate(&others, "other", "127.0.0.1");
    let open = place.path("open.key");
    fs::copy(place.path("node.key"), &open).expect("copied");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).expect("chmod");
    let text = place.path("text.key");
    fs::copy(place.path("node.pem"), &text).expect("copied");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o600)).expect("chmod");
    for (from, to, expected) in [
        ("key = \"node.key\"", "key = \"open.key\"", "portal[0].tls.key: the key "),
        ("key = \"node.key\"", "key = \"open.key\"", "(mode 640)\n  remedy: chmod 600 "),
        ("key = \"node.key\"", "key = \"none.key\"", "No such file"),
        (
            "key = \"node.key\"",
            "key = \"other.key\"",
            "wrong.toml:5:23: portal[0].tls.certificate:",
        ),
        ("key = \"node.key\"", "key = \"text.key\"", "it contains no private key"),
        ("\"node.pem\"", "\"text.pem\"", "it contains no certificate"),
        ("\"ca.pem\"", "\"text.pem\"", "portal[0].tls.client_ca: cannot use"),
        (", client_ca = \"ca.pem\"", "", "`client_ca` is missing"),
        ("key = \"node.key\", ", "", "`key` is missing"),
    ] {
        let found = refusal(&place, &node().replace(from, to));
        assert!(found.contains(expected), "{to}: expected {expected}\n{found}");
    }
    for (tls, expected) in [
        (
            "tls = { certificate = 'host.pem', key = 'host.key' }, ",
            "remote.tls.ca: `ca` is missing",
        ),
        ("tls = { ca = 'ca.pem', key = 'host.key' }, ", "`certificate` is missing"),
        ("tls = { ca = 'ca.pem', certificate = 'host.pem' }, ", "`key` is missing"),
        ("tls = { ca = 'ca.pem', server_name = 'a b' }, ", "remote.tls.server_name: "),
        ("tls = { ca = 'none.pem' }, ", "stack[0].remote.tls.ca: cannot use"),
    ] {
        let found = refusal(&place, &gateway(far, tls));
        assert!(found.contains(expected), "{tls}: expected {expected}\n{found}");
    }
}

#[test]
fn a_reload_takes_new_certificates_and_leaves_sessions_alone() {
    let place = certificates();
    let far = place.serve("node", &node());
    assert!(list(&place, &far, &LS).status.success());
    let reload = || {
        let output = forebay().args(["reload", "--control"]).arg(&far.control).output();
        let output = output.expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!reload().contains("portal"), "the same certificate changes nothing");
    let new = place.authority("ca");
    place.certificate(&new, "node", "127.0.0.1");
    assert!(!list(&place, &far, &LS).status.success(), "the old one is still in force");
    assert!(reload().contains("changed: portal 127.0.0.1:0"));
    place.certificate(&new, "host", "host");
    let listed = list(&place, &far, &LS);
    assert!(listed.status.success(), "{}", stderr(&listed));
}

/// All certificates are replaced while a gateway and its node serve. The session between them continues, and reconnects
/// with the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_far_link_takes_new_certificates_with_a_reload() {
    let place = certificates();
    let mut far = place.serve("node", &node());
    let settings = node().replace("127.0.0.1:0", &far.address.to_string());
    let near = place.serve("gateway", &gateway(far.address, TLS));
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    let new = place.authority("ca");
    place.certificate(&new, "node", "127.0.0.1");
    place.certificate(&new, "host", "host");
    for turn in 0..2 {
        let reload = forebay().args(["reload", "--control"]).arg(&near.control).output();
        let reload = reload.expect("the binary runs");
        assert!(reload.status.success(), "{turn}: {}", stderr(&reload));
    }
    assert_eq!(near.figure("remote", "connections_lost"), 0);
    far.kill();
    let far = place.serve("node", &settings);
    eventually("the session", || {
        near.figure("remote", "reconnects") > 0 && near.figure("remote", "connections") == 2
    })
    .await;
    write(&*volume, 2, 1).await.expect("written");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    assert_eq!(far.status()["portals"][0]["tls"], true);
}

/// docs/guide/tls.md shows how to make certificates; the commands must work unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_make_certificates_that_fit() {
    if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
        return eprintln!("left out: FOREBAY_NO_INTEROP=1");
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/tls.md");
    // A command may continue on the next line.
    let page = fs::read_to_string(page).expect("the page").replace("\\\n", "");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("    openssl ")).collect();
    assert_eq!(commands.len(), 5, "{commands:?}");
    let place = Place::new();
    for command in commands {
        // Replace the address of the node in the documentation by that of this test.
        let command = format!("openssl {}", command.replace("10.0.0.2", "127.0.0.1"));
        let made = Command::new("sh")
            .args(["-ec", &command])
            .current_dir(place.folder.path())
            .output()
            .expect("openssl runs (Debian package openssl; FOREBAY_NO_INTEROP=1 leaves this out)");
        assert!(made.status.success(), "{command}: {}", stderr(&made));
    }
    let far = place.serve("node", &node());
    let near = place.serve("gateway", &gateway(far.address, TLS));
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
}
