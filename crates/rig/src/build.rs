//! Builds the programs of this workspace and returns their paths.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Builds the release binary of `forebay`. Returns its path.
pub fn build() -> Result<PathBuf> {
    cargo(&["build", "--release", "--package", "forebay"])?;
    binary()
}

/// Builds the release binary of `bench`. Returns its path.
pub fn build_bench() -> Result<PathBuf> {
    // Both are named so that cargo compiles the crates that they share only once, with the same
    // features. The benchmarks need the release build of forebay, too.
    cargo(&["build", "--release", "--package", "forebay", "--package", "bench"])?;
    Ok(target_folder()?.join("release/bench"))
}

/// Runs cargo with its output on our terminal.
fn cargo(arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).current_dir(root()).status()?;
    ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(())
}

/// Returns the path of the release binary of `forebay`, which need not exist.
pub fn binary() -> Result<PathBuf> {
    Ok(target_folder()?.join("release/forebay"))
}

/// Returns the folder in which cargo builds.
pub fn target_folder() -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = command.current_dir(root()).stderr(Stdio::null()).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let folder = metadata["target_directory"].as_str().context("no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// Returns the folder of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("this crate is at <root>/crates/rig").to_owned()
}
