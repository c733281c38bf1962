//! The node at the far end of the link and the gateways at its near end.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::far::LINK;
use crate::bench::far::load::{self, Outcome};
use crate::bench::far::wan::{End, Wan, at};
use crate::bench::load::histogram;
use crate::client::Login;
use crate::destage::Destage;
use crate::node::{How, Node};

/// The number of the range that loads write to.
pub const WRITTEN_RANGE: u64 = 3;
const RANGES: u64 = 4;
const LEAST_RANGE_BYTES: u64 = 128 << 20;
const NAME: &str = "iqn.2026-11.forebay.bench:far";
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// The node, and the folder of its and the gateways' files.
pub struct Site {
    folder: tempfile::TempDir,
    /// The folder in memory with the log of a node that has epochs.
    _memory: tempfile::TempDir,
    near_program: PathBuf,
    node: Node,
    direct: Login,
    control: String,
    range_bytes: u64,
    gateways: std::cell::Cell<u32>,
}

impl Site {
    /// Starts the node and fills its volume. A load may read or write up to `most` bytes without reaching the end of its
    /// range. With `has_epochs` the node has a cache of its own whose writes count with the next flush.
    pub fn start(
        wan: &Wan,
        program: &Path,
        control: &str,
        most: u64,
        has_epochs: bool,
    ) -> Result<Site> {
        let parent = program.parent().context("the program has a folder")?;
        let folder = tempfile::Builder::new().prefix("bench-far").tempdir_in(parent)?;
        let near_program = script(folder.path(), wan, End::Near, program)?;
        let far_program = script(folder.path(), wan, End::Far, program)?;
        let range_bytes = (most + most / 8).max(LEAST_RANGE_BYTES).next_power_of_two();
        let memory = tempfile::Builder::new().prefix("bench-far").tempdir_in("/dev/shm")?;
        let cache = match has_epochs {
            // The log holds all data that one load writes, so that the node's own destage does not hold it up.
            true => format!(
                ", {{ cache = {{ log = \"{}\", log_size = {}, dram = {}, report = \"at-flush\", epoch_too_large = \"split\" }} }}",
                memory.path().join("node.log").display(),
                2 * range_bytes,
                range_bytes / 2,
            ),
            false => String::new(),
        };
        let settings = format!(
            "listen = [\"{}:0\"]\nstate = \"node-state\"\n[iscsi]\ncongestion = \"{control}\"\n[[target]]\n\
             name = \"{NAME}\"\n[[target.unit]]\nstack = [{{ memory = {{ size = {} }} }}{cache}]\n",
            wan.address(End::Far),
            RANGES * range_bytes
        );
        let node = Node::start_as(How::Preferred, &far_program, folder.path(), "node", &settings)?;
        let direct = node.login(NAME);
        at(LINK, End::Far, || load::fill(&direct, 0, RANGES * range_bytes))?;
        let control = control.to_owned();
        let gateways = Default::default();
        Ok(Site {
            folder,
            _memory: memory,
            near_program,
            node,
            direct,
            control,
            range_bytes,
            gateways,
        })
    }

    /// Returns the login of a host that uses the node directly.
    pub fn direct(&self) -> Login {
        self.direct.clone()
    }

    /// Returns the byte range with this number. Each load has a range of its own, so that no cache holds it.
    pub fn range(&self, number: u64) -> Range<u64> {
        let start = number * self.range_bytes;
        start..start + self.range_bytes
    }

    /// Returns the process id of the node.
    pub fn node(&self) -> u32 {
        self.node.id()
    }

    /// Starts a gateway with empty memory and an empty log of this size.
    pub fn gateway(&self, log_bytes: u64) -> Result<Gateway> {
        let number = self.gateways.get();
        self.gateways.set(number + 1);
        let name = format!("gateway-{number}");
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
             {{ remote = {{ url = \"iscsi://{}/{NAME}/0\", congestion = \"{}\" }} }},\n\
             {{ cache = {{ log = \"{name}.log\", log_size = {log_bytes}, dram = {} }} }},\n]\n",
            self.node.portal(),
            self.control,
            // The memory of the gateway holds less than a range, so a load cannot fill it with its whole range.
            self.range_bytes / 4 * 3,
        );
        let folder = self.folder.path();
        let node = Node::start_as(How::Preferred, &self.near_program, folder, &name, &settings)?;
        Ok(Gateway { node })
    }
}

/// A gateway with a cache in front of the node's volume.
pub struct Gateway {
    node: Node,
}

impl Gateway {
    /// Returns the login of a host that uses the gateway.
    pub fn login(&self) -> Login {
        self.node.login(NAME)
    }

    /// Returns the gateway and the node with their process ids, for the CPU time of a point.
    pub fn processes(&self, site: &Site) -> [(&'static str, u32); 2] {
        [("gateway", self.node.id()), ("node", site.node())]
    }

    /// Pauses destage, or resumes it.
    pub fn hold(&self, is_held: bool) -> Result<()> {
        let command = if is_held { "pause" } else { "resume" };
        self.ask(&["gateway", command, NAME])
    }

    /// Drains the log. Returns the dirty bytes before it and the time that the drain took.
    pub fn drain(&self) -> Result<Outcome> {
        let (before, begun) = (Destage::of(&self.node)?, Instant::now());
        self.ask(&["gateway", "drain", NAME])?;
        Ok(Outcome { bytes: before.dirty, time: begun.elapsed(), latency: histogram() })
    }

    /// Drains the log and stops the gateway. That releases the claim, so the next gateway can start with a new log.
    pub fn stop(self) -> Result<()> {
        self.ask(&["gateway", "drain", NAME])?;
        self.node.stop()?;
        Ok(())
    }

    fn ask(&self, arguments: &[&str]) -> Result<()> {
        let finished = self.node.ask_for(arguments, DRAIN_LIMIT)?;
        let asked = arguments.join(" ");
        ensure!(finished.success(), "forebay {asked} {}: {}", finished.ending(), finished.tail(5));
        Ok(())
    }
}

/// Writes a script that runs `program` in the network namespace of an end.
pub fn script(folder: &Path, wan: &Wan, end: End, program: &Path) -> Result<PathBuf> {
    let name = wan.namespace(end);
    let path = folder.join(format!("at-{name}"));
    let program = program.display();
    fs::write(&path, format!("#!/bin/sh\nexec ip netns exec {name} {program} \"$@\"\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path)
}
