//! The command line of `forebay lab`. Doc comments here are the texts of `--help`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use control::Failure;
use lab::Experiment;
use wan::{DirectionSettings, WanLinkEnd};
use workload::{WorkloadLocation, WorkloadTask};

use super::link_settings::LabLinkSetting;

#[derive(Args, Debug)]
pub struct Lab {
    #[command(subcommand)]
    pub part: LabSubcommand,
}

/// The commands of the laboratory.
#[derive(Debug, Subcommand)]
pub enum LabSubcommand {
    /// Emulate a long link between two network namespaces of this host: delay, rate, loss, background traffic
    ///
    /// Creates the namespaces NAME-near and NAME-far with a link between them, and removes them at the end. Needs root
    /// and /dev/net/tun.
    #[command(after_help = "Example:\n  forebay lab wan run --delay 8ms --rate 1Gbit")]
    Wan(Box<LabWanArgs>),
    /// Run a workload on a folder, device or volume; it verifies the data that it reads and prints figures
    #[command(after_help = "Example:\n  forebay lab workload --on /mnt postmark")]
    Workload(LabWorkloadArgs),
    /// Fetch the source that `lab workload build` compiles and that no package installs
    ///
    /// This is the source of Dropbear, some 2 MB, from the archives of Debian or Ubuntu that apt uses on this machine.
    /// If it is present, it is not fetched again.
    #[command(after_help = "Example:\n  forebay lab fetch")]
    Fetch(LabFetchArgs),
    /// Measure the tables and figures of a paper on this machine, and write a page that compares them with the paper's
    /// numbers
    ///
    /// First prints which points it will measure, which it leaves out and why, and how long the run takes. Each result
    /// is stored at once, so the same command continues a run that was stopped. Most points need root, /dev/net/tun and
    /// FUSE.
    #[command(after_help = "Example:\n  forebay lab run outsourcing --quick")]
    Run(Measure),
}

#[derive(Args, Debug)]
pub struct LabFetchArgs {
    /// Folder for the source [default: forebay-lab in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    pub into: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Measure {
    /// Paper whose tables and figures are measured
    pub experiment: LabPaperChoice,

    /// Use smaller data sets and shorter runs: less than ten minutes in total
    #[arg(long)]
    pub quick: bool,

    /// Folder for results and report, and during a run for volumes and logs; either new, empty, or with earlier results
    /// [default: forebay-lab-EXPERIMENT here, followed by -quick]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Measure only points with this text in their name, such as table-1 or /8ms; may be repeated
    #[arg(long, value_name = "WORD")]
    pub only: Vec<String>,

    /// Install Debian's packages of missing programs with apt-get. Debian then starts their services permanently: a web
    /// server, a database, an iSCSI target
    #[arg(long)]
    pub install: bool,

    /// Measure points again that have results already
    #[arg(long)]
    pub again: bool,

    /// Add the figures in this file to the report as a section: the output of `cargo xtask vm-test --figures FILE`
    #[arg(long, value_name = "FILE")]
    pub beside: Option<PathBuf>,

    /// Name of the link's namespaces (NAME-near, NAME-far); use different names for concurrent runs
    #[arg(long, default_value = LINK_NAME)]
    pub name: String,
}

/// The name of the namespaces of a run without `--name`.
const LINK_NAME: &str = "lab";

impl Measure {
    /// Returns true if a point with this name is selected.
    pub fn wants(&self, point: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| point.contains(word.as_str()))
    }

    /// Returns this command as a line for a shell. Leaves out `--install`, because the packages are installed by
    /// then.
    pub fn command(&self) -> String {
        let mut line = format!("forebay lab run {}", Experiment::from(self.experiment).name());
        for (option, is_set) in [("--quick", self.quick), ("--again", self.again)] {
            if is_set {
                line += &format!(" {option}");
            }
        }
        let with = |option: &str, value: &Path| format!(" {option} {}", config::quoted(value));
        if self.name != LINK_NAME {
            line += &with("--name", Path::new(&self.name));
        }
        for (option, path) in [("--out", &self.out), ("--beside", &self.beside)] {
            if let Some(path) = path {
                line += &with(option, path);
            }
        }
        for word in &self.only {
            match word.starts_with('-') {
                false => line += &with("--only", Path::new(word)),
                // The word begins with `-`: after a space, clap would read it as an option.
                true => {
                    line += &format!(" --only{}", config::quoted(Path::new(&format!("={word}"))))
                }
            }
        }
        line
    }
}

