//! The command line of commands that log in to targets: `forebay ls`, `attach`, `detach`.

use std::path::PathBuf;

use clap::Args;
use config::{
    CongestionSetting, LinkCompressionSetting, SOCKET_BUFFER,
    quantity::{Size, TimeSpan},
};

use super::control_call::Whom;

#[derive(Args, Debug)]
pub struct Ls {
    /// iscsi://host[:port] to list the targets with their units, iscsi://host[:port]/target-name to list the units of
    /// one target, or gln:volume to show the unit with this volume name
    pub url: String,

    #[command(flatten)]
    pub whom: Whom,

    /// iSCSI name under which to log in
    #[arg(long, value_name = "NAME", default_value = "iqn.2026-11.io.forebay:ls")]
    pub initiator_name: String,

    #[command(flatten)]
    pub credentials: Credentials,

    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// Authentication of both ends of a session.
#[derive(Args, Debug)]
pub struct Credentials {
    /// CHAP name under which to authenticate
    #[arg(long, value_name = "NAME", requires = "secret")]
    pub user: Option<String>,

    /// File with the secret of this user
    #[arg(long, value_name = "FILE", group = "secret", requires = "user")]
    pub secret_file: Option<PathBuf>,

    /// Environment variable with the secret of this user
    #[arg(long, value_name = "VARIABLE", group = "secret", requires = "user")]
    pub secret_env: Option<String>,

    /// CHAP name with which the target must authenticate itself (mutual CHAP)
    #[arg(long, value_name = "NAME", requires_all = ["user", "mutual_secret_file"])]
    pub mutual: Option<String>,

    /// File with the secret of the target
    #[arg(long, value_name = "FILE", requires = "mutual")]
    pub mutual_secret_file: Option<PathBuf>,

    /// Use TLS; PEM file with the authorities that issue the portal's certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// Host name in the portal's certificate [default: the host in the URL]
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub server_name: Option<String>,

    /// PEM file with our certificate and its intermediate certificates
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub certificate: Option<PathBuf>,

    /// PEM file with the private key of our certificate, readable only by its owner
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Attach {
    /// iscsi://host[:port][,host[:port]]/target-name[/lun], or gln:VOLUME, or with --config a unit of the settings
    /// (TARGET or TARGET/LUN)
    pub volume: String,

    /// Settings file (TOML): run the stack of its unit in this process, including a cache; or find the volume through
    /// its [names]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Mount the volume's file system on this folder, and unmount it at the end
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,

    /// Make a file system of this type if the volume is empty; an existing one is kept
    #[arg(long, value_name = "TYPE", value_parser = file_system_type, conflicts_with = "read_only")]
    pub mkfs: Option<String>,

    /// With --mkfs: make a new file system even if the volume contains data, which is lost
    #[arg(long, requires = "mkfs")]
    pub force: bool,

    /// Mount options, as for `mount -o`
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    pub mount_options: Option<String>,

    /// Attach the volume read-only
    #[arg(long)]
    pub read_only: bool,

    /// Create devices for the partitions on the volume, too
    #[arg(long, conflicts_with_all = ["mount", "mkfs"])]
    pub partitions: bool,

    /// Other hosts write to the volume, too: make each write stable before it is acknowledged (slower)
    #[arg(long)]
    pub shared: bool,

    /// Let the kernel send one request at a time; slow, for kernels in which direct I/O fails
    #[arg(long)]
    pub no_direct_io: bool,

    /// How long the target may be away before programs get I/O errors
    #[arg(long, value_name = "TIME", default_value = "2min")]
    pub give_up_after: TimeSpan,

    /// Return once the device exists, and serve it in the background
    #[arg(long)]
    pub background: bool,

    /// Print the device as JSON
    #[arg(long)]
    pub json: bool,

    /// iSCSI name under which to log in [default: made from the host name]
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub initiator_name: Option<String>,

    /// Compress the data on the link, if the target supports it
    #[arg(long, value_name = "METHOD", conflicts_with = "config", default_value = "none")]
    pub compression: LinkCompressionSetting,

    /// Number of TCP connections of the session, 1 to 8
    #[arg(long, value_name = "N", conflicts_with = "config", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=8))]
    pub connections: u16,

    /// Send and receive buffer of each connection's socket, such as 512KiB [default: the kernel tunes them]
    #[arg(long, value_name = "SIZE", conflicts_with = "config", value_parser = socket_buffer)]
    pub socket_buffer: Option<Size>,

    /// TCP congestion control: "kernel default", "ensemble" (the connections share a window) or a kernel algorithm
    #[arg(long, value_name = "NAME", conflicts_with = "config", default_value = "kernel default",
        value_parser = CongestionSetting::parse)]
    pub congestion: CongestionSetting,

    #[command(flatten)]
    pub credentials: Credentials,

    /// Set for the process that --background starts
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

#[derive(Args, Debug)]
pub struct Detach {
    /// Device (/dev/loopN), folder on which it is mounted, or volume as it was attached
    pub device: PathBuf,

    /// Detach it even though it is in use: its users get I/O errors, and unwritten data is lost
    #[arg(long)]
    pub force: bool,

    /// Before the detach, destage all dirty data of the process's cache
    ///
    /// If that fails, or takes longer than --timeout, the device stays attached.
    #[arg(long, conflicts_with = "force")]
    pub drain: bool,

    /// With --drain: stop waiting after this time, such as `10min`; data that has been sent stays sent
    #[arg(long, value_name = "TIME", requires = "drain")]
    pub timeout: Option<TimeSpan>,

    /// Print the detached device as JSON
    #[arg(long)]
    pub json: bool,
}
