//! Writes the results of a run as a page for the documentation.

use std::fmt::Write;

use crate::vm::image::VmImage;
use crate::vm::{Played, counts};

/// Returns the page with the results of a run, in Markdown.
pub fn page(image: &VmImage, played: &[Played], emulated: bool) -> String {
    let mut page = String::from(
        "# A real kernel against Forebay\n\n\
         The results of the last `cargo xtask vm-test --markdown`: Debian's kernel and \
         initiator in a virtual\nmachine, `forebay serve` on its host.\n\n",
    );
    let release = played.iter().find_map(|played| played.release.as_deref()).unwrap_or("unknown");
    let _ = writeln!(page, "- Kernel: Linux {release} (Debian {})", image.kernel_version);
    for name in ["open-iscsi", "multipath-tools", "sg3-utils", "libiscsi-bin"] {
        let found = image.packages.iter().find_map(|file| {
            file.strip_prefix(name)?.strip_prefix('_')?.rsplit_once('_').map(|(version, _)| version)
        });
        let _ = writeln!(page, "- {name}: {}", found.unwrap_or("unknown"));
    }
    let how = if emulated { "emulated" } else { "KVM" };
    let _ = writeln!(page, "- Machine: QEMU q35, 2 CPUs ({how}), 768 MiB\n");
    page += "| scenario | time | result |\n|---|---|---|\n";
    for one in played {
        let result = if one.failed.is_some() { "**failed**" } else { "held" };
        let _ = writeln!(page, "| {} | {:.0} s | {result} |", one.name, one.took.as_secs_f64());
    }
    let _ = writeln!(page, "\n{}.", counts(played));
    for Played { name, shows, held, not_run, figures, failed, .. } in played {
        let _ = writeln!(page, "\n## {name}\n\nShows: {shows}.\n");
        held.iter().for_each(|what| _ = writeln!(page, "- {what}"));
        figures.iter().for_each(|it| {
            _ = writeln!(page, "- {}: {}: {:.1} {}", it.what, it.name, it.value, it.unit);
        });
        not_run.iter().for_each(|(what, why)| _ = writeln!(page, "- not run: {what}: {why}"));
        if let Some(failed) = failed {
            let _ = writeln!(page, "- **failed**: {}", failed.lines().next().unwrap_or_default());
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_page_shows_the_passed_failed_and_skipped_scenarios() {
        let image = VmImage {
            kernel: "".into(),
            initrd: "".into(),
            disk: "".into(),
            kernel_version: "6.1.192-2".to_owned(),
            packages: vec!["open-iscsi_2.1.8-1_amd64.deb".to_owned()],
        };
        let played = Played {
            name: "cut",
            shows: "a cut",
            took: Duration::from_secs(31),
            release: Some("6.1.0-cloud".to_owned()),
            held: vec!["no error".to_owned()],
            not_run: vec![("CHAP".to_owned(), "not served".to_owned())],
            figures: vec![],
            failed: Some("first\nsecond".to_owned()),
        };
        let page = page(&image, &[played], true);
        for part in [
            "Linux 6.1.0-cloud (Debian 6.1.192-2)",
            "- open-iscsi: 2.1.8-1\n",
            "| cut | 31 s | **failed** |",
            "\n0 passed, 1 failed; steps not run: 1.\n",
            "- no error\n- not run: CHAP: not served\n- **failed**: first\n",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
