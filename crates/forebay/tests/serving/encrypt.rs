//! Encrypted volumes in the program: the bytes on the disk, the key that opens them, and how they are erased.

use std::{net::SocketAddr, time::Duration};

use initiator::{RemoteSession, Settings};
use iscsi::session::initiator::DataPhase;
use scsi::{BlockCommand, Command, Sanitize, SanitizeAction};
use support::{Place, Serving, connect, gateway, node, run, stderr};
use volume::{Durability, Extent, Lba, Volume};

use crate::support;

const NODE: &str = "iqn.2026-11.test:node";
const LINE: &[u8] = b"the only copy of it ";

fn keys(place: &Place, secret: &str, key: &str) {
    let path = |name: &str| place.path(name).to_str().expect("a plain path").to_owned();
    let (secret, key) = (path(secret), path(key));
    let made = run(&["secret", &secret, "--characters", "64"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let made = run(&["key", &key, "--secret-file", &secret]);
    assert!(made.status.success(), "{}", stderr(&made));
}

fn settings(key: &str, secret: &str) -> String {
    format!(
        r#"
listen = ["127.0.0.1:0"]
[[target]]
name = "{NODE}"
[[target.unit]]
stack = [
    {{ file = {{ path = "disk.img", size = "4MiB" }} }},
    {{ encrypt = {{ key = "{key}", secret_file = "{secret}" }} }},
]
"#
    )
}

fn serve(place: &Place) -> Serving {
    place.serve("node", &settings("volume.key", "volume.secret"))
}

async fn session(address: SocketAddr) -> RemoteSession {
    let mut settings = Settings::new(address.to_string(), NODE, 0);
    settings.give_up_after = Duration::from_secs(5);
    RemoteSession::open(settings).await.expect("a login")
}

async fn read(address: SocketAddr) -> Vec<u8> {
    let session = session(address).await;
    let done = session.execute(Command::read(8, 8).encode(), DataPhase::In(4096)).await;
    done.expect("read").data_in.concat()
}

fn text() -> Vec<u8> {
    LINE.iter().copied().cycle().take(4096).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_disk_is_unreadable_without_its_key_and_lost_when_the_key_is_erased() {
    let place = Place::new();
    keys(&place, "volume.secret", "volume.key");
    let mut serving = serve(&place);
    let host = session(serving.address).await;
    let write = Command::write(8, 8, true).encode();
    host.execute(write, DataPhase::Out(text().into())).await.expect("written");
    host.close().await;
    assert_eq!(read(serving.address).await, text());
    let disk = std::fs::read(place.path("disk.img")).expect("there");
    assert!(disk[4096..8192].iter().any(|byte| *byte != 0));
    assert!(!disk.windows(LINE.len()).any(|part| part == LINE));
    serving.kill();

    let mut serving = serve(&place);
    assert_eq!(read(serving.address).await, text(), "after a restart");
    let old_key = std::fs::read(place.path("volume.key")).expect("there");
    let host = session(serving.address).await;
    let erase = Command::Block(BlockCommand::Sanitize(Sanitize {
        action: SanitizeAction::CryptographicErase,
        immediate: false,
        unrestricted_exit: false,
        parameter_list_length: 0,
    }));
    host.execute(erase.encode(), DataPhase::None).await.expect("erased");
    host.close().await;
    let is_gone = |found: Vec<u8>| found.chunks(16).zip(text().chunks(16)).all(|(a, b)| a != b);
    assert!(is_gone(read(serving.address).await));
    assert_ne!(std::fs::read(place.path("volume.key")).expect("there"), old_key);
    serving.kill();
    assert!(is_gone(read(serve(&place).address).await), "after a restart");
}

#[test]
fn a_key_or_secret_that_does_not_open_a_volume_is_named() {
    let place = Place::new();
    keys(&place, "volume.secret", "volume.key");
    keys(&place, "other.secret", "other.key");
    for (key, secret, message) in [
        ("volume.key", "other.secret", "the secret does not unlock"),
        ("gone.key", "volume.secret", "cannot read the volume's key"),
        ("volume.secret", "volume.secret", "is not a key file, or is damaged"),
    ] {
        let refused = place.try_serve("node", &settings(key, secret)).err().expect("refused");
        assert!(refused.contains(message), "{refused}");
        assert!(refused.contains("remedy: "), "{refused}");
    }
    let path = place.write("check.toml", &settings("volume.key", "other.secret"));
    let checked = run(&["check", "--config", path.to_str().expect("a plain path")]);
    let told = String::from_utf8_lossy(&checked.stdout);
    assert!(told.contains("the secret does not unlock"), "{told}");
    // A key file is never overwritten by a new key.
    let path = |name: &str| place.path(name).to_str().expect("a plain path").to_owned();
    let again = run(&["key", &path("volume.key"), "--secret-file", &path("volume.secret")]);
    assert!(stderr(&again).contains("name another file"), "{}", stderr(&again));
    std::fs::write(place.path("short.secret"), "sixteen letters.").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(place.path("short.secret"), mode).expect("done");
    let short = run(&["key", &path("new.key"), "--secret-file", &path("short.secret")]);
    assert!(stderr(&short).contains("fewer than 32 characters"), "{}", stderr(&short));
}

const GATEWAY: &str = "iqn.2026-11.test:gateway";

fn log_settings(place: &Place, far: SocketAddr, key: &str, secret: &str) -> String {
    let more = format!(
        "log_key = '{key}'\nlog_secret_file = '{secret}'\nnvram = 'nvram'\nreport = 'immediate'"
    );
    gateway(place.folder.path(), far, &more)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_log_is_unreadable_without_its_key_and_complete_with_it() {
    let place = Place::new();
    keys(&place, "volume.secret", "volume.key");
    keys(&place, "other.secret", "other.key");
    let mut far = place.serve("far", &node(place.folder.path(), 0));
    let settings = log_settings(&place, far.address, "volume.key", "volume.secret");
    let mut near = place.serve("near", &settings);
    let host = connect(near.address, GATEWAY).await;
    let first = Extent { lba: Lba(8), blocks: 8 };
    host.read(first).await.expect("the node answers");
    // Without its node, the gateway can keep new data only in the log.
    far.kill();
    host.write(first.lba, text().into(), Durability::Stable).await.expect("written");
    drop(host);
    near.kill();
    for name in ["gateway.log", "nvram"] {
        let bytes = std::fs::read(place.path(name)).expect("there");
        assert!(!bytes.windows(LINE.len()).any(|part| part == LINE), "in clear in {name}");
    }
    let checked = run(&["check", "--config", place.path("near.toml").to_str().expect("plain")]);
    let told = String::from_utf8_lossy(&checked.stdout);
    assert!(told.contains("and is encrypted"), "{told}");
    for settings in [
        log_settings(&place, far.address, "other.key", "other.secret"),
        gateway(place.folder.path(), far.address, "nvram = 'nvram'"),
    ] {
        let refused = place.try_serve("near", &settings).err().expect("refused");
        assert!(refused.contains("encrypted") && refused.contains("log_key"), "{refused}");
    }
    let near = place.serve("near", &settings);
    let host = connect(near.address, GATEWAY).await;
    let found = host.read(first).await.expect("read").into_bytes();
    assert_eq!(found.as_ref(), text());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_log_is_mirrored_exported_and_adopted_with_its_key_alone() {
    let place = Place::new();
    keys(&place, "volume.secret", "volume.key");
    let path = |name: &str| place.path(name).display().to_string();
    let keeping = format!("state = '{}'\n{}", path("state"), node(place.folder.path(), 0));
    let far = place.serve("far", &keeping);
    let key = "log_key = 'volume.key'\nlog_secret_file = 'volume.secret'\ndestage_idle = '30s'\n\
               dirty_age = '1h'\ndestage_threshold = 0.9";
    let mirrored = format!("{key}\nlog_mirror = '{}'", path("second.log"));
    let mut near = place.serve("near", &gateway(place.folder.path(), far.address, &mirrored));
    let first = Extent { lba: Lba(8), blocks: 8 };
    let host = connect(near.address, GATEWAY).await;
    host.write(first.lba, text().into(), Durability::Stable).await.expect("written");
    drop(host);
    near.kill();
    for name in ["gateway.log", "second.log"] {
        let bytes = std::fs::read(place.path(name)).expect("there");
        assert!(!bytes.windows(LINE.len()).any(|part| part == LINE), "in clear in {name}");
    }
    // The remaining leg has all data, readable with the key.
    std::fs::remove_file(place.path("gateway.log")).expect("removed");
    let degraded = format!("log_degraded = true\nlog_mirror = '{}'", path("second.log"));
    let without = gateway(place.folder.path(), far.address, &degraded);
    let refused = place.try_serve("near", &without).err().expect("it has no key");
    assert!(refused.contains("encrypted"), "{refused}");
    let with = gateway(place.folder.path(), far.address, &format!("{key}\n{degraded}"));
    let near = place.serve("near", &with);
    let host = connect(near.address, GATEWAY).await;
    assert_eq!(host.read(first).await.expect("read").into_bytes().as_ref(), text());
    drop(host);

    let near_settings = path("near.toml");
    let told =
        run(&["gateway", "export", GATEWAY, "--config", &near_settings, "--to", &path("moved")]);
    assert!(told.status.success(), "{}", stderr(&told));
    assert!(near.terminate().0.success());
    let moved = std::fs::read_to_string(place.path("moved")).expect("settings");
    let name = "initiator_name = 'iqn.2026-11.test:other'\nlisten = ['127.0.0.1:0']\n";
    let other = place.write("other", &format!("{name}{moved}").replace("log_key", "#log_key"));
    let adopt = |config: &std::path::Path| {
        let config = config.display().to_string();
        run(&["gateway", "adopt", GATEWAY, "--config", &config])
    };
    let told = adopt(&other);
    assert!(!told.status.success());
    let told = stderr(&told);
    assert!(told.contains("encrypted") || told.contains("log_secret_file"), "{told}");
    let text_of_it = format!("{name}{moved}");
    let told = adopt(&place.write("other", &text_of_it));
    assert!(told.status.success(), "{}", stderr(&told));
    let later = place.serve("other", &text_of_it);
    let host = connect(later.address, GATEWAY).await;
    assert_eq!(host.read(first).await.expect("read").into_bytes().as_ref(), text());
}
