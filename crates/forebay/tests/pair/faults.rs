//! A pair in which a gateway or the node stops in the middle of an operation, is away, or returns in an earlier state.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use volume::{Extent, Lba, Volume};

use crate::{
    scene::{GATEWAY, Scene, pair},
    support::{Place, connect, content, eventually, forebay, read, run, stderr, write},
};

/// Much longer than a takeover takes if the gateway may take over.
const LONG: Duration = Duration::from_secs(5);

/// A process that was stopped, or a machine that was paused, believes that no time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_resumes_after_sigstop_acknowledges_nothing() {
    let scene = Scene::new(Place::new(), "").await;
    let before = scene.host(0).await;
    scene.write(&before, 0..20, 1).await;
    scene.serving[0].signal(Signal::STOP);
    // Writes that are in flight to the stopped gateway, which receives them when it continues.
    let late = [0, 1].map(|block| {
        let host = before.clone();
        tokio::spawn(async move { write(&*host, block, 2).await })
    });
    scene.until(1, "alone").await;
    let after = scene.host(1).await;
    scene.write(&after, 0..20, 3).await;
    let paused = forebay()
        .args(["gateway", "pause", GATEWAY, "--control"])
        .arg(&scene.serving[1].control)
        .output();
    assert!(paused.expect("it runs").status.success());
    // Neither the node nor the stopped gateway has the writes that follow.
    scene.write(&after, 40..41, 3).await;

    scene.serving[0].signal(Signal::CONT);
    let begun = Instant::now();
    let mut refused = 0;
    while begun.elapsed() < LONG {
        for block in 2..20 {
            match tokio::time::timeout(LONG, read(&*before, block)).await {
                Ok(Ok(found)) => assert_eq!(found, content(block, 3), "block {block} is old"),
                Ok(Err(_)) | Err(_) => refused += 1,
            }
        }
        let extent = Extent { lba: Lba(40 * 8), blocks: 8 };
        if let Ok(Ok(told)) =
            tokio::time::timeout(LONG, before.extensions().allocation(extent)).await
        {
            assert!(told.runs().iter().all(|run| run.mapped), "it is skipped");
        }
        assert!(write(&*before, 19, 4).await.is_err(), "two gateways take writes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "it was asked, and said no");
    for late in late {
        assert!(late.await.expect("no panic").is_err(), "acknowledged by who has been replaced");
    }
    scene.until(1, "active").await;
    assert_eq!(scene.role(0), "standby");
    scene.check(&after, 0..20, 3).await;
}

/// When a gateway opens its mirror leg, it ends its partner's session with the leg. Otherwise a write that the partner
/// has sent before could still arrive when the partner uses the leg again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_mirror_leg_ends_when_its_gateway_opens_the_leg() {
    let mut scene = Scene::new(Place::new(), "").await;
    let half = connect(scene.members[1].address, "iqn.2026-11.test:half-b").await;
    let extent = Extent { lba: Lba(0), blocks: 1 };
    half.read(extent).await.expect("it is lent");
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let error = half.read(extent).await.expect_err("it is in use");
    assert!(!matches!(error, volume::Error::ReadOnly), "the session goes on: {error}");
    // A new session gets the error that the leg is in use.
    let half = connect(scene.members[1].address, "iqn.2026-11.test:half-b").await;
    let error = half.read(extent).await.expect_err("it is in use");
    assert!(matches!(error, volume::Error::ReadOnly), "{error}");
}

/// Writes that were in flight to the stopped partner's leg must not arrive after the leg was filled.
#[tokio::test(flavor = "multi_thread")]
async fn a_partner_that_resumes_after_sigstop_is_filled_with_all_data() {
    let mut scene = Scene::new(Place::new(), "").await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    scene.serving[1].signal(Signal::STOP);
    scene.write(&host, 0..20, 2).await;
    assert_eq!(scene.role(0), "alone");
    scene.write(&host, 0..20, 3).await;
    scene.serving[1].signal(Signal::CONT);
    scene.until(0, "active").await;
    scene.write(&host, 0..5, 4).await;
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..5, 4).await;
    scene.check(&host, 5..20, 3).await;
}

