//! The command line of `forebay gateway` and `forebay claim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use config::quantity::{REMEDY, Size, TimeSpan};
use control::{Rate, UnitName};

use super::control_call::{ControlCallArgs, Whom};

#[derive(Args, Debug)]
pub struct GatewayArgs {
    #[command(subcommand)]
    pub act: GatewayAct,
}

/// Commands to a cache.
#[derive(Debug, Subcommand)]
pub enum GatewayAct {
    /// Destage all data that is acknowledged now, and wait until it is stable on the far volume
    #[command(
        after_help = "Example:\n  forebay gateway flush iqn.2026-11.com.example:vol0 --timeout 10min"
    )]
    Flush(SendDown),
    /// Destage all dirty data, and wait until the far volume has everything
    ///
    /// While hosts continue to write, this may never be the case: use `flush` then.
    #[command(
        after_help = "Example:\n  forebay gateway drain iqn.2026-11.com.example:vol0 --timeout 10min"
    )]
    Drain(SendDown),
    /// Pause destage until `resume`
    ///
    /// Writes in flight complete. Hosts can write until the log is full; then they get BUSY, or with `order =
    /// "relaxed"` their writes bypass the log. A pause survives a reload, and ends with the process.
    #[command(after_help = "Example:\n  forebay gateway pause iqn.2026-11.com.example:vol0")]
    Pause(OfCache),
    /// End a pause, so that destage continues
    #[command(after_help = "Example:\n  forebay gateway resume iqn.2026-11.com.example:vol0")]
    Resume(OfCache),
    /// Close the log of a unit, so that it can be moved to another host
    ///
    /// From then on the unit refuses writes from its hosts. All acknowledged data that the far volume lacks is in the
    /// log, including that of the NVRAM. Prints the settings that the other host needs. If a process serves with these
    /// settings, it closes the log; otherwise this command does. The volume stays claimed.
    #[command(
        after_help = "Example:\n  forebay gateway export iqn.2026-11.com.example:vol0 --config a.toml --to b.toml"
    )]
    Export(Export),
    /// Adopt a log that was moved here from another host
    ///
    /// Checks that the log is complete and belongs to the volume, takes over the volume's claim at the node, which
    /// fences the former owner of the log, and prepares the log for `forebay serve`.
    #[command(
        after_help = "Example:\n  forebay gateway adopt iqn.2026-11.com.example:vol0 --config b.toml"
    )]
    Adopt(Adopt),
    /// Remove a permanently lost volume from the log of a common cache
    ///
    /// While such a volume is away, no data that was written after its data is destaged, not even for other volumes.
    /// The gateway must be stopped. The other volumes lose nothing, and the order of their writes is kept. The command
    /// first prints what this volume loses, and discards it only with `--lose-dirty-data` and
    /// `--hosts-unmounted`. Remove its unit from the settings afterwards.
    #[command(
        after_help = "Example:\n  forebay gateway give-up iqn.2026-11.com.example:vol0/1 --config forebay.toml"
    )]
    GiveUp(GiveUp),
    /// Add a volume that was removed with `give-up` to its common cache again, with its present content
    ///
    /// The volume is added at the next start of a gateway whose settings contain it. Discarded data stays lost.
    #[command(
        after_help = "Example:\n  forebay gateway take-in iqn.2026-11.com.example:vol0/1 --config forebay.toml"
    )]
    TakeIn(OfLog),
    /// Resize the log of a cache during operation
    ///
    /// A log file grows at once if its file system has the space. Before the log shrinks, the data beyond the new end
    /// is destaged, and the command waits for that; if it times out, repeat it. The new size is kept from then on,
    /// regardless of `log_size`.
    #[command(
        after_help = "Example:\n  forebay gateway log-resize iqn.2026-11.com.example:vol0 8GiB"
    )]
    LogResize {
        /// Unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// New size, such as 8GiB; leave it out for a block device that has grown
        size: Option<Size>,

        /// Stop waiting after this time, such as `10min`
        #[arg(long, value_name = "TIME")]
        timeout: Option<TimeSpan>,

        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Switch the unit of a pair to the other gateway
    ///
    /// If the called gateway is active, it hands the unit over to its partner, provided that the partner has all data.
    /// Nothing is drained, and hosts reconnect to the same unit through the partner's portal. If the called gateway is
    /// the standby, it takes over the unit at once, provided that the partner does not answer.
    #[command(after_help = "Example:\n  forebay gateway takeover iqn.2026-11.com.example:vol0")]
    Takeover(OfCache),
    /// Replace one leg of a mirrored log, and fill it from the other leg
    ///
    /// For a device that was lost or is to be replaced: configure or insert the new one, then run this command. It
    /// overwrites the content of the new device. `forebay status` shows the progress.
    #[command(after_help = "Example:\n  forebay gateway renew iqn.2026-11.com.example:vol0 2")]
    Renew {
        /// Unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Leg to replace: 1 for `log`, 2 for `log_mirror`
        #[arg(value_parser = stack::half)]
        half: u8,

        #[command(flatten)]
        told: ControlCallArgs,
    },
    /// Limit the rate of destage
    ///
    /// The limit overrides `destage_rate` and `destage_rates` of the settings until the rate `settings` is given, or
    /// until the process ends.
    #[command(after_help = "Example:\n  forebay gateway rate iqn.2026-11.com.example:vol0 20MiB")]
    Rate {
        /// Unit with the cache: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Bytes per second such as 20MiB (4KiB or more), or `unlimited`, or `settings`
        #[arg(value_parser = parse_rate)]
        rate: Rate,

        #[command(flatten)]
        told: ControlCallArgs,
    },
}

