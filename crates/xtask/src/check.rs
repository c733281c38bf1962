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

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::steps::{StepTally, Steps};
use deny::Advisories;

/// Runs every check as a step of its own.
pub fn check(steps: &mut Steps) {
    let root = root();
    steps.run("check: floors", || Ok(StepTally::one().with_note(floors::check()?)));
    steps.run("check: modules", || {
        Ok(StepTally::one().with_note(modules::check(&root.join("crates"))?))
    });
    steps.run("check: sync sites", || {
        Ok(StepTally::one().with_note(syncs::check(&root.join("crates"))?))
    });
    steps.run("check: text", || Ok(StepTally::one().with_note(text::check(&root)?)));
    steps.run("check: bounds", || Ok(StepTally::one().with_note(bounds::check(&root)?)));
    steps.run("check: commits", || Ok(StepTally::one().with_note(commits::check(&root)?)));
    steps.run("check: format", || cargo(&["fmt", "--all", "--check"]));
    steps.run("check: clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    // A workspace of its own, so nothing else would notice that it no longer compiles.
    steps.run("check: fuzz targets compile", || {
        cargo(&["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml"])
    });
    steps.run("check: licences", || Ok(StepTally::one().with_note(deny::licences()?)));
    let mut unknown = None;
    steps.run("check: advisories", || match deny::advisories()? {
        Advisories::Clear => Ok(StepTally::one().with_note("no open advisory")),
        Advisories::Unknown(reason) => {
            unknown = Some(reason);
            Ok(StepTally::default().with_note("the advisory database is out of reach"))
        }
    });
    if let Some(reason) = unknown {
        steps.leave_out(format!("advisories, since the database could not be fetched ({reason})"));
    }
}

/// Runs cargo with its output on our terminal.
pub fn cargo(arguments: &[&str]) -> Result<StepTally> {
    let status = Command::new("cargo").args(arguments).current_dir(root()).status()?;
    ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(StepTally::one())
}

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("this crate stands in <root>/crates/xtask").to_owned()
}