/// Regression: while the active gateway was stopping, it continued without its partner, and claimed the volume again
/// after it had released the claim. The node then refused all other readers.
#[tokio::test(flavor = "multi_thread")]
async fn a_pair_that_has_stopped_leaves_no_claim_at_the_node() {
    let scene = Scene::new(Place::new(), "").await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    drop(host);
    let is_sent = || {
        let status = scene.serving[0].status();
        let mut targets = status["targets"].as_array().expect("targets").iter();
        let layers = &targets.find(|target| target["name"] == GATEWAY).expect("the pair's")["units"]
            [0]["layers"];
        let mut layers = layers.as_array().expect("layers").iter();
        layers.find(|layer| layer["layer"] == "cache").expect("a cache")["figures"]["dirty_bytes"]
            == 0
    };
    eventually("destage", is_sent).await;
    let Scene { node, serving: [active, standby], place: _place, .. } = scene;
    assert!(standby.terminate().0.success());
    assert!(active.terminate().0.success());
    let claim = node.status()["targets"][0]["units"][0]["claim"].clone();
    assert_eq!(claim["held"], false, "{claim}");
    let direct = connect(node.address, "iqn.2026-11.test:node").await;
    for block in 0..20 {
        let found = read(&*direct, block).await.expect("the volume is not claimed");
        assert_eq!(found, content(block, 1), "block {block}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_mirror_leg_that_starts_alone_serves_nothing_and_is_filled_later() {
    let mut scene = Scene::new(Place::new(), "").await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    scene.serving[1].kill();
    scene.write(&host, 0..20, 2).await;
    assert_eq!(scene.role(0), "alone");
    scene.serving[0].kill();
    // Both gateways were down. The one whose leg lacks data starts first.
    scene.start(1);
    scene.until_refused(1, &["taken up by iqn.2026-11.test:host-a"]).await;
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        assert_eq!(scene.role(1), "standby");
        assert!(scene.log_in(1).await.is_err(), "it lets hosts in");
    }
    // A takeover by command is refused as well.
    let told = forebay()
        .args(["gateway", "takeover", GATEWAY, "--control"])
        .arg(&scene.serving[1].control)
        .output()
        .expect("the binary runs");
    assert!(stderr(&told).contains("taken up by iqn.2026-11.test:host-a"), "{}", stderr(&told));

    scene.start(0);
    scene.until(0, "active").await;
    let host = scene.host(0).await;
    scene.check(&host, 0..20, 2).await;
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_without_its_node_keeps_serving_but_no_takeover_happens() {
    let mut scene = Scene::new(Place::new(), "").await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    scene.node.kill();
    scene.write(&host, 0..20, 2).await;
    scene.serving[0].kill();
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        // The standby must not admit hosts, because it cannot know whether its partner is alive.
        assert!(scene.log_in(1).await.is_err(), "it lets hosts in");
        assert_eq!(scene.role(1), "standby");
    }
    scene.start_node();
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_node_restored_from_an_older_backup_neither_partner_serves_by_itself() {
    let mut scene = Scene::new(Place::new(), "").await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    let state: Vec<_> = std::fs::read_dir(scene.place.path("state"))
        .expect("state")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "claim"))
        .collect();
    let backup = std::fs::read(&state[0]).expect("read");
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.write(&host, 0..20, 2).await;
    scene.serving[1].kill();
    scene.node.kill();
    std::fs::write(&state[0], backup).expect("written");
    scene.start_node();
    // The gateway with all data notices that the node's record is older, and reports both generations.
    scene.start(1);
    scene.until_refused(1, &["as generation 2", "was generation 4"]).await;
    // By its restored record, the node would admit gateway 0. But gateway 0 was killed before the last writes, so its
    // mirror leg of the log is older than that of gateway 1 and must not be served.
    scene.start(0);
    scene.until_refused(0, &["of epoch 2", "in epoch 3"]).await;
    assert_eq!(scene.role(1), "standby");
    // The operator can decide to serve the unit nevertheless.
    scene.serving[1].kill();
    scene.start_with(1, "accept_loss = true\nhosts_unmounted = true");
    scene.until(1, "active").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_of_an_encrypted_log_needs_its_own_key() {
    let place = Place::new();
    for name in ["log", "other"] {
        let path = |kind: &str| place.path(&format!("{name}.{kind}")).display().to_string();
        let made = run(&["secret", &path("secret"), "--characters", "64"]);
        assert!(made.status.success(), "{}", stderr(&made));
        let made = run(&["key", &path("key"), "--secret-file", &path("secret")]);
        assert!(made.status.success(), "{}", stderr(&made));
    }
    let key = |name: &str| {
        let at = |kind: &str| place.path(&format!("{name}.{kind}")).display().to_string();
        format!("log_key = '{}'\nlog_secret_file = '{}'", at("key"), at("secret"))
    };
    let (right, wrong) = (key("log"), key("other"));
    let mut scene = Scene::new(place, &right).await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    for member in scene.members {
        let log = std::fs::read(scene.place.path(&format!("{}.log", member.name))).expect("read");
        let part = &content(3, 1)[..64];
        assert!(!log.windows(64).any(|found| found == part), "in clear with {}", member.name);
    }
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 1).await;
    scene.write(&host, 0..20, 2).await;
    scene.serving[1].kill();
    // Without the right key the gateway must not serve, and must not change the log.
    scene.start_instead(1, &wrong);
    scene.until_refused(1, &["log_key"]).await;
    scene.serving[1].kill();
    scene.start(1);
    scene.until(1, "alone").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 2).await;
    scene.start(0);
    scene.until(1, "active").await;
    assert_eq!(pair(&scene.serving[0])["role"], "standby");
}

/// Both mirror legs of the log are restored from a copy of the same run, so they agree with each other.
#[tokio::test(flavor = "multi_thread")]
async fn mirror_legs_both_restored_from_a_copy_are_not_served() {
    let mut scene = Scene::new(Place::new(), "dirty_age = '1h'").await;
    let host = scene.host(0).await;
    let logs = ["a", "b"].map(|name| scene.place.path(&format!("{name}.log")));
    scene.write(&host, 0..8, 1).await;
    host.flush().await.expect("flushed");
    let copies = logs.clone().map(|log| std::fs::read(log).expect("a half"));
    scene.write(&host, 0..8, 2).await;
    host.flush().await.expect("flushed");
    for serving in &mut scene.serving {
        serving.kill();
    }
    let newest = logs.clone().map(|log| std::fs::read(log).expect("a half"));
    for (log, copy) in logs.iter().zip(copies) {
        std::fs::write(log, copy).expect("put back");
    }
    scene.start(0);
    scene.start(1);
    scene.until_refused(0, &["older copy"]).await;
    assert!(scene.role(1) != "active", "{}", scene.role(1));
    for serving in &mut scene.serving {
        serving.kill();
    }
    for (log, newest) in logs.iter().zip(newest) {
        std::fs::write(log, newest).expect("put back");
    }
    scene.start(0);
    scene.start(1);
    scene.until(0, "active").await;
    let host = scene.host(0).await;
    scene.check(&host, 0..8, 2).await;
}
