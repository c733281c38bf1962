//! The command line of the laboratory.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use lab::Experiment;
use wan::{DirectionSettings, WanLinkEnd};
use workload::{WorkloadLocation, WorkloadTask};

use super::link_settings::LabLinkSetting;
use crate::failure::Failure;

/// Arguments of `lab`.
#[derive(Args, Debug)]
pub struct Lab {
    /// Which part of it.
    #[command(subcommand)]
    pub part: LabSubcommand,
}

/// The parts of the laboratory.
#[derive(Debug, Subcommand)]
pub enum LabSubcommand {
    /// A long link between two network namespaces of this host: delay, rate, loss, background traffic
    ///
    /// Makes the namespaces NAME-near and NAME-far, joined by a link that treats each packet as a
    /// long line does, and removes them at the end. Needs root and /dev/net/tun.
    Wan(Box<LabWanArgs>),
    /// Run one workload on a folder, device or volume: it checks what it reads and prints figures
    Workload(LabWorkloadArgs),
    /// Fetch what workloads need that no package installs: the source that `lab workload build` builds
    ///
    /// It is Dropbear's, some 2 MB, from the archives of Debian or Ubuntu that this machine's apt uses.
    /// What is there already is not fetched again.
    Fetch(LabFetchArgs),
    /// Measure the tables and figures of a paper on this machine, into one page beside the paper's numbers
    ///
    /// Says first what it will measure, what it leaves out and why, and how long it takes. What was
    /// measured is kept as it comes: the same command goes on where a run was stopped. Needs root, /dev/net/tun and FUSE
    /// for most of it.
    Run(Measure),
}

/// Arguments of `lab fetch`.
#[derive(Args, Debug)]
pub struct LabFetchArgs {
    /// Where it is kept [default: forebay-lab in the user's cache]
    #[arg(long, value_name = "FOLDER")]
    pub into: Option<PathBuf>,
}

/// Arguments of `lab run`.
#[derive(Args, Debug)]
pub struct Measure {
    /// Which paper
    pub experiment: LabPaperChoice,

    /// Smaller sets and shorter runs: all of it in under ten minutes
    #[arg(long)]
    pub quick: bool,

    /// The folder for results and report, and while it runs for volumes and logs; a new or empty one, or one that has
    /// results already [default: forebay-lab-EXPERIMENT here, with -quick after it]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Only points with this in their name, such as table-1 or /8ms; may be given several times
    #[arg(long, value_name = "WORD")]
    pub only: Vec<String>,

    /// Install Debian's packages of programs that are missing (apt-get). Debian starts their services, which stay: a web
    /// server, a database, an iSCSI target
    #[arg(long)]
    pub install: bool,

    /// Measure also what is there already
    #[arg(long)]
    pub again: bool,

    /// Add figures from this file as a section of the report: what `cargo xtask vm-test --figures FILE` wrote
    #[arg(long, value_name = "FILE")]
    pub beside: Option<PathBuf>,

    /// The name of the link's namespaces (NAME-near, NAME-far), for runs beside each other
    #[arg(long, default_value = "lab")]
    pub name: String,
}

impl Measure {
    /// Whether a point of this name is asked for.
    pub fn wants(&self, point: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| point.contains(word.as_str()))
    }
}

/// A paper whose tables and figures can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LabPaperChoice {
    /// Storage outsourcing: what distance and load make of block storage (FAST 2002)
    Outsourcing,
    /// STICS: a cache before the link
    Stics,
    /// Fair-TCP: connections of a session that share a congestion window
    FairTcp,
}

impl From<LabPaperChoice> for Experiment {
    fn from(paper: LabPaperChoice) -> Self {
        match paper {
            LabPaperChoice::Outsourcing => Self::Outsourcing,
            LabPaperChoice::Stics => Self::Stics,
            LabPaperChoice::FairTcp => Self::FairTcp,
        }
    }
}

