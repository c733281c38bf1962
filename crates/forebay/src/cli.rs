//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    control,
    failure::Failure,
    lab::Lab,
    orders::{Rate, UnitName},
    quantity::{Size, Span},
    settings::{Compression, Congestion, Settings},
    stack,
};

/// Storage over IP that makes far volumes feel near.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong settings or command line.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

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
pub enum Command {
    /// Serve the targets of a settings file until SIGTERM or SIGINT
    Serve(Serve),
    /// Check settings and what they name, without changing anything
    ///
    /// Reads the settings; opens files, devices and logs for reading and says what they hold; looks
    /// at NVRAM files; takes the portals for a moment, to see whether they can be had; logs in to
    /// far sides and says whether the volume there is the one that the log belongs to. If a process
    /// serves with the control socket of these settings, says what `forebay reload` would do in it.
    Check(Check),
    /// Show what a serving process is doing
    Status(Status),
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
    Gateway(Gateway),
    /// Show or end the claim of a gateway's cache on a unit of this node
    ///
    /// While a cache has acknowledged writes that the unit does not have yet, nobody else may change
    /// the unit.
    Claim(Claim),
    /// List the targets of a portal, or the units of a target
    Ls(Ls),
    /// Show which volumes of which nodes are known by name
    Names(Names),
    /// Move a volume to another node while it is used, or tell what moves
    Volume(Volume),
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
    Secret(Secret),
    /// Make the key of an encrypted volume in a new file, locked by a secret
    Key(Key),
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
    Link(Link),
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
pub struct Check {
    /// The settings (TOML)
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct Status {
    /// Whom to ask.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print again and again, with this time between, such as `2s`
    #[arg(long, value_name = "TIME")]
    pub watch: Option<Span>,
}

/// Arguments of `names`.
#[derive(Args, Debug)]
pub struct Names {
    /// Whom to ask.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `volume`.
#[derive(Args, Debug)]
pub struct Volume {
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
        pause: Option<Span>,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: Told,
    },
    /// Give up a move: the volume stays where it is
    Cancel {
        /// gln:NAME or NAME
        volume: String,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: Told,
    },
    /// Show which volumes move from or to a node, have come to it or gone from it
    List(Told),
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

/// Arguments of `gateway`.
#[derive(Args, Debug)]
pub struct Gateway {
    /// What to do.
    #[command(subcommand)]
    pub act: GatewayAct,
}

/// Arguments of `claim`.
#[derive(Args, Debug)]
pub struct Claim {
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
        timeout: Option<Span>,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: Told,
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
        told: Told,
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
        rate: Rate,

        /// How it is told, and to whom.
        #[command(flatten)]
        told: Told,
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
    pub timeout: Option<Span>,
}

/// Which cache is meant.
#[derive(Args, Debug)]
pub struct OfCache {
    /// The unit with the cache: TARGET, or TARGET/LUN
    #[arg(value_name = "VOLUME")]
    pub unit: UnitName,

    /// How it is told, and to whom.
    #[command(flatten)]
    pub told: Told,
}

/// How something is told, and to whom.
#[derive(Args, Debug)]
pub struct Told {
    /// Whom to tell.
    #[command(flatten)]
    pub whom: Whom,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

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
            (None, Some(config)) => control::path(&Settings::load_without_secrets(config)?),
            (None, None) => control::default_path(),
        }
    }
}

/// Arguments of `ls`.
#[derive(Args, Debug)]
pub struct Ls {
    /// iscsi://host[:port] lists targets with their units, iscsi://host[:port]/target-name the
    /// units of one, gln:volume a unit wherever it is
    pub url: String,

    /// Whom to ask where a volume is.
    #[command(flatten)]
    pub whom: Whom,

    /// The initiator name to use
    #[arg(long, value_name = "NAME", default_value = "iqn.2026-11.io.forebay:ls")]
    pub initiator_name: String,

    /// How both ends prove who they are.
    #[command(flatten)]
    pub credentials: Credentials,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How both ends of a session prove who they are.
#[derive(Args, Debug)]
pub struct Credentials {
    /// The CHAP user to be
    #[arg(long, value_name = "NAME", requires = "secret")]
    pub user: Option<String>,

    /// The file with the user's secret
    #[arg(long, value_name = "FILE", group = "secret", requires = "user")]
    pub secret_file: Option<PathBuf>,

    /// The environment variable with the user's secret
    #[arg(long, value_name = "VARIABLE", group = "secret", requires = "user")]
    pub secret_env: Option<String>,

    /// The CHAP name that the target has to prove
    #[arg(long, value_name = "NAME", requires_all = ["user", "mutual_secret_file"])]
    pub mutual: Option<String>,

    /// The file with the target's secret
    #[arg(long, value_name = "FILE", requires = "mutual")]
    pub mutual_secret_file: Option<PathBuf>,

    /// Use TLS: the certificate authority (PEM) that the portal's certificate must come from
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// The name that the portal's certificate must have [default: the host in the URL]
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub server_name: Option<String>,

    /// Our certificate, with those between it and its authority (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub certificate: Option<PathBuf>,

    /// Its key (PEM), readable by its owner only
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

/// Arguments of `attach`.
#[derive(Args, Debug)]
pub struct Attach {
    /// iscsi://host[:port][,host[:port]]/target-name[/lun], or with --config a unit of the settings
    /// (TARGET or TARGET/LUN), or gln:VOLUME
    pub volume: String,

    /// Run the unit's stack of these settings (TOML) in this process, a cache included; or find the
    /// volume with their [names]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Mount the file system on the volume there; it is unmounted at the end
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,

