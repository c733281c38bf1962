//! Measures how much memory a process with 64 sessions uses in addition to the memory that its settings assign to
//! caches and volumes.

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

/// The size of a target's volume and of a gateway's DRAM, in MiB.
const SETTING_MIB: u64 = 64;

const NVRAM_MIB: u64 = 4;

/// The loads of each session, one after the other: writes of 4 KiB, and writes of 128 KiB. With the large writes, all
/// sessions together have 256 MiB in flight.
const LOADS: [BenchLoad; 2] =
    [BenchLoad::write_4k(32), BenchLoad { bytes: 128 << 10, ..BenchLoad::write_4k(32) }];

/// Duration of each load.
const TIME: Duration = Duration::from_millis(1500);

/// Returns the peak memory of a target with a volume in memory, in MiB besides that volume. The
/// first value is after small writes, the second after large writes.
pub fn target(program: &Path) -> Result<[f64; 2]> {
    let folder = tempfile::tempdir()?;
    let node =
        ServeProcess::start(program, folder.path(), "target", &memory_settings(SETTING_MIB))?;
    let peaks = peaks(&node, SETTING_MIB << 20)?;
    Ok(peaks.map(|peak| peak - SETTING_MIB as f64))
}

/// Returns the peak memory of a gateway, in MiB besides its DRAM and NVRAM. The first value is
/// after small writes, the second after large writes. `folder` must be on a disk.
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

/// Writes the whole unit. Then runs each load on all sessions concurrently, and reads the peak
/// memory of the process after it, in MiB.
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

/// Returns the peak of a process's resident memory in MiB, mapped files included.
pub fn peak(process: u32) -> Result<f64> {
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
