//! `forebay gateway` and `forebay claim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use control::{Rate, UnitName};

use super::control_call::{ControlCallArgs, Whom};
use crate::{
    quantity::{REMEDY, Size, TimeSpan},
    stack,
};

/// Arguments of `gateway`.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    /// What to do.
    #[command(subcommand)]
    pub act: GatewayAct,
}

/// What a cache can be told.
#[derive(Debug, Subcommand)]
pub enum GatewayAct {
    /// Wait until what was acknowledged by now is at the far side, stable
    Flush(SendDown),
    /// Wait until the far side has everything, stable
    ///
    /// While hosts go on writing that may never be: `flush` ends all the same.
    Drain(SendDown),
    /// Send nothing more to the far side until `resume`
    ///
    /// What is on its way arrives. Writes go on into the log until it is full; then hosts get BUSY, or
    /// with `order = "relaxed"` they go past it. A pause lasts over a reload, and ends with the process.
    Pause(OfCache),
    /// End a pause
    Resume(OfCache),
    /// Put the log of a unit away, whole, to be moved to another host and taken up there
    ///
    /// The unit takes no more from its hosts; what was acknowledged and is not at the far side is in the
    /// log, that of the NVRAM too. Prints the settings that the other host needs. Works in the
    /// process that serves with these settings, or, if there is none, without one. The volume stays
    /// claimed.
    Export(Export),
    /// Take up a log that was brought here from another host
    ///
    /// Checks that it is whole and belongs to the volume, takes the volume's claim at the node, so that
    /// whoever had the log is shut out, and leaves it ready for `forebay serve`.
    Adopt(Adopt),
    /// Give up what the log of a common cache has of a volume that is gone for good
    ///
    /// While such a volume is away nothing that came after its data goes down, of the others either. The gateway must
    /// be stopped; the others lose nothing, and the order of their writes stays. What is lost of this one is told
    /// first, and done only with `--lose-dirty-data`. Take its unit out of the settings then.
    GiveUp(GiveUp),
    /// Let a volume that was given up be one of its common cache again, as it is at its far side
    ///
    /// It is taken in with the next start of a gateway whose settings name it. What was given up stays lost.
    TakeIn(OfLog),
    /// Give the log of a cache another size while it is in use
    ///
    /// A file grows at once, if its file system has room. To shrink, what lies beyond the new end goes to the
    /// far side first, and the command waits for that; given up, it can be said again. The size holds
    /// from then on, whatever `log_size` says.
    LogResize {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// The size from now on, such as 8GiB; for a block device that has grown, leave it out
        size: Option<Size>,

        /// Give up after this long, such as `10min`
        #[arg(long, value_name = "TIME")]
        timeout: Option<TimeSpan>,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Have the unit of a pair change places
    ///
    /// Asked of the gateway that serves it: hands it over to the partner, who stands by and has everything;
    /// nothing is drained, and hosts come back to the same unit by the partner's portal. Asked of the one
    /// that stands by: takes the unit over at once, if the partner does not answer.
    Takeover(OfCache),
    /// Take a half of a mirrored log anew, and fill it from the other
    ///
    /// For a device that was lost, or is to be exchanged: put the new one where the settings say,
    /// then give this order. What it holds is written over. `status` shows how far it is.
    Renew {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// 1 for `log`, 2 for `log_mirror`
        #[arg(value_parser = stack::half)]
        half: u8,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Say how many bytes per second destage may send
    ///
    /// It holds instead of `destage_rate` and `destage_rates` of the settings until `settings` is
    /// said, and ends with the process.
    Rate {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Such as 20MiB, or `unlimited`, or `settings`
        #[arg(value_parser = parse_rate)]
        rate: Rate,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: ControlCallArgs,
    },
}

/// Arguments of `gateway export`.
#[derive(Args, Debug)]
pub struct Export {
    /// The unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// The settings (TOML) that it is served with
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the settings for the other host to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// Arguments of `gateway adopt`.
#[derive(Args, Debug)]
pub struct Adopt {
    /// The unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// The settings (TOML) that it will be served with
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

/// Arguments of `gateway give-up`.
#[derive(Args, Debug)]
pub struct GiveUp {
    /// Which volume.
    #[command(flatten)]
    pub of: OfLog,

    /// Though acknowledged writes to it are in the log alone
    #[arg(long)]
    pub lose_dirty_data: bool,
}

/// Which volume of the log of a common cache is meant.
#[derive(Args, Debug)]
pub struct OfLog {
    /// The unit that the volume was served as: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// The settings (TOML) with the common cache; they need not have the unit any more
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `gateway flush` and `gateway drain`.
#[derive(Args, Debug)]
pub struct SendDown {
    /// Which cache.
    #[command(flatten)]
    pub of: OfCache,

    /// Give up after this long, such as `10min`; what was sent until then is sent
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<TimeSpan>,
}

/// Which cache is meant.
#[derive(Args, Debug)]
pub struct OfCache {
    /// The unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// How it is told, and to whom.
    #[command(flatten)]
    pub told: ControlCallArgs,
}

/// Arguments of `claim`.
#[derive(Args, Debug)]
pub struct ClaimArgs {
    /// What to do.
    #[command(subcommand)]
    pub act: ClaimAct,
}

/// What can be done about a claim.
#[derive(Debug, Subcommand)]
pub enum ClaimAct {
    /// Show who claimed a unit last, and whether that is in force
    Show(OfCache),
    /// End a claim: anybody may write to the unit then
    ///
    /// What its owner's log still has is refused from then on. If that may be anything, it has to be
    /// said that it may be lost. A cache that only reads ahead loses nothing.
    Drop {
        /// The unit: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Though acknowledged writes may be in its owner's log alone
        #[arg(long)]
        lose_dirty_data: bool,

        /// Whom to tell.
        #[command(flatten)]
        whom: Whom,
    },
}

/// Reads a rate of destage: bytes per second (4 KiB or more), `settings` or `unlimited`.
fn parse_rate(text: &str) -> Result<Rate, String> {
    let at_least = Size::kib(4);
    match text {
        "settings" => Ok(Rate::Settings),
        "unlimited" => Ok(Rate::Unlimited),
        _ => match text.parse::<Size>()? {
            rate if rate < at_least => Err(format!(
                "{rate} in a second is less than {at_least}{REMEDY}to send nothing at all, pause"
            )),
            rate => Ok(Rate::Bytes(rate.0)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bytes_or_a_word() {
        assert_eq!(parse_rate("20 MiB"), Ok(Rate::Bytes(20 << 20)));
        assert_eq!(parse_rate("settings"), Ok(Rate::Settings));
        assert_eq!(parse_rate("unlimited"), Ok(Rate::Unlimited));
        for wrong in ["0", "1", "fast"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
