//! Invalid settings and command lines: location, error, remedy, and exit code 2.

use support::{Place, run, stderr};

use crate::support;

/// Returns the exit code and the message of `serve` and `check` for these settings. Both commands must give the
/// same.
fn refusal(text: &str) -> (Option<i32>, String) {
    let place = Place::new();
    let path = place.path("wrong.toml");
    std::fs::write(&path, text).expect("settings are written");
    let name = path.to_str().expect("a plain path");
    let (serve, check) = (run(&["serve", "--config", name]), run(&["check", "--config", name]));
    assert_eq!(stderr(&serve), stderr(&check));
    assert_eq!(serve.status.code(), check.status.code());
    (serve.status.code(), stderr(&serve))
}

#[test]
fn a_wrong_key_is_named_with_line_and_column() {
    let (code, message) = refusal("threads = 1\n\n[iscsi]\nque_depth = 3\n");
    assert_eq!(code, Some(2));
    assert!(message.contains("wrong.toml:4:1: iscsi.que_depth: unknown field"), "{message}");
    assert!(message.contains("remedy: did you mean `queue_depth`?"), "{message}");
}

#[test]
fn a_wrong_value_is_named_with_line_and_column() {
    let (code, message) = refusal("listen = [\"127.0.0.1:1\",\n  \"nowhere\"]\n");
    assert_eq!(code, Some(2));
    assert!(
        message.contains("wrong.toml:2:3: listen[1]: `nowhere` is not an address"),
        "{message}"
    );
    assert!(message.contains("remedy: write an IP address and a port"), "{message}");
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    let (code, message) = refusal("threads = 1\n= 2\n");
    assert_eq!(code, Some(2));
    assert!(message.contains("wrong.toml:2:"), "{message}");
}

#[test]
fn settings_that_are_not_there() {
    let output = run(&["serve", "--config", "/no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/no/such/file.toml: cannot read the settings"));
}

#[test]
fn a_wrong_command_line() {
    for arguments in [
        &["serve"] as &[_],
        &["frobnicate"],
        &["status", "--watch", "2 parsec"],
        &["--log-level", "=", "man"],
        &["ls", "nbd://somewhere"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_example_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../forebay.example.toml");
    let output = run(&["check", "--config", example]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Count the ports that are in use on this machine, because `check` reports them, too.
    let portals = text.matches("portal ").count();
    let taken = text.matches("cannot listen on").count();
    assert_eq!((portals, output.status.success()), (4, taken == 0), "{text}{}", stderr(&output));
    assert!(text.contains("the settings are right"), "{text}");
    assert!(text.contains("node-0.img would be made"), "{text}");
    assert!(text.contains("gateway.log would be made"), "{text}");
    assert!(text.contains("gateway.nvram would be made"), "{text}");
    assert!(text.contains("/0 is a target of these settings"), "{text}");
}
