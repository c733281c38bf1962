//! `forebay volume` and `forebay names`.

use clap::{Args, Subcommand};

use super::control_call::{ControlCallArgs, Whom};
use crate::quantity::{Size, TimeSpan};

/// Arguments of `names`.
#[derive(Args, Debug)]
pub struct NamesArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `volume`.
#[derive(Args, Debug)]
pub struct VolumeArgs {
    /// What to do.
    #[command(subcommand)]
    pub act: VolumeAct,
}

/// What can be done with volumes of nodes.
#[derive(Debug, Subcommand)]
pub enum VolumeAct {
    /// Move a volume to another node
    ///
    /// Told to the node that has it. Its blocks are copied while hosts use it; then they wait for a moment,
    /// and find it at the other node: gateways by its name, others by a redirect from here. Target name, LUN and serial number stay.
    /// The other node has to take volumes (`[accept]` in its settings). The move goes on when this command is ended; said
    /// again, it shows how far it is.
    Move {
        /// gln:NAME, NAME, or the name of its target
        volume: String,

        /// The other node: its number (GLN), or its name if no other has that
        #[arg(long, value_name = "NODE")]
        to: String,

        /// Bytes per second at most, such as 20MiB; the last of the copy goes as fast as it can
        #[arg(long, value_name = "RATE")]
        rate: Option<Size>,

        /// The longest that hosts wait for the last of the copy, 100ms to 20s; what takes longer is given up
        /// and they go on here [default: 10s]
        #[arg(long, value_name = "TIME")]
        pause: Option<TimeSpan>,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Give up a move: the volume stays where it is
    Cancel {
        /// gln:NAME or NAME
        volume: String,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Show which volumes move from or to a node, have come to it or gone from it
    List(ControlCallArgs),
}
