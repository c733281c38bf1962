//! Checks before anything is started: which capabilities this machine lacks, which points therefore
//! cannot be measured, and how long the other points will take.

use std::{collections::BTreeSet, fs, path::Path};

use workload::{Tool, WorkloadTask};

use crate::{
    Error, ExperimentPoint, LabSite, LeftOut, engine,
    site::{Host, SiteBacking, SiteServer},
    stage::{available, can_be_limited, check, peer},
};

/// A capability that this machine lacks and that points need.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Lack {
    /// A sentence that names the missing capability.
    pub why: String,
    /// A sentence that says how to get the capability, if that is possible.
    pub remedy: Option<String>,
}

/// The capabilities of this machine that points may need.
pub struct Means {
    /// `Err` if this machine cannot create network links.
    pub link: Result<(), Lack>,
    /// `Err` if this machine cannot attach volumes as block devices.
    pub attach: Result<(), Lack>,
    /// An error if connections cannot share a congestion window.
    pub ensembles: Result<(), Lack>,
    /// An error if the memory of a workload cannot be limited.
    pub limits: Result<(), Lack>,
    /// The congestion controls that the kernel supports.
    pub congestion: Vec<String>,
    pub installed: Box<dyn Fn(Tool) -> bool>,
    /// `Err` if this machine has no source code for the build workload.
    pub source: Result<(), Lack>,
    /// Free bytes for volumes and logs.
    pub disk: u64,
    /// Available bytes of memory for programs.
    pub memory: u64,
    /// Free bytes of the file system in memory. In a container they may be fewer than `memory`.
    pub files: u64,
}

/// The result of the check: points that will be measured, and points that will not.
#[derive(Debug, Default)]
pub struct MeasurementPlan {
    /// The points that will be measured, in order.
    pub run: Vec<ExperimentPoint>,
    /// The points that will not be measured, and the reasons.
    pub left_out: Vec<LeftOut>,
    /// Programs that are not installed, and without which points are left out.
    pub missing: Vec<Tool>,
    /// Remedies for the other missing capabilities, each remedy once.
    pub remedies: Vec<String>,
    /// The estimated time for the points in `run`, in seconds.
    pub seconds: f64,
}

/// The share of a device that a file system can use for files. The rest has inodes, the journal,
/// and blocks that are reserved for root.
const USABLE: f64 = 0.85;
const MKFS: Tool = Tool { program: "mkfs.ext4", package: "e2fsprogs" };

impl Means {
    /// Checks this machine for the capabilities that these points need. `name` is the name of the
    /// run. `link` says if links can be created, which the caller has checked. `disk` is a folder
    /// on the disk for volumes, `files` a folder in memory.
    ///
    /// # Errors
    /// If the system does not report its free space.
    pub fn of_this_machine(
        points: &[ExperimentPoint],
        name: &str,
        link: Result<(), Lack>,
        [disk, files]: [&Path; 2],
    ) -> Result<Self, Error> {
        let wants_ensembles = points.iter().any(is_with_ensembles);
        let ensembles = if wants_ensembles {
            let probe = fairtcp::EnsembleOptions::default();
            fairtcp::Fair::load(&probe).map(drop).map_err(|error| Lack {
                why: error.to_string(),
                remedy: error.remedy().map(str::to_owned),
            })
        } else {
            Ok(())
        };
        let wants_limits = points.iter().any(|point| point.site.memory.is_some());
        let limits = if wants_limits { limits(name) } else { Ok(()) };
        let builds = points.iter().filter(|point| is_build(point));
        let source = builds.map(|point| source(&point.task)).next().unwrap_or(Ok(()));
        Ok(Self {
            link,
            attach: attach(),
            ensembles,
            limits,
            congestion: available()?,
            installed: Box::new(|tool| tool.find().is_ok()),
            source,
            disk: free(disk)?,
            memory: memory()?,
            files: free(files)?,
        })
    }