#[derive(Args, Debug)]
pub struct Export {
    /// Unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// Settings file (TOML) with which the unit is served
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the settings for the other host to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Adopt {
    /// Unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// Settings file (TOML) with which the unit will be served
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

#[derive(Args, Debug)]
pub struct GiveUp {
    #[command(flatten)]
    pub of: OfLog,

    /// Discard data of this volume that is only in the log: these acknowledged writes are lost
    #[arg(long)]
    pub lose_dirty_data: bool,

    /// State that all hosts have unmounted the volume; needed with --lose-dirty-data
    #[arg(long)]
    pub hosts_unmounted: bool,
}

/// A volume in the log of a common cache.
#[derive(Args, Debug)]
pub struct OfLog {
    /// Unit of the volume: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// Settings file (TOML) with the common cache; it need not contain the unit any more
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct SendDown {
    #[command(flatten)]
    pub of: OfCache,

    /// Stop waiting after this time, such as `10min`; data that has been sent stays sent
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<TimeSpan>,
}

/// The unit whose cache a command addresses.
#[derive(Args, Debug)]
pub struct OfCache {
    /// Unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    #[command(flatten)]
    pub told: ControlCallArgs,
}

#[derive(Args, Debug)]
pub struct ClaimArgs {
    #[command(subcommand)]
    pub act: ClaimAct,
}

/// The commands that concern the claim on a unit.
#[derive(Debug, Subcommand)]
pub enum ClaimAct {
    /// Show the last claim on a unit: its owner, its log, and whether it is in force
    #[command(after_help = "Example:\n  forebay claim show iqn.2026-11.com.example:vol0")]
    Show(OfCache),
    /// Drop the claim on a unit, so that other initiators may write to it
    ///
    /// From then on, the node refuses the data that the owner's log still holds. If there may be such data, the command
    /// needs --lose-dirty-data and --hosts-unmounted. Dropping the claim of a cache that only reads loses nothing.
    #[command(after_help = "Example:\n  forebay claim drop iqn.2026-11.com.example:vol0")]
    Drop {
        /// Unit: TARGET, or TARGET/LUN
        #[arg(value_name = "VOLUME")]
        unit: UnitName,

        /// Drop the claim even though acknowledged writes may be only in the owner's log: they are lost
        #[arg(long)]
        lose_dirty_data: bool,

        /// State that all hosts have unmounted the volume; needed with --lose-dirty-data
        #[arg(long)]
        hosts_unmounted: bool,

        #[command(flatten)]
        whom: Whom,
    },
}

/// Parses a destage rate: bytes per second (4 KiB or more), `settings` or `unlimited`.
fn parse_rate(text: &str) -> Result<Rate, String> {
    let at_least = Size::kib(4);
    match text {
        "settings" => Ok(Rate::Settings),
        "unlimited" => Ok(Rate::Unlimited),
        _ => match text.parse::<Size>()? {
            rate if rate < at_least => Err(format!(
                "{rate} per second is less than {at_least}{REMEDY}to send nothing at all, use \
                 `forebay gateway pause`"
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
