//! What clap gives: completions, the manual page, help.

mod support;

use support::run;

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_shell_has_completions() {
    for (shell, expected) in [
        ("bash", "complete -F _forebay"),
        ("zsh", "#compdef forebay"),
        ("fish", "complete -c forebay"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = text(&["completions", shell]);
        assert!(script.contains(expected), "{shell}");
        assert!(script.contains("quickstart"), "{shell}");
    }
}

#[test]
fn the_manual_page_names_the_commands() {
    let page = text(&["man"]);
    assert!(page.starts_with(".ie") || page.contains(".TH forebay"), "{page}");
    for command in ["serve", "check", "status", "ls", "quickstart"] {
        assert!(page.contains(command), "{command}");
    }
}

#[test]
fn help_hides_what_is_not_for_people() {
    let help = text(&["--help"]);
    assert!(help.contains("quickstart"));
    assert!(!help.contains("emulated line"));
    assert!(!text(&["quickstart", "--help"]).contains("--seconds"));
}

#[test]
fn nobody_reading_is_no_failure() {
    let mut child = support::forebay()
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}
