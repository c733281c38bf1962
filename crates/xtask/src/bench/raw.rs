//! The limit: a bare TCP program that answers requests of one size with answers of another.

mod greeting;
mod answering;
mod client;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use answering::serve;
use client::{Client, Clock};

use crate::bench::load::{Load, Point, histogram};
use crate::client::Crowd;
use crate::machine::{self, Usage};
use crate::process::Running;

/// Unmeasured time at the start of a point.
const WARM_UP: Duration = Duration::from_millis(150);

/// The server's process.
pub struct Server {
    running: Running,
    address: SocketAddr,
}

impl Server {
    /// Starts ourselves as the server, on the CPU of servers; one thread for all connections if
    /// `together`, one for each if not.
    pub fn start(together: bool) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("raw-server").stdout(Stdio::piped());
        if together {
            command.arg("--together");
        }
        let mut running = Running::start(machine::pinned(&mut command, machine::SERVER_CPU))?;
        let stdout = running.child().stdout.take().context("no pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().context("the server said no address")?;
        Ok(Server { running, address })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Puts the requests of a load on it for a time; `memory` bytes are what it answers from, 0 for
    /// the same few again and again.
    pub fn measure(&self, load: &Load, memory: u32, time: Duration) -> Result<Point> {
        let connect = |_| Client::connect(self.address, load, memory);
        let clients: Vec<Client> = (0..load.sessions).map(connect).collect::<Result<_>>()?;
        let mut crowd = Crowd::new(clients)?;
        let mut run = |time| {
            let mut clock = Clock { deadline: Instant::now() + time, latency: histogram() };
            match crowd.members_mut() {
                [only] => only.run(&mut clock)?,
                _ => crowd.run(&mut clock)?,
            }
            anyhow::Ok(clock.latency)
        };
        run(WARM_UP)?;
        let (before, start) = (Usage::of(self.id())?, Instant::now());
        let latency = run(time)?;
        let (server, time) = (Usage::of(self.id())?.since(before), start.elapsed());
        Ok(Point { operations: latency.len(), time, latency, server })
    }
}
