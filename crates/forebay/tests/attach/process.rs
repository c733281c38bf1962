//! Tests the process of `forebay attach`: its errors, `--background` and its stderr.

use std::{fs, io::Read};

use attached::{attach, detach, detached, is_possible, try_attach};
use rustix::process::Signal;
use support::{Place, forebay, raw::full_pipe, run, start_with, stderr};

use crate::{TARGET, attached, settings, support};

#[test]
fn a_failed_authentication_is_reported_with_the_options_of_the_command_line() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let secret = |name: &str| {
        let path = place.path(name).display().to_string();
        assert!(support::run(&["secret", &path]).status.success());
        path
    };
    let (right, wrong) = (secret("right"), secret("wrong"));
    let text = settings("16MiB").replace("[[target]]", &format!(
        "[[user]]\nname = \"alice\"\nsecret_file = \"{right}\"\n[[target]]\nallow = [ {{ user = \"alice\" }} ]"
    ));
    let node = place.serve("node", &text);
    let url = node.url(TARGET);
    let refused = |more: &[&str]| {
        let error = try_attach(&[&[&*url][..], more].concat()).map(|_| ()).expect_err("refused");
        assert!(!error.contains("`user`") && !error.contains("`url`"), "{error}");
        error
    };
    let error = refused(&["--user", "alice", "--secret-file", &wrong]);
    assert!(error.contains("correct --user, or the secret"), "{error}");
    assert!(error.contains(&format!("is not the one in the file {wrong}")), "{error}");
    let error = refused(&[]);
    assert!(error.contains("authenticate: --user NAME --secret-file FILE"), "{error}");
    detached(attach(&[&url, "--user", "alice", "--secret-file", &right]));
}

#[test]
fn an_attach_in_the_background_returns_when_the_device_exists() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("64MiB"));
    // `run` returns when stdout and stderr are closed: the process that serves in the background must not hold them
    // open.
    let output = run(&["attach", "--background", "--json", &node.url(TARGET)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let attached: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(attached["bytes"], 64 << 20);
    assert_eq!(attached["direct_io"], true);
    // SIGHUP must not end the process in the background, which has no terminal.
    let process = attached["process"].as_i64().expect("a number") as i32;
    let process = rustix::process::Pid::from_raw(process).expect("a process");
    rustix::process::kill_process(process, Signal::HUP).expect("it runs");
    let output = detach(attached["device"].as_str().expect("a device"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("stable"), "it was there: {output:?}");
}

/// Regression: while no program read the events, reads of the device blocked in the kernel, even after SIGKILL.
#[test]
fn a_full_stderr_pipe_does_not_block_the_device() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let node = place.serve("node", &settings("16MiB"));
    let (_reader, writer) = full_pipe();
    // At the level `trace`, every request of the kernel causes an event.
    let mut command = forebay();
    command.args(["attach", &node.url(TARGET), "--log-level", "trace"]);
    let attached = start_with(&mut command, writer.into()).expect("attached");
    let mut device = fs::File::open(&attached.ready).expect("the device");
    let mut first = vec![1; 1 << 20];
    device.read_exact(&mut first).expect("read");
    assert!(first.iter().all(|byte| *byte == 0));
    drop(device);
    detached(attached);
}
