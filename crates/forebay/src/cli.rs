//! The command line.

mod control_call;
mod gateway;
mod volume;
mod initiator;
mod tools;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
use config::quantity::{Size, TimeSpan};

pub use control_call::{ControlCallArgs, Whom};
pub use gateway::{
    Adopt, ClaimAct, ClaimArgs, Export, GatewayAct, GatewayArgs, GiveUp, OfCache, OfLog, SendDown,
};
pub use initiator::{Attach, Credentials, Detach, Ls};
pub use tools::{KeyArgs, LinkArgs, Quickstart, Relay, SecretArgs, Tunnel, TunnelEnd};
pub use volume::{NamesArgs, VolumeAct, VolumeArgs};

use crate::lab::Lab;

/// Storage over IP that makes far volumes feel near.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong settings or command line.")]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: ForebayCommand,

    /// Events to show on stderr: off, error, warn, info, debug, trace, or a filter such as
    /// `info,cache=debug`
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<String>,

    /// Show more events: -v debug, -vv trace
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log_level")]
    pub verbose: u8,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum ForebayCommand {
    /// Serve the targets of a settings file until SIGTERM or SIGINT
    Serve(Serve),
    /// Check settings and everything they refer to, without changing anything
    ///
    /// Reads the settings; opens files, devices and logs for reading and reports their content; checks NVRAM files;
    /// opens the portals for a moment to see whether they are available; logs in to far sides and reports whether the
    /// volume there is the one that the log belongs to. If a process serves with the control socket of these
    /// settings, reports what `forebay reload` would change.
    Check(CheckArgs),
    /// Show the health of a serving process and of its volumes
    Status(StatusArgs),
    /// Let a serving process read its settings again and apply the changes
    ///
    /// All or nothing: if something cannot be changed during operation, it is named, and the present settings stay in
    /// force. `forebay check` shows the changes without applying them. SIGHUP does the same.
    Reload(Reload),
    /// Let a unit on a file or block device grow during operation
    ///
    /// Initiators are told that the capacity has changed. If the settings have the file's `size`, change it there and
    /// reload instead: a start with another size is refused.
    Resize(Resize),
    /// Control the cache of a gateway: destage its data, pause destage, or limit its rate
    Gateway(GatewayArgs),
    /// Show or end the claim of a gateway's cache on a unit of this node
    ///
    /// While a cache has acknowledged writes that the unit does not have yet, nobody else may change the unit.
    Claim(ClaimArgs),
    /// Forget which volume or log was used at a path, so that another may replace it
    ///
    /// A volume file or log that is missing, blank or replaced is not served, because its record says that there was
    /// another one. Without the record, the next start uses what is at the path, or creates a new one. The file
    /// itself is not changed.
    Forget(Forget),
    /// List the targets of a portal, or the units of a target
    Ls(Ls),
    /// Show the known volumes by name, with their nodes
    Names(NamesArgs),
    /// Move a volume to another node during operation, or show moves
    Volume(VolumeArgs),
    /// Make a block device of this host from a volume, without the kernel's initiator
    ///
    /// Serves until SIGTERM, SIGINT or `forebay detach`, and then waits for the last write. Prints `ready` and the
    /// device when it exists. Needs root, FUSE and the loop driver.
    Attach(Attach),
    /// Remove a device of `forebay attach`, after everything on it is written and stable
    Detach(Detach),
    /// Relay iSCSI connections through TLS 1.3, for initiators and targets without TLS
    Tunnel(Tunnel),
    /// Create a random CHAP secret in a new file that only its owner can read
    Secret(SecretArgs),
    /// Create the key of an encrypted volume in a new file, encrypted with a secret
    Key(KeyArgs),
    /// Try everything on this machine: a node, a slow link, a gateway, a crash
    Quickstart(Quickstart),
    /// The laboratory: distance, loss and load between programs of this host
    Lab(Box<Lab>),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page (roff)
    Man,
    /// Relay TCP connections over an emulated line
    #[command(hide = true)]
    Link(LinkArgs),
}

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// The settings (TOML); forebay.example.toml shows every key
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the line `ready ADDRESS…` to this open descriptor instead of stdout, when listening
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The settings (TOML)
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The addressed process.
    #[command(flatten)]
    pub whom: Whom,

    /// Print every figure of every layer, session and connection
    #[arg(long)]
    pub all: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "all")]
    pub json: bool,

    /// Print one line, and exit as a monitoring plug-in does: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long, conflicts_with_all = ["all", "json", "watch"])]
    pub check: bool,

    /// Print again and again, with this time between, such as `2s`
    #[arg(long, value_name = "TIME")]
    pub watch: Option<TimeSpan>,
}

/// Arguments of `reload`.
#[derive(Args, Debug)]
pub struct Reload {
    /// The addressed process.
    #[command(flatten)]
    pub whom: Whom,
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
pub struct Resize {
    /// The target's iSCSI name
    pub target: String,

    /// The LUN
    pub lun: u16,

    /// The new size, such as 20GiB; leave it out for a block device
    pub size: Option<Size>,

    /// The addressed process.
    #[command(flatten)]
    pub whom: Whom,
}

/// Arguments of `forget`.
#[derive(Args, Debug)]
pub struct Forget {
    /// The volume file, device or log, as the message shows it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// The settings (TOML) that refer to it
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Proceed although acknowledged writes may be lost with it
    #[arg(long)]
    pub lose_data: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_holds_together() {
        super::Cli::command().debug_assert();
    }
}
