//! Starts the node at the far end of the link and the gateways at its near end.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rawclient::ClientLogin;
use rig::destage::Destage;
use rig::node::{ServeProcess, TestProcessPriority, layer_figures};
use serde_json::Value;

use crate::far::LINK;
use crate::far::load::{self, FarLoadResult};
use crate::far::wan::{BenchWan, BenchWanEnd, at};
use crate::load::histogram;

/// Index of the range of the volume that loads write to.
pub const WRITTEN_RANGE: u64 = 3;
const RANGES: u64 = 4;
const LEAST_RANGE_BYTES: u64 = 128 << 20;
const NAME: &str = "iqn.2026-11.forebay.bench:far";
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// The properties in which the nodes of the measurements differ.
#[derive(Clone, Copy, Debug)]
pub struct FarNodeSpec<'a> {
    /// The TCP congestion control of the node and of the gateways.
    pub control: &'a str,
    /// Maximum number of bytes that one load reads or writes. The byte range of the load is larger.
    pub most: u64,
    /// Number of logical units of the node, which all have the same size.
    pub units: u8,
    /// True if the node has a cache whose writes are stable with the next flush.
    pub has_epochs: bool,
    /// True if the node's volume completes one in a hundred calls a second late.
    pub is_late: bool,
}

impl<'a> FarNodeSpec<'a> {
    /// Describes a node with a single unit, whose data is in memory.
    pub fn new(control: &'a str, most: u64) -> FarNodeSpec<'a> {
        FarNodeSpec { control, most, units: 1, has_epochs: false, is_late: false }
    }
}

/// A running node, and the folder for the files of node and gateways.
pub struct FarBenchSite {
    folder: tempfile::TempDir,
    /// A folder in memory for the node's log, if the node has epochs.
    _memory: tempfile::TempDir,
    near_program: PathBuf,
    node: ServeProcess,
    control: String,
    range_bytes: u64,
    gateways: std::cell::Cell<u32>,
}

impl FarBenchSite {
    /// Starts the node of the site, and fills its volumes with data.
    pub fn start(wan: &BenchWan, program: &Path, far: FarNodeSpec<'_>) -> Result<FarBenchSite> {
        let FarNodeSpec { control, most, units, has_epochs, is_late } = far;
        let parent = program.parent().context("the program has a folder")?;
        let folder = tempfile::Builder::new().prefix("bench-far").tempdir_in(parent)?;
        let near_program = script(folder.path(), wan, BenchWanEnd::Near, program)?;
        let far_program = script(folder.path(), wan, BenchWanEnd::Far, program)?;
        let range_bytes = (most + most / 8).max(LEAST_RANGE_BYTES).next_power_of_two();
        let memory = tempfile::Builder::new().prefix("bench-far").tempdir_in("/dev/shm")?;
        let delay = match is_late {
            true => ", { delay = { read = \"1s\", write = \"1s\", every = 100 } }",
            false => "",
        };
        let cache = match has_epochs {
            // Make the node's log large enough for all data that one load writes. Otherwise the
            // node's own destage would slow the load down.
            true => format!(
                ", {{ cache = {{ log = \"{}\", log_size = {}, dram = {}, report = \"at-flush\", epoch_too_large = \"split\" }} }}",
                memory.path().join("node.log").display(),
                2 * range_bytes,
                range_bytes / 2,
            ),
            false => String::new(),
        };
        let mut settings = format!(
            "listen = [\"{}:0\"]\nstate = \"node-state\"\n[iscsi]\ncongestion = \"{control}\"\n[[target]]\n\
             name = \"{NAME}\"\n",
            wan.address(BenchWanEnd::Far),
        );
        for lun in 0..units {
            settings += &format!(
                "[[target.unit]]\nlun = {lun}\nstack = [{{ memory = {{ size = {} }} }}{delay}{cache}]\n",
                RANGES * range_bytes
            );
        }
        let node = ServeProcess::start_as(
            TestProcessPriority::Preferred,
            &far_program,
            folder.path(),
            "node",
            &settings,
        )?;
        for lun in 0..units {
            let login = ClientLogin::new(node.portal(), NAME, lun);
            at(LINK, BenchWanEnd::Far, || load::fill(&login, 0, RANGES * range_bytes))?;
        }
        let control = control.to_owned();
        let gateways = Default::default();
        Ok(FarBenchSite {
            folder,
            _memory: memory,
            near_program,
            node,
            control,
            range_bytes,
            gateways,
        })
    }

