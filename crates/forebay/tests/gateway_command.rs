//! `forebay gateway`: commands to a running cache.

mod support;

use std::time::Duration;

use support::{
    Place, Serving, connect, content, eventually, forebay, gateway, node, read, stderr, write,
};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

fn pair(place: &Place, more: &str) -> (Serving, Serving) {
    let far = place.serve("node", &node(place.folder.path(), 0));
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, more));
    (far, near)
}

fn tell(near: &Serving, arguments: &[&str]) -> Result<String, String> {
    let output = forebay()
        .arg("gateway")
        .args(arguments)
        .arg("--control")
        .arg(&near.control)
        .output()
        .expect("the binary runs");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("text"))
    } else {
        Err(stderr(&output))
    }
}

fn json(text: Result<String, String>) -> serde_json::Value {
    serde_json::from_str(&text.expect("it was done")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_lasts_over_a_reload_and_a_drain_ends_with_nothing_dirty() {
    let place = Place::new();
    let (far, near) = pair(&place, "");
    let paused = json(tell(&near, &["pause", GATEWAY, "--json"]));
    let since = paused["paused_since"].as_str().expect("a time").to_owned();
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..100 {
        write(&*volume, block, 1).await.expect("written");
    }
    let config = place.path("gateway.toml");
    let text = std::fs::read_to_string(&config).expect("settings");
    std::fs::write(&config, text + "destage_rate = \"1GiB\"\n").expect("written");
    let reloaded = forebay().args(["reload", "--config"]).arg(&config).output();
    let reloaded = String::from_utf8(reloaded.expect("it runs").stdout).expect("text");
    assert!(reloaded.contains("its destage rate"), "{reloaded}");
    assert_eq!(near.figure("cache", "destage_rate_limit_bytes"), 1 << 30);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(near.figure("cache", "dirty_bytes"), 100 * 4096);
    let refused = tell(&near, &["drain", GATEWAY]).expect_err("it is paused");
    assert!(refused.contains("destage is paused") && refused.contains("resume"), "{refused}");
    let still = json(tell(&near, &["pause", GATEWAY, "--json"]));
    assert_eq!(&still["paused_since"].as_str().expect("a time")[..16], &since[..16]);
    assert!(tell(&near, &["resume", GATEWAY]).is_ok());
    let drained = json(tell(&near, &["drain", GATEWAY, "--json"]));
    assert_eq!((&drained["dirty_bytes"], &drained["done"]), (&0.into(), &true.into()));
    let far = connect(far.address, NODE).await;
    assert_eq!(read(&*far, 99).await.expect("read"), content(99, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_set_by_command_holds_until_the_settings_apply_again() {
    let place = Place::new();
    let (_far, near) =
        pair(&place, "destage_rates = [{ from = \"00:00\", to = \"24:00\", rate = 0 }]");
    assert_eq!(near.figure("cache", "destage_rate_limit_bytes"), 0);
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("written");
    }
    assert!(tell(&near, &["flush", GATEWAY]).expect_err("nothing may go").contains("destage is 0"));
    let slow = json(tell(&near, &["rate", GATEWAY, "8KiB", "--json"]));
    assert_eq!(slow["rate_limit"], 8192);
    let late =
        tell(&near, &["flush", GATEWAY, "--timeout", "100ms"]).expect_err("it takes half a minute");
    assert!(late.contains("is not done") && late.contains("unlimited"), "{late}");
    assert!(tell(&near, &["rate", GATEWAY, "unlimited"]).is_ok());
    let flushed = json(tell(&near, &["flush", GATEWAY, "--json"]));
    assert_eq!(flushed["done"], true);
    eventually("clean", || near.figure("cache", "dirty_bytes") == 0).await;
    assert_eq!(json(tell(&near, &["rate", GATEWAY, "settings", "--json"]))["rate_limit"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_command_for_a_unit_without_a_cache_is_refused() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    assert!(tell(&far, &["pause", NODE]).expect_err("no cache").contains("has no cache"));
    assert!(
        tell(&far, &["pause", "iqn.x:y"]).expect_err("no target").contains("there is no LUN 0")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_leg_of_a_log_is_replaced_and_can_serve_alone_afterwards() {
    let place = Place::new();
    let mirrored = format!("log_mirror = \"{}\"\n", place.path("second.log").display());
    let (far, mut near) = pair(&place, &mirrored);
    assert!(tell(&near, &["pause", GATEWAY]).is_ok());
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..50 {
        write(&*volume, block, 1).await.expect("written");
    }
    let halves = |near: &Serving| {
        let status = near.status();
        let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
        let cache = layers.into_iter().find(|layer| layer["layer"] == "cache").expect("one");
        cache["figures"]["log_halves"].to_string()
    };
    let both = r#"["in sync","in sync"]"#;
    assert_eq!(halves(&near), both);
    assert!(
        tell(&near, &["renew", GATEWAY, "3"]).expect_err("there are two").contains("neither 1")
    );

    let sizes = || {
        ["gateway.log", "second.log"]
            .map(|name| std::fs::metadata(place.path(name)).expect("it is there").len() >> 20)
    };
    let grown = json(tell(&near, &["log-resize", GATEWAY, "64MiB", "--json"]));
    assert_eq!((&grown["done"], &grown["log_bytes"]), (&true.into(), &((64 << 20) - 8192).into()));
    assert_eq!(sizes(), [64, 64]);
    assert!(tell(&near, &["resume", GATEWAY]).is_ok());
    let shrunk = json(tell(&near, &["log-resize", GATEWAY, "48MiB", "--json"]));
    assert_eq!(shrunk["done"], true);
    assert_eq!(sizes(), [48, 48]);
    assert!(tell(&near, &["pause", GATEWAY]).is_ok());
    for block in 0..50 {
        write(&*volume, block, 1).await.expect("written");
    }

    std::fs::remove_file(place.path("gateway.log")).expect("removed");
    // `renew` creates the leg with the present size of the other leg, regardless of the settings.
    let renewed = tell(&near, &["renew", GATEWAY, "1"]);
    assert!(renewed.is_ok(), "{renewed:?}");
    for block in 50..100 {
        write(&*volume, block, 1).await.expect("written");
    }
    eventually("filled", || halves(&near) == both).await;
    drop(volume);
    near.kill();
    drop(near);

    // Only the renewed leg is left. It has no record that it holds all data, so it is served only with `log_degraded`.
    std::fs::remove_file(place.path("second.log")).expect("removed");
    let alone = |degraded: &str| {
        gateway(place.folder.path(), far.address, &format!("{mirrored}{degraded}"))
    };
    let refused = place.try_serve("gateway", &alone("")).err().expect("the other may be newer");
    assert!(refused.contains("log_degraded"), "{refused}");
    let near = place.serve("gateway", &alone("log_degraded = true"));
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..100 {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
    }
    eventually("filled", || halves(&near) == both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_grows_and_shrinks_while_it_is_in_use_and_keeps_its_size() {
    let place = Place::new();
    let (far, mut near) = pair(&place, "");
    let log = place.path("gateway.log");
    let size = || std::fs::metadata(&log).expect("it is there").len();
    let volume = connect(near.address, GATEWAY).await;
    assert!(tell(&near, &["pause", GATEWAY]).is_ok());
    for block in 0..2000 {
        write(&*volume, block, 1).await.expect("written");
    }
    let grown = json(tell(&near, &["log-resize", GATEWAY, "64MiB", "--json"]));
    assert_eq!((&grown["done"], &grown["log_bytes"]), (&true.into(), &(64 << 20).into()));
    assert_eq!(size(), 64 << 20);
    let refused = tell(&near, &["log-resize", GATEWAY, "1MiB"]).expect_err("too small");
    assert!(refused.contains("is not between 8MiB and"), "{refused}");
    assert_eq!(size(), 64 << 20);
    let refused = tell(&near, &["log-resize", GATEWAY, "16MiB"]).expect_err("it is paused");
    assert!(refused.contains("destage is paused"), "{refused}");
    write(&*volume, 7, 2).await.expect("written");
    drop(volume);
    near.kill();

    // Start with settings that still have the old `log_size` of 32 MiB: the log keeps its size of 64 MiB.
    let text = gateway(place.folder.path(), far.address, "");
    let near = place.serve("gateway", &text);
    assert_eq!(size(), 64 << 20);
    let volume = connect(near.address, GATEWAY).await;
    let shrunk = json(tell(&near, &["log-resize", GATEWAY, "16MiB", "--json"]));
    assert_eq!((&shrunk["done"], &shrunk["log_bytes"]), (&true.into(), &(16 << 20).into()));
    assert_eq!(size(), 16 << 20);
    for (block, version) in [(0, 1), (7, 2), (1999, 1)] {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, version));
    }
}

/// A log allocates all its space at the start, so a file system that becomes full later has no effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_under_a_log_is_reported_at_the_start_and_harmless_later() {
    if !is_mountable() {
        eprintln!("left out: it needs the right to mount a tmpfs in a name space of its own");
        return;
    }
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("made");
    let nvram = format!(
        "report = 'immediate'\nlog_direct = false\nnvram = '{}'",
        disk.join("nv").display()
    );
    let text = gateway(place.folder.path(), far.address, &nvram)
        .replace("gateway.log", "disk/gateway.log");
    // First there is no space for the log, then for the log but not for all of the NVRAM, then for both and nothing
    // more.
    let script = r#"
disk=$1; told=$2; shift 2
mount -t tmpfs -o size=20m tmpfs "$disk" || exit 3
"$@" 2>"$told.log"; [ $? = 1 ] || exit 4
mount -o remount,size=33m "$disk" || exit 3
"$@" 2>"$told.nvram"; [ $? = 1 ] || exit 5
mount -o remount,size=35m "$disk" || exit 3
exec "$@"
"#;
    let mut command = std::process::Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(&disk);
    command.arg(place.path("told")).arg(forebay().get_program());
    let mut near = place.try_serve_by(command, "gateway", &text).expect("in the end it has room");
    for what in ["log", "nvram"] {
        let told = std::fs::read_to_string(place.path(&format!("told.{what}"))).expect("told");
        assert!(told.contains("bytes more, and its file system has"), "{what}: {told}");
    }
    let volume = connect(near.address, GATEWAY).await;
    // Write more than the log can hold.
    for turn in 0..10_000 {
        write(&*volume, turn % 2000, turn / 2000 + 1).await.expect("written");
    }
    let refused = tell(&near, &["log-resize", GATEWAY, "64MiB"]).expect_err("there is no room");
    assert!(refused.contains("the log cannot grow"), "{refused}");
    // Drain the log, so that it has space for all writes of this test while destage is paused.
    tell(&near, &["drain", GATEWAY]).expect("everything goes down");
    let size = json(tell(&near, &["pause", GATEWAY, "--json"]))["log_bytes"].clone();
    assert_eq!(size, 32 << 20);
    for block in 0..2000 {
        write(&*volume, block, 9).await.expect("written");
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, 9));
    }
    near.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_space_logs_it_once_and_shows_the_free_space() {
    if !is_mountable() {
        eprintln!("left out: it needs the right to mount a tmpfs in a name space of its own");
        return;
    }
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("made");
    let text = node(place.folder.path(), 0).replace("node.img", "disk/node.img");
    assert!(text.contains("disk/node.img"), "{text}");
    let script = r#"
disk=$1; told=$2; shift 2
mount -t tmpfs -o size=2m tmpfs "$disk" || exit 3
exec "$@" 2>"$told"
"#;
    let mut command = std::process::Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(&disk);
    command.arg(place.path("told")).arg(forebay().get_program());
    let far = place.try_serve_by(command, "node", &text).expect("there is room for a sparse file");
    let volume = connect(far.address, NODE).await;
    let mut refused = 0;
    for block in 0..1000 {
        match write(&*volume, block, 1).await {
            Ok(()) => assert_eq!(refused, 0, "there is no room"),
            Err(volume::Error::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused == 5 {
            break;
        }
    }
    assert_eq!(refused, 5);
    let told = || std::fs::read_to_string(place.path("told")).expect("told");
    eventually("the event", || told().contains("no space left for the file of a volume")).await;
    // The file system is checked once a second. Writes that are refused in the same full state cause no further event.
    for _ in 0..20 {
        assert!(matches!(write(&*volume, 999, 1).await, Err(volume::Error::NoSpace)));
        refused += 1;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(told().matches("no space left for the file").count(), 1, "{}", told());
    let figure = |name| far.figure("file", name);
    assert_eq!((figure("refused_no_space"), figure("free_bytes")), (refused, 0));
    assert!((1 << 20..=2 << 20).contains(&figure("allocated_bytes")));
}

fn is_mountable() -> bool {
    let tried = std::process::Command::new("unshare")
        .args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .output();
    tried.is_ok_and(|output| output.status.success())
}