/// A paper whose tables and figures can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LabPaperChoice {
    /// Storage outsourcing: the effect of distance and load on block storage (FAST 2002)
    Outsourcing,
    /// STICS: a cache in front of the link
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

#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct LabWorkloadArgs {
    /// Where to run: a folder of a mounted file system, a block device (its content is lost), or
    /// iscsi://HOST/TARGET/LUN (its content is lost)
    #[arg(long, value_name = "PLACE")]
    pub on: WorkloadLocation,

    /// Seed of all random choices: the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Run even though the content of the device or unit is lost
    #[arg(long)]
    pub overwrite: bool,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,

    /// Read the workload and its settings as JSON from standard input
    #[arg(long, hide = true)]
    pub given: bool,

    #[command(subcommand)]
    pub task: Option<WorkloadTask>,
}

#[derive(Args, Debug)]
pub struct LabWanArgs {
    #[command(subcommand)]
    pub act: Act,
}

/// The commands that concern one link.
#[derive(Debug, Subcommand)]
pub enum Act {
    /// Create a link and carry its packets until SIGTERM or SIGINT
    ///
    /// Prints `ready` with the namespaces and addresses once the link is up, and counters at the end.
    #[command(after_help = "Example:\n  forebay lab wan run --delay 8ms --rate 1Gbit")]
    Run(LabWanRunArgs),
    /// Change a running link, for packets that are sent from now on
    #[command(after_help = "Example:\n  forebay lab wan change --loss 1%")]
    Change(LabWanChangeArgs),
    /// Show the settings and counters of a link
    #[command(after_help = "Example:\n  forebay lab wan status")]
    Status(LabWanStatusArgs),
    /// Run a program at one end of a link
    #[command(after_help = "Example:\n  forebay lab wan exec near -- ping -c 3 10.99.0.2")]
    Exec(Exec),
    /// Remove the remains of a link that was killed (the next link with its name does so as well)
    #[command(after_help = "Example:\n  forebay lab wan remove")]
    Remove(WanLinkNameArgs),
}

/// The name that identifies a link.
#[derive(Args, Debug)]
pub struct WanLinkNameArgs {
    /// Name of the link: 1 to 32 letters, digits, `-` and `_`
    #[arg(long, default_value = "wan")]
    pub name: String,
}

#[derive(Args, Debug)]
pub struct LabWanRunArgs {
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    #[command(flatten)]
    pub ways: Ways,

    /// Let the kernel's netem carry the packets, if the kernel has it: less CPU load, but no background traffic, no
    /// capture, no --seed, and a change drops packets in flight
    #[arg(long)]
    pub netem: bool,

    /// Seed of loss and other random effects: the same seed loses the same packets of a sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Write the packets that arrive at either end to this file, at most 256 bytes of each
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Print the counters at the end as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct LabWanChangeArgs {
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    #[command(flatten)]
    pub ways: Ways,
}

#[derive(Args, Debug)]
pub struct LabWanStatusArgs {
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// Print settings and counters as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Exec {
    #[command(flatten)]
    pub named: WanLinkNameArgs,