/// Arguments of `lab workload`.
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct LabWorkloadArgs {
    /// Where it runs: a folder of a mounted file system, a block device (what is on it is lost), or
    /// iscsi://HOST/TARGET/LUN (what is on it is lost)
    #[arg(long, value_name = "PLACE")]
    pub on: WorkloadLocation,

    /// What the chance in it comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Go on although what is on the device or unit is lost
    #[arg(long)]
    pub overwrite: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Take the workload and its settings as JSON from standard input
    #[arg(long, hide = true)]
    pub given: bool,

    /// Which, and its settings.
    #[command(subcommand)]
    pub task: Option<WorkloadTask>,
}

/// Arguments of `lab wan`.
#[derive(Args, Debug)]
pub struct LabWanArgs {
    /// What to do.
    #[command(subcommand)]
    pub act: Act,
}

/// What can be done with a link.
#[derive(Debug, Subcommand)]
pub enum Act {
    /// Make a link and carry its packets until SIGTERM or SIGINT
    ///
    /// Prints `ready` with the namespaces and addresses when it is there, and at the end what happened.
    Run(LabWanRunArgs),
    /// Change a link that is running, for packets that come from now on
    Change(LabWanChangeArgs),
    /// Show what a link is like and what happened on it
    Status(LabWanStatusArgs),
    /// Run a program at one end of a link
    Exec(Exec),
    /// Remove what a link left behind that was killed (the next of its name does so, too)
    Remove(WanLinkNameArgs),
}

/// Which link.
#[derive(Args, Debug)]
pub struct WanLinkNameArgs {
    /// The link: 1 to 32 letters, digits, `-` and `_`
    #[arg(long, default_value = "wan")]
    pub name: String,
}

/// Arguments of `lab wan run`.
#[derive(Args, Debug)]
pub struct LabWanRunArgs {
    /// Which.
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// What it is like.
    #[command(flatten)]
    pub ways: Ways,

    /// Let the kernel's netem carry packets where it has it: less work for the processors, but no background traffic, no
    /// capture, no --seed, and packets on their way are given up by a change
    #[arg(long)]
    pub netem: bool,

    /// What loss and other chance come from: with one seed the same packets of a sequence are lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Write what arrives at either end to this file, 256 bytes of each packet
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Print JSON at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lab wan change`.
#[derive(Args, Debug)]
pub struct LabWanChangeArgs {
    /// Which.
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// What it is like.
    #[command(flatten)]
    pub ways: Ways,
}

/// Arguments of `lab wan status`.
#[derive(Args, Debug)]
pub struct LabWanStatusArgs {
    /// Which.
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lab wan exec`.
#[derive(Args, Debug)]
pub struct Exec {
    /// Which.
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// At which end
    pub end: Where,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Where {
    /// 10.99.0.1
    Near,
    /// 10.99.0.2
    Far,
}

impl From<Where> for WanLinkEnd {
    fn from(end: Where) -> Self {
        match end {
            Where::Near => Self::Near,
            Where::Far => Self::Far,
        }
    }
}

/// Reads the value of the option of this name.
macro_rules! word {
    ($key:literal) => {
        |text: &str| LabLinkSetting::new($key, text)
    };
}

/// What the two directions of a link are like.
#[derive(Args, Debug)]
#[command(next_help_heading = "Settings of both directions")]
pub struct Ways {
    /// One-way delay, up to 10s [default: 0]
    #[arg(long, value_name = "TIME", value_parser = word!("delay"))]
    delay: Option<LabLinkSetting>,

    /// Add anything from nothing to this to the delay of each packet
    #[arg(long, value_name = "TIME", value_parser = word!("jitter"))]
    jitter: Option<LabLinkSetting>,

    /// Whether packets may overtake each other because of the jitter: yes or no [default: no]
    #[arg(long, value_name = "YES", value_parser = word!("jitter-reorders"))]
    jitter_reorders: Option<LabLinkSetting>,

