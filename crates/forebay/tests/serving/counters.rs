//! The counters of a gateway that correspond to the tables of STICS (3 to 6 and 8), read from `status --json`.

use serde_json::Value;
use support::{Place, Serving, connect, eventually, gateway, node, read, write};
use volume::Volume;

use crate::support;

fn figures(serving: &Serving, layer: &str) -> Value {
    let status = serving.status();
    let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
    layers.iter().find(|found| found["layer"] == layer).expect("the layer")["figures"].clone()
}

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
    // Each write sends 4 KiB of immediate data, and each read returns as much in its response.
    assert!(counters["pdus_in_by_size"]["from_1024"].as_u64().unwrap() >= 64);
    assert!(counters["pdus_out_by_size"]["from_1024"].as_u64().unwrap() >= 64);
    // One in four commands is timed, and counts four times.
    let timed = counters["time_write"]["count"].as_u64().expect("a number");
    assert!((56..=72).contains(&timed), "{timed}");

    let cache = figures(&near, "cache");
    let number = |name: &str| cache[name].as_u64().expect("a number");
    let answered = ["nvram", "dram", "log", "lower"].map(|place| number(&format!("reads_{place}")));
    assert_eq!(answered.iter().sum::<u64>(), 64, "{cache}");
    assert!(number("reads_dram") >= 32 && number("writes_near") == 64, "{cache}");
    assert!(cache["time_write"]["p50_us"].as_f64().unwrap() > 0.0);
    assert!(number("joined_slots") > 0, "{cache}");

    // The link carries fewer and larger writes than the host has sent.
    let remote = figures(&near, "remote");
    let sent = remote["commands_by_kind"]["WRITE(10)"].as_u64().unwrap_or(0);
    assert!((1..64).contains(&sent), "{remote}");
    assert_eq!(Value::from(pdus(&remote["pdus_out_by_size"])), remote["pdus_out"]);
    let text =
        support::forebay().args(["status", "--all", "--control"]).arg(&near.control).output();
    let text = String::from_utf8(text.expect("it runs").stdout).expect("text");
    assert!(text.contains("READ(10): 64") && text.contains(": median "), "{text}");
}

/// Regression: the table of targets counted open sessions only.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_targets_includes_the_writes_of_ended_sessions() {
    let place = Place::new();
    let node = place.serve("node", &node(place.folder.path(), 0));
    let target = || node.status()["targets"][0].clone();
    for session in 1..=2 {
        let volume = connect(node.address, "iqn.2026-11.test:node").await;
        for block in 0..8 {
            write(&*volume, block, session).await.expect("written");
        }
        volume.close().await;
        eventually("the end of the session", || target()["sessions"] == 0).await;
        assert_eq!(target()["data_out_bytes"], session * 8 * 4096);
        assert!(target()["commands"].as_u64().is_some_and(|commands| commands >= session * 8));
    }
}

/// Checks a table of PDU sizes: the classes add up to the number of PDUs, and the bytes fit the classes. Returns the
/// number of PDUs and the number of bytes.
fn check_sizes(figures: &Value, way: &str) -> (u64, u64) {
    let sizes = &figures[format!("pdus_{way}_by_size")];
    let bounds = [
        ("below_64", 48, 63),
        ("below_128", 64, 127),
        ("below_256", 128, 255),
        ("below_512", 256, 511),
        ("below_1024", 512, 1023),
        ("from_1024", 1024, 1 << 24),
    ];
    let count = |name: &str| sizes[name].as_u64().expect("a class");
    let sum = |bound: fn(&(&str, u64, u64)) -> u64| -> u64 {
        bounds.iter().map(|class| count(class.0) * bound(class)).sum()
    };
    let bytes = sizes["bytes"].as_u64().expect("bytes");
    assert!((sum(|class| class.1)..=sum(|class| class.2)).contains(&bytes), "{way}: {sizes}");
    assert_eq!(Value::from(pdus(sizes)), figures[format!("pdus_{way}")], "{way}: {sizes}");
    (pdus(sizes), bytes)
}

fn of_kind(figures: &Value, kind: &str) -> u64 {
    figures["commands_by_kind"][kind].as_u64().unwrap_or(0)
}

