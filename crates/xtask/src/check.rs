//! `cargo xtask check`: checks the structure and the style of the source.

pub mod source;
pub mod deny;
pub mod floors;
pub mod modules;
pub mod syncs;
pub mod text;
pub mod tree;
pub mod sizes;
pub mod type_names;
pub mod receivers;
pub mod method_circles;
pub mod exceptions;
pub mod bounds;
pub mod commits;
pub mod wording;
pub mod page_sizes;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::step_list::StepList;
use crate::steps::StepTally;
use deny::Advisories;

/// Adds each check of the source to `list`, as a step of its own.
pub fn steps(list: &mut StepList<'_>) {
    list.add("check: floors", || Ok(StepTally::one().with_note(floors::check()?)));
    list.add("check: modules", || {
        Ok(StepTally::one().with_note(modules::check(&root().join("crates"))?))
    });
    list.add("check: sync sites", || {
        Ok(StepTally::one().with_note(syncs::check(&root().join("crates"))?))
    });
    list.add("check: text", || Ok(StepTally::one().with_note(text::check(&root())?)));
    list.add("check: bounds", || Ok(StepTally::one().with_note(bounds::check(&root())?)));
    list.add("check: wording", || Ok(StepTally::one().with_note(wording::check(&root())?)));
    list.add("check: pages", || Ok(StepTally::one().with_note(page_sizes::check(&root())?)));
    list.add("check: commits", || Ok(StepTally::one().with_note(commits::check(&root())?)));
    list.add("check: format", || cargo(&["fmt", "--all", "--check"]));
    list.add("check: clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    // The fuzz targets are a separate workspace, so no other step would notice that they no longer
    // compile.
    list.add("check: fuzz targets compile", || {
        cargo(&["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml"])
    });
    list.add("check: licences", || Ok(StepTally::one().with_note(deny::licences()?)));
    list.add("check: advisories", || match deny::advisories()? {
        Advisories::Clear => Ok(StepTally::one().with_note("no open advisory")),
        Advisories::Unknown(reason) => {
            let what = format!("advisories, since the database could not be fetched ({reason})");
            let left_out = vec![what];
            let tally = StepTally { left_out, ..StepTally::default() };
            Ok(tally.with_note("the advisory database could not be fetched"))
        }
    });
}

/// Runs cargo in the workspace, and shows its output on the terminal.
pub fn cargo(arguments: &[&str]) -> Result<StepTally> {
    let status = Command::new("cargo").args(arguments).current_dir(root()).status()?;
    ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(StepTally::one())
}

/// Returns the root folder of the workspace.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("this crate stands in <root>/crates/xtask").to_owned()
}
