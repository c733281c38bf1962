//! A bare TCP program, whose performance is the upper limit for a target: it answers requests of one size with
//! responses of another size.

mod greeting;
mod answering;
mod client;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use program::RunningProgram;
use rawclient::Crowd;
use rig::machine::{self, BenchProcessUsage};

pub use answering::serve;
use client::{RawTcpClient, RawTcpMeasurement};

use crate::load::{BenchLoad, BenchPoint, histogram};

const WARM_UP: Duration = Duration::from_millis(150);

/// A running server process of the bare TCP program.
pub struct RawTcpServer {
    running: RunningProgram,
    address: SocketAddr,
}

impl RawTcpServer {
    /// Starts this program as the server, on the CPU that is reserved for servers. If `together` is
    /// true, one thread serves all connections, otherwise one thread each.
    pub fn start(together: bool) -> Result<RawTcpServer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("raw-server").stdout(Stdio::piped());
        if together {
            command.arg("--together");
        }
        let mut running = program::start(machine::pinned(&mut command, machine::SERVER_CPU))?;
        let stdout = running.stdout().context("no pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().context("the server did not print its address")?;
        Ok(RawTcpServer { running, address })
    }

    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Sends the requests of a load for `time`. For each connection the server has `memory` bytes of data, from which
    /// it answers; with 0, it answers always with the same few bytes.
    pub fn measure(&self, load: &BenchLoad, memory: u32, time: Duration) -> Result<BenchPoint> {
        let connect = |_| RawTcpClient::connect(self.address, load, memory);
        let clients: Vec<RawTcpClient> = (0..load.sessions).map(connect).collect::<Result<_>>()?;
        let mut crowd = Crowd::new(clients)?;
        let mut run = |time| {
            let mut clock =
                RawTcpMeasurement { deadline: Instant::now() + time, latency: histogram() };
            match crowd.members_mut() {
                [only] => only.run(&mut clock)?,
                _ => crowd.run(&mut clock)?,
            }
            anyhow::Ok(clock.latency)
        };
        run(WARM_UP)?;
        let (before, start) = (BenchProcessUsage::of(self.id())?, Instant::now());
        let latency = run(time)?;
        let (server, time) = (BenchProcessUsage::of(self.id())?.since(before), start.elapsed());
        Ok(BenchPoint { operations: latency.len(), time, latency, server })
    }
}