    /// Sorts points into those that can be measured and those that cannot, with the reason.
    #[must_use]
    pub fn plan(&self, points: Vec<ExperimentPoint>) -> MeasurementPlan {
        let mut plan = MeasurementPlan::default();
        let mut missing = BTreeSet::new();
        for point in points {
            let lacks: Vec<Tool> =
                tools(&point).into_iter().filter(|tool| !(self.installed)(*tool)).collect();
            let lack = self.obstacle(&point).or_else(|| {
                let tool = lacks.first()?;
                let why = format!("{} is not installed (package {})", tool.program, tool.package);
                // Give no remedy: the caller gives a single remedy for all programs in `missing`.
                Some(Lack { why, remedy: None })
            });
            for tool in lacks {
                if missing.insert(tool.program) {
                    plan.missing.push(tool);
                }
            }
            match lack {
                Some(Lack { why, remedy }) => {
                    plan.left_out.push(LeftOut { point: point.name, left_out: why });
                    plan.remedies.extend(remedy.filter(|it| !plan.remedies.contains(it)));
                }
                None => plan.run.push(point),
            }
        }
        plan.seconds = engine::estimate(&plan.run);
        plan
    }

    /// Returns the reason why a point cannot be measured. Missing programs are checked elsewhere.
    fn obstacle(&self, point: &ExperimentPoint) -> Option<Lack> {
        let site = &point.site;
        let only = |why: String| Some(Lack { why, remedy: None });
        if let Err(error) = check(site) {
            return only(error.to_string());
        }
        let attached =
            matches!(site.host, Host::Device | Host::Mounted(_) | Host::QemuStorageDaemon);
        let ensemble = is_with_ensembles(point);
        for (is_needed, has) in [
            (site.link.is_some(), &self.link),
            (attached, &self.attach),
            (site.memory.is_some(), &self.limits),
            (ensemble, &self.ensembles),
            (is_build(point), &self.source),
        ] {
            if is_needed && let Err(lack) = has {
                return Some(lack.clone());
            }
        }
        let name = &site.session.congestion;
        if !ensemble
            && site.server != SiteServer::Host
            && name != "kernel default"
            && !self.congestion.contains(name)
        {
            return Some(Lack {
                why: format!("this kernel has no congestion control {name}"),
                remedy: Some(format!(
                    "load it, if the kernel has it as a module: modprobe tcp_{name}"
                )),
            });
        }
        let SiteFootprint { disk, memory, files } = room(site);
        let short = |what: &str, needed: u64, free: u64, remedy: &str| {
            let [needed, free] = [needed, free].map(|bytes| bytes >> 20);
            Some(Lack {
                why: format!("{needed} MiB {what} are needed, and {free} are free"),
                remedy: Some(remedy.to_owned()),
            })
        };
        if disk > self.disk {
            let remedy =
                "free space in the file system of the results, or choose an --out with more space";
            return short("on the disk", disk, self.disk, remedy);
        }
        if memory > self.memory {
            return short("of memory", memory, self.memory, "end programs that use memory");
        }
        if files > self.files {
            let remedy = "give /dev/shm more space (in a container: --shm-size)";
            return short("for files in memory", files, self.files, remedy);
        }
        let usable = match site.host {
            Host::Mounted(_) => (site.bytes as f64 * USABLE) as u64,
            _ => site.bytes,
        };
        let wanted = point.task.workload().space();
        if wanted > usable {
            let [wanted, usable] = [wanted, usable].map(|bytes| bytes >> 20);
            return only(format!("the workload needs {wanted} MiB, and the volume has {usable}"));
        }
        None
    }
}

/// Returns the foreign programs that a point needs.
fn tools(point: &ExperimentPoint) -> Vec<Tool> {
    let mut tools = point.task.workload().needs();
    if matches!(point.site.host, Host::Mounted(_)) {
        tools.push(MKFS);
    }
    if point.site.host == Host::QemuStorageDaemon {
        tools.extend(peer::QEMU);
    }
    match point.site.server {
        SiteServer::Nbdkit => tools.push(peer::NBDKIT),
        SiteServer::Tgt => tools.extend(peer::TGT),
        SiteServer::Forebay | SiteServer::Host => {}
    }
    tools
}

fn is_build(point: &ExperimentPoint) -> bool {
    matches!(point.task, WorkloadTask::Build(_))
}

