//! What a gateway counts: the tables of STICS (3 to 6), from `status --json`.

mod support;

use serde_json::Value;
use support::{Place, Serving, connect, eventually, gateway, node, read, write};

/// The figures of a layer of the only unit.
fn figures(serving: &Serving, layer: &str) -> Value {
    let status = serving.status();
    let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
    layers.iter().find(|found| found["layer"] == layer).expect("the layer")["figures"].clone()
}

/// PDUs in a table of sizes.
fn pdus(sizes: &Value) -> u64 {
    let classes = sizes.as_object().expect("a table").iter().filter(|(name, _)| *name != "bytes");
    classes.map(|(_, count)| count.as_u64().expect("a number")).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_pdus_are_counted_at_both_ends() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
    let volume = connect(near.address, "iqn.2026-11.test:gateway").await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("written");
    }
    for block in 32..96 {
        read(&*volume, block).await.expect("read");
    }
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;

    let counters = near.status()["counters"].clone();
    let commands = &counters["commands_by_kind"];
    assert_eq!((&commands["WRITE(10)"], &commands["READ(10)"]), (&64.into(), &64.into()));
    let sum: u64 =
        commands.as_object().expect("a table").values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(Value::from(sum), counters["commands"]);
    assert_eq!(Value::from(pdus(&counters["pdus_in_by_size"])), counters["pdus_in"]);
    assert_eq!(Value::from(pdus(&counters["pdus_out_by_size"])), counters["pdus_out"]);
    // Immediate data and answers of a page each.
    assert!(counters["pdus_in_by_size"]["from_1024"].as_u64().unwrap() >= 64);
    assert!(counters["pdus_out_by_size"]["from_1024"].as_u64().unwrap() >= 64);
    // One in four is timed, and counted for four.
    let timed = counters["time_write"]["count"].as_u64().expect("a number");
    assert!((56..=72).contains(&timed), "{timed}");

    let cache = figures(&near, "cache");
    let number = |name: &str| cache[name].as_u64().expect("a number");
    let answered = ["nvram", "dram", "log", "lower"].map(|place| number(&format!("reads_{place}")));
    assert_eq!(answered.iter().sum::<u64>(), 64, "{cache}");
    assert!(number("reads_dram") >= 32 && number("writes_near") == 64, "{cache}");
    assert!(cache["time_write"]["p50_us"].as_f64().unwrap() > 0.0);
    assert!(number("joined_slots") > 0, "{cache}");

    // Fewer and larger over the link.
    let remote = figures(&near, "remote");
    let sent = remote["commands_by_kind"]["WRITE(10)"].as_u64().unwrap_or(0);
    assert!((1..64).contains(&sent), "{remote}");
    assert_eq!(Value::from(pdus(&remote["pdus_out_by_size"])), remote["pdus_out"]);
    let text = support::forebay().args(["status", "--control"]).arg(&near.control).output();
    let text = String::from_utf8(text.expect("it runs").stdout).expect("text");
    assert!(text.contains("READ(10): 64") && text.contains("half below"), "{text}");
}
