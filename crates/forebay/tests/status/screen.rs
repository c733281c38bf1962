//! `forebay status` for people and for monitors: one screen, everything, and one line with an exit code.

use std::process::Output;

use volume::{Data, Durability, Lba, Volume};

use crate::{
    scene::Scene,
    support::{Place, Serving, connect, eventually, forebay, gateway, node, run, stderr, write},
};

const GATEWAY: &str = "iqn.2026-11.test:gateway";

fn status(serving: &Serving, options: &[&str]) -> Output {
    let mut command = forebay();
    command.arg("status").args(options).arg("--control").arg(&serving.control);
    command.output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Returns the line that `forebay status --check` prints, and its exit code.
fn check(serving: &Serving) -> (String, Option<i32>) {
    let output = status(serving, &["--check"]);
    let line = String::from_utf8(output.stdout).expect("text");
    assert_eq!(line.lines().count(), 1, "{line}");
    (line, output.status.code())
}

/// Starts a node, and a gateway over it with the cache settings `more`.
fn site(place: &Place, more: &str) -> (Serving, Serving) {
    let far = place.serve("node", &node(place.folder.path(), 0));
    let text = gateway(place.folder.path(), far.address, more).replace("32MiB", "8MiB");
    let near = place.serve("gateway", &text);
    (far, near)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_screen_has_a_line_for_each_volume_and_totals_include_ended_sessions() {
    let place = Place::new();
    let (_far, near) = site(&place, "");
    let host = connect(near.address, GATEWAY).await;
    for block in 0..8 {
        write(&*host, block, 1).await.expect("written");
    }
    host.close().await;
    drop(host);
    let is_closed = || near.status()["sessions"].as_array().map(Vec::len) == Some(0);
    eventually("the end of the session", is_closed).await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let screen = text(&status(&near, &[]));
    let volume = screen.lines().find(|line| line.contains(GATEWAY)).expect("its line");
    let words: Vec<_> = volume.split_whitespace().collect();
    assert_eq!(words[..4], ["iqn.2026-11.test:gateway/0", "ok", "0", "B"], "{screen}");
    assert!(words.contains(&"up"), "{screen}");
    let totals = screen.lines().last().expect("a line");
    assert!(totals.starts_with("0 sessions open; since the start: 1 session, "), "{screen}");
    assert!(totals.contains("32.0 KiB written"), "{screen}");
    assert!(screen.lines().count() < 10, "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_long_form_has_every_figure_of_the_json() {
    let place = Place::new();
    let (_far, near) = site(&place, "");
    let long = text(&status(&near, &["--all"]));
    let json = near.status();
    let layers = json["targets"][0]["units"][0]["layers"].as_array().expect("layers");
    for layer in layers {
        for name in layer["figures"].as_object().expect("figures").keys() {
            let row = format!(" {} ", name.replace('_', " "));
            assert!(long.contains(&row), "{row} in {long}");
        }
    }
    for name in json["counters"].as_object().expect("counters").keys() {
        assert!(long.contains(&name.replace('_', " ")), "{name} in {long}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_learns_that_all_is_well_and_that_the_far_volume_is_unreachable() {
    let place = Place::new();
    let (mut far, near) = site(&place, "");
    let (line, code) = check(&near);
    assert_eq!(code, Some(0), "{line}");
    assert_eq!(line, "OK: 1 volume served, 0 B not on the far volume yet\n");
    assert_eq!(check(&far), ("OK: 1 volume served\n".to_owned(), Some(0)));
    far.kill();
    eventually("a warning", || check(&near).1 == Some(1)).await;
    let (line, _) = check(&near);
    assert!(line.starts_with(&format!("WARNING: {GATEWAY}/0: ")), "{line}");
    let screen = text(&status(&near, &[]));
    assert!(screen.contains("warning: ") && screen.contains(" down "), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_learns_that_the_log_is_nearly_full() {
    let place = Place::new();
    let (_far, near) = site(&place, "busy_after = '0s'");
    let control = near.control.to_str().expect("a plain path");
    let paused = run(&["gateway", "pause", GATEWAY, "--control", control]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let (line, code) = check(&near);
    assert!(code == Some(1) && line.contains("destage is paused"), "{line}");
    let host = connect(near.address, GATEWAY).await;
    for piece in 0.. {
        let data = Data::from(vec![7; 64 << 10]);
        let written = host.write(Lba(piece * 128), data, Durability::Volatile).await;
        if written.is_err() || near.figure("cache", "log_fill_percent") >= 95 {
            break;
        }
    }
    let (line, code) = check(&near);
    assert!(code == Some(2) && line.starts_with("CRITICAL: "), "{line}");
    assert!(line.contains("the log is "), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_standby_gateway_of_a_pair_is_fine_as_long_as_its_partner_serves() {
    let mut scene = Scene::new(Place::new(), "").await;
    let (line, code) = check(&scene.serving[1]);
    assert_eq!(code, Some(0), "{line}");
    let screen = text(&status(&scene.serving[1], &[]));
    let pair = screen.lines().find(|line| line.contains(GATEWAY)).expect("its line");
    assert!(pair.contains("standby"), "{screen}");
    scene.serving[0].kill();
    scene.until(1, "alone").await;
    let (line, code) = check(&scene.serving[1]);
    assert!(code == Some(1) && line.contains("without its partner"), "{line}");
}

#[test]
fn a_monitor_gets_unknown_if_no_process_runs_or_the_settings_are_wrong() {
    let place = Place::new();
    let control = place.path("unused.sock").display().to_string();
    let wrong = place.write("wrong", "listen = 7\n").display().to_string();
    for (options, words) in [
        (["--control", &control], "UNKNOWN: no process answers on the control socket "),
        (["--config", &wrong], "UNKNOWN: "),
    ] {
        let output = run(&[&["status", "--check"], &options[..]].concat());
        let line = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(3), "{line}");
        assert!(line.starts_with(words) && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn a_command_names_the_default_socket_that_it_tried_and_how_to_name_another() {
    let place = Place::new();
    let output = forebay().arg("status").env("XDG_RUNTIME_DIR", place.folder.path()).output();
    let said = stderr(&output.expect("it runs"));
    let socket = place.path("forebay/control.sock").display().to_string();
    assert!(said.contains(&format!("the default control socket {socket}")), "{said}");
    assert!(said.contains("--config FILE") && said.contains("--control PATH"), "{said}");
}

#[test]
fn forms_of_the_status_exclude_each_other() {
    for options in [["--check", "--json"], ["--check", "--all"], ["--json", "--all"]] {
        let output = run(&[&["status"], &options[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}");
    }
}