    /// Bits per second, such as 155Mbit; or none [default: none]
    #[arg(long, value_name = "RATE", value_parser = word!("rate"))]
    rate: Option<LabLinkSetting>,

    /// Bytes that wait for the wire when there is a rate; what comes to a full queue is dropped [default: 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = word!("queue"))]
    queue: Option<LabLinkSetting>,

    /// Packets that wait for it [default: 10000]
    #[arg(long, value_name = "N", value_parser = word!("queue-packets"))]
    queue_packets: Option<LabLinkSetting>,

    /// Bytes on the wire beside each IP packet [default: 38B, those of Ethernet]
    #[arg(long, value_name = "SIZE", value_parser = word!("overhead"))]
    overhead: Option<LabLinkSetting>,

    /// The share of packets that is lost, each by itself, such as 2.7%
    #[arg(long, value_name = "SHARE", value_parser = word!("loss"), conflicts_with = "bursts")]
    loss: Option<LabLinkSetting>,

    /// Loss in bursts (Gilbert and Elliott): that one begins before a packet, that it ends, and if wanted loss
    /// in it [100%] and between [0%], such as 0.5%,20%
    #[arg(long, value_name = "BEGIN,END[,LOSS[,LOSS]]", value_parser = word!("bursts"))]
    bursts: Option<LabLinkSetting>,

    /// Bytes of the longest IP packet, 576 to 65535 [default: 1500]
    #[arg(long, value_name = "N", value_parser = word!("mtu"))]
    mtu: Option<LabLinkSetting>,

    /// The share of packets that is held back, so that later ones overtake them
    #[arg(long, value_name = "SHARE", value_parser = word!("reorder"))]
    reorder: Option<LabLinkSetting>,

    /// For how long they are held back [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = word!("reorder-by"))]
    reorder_by: Option<LabLinkSetting>,

    /// The share of packets that arrives twice
    #[arg(long, value_name = "SHARE", value_parser = word!("duplicate"))]
    duplicate: Option<LabLinkSetting>,

    /// The share of packets in which one bit changes, behind the IP header
    #[arg(long, value_name = "SHARE", value_parser = word!("corrupt"))]
    corrupt: Option<LabLinkSetting>,

    /// Traffic of others, as a share of the rate, up to 75%: TCP and UDP that does not yield
    #[arg(long, value_name = "SHARE", value_parser = word!("background"))]
    background: Option<LabLinkSetting>,

    /// Whether nothing passes: yes or no
    #[arg(long, value_name = "YES", value_parser = word!("outage"))]
    outage: Option<LabLinkSetting>,

    /// A setting from near to far only, such as loss=2.7%; may be given often
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Settings of one direction")]
    forth: Vec<LabLinkSetting>,

    /// A setting from far to near only
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Settings of one direction")]
    back: Vec<LabLinkSetting>,
}

impl Ways {
    /// The settings with these words in them: what is for one direction after what is for both.
    pub fn set(&self, [forth, back]: &mut [DirectionSettings; 2]) -> Result<(), Failure> {
        let [forth_words, back_words] = self.words();
        for (settings, words) in [(forth, forth_words), (back, back_words)] {
            words.iter().try_for_each(|word| word.set(settings)).map_err(Failure::settings)?;
        }
        Ok(())
    }

    /// What is given for each direction.
    pub fn words(&self) -> [Vec<LabLinkSetting>; 2] {
        let both = [
            &self.delay,
            &self.jitter,
            &self.jitter_reorders,
            &self.rate,
            &self.queue,
            &self.queue_packets,
            &self.overhead,
            &self.loss,
            &self.bursts,
            &self.mtu,
            &self.reorder,
            &self.reorder_by,
            &self.duplicate,
            &self.corrupt,
            &self.background,
            &self.outage,
        ];
        let both: Vec<LabLinkSetting> = both.into_iter().flatten().cloned().collect();
        [&self.forth, &self.back].map(|own| [&both[..], own].concat())
    }
}
