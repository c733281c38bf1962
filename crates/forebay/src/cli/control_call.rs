//! Which serving process is meant, and how its answer is told.

use std::path::PathBuf;

use clap::Args;

use crate::{control_socket, failure::Failure, settings::Settings};

/// Which serving process is meant.
#[derive(Args, Debug)]
pub struct Whom {
    /// The control socket to ask
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub control: Option<PathBuf>,

    /// Take the control socket's path from these settings
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Whom {
    /// The control socket.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match (&self.control, &self.config) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(config)) => control_socket::path(&Settings::load_without_secrets(config)?),
            (None, None) => control_socket::default_path(),
        }
    }
}

/// How something is told, and to whom.
#[derive(Args, Debug)]
pub struct ControlCallArgs {
    /// Whom to tell.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
