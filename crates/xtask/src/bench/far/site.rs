//! The node at the far end of the link and the gateways at its near end.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::far::LINK;
use crate::bench::far::line::{End, Line, at};
use crate::bench::far::load::{self, Outcome};
use crate::bench::load::histogram;
use crate::client::Login;
use crate::destage::Destage;
use crate::node::{How, Node};

/// The range that is written.
pub const WRITTEN_RANGE: u64 = 3;
const RANGES: u64 = 4;
const LEAST_RANGE_BYTES: u64 = 128 << 20;
const NAME: &str = "iqn.2026-11.forebay.bench:far";
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// A node, and the folder of all.
pub struct Site {
    folder: tempfile::TempDir,
    near_program: PathBuf,
    node: Node,
    direct: Login,
    control: String,
    range_bytes: u64,
    gateways: std::cell::Cell<u32>,
}

impl Site {
    /// Starts the node, and fills its volume. A load reads or writes at most so many bytes of a range.
    pub fn start(line: &Line, program: &Path, control: &str, most: u64) -> Result<Site> {
        let parent = program.parent().context("the program has a folder")?;
        let folder = tempfile::Builder::new().prefix("bench-far").tempdir_in(parent)?;
        let near_program = script(folder.path(), line, End::Near, program)?;
        let far_program = script(folder.path(), line, End::Far, program)?;
        let range_bytes = (most + most / 8).max(LEAST_RANGE_BYTES).next_power_of_two();
        let settings = format!(
            "listen = [\"{}:0\"]\n[iscsi]\ncongestion = \"{control}\"\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
             stack = [{{ memory = {{ size = {} }} }}]\n",
            line.address(End::Far),
            RANGES * range_bytes
        );
        let node = Node::start_as(How::Preferred, &far_program, folder.path(), "node", &settings)?;
        let direct = node.login(NAME);
        at(LINK, End::Far, || load::fill(&direct, 0, RANGES * range_bytes))?;
        let control = control.to_owned();
        let gateways = Default::default();
        Ok(Site { folder, near_program, node, direct, control, range_bytes, gateways })
    }

    /// How a host reaches the volume without a gateway.
    pub fn direct(&self) -> Login {
        self.direct.clone()
    }

    /// Each load has a range of the volume for itself, in bytes, so that it is cold.
    pub fn range(&self, number: u64) -> Range<u64> {
        let start = number * self.range_bytes;
        start..start + self.range_bytes
    }

    /// The process id of the node.
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
            // Less than a range.
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
    /// How a host at the near end reaches it.
    pub fn login(&self) -> Login {
        self.node.login(NAME)
    }

    /// The processes whose CPU time counts.
    pub fn processes(&self, site: &Site) -> [(&'static str, u32); 2] {
        [("gateway", self.node.id()), ("node", site.node())]
    }

    /// Stops destage, or lets it go on.
    pub fn hold(&self, is_held: bool) -> Result<()> {
        let command = if is_held { "pause" } else { "resume" };
        self.ask(&["gateway", command, NAME])
    }

    /// Sends everything to the node; says how much that was, and how long it took.
    pub fn drain(&self) -> Result<Outcome> {
        let (before, begun) = (Destage::of(&self.node)?, Instant::now());
        self.ask(&["gateway", "drain", NAME])?;
        Ok(Outcome { bytes: before.dirty, time: begun.elapsed(), latency: histogram() })
    }

    /// Drains and stops it, so that the next gateway may use the volume with a log of its own.
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

/// A script that runs a program at an end of the link, in a session of its own.
fn script(folder: &Path, line: &Line, end: End, program: &Path) -> Result<PathBuf> {
    let name = line.namespace(end);
    let path = folder.join(format!("at-{name}"));
    let program = program.display();
    fs::write(&path, format!("#!/bin/sh\nexec ip netns exec {name} {program} \"$@\"\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path)
}
