//! Logs, NVRAM files and read tiers that are missing, blank, older, damaged, too small or of another volume at a start.
//! None of them is used as a new one, and only the units that need them are not served.

use support::{Place, Serving, connect, content, gateway, node, read, run, stderr, write};
use volume::Volume;

use crate::{ACCEPTS_LOSS, GATEWAY, NODE, give_up, pair, support};

#[derive(Clone, Copy, Debug)]
enum Lost {
    Missing,
    Blank,
}

/// Removes the log, or zeros its first MiB. Returns a function that restores the log.
fn lose(log: &std::path::Path, how: Lost) -> impl FnOnce() + use<> {
    let whole = std::fs::read(log).expect("a log");
    match how {
        Lost::Missing => std::fs::remove_file(log).expect("removed"),
        Lost::Blank => {
            let mut blank = whole.clone();
            blank[..1 << 20].fill(0);
            std::fs::write(log, blank).expect("written");
        }
    }
    let log = log.to_owned();
    move || std::fs::write(log, whole).expect("put back")
}

const KEEPS_DIRTY: &str = "destage_idle = '30s'\ndirty_age = '1h'\ndestage_threshold = 0.9";

/// Kills a gateway with dirty data in its log, over a node without claims. Checks that the gateway is refused without
/// the log, and has lost nothing when the log is back.
async fn is_refused_without_its_log(top: &str, more: &str, how: Lost) {
    let place = Place::new();
    let (far, mut near) = (place.serve("node", &node(place.folder.path(), 0)), None);
    let settings = format!("{top}{}", gateway(place.folder.path(), far.address, more));
    let serving = near.insert(place.serve("gateway", &settings));
    let volume = connect(serving.address, GATEWAY).await;
    for block in 0..40 {
        write(&*volume, block, 1).await.expect("taken");
    }
    volume.flush().await.expect("flushed");
    drop(volume);
    serving.kill();
    let log = place.path("gateway.log");
    let put_back = lose(&log, how);
    let config = place.path("gateway.toml").display().to_string();
    let check = run(&["check", "--config", &config]);
    let checked = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(1), "{checked}");
    // Start twice: the first refusal must leave nothing that the second start would use as a log.
    for _ in 0..2 {
        let told = place.try_serve("gateway", &settings).err().expect("its log is lost");
        assert!(told.contains("gateway.log") && told.contains("instance"), "{told}");
        assert!(told.contains("last opened") && told.contains("forebay forget"), "{told}");
        assert!(checked.contains("forebay forget"), "{checked}");
    }
    put_back();
    let serving = place.serve("gateway", &settings);
    let volume = connect(serving.address, GATEWAY).await;
    for block in 0..40 {
        assert_eq!(read(&*volume, block).await.expect("recovered"), content(block, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_blank_log_is_not_created_again() {
    is_refused_without_its_log("", KEEPS_DIRTY, Lost::Missing).await;
    is_refused_without_its_log("state = 'near'\n", KEEPS_DIRTY, Lost::Blank).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_log_with_an_existing_nvram_is_not_created_again() {
    let place = Place::new();
    let nvram = place.path("nvram").display().to_string();
    let more = format!("{KEEPS_DIRTY}\nreport = 'immediate'\nnvram = '{nvram}'");
    let (_far, mut near) = pair(&place, &more);
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..40 {
        write(&*volume, block, 1).await.expect("taken");
    }
    volume.flush().await.expect("flushed");
    drop(volume);
    near.kill();
    let settings = std::fs::read_to_string(place.path("gateway.toml")).expect("settings");
    let settings = settings.split_once('\n').expect("the control socket").1.to_owned();
    for how in [Lost::Missing, Lost::Blank] {
        let put_back = lose(&place.path("gateway.log"), how);
        let told = place.try_serve("gateway", &settings).err().expect("its log is lost");
        assert!(told.contains("forebay forget"), "{told}");
        // Remove the gateway's records as well: the NVRAM still shows that a log existed.
        let (records, away) = (place.path("forebay-state"), place.path("away"));
        std::fs::rename(&records, &away).expect("records");
        for _ in 0..2 {
            let told = place.try_serve("gateway", &settings).err().expect("the NVRAM is its");
            assert!(told.contains("NVRAM is in use by log"), "{told}");
        }
        let (code, checked) = check(&place, "gateway");
        assert!(code == Some(1) && checked.contains("NVRAM is in use by log"), "{checked}");
        let _ = std::fs::remove_dir_all(&records);
        std::fs::rename(&away, &records).expect("put back");
        put_back();
    }
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 39).await.expect("recovered"), content(39, 1));
}

/// Returns the exit code and the output of `forebay check` for the settings with this name.
fn check(place: &Place, name: &str) -> (Option<i32>, String) {
    let config = place.path(&format!("{name}.toml")).display().to_string();
    let output = run(&["check", "--config", &config]);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Regression: `check` reported that the missing NVRAM file would be made, although its content was needed.
#[tokio::test(flavor = "multi_thread")]
async fn an_nvram_that_is_missing_or_an_older_copy_is_found_by_check() {
    let place = Place::new();
    let more = format!("{KEEPS_DIRTY}\nreport = 'immediate'\nnvram = 'nvram'");
    let (_far, mut near) = pair(&place, &more);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 0, 1).await.expect("taken");
    let nvram = place.path("nvram");
    let older = std::fs::read(&nvram).expect("it was made");
    for block in 1..40 {
        write(&*volume, block, 1).await.expect("taken");
        volume.flush().await.expect("flushed");
    }
    drop(volume);
    near.kill();
    let (code, checked) = check(&place, "gateway");
    assert_eq!(code, Some(0), "{checked}");
    let newest = std::fs::read(&nvram).expect("it was made");
    let settings = std::fs::read_to_string(place.path("gateway.toml")).expect("settings");
    let settings = settings.split_once('\n').expect("the control socket").1.to_owned();
    for (content, why) in [(None, "is blank"), (Some(older), "older copy of itself")] {
        match &content {
            None => std::fs::remove_file(&nvram).expect("removed"),
            Some(content) => std::fs::write(&nvram, content).expect("put back"),
        }
        let (code, checked) = check(&place, "gateway");
        assert!(code == Some(1) && checked.contains(why), "{checked}");
        assert!(content.is_some() || !nvram.exists(), "check makes nothing");
        let told = place.try_serve("gateway", &settings).err().expect("refused");
        assert!(told.contains(why), "{told}");
    }
    std::fs::write(&nvram, newest).expect("put back");
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 39).await.expect("recovered"), content(39, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_missing_log_of_a_node_that_reports_at_flush_is_not_created_again() {
    let place = Place::new();
    let log = place.path("node.log");
    let settings = format!(
        "state = 'kept'\n{}",
        node(place.folder.path(), 0).replace(
            " } ]",
            &format!(
                " }}, {{ cache = {{ log = '{}', log_size = '32MiB', report = 'at-flush', \
                 destage_idle = '30s', dirty_age = '1h', destage_threshold = 0.9 }} }} ]",
                log.display()
            )
        )
    );
    let mut far = place.serve("node", &settings);
    let volume = connect(far.address, NODE).await;
    for block in 0..40 {
        write(&*volume, block, 1).await.expect("taken");
    }
    volume.flush().await.expect("flushed");
    drop(volume);
    far.kill();
    for how in [Lost::Missing, Lost::Blank] {
        let put_back = lose(&log, how);
        let told = place.try_serve("node", &settings).err().expect("its log is lost");
        assert!(told.contains("node.log") && told.contains("forebay forget"), "{told}");
        put_back();
    }
    let far = place.serve("node", &settings);
    let volume = connect(far.address, NODE).await;
    assert_eq!(read(&*volume, 39).await.expect("recovered"), content(39, 1));
}

/// Drains the gateway by command, since `dirty_bytes` in its status does not include the data in the NVRAM.
fn drain_and_stop(near: Serving) {
    let control = near.control.display().to_string();
    let drained = run(&["gateway", "drain", GATEWAY, "--control", &control]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    assert!(near.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_log_that_was_drained_and_stopped_cleanly_may_be_created_again() {
    for nvram in [false, true] {
        let place = Place::new();
        let path = place.path("nvram").display().to_string();
        let more = match nvram {
            true => format!("report = 'immediate'\nnvram = '{path}'"),
            false => String::new(),
        };
        let (far, near) = pair(&place, &more);
        let volume = connect(near.address, GATEWAY).await;
        write(&*volume, 1, 1).await.expect("taken");
        drop(volume);
        drain_and_stop(near);
        std::fs::remove_file(place.path("gateway.log")).expect("it was made");
        let near = place.serve("gateway", &gateway(place.folder.path(), far.address, &more));
        let volume = connect(near.address, GATEWAY).await;
        assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_gateway_in_the_place_of_a_drained_one_is_refused() {
    let (place, other) = (Place::new(), Place::new());
    let far = place.serve("node", &node(place.folder.path(), 0));
    let mut stale = other.serve("gateway", &gateway(other.folder.path(), far.address, KEEPS_DIRTY));
    let volume = connect(stale.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("taken");
    drop(volume);
    stale.kill();
    let settings = gateway(place.folder.path(), far.address, "");
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 2).await.expect("taken");
    drop(volume);
    drain_and_stop(near);
    let log = place.path("gateway.log");
    std::fs::copy(other.path("gateway.log"), &log).expect("copied");
    let told = place.try_serve("gateway", &settings).err().expect("its log was replaced");
    assert!(told.contains("was replaced by another log") && told.contains("forget"), "{told}");
    let (code, checked) = check(&place, "gateway");
    assert!(code == Some(1) && checked.contains("was replaced by another log"), "{checked}");
    std::fs::remove_file(&log).expect("the other log");
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_missing_log_is_reported_as_our_own() {
    let place = Place::new();
    let claims = format!("state = 'far'\n{}", node(place.folder.path(), 0));
    let far = place.serve("node", &claims);
    let settings = gateway(place.folder.path(), far.address, KEEPS_DIRTY);
    let mut near = place.serve("gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("taken");
    drop(volume);
    near.kill();
    // Remove the record of the lost log, too.
    give_up(&place, "gateway", "gateway.log");
    let config = place.path("gateway.toml").display().to_string();
    let check = run(&["check", "--config", &config]);
    let checked = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(1), "{checked}");
    assert!(checked.contains("of this gateway") && checked.contains("is missing"), "{checked}");
    let drop_it = format!("forebay claim drop {NODE}/0 --lose-dirty-data --hosts-unmounted");
    assert!(checked.contains(&drop_it), "{checked}");
    let told = place.try_serve("gateway", &settings).err().expect("its log is lost");
    assert!(told.contains("(this gateway itself)") && !told.contains("adopt"), "{told}");
    assert!(told.contains("gateway.log") && told.contains("forebay claim drop"), "{told}");
    // The message to another gateway names the owner of the claim.
    let other = format!("initiator_name = 'iqn.2026-11.test:second'\n{settings}")
        .replace("gateway.log", "second.log");
    let config = place.write("second", &other).display().to_string();
    let check = run(&["check", "--config", &config]);
    let checked = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(1), "{checked}");
    assert!(checked.contains("this gateway cannot write to it"), "{checked}");
}

/// Settings of a node with two units: a plain file, and a file behind a cache that acknowledges writes from the NVRAM.
fn two_units(place: &Place, log: &str) -> String {
    let path = |name: &str| place.path(name).display().to_string();
    format!(
        "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NODE}'\n[[target.unit]]\n\
         stack = [ {{ file = {{ path = '{}', size = '8MiB' }} }} ]\n\
         [[target]]\nname = '{GATEWAY}'\n[[target.unit]]\n\
         stack = [ {{ file = {{ path = '{}', size = '8MiB' }} }}, {{ cache = {{ log = '{}', \
         log_size = '16MiB', dram = '8MiB', report = 'immediate', nvram = '{}', nvram_size = '1MiB', \
         read_tier = '{}', read_tier_size = '8MiB', destage_idle = '30s', dirty_age = '1h', \
         destage_threshold = 0.9 }} }} ]\n",
        path("plain.img"),
        path("cached.img"),
        path(log),
        path("the.nvram"),
        path("the.tier"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_log_nvram_or_read_tier_does_not_stop_other_units() {
    let place = Place::new();
    let settings = two_units(&place, "the.log");
    let serving = place.serve("node", &settings);
    for target in [NODE, GATEWAY] {
        let volume = connect(serving.address, target).await;
        write(&*volume, 1, 7).await.expect("written");
        volume.flush().await.expect("flushed");
    }
    assert!(serving.terminate().0.success());
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, &str, Damage); 4] = [
        ("the.log", "holds something else", |bytes| bytes[..8192].fill(7)),
        ("the.log", "but the log disk only", |bytes| bytes.truncate(12 << 20)),
        ("the.nvram", "remove the file to change it", |bytes| bytes.push(1)),
        ("the.tier", "as read tier", |bytes| bytes[..128 << 10].fill(7)),
    ];
    for (name, why, damage) in damages {
        let path = place.path(name);
        let whole = std::fs::read(&path).expect("it was made");
        let mut bytes = whole.clone();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).expect("damaged");
        let serving = place.serve("node", &settings);
        let refused = serving.status()["targets"][1]["refused"][0].to_string();
        assert!(refused.contains(name) && refused.contains(why), "{refused}");
        let plain = connect(serving.address, NODE).await;
        assert_eq!(read(&*plain, 1).await.expect("served"), content(1, 7));
        drop(serving);
        assert!(std::fs::read(&path).expect("it is there") == bytes, "{name} was changed");
        std::fs::write(&path, whole).expect("put back");
    }
    let serving = place.serve("node", &settings);
    let cached = connect(serving.address, GATEWAY).await;
    assert_eq!(read(&*cached, 1).await.expect("served"), content(1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_under_another_path_is_not_mistaken_for_the_former_log() {
    let place = Place::new();
    let [before, after] = ["before.log", "after.log"].map(|log| two_units(&place, log));
    let refused = |settings: &str, log: &str| {
        let serving = place.serve("node", settings);
        let refused = serving.status()["targets"][1]["refused"][0].to_string();
        assert!(refused.contains(log) && refused.contains("last opened 20"), "{refused}");
        let (code, checked) = check(&place, "node");
        assert!(code == Some(1) && checked.contains("the settings no longer name"), "{checked}");
        refused
    };
    let mut serving = place.serve("node", &before);
    let volume = connect(serving.address, GATEWAY).await;
    write(&*volume, 1, 7).await.expect("written");
    volume.flush().await.expect("flushed");
    drop(volume);
    serving.kill();
    let told = refused(&after, "before.log");
    assert!(told.contains("--lose-data") && told.contains("move that file"), "{told}");
    assert!(!place.path("after.log").exists(), "no log was made");
    // Move the file as the message says.
    std::fs::rename(place.path("before.log"), place.path("after.log")).expect("moved");
    let mut serving = place.serve("node", &after);
    let volume = connect(serving.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("served"), content(1, 7));
    drop(volume);
    serving.kill();
    refused(&before, "after.log");
    let log = place.path("after.log").display().to_string();
    let config = place.path("node.toml").display().to_string();
    let forgotten = run(&["forget", &log, "--lose-data", "--hosts-unmounted", "--config", &config]);
    assert!(forgotten.status.success(), "{}", stderr(&forgotten));
    for file in ["the.nvram", "the.tier"] {
        std::fs::remove_file(place.path(file)).expect("it was of that log");
    }
    let serving = place.serve("node", &before);
    connect(serving.address, GATEWAY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_another_volume_is_refused_with_both_names() {
    let place = Place::new();
    let (far, near) = pair(&place, "");
    drop(near);
    let other = Place::new();
    let text = node(other.folder.path(), 0)
        .replace("[[target.unit]]\n", "[[target.unit]]\nserial = 'OTHER'\n");
    let stranger = other.serve("node", &text);
    let text = gateway(place.folder.path(), stranger.address, "");
    let error = place.try_serve("gateway", &text).err().expect("refused");
    assert!(error.contains("exit status: 1"), "{error}");
    assert_eq!(error.matches("naa.").count(), 2, "both are named: {error}");
    assert!(error.contains("remedy: name that volume's own log"), "{error}");
    drop(far);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_far_volume_that_shrank_is_refused() {
    let place = Place::new();
    let (mut far, near) = pair(&place, "");
    let address = far.address;
    drop(near);
    far.kill();
    give_up(&place, "node", "node.img");
    let text = node(place.folder.path(), address.port()).replace("64MiB", "63MiB");
    let _far = place.serve("node", &text);
    let text = gateway(place.folder.path(), address, "");
    let error = place.try_serve("gateway", &text).err().expect("refused");
    assert!(error.contains("131072 blocks") && error.contains("129024"), "{error}");
    assert!(error.contains("remedy: give the volume its former size back"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_refused_until_its_loss_is_accepted() {
    let place = Place::new();
    let (mut far, near) = pair(&place, "");
    let address = far.address;
    let volume = connect(near.address, GATEWAY).await;
    far.kill();
    for block in 0..40 {
        write(&*volume, block, 1).await.expect("taken");
    }
    drop(near);
    // Flip one bit in the middle of the written data; blocks 0 and 1 are superblocks.
    let path = place.path("gateway.log");
    let mut log = std::fs::read(&path).expect("a log");
    log[20 * 4096 + 100] ^= 1;
    std::fs::write(&path, log).expect("written");
    let text = gateway(place.folder.path(), address, "");
    let config = place.write("gateway", &text);
    let check = run(&["check", "--config", config.to_str().expect("plain")]);
    assert_eq!(check.status.code(), Some(1), "{}", stderr(&check));
    let error = place.try_serve("gateway", &text).err().expect("refused");
    assert!(error.contains("acknowledged data is missing"), "{error}");
    assert!(error.contains("accept_loss = true"), "{error}");
    let _far = place.serve("node", &node(place.folder.path(), address.port()));
    let near = place.serve("gateway", &gateway(place.folder.path(), address, ACCEPTS_LOSS));
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 0).await.expect("what was before the damage"), content(0, 1));
}

#[test]
fn a_log_that_is_too_small_is_refused_by_its_setting() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let text = gateway(place.folder.path(), far.address, "").replace("32MiB", "1MiB");
    let error = place.try_serve("gateway", &text).err().expect("refused");
    assert!(error.contains("exit status: 2"), "{error}");
    assert!(error.contains("log_size: 1MiB is not between 8MiB"), "{error}");
}
