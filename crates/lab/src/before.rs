//! Looks before anything is started: what this machine lacks, which points therefore cannot be
//! measured, and how long the others take.

use std::{collections::BTreeSet, fs, path::Path};

use workload::Tool;

use crate::{
    Error, LeftOut, Point, Site, engine,
    site::{Data, Host, Server},
    stage::{available, can_be_limited, check, peer},
};

/// What this machine has.
pub struct Means {
    /// Whether links can be made, or why not.
    pub link: Result<(), String>,
    /// Whether volumes can be attached, or why not.
    pub attach: Result<(), String>,
    /// Whether connections can share a window, or why not.
    pub ensembles: Result<(), String>,
    /// Whether a workload's memory can be limited, or why not.
    pub limits: Result<(), String>,
    /// The kernel's congestion controls.
    pub congestion: Vec<String>,
    /// Whether a program is installed.
    pub installed: Box<dyn Fn(Tool) -> bool>,
    /// Bytes free for volumes and logs.
    pub disk: u64,
    /// Bytes of memory that programs may still have.
    pub memory: u64,
}

/// What will be done, and what not.
#[derive(Debug, Default)]
pub struct Plan {
    /// What will be measured, in order.
    pub run: Vec<Point>,
    /// What will not, and why.
    pub left_out: Vec<LeftOut>,
    /// Programs for want of which points are left out.
    pub missing: Vec<Tool>,
    /// About how many seconds it takes.
    pub seconds: f64,
}

/// A file system keeps some of its device for itself: inodes, journal, what only root may fill.
const USABLE: f64 = 0.85;
const MKFS: Tool = Tool { program: "mkfs.ext4", package: "e2fsprogs" };

impl Means {
    /// Looks at this machine, as far as these points need it; `folder` is on the disk for volumes.
    ///
    /// # Errors
    /// If the system does not say how much room there is.
    pub fn of_this_machine(points: &[Point], name: &str, folder: &Path) -> Result<Self, Error> {
        let options = wan::Options {
            name: name.to_owned(),
            settings: Default::default(),
            seed: 1,
            capture: None,
        };
        let wants_ensembles = points.iter().any(is_with_ensembles);
        let ensembles = if wants_ensembles {
            let probe = fairtcp::Options::default();
            fairtcp::Fair::load(&probe).map(drop).map_err(|error| error.to_string())
        } else {
            Ok(())
        };
        let room = rustix::fs::statvfs(folder)
            .map_err(|error| Error::file("ask for the room on", folder)(error.into()))?;
        Ok(Self {
            link: wan::check(&options).map_err(|error| error.to_string()),
            attach: attach(),
            ensembles,
            limits: can_be_limited(),
            congestion: available()?,
            installed: Box::new(|tool| tool.find().is_ok()),
            disk: room.f_bavail * room.f_frsize,
            memory: memory()?,
        })
    }

    /// Sorts points into what can be measured and what cannot.
    #[must_use]
    pub fn plan(&self, points: Vec<Point>) -> Plan {
        let mut plan = Plan::default();
        let mut missing = BTreeSet::new();
        for point in points {
            let lacks: Vec<Tool> =
                tools(&point).into_iter().filter(|tool| !(self.installed)(*tool)).collect();
            let reason = self.obstacle(&point).or_else(|| {
                let tool = lacks.first()?;
                Some(format!("{} is not installed (package {})", tool.program, tool.package))
            });
            for tool in lacks {
                if missing.insert(tool.program) {
                    plan.missing.push(tool);
                }
            }
            match reason {
                Some(left_out) => plan.left_out.push(LeftOut { point: point.name, left_out }),
                None => plan.run.push(point),
            }
        }
        plan.seconds = engine::estimate(&plan.run);
        plan
    }

