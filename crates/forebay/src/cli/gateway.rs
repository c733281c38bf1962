//! `forebay gateway` and `forebay claim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use config::quantity::{REMEDY, Size, TimeSpan};
use control::{Rate, UnitName};

use super::control_call::{ControlCallArgs, Whom};

/// Arguments of `gateway`.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    /// The command.
    #[command(subcommand)]
    pub act: GatewayAct,
}

/// Commands to a cache.
#[derive(Debug, Subcommand)]
pub enum GatewayAct {
    /// Wait until everything acknowledged so far is stable at the far side
    Flush(SendDown),
    /// Wait until everything is stable at the far side
    ///
    /// While hosts continue to write, this may never be the case: use `flush` then.
    Drain(SendDown),
    /// Pause destage until `resume`
    ///
    /// Writes that have been sent already arrive. Hosts can write until the log is full; then they get BUSY, or with
    /// `order = "relaxed"` their writes bypass the log. A pause lasts over a reload, and ends with the process.
    Pause(OfCache),
    /// End a pause
    Resume(OfCache),
    /// Export the log of a unit, so that it can be moved to another host
    ///
    /// The unit accepts no more writes from its hosts. Acknowledged data that is not at the far side is in the log,
    /// including that of the NVRAM. Prints the settings that the other host needs. Works in the process that serves
    /// with these settings, or, if there is none, without one. The volume stays claimed.
    Export(Export),
    /// Adopt a log that was moved here from another host
    ///
    /// Checks that it is complete and belongs to the volume, takes over the volume's claim at the node, so that the
    /// former owner of the log is fenced, and prepares it for `forebay serve`.
    Adopt(Adopt),
    /// Give up data of a permanently lost volume in the log of a common cache
    ///
    /// While such a volume is away, no data that was written after its data is destaged, not even for other volumes.
    /// The gateway must be stopped. The other volumes lose nothing, and the order of their writes is preserved.
    /// Prints first what this volume loses, and discards it only with `--lose-dirty-data`. Remove its unit from the
    /// settings afterwards.
    GiveUp(GiveUp),
    /// Add a volume that was given up to its common cache again, in the state of its far side
    ///
    /// It is added at the next start of a gateway whose settings have it. Data that was given up stays lost.
    TakeIn(OfLog),
    /// Resize the log of a cache during operation
    ///
    /// A file grows immediately, if its file system has room. Before the log shrinks, data beyond the new end is
    /// destaged, and the command waits for that; if it gives up, it can be repeated. The new size is kept from then
    /// on, regardless of `log_size`.
    LogResize {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// The new size, such as 8GiB; leave it out for a block device that has grown
        size: Option<Size>,

        /// Give up after this long, such as `10min`
        #[arg(long, value_name = "TIME")]
        timeout: Option<TimeSpan>,

        /// The addressed process and the output format.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Switch the unit of a pair over to the other gateway
    ///
    /// To the active gateway: hands the unit over to the standby partner, if that has all data. Nothing is drained,
    /// and hosts reconnect to the same unit through the partner's portal. To the standby gateway: takes the unit over
    /// immediately, if the partner does not answer.
    Takeover(OfCache),
    /// Replace a half of a mirrored log, and fill it from the other half
    ///
    /// For a device that was lost or is to be replaced: configure or insert the new one, then give this command. The
    /// content of the new device is overwritten. `status` shows the progress.
    Renew {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// 1 for `log`, 2 for `log_mirror`
        #[arg(value_parser = stack::half)]
        half: u8,

        /// The addressed process and the output format.
        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Limit the bytes per second of destage
    ///
    /// It overrides `destage_rate` and `destage_rates` of the settings until `settings` is given, and ends with the
    /// process.
    Rate {
        /// The unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Such as 20MiB, or `unlimited`, or `settings`
        #[arg(value_parser = parse_rate)]
        rate: Rate,

        /// The addressed process and the output format.
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

    /// The settings (TOML) with which it is served
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

    /// The settings (TOML) with which it will be served
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

/// Arguments of `gateway give-up`.
#[derive(Args, Debug)]
pub struct GiveUp {
    /// The volume.
    #[command(flatten)]
    pub of: OfLog,

    /// Proceed although acknowledged writes are in the log only
    #[arg(long)]
    pub lose_dirty_data: bool,
}

/// A volume in the log of a common cache.
#[derive(Args, Debug)]
pub struct OfLog {
    /// The unit of the volume: TARGET, or TARGET/LUN
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
    /// The cache.
    #[command(flatten)]
    pub of: OfCache,

    /// Give up after this long, such as `10min`; data that has been sent stays sent
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<TimeSpan>,
}

/// A cache.
#[derive(Args, Debug)]
pub struct OfCache {
    /// The unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// The addressed process and the output format.
    #[command(flatten)]
    pub told: ControlCallArgs,
}

/// Arguments of `claim`.
#[derive(Args, Debug)]
pub struct ClaimArgs {
    /// The command.
    #[command(subcommand)]
    pub act: ClaimAct,
}

/// Commands for claims.
#[derive(Debug, Subcommand)]
pub enum ClaimAct {
    /// Show the last owner of a claim on a unit, and whether it is in force
    Show(OfCache),
    /// End a claim, so that everybody may write to the unit
    ///
    /// Data that its owner's log still has is refused from then on. If there may be any, its loss has to be accepted
    /// explicitly. A cache that only reads ahead loses nothing.
    Drop {
        /// The unit: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Proceed although acknowledged writes may be in its owner's log only
        #[arg(long)]
        lose_dirty_data: bool,

        /// The addressed process.
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
