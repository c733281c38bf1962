//! A site for tests: a node, a link with a delay of 4 ms in each direction, and a gateway. Each is
//! a process; node and gateway can be killed and started again on the same files.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rawclient::ClientLogin;
use rig::destage::{self, Destage};
use rig::node::{RelayProcess, ServeProcess};

/// Time limit of a drain. The last dirty data is destaged within a second or two.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

const NODE: &str = "iqn.2026-11.forebay.test:node";
const GATEWAY: &str = "iqn.2026-11.forebay.test:gateway";

/// The process that a round kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Gateway,
    Node,
    Both,
}

/// The settings in which sites differ.
#[derive(Clone, Copy, Debug)]
pub struct SuiteSitePlan<'a> {
    /// Further settings of the gateway's cache, apart from the paths of its files.
    pub cache: &'a str,
    /// Gives the node a log of its own with `report = "at-flush"`: after a crash its volume has all
    /// writes between two flushes or none of them.
    pub epochs: bool,
}

/// The processes of a test site, with their settings.
pub struct SuiteSite<'a> {
    program: &'a Path,
    folder: &'a Path,
    node_settings: String,
    gateway_settings: String,
    node: Option<ServeProcess>,
    gateway: Option<ServeProcess>,
    line: RelayProcess,
    /// The progress of destage while [`SuiteSite::kill_in_destage`] waits for the right moment.
    awaited: Option<Awaited>,
}

/// The number of bytes that were destaged at the last look, and the time at which the wait for more of them fails.
struct Awaited {
    destaged: u64,
    until: Instant,
}

impl<'a> SuiteSite<'a> {
    /// Starts all processes, with a volume of 64 MiB.
    pub fn start(
        program: &'a Path,
        folder: &'a Path,
        plan: SuiteSitePlan<'_>,
    ) -> Result<SuiteSite<'a>> {
        let log = if plan.epochs {
            ", { cache = { log = \"node.log\", log_size = \"64MiB\", dram = \"8MiB\", report = \"at-flush\" } }"
        } else {
            ""
        };
        let settings = |listen: &str| {
            format!(
                "listen = [\"{listen}\"]\n[[target]]\nname = \"{NODE}\"\n[[target.unit]]\n\
                 stack = [{{ file = {{ path = \"node.img\", size = \"64MiB\" }} }}{log}]\n"
            )
        };
        let node = ServeProcess::start(program, folder, "node", &settings("127.0.0.1:0"))?;
        // Fix the node's port, because the relay connects to the same port after the node's restart.
        let node_settings = settings(&node.portal().to_string());
        let line = RelayProcess::start(program, node.portal(), 4.0)?;
        let gateway_settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nstack = [\n\
             {{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }},\n\
             {{ cache = {{ log = \"log\", nvram = \"nvram\", nvram_size = \"1MiB\", {} }} }},\n]\n",
            line.address(),
            plan.cache
        );
        let gateway = ServeProcess::start(program, folder, "gateway", &gateway_settings)?;
        Ok(SuiteSite {
            program,
            folder,
            node_settings,
            gateway_settings,
            node: Some(node),
            gateway: Some(gateway),
            line,
            awaited: None,
        })
    }

    /// Returns the last 15 log events of the gateway.
    pub fn gateway_events(&self) -> String {
        let path = self.folder.join("gateway.events");
        let events = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    pub fn gateway(&self) -> Result<&ServeProcess> {
        self.gateway.as_ref().context("the gateway is down")
    }

    /// Returns the login to the gateway's unit.
    pub fn near(&self) -> Result<ClientLogin> {
        Ok(ClientLogin::new(self.gateway()?.portal(), GATEWAY, 0))
    }

    /// Returns the login to the node's own unit.
    pub fn far(&self) -> Result<ClientLogin> {
        let node = self.node.as_ref().context("the node is down")?;
        Ok(ClientLogin::new(node.portal(), NODE, 0))
    }

    /// Returns the relay process, which is the link between gateway and node.
    pub fn line(&mut self) -> &mut RelayProcess {
        &mut self.line
    }

    /// Kills the process `victim` if dirty data is on its way to the node now. Returns None if the gateway is not
    /// destaging; the caller then writes more and calls this again. Fails if no destage is seen for the time
    /// [`DRAIN_LIMIT`].
    pub fn kill_in_destage(&mut self, victim: Victim) -> Option<Result<()>> {
        match self.is_destaging() {
            Ok(false) => None,
            Ok(true) => Some(self.kill(victim)),
            Err(error) => Some(Err(error)),
        }
    }

    fn is_destaging(&mut self) -> Result<bool> {
        let now = Destage::of(self.gateway()?)?;
        let new = Awaited { destaged: now.destaged, until: Instant::now() + DRAIN_LIMIT };
        let awaited = self.awaited.get_or_insert(new);
        // Data was destaged since the last call, and more is dirty, so the next writes to the node
        // are in flight now.
        let is_destaging = now.destaged > awaited.destaged && now.dirty > 0;
        ensure!(is_destaging || Instant::now() < awaited.until, "no destage was in flight");
        awaited.destaged = now.destaged;
        Ok(is_destaging)
    }

    /// Kills the gateway, the node or both by SIGKILL.
    pub fn kill(&mut self, victim: Victim) -> Result<()> {
        self.awaited = None;
        if victim != Victim::Node {
            self.gateway.take().context("the gateway is down")?.kill()?;
        }
        if victim != Victim::Gateway {
            self.node.take().context("the node is down")?.kill()?;
        }
        Ok(())
    }

    /// Starts the node again, unless it is running.
    pub fn raise_node(&mut self) -> Result<()> {
        if self.node.is_none() {
            self.node =
                Some(ServeProcess::start(self.program, self.folder, "node", &self.node_settings)?);
        }
        Ok(())
    }

    /// Starts each process that is not running.
    pub fn raise(&mut self) -> Result<()> {
        self.raise_node()?;
        if self.gateway.is_none() {
            let gateway =
                ServeProcess::start(self.program, self.folder, "gateway", &self.gateway_settings)?;
            self.gateway = Some(gateway);
        }
        Ok(())
    }

    /// Waits until the gateway has no dirty data.
    pub fn drain(&self) -> Result<()> {
        destage::drained(self.gateway()?, DRAIN_LIMIT)
    }

    /// Waits until the gateway has no dirty data, and stops it. The node keeps running.
    pub fn settle(&mut self) -> Result<()> {
        self.raise()?;
        self.drain()?;
        self.gateway.take().context("the gateway is down")?.stop().map(drop)
    }

    /// Stops all processes that are still running.
    pub fn stop(mut self) -> Result<()> {
        for process in [self.gateway.take(), self.node.take()].into_iter().flatten() {
            process.stop()?;
        }
        Ok(())
    }
}
