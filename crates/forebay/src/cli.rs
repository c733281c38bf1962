//! The command line: the commands of the program and their options. Doc comments here are the texts of `--help`.

mod control_call;
mod gateway;
mod volume;
mod initiator;
mod object;
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
pub use object::{
    AttributeName, AttributeValue, DriveArgs, IntegrityAlgorithm, Method, ObjectAct, ObjectArgs,
    ObjectName,
};
pub use tools::{KeyArgs, LinkArgs, Quickstart, Relay, SecretArgs, Tunnel, TunnelEnd};
pub use volume::{NamesArgs, VolumeAct, VolumeArgs};

use crate::lab::Lab;

/// Storage over IP that makes far volumes feel near
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong settings or command line.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: ForebayCommand,

    /// Events to show on stderr: off, error, warn, info, debug, trace, or a filter such as `info,cache=debug`
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
    #[command(after_help = "Example:\n  forebay serve --config forebay.toml")]
    Serve(Serve),
    /// Check settings, and everything that they refer to, without changing anything
    ///
    /// Parses the settings. Opens volume files, devices and logs for reading and reports their content. Checks NVRAM
    /// files, opens the portals for a moment to see whether their addresses are free, logs in to far targets, and
    /// compares the volume there with the one that the log belongs to. If a process serves with the control socket of
    /// these settings, the command also reports what `forebay reload` would change.
    ///
    /// Of an object drive that is not served, all tables are compared with each other and all data with its checksums,
    /// which may take long. The exit code is 1 if something cannot be used as it is.
    #[command(after_help = "Example:\n  forebay check --config forebay.toml")]
    Check(CheckArgs),
    /// Show the health of a serving process and of its volumes
    #[command(after_help = "Example:\n  forebay status --watch 2s")]
    Status(StatusArgs),
    /// Make a serving process read its settings again and apply the changes
    ///
    /// Applies either all changes or none. If a key cannot be changed during operation, the command names it, and the
    /// present settings stay in force. `forebay check` shows the changes without applying them. SIGHUP to the process
    /// has the same effect.
    #[command(after_help = "Example:\n  forebay reload --config forebay.toml")]
    Reload(Reload),
    /// Grow the file or block device of a unit during operation
    ///
    /// Initiators are notified of the new capacity. If the settings contain the `size` of the file, change it there and
    /// use `forebay reload` instead, because a start with a different size is refused.
    #[command(after_help = "Example:\n  forebay resize iqn.2026-11.com.example:vol0 0 20GiB")]
    Resize(Resize),
    /// Control the cache of a gateway: destage its data, pause destage, limit its rate, move its log
    #[command(after_help = "Example:\n  forebay gateway drain iqn.2026-11.com.example:vol0")]
    Gateway(GatewayArgs),
    /// Show or drop the claim of a gateway's cache on a unit of this node
    ///
    /// While a gateway has claimed a unit, no other initiator may write to it, because the log of the gateway may hold
    /// acknowledged writes that the unit does not have yet.
    #[command(after_help = "Example:\n  forebay claim show iqn.2026-11.com.example:vol0")]
    Claim(ClaimArgs),
    /// Remove the record of the volume or log that was used at a path, so that another may be used there
    ///
    /// A volume file or log that is missing, blank or replaced is not served, because a record says that another one
    /// belongs there. Without the record, the next start uses the file that is at the path, or creates a new one. The
    /// file itself is not changed.
    #[command(after_help = "Example:\n  forebay forget /srv/vol0.img --config forebay.toml")]
    Forget(Forget),
    /// List the targets of a portal, or the units of a target
    #[command(after_help = "Example:\n  forebay ls iscsi://10.0.0.2")]
    Ls(Ls),
    /// List the volumes of the naming service, and the nodes that serve them
    #[command(after_help = "Example:\n  forebay names --json")]
    Names(NamesArgs),
    /// Move a volume to another node during operation, or list moves
    #[command(after_help = "Example:\n  forebay volume move payroll --to cellar")]
    Volume(VolumeArgs),
    /// Use an object drive: keys, partitions, objects, attributes and capabilities
    #[command(
        after_help = "Example:\n  forebay object list iscsi://10.0.0.2/iqn.2026-11.com.example:drive --key-file drive.key"
    )]
    Object(Box<ObjectArgs>),
    /// Attach a volume to this host as a block device, without the kernel's initiator
    ///
    /// Serves the device until SIGTERM, SIGINT or `forebay detach`, and then waits until the last write is stable.
    /// Prints `ready` and the device once it exists. Needs root, FUSE and the loop driver.
    #[command(
        after_help = "Example:\n  forebay attach iscsi://10.0.0.2/iqn.2026-11.com.example:vol0/0 --mount /mnt"
    )]
    Attach(Attach),
    /// Detach a device of `forebay attach` once everything written to it is stable
    #[command(after_help = "Example:\n  forebay detach /mnt")]
    Detach(Detach),
    /// Relay iSCSI connections through TLS 1.3, for initiators and targets without TLS
    #[command(
        after_help = "Example:\n  forebay tunnel connect --listen 127.0.0.1:3260 --to node.example:3263 \\\n    \
                            --certificate host.pem --key host.key --ca ca.pem"
    )]
    Tunnel(Tunnel),
    /// Create a random CHAP secret in a new file that only its owner can read
    #[command(after_help = "Example:\n  forebay secret alice.secret")]
    Secret(SecretArgs),
    /// Create the key of an encrypted volume in a new file, wrapped by a secret
    #[command(after_help = "Example:\n  forebay key volume.key --secret-file volume.secret")]
    Key(KeyArgs),
    /// Demonstrate everything on this machine: a node, a slow link, a gateway, a crash
    #[command(after_help = "Example:\n  forebay quickstart --keep")]
    Quickstart(Quickstart),
    /// Use the laboratory: emulated long links, workloads, and the experiments of three papers
    #[command(after_help = "Example:\n  forebay lab wan run --delay 8ms --rate 1Gbit")]
    Lab(Box<Lab>),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  forebay completions bash > /etc/bash_completion.d/forebay")]
    Completions {
        /// Shell for which to print the script
        shell: Shell,
    },
    /// Print the manual page in roff format, or write a page for each command and for the settings file
    #[command(after_help = "Example:
  forebay man --out /usr/local/share/man")]
    Man(ManArgs),
    /// Relay TCP connections over an emulated link
    #[command(hide = true)]
    Link(LinkArgs),
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write all pages to the folders man1 and man5 below this folder, such as /usr/local/share/man
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Serve {
    /// Settings file (TOML); forebay.example.toml shows every key
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the line `ready ADDRESS…` to this open file descriptor instead of stdout, once it listens
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Settings file (TOML) to check
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub whom: Whom,

    /// Print all figures of all layers, sessions and connections
    #[arg(long)]
    pub all: bool,

    /// Print the status as JSON
    #[arg(long, conflicts_with = "all")]
    pub json: bool,

    /// Print one line and exit like a monitoring plug-in: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long, conflicts_with_all = ["all", "json", "watch"])]
    pub check: bool,

    /// Print the status repeatedly, at this interval, such as `2s`
    #[arg(long, value_name = "TIME")]
    pub watch: Option<TimeSpan>,
}

