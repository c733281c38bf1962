//! Compiles the programs of this workspace, and returns the paths of their binaries.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Compiles `forebay` in the release profile, and returns the path of the binary.
pub fn build() -> Result<PathBuf> {
    cargo(&["build", "--release", "--package", "forebay"])?;
    binary()
}

/// Compiles `bench` in the release profile, and returns the path of the binary.
pub fn build_bench() -> Result<PathBuf> {
    // Build forebay and bench in one command: cargo then compiles the crates that both use only once, with the same
    // features. The benchmarks need the release build of forebay.
    cargo(&["build", "--release", "--package", "forebay", "--package", "bench"])?;
    Ok(target_folder()?.join("release/bench"))
}

/// Runs cargo, and shows its output on the terminal.
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
