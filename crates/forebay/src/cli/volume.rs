//! `forebay volume` and `forebay names`.

use clap::{Args, Subcommand};
use config::quantity::{Size, TimeSpan};

use super::control_call::{ControlCallArgs, Whom};

/// Arguments of `names`.
#[derive(Args, Debug)]
pub struct NamesArgs {
    /// The addressed process.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `volume`.
#[derive(Args, Debug)]
pub struct VolumeArgs {
    /// The command.
    #[command(subcommand)]
    pub act: VolumeAct,
}

/// Commands for volumes of nodes.
#[derive(Debug, Subcommand)]
pub enum VolumeAct {
    /// Move a volume to another node
    ///
    /// Give this command to the node that has the volume. Its blocks are copied while hosts use it. Then hosts wait
    /// for a moment, and find it at the other node: gateways by its name, others by a redirection from here. Target
    /// name, LUN and serial number stay the same. The other node has to accept volumes (`[accept]` in its settings).
    /// The move continues when this command is ended; the same command shows its progress then.
    Move {
        /// gln:NAME, NAME, or the name of its target
        volume: String,

        /// The other node: its number (GLN), or its name if it is unique
        #[arg(long, value_name = "NODE")]
        to: String,

        /// Maximum bytes per second, such as 20MiB; the last part of the copy is not limited
        #[arg(long, value_name = "RATE")]
        rate: Option<Size>,

        /// Maximum time that hosts wait for the last part of the copy, 100ms to 20s; if it takes longer, the move is
        /// cancelled [default: 10s]
        #[arg(long, value_name = "TIME")]
        pause: Option<TimeSpan>,

        /// The addressed process and the output format.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Cancel a move: the volume stays where it is
    Cancel {
        /// gln:NAME or NAME
        volume: String,

        /// The addressed process and the output format.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Show volumes that are being moved from or to a node, or have been
    List(ControlCallArgs),
}
