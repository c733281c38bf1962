//! Tests a pair of gateways that acknowledges writes when they are in the NVRAMs of both.

use crate::{
    scene::{GATEWAY, Scene, pair, settings},
    support::{Place, eventually, forebay, run, stderr},
};

const IMMEDIATE: &str = "report = 'immediate'\nnvram = 'NAME.nvram'";

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_nvram_file_was_lost_serves_nothing_until_its_partner_is_back() {
    let mut scene = Scene::new(Place::new(), IMMEDIATE).await;
    assert_eq!(pair(&scene.serving[0])["nvram"]["is_used"], true);
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    (0..2).for_each(|index| scene.serving[index].kill());
    std::fs::remove_file(scene.place.path("a.nvram")).expect("removed");
    scene.start(0);
    scene.until_refused(0, &["lacks writes", "NVRAM"]).await;
    assert!(scene.log_in(0).await.is_err(), "it serves");
    scene.start(1);
    let is_active = |scene: &Scene| (0..2).find(|index| scene.role(*index) == "active");
    eventually("one serves, and both have everything", || is_active(&scene).is_some()).await;
    let active = is_active(&scene).expect("one serves");
    let host = scene.host(active).await;
    scene.check(&host, 0..20, 1).await;
    // The gateway that had lost its NVRAM must have all writes now.
    scene.write(&host, 0..10, 2).await;
    scene.serving[active].kill();
    scene.until(1 - active, "alone").await;
    let host = scene.host(1 - active).await;
    scene.check(&host, 0..10, 2).await;
    scene.check(&host, 10..20, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partner_that_was_killed_needs_its_nvram_and_one_stopped_cleanly_does_not() {
    let mut scene = Scene::new(Place::new(), IMMEDIATE).await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    scene.serving[1].kill();
    let text = |more: &str| settings(&scene.place, scene.node.address, scene.members, 1, more);
    let without = text("");
    let refused = scene.place.try_serve("b", &without).err().expect("it does not start");
    assert!(refused.contains("NVRAM") && refused.contains("nvram"), "{refused}");
    let checked = run(&["check", "--config", &scene.place.path("b.toml").display().to_string()]);
    let told = String::from_utf8_lossy(&checked.stdout).into_owned() + &stderr(&checked);
    assert!(!checked.status.success() && told.contains("NVRAM"), "{told}");

    scene.start(1);
    scene.until(0, "active").await;
    drop(host);
    let Scene { place, node: _node, serving: [_active, standby], .. } = scene;
    assert!(standby.terminate().0.success(), "it puts everything on its disk");
    let started = place.try_serve("b", &without);
    assert!(started.is_ok(), "{:?}", started.err());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_nvram_file_is_removed_in_use_writes_wait_for_the_disk_and_are_kept() {
    let mut scene = Scene::new(Place::new(), IMMEDIATE).await;
    let host = scene.host(0).await;
    scene.write(&host, 0..10, 1).await;
    std::fs::remove_file(scene.place.path("a.nvram")).expect("removed");
    let is_noticed = || pair(&scene.serving[0])["nvram"]["is_used"] == false;
    eventually("the loss is noticed", is_noticed).await;
    scene.write(&host, 5..20, 2).await;
    // Kill the partner, so that no gateway takes over. The gateway that lost its NVRAM then recovers every write from
    // its disk.
    scene.serving[1].kill();
    scene.until(0, "alone").await;
    scene.serving[0].kill();
    scene.start(0);
    scene.until(0, "alone").await;
    let host = scene.host(0).await;
    scene.check(&host, 0..5, 1).await;
    scene.check(&host, 5..20, 2).await;
}

/// The standby gateway is restarted before `dead_after` has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_restarted_at_once_has_its_mirror_leg_filled_again() {
    let mut scene = Scene::new(Place::new(), IMMEDIATE).await;
    let host = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    scene.serving[1].kill();
    scene.start(1);
    scene.write(&host, 0..20, 2).await;
    scene.until(0, "active").await;
    let told = forebay()
        .args(["gateway", "takeover", GATEWAY, "--control"])
        .arg(&scene.serving[0].control)
        .output()
        .expect("the binary runs");
    assert!(told.status.success(), "{}", stderr(&told));
    scene.until(1, "active").await;
    let host = scene.host(1).await;
    scene.check(&host, 0..20, 2).await;
}
