//! Commands that log in to targets: `forebay ls`, `attach`, `detach`.

use std::path::PathBuf;

use clap::Args;
use config::{
    CongestionSetting, LinkCompressionSetting, SOCKET_BUFFER,
    quantity::{Size, TimeSpan},
};

use super::control_call::Whom;

/// Arguments of `ls`.
#[derive(Args, Debug)]
pub struct Ls {
    /// iscsi://host[:port] lists targets with their units, iscsi://host[:port]/target-name the units of one target,
    /// gln:volume a unit by the name of its volume
    pub url: String,

    /// The nodes that know where a volume is.
    #[command(flatten)]
    pub whom: Whom,

    /// The initiator name to use
    #[arg(long, value_name = "NAME", default_value = "iqn.2026-11.io.forebay:ls")]
    pub initiator_name: String,

    /// Authentication of both ends.
    #[command(flatten)]
    pub credentials: Credentials,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Authentication of both ends of a session.
#[derive(Args, Debug)]
pub struct Credentials {
    /// The CHAP user name
    #[arg(long, value_name = "NAME", requires = "secret")]
    pub user: Option<String>,

    /// The file with the user's secret
    #[arg(long, value_name = "FILE", group = "secret", requires = "user")]
    pub secret_file: Option<PathBuf>,

    /// The environment variable with the user's secret
    #[arg(long, value_name = "VARIABLE", group = "secret", requires = "user")]
    pub secret_env: Option<String>,

    /// The CHAP name with which the target has to authenticate itself
    #[arg(long, value_name = "NAME", requires_all = ["user", "mutual_secret_file"])]
    pub mutual: Option<String>,

    /// The file with the target's secret
    #[arg(long, value_name = "FILE", requires = "mutual")]
    pub mutual_secret_file: Option<PathBuf>,

    /// Use TLS with this certificate authority (PEM) for the portal's certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// The name in the portal's certificate [default: the host in the URL]
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub server_name: Option<String>,

    /// Our certificate, with intermediate certificates (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub certificate: Option<PathBuf>,

    /// Its private key (PEM), readable by its owner only
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

/// Arguments of `attach`.
#[derive(Args, Debug)]
pub struct Attach {
    /// iscsi://host[:port][,host[:port]]/target-name[/lun], or with --config a unit of the settings
    /// (TARGET or TARGET/LUN), or gln:VOLUME
    pub volume: String,

    /// Run the unit's stack of these settings (TOML) in this process, including a cache; or find the volume with
    /// their [names]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Mount the file system on the volume there; it is unmounted at the end
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,

    /// Make a file system of this type if the volume is empty; an existing one is kept
    #[arg(long, value_name = "TYPE", value_parser = file_system_type, conflicts_with = "read_only")]
    pub mkfs: Option<String>,

    /// With --mkfs: make a new file system even if the volume has data
    #[arg(long, requires = "mkfs")]
    pub force: bool,

    /// Mount options, as for `mount -o`
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    pub mount_options: Option<String>,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,

    /// Make devices of the partitions on the volume as well
    #[arg(long, conflicts_with_all = ["mount", "mkfs"])]
    pub partitions: bool,

    /// Others write to the volume as well: make each write stable there before it is acknowledged; slower
    #[arg(long)]
    pub shared: bool,

    /// Let the kernel send one request at a time; slow, for kernels where direct I/O fails
    #[arg(long)]
    pub no_direct_io: bool,

    /// How long a far side may be away before programs get I/O errors
    #[arg(long, value_name = "TIME", default_value = "2min")]
    pub give_up_after: TimeSpan,

    /// Return when the device exists, and serve it in the background
    #[arg(long)]
    pub background: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The initiator name to use [default: made from the host's]
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub initiator_name: Option<String>,

    /// Compress the data on the link, if the target supports it
    #[arg(long, value_name = "METHOD", conflicts_with = "config", default_value = "none")]
    pub compression: LinkCompressionSetting,

    /// Connections of the session, 1 to 8
    #[arg(long, value_name = "N", conflicts_with = "config", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=8))]
    pub connections: u16,

    /// Send and receive buffer of each connection's socket, such as 512KiB [default: the kernel adjusts them]
    #[arg(long, value_name = "SIZE", conflicts_with = "config", value_parser = socket_buffer)]
    pub socket_buffer: Option<Size>,

    /// The congestion control of the connections: "kernel default", "ensemble" (they share a window) or a
    /// name
    #[arg(long, value_name = "NAME", conflicts_with = "config", default_value = "kernel default",
        value_parser = CongestionSetting::parse)]
    pub congestion: CongestionSetting,

    /// Authentication of both ends.
    #[command(flatten)]
    pub credentials: Credentials,

    /// This process was started by --background
    #[arg(long, hide = true)]
    pub in_background: bool,
}

/// Checks that the type is a word, so that it names a program `mkfs.WORD` and nothing else.
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
    /// The device (/dev/loopN), the folder where it is mounted, or the volume as it was attached
    pub device: PathBuf,

    /// Proceed although it is in use: its users get I/O errors, and data that was not written back is lost
    #[arg(long)]
    pub force: bool,

    /// Before that, wait until all data in the process's cache is stable at the far side
    ///
    /// If that fails, or takes longer than --timeout, the device stays attached.
    #[arg(long, conflicts_with = "force")]
    pub drain: bool,

    /// With --drain: give up after this long, such as `10min`; data that has been sent stays sent
    #[arg(long, value_name = "TIME", requires = "drain")]
    pub timeout: Option<TimeSpan>,

    /// Print what was detached as JSON
    #[arg(long)]
    pub json: bool,
}
