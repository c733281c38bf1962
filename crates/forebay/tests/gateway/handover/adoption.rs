//! Logs that move to another gateway: exported and adopted, or refused because they do not fit or are incomplete.

use initiator::RemoteVolume;
use support::{Place, connect, eventually, node, read, stderr, write};

use super::{
    GATEWAY, KEEPS, NODE, adopt, cache_figure, check_all, copy, drain, export, other_gateway,
    pair_with, refused, succeeded, taken_up, tell, write_all,
};
use crate::support;

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_a_killed_gateway_is_adopted_and_nothing_is_lost() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..200).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    let told = succeeded(&adopt(&place, "b", &text));
    assert!(told.contains("generation 3") && told.contains("800.0 KiB"), "{told}");
    let old = other_gateway(&place, "a", far.address, "");
    let error = place.try_serve("a", &old).err().expect("shut out before the new one serves");
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    let (later, _volume) = taken_up(&place, &text, 0..200).await;
    drain(&later);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..200, 1).await;
    let error = place.try_serve("a", &old).err().expect("and after");
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    // A third gateway cannot adopt another copy of the log, because the second gateway has the claim.
    copy(place.path("a.log"), place.path("c.log"));
    let error = refused(&adopt(&place, "c", &other_gateway(&place, "c", far.address, "")));
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_owner_is_fenced_only_by_a_deliberate_adoption() {
    let place = Place::new();
    let (far, near, volume) = pair_with(&place, KEEPS, 0..20).await;
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    let error = place.try_serve("b", &text).err().expect("somebody is at work");
    assert!(error.contains("iqn.2026-11.test:host-a uses a copy of this log"), "{error}");
    write(&*volume, 3, 1).await.expect("who noticed nothing");

    succeeded(&adopt(&place, "b", &text));
    eventually("the fence", || cache_figure(&near, "claim").contains("host-b")).await;
    let error = write(&*volume, 1, 7).await.expect_err("taken no more");
    assert!(error.to_string().contains("04/03"), "{error}");
    assert!(read(&*volume, 1).await.is_err(), "what it has is older than the volume");
    let later = place.serve("b", &text);
    let volume = connect(later.address, GATEWAY).await;
    write_all(&*volume, 0..20, 2).await;
    drain(&later);
    // The former gateway still holds dirty data, and must not be able to destage it.
    assert_eq!(near.figure("cache", "dirty_bytes"), 20 * 4096);
    let error = refused(&tell(&near.control, &["gateway", "drain", GATEWAY]));
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    assert!(near.terminate().0.success());
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..20, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_log_is_complete_without_its_nvram_and_is_adopted_with_the_printed_settings() {
    let place = Place::new();
    let nvram = format!("{KEEPS}\nreport = 'immediate'\nnvram = '{}'", place.path("nv").display());
    let (far, near, volume) = pair_with(&place, &nvram, 0..100).await;
    succeeded(&export(&place, "a"));
    let error = write(&*volume, 1, 7).await.expect_err("taken no more");
    assert!(error.to_string().contains("04/03"), "{error}");
    // Hosts whose path checkers log in again get the refusal as well.
    let settings = initiator::Settings::new(near.address.to_string(), GATEWAY, 0);
    let login = RemoteVolume::connect(settings).await.err();
    assert!(matches!(login, Some(initiator::Error::NotServed(_))), "{login:?}");
    let other = connect(far.address, NODE).await;
    write(&*other, 1, 7).await.expect_err("the volume stays claimed");
    // The command may be repeated, and a stop does not change the log.
    succeeded(&export(&place, "a"));
    let moved = std::fs::read_to_string(place.path("moved.toml")).expect("settings");
    let before = std::fs::read(place.path("a.log")).expect("the log");
    assert!(near.terminate().0.success());
    assert!(before == std::fs::read(place.path("a.log")).expect("the log"), "it was written to");
    assert!(moved.contains("with 400.0 KiB that the far volume lacks"), "{moved}");
    assert!(moved.contains("serial = "), "{moved}");
    std::fs::rename(place.path("a.log"), place.path("b.log")).expect("moved");

    let text = moved.replace("a.log", "b.log").replace("/nv", "/nv-of-b");
    let text =
        format!("initiator_name = 'iqn.2026-11.test:host-b'\nlisten = ['127.0.0.1:0']\n{text}");
    succeeded(&adopt(&place, "b", &text));
    let (later, _volume) = taken_up(&place, &text, 0..100).await;
    drain(&later);
    check_all(&*other, 0..100, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_stopped_gateway_includes_the_data_in_its_nvram() {
    let place = Place::new();
    let nvram = format!("{KEEPS}\nreport = 'immediate'\nnvram = '{}'", place.path("nv").display());
    let (far, mut near, _volume) = pair_with(&place, &nvram, 0..100).await;
    near.kill();
    copy(place.path("a.log"), place.path("c.log"));
    // The log of a killed gateway that was not exported needs its NVRAM. Without NVRAM in the settings, the message
    // names the missing part.
    let error = refused(&adopt(&place, "c", &other_gateway(&place, "c", far.address, KEEPS)));
    assert!(
        error.contains("acknowledged writes from its NVRAM, which is not configured"),
        "{error}"
    );

    succeeded(&export(&place, "a"));
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    succeeded(&adopt(&place, "b", &text));
    let (_later, _volume) = taken_up(&place, &text, 0..100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_match_or_is_incomplete_is_not_adopted() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..20).await;
    near.kill();
    let text = other_gateway(&place, "b", far.address, "");
    let error = refused(&adopt(&place, "b", &text));
    assert!(error.contains("there is no log at"), "nothing is made: {error}");
    assert!(!place.path("b.log").exists());
    copy(place.path("a.log"), place.path("b.log"));
    // A log that belongs to another volume is refused.
    let other = Place::new();
    let stranger = node(other.folder.path(), 0)
        .replace("[[target.unit]]\n", "[[target.unit]]\nserial = 'OTHER'\n");
    let stranger = other.serve("node", &format!("state = 'state'\n{stranger}"));
    let elsewhere = other_gateway(&place, "b", stranger.address, "");
    let error = refused(&adopt(&place, "b", &elsewhere));
    assert_eq!(error.matches("naa.").count(), 2, "both are named: {error}");
    // A truncated log file is refused.
    let whole = std::fs::read(place.path("b.log")).expect("read");
    std::fs::write(place.path("b.log"), &whole[..whole.len() / 2]).expect("written");
    let error = refused(&adopt(&place, "b", &text.replace("log_size = \"32MiB\"", "")));
    assert!(error.contains("has 8192 blocks"), "{error}");
    // A log of zeros is refused.
    std::fs::write(place.path("b.log"), vec![0; whole.len()]).expect("written");
    let error = refused(&adopt(&place, "b", &text));
    assert!(error.contains("is blank"), "{error}");
    // The refused logs have changed nothing: the right log is adopted. Its own size is used, although the settings have
    // a different one.
    std::fs::write(place.path("b.log"), whole).expect("written");
    succeeded(&adopt(&place, "b", &text.replace("32MiB", "16MiB")));
}

/// The settings of the new gateway decide how it continues. A setting that does not fit the log is refused. In both
/// cases the log keeps its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_adopted_under_other_settings_loses_nothing() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..50).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    for name in ["secret", "key"] {
        let path = place.path(&format!("of-b.{name}")).display().to_string();
        let made = match name {
            "secret" => support::run(&["secret", &path, "--characters", "64"]),
            _ => {
                let secret = place.path("of-b.secret").display().to_string();
                support::run(&["key", &path, "--secret-file", &secret])
            }
        };
        assert!(made.status.success(), "{}", stderr(&made));
    }
    let b = |more: &str| other_gateway(&place, "b", far.address, more);
    let key = format!(
        "log_key = '{}'\nlog_secret_file = '{}'",
        place.path("of-b.key").display(),
        place.path("of-b.secret").display()
    );
    let mirror = format!("log_mirror = '{}'", place.path("b2.log").display());
    for (more, words) in [
        (key.as_str(), "not encrypted"),
        ("share = true", "shared"),
        (mirror.as_str(), "without a mirror"),
    ] {
        let error = refused(&adopt(&place, "b", &b(more)));
        assert!(error.contains(words), "{more}: {error}");
    }
    let nvram = format!("nvram = '{}'\nreport = 'immediate'", place.path("nv-of-b").display());
    let larger = b(&format!("{KEEPS}\n{nvram}"))
        .replace("log_size = \"32MiB\"", "log_size = \"64MiB\"")
        .replace("dram = \"8MiB\"", "dram = \"16MiB\"")
        .replace("nvram_size = \"1MiB\"", "nvram_size = \"2MiB\"");
    succeeded(&adopt(&place, "b", &larger));
    let (mut later, volume) = taken_up(&place, &larger, 0..50).await;
    write_all(&*volume, 50..60, 1).await;
    later.kill();
    // Adopt the log with other settings once more, while some data may be only in the NVRAM.
    let relaxed = b(&format!("order = 'relaxed'\non_log_error = 'write-through'\n{nvram}"))
        .replace("nvram_size = \"1MiB\"", "nvram_size = \"2MiB\"");
    let (later, _volume) = taken_up(&place, &relaxed, 0..60).await;
    drain(&later);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..60, 1).await;
}
