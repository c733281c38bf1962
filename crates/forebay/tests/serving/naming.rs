//! Tests nodes that exchange naming entries, and gateways that find volumes by name.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{
    Place, connect, content, eventually,
    nodes::{GATEWAY, gateway, known, known_node, names, naming, other, secret},
    raw::Silent,
    read, run, stderr, write,
};

use crate::support;

/// Settings of a node with the volume `payroll` in a file that several nodes use, but not at the same time.
fn node(node: &str, seeds: &[SocketAddr], secret: &str) -> String {
    format!(
        r#"{}
[[target]]
name = "iqn.2026-11.test:{node}"
[[target.unit]]
volume = "payroll"
serial = "PAYROLL-1"
lun = {}
stack = [ {{ file = {{ path = "payroll.img", size = "64MiB" }} }} ]
"#,
        names(node, 0, seeds, secret),
        node.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_finds_its_volume_again_at_another_node() {
    let place = Place::new();
    secret(&place, "names");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let seeds = [naming(&seed)];
    let mut first = place.serve("first", &node("first", &seeds, "names"));
    let near = place.serve("gateway", &gateway(&seeds));
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("taken");
    }
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    // Move the volume to a node with another address, another target and another LUN.
    first.kill();
    for block in 32..96 {
        write(&*volume, block, 2).await.expect("taken by the log");
    }
    let claims = place.path("second.state");
    std::fs::rename(place.path("first.state"), &claims).expect("moved");
    std::fs::remove_file(claims.join("gln")).expect("there was a number");
    let second = place.serve("second", &node("second", &seeds, "names"));
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = initiator::Settings::new(second.address.to_string(), "iqn.2026-11.test:second", 6);
    let there = initiator::RemoteVolume::connect(there).await.expect("a login");
    for block in 0..96 {
        let version = if block < 32 { 1 } else { 2 };
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, version), "{block}");
        assert_eq!(read(&there, block).await.expect("read"), content(block, version), "{block}");
    }
    // Other commands accept the name of a volume as well, with or without a running process.
    let listed = |more: &[&str]| run(&[&["ls", "gln:payroll", "--json"], more].concat());
    let config = place.path("gateway.toml");
    let output = listed(&["--control", near.control.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let units: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(units["targets"][0]["name"], "iqn.2026-11.test:second");
    assert_eq!(units["targets"][0]["units"][0]["lun"], 6);
    let checked = run(&["check", "--config", config.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("gln:payroll is \"naa."), "{said}");
    drop(volume);
    near.terminate();
    let output = listed(&["--config", config.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_exchange_their_records_and_a_silent_node_becomes_stale() {
    let place = Place::new();
    secret(&place, "names");
    let a = place.serve("a", &other("a", &[], "names"));
    let b = place.serve("b", &other("b", &[naming(&a)], "names"));
    // Node c has only b as a seed, and a has no seed.
    let mut c = place.serve("c", &node("c", &[naming(&b)], "names"));
    for of in [&a, &b] {
        eventually("the volume", || {
            known_node(of, "c").is_some_and(|node| node["volumes"][0]["volume"] == "payroll")
        })
        .await;
    }
    let gln = known(&c)["gln"].clone();
    assert_eq!(c.status()["gln"], gln);
    c.kill();
    eventually("silence", || known_node(&a, "c").is_some_and(|node| node["stale"] == true)).await;
    // A stale node is kept in the list, and has the same number when it returns.
    let c = place.serve("c", &other("c", &[naming(&b)], "names"));
    assert_eq!(known(&c)["gln"], gln);
    eventually("life", || {
        known_node(&a, "c")
            .is_some_and(|node| node["stale"] == false && node["volumes"] == Value::Array(vec![]))
    })
    .await;
    let text = run(&["names", "--control", a.control.to_str().expect("a path")]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("this node"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_with_one_volume_are_both_named_and_neither_is_used() {
    let place = Place::new();
    secret(&place, "names");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let seeds = [naming(&seed)];
    let one = place.serve("one", &node("one", &seeds, "names"));
    let text = node("two", &seeds, "names").replace("payroll.img", "other.img");
    let two = place.serve("two", &text);
    eventually("both", || {
        ["one", "two"]
            .iter()
            .all(|node| known_node(&seed, node).is_some_and(|n| n["volumes"][0].is_object()))
    })
    .await;
    let output = run(&["ls", "gln:payroll", "--control", seed.control.to_str().expect("a path")]);
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("one (") && text.contains("two ("), "{text}");
    let output = run(&["ls", "gln:nothing", "--control", seed.control.to_str().expect("a path")]);
    assert!(stderr(&output).contains("no known node has a volume nothing"), "{}", stderr(&output));
    drop((one, two));
}

/// A process that answers name queries decides where writes go, so it must prove that it has the secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_secret_gets_no_answers_and_is_not_believed() {
    let place = Place::new();
    secret(&place, "names");
    secret(&place, "others");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let seeds = [naming(&seed)];
    let text = node("stranger", &seeds, "others").replace("payroll", "bait");
    let stranger = place.serve("stranger", &text);
    let friend = place.serve("friend", &node("friend", &seeds, "names"));
    eventually("the friend", || known_node(&seed, "friend").is_some()).await;
    // `forebay ls gln:NAME` asks all known nodes before it answers.
    let output =
        run(&["ls", "gln:payroll", "--control", stranger.control.to_str().expect("a path")]);
    assert!(stderr(&output).contains("no known node has a volume payroll"), "{}", stderr(&output));
    assert!(known_node(&seed, "stranger").is_none());
    assert_eq!(known(&stranger)["nodes"].as_array().expect("nodes").len(), 1);
    drop(friend);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_silence_at_the_naming_port_do_no_harm() {
    let place = Place::new();
    secret(&place, "names");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let address = naming(&seed);
    // Open more connections than are permitted: the silent ones are ended by their time limit.
    let silent: Vec<_> = (0..70).map(|_| TcpStream::connect(address).expect("connected")).collect();
    for noise in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"FBYNAMES\0\0\0\x01",
        b"FBYNAMES\0\0\0\x02",
    ] {
        let mut stream = TcpStream::connect(address).expect("connected");
        let _ = stream.write_all(noise);
        let _ = stream.write_all(&[0xff; 64]);
    }
    let node = place.serve("node", &node("node", &[address], "names"));
    eventually("the node", || known_node(&seed, "node").is_some()).await;
    drop(silent);
    // A seed that is not a node and sends arbitrary data.
    let liar = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = liar.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in liar.incoming().flatten() {
            let mut stream = stream;
            let mut hello = [0; 44];
            let _ = stream.read_exact(&mut hello);
            // Send the caller's own hello back to it, and then a frame that never ends.
            let _ = stream.write_all(&hello);
            let _ = stream.write_all(&[0xff; 1024]);
        }
    });
    let misled = place.serve("misled", &other("misled", &[at, address], "names"));
    eventually("the truth", || known_node(&misled, "node").is_some()).await;
    drop(node);
}

/// Regression: silent callers from three addresses that reconnected all the time locked out members.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_to_the_naming_port_do_not_lock_members_out() {
    let place = Place::new();
    secret(&place, "names");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let address = naming(&seed);
    let _silent = Silent::at(address);
    let _node = place.serve("node", &node("node", &[address], "names"));
    let begun = Instant::now();
    eventually("the node", || known_node(&seed, "node").is_some()).await;
    // Before the fix this took more than 20 s, because each silent caller had a time limit of 5 s.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn invalid_or_incomplete_naming_settings_are_refused() {
    let place = Place::new();
    secret(&place, "names");
    let check = |name: &str, text: &str| {
        let config = place.write(name, text);
        let output = run(&["check", "--config", config.to_str().expect("a path")]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        stderr(&output)
    };
    let bare = |unit: &str| format!("[[target]]\nname = \"iqn.a:b\"\n[[target.unit]]\n{unit}\n");
    let memory = "stack = [ { memory = { size = \"1MiB\" } } ]";
    let text = check("volume", &bare(&format!("volume = \"a\"\n{memory}")));
    assert!(
        text.contains("volume.toml:5:") && text.contains("the name is not announced"),
        "{text}"
    );
    let text = check("remote", &bare("stack = [ { remote = { url = \"gln:a\" } } ]"));
    assert!(text.contains("a cannot be found: there is no [names] table"), "{text}");
    let text = check("url", &bare("stack = [ { remote = { url = \"gln:A\" } } ]"));
    assert!(text.contains("`A` is not the name of a volume"), "{text}");
    let text = check("state", &other("a", &[], "names").replace("state = ", "#"));
    assert!(text.contains("for the number of this node"), "{text}");
    let text = check(
        "alone",
        &other("a", &[], "names").replace("listen = [\"127.0.0.1:0\"]\nseeds", "seeds"),
    );
    assert!(text.contains("neither `listen` nor `seeds`"), "{text}");
    let text = check("secret", &other("a", &[], "names").replace("secret_file", "#"));
    assert!(text.contains("there is no secret"), "{text}");
    let both = node("a", &[], "names");
    let unit = both.split("[[target.unit]]").nth(1).expect("a unit").replace("lun = 1", "lun = 2");
    let many = both.replace("lun = 1", "lun = 1\ngeneration = 4503599627370496");
    let text = check("generation", &many);
    assert!(text.contains("4503599627370496 is not between 0 and 4503599627370495"), "{text}");
    let text = check("twice", &format!("{both}[[target.unit]]{unit}"));
    assert!(text.contains("volume payroll is already used"), "{text}");
}
