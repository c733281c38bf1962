//! The command line.

mod control_call;
mod gateway;
mod volume;
mod initiator;
mod tools;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

pub use control_call::{ControlCallArgs, Whom};
pub use gateway::{
    Adopt, ClaimAct, ClaimArgs, Export, GatewayAct, GatewayArgs, GiveUp, OfCache, OfLog, SendDown,
};
pub use initiator::{Attach, Credentials, Detach, Ls};
pub use tools::{KeyArgs, LinkArgs, Quickstart, Relay, SecretArgs, Tunnel, TunnelEnd};
pub use volume::{NamesArgs, VolumeAct, VolumeArgs};

use crate::{
    lab::Lab,
    quantity::{Size, TimeSpan},
};

/// Storage over IP that makes far volumes feel near.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong settings or command line.")]
pub struct Cli {
    /// What to do.
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

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum ForebayCommand {
    /// Serve the targets of a settings file until SIGTERM or SIGINT
    Serve(Serve),
    /// Check settings and what they name, without changing anything
    ///
    /// Reads the settings; opens files, devices and logs for reading and says what they hold; looks
    /// at NVRAM files; takes the portals for a moment, to see whether they can be had; logs in to
    /// far sides and says whether the volume there is the one that the log belongs to. If a process
    /// serves with the control socket of these settings, says what `forebay reload` would do in it.
    Check(CheckArgs),
    /// Show the health of a serving process and of its volumes
    Status(StatusArgs),
    /// Let a serving process read its settings again and do what is different in them
    ///
    /// All of it or nothing: what cannot be changed while serving is named, and the settings in
    /// force stay. `forebay check` says before what would be done. SIGHUP does the same.
    Reload(Reload),
    /// Let a unit on a file or block device grow while it is served
    ///
    /// Initiators are told that the capacity has changed. If the settings give the file's `size`,
    /// change it there and reload instead: a start with another size is refused.
    Resize(Resize),
    /// Tell the cache of a gateway to send its data down, to pause, or how fast to go
    Gateway(GatewayArgs),
    /// Show or end the claim of a gateway's cache on a unit of this node
    ///
    /// While a cache has acknowledged writes that the unit does not have yet, nobody else may change
    /// the unit.
    Claim(ClaimArgs),
    /// Forget which volume or log was in use at a path, so that another may take its place
    ///
    /// A volume file or log that is missing, blank or replaced is not served: its record says that
    /// there was another one. Without the record, what is at the path at the next start is taken as it
    /// is, or made anew. The file itself is not touched.
    Forget(Forget),
    /// List the targets of a portal, or the units of a target
    Ls(Ls),
    /// Show which volumes of which nodes are known by name
    Names(NamesArgs),
    /// Move a volume to another node while it is used, or tell what moves
    Volume(VolumeArgs),
    /// Make a block device of this host from a volume, without the kernel's initiator
    ///
    /// Serves until SIGTERM, SIGINT or `forebay detach`, and then waits for the last write. Prints
    /// `ready` and the device when it is there. Needs root, FUSE and the loop driver.
    Attach(Attach),
    /// Take a device of `forebay attach` away, when everything on it is written and stable
    Detach(Detach),
    /// Relay iSCSI connections through TLS 1.3, for initiators and targets that have none
    Tunnel(Tunnel),
    /// Make a random CHAP secret in a new file that only its owner can read
    Secret(SecretArgs),
    /// Make the key of an encrypted volume in a new file, locked by a secret
    Key(KeyArgs),
    /// Try everything on this machine: a node, a slow link, a gateway, a crash
    Quickstart(Quickstart),
    /// The laboratory: distance, loss and load between programs of this host
    Lab(Box<Lab>),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
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

    /// Write the line `ready ADDRESS…` to this open descriptor when listening, instead of stdout
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
    /// Whom to ask.
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
    /// Whom to tell.
    #[command(flatten)]
    pub whom: Whom,
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
pub struct Resize {
    /// The target's iSCSI name
    pub target: String,

    /// The unit's number
    pub lun: u16,

    /// The size from now on, such as 20GiB; for a block device, leave it out
    pub size: Option<Size>,

    /// Whom to tell.
    #[command(flatten)]
    pub whom: Whom,
}

/// Arguments of `forget`.
#[derive(Args, Debug)]
pub struct Forget {
    /// The volume file, device or log, as the message names it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// The settings (TOML) that name it
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Though acknowledged writes may be lost with it
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