    /// End of the link at which to run the program
    pub end: Where,

    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Where {
    /// The near end, with the address 10.99.0.1
    Near,
    /// The far end, with the address 10.99.0.2
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

/// Parses the value of the option with this name.
macro_rules! word {
    ($key:literal) => {
        |text: &str| LabLinkSetting::new($key, text)
    };
}

/// The settings of the two directions of a link.
#[derive(Args, Debug)]
#[command(next_help_heading = "Settings of both directions")]
pub struct Ways {
    /// One-way delay, up to 10s [default: 0]
    #[arg(long, value_name = "TIME", value_parser = word!("delay"))]
    delay: Option<LabLinkSetting>,

    /// Maximum of a random time that is added to the delay of each packet
    #[arg(long, value_name = "TIME", value_parser = word!("jitter"))]
    jitter: Option<LabLinkSetting>,

    /// Allow packets to overtake each other because of the jitter: yes or no [default: no]
    #[arg(long, value_name = "YES", value_parser = word!("jitter-reorders"))]
    jitter_reorders: Option<LabLinkSetting>,

    /// Bits per second, such as 155Mbit; or none [default: none]
    #[arg(long, value_name = "RATE", value_parser = word!("rate"))]
    rate: Option<LabLinkSetting>,

    /// Maximum number of bytes that wait for a limited rate; further packets are dropped [default: 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = word!("queue"))]
    queue: Option<LabLinkSetting>,

    /// Maximum number of packets that wait [default: 10000]
    #[arg(long, value_name = "N", value_parser = word!("queue-packets"))]
    queue_packets: Option<LabLinkSetting>,

    /// Bytes on the wire in addition to each IP packet [default: 38B, as on Ethernet]
    #[arg(long, value_name = "SIZE", value_parser = word!("overhead"))]
    overhead: Option<LabLinkSetting>,

    /// Share of packets that are lost, independently of each other, such as 2.7%
    #[arg(long, value_name = "SHARE", value_parser = word!("loss"), conflicts_with = "bursts")]
    loss: Option<LabLinkSetting>,

    /// Loss in bursts (Gilbert and Elliott): the probability that a burst begins before a packet, that it ends, and
    /// optionally of a loss within [100%] and between bursts [0%], such as 0.5%,20%
    #[arg(long, value_name = "BEGIN,END[,LOSS[,LOSS]]", value_parser = word!("bursts"))]
    bursts: Option<LabLinkSetting>,

    /// Maximum length of an IP packet in bytes, 576 to 65535 [default: 1500]
    #[arg(long, value_name = "N", value_parser = word!("mtu"))]
    mtu: Option<LabLinkSetting>,

    /// Share of packets that are held back, so that later ones overtake them
    #[arg(long, value_name = "SHARE", value_parser = word!("reorder"))]
    reorder: Option<LabLinkSetting>,

    /// Time for which these packets are held back [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = word!("reorder-by"))]
    reorder_by: Option<LabLinkSetting>,

    /// Share of packets that arrive twice
    #[arg(long, value_name = "SHARE", value_parser = word!("duplicate"))]
    duplicate: Option<LabLinkSetting>,

    /// Share of packets in which one bit is changed, after the IP header
    #[arg(long, value_name = "SHARE", value_parser = word!("corrupt"))]
    corrupt: Option<LabLinkSetting>,

    /// Background traffic as a share of the rate, up to 75%: TCP, and UDP that does not yield
    #[arg(long, value_name = "SHARE", value_parser = word!("background"))]
    background: Option<LabLinkSetting>,

    /// Drop every packet: yes or no
    #[arg(long, value_name = "YES", value_parser = word!("outage"))]
    outage: Option<LabLinkSetting>,

    /// Setting for the direction from near to far only, such as loss=2.7%; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Settings of one direction")]
    forth: Vec<LabLinkSetting>,

    /// Setting for the direction from far to near only; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Settings of one direction")]
    back: Vec<LabLinkSetting>,
}

impl Ways {
    /// Applies these options to the settings; those for one direction are applied after those for both.
    pub fn set(&self, [forth, back]: &mut [DirectionSettings; 2]) -> Result<(), Failure> {
        let [forth_words, back_words] = self.words();
        for (settings, words) in [(forth, forth_words), (back, back_words)] {
            words.iter().try_for_each(|word| word.set(settings)).map_err(Failure::settings)?;
        }
        Ok(())
    }

    /// Returns the options of each direction.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        measure: Measure,
    }

    #[test]
    fn the_command_of_a_run_has_its_options_as_words_of_a_shell() {
        let command = |words: &[&str]| {
            let words = [&["run"], words].concat();
            Run::try_parse_from(words).expect("valid words").measure.command()
        };
        assert_eq!(command(&["stics"]), "forebay lab run stics");
        assert_eq!(
            command(&[
                "fair-tcp",
                "--quick",
                "--install",
                "--name",
                "a",
                "--only",
                "/4ms",
                "--again"
            ]),
            "forebay lab run fair-tcp --quick --again --name a --only /4ms"
        );
        let odd =
            ["stics", "--out", "it's here", "--beside", "a;b", "--only=-w $x", "--only", "a b"];
        let line = command(&odd);
        let words = line.strip_prefix("forebay lab ").expect("it begins so");
        let script = format!("printf '%s\\n' {words}");
        let output = Command::new("sh").args(["-c", &script]).output().expect("it runs");
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<&str> = words.lines().skip(1).collect();
        assert_eq!(command(&words), line, "{words:?}");
    }
}
