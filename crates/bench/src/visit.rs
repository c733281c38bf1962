//! `cargo xtask load`: puts one load on a target that the user has started, for comparisons and for
//! profiling.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use rawclient::ClientLogin;
use rig::machine;

use crate::load::{BenchLoad, measure};

/// The target, and the load to put on it.
#[derive(Debug, clap::Args)]
pub struct ExternalTargetLoad {
    /// Address and port of the portal.
    address: SocketAddr,
    /// Name of the target.
    name: String,
    /// Id of the process that serves the target, to measure its CPU time.
    #[arg(long, value_name = "PID")]
    process: u32,
    /// Write instead of read. This destroys the data of the unit.
    #[arg(long)]
    write: bool,
    /// Make each write stable before it is acknowledged (FUA).
    #[arg(long, requires = "write")]
    durable: bool,
    /// Commands in flight on each connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    depth: u16,
    /// Number of concurrent sessions.
    #[arg(long, default_value_t = 1)]
    sessions: usize,
    /// Connections of each session.
    #[arg(long, default_value_t = 1)]
    connections: u16,
    /// Error recovery level of the sessions.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    level: u8,
    /// Bytes of a command. Commands of more than 64 KiB are sequential, others have random
    /// addresses.
    #[arg(long, default_value_t = 4096)]
    bytes: u32,
    /// Length of one round in seconds.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Number of rounds, each with a measurement.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl ExternalTargetLoad {
    /// Runs the load, and prints a line for each round.
    pub fn measure(&self) -> Result<()> {
        machine::confine(machine::CLIENT_CPU)?;
        machine::prefer();
        let load = BenchLoad {
            write: self.write,
            durable: self.durable,
            bytes: self.bytes,
            random: self.bytes <= 64 << 10,
            sessions: self.sessions,
            connections: self.connections,
            level: self.level,
            ..BenchLoad::read_4k(self.depth.into())
        };
        let login = ClientLogin::new(self.address, &self.name, 0);
        let time = Duration::from_secs_f64(self.seconds.clamp(0.05, 600.0));
        for _ in 0..self.rounds {
            let point = measure(&login, &load, &[self.process], time)?;
            println!(
                "{:>9.0}/s  p50 {:>7.1} us  p99 {:>7.1} us  server {:>6.2} us each, {:.4} switches",
                point.per_second(),
                point.median_us(),
                point.quantile_us(0.99),
                point.cpu_us(),
                point.switches()
            );
        }
        Ok(())
    }
}