#[derive(Args, Debug)]
pub struct Reload {
    #[command(flatten)]
    pub whom: Whom,
}

#[derive(Args, Debug)]
pub struct Resize {
    /// iSCSI name of the target
    pub target: String,

    /// LUN of the unit in the target
    pub lun: u16,

    /// New size, such as 20GiB; leave it out for a block device that has grown
    pub size: Option<Size>,

    #[command(flatten)]
    pub whom: Whom,
}

#[derive(Args, Debug)]
pub struct Forget {
    /// Path of the volume file, device or log, as the message shows it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// Settings file (TOML) that refers to this path
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,

    /// Remove the record even though acknowledged writes may be lost
    #[arg(long)]
    pub lose_data: bool,

    /// State that all hosts have unmounted the volume; needed with --lose-data
    #[arg(long)]
    pub hosts_unmounted: bool,
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    #[test]
    fn the_command_line_passes_the_checks_of_clap() {
        Cli::command().debug_assert();
    }

    /// Returns why a command of a remedy cannot be run as written: an option or subcommand is unknown or missing. A
    /// command without arguments is only named. Any text stands for a value.
    fn refused(command: &str) -> Option<String> {
        let error = Cli::try_parse_from(command.split_whitespace()).err()?;
        let has_arguments = command.contains(" -")
            || command.contains(['…', '/'])
            || command != command.to_lowercase();
        let is_wrong = match error.kind() {
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
            ErrorKind::MissingRequiredArgument => has_arguments,
            _ => false,
        };
        is_wrong.then(|| error.to_string())
    }

    #[test]
    fn the_commands_of_all_remedies_can_be_run_as_written() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/messages.md");
        let page = std::fs::read_to_string(page).unwrap();
        let forget = config::forget_command(Path::new("a.toml"), Path::new("a.log"), true);
        let rows = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let commands = rows.filter(|code| code.starts_with("forebay ")).chain([&*forget]);
        let commands: BTreeSet<&str> = commands.flat_map(|code| code.split(" && ")).collect();
        assert!(commands.len() > 20, "{commands:?}");
        let wrong: Vec<String> = commands.into_iter().filter_map(refused).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(refused("forebay key FILE").is_some());
        assert!(refused("forebay gateway drane").is_some());
        assert!(refused("forebay status --everything").is_some());
    }
}