    /// Returns the login of a host that uses unit 0 of the node directly.
    pub fn direct(&self) -> ClientLogin {
        ClientLogin::new(self.node.portal(), NAME, 0)
    }

    /// Returns the byte range with this index. Each load uses another range, so that no cache has
    /// its data.
    pub fn range(&self, number: u64) -> Range<u64> {
        let start = number * self.range_bytes;
        start..start + self.range_bytes
    }

    /// Returns the size of a gateway's page cache in bytes. The cache is smaller than a load's byte range, so that a
    /// load always reads a part of its range from the node.
    pub fn dram_bytes(&self) -> u64 {
        self.range_bytes / 4 * 3
    }

    /// Returns the process id of the node.
    pub fn node(&self) -> u32 {
        self.node.id()
    }

    /// Starts a gateway to unit 0, with empty memory and an empty log of this size.
    pub fn gateway(&self, log_bytes: u64) -> Result<FarBenchGateway> {
        self.gateway_to(0, log_bytes)
    }

    /// Starts a gateway to a unit of the node, with empty memory and an empty log of this size.
    pub fn gateway_to(&self, lun: u8, log_bytes: u64) -> Result<FarBenchGateway> {
        let number = self.gateways.get();
        self.gateways.set(number + 1);
        let name = format!("gateway-{number}");
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
             {{ remote = {{ url = \"iscsi://{}/{NAME}/{lun}\", congestion = \"{}\" }} }},\n\
             {{ cache = {{ log = \"{name}.log\", log_size = {log_bytes}, dram = {} }} }},\n]\n",
            self.node.portal(),
            self.control,
            self.dram_bytes(),
        );
        let folder = self.folder.path();
        let node = ServeProcess::start_as(
            TestProcessPriority::Preferred,
            &self.near_program,
            folder,
            &name,
            &settings,
        )?;
        Ok(FarBenchGateway { node })
    }
}

/// A running gateway with a cache for the node's volume.
pub struct FarBenchGateway {
    node: ServeProcess,
}

impl FarBenchGateway {
    /// Returns the login of a host that uses the gateway.
    pub fn login(&self) -> ClientLogin {
        ClientLogin::new(self.node.portal(), NAME, 0)
    }

    /// Returns the process id of the gateway.
    pub fn id(&self) -> u32 {
        self.node.id()
    }

    /// Returns the number of bytes that the gateway has destaged since its start.
    pub fn destaged(&self) -> Result<u64> {
        Ok(Destage::of(&self.node)?.destaged)
    }

    /// Returns the figures of the cache in `forebay status --json`.
    pub fn figures(&self) -> Result<Value> {
        Ok(layer_figures(&self.node.status()?, "cache")?.clone())
    }

    /// Returns the process ids of gateway and node with their names. A point records their CPU
    /// time.
    pub fn processes(&self, site: &FarBenchSite) -> [(&'static str, u32); 2] {
        [("gateway", self.node.id()), ("node", site.node())]
    }

    /// Pauses the gateway's destage if `is_held` is true; otherwise resumes it.
    pub fn hold(&self, is_held: bool) -> Result<()> {
        let command = if is_held { "pause" } else { "resume" };
        self.ask(&["gateway", command, NAME])
    }

    /// Drains the log. Returns the number of dirty bytes before the drain, and how long it took.
    pub fn drain(&self) -> Result<FarLoadResult> {
        let (before, begun) = (Destage::of(&self.node)?, Instant::now());
        self.ask(&["gateway", "drain", NAME])?;
        Ok(FarLoadResult { bytes: before.dirty, time: begun.elapsed(), latency: histogram() })
    }

    /// Drains the log and stops the gateway. A drained gateway gives up its exclusive right to write the volume (claim)
    /// when it stops, so the next gateway can start with a new log.
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

/// Writes a script that runs `program` in the network namespace of an end of the link.
pub fn script(folder: &Path, wan: &BenchWan, end: BenchWanEnd, program: &Path) -> Result<PathBuf> {
    let name = wan.namespace(end);
    let path = folder.join(format!("at-{name}"));
    let program = program.display();
    fs::write(&path, format!("#!/bin/sh\nexec ip netns exec {name} {program} \"$@\"\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path)
}
