//! Nodes that were restored from a backup, or that have lost their record of a move: newer data is neither discarded
//! nor served together with an older copy. Also moves that would make hosts wait too long.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::{Value, json as value};

use crate::{
    scene::{accept, attic, cellar, connect_to, knows, move_to, place, serves},
    support::{
        content, eventually,
        nodes::{json, known_node, other},
        read, stderr, write,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_restored_to_a_state_before_a_move_does_not_serve_the_moved_volume() {
    let (place, seed, seeds) = place();
    let attic_settings = attic(0, &seeds, "");
    let attic = place.serve("attic", &attic_settings);
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&attic, &["cellar"]).await;
    let volume = connect_to(attic.address).await;
    write(&*volume, 1, 1).await.expect("taken");
    let output = move_to(&attic, "cellar", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    write(&*volume, 1, 2).await.expect("taken there");
    attic.terminate();
    let record = place.path("attic.state/moved/payroll.volume");
    let put_back = || std::fs::remove_file(&record).expect("there was a record");
    put_back();
    eventually("others know", || {
        known_node(&seed, "cellar").is_some_and(|node| node["volumes"][0]["generation"] == 1)
    })
    .await;
    let attic = place.serve("attic", &attic_settings);
    assert!(!serves(&attic) && serves(&cellar));
    let listed = json(&attic, &["volume", "list"]);
    assert_eq!(listed[0]["how"], "gone");
    // Hosts are redirected to the newer volume.
    let host = connect_to(attic.address).await;
    assert_eq!(read(&*host, 1).await.expect("read"), content(1, 2));
    // A node that starts while no other node knows of the newer volume serves its own, until it learns of the newer
    // one.
    attic.terminate();
    put_back();
    drop(seed);
    let attic = place.serve("attic", &attic_settings);
    assert!(serves(&attic), "no other node reports a newer volume");
    let seed_settings = other("seed", &[], "names");
    let listen = |address: &str| format!("listen = [\"{address}\"]\nseeds");
    let seed = seed_settings.replace(&listen("127.0.0.1:0"), &listen(&seeds[0].to_string()));
    let _seed = place.serve("seed", &seed);
    eventually("it gives way", || !serves(&attic)).await;
    assert!(serves(&cellar) && place.path("payroll.img").exists());
    // The operator decides to serve the older copy of the volume; the other node then stops serving the volume.
    attic.terminate();
    let newer = attic_settings.replace("lun = 3", "lun = 3\ngeneration = 7");
    let attic = place.serve("attic", &newer);
    assert!(serves(&attic));
    eventually("the other gives way", || !serves(&cellar)).await;
    assert!(place.path("cellar.moved/payroll.img").exists(), "nothing is thrown away");
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let bytes = std::fs::read(file).expect("a record");
    let mut record = serde_json::from_slice(&bytes[16..bytes.len() - 4]).expect("JSON");
    change(&mut record);
    let json = serde_json::to_vec(&record).expect("JSON");
    let mut framed = bytes[..12].to_vec();
    framed.extend_from_slice(&(json.len() as u32).to_le_bytes());
    framed.extend_from_slice(&json);
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &framed) as u32;
    framed.extend_from_slice(&sum.to_le_bytes());
    std::fs::write(file, framed).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_copy_that_the_other_node_does_not_know_is_kept_and_reported() {
    let (place, _seed, seeds) = place();
    let attic_settings = attic(0, &seeds, "");
    let attic = place.serve("attic", &attic_settings);
    let cellar_settings = cellar("cellar", &seeds, &accept("cellar"));
    let cellar = place.serve("cellar", &cellar_settings);
    knows(&attic, &["cellar"]).await;
    let output = move_to(&attic, "cellar", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    // Simulate a source node that stopped before it was notified, and a destination that was restored to a state before
    // the decision.
    attic.terminate();
    cellar.terminate();
    let decided = place.path("attic.state/moved/payroll.volume");
    std::fs::rename(&decided, place.path("decided")).expect("a record");
    change(&place.path("cellar.state/moved/payroll.volume"), |kept| {
        assert_eq!(kept["come"]["stage"].take(), "here");
        kept["come"]["stage"] = "ready".into();
    });
    let cellar = place.serve("cellar", &cellar_settings);
    let attic = place.serve("attic", &attic_settings);
    eventually("the report", || !json(&cellar, &["volume", "list"])[0]["why"].is_null()).await;
    let listed = json(&cellar, &["volume", "list"])[0].clone();
    let why = listed["why"].as_str().expect("text");
    assert!(listed["how"] == "waiting" && why.contains("has no record of this move"), "{listed}");
    assert!(place.path("cellar.moved/payroll.img").exists());
    assert!(serves(&attic) && !serves(&cellar));
    // A second move to the destination is refused, and the copy at the destination is kept.
    let output = move_to(&attic, "cellar", &[]);
    assert!(
        stderr(&output).contains("the node has a complete copy of payroll"),
        "{}",
        stderr(&output)
    );
    assert!(place.path("cellar.moved/payroll.img").exists() && serves(&attic));
    // The source node gets a record that the move was not decided. It reports this, and the destination removes its
    // copy.
    attic.terminate();
    std::fs::rename(place.path("decided"), &decided).expect("moved");
    change(&decided, |kept| {
        let id = kept["gone"]["id"].take();
        *kept = value!({ "gone": null, "come": null, "tried": ["0123", id] });
    });
    let attic = place.serve("attic", &attic_settings);
    let is_empty = || json(&cellar, &["volume", "list"]) == value!([]);
    eventually("the removal of the copy", is_empty).await;
    assert!(serves(&attic) && !place.path("cellar.moved/payroll.img").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_wait_for_the_end_of_the_copy_no_longer_than_the_given_pause() {
    let (place, _seed, seeds) = place();
    let slow = attic(0, &seeds, "")
        .replace("size = \"64MiB\" } }", "size = \"64MiB\" } }, { delay = { flush = \"2s\" } }");
    let attic = place.serve("attic", &slow);
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&attic, &["cellar"]).await;
    let volume = connect_to(attic.address).await;
    let moving = std::thread::spawn({
        let control = attic.control.clone();
        move || {
            crate::support::forebay()
                .args(["volume", "move", "payroll", "--to", "cellar", "--pause", "200ms"])
                .arg("--control")
                .arg(control)
                .output()
                .expect("the binary runs")
        }
    });
    let mut longest = Duration::ZERO;
    let mut version = 0;
    while !moving.is_finished() {
        version += 1;
        let begun = Instant::now();
        write(&*volume, 3, version).await.expect("no host sees an error");
        longest = longest.max(begun.elapsed());
    }
    let output = moving.join().expect("it ends");
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("payroll stays here"), "{text}");
    assert!(text.contains("longer than 0.2 s") && text.contains("with a longer --pause"), "{text}");
    // No host waited for the flush, which takes 2 s.
    assert!(longest < Duration::from_millis(1700), "{longest:?}");
    assert!(serves(&attic) && !serves(&cellar));
    assert_eq!(read(&*volume, 3).await.expect("read"), content(3, version));
    eventually("nothing is left", || !place.path("cellar.moved/payroll.img").exists()).await;
    for wrong in ["50ms", "30s"] {
        let text = stderr(&move_to(&attic, "cellar", &["--pause", wrong]));
        assert!(text.contains("--pause is not between"), "{text}");
    }
}

/// Hosts need not wait until the old node has closed the unit, which takes another flush.
#[tokio::test(flavor = "multi_thread")]
async fn the_destination_serves_before_the_source_has_closed_the_unit() {
    let (place, _seed, seeds) = place();
    let slow = attic(0, &seeds, "").replace(
        "size = \"64MiB\" } }",
        "size = \"64MiB\" } }, { delay = { flush = \"1500ms\" } }",
    );
    let attic = place.serve("attic", &slow);
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&attic, &["cellar"]).await;
    let moved = json(&attic, &["volume", "move", "payroll", "--to", "cellar"]);
    assert_eq!(moved["stage"], "moved");
    assert!(serves(&cellar) && !serves(&attic));
    let pause = moved["pause_seconds"].as_f64().expect("seconds");
    // Hosts waited no longer than for one flush and a little more.
    assert!((1.5..2.7).contains(&pause), "{pause}");
}