/// After a load on one gateway, checks Tables 3 and 4 (PDUs by size, bytes, share of full ones), 5 (requests by where
/// they were answered), 6 (commands by kind) and 8 (operations and their times, by size).
#[tokio::test(flavor = "multi_thread")]
async fn all_figures_of_the_papers_tables_are_reported_and_add_up() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
    let volume = connect(near.address, "iqn.2026-11.test:gateway").await;
    // Overwrite the blocks twice, so that the far volume gets fewer writes. Then read partly from memory, partly from
    // the far volume.
    for version in 1..=3 {
        for block in 0..100 {
            write(&*volume, block, version).await.expect("written");
        }
    }
    for block in 50..150 {
        read(&*volume, block).await.expect("read");
    }
    volume.flush().await.expect("flushed");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;

    let status = near.status();
    let (counters, remote, cache) =
        (&status["counters"], figures(&near, "remote"), figures(&near, "cache"));
    let far_counters = &far.status()["counters"];
    // Compare with Tables 3 and 4 of the paper, for both links and both directions.
    let (_, from_host) = check_sizes(counters, "in");
    let (_, to_host) = check_sizes(counters, "out");
    let (_, over_link) = check_sizes(&remote, "out");
    let (_, from_link) = check_sizes(&remote, "in");
    let at_node = check_sizes(far_counters, "in");
    let written = 300 * 4096;
    let bytes = |name: &str| counters[name].as_u64().expect("a number");
    assert!(from_host > written && bytes("data_out_bytes") >= written, "{counters}");
    assert!(to_host > 100 * 4096 && bytes("data_in_bytes") >= 100 * 4096, "{counters}");
    // Data that was read ahead and not used has crossed the link but did not go to a host.
    let figure = |name: &str| cache[name].as_u64().expect("a number");
    let unused = figure("read_ahead_bytes") - figure("read_ahead_used_slots") * 4096;
    assert!(over_link < from_host && from_link - unused < to_host, "{remote} {cache}");
    assert!(at_node.1 >= over_link, "the node counts the log-in, too: {at_node:?}, {over_link}");
    // Compare with Table 5: the host's requests by the place that answered them.
    let number = |name: &str| cache[name].as_u64().expect("a number");
    let reads = ["nvram", "dram", "log", "lower"].map(|place| number(&format!("reads_{place}")));
    assert_eq!(reads.iter().sum::<u64>(), number("reads"), "{cache}");
    assert_eq!((number("reads"), number("writes"), number("writes_near")), (100, 300, 300));
    // Compare with Table 6: commands as the host sent them, and as the node received them.
    let commands = counters["commands_by_kind"].as_object().expect("a table");
    let sum: u64 = commands.values().map(|n| n.as_u64().expect("a number")).sum();
    assert_eq!(Value::from(sum), counters["commands"]);
    assert_eq!((of_kind(counters, "WRITE(10)"), of_kind(counters, "READ(10)")), (300, 100));
    for kind in ["READ(10)", "WRITE(10)"] {
        assert_eq!(of_kind(&remote, kind), of_kind(far_counters, kind), "{kind}: {remote}");
    }
    let reads_below = of_kind(&remote, "READ(10)");
    assert!((1..=100).contains(&reads_below), "{remote}");
    assert!(of_kind(&remote, "WRITE(10)") < 300, "{remote}");
    // Table 8: commands and bytes of each session, and the time of each kind of command.
    let sessions = status["sessions"].as_array().expect("sessions");
    let of_sessions = |figure: &str| -> u64 {
        sessions.iter().map(|session| session[figure].as_u64().expect("a number")).sum()
    };
    assert_eq!(Value::from(of_sessions("commands")), counters["commands"]);
    assert_eq!(Value::from(of_sessions("data_out_bytes")), counters["data_out_bytes"]);
    for time in ["time_read", "time_write"] {
        assert!(counters[time]["count"].as_u64().is_some_and(|count| count > 0), "{counters}");
        assert!(counters[time]["mean_us"].as_f64().is_some_and(|mean| mean > 0.0), "{counters}");
    }
    drop(volume);
}
