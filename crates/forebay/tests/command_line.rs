//! Output that clap generates: completions, the manual page, and `--help`.

mod support;

use std::process::Command;

use support::{Place, forebay, run, stderr};

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
fn manual_pages_are_written_for_each_command_and_for_the_settings_file() {
    let place = Place::new();
    let folder = place.path("man");
    let said = text(&["man", "--out", folder.to_str().expect("text")]);
    assert!(said.contains("pages in"), "{said}");
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    let help = text(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands.take_while(|line| !line.is_empty()).filter_map(|line| {
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split_whitespace().next()
    });
    for name in names.filter(|name| *name != "help") {
        assert!(page(&format!("man1/forebay-{name}.1")).contains(".TH"), "{name}");
    }
    assert!(page("man1/forebay-claim-show.1").contains(".TH"));
    assert!(page("man5/forebay.toml.5").contains("log_size"));
}

#[test]
fn manual_pages_that_cannot_be_written_are_an_error_with_a_remedy() {
    let output = run(&["man", "--out", "/dev/null/man"]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("/dev/null/man") && error.contains("remedy: "), "{error}");
}

#[test]
fn help_hides_internal_commands_and_options() {
    let help = text(&["--help"]);
    assert!(help.contains("quickstart"));
    assert!(!help.contains("emulated link"));
    assert!(!text(&["quickstart", "--help"]).contains("--seconds"));
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let mut child = support::forebay()
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}

/// Runs `attach` in a namespace that lacks some of its requirements, checks that it fails without creating a device,
/// and returns its message.
fn attached_within(place: &Place, with: &[&str], script: &str, url: &str) -> String {
    let folder = place.path("folder").display().to_string();
    let output = Command::new("unshare")
        .args(with)
        .args(["sh", "-c", script, "sh", &folder])
        .arg(forebay().get_program())
        .args(["attach", url])
        .output()
        .expect("util-linux is there");
    assert_eq!(output.status.code(), Some(1), "{with:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "no device was reported");
    stderr(&output)
}

/// An address without a listener. The requirements are checked before any connection is made.
const NOWHERE: &str = "iscsi://127.0.0.1:1/iqn.x:y/0";

#[test]
fn an_attach_that_lacks_a_requirement_names_it_before_it_changes_anything() {
    let tried = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("left out: it needs the right to make name spaces");
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.path("folder")).expect("made");
    let exec = "shift; exec \"$@\"";
    let said = attached_within(&place, &["--user"], exec, NOWHERE);
    assert!(said.contains("only root may make block devices") && said.contains("sudo"), "{said}");
    let own = &["--map-root-user", "--mount"];
    let nothing = format!("mount -t tmpfs tmpfs /dev || exit 3; {exec}");
    let said = attached_within(&place, own, &nothing, NOWHERE);
    assert!(said.contains("/dev/fuse") && said.contains("modprobe fuse"), "{said}");
    let no_loop = format!(
        "touch \"$1/fuse\" && mount --bind /dev/null \"$1/fuse\" && mount --rbind \"$1\" /dev || exit 3; {exec}"
    );
    let said = attached_within(&place, own, &no_loop, NOWHERE);
    assert!(said.contains("/dev/loop-control") && said.contains("modprobe loop"), "{said}");
    // Run as root of a container that may neither mount nor set up loop devices.
    let settings = "listen = ['127.0.0.1:0']\n[[target]]\nname = 'iqn.2026-11.test:a'\n\
                    [[target.unit]]\nstack = [ { memory = { size = '8MiB' } } ]\n";
    let node = place.serve("node", settings);
    let said = attached_within(&place, &["--map-root-user"], exec, &node.url("iqn.2026-11.test:a"));
    assert!(said.contains("CAP_SYS_ADMIN") || said.contains("only root"), "{said}");
}