    /// What stands against a point, programs apart.
    fn obstacle(&self, point: &Point) -> Option<String> {
        let site = &point.site;
        if let Err(error) = check(site) {
            return Some(error.to_string());
        }
        if site.link.is_some()
            && let Err(why) = &self.link
        {
            return Some(why.clone());
        }
        if matches!(site.host, Host::Device | Host::Mounted(_) | Host::QemuStorageDaemon)
            && let Err(why) = &self.attach
        {
            return Some(why.clone());
        }
        if site.memory.is_some()
            && let Err(why) = &self.limits
        {
            return Some(why.clone());
        }
        if is_with_ensembles(point) {
            if let Err(why) = &self.ensembles {
                return Some(why.clone());
            }
        } else if site.server != Server::Host {
            let name = &site.session.congestion;
            if name != "kernel default" && !self.congestion.contains(name) {
                return Some(format!("this kernel has no congestion control {name}"));
            }
        }
        let (disk, memory) = room(site);
        let short = |what: &str, needed: u64, free: u64| {
            let [needed, free] = [needed, free].map(|bytes| bytes >> 20);
            Some(format!("{needed} MiB {what} are needed, and {free} are free"))
        };
        if disk > self.disk {
            return short("on the disk", disk, self.disk);
        }
        if memory > self.memory {
            return short("of memory", memory, self.memory);
        }
        let usable = match site.host {
            Host::Mounted(_) => (site.bytes as f64 * USABLE) as u64,
            _ => site.bytes,
        };
        let wanted = point.task.workload().space();
        (wanted > usable).then(|| {
            let [wanted, usable] = [wanted, usable].map(|bytes| bytes >> 20);
            format!("the workload takes {wanted} MiB, and the volume has {usable}")
        })
    }
}

/// Programs that are not ours and have to be there.
fn tools(point: &Point) -> Vec<Tool> {
    let mut tools = point.task.workload().needs();
    if matches!(point.site.host, Host::Mounted(_)) {
        tools.push(MKFS);
    }
    if point.site.host == Host::QemuStorageDaemon {
        tools.extend(peer::QEMU);
    }
    match point.site.server {
        Server::Nbdkit => tools.push(peer::NBDKIT),
        Server::Tgt => tools.extend(peer::TGT),
        Server::Forebay | Server::Host => {}
    }
    tools
}

fn is_with_ensembles(point: &Point) -> bool {
    point.site.server != Server::Host && point.site.session.congestion.starts_with("ensemble")
}

/// Bytes on the disk and in memory that a site takes up.
fn room(site: &Site) -> (u64, u64) {
    let (mut disk, mut memory) = match site.disk.data {
        Data::Memory => (0, site.bytes),
        Data::File => (site.bytes, 0),
    };
    if let Some(gateway) = &site.gateway {
        disk += gateway.log;
        memory += gateway.dram + gateway.nvram;
    }
    let nodes = u64::from(site.nodes);
    (disk * nodes, memory * nodes)
}

/// What `forebay attach` needs of a host.
fn attach() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may attach volumes".to_owned());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|error| format!("cannot open {path}: {error}"))?;
    }
    Ok(())
}

