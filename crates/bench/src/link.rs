//! A link to another network namespace, whose interface counts packets and bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A network namespace, and a pair of interfaces that connects it to the namespace of this process.
/// Dropping it removes both.
pub struct CountingLink {
    name: String,
    program: PathBuf,
}

impl CountingLink {
    /// The address of the far end, in the namespace. It is link-local, so packets do not leave the
    /// machine.
    pub const FAR: &str = "169.254.83.2";
    const NEAR: &str = "169.254.83.1";

    /// Makes the link. The script [`CountingLink::program`] starts the program at the far end. The
    /// script is written to `folder`.
    pub fn new(program: &Path, folder: &Path) -> Result<CountingLink> {
        let name = format!("forebay{}", std::process::id());
        let link = CountingLink { name, program: folder.join("at-the-far-end") };
        let name = &link.name;
        ip(&["netns", "add", name])?;
        ip(&["link", "add", name, "type", "veth", "peer", "name", "far", "netns", name])?;
        // Send one packet per segment, as on a wire. Otherwise the kernel would pass large packets to the interface,
        // which a network card would split, and the interface would count fewer packets.
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

    /// Returns the path of a script that runs the program in the network namespace at the far end of the link.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the numbers of bytes and packets that have crossed the link so far, in both directions together.
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
        // Deleting the namespace also deletes the interface in it, and with it the other interface
        // of the pair.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let finished = program::run(Command::new("ip").args(arguments), Duration::from_secs(10))?;
    ensure!(finished.success(), "ip {}: {}", arguments.join(" "), finished.tail(3));
    Ok(())
}
