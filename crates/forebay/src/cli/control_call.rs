//! Options that select the serving process to call, and the format of its response.

use std::path::PathBuf;

use clap::Args;
use config::Settings;
use control::Failure;

use crate::control_socket;

/// The serving process that a command calls.
#[derive(Args, Debug)]
pub struct Whom {
    /// Control socket of the process
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub control: Option<PathBuf>,

    /// Settings file whose control socket to use [default: the default control socket of this user]
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

/// The process that a command calls, and the output format.
#[derive(Args, Debug)]
pub struct ControlCallArgs {
    #[command(flatten)]
    pub whom: Whom,

    /// Print the response as JSON
    #[arg(long)]
    pub json: bool,
}