    /// Make a file system of this type if the volume holds nothing; one that is there stays
    #[arg(long, value_name = "TYPE", value_parser = file_system_type, conflicts_with = "read_only")]
    pub mkfs: Option<String>,

    /// With --mkfs: whatever the volume holds, make a new file system
    #[arg(long, requires = "mkfs")]
    pub force: bool,

    /// Options for the mount, as `mount -o` takes them
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    pub mount_options: Option<String>,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,

    /// Make devices of the partitions on the volume, too
    #[arg(long, conflicts_with_all = ["mount", "mkfs"])]
    pub partitions: bool,

    /// Others write to the volume, too: make each write stable there before it is answered; slower
    #[arg(long)]
    pub shared: bool,

    /// Let the kernel ask for one thing at a time; slow, for kernels where direct I/O fails
    #[arg(long)]
    pub no_direct_io: bool,

    /// How long a far side may be away before programs get I/O errors
    #[arg(long, value_name = "TIME", default_value = "2min")]
    pub give_up_after: Span,

    /// Return when the device is there, and serve it in the background
    #[arg(long)]
    pub background: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The initiator name to use [default: made from the host's]
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub initiator_name: Option<String>,

    /// Compress what crosses the link, if the target allows it
    #[arg(long, value_name = "METHOD", conflicts_with = "config", default_value = "none")]
    pub compression: Compression,

    /// The congestion control of the connections: "kernel default", "ensemble" (they share a window) or a
    /// name
    #[arg(long, value_name = "NAME", conflicts_with = "config", default_value = "kernel default",
        value_parser = Congestion::parse)]
    pub congestion: Congestion,

    /// How both ends prove who they are.
    #[command(flatten)]
    pub credentials: Credentials,

    /// We are what --background has started
    #[arg(long, hide = true)]
    pub in_background: bool,
}

/// A word, so that it names a program `mkfs.WORD` and nothing else.
fn file_system_type(text: &str) -> Result<String, String> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_type = !text.is_empty() && text.len() <= 16 && text.chars().all(is_word);
    is_type.then(|| text.to_owned()).ok_or_else(|| "write one such as ext4 or xfs".into())
}

/// Arguments of `detach`.
#[derive(Args, Debug)]
pub struct Detach {
    /// The device (/dev/loopN), the folder that it is mounted on, or the volume as it was attached
    pub device: PathBuf,

    /// Though it is in use: who uses it gets I/O errors, and what is not written back is lost
    #[arg(long)]
    pub force: bool,

    /// Print what was detached as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tunnel`.
#[derive(Args, Debug)]
pub struct Tunnel {
    /// Which end
    #[command(subcommand)]
    pub end: TunnelEnd,
}

/// The two ends of a tunnel.
#[derive(Debug, Subcommand)]
pub enum TunnelEnd {
    /// The initiator's end: listen without TLS, connect with it
    Connect {
        /// Both ends' arguments.
        #[command(flatten)]
        relay: Relay,

        /// The certificate authority (PEM) that the other end's certificate must come from
        #[arg(long, value_name = "FILE")]
        ca: PathBuf,

        /// The name that the other end's certificate must have [default: the host in --to]
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
    },
    /// The target's end: listen with TLS, connect without it
    Accept {
        /// Both ends' arguments.
        #[command(flatten)]
        relay: Relay,

        /// The certificate authority (PEM) that clients' certificates must come from
        #[arg(long, value_name = "FILE")]
        client_ca: PathBuf,
    },
}

/// Arguments of both ends of a tunnel.
#[derive(Args, Debug)]
pub struct Relay {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// HOST:PORT to relay to
    #[arg(long, value_name = "HOST:PORT")]
    pub to: String,

    /// Our certificate, with those between it and its authority (PEM)
    #[arg(long, value_name = "FILE")]
    pub certificate: PathBuf,

    /// Its key (PEM), readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Connections at once; more are closed
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
}

/// Arguments of `secret`.
#[derive(Args, Debug)]
pub struct Secret {
    /// The file to make
    pub file: PathBuf,

    /// Characters, each with six random bits; Windows takes 16 at most
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(16..=255))]
    pub characters: u8,
}

/// Arguments of `key`.
#[derive(Args, Debug)]
pub struct Key {
    /// The file to make
    pub file: PathBuf,

    /// The file with the secret that locks it, at least 32 characters
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "secret_env",
        required_unless_present = "secret_env"
    )]
    pub secret_file: Option<PathBuf>,

    /// The environment variable with that secret
    #[arg(long, value_name = "NAME")]
    pub secret_env: Option<String>,
}

/// Arguments of `quickstart`.
#[derive(Args, Debug)]
pub struct Quickstart {
    /// Leave everything running at the end, until Ctrl-C, and say how to connect
    #[arg(long)]
    pub keep: bool,

    /// Write the figures to this file [default: forebay-quickstart/result.json]
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with plots to this file [default: forebay-quickstart/result.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Seconds that each timed part of the mix runs
    #[arg(long, value_name = "N", default_value_t = 4.0, hide = true)]
    pub seconds: f64,
}

/// Arguments of `link`.
#[derive(Args, Debug)]
pub struct Link {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Address to relay to
    #[arg(long)]
    pub to: SocketAddr,

    /// One-way delay
    #[arg(long, default_value = "4ms")]
    pub delay: Span,

    /// Megabits per second
    #[arg(long, default_value_t = 1000)]
    pub rate: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_holds_together() {
        super::Cli::command().debug_assert();
    }
}
