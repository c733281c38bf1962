//! The command line of `forebay volume` and `forebay names`.

use clap::{Args, Subcommand};
use config::quantity::{Size, TimeSpan};

use super::control_call::{ControlCallArgs, Whom};

#[derive(Args, Debug)]
pub struct NamesArgs {
    #[command(flatten)]
    pub whom: Whom,

    /// Print the nodes and volumes as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct VolumeArgs {
    #[command(subcommand)]
    pub act: VolumeAct,
}

/// The commands that move volumes between nodes.
#[derive(Debug, Subcommand)]
pub enum VolumeAct {
    /// Move a volume to another node while hosts use it
    ///
    /// Run this command at the node that has the volume. Its blocks are copied while hosts use it. Then hosts wait for
    /// a moment and find the volume at the other node: gateways by its name, other initiators through a redirect from
    /// here. Target name, LUN and serial number stay the same. The other node must accept volumes (`[accept]` in its
    /// settings). If this command is interrupted, the move continues; run it again to see the progress.
    #[command(after_help = "Example:\n  forebay volume move payroll --to cellar --rate 100MiB")]
    Move {
        /// Volume: gln:NAME, NAME, or the iSCSI name of its target
        volume: String,

        /// Destination node: its number (GLN), or its name if that is unique
        #[arg(long, value_name = "NODE")]
        to: String,

        /// Maximum rate in bytes per second, such as 20MiB; the last part of the copy is not limited
        #[arg(long, value_name = "RATE")]
        rate: Option<Size>,

        /// Maximum time that hosts wait for the last part of the copy, 100ms to 20s; if it takes longer, the move is
        /// cancelled [default: 10s]
        #[arg(long, value_name = "TIME")]
        pause: Option<TimeSpan>,

        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Cancel a move, so that the volume stays at its node
    #[command(after_help = "Example:\n  forebay volume cancel payroll")]
    Cancel {
        /// Volume: gln:NAME or NAME
        volume: String,

        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// List volumes that are moving from or to a node, or have moved
    #[command(after_help = "Example:\n  forebay volume list")]
    List(ControlCallArgs),
}
