//! A link with an interface that counts: a network namespace for whoever is at its far end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A namespace, and two interfaces between it and ours. Both go when this is dropped.
pub struct CountingLink {
    name: String,
    program: PathBuf,
}

impl CountingLink {
    /// The address of the far end. Link-local: nothing leaves the machine.
    pub const FAR: &str = "169.254.83.2";
    const NEAR: &str = "169.254.83.1";

    /// Makes it; what is started with [`CountingLink::program`] runs at its far end. Files go to `folder`.
    pub fn new(program: &Path, folder: &Path) -> Result<CountingLink> {
        let name = format!("forebay{}", std::process::id());
        let link = CountingLink { name, program: folder.join("at-the-far-end") };
        let name = &link.name;
        ip(&["netns", "add", name])?;
        ip(&["link", "add", name, "type", "veth", "peer", "name", "far", "netns", name])?;
        // Packets as on a wire, not as large as the kernel would hand them to a card that cuts them.
        ip(&["link", "set", name, "gso_max_segs", "1", "up"])?;
        ip(&["address", "add", &format!("{}/30", Self::NEAR), "dev", name])?;
        ip(&["-n", name, "link", "set", "far", "gso_max_segs", "1", "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "address", "add", &format!("{}/30", Self::FAR), "dev", "far"])?;
        let program = program.display();
        let script = format!("#!/bin/sh\nexec ip netns exec {name} {program} \"$@\"\n");
        fs::write(&link.program, script)?;
        fs::set_permissions(&link.program, fs::Permissions::from_mode(0o700))?;
        Ok(link)
    }

    /// The same program at the far end.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Bytes and packets, both ways, until now.
    pub fn passed(&self) -> Result<(u64, u64)> {
        let count = |what: &str| {
            let path = format!("/sys/class/net/{}/statistics/{what}", self.name);
            let text = fs::read_to_string(&path).context(path)?;
            text.trim().parse::<u64>().context(text)
        };
        let bytes = count("rx_bytes")? + count("tx_bytes")?;
        Ok((bytes, count("rx_packets")? + count("tx_packets")?))
    }
}

impl Drop for CountingLink {
    fn drop(&mut self) {
        // With the namespace go its interface and the other one of the pair.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let finished = program::run(Command::new("ip").args(arguments), Duration::from_secs(10))?;
    ensure!(finished.success(), "ip {}: {}", arguments.join(" "), finished.tail(3));
    Ok(())
}