fn is_with_ensembles(point: &ExperimentPoint) -> bool {
    point.site.server != SiteServer::Host && point.site.session.congestion.starts_with("ensemble")
}

/// The bytes of disk and of memory that a site needs.
#[derive(Default)]
struct SiteFootprint {
    disk: u64,
    /// All memory, including the memory of files.
    memory: u64,
    files: u64,
}

fn room(site: &LabSite) -> SiteFootprint {
    let mut one = SiteFootprint::default();
    match site.disk.data {
        SiteBacking::Memory => one.memory += site.bytes,
        SiteBacking::File => one.disk += site.bytes,
    }
    if site.server == SiteServer::Tgt {
        // tgt can serve only files, so a volume in memory is a file in the file system in memory.
        one.files += one.memory;
    }
    if let Some(gateway) = &site.gateway {
        one.disk += gateway.log;
        one.memory += gateway.dram + gateway.nvram;
        one.files += gateway.nvram;
    }
    let nodes = u64::from(site.nodes);
    SiteFootprint { disk: one.disk * nodes, memory: one.memory * nodes, files: one.files * nodes }
}

/// Returns the free bytes of a folder's file system.
fn free(folder: &Path) -> Result<u64, Error> {
    let room = rustix::fs::statvfs(folder)
        .map_err(|error| Error::file("query the free space of", folder)(error.into()))?;
    Ok(room.f_bavail * room.f_frsize)
}

/// Checks the requirements of `forebay attach`.
fn attach() -> Result<(), Lack> {
    if !rustix::process::geteuid().is_root() {
        let why = "only root may attach volumes".to_owned();
        return Err(Lack { why, remedy: Some("be root".to_owned()) });
    }
    for (path, driver) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|error| Lack {
            why: format!("cannot open {path}: {error}"),
            remedy: Some(format!(
                "load the driver: modprobe {driver} (in a container: --device {path})"
            )),
        })?;
    }
    Ok(())
}

/// Checks whether hosts with little memory can be emulated.
fn limits(name: &str) -> Result<(), Lack> {
    can_be_limited(name).map_err(|error| Lack {
        why: format!("cannot emulate a host with little memory: {error}"),
        remedy: Some(
            "run as root on a system whose control groups limit memory; with version 2: echo +memory >/sys/fs/cgroup/cgroup.subtree_control"
                .to_owned(),
        ),
    })
}

/// Checks that the source code exists which the build workload compiles. No package contains it.
fn source(task: &WorkloadTask) -> Result<(), Lack> {
    task.workload().ready().map_err(|error| Lack {
        why: error.to_string(),
        remedy: Some("fetch it: `forebay lab fetch`, or --install".to_owned()),
    })
}

