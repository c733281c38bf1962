//! Measures the memory of a process with 64 sessions, beyond the memory that its settings give it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rawclient::ClientLogin;
use rig::node::ServeProcess;

use crate::load::{BenchLoad, measure};
use crate::stage::write_all;

const SESSIONS: usize = 64;
const NAME: &str = "iqn.2026-11.forebay.bench:memory";

/// The size of the target's volume and of the gateway's DRAM, MiB.
const SETTING_MIB: u64 = 64;

const NVRAM_MIB: u64 = 4;

/// Two loads, one after the other, for each session: writes of 4 KiB, and writes of 128 KiB. All sessions together then
/// have 256 MiB in flight.
const LOADS: [BenchLoad; 2] =
    [BenchLoad::write_4k(32), BenchLoad { bytes: 128 << 10, ..BenchLoad::write_4k(32) }];

/// How long each load runs.
const TIME: Duration = Duration::from_millis(1500);

/// Returns the peak memory of a target with a volume in memory, in MiB beyond that volume: after
/// small writes, and then after large ones.
pub fn target(program: &Path) -> Result<[f64; 2]> {
    let folder = tempfile::tempdir()?;
    let node =
        ServeProcess::start(program, folder.path(), "target", &memory_settings(SETTING_MIB))?;
    let peaks = peaks(&node, SETTING_MIB << 20)?;
    Ok(peaks.map(|peak| peak - SETTING_MIB as f64))
}

/// Returns the peak memory of a gateway, in MiB beyond its DRAM and NVRAM: after small writes, and
/// then after large ones. `folder` is on a disk.
pub fn gateway(program: &Path, folder: &Path) -> Result<[f64; 2]> {
    let folder = tempfile::Builder::new().prefix("memory").tempdir_in(folder)?;
    let far =
        ServeProcess::start(program, folder.path(), "far", &memory_settings(4 * SETTING_MIB))?;
    let settings = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{}\" }} }},\n\
         {{ cache = {{ log = \"log\", log_size = \"256MiB\", nvram = \"nvram\", nvram_size = \"{NVRAM_MIB}MiB\", \
         dram = \"{SETTING_MIB}MiB\" }} }},\n]\n",
        far.url(NAME, 0)
    );
    let gateway = ServeProcess::start(program, folder.path(), "gateway", &settings)?;
    let peaks = peaks(&gateway, (4 * SETTING_MIB) << 20)?;
    Ok(peaks.map(|peak| peak - (SETTING_MIB + NVRAM_MIB) as f64))
}

fn memory_settings(mib: u64) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
         stack = [{{ memory = {{ size = \"{mib}MiB\" }} }}]\n"
    )
}

/// Writes the whole unit, runs each load on all sessions at once, and reads the peak of the process
/// after each load, MiB.
fn peaks(node: &ServeProcess, bytes: u64) -> Result<[f64; 2]> {
    let login = ClientLogin::new(node.portal(), NAME, 0);
    write_all(&login, bytes)?;
    let process = node.id();
    let mut peaks = [0.0; 2];
    for (load, peaked) in LOADS.iter().zip(&mut peaks) {
        let session =
            |login: ClientLogin| move || measure(&login, load, &[process], TIME).map(|_| ());
        std::thread::scope(|scope| {
            let sessions: Vec<_> =
                (0..SESSIONS).map(|_| scope.spawn(session(login.clone()))).collect();
            sessions.into_iter().try_for_each(|session| session.join().expect("no session panics"))
        })?;
        *peaked = peak(process)?;
    }
    Ok(peaks)
}

/// Returns the peak of the resident memory of a process, mapped files included, in MiB.
fn peak(process: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_own_peak_is_known() {
        assert!(super::peak(std::process::id()).unwrap() > 0.5);
    }
}
