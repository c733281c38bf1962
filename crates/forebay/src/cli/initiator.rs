//! What logs in by itself: `forebay ls`, `attach`, `detach`.

use std::path::PathBuf;

use clap::Args;

use super::control_call::Whom;
use crate::{
    quantity::{Size, TimeSpan},
    settings::{CongestionSetting, LinkCompressionSetting, SOCKET_BUFFER},
};

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
    pub give_up_after: TimeSpan,

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
    pub compression: LinkCompressionSetting,

    /// Connections of the session, 1 to 8
    #[arg(long, value_name = "N", conflicts_with = "config", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=8))]
    pub connections: u16,

    /// Send and receive buffer of each connection's socket, such as 512KiB [default: as the kernel
    /// tunes them]
    #[arg(long, value_name = "SIZE", conflicts_with = "config", value_parser = socket_buffer)]
    pub socket_buffer: Option<Size>,

    /// The congestion control of the connections: "kernel default", "ensemble" (they share a window) or a
    /// name
    #[arg(long, value_name = "NAME", conflicts_with = "config", default_value = "kernel default",
        value_parser = CongestionSetting::parse)]
    pub congestion: CongestionSetting,

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

fn socket_buffer(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let (least, most) = SOCKET_BUFFER;
    let is_one = (least..=most).contains(&size);
    is_one.then_some(size).ok_or_else(|| format!("{size} is not between {least} and {most}"))
}

/// Arguments of `detach`.
#[derive(Args, Debug)]
pub struct Detach {
    /// The device (/dev/loopN), the folder that it is mounted on, or the volume as it was attached
    pub device: PathBuf,

    /// Though it is in use: who uses it gets I/O errors, and what is not written back is lost
    #[arg(long)]
    pub force: bool,

    /// Before that, wait until the far side has all that the cache in the process has, stable
    ///
    /// If that fails, or takes longer than --timeout, the device stays attached.
    #[arg(long, conflicts_with = "force")]
    pub drain: bool,

    /// With --drain: give up after this long, such as `10min`; what was sent until then is sent
    #[arg(long, value_name = "TIME", requires = "drain")]
    pub timeout: Option<TimeSpan>,

    /// Print what was detached as JSON
    #[arg(long)]
    pub json: bool,
}