/// Returns the bytes of memory that are available without swapping (proc(5), MemAvailable).
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
    use crate::{SiteGateway, SiteLink, results::tests::point};

    fn rich() -> Means {
        Means {
            link: Ok(()),
            attach: Ok(()),
            ensembles: Ok(()),
            limits: Ok(()),
            congestion: vec!["reno".to_owned()],
            installed: Box::new(|_| true),
            source: Ok(()),
            disk: 10 << 30,
            memory: 10 << 30,
            files: 10 << 30,
        }
    }

    fn mounted() -> ExperimentPoint {
        let mut point = point("mounted");
        point.site.host = Host::Mounted(String::new());
        point.site.link = Some(SiteLink::default());
        point
    }

    /// Returns the reason why a point is left out, or `None` if it will be run.
    fn reason(means: &Means, point: ExperimentPoint) -> Option<String> {
        let plan = means.plan(vec![point]);
        assert_eq!(plan.run.len() + plan.left_out.len(), 1);
        plan.left_out.into_iter().next().map(|it| it.left_out)
    }

    #[test]
    fn a_machine_that_meets_all_needs_runs_all_points() {
        let plan = rich().plan(vec![mounted(), point("other")]);
        assert_eq!((plan.run.len(), plan.left_out.len(), plan.missing.len()), (2, 0, 0));
        assert_eq!(plan.seconds, 2.0 + 2.0 * engine::SETTING_UP);
    }

    #[test]
    fn a_missing_requirement_is_the_reason_at_the_points_that_need_it() {
        let no = |why: &str| Err(Lack { why: why.to_owned(), remedy: None });
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
        let lack = Lack { why: "no control groups".to_owned(), remedy: None };
        let means = Means { limits: Err(lack), ..rich() };
        assert_eq!(reason(&means, little).unwrap(), "no control groups");
        assert_eq!(reason(&means, mounted()), None);
    }

    #[test]
    fn each_remedy_for_missing_requirements_is_listed_once() {
        let lack = |why: &str, remedy: &str| {
            Err(Lack { why: why.to_owned(), remedy: Some(remedy.to_owned()) })
        };
        let means = Means {
            link: lack("no privilege", "be root"),
            attach: lack("only root may", "be root"),
            disk: 1 << 20,
            ..rich()
        };
        let mut here = mounted();
        here.site.link = None;
        let mut large = point("large");
        large.site.gateway = Some(SiteGateway::default());
        let mut small = point("small");
        small.site.host = Host::Url;
        large.site.host = Host::Url;
        let plan = means.plan(vec![mounted(), mounted(), here, large, small]);
        let whys: BTreeSet<&str> = plan.left_out.iter().map(|it| it.left_out.as_str()).collect();
        assert_eq!((plan.run.len(), whys.len()), (1, 3), "{whys:?}");
        assert_eq!(plan.remedies.len(), 2, "{:?}", plan.remedies);
        assert!(plan.remedies[0] == "be root" && plan.remedies[1].contains("--out"));
        let mut bbr = point("bbr");
        bbr.site.host = Host::Url;
        bbr.site.session.congestion = "bbr".to_owned();
        assert!(means.plan(vec![bbr]).remedies[0].contains("modprobe tcp_bbr"));
    }

    #[test]
    fn the_source_of_a_build_is_checked_before_the_run() {
        let lack = Lack { why: "no source".to_owned(), remedy: None };
        let means = Means { source: Err(lack), ..rich() };
        let mut build = mounted();
        build.task = WorkloadTask::Build(workload::Build::default());
        build.site.bytes = 4 << 30;
        assert_eq!(reason(&means, build).unwrap(), "no source");
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
        peer.site.server = SiteServer::Tgt;
        assert!(reason(&means, peer).unwrap().contains("package tgt"));
        let means = Means { installed: Box::new(|tool| tool.program != "nbdkit"), ..rich() };
        let mut peer = point("peer");
        (peer.site.server, peer.site.host) = (SiteServer::Nbdkit, Host::QemuStorageDaemon);
        assert!(reason(&means, peer.clone()).unwrap().contains("package nbdkit"));
        peer.site.host = Host::Url;
        assert!(reason(&rich(), peer).unwrap().contains("qemu-storage-daemon alone"));
    }

    #[test]
    fn points_that_do_not_fit_on_the_disk_are_left_out() {
        let mut large = point("large");
        large.site.nodes = 4;
        large.site.gateway = Some(SiteGateway { log: 1 << 30, ..SiteGateway::default() });
        let small = Means { disk: 3 << 30, ..rich() };
        assert_eq!(
            reason(&small, large.clone()).unwrap(),
            "4096 MiB on the disk are needed, and 3072 are free"
        );
        let small = Means { memory: 1 << 30, ..rich() };
        assert!(reason(&small, large).unwrap().contains("of memory"));
        let mut peer = point("peer");
        peer.site.server = SiteServer::Tgt;
        let container = Means { files: 64 << 20, ..rich() };
        let why = reason(&container, peer.clone()).unwrap();
        assert!(why.contains("for files in memory are needed, and 64 are free"), "{why}");
        peer.site.server = SiteServer::default();
        assert_eq!(reason(&container, peer), None);
        let mut full = mounted();
        full.site.bytes = 1 << 20;
        assert!(reason(&rich(), full).unwrap().contains("the volume has 0"));
        let mut wrong = point("wrong");
        wrong.site.nodes = 0;
        assert!(reason(&rich(), wrong).unwrap().contains("1 to 4 nodes"));
    }
}
