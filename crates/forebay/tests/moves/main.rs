//! Volumes that move between nodes while hosts use them, and while either node is killed.

#[path = "../support/mod.rs"]
mod support;

mod scene;
mod refused;
mod restored;

use std::{
    io::{BufRead, BufReader},
    sync::atomic::Ordering,
    time::Duration,
};

use scene::{
    BLOCKS, Load, PAYROLL, accept, attic, cellar, connect_to, knows, move_to, place, serves, verify,
};
use serde_json::Value;
use support::{
    Serving, connect, content, eventually, forebay,
    nodes::{GATEWAY, gateway, json, names},
    read, run, stderr, write,
};

/// Asserts that `forebay check` checks a volume at the node that has it now, and skips one that has moved away.
fn checks_what_has_moved(place: &support::Place) {
    let check = |node: &str| {
        let config = place.path(&format!("{node}.toml")).display().to_string();
        let output = run(&["check", "--config", &config]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (old, new) = (place.path("payroll.img"), place.path("cellar.moved/payroll.img"));
    let (code, said) = check("attic");
    assert!(code == Some(0) && !said.contains(&old.display().to_string()), "{said}");
    let (code, said) = check("cellar");
    assert!(code == Some(0) && said.contains(&new.display().to_string()), "{said}");
    let away = place.path("away.img");
    std::fs::rename(&new, &away).expect("its disk is not mounted");
    let (code, said) = check("cellar");
    assert!(code == Some(1) && said.contains("is missing"), "{said}");
    std::fs::rename(&away, &new).expect("mounted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_moves_while_a_gateway_and_its_hosts_write_to_it() {
    let (place, _seed, seeds) = place();
    let attic_settings = attic(0, &seeds, "");
    let attic = place.serve("attic", &attic_settings);
    let cellar_settings = cellar("cellar", &seeds, &accept("cellar"));
    let cellar = place.serve("cellar", &cellar_settings);
    let near = place.serve("gateway", &gateway(&seeds));
    knows(&attic, &["cellar"]).await;
    let volume = connect(near.address, GATEWAY).await;
    let load = Load::start(&volume, 4);
    eventually("writes", || load.written() > 200).await;
    let output = move_to(&attic, "cellar", &["--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let before = load.written();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let last: Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    println!("{last}");
    assert_eq!(last["stage"], "moved");
    assert!(!serves(&attic) && serves(&cellar));
    eventually("writes at the new place", || load.written() > before + 200).await;
    let versions = load.end().await;
    verify(&volume, &versions, "gateway").await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect_to(cellar.address).await;
    assert!(there.identity().contains("naa."));
    verify(&there, &versions, "node").await;
    // A host with the old address is redirected to the new one, and sees the same disk.
    let redirected = connect_to(attic.address).await;
    assert_eq!(redirected.identity(), there.identity());
    verify(&redirected, &versions[..16], "redirected").await;
    let listed = json(&attic, &["volume", "list"]);
    assert_eq!((&listed[0]["how"], &listed[0]["volume"]), (&"gone".into(), &"payroll".into()));
    assert_eq!(json(&cellar, &["volume", "list"])[0]["how"], "here");
    // Both nodes remember the move after a restart, even if the settings of the old node still contain the volume. A
    // reload changes nothing.
    drop((redirected, there));
    let reloaded = run(&["reload", "--control", attic.control.to_str().expect("a path")]);
    assert!(String::from_utf8_lossy(&reloaded.stdout).contains("nothing is different"));
    attic.terminate();
    cellar.terminate();
    checks_what_has_moved(&place);
    let attic = place.serve("attic", &attic_settings);
    let cellar = place.serve("cellar", &cellar_settings);
    assert!(!serves(&attic) && serves(&cellar));
    eventually("the gateway finds it", || {
        near.status()["targets"][0]["units"][0]["layers"][0]["figures"]["link"] == "up"
    })
    .await;
    write(&*volume, 5, 1_000_000).await.expect("taken");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    versions[5].store(1_000_000, Ordering::Relaxed);
    // Move the volume back to the node whose settings contain it. That node must serve the moved data, and not the old
    // file that was left there.
    let refused = move_to(&cellar, "attic", &[]);
    assert!(stderr(&refused).contains("does not accept volumes"), "{}", stderr(&refused));
    let (_, ()) = (attic.terminate(), ());
    let attic_settings =
        attic_settings.replace("[[target]]", &format!("{}[[target]]", accept("attic")));
    let attic = place.serve("attic", &attic_settings);
    eventually("the volume moves", || {
        let output = move_to(&cellar, "attic", &[]);
        output.status.success()
    })
    .await;
    assert!(serves(&attic) && !serves(&cellar));
    assert_eq!(std::fs::read_dir(place.path("cellar.moved")).expect("the folder").count(), 0);
    verify(&volume, &versions, "gateway, after the way back").await;
    let there = connect_to(attic.address).await;
    verify(&there, &versions, "the first node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_target_starts_and_takes_a_volume() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let settings = names("cellar", 0, &seeds, "names") + &accept("cellar");
    let config = place.write("cellar", &settings);
    let checked = run(&["check", "--config", config.to_str().expect("a path")]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    let cellar = place.serve("cellar", &settings);
    knows(&attic, &["cellar"]).await;
    let output = move_to(&attic, "cellar", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!serves(&attic) && serves(&cellar));
    drop(connect_to(cellar.address).await);
    cellar.terminate();
    let cellar = place.serve("cellar", &settings);
    assert!(serves(&cellar), "it serves the volume again after a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_unit_moves_with_it() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&attic, &["cellar"]).await;
    let near = place.serve("gateway", &gateway(&seeds));
    let claim = |of: &Serving| {
        let status = of.status();
        let targets = status["targets"].as_array().expect("targets").clone();
        targets.iter().find(|t| t["name"] == PAYROLL).expect("it")["units"][0]["claim"].clone()
    };
    eventually("the claim", || claim(&attic)["held"] == true).await;
    let before = claim(&attic);
    let output = move_to(&attic, "cellar", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let after = claim(&cellar);
    for what in ["held", "owner", "log", "generation"] {
        assert_eq!(after[what], before[what], "{what}");
    }
    // At the new node, as at the old one, no other initiator can bypass the gateway.
    let stranger = connect_to(cellar.address).await;
    assert!(write(&*stranger, 0, 1).await.is_err());
    drop(near);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_watched_joined_and_cancelled() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    let third = place.serve("third", &self::cellar("third", &seeds, &accept("third")));
    knows(&attic, &["cellar", "third"]).await;
    let volume = connect_to(attic.address).await;
    for block in 0..BLOCKS {
        write(&*volume, block, 1).await.expect("taken");
    }
    let slow = |to: &str| {
        let mut command = forebay();
        command.args([
            "volume",
            "move",
            PAYROLL,
            "--to",
            to,
            "--rate",
            "1MiB",
            "--json",
            "--control",
        ]);
        command.arg(&attic.control).stdout(std::process::Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let mut first = slow("cellar");
    eventually("it begins", || json(&attic, &["volume", "list"])[0]["how"] == "leaving").await;
    eventually("it arrives", || json(&cellar, &["volume", "list"])[0]["how"] == "arriving").await;
    let output = move_to(&attic, "third", &[]);
    assert!(stderr(&output).contains("is being moved to cellar"), "{}", stderr(&output));
    // The move does not depend on the command that started it; another command to the same destination shows its
    // progress.
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    let mut second = slow("cellar");
    // Wait until the second command has reported progress: if it started after the cancellation, it would begin another
    // move.
    let mut lines = BufReader::new(second.stdout.take().expect("a pipe")).lines();
    let begun = lines.next().expect("a line").expect("text");
    write(&*volume, 0, 2).await.expect("hosts go on");
    let cancelled = json(&attic, &["volume", "cancel", "payroll"]);
    assert_eq!(cancelled["stage"], "undone");
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert!(!second.wait().expect("it ends").success());
    // The progress that the command reports never decreases.
    let told = [begun].into_iter().chain(rest);
    let told: Vec<Value> = told.map(|line| serde_json::from_str(&line).expect("JSON")).collect();
    let copied: Vec<_> =
        told.iter().map(|line| line["copied_bytes"].as_u64().expect("bytes")).collect();
    assert!(copied.is_sorted() && copied.len() > 1, "{copied:?}");
    assert!(told[0]["stage"] == "copying" && told[0]["left_bytes"].as_u64() > Some(0), "{told:?}");
    assert!(told.last().expect("a line")["failure"]["message"] == "it was cancelled", "{told:?}");
    eventually("nothing is left", || !place.path("cellar.moved/payroll.img").exists()).await;
    assert_eq!(json(&cellar, &["volume", "list"]), Value::Array(vec![]));
    assert_eq!(read(&*volume, 0).await.expect("read"), content(0, 2));
    // After the cancellation, the volume may be moved to any node.
    let output = move_to(&attic, "third", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(serves(&third) && !serves(&attic));
    assert_eq!(read(&*volume, 0).await.expect("the host was sent there"), content(0, 2));
}

/// Kills either node at any time of a move, while a host writes through a gateway. No data is lost, the host gets no
/// error, and exactly one node serves in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_in_a_move_loses_nothing() {
    let rounds = std::env::var("FOREBAY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let (place, _seed, seeds) = place();
    let attic_settings =
        attic(0, &seeds, "").replace("[[target]]", &format!("{}[[target]]", accept("attic")));
    let texts = [attic_settings, cellar("cellar", &seeds, &accept("cellar"))];
    let node_names = ["attic", "cellar"];
    let mut nodes = [place.serve("attic", &texts[0]), place.serve("cellar", &texts[1])];
    let near = place.serve("gateway", &gateway(&seeds));
    let volume = connect(near.address, GATEWAY).await;
    let load = Load::start(&volume, 2);
    let mut at = 0;
    let mut moved = 0;
    for round in 0..rounds.unwrap_or(6_u64) {
        knows(&nodes[at], &[node_names[1 - at]]).await;
        let written = load.written();
        eventually("writes", || load.written() > written + 50).await;
        let control = nodes[at].control.clone();
        let to = node_names[1 - at];
        let moving = std::thread::spawn(move || {
            forebay()
                .args(["volume", "move", "payroll", "--to", to, "--control"])
                .arg(control)
                .output()
                .expect("the binary runs")
        });
        // Kill at any time during the move, which takes some hundred milliseconds.
        tokio::time::sleep(Duration::from_millis((round * 67 + 40) % 500)).await;
        let victim = ((round / 2 + round) % 2) as usize;
        nodes[victim].kill();
        let _ = moving.join();
        // Restart the killed node, because the move can only be settled while both nodes run.
        nodes[victim] = place.serve(node_names[victim], &texts[victim]);
        let mut both = false;
        eventually("one of them serves", || {
            let is_served = [serves(&nodes[0]), serves(&nodes[1])];
            both |= is_served == [true, true];
            let lists = [0, 1].map(|i: usize| json(&nodes[i], &["volume", "list"]));
            let is_settled = lists
                .iter()
                .flat_map(|list| list.as_array().expect("a list").clone())
                .all(|listed| ["gone", "here"].iter().any(|how| listed["how"] == **how));
            at = usize::from(is_served[1]);
            is_settled && is_served[0] != is_served[1]
        })
        .await;
        assert!(!both, "two serve it at once");
        moved += u64::from(at == 1);
        println!("round {round}: killed {}, served by {}", node_names[victim], node_names[at]);
    }
    println!("{moved} rounds ended at the other node");
    let written = load.written();
    eventually("writes", || load.written() > written + 50).await;
    let versions = load.end().await;
    verify(&volume, &versions, "gateway").await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect_to(nodes[at].address).await;
    verify(&there, &versions, node_names[at]).await;
}
