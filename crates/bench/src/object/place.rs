//! The folder of a run, and the processes that serve units from it.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rig::node::{ServeProcess, TestProcessPriority};
use tokio::runtime::{Builder, Runtime};

pub const NAME: &str = "iqn.2026-11.forebay.bench:object";

/// The content of the key file of all drives with keys.
pub const KEY_FILE: &str = "0101010101010101010101010101010101010101010101010101010101010101\n\
                            0202020202020202020202020202020202020202020202020202020202020202\n";

/// The folder of a run.
pub struct ObjectBenchPlace {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl ObjectBenchPlace {
    /// Makes a folder beside the program, which must be on a disk and not in memory.
    pub fn new(program: &Path) -> Result<Self> {
        let beside = program.parent().context("the program has a folder")?;
        let folder = tempfile::Builder::new().prefix("bench-object").tempdir_in(beside)?;
        let key = folder.path().join("drive.key");
        let mut options = fs::File::options();
        let mut key = options.write(true).create_new(true).mode(0o600).open(key)?;
        std::io::Write::write_all(&mut key, KEY_FILE.as_bytes())?;
        Ok(Self { program: program.to_owned(), folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a process with these units, which get the LUNs from 0 on.
    pub fn start(&self, name: &str, units: &[String]) -> Result<ServeProcess> {
        let units: String = units
            .iter()
            .enumerate()
            .map(|(lun, unit)| format!("[[target.unit]]\nlun = {lun}\n{unit}"))
            .collect();
        let settings =
            format!("listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n{units}");
        let how = TestProcessPriority::Pinned;
        ServeProcess::start_as(how, &self.program, self.folder.path(), name, &settings)
    }

    /// Makes a file of zeros whose blocks are allocated. Returns the layer that uses it.
    pub fn file(&self, name: &str, bytes: u64, direct: bool) -> Result<String> {
        let path = self.path(name);
        let mut file = fs::File::create(&path)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            std::io::Write::write_all(&mut file, &zeros)?;
        }
        file.sync_all()?;
        Ok(format!("{{ file = {{ path = \"{name}\", direct = {direct} }} }}"))
    }
}

/// Returns a layer of memory.
pub fn memory(bytes: u64) -> String {
    format!("{{ memory = {{ size = {bytes} }} }}")
}

/// Returns the settings of a block unit.
pub fn block_unit(layers: &str) -> String {
    format!("stack = [ {layers} ]\n")
}

/// Returns the settings of a drive without keys.
pub fn plain_drive(layers: &str) -> String {
    format!("kind = \"object\"\nstack = [ {layers} ]\n[target.unit.object]\nsecurity = \"nosec\"\n")
}

/// Returns the settings of a drive that accepts every security method.
pub fn keyed_drive(layers: &str) -> String {
    plain_drive(layers) + "master_key_file = \"drive.key\"\n"
}

/// Returns a runtime that drives all sessions on the calling thread.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
