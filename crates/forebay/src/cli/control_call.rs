//! The serving process that a command addresses, and the format of its answer.

use std::path::PathBuf;

use clap::Args;
use config::Settings;
use control::Failure;

use crate::control_socket;

/// The serving process that a command addresses.
#[derive(Args, Debug)]
pub struct Whom {
    /// The control socket of the process
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub control: Option<PathBuf>,

    /// Use the control socket that these settings configure
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Whom {
    /// Returns the path of the control socket.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match (&self.control, &self.config) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(config)) => control_socket::path(&Settings::load_without_secrets(config)?),
            (None, None) => control_socket::default_path(),
        }
    }
}

/// The process that a command addresses, and the output format.
#[derive(Args, Debug)]
pub struct ControlCallArgs {
    /// The addressed process.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
