//! Builds the programs of this workspace, and says where they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Builds the release binary of `forebay`. Returns its path.
pub fn build() -> Result<PathBuf> {
    build_package("forebay")
}

/// Builds the release binary of a package, which has the same name. Returns its path. Cargo's output goes to our terminal.
pub fn build_package(package: &str) -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", package];
    let status = Command::new("cargo").args(arguments).current_dir(root()).status()?;
    ensure!(status.success(), "cargo {} failed ({status})", arguments.join(" "));
    Ok(target_folder()?.join("release").join(package))
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
