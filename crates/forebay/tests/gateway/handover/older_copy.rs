//! Logs and NVRAM files that were restored from an older copy: they are refused and overwrite nothing.

use support::{Place, Serving, connect, eventually, node, run};
use volume::Volume;

use super::{
    GATEWAY, KEEPS, NODE, adopt, check_all, claim, copy, drain, keeping, other_gateway, succeeded,
    tell, write_all,
};
use crate::support;

/// Returns the number of confirmed writes that the node has recorded of the log (CLAIM OUT).
fn confirmed(far: &Serving) -> u64 {
    claim(far)["confirmed"].as_u64().unwrap_or(0)
}

/// Starts a process that writes to `target`, copies `files` while it runs, writes again, kills the process, and
/// restores the copy. Returns the message of the next start.
async fn put_back(
    place: &Place,
    far: Option<&Serving>,
    (name, text): (&str, &str),
    (target, files): (&str, &[&str]),
) -> String {
    let mut serving = place.serve(name, text);
    let volume = connect(serving.address, target).await;
    write_all(&*volume, 0..20, 1).await;
    volume.flush().await.expect("flushed");
    for file in files {
        copy(place.path(file), place.path(&format!("{file}.old")));
    }
    write_all(&*volume, 0..20, 2).await;
    volume.flush().await.expect("flushed");
    if let Some(far) = far {
        // Wait until the node has recorded both rounds of twenty writes. Each write has a number of its own.
        eventually("the confirmed number", || confirmed(far) >= 40).await;
    }
    serving.kill();
    if far.is_some() {
        // Remove the gateway's state: only the node still knows the newest number of confirmed writes of this log.
        std::fs::remove_dir_all(place.path(&format!("state-of-{name}"))).expect("removed");
    }
    for file in files {
        copy(place.path(file), place.path(&format!("{file}.new")));
        copy(place.path(&format!("{file}.old")), place.path(file));
    }
    let error = place.try_serve(name, text).err().expect("an older copy is refused");
    // With the newest files the log is accepted, and has all flushed writes.
    for file in files {
        copy(place.path(&format!("{file}.new")), place.path(file));
    }
    let serving = place.serve(name, text);
    let volume = connect(serving.address, target).await;
    check_all(&*volume, 0..20, 2).await;
    error
}

const IMMEDIATE: &str = "report = 'immediate'\nnvram = 'a.nvram'";

/// The copies of log and NVRAM that are put back were made after the log had been opened for the last time, so nothing
/// in them shows that they are old.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_log_and_nvram_is_refused_by_the_claim_at_the_node() {
    for (more, files) in [
        (KEEPS.to_owned(), &["a.log"][..]),
        (format!("{KEEPS}\n{IMMEDIATE}"), &["a.log", "a.nvram"]),
    ] {
        let place = Place::new();
        let far = place.serve("node", &keeping(&place, 0));
        let text = other_gateway(&place, "a", far.address, &more);
        let error = put_back(&place, Some(&far), ("a", &text), (GATEWAY, files)).await;
        assert!(error.contains("is an older copy of itself: it ends at write"), "{error}");
        assert!(error.contains("claim drop") && error.contains("remove it (`rm "), "{error}");
    }
}

/// Without claims, the newest number is in the state folder of the process that has the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_log_and_nvram_is_refused_by_the_state_folder() {
    for (more, files) in [
        (KEEPS.to_owned(), &["a.log"][..]),
        (format!("{KEEPS}\n{IMMEDIATE}"), &["a.log", "a.nvram"]),
    ] {
        let place = Place::new();
        let far = place.serve("node", &node(place.folder.path(), 0));
        let text = other_gateway(&place, "a", far.address, &more);
        let error = put_back(&place, None, ("a", &text), (GATEWAY, files)).await;
        assert!(error.contains("log and NVRAM are an older copy: they end at write"), "{error}");
        assert!(error.contains("accept_loss") && error.contains("claim drop"), "{error}");
    }
    // Also check a cache at a node, without claims: its writes become stable with the next flush.
    let place = Place::new();
    let cache = "}, { cache = { log = 'a.log', log_size = '32MiB', dram = '8MiB', nvram_size = '1MiB', \
                 report = 'at-flush', destage_idle = '30s', dirty_age = '1h' } } ]";
    let text = node(place.folder.path(), 0).replace("} ]", cache);
    let text = format!("state = 'state'\n{text}");
    let error = put_back(&place, None, ("node", &text), (NODE, &["a.log"])).await;
    assert!(error.contains("log and NVRAM are an older copy: they end at write"), "{error}");
}

/// The refusal also names a remedy that discards the older log. The discarded log must not overwrite newer data at
/// the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_older_copy_of_a_log_overwrites_no_newer_data() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, 0));
    let text = other_gateway(&place, "a", far.address, KEEPS);
    let mut near = place.serve("a", &text);
    let volume = connect(near.address, GATEWAY).await;
    write_all(&*volume, 0..20, 1).await;
    copy(place.path("a.log"), place.path("a.log.old"));
    // Write newer data, and destage it to the node before the log is replaced by its older copy.
    write_all(&*volume, 0..20, 2).await;
    drain(&near);
    eventually("the confirmed number", || confirmed(&far) >= 40).await;
    near.kill();
    copy(place.path("a.log.old"), place.path("a.log"));
    place.try_serve("a", &text).err().expect("refused");
    succeeded(&tell(
        &far.control,
        &["claim", "drop", NODE, "--lose-dirty-data", "--hosts-unmounted"],
    ));
    let log = std::fs::File::options().write(true).open(place.path("a.log")).expect("opened");
    std::io::Write::write_all(&mut &log, &vec![0; 1 << 20]).expect("written");
    let [file, config] = ["a.log", "a.toml"].map(|name| place.path(name).display().to_string());
    let forget = ["forget", &file, "--lose-data", "--hosts-unmounted", "--config", &config];
    succeeded(&run(&forget));
    let near = place.serve("a", &text);
    drain(&near);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..20, 2).await;
}

/// The state folder of a host may have older numbers than a log that was used elsewhere meanwhile, and has none for a
/// log that it has never seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_moved_to_another_host_and_back_is_not_refused_as_an_older_copy() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, 0));
    let on = |name: &str| other_gateway(&place, name, far.address, KEEPS);
    let mut near = place.serve("a", &on("a"));
    let volume = connect(near.address, GATEWAY).await;
    write_all(&*volume, 0..20, 1).await;
    for (from, to, version) in [("a", "b", 2), ("b", "a", 3)] {
        near.kill();
        copy(place.path(&format!("{from}.log")), place.path(&format!("{to}.log")));
        succeeded(&adopt(&place, to, &on(to)));
        near = place.serve(to, &on(to));
        let volume = connect(near.address, GATEWAY).await;
        check_all(&*volume, 0..20, version - 1).await;
        write_all(&*volume, 0..20, version).await;
    }
    drain(&near);
    assert!(near.terminate().0.success());
    let near = place.serve("a", &on("a"));
    let volume = connect(near.address, GATEWAY).await;
    check_all(&*volume, 0..20, 3).await;
}