/// Bytes of memory that can be had without swapping (proc(5), MemAvailable).
fn memory() -> Result<u64, Error> {
    let path = Path::new("/proc/meminfo");
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Ok(kib.map_or(u64::MAX, |kib| kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gateway, Line, results::tests::point};

    fn rich() -> Means {
        Means {
            link: Ok(()),
            attach: Ok(()),
            ensembles: Ok(()),
            limits: Ok(()),
            congestion: vec!["reno".to_owned()],
            installed: Box::new(|_| true),
            disk: 10 << 30,
            memory: 10 << 30,
        }
    }

    fn mounted() -> Point {
        let mut point = point("mounted");
        point.site.host = Host::Mounted(String::new());
        point.site.link = Some(Line::default());
        point
    }

    /// Why it is left out; nothing if it is not.
    fn reason(means: &Means, point: Point) -> Option<String> {
        let plan = means.plan(vec![point]);
        assert_eq!(plan.run.len() + plan.left_out.len(), 1);
        plan.left_out.into_iter().next().map(|it| it.left_out)
    }

    #[test]
    fn a_machine_that_has_all_runs_all() {
        let plan = rich().plan(vec![mounted(), point("other")]);
        assert_eq!((plan.run.len(), plan.left_out.len(), plan.missing.len()), (2, 0, 0));
        assert_eq!(plan.seconds, 2.0 + 2.0 * engine::SETTING_UP);
    }

    #[test]
    fn what_a_poor_machine_lacks_is_said_of_the_points_that_need_it() {
        let no = |why: &str| Err(why.to_owned());
        let no_tun = Means { link: no("cannot open /dev/net/tun"), ..rich() };
        assert_eq!(reason(&no_tun, mounted()).unwrap(), "cannot open /dev/net/tun");
        assert_eq!(reason(&no_tun, point("without a link")), None);

        let no_fuse = Means { attach: no("cannot open /dev/fuse"), ..rich() };
        assert_eq!(reason(&no_fuse, mounted()).unwrap(), "cannot open /dev/fuse");
        let mut url = point("url");
        url.site.host = Host::Url;
        assert_eq!(reason(&no_fuse, url.clone()), None);

        let no_bpf = Means { ensembles: no("eBPF is not allowed"), ..rich() };
        url.site.session.congestion = "ensemble per connection".to_owned();
        assert_eq!(reason(&no_bpf, url.clone()).unwrap(), "eBPF is not allowed");
        assert_eq!(reason(&no_bpf, mounted()), None);
        url.site.session.congestion = "bbr".to_owned();
        assert!(reason(&rich(), url).unwrap().contains("no congestion control bbr"));
    }

    #[test]
    fn a_host_with_little_memory_needs_control_groups() {
        let mut little = mounted();
        little.site.memory = Some(64 << 20);
        let means = Means { limits: Err("no control groups".to_owned()), ..rich() };
        assert_eq!(reason(&means, little).unwrap(), "no control groups");
        assert_eq!(reason(&means, mounted()), None);
    }

    #[test]
    fn programs_that_are_missing_are_named_with_their_packages() {
        let means = Means { installed: Box::new(|tool| tool.program != "postmark"), ..rich() };
        let plan = means.plan(vec![mounted(), point("other")]);
        assert_eq!(plan.left_out[0].left_out, "postmark is not installed (package postmark)");
        let programs: Vec<&str> = plan.missing.iter().map(|tool| tool.program).collect();
        assert_eq!(programs, ["postmark"], "each once");
        let means = Means { installed: Box::new(|tool| tool.program != "tgtd"), ..rich() };
        let mut peer = point("peer");
        peer.site.server = Server::Tgt;
        assert!(reason(&means, peer).unwrap().contains("package tgt"));
        let means = Means { installed: Box::new(|tool| tool.program != "nbdkit"), ..rich() };
        let mut peer = point("peer");
        (peer.site.server, peer.site.host) = (Server::Nbdkit, Host::QemuStorageDaemon);
        assert!(reason(&means, peer.clone()).unwrap().contains("package nbdkit"));
        peer.site.host = Host::Url;
        assert!(reason(&rich(), peer).unwrap().contains("qemu-storage-daemon alone"));
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut large = point("large");
        large.site.nodes = 4;
        large.site.gateway = Some(Gateway { log: 1 << 30, ..Gateway::default() });
        let small = Means { disk: 3 << 30, ..rich() };
        assert_eq!(
            reason(&small, large.clone()).unwrap(),
            "4096 MiB on the disk are needed, and 3072 are free"
        );
        let small = Means { memory: 1 << 30, ..rich() };
        assert!(reason(&small, large).unwrap().contains("of memory"));
        let mut full = mounted();
        full.site.bytes = 1 << 20;
        assert!(reason(&rich(), full).unwrap().contains("the volume has 0"));
        let mut wrong = point("wrong");
        wrong.site.nodes = 0;
        assert!(reason(&rich(), wrong).unwrap().contains("1 to 4 nodes"));
    }
}
