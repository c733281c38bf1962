//! A site that is running: starts, counts and ends its processes and its link.

use std::{
    fs::File,
    os::fd::AsFd,
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use program::WaitLimit;
use rig::tgt::TgtServer;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use wan::{Link, LinkOptions, WanLinkEnd};
use workload::WorkloadLocation;

use super::{
    Setting,
    attachment::LabAttachment,
    forebay_server::LabForebayServer,
    peer::{Nbdkit, QemuVolumeExport, start_tgt},
    process::{self, StageNamespace},
    settings::{self, TARGET, gateway_target},
    stage_counters::{StageCounters, processor_of},
};
use crate::{
    Error, LabSite, SamplerScope,
    site::{GatewayPlacement, Host, SiteBacking, SiteServer},
};

/// The parts of a running site. Fields are dropped in the order of their declaration, so a part
/// stands before the parts that it uses.
pub(crate) struct RunningSite {
    site: LabSite,
    hosts: Vec<SiteVolumeAccess>,
    gateway: Option<LabForebayServer>,
    nodes: Vec<RunningNode>,
    near: StageNamespace,
    link: Option<Link>,
}

/// The access of a workload to its volume: attached, exported as a file, or by URL.
enum SiteVolumeAccess {
    Attached(LabAttachment),
    Shown(QemuVolumeExport),
    Url(String),
}

enum RunningNode {
    Nbdkit(Nbdkit),
    Ours(LabForebayServer),
    Tgt(TgtServer),
}

impl RunningSite {
    /// Starts all parts of a site. The link gets its delay and its losses only when all parts are ready. If a part does
    /// not start, the parts that run are ended.
    pub fn raise(place: &Setting, site: &LabSite) -> Result<Self, Error> {
        check(site)?;
        let (mut standing, far) = Self::with_link(place, site)?;
        match standing.start(place, &far) {
            Ok(()) => Ok(standing),
            Err(error) => {
                // Return only the error of the start. This error is also the cause of errors that occur when the other
                // parts are ended.
                let _ = standing.end(&place.memory);
                Err(error)
            }
        }
    }

    /// Starts only the link of a site. Also returns the network namespace of the far end of this link.
    fn with_link(place: &Setting, site: &LabSite) -> Result<(Self, StageNamespace), Error> {
        let link = site.link.as_ref().map(|line| {
            // Set the MTU from the start, because connections agree on a segment size when they
            // begin.
            let plain = |of: &wan::DirectionSettings| wan::DirectionSettings {
                mtu: of.mtu,
                queue_bytes: of.queue_bytes,
                ..wan::DirectionSettings::default()
            };
            Link::open(&LinkOptions {
                name: place.name.clone(),
                settings: [plain(&line.near_to_far), plain(&line.far_to_near)],
                seed: line.seed,
                capture: None,
            })
        });
        let link = link.transpose()?;
        let [near, far] = match &link {
            Some(_) => [open(WanLinkEnd::Near, &place.name)?, open(WanLinkEnd::Far, &place.name)?],
            None => [None, None],
        };
        for namespace in [&near, &far] {
            tune(namespace, site)?;
        }
        let standing = Self {
            site: site.clone(),
            hosts: Vec::new(),
            gateway: None,
            nodes: Vec::new(),
            near,
            link,
        };
        Ok((standing, far))
    }

    /// Starts nodes, gateway and attachments, and then gives the link the settings of the site.
    fn start(&mut self, place: &Setting, far: &StageNamespace) -> Result<(), Error> {
        let (program, folder, stop) = (&place.program, &place.memory, &place.stop);
        let folders = place.folders();
        let site = &self.site;
        let address = if self.link.is_some() { WanLinkEnd::Far.address() } else { "127.0.0.1" };
        if site.server != SiteServer::Host {
            for number in 1..=site.nodes {
                self.nodes.push(match site.server {
                    SiteServer::Tgt => {
                        let backing = match site.disk.data {
                            SiteBacking::Memory => folders.memory,
                            SiteBacking::File => folders.disk,
                        };
                        let backing = backing.join(format!("tgt-{number}.img"));
                        RunningNode::Tgt(start_tgt(
                            number, address, &backing, site.bytes, folder, far, stop,
                        )?)
                    }
                    SiteServer::Nbdkit => RunningNode::Nbdkit(Nbdkit::start(
                        number, address, site.bytes, folder, far, stop,
                    )?),
                    _ => {
                        let settings = settings::node(site, number, address, folders);
                        let name = format!("node {number}");
                        RunningNode::Ours(LabForebayServer::start(
                            &name, program, folder, far, &settings, stop,
                        )?)
                    }
                });
            }
        }
        let mut urls: Vec<String> = self.nodes.iter().map(RunningNode::url).collect();
        if let Some(gateway) =
            site.gateway.as_ref().filter(|it| it.beside == GatewayPlacement::Host)
        {
            let settings = settings::gateway(site, gateway, &urls, folders);
            let served =
                LabForebayServer::start("gateway", program, folder, &self.near, &settings, stop)?;
            urls = (1..=site.nodes).map(|node| served.url(&gateway_target(node))).collect();
            self.gateway = Some(served);
        }
        for number in 1..=site.nodes {
            let url = urls.get(usize::from(number) - 1).map(String::as_str);
            let near = &self.near;
            let seat = match (&site.host, url) {
                (Host::Url, Some(url)) => SiteVolumeAccess::Url(url.to_owned()),
                (Host::QemuStorageDaemon, Some(url)) => SiteVolumeAccess::Shown(
                    QemuVolumeExport::start(number, url, folder, near, stop)?,
                ),
                _ => {
                    let settings = settings::host(site, number, url, folders);
                    SiteVolumeAccess::Attached(LabAttachment::start(
                        number, program, folder, near, &settings, &site.host, stop,
                    )?)
                }
            };
            self.hosts.push(seat);
        }
        // Now that all processes have started, give the link its delay and losses.
        if let (Some(link), Some(line)) = (&mut self.link, &site.link) {
            link.change(line.settings())?;
        }
        Ok(())
    }

    /// Changes the running site into this one, if that is possible without a restart. Returns false
    /// if it is not.
    pub fn becomes(&mut self, site: &LabSite) -> Result<bool, Error> {
        if !self.site.can_become(site) {
            return Ok(false);
        }
        if let (Some(link), Some(line)) = (&mut self.link, &site.link)
            && self.site.link.as_ref() != Some(line)
        {
            link.change(line.settings())?;
        }
        self.site = site.clone();
        Ok(true)
    }

    /// Returns the network namespace of the host.
    pub fn near(&self) -> &StageNamespace {
        &self.near
    }

    /// Returns the locations at which workloads run: devices, folders or URLs.
    pub fn places(&self) -> Vec<WorkloadLocation> {
        let place = |seat: &SiteVolumeAccess| match seat {
            SiteVolumeAccess::Attached(attached) => attached.place.clone(),
            SiteVolumeAccess::Shown(shown) => shown.place.clone(),
            SiteVolumeAccess::Url(url) => WorkloadLocation::Url(url.clone()),
        };
        self.hosts.iter().map(place).collect()
    }

    /// Selects the sockets whose windows are sampled: the host's end of the session with the first
    /// node, which sends the data of writes. Returns `None` if there is no node.
    pub fn watch(&self, link: &str) -> Option<SamplerScope> {
        let url = self.nodes.first()?.url();
        let portal = url.strip_prefix("iscsi://")?.split('/').next()?;
        let port = portal.rsplit_once(':')?.1.parse().ok()?;
        let namespace = self.link.as_ref().map(|_| WanLinkEnd::Near.path(link));
        Some(SamplerScope { namespace, port, at_target: false })
    }

    pub fn processes(&self) -> Vec<u32> {
        self.named().into_iter().map(|(_, process)| process).collect()
    }

    fn named(&self) -> Vec<(&'static str, u32)> {
        let hosts = self.hosts.iter().filter_map(|seat| match seat {
            SiteVolumeAccess::Attached(attached) => Some(("host", attached.id())),
            SiteVolumeAccess::Shown(shown) => Some(("host", shown.id())),
            SiteVolumeAccess::Url(_) => None,
        });
        let gateway = self.gateway.iter().map(|gateway| ("gateway", gateway.id()));
        let nodes = self.nodes.iter().map(|node| match node {
            RunningNode::Nbdkit(nbdkit) => ("node", nbdkit.id()),
            RunningNode::Ours(served) => ("node", served.id()),
            RunningNode::Tgt(tgt) => ("node", tgt.id()),
        });
        hosts.chain(gateway).chain(nodes).collect()
    }

    /// Returns the values of all counters of the link, of the processes and of their layers.
    pub fn counted(&self, stop: &AtomicBool) -> Result<StageCounters, Error> {
        let mut counted = StageCounters::default();
        for served in self.served() {
            counted.join(StageCounters::of_status(&served.name, &served.status(stop)?));
        }
        if let Some(link) = &self.link {
            let report = serde_json::to_value(link.report()?).unwrap_or_default();
            counted.join(StageCounters::of_link(&report));
        }
        for (name, process) in self.named() {
            counted.add_processor(name, processor_of(process));
        }
        Ok(counted)
    }

    /// Begins a run: the link judges its own precision from now on. If the link was late before this call, the run is
    /// not in doubt for that reason.
    pub fn begin(&self) -> Result<(), Error> {
        Ok(self.link.as_ref().map_or(Ok(()), Link::judge_from_now)?)
    }

    /// Returns the reasons to doubt the link's figures for this run, such as packets that the link delivered too late.
    pub fn taints(&self) -> Result<Vec<String>, Error> {
        let report = self.link.as_ref().map(Link::report).transpose()?;
        Ok(report.map(|report| report.tainted).unwrap_or_default())
    }

    /// Makes hosts write out the data in their page cache, and waits until no gateway has dirty data. Returns how long
    /// this took, or `None` if the host or a gateway did not finish within its time limit.
    pub fn drain(&self, folder: &Path, stop: &AtomicBool) -> Result<Option<Duration>, Error> {
        let begun = Instant::now();
        for place in self.places() {
            if !write_out(&place, folder, stop)? {
                return Ok(None);
            }
        }
        if self.site.gateway.is_some() {
            for served in self.served() {
                if served.drain(stop)?.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(begun.elapsed()))
    }

    fn served(&self) -> impl Iterator<Item = &LabForebayServer> {
        let nodes = self.nodes.iter().filter_map(|node| match node {
            RunningNode::Ours(served) => Some(served),
            RunningNode::Nbdkit(_) | RunningNode::Tgt(_) => None,
        });
        self.gateway.iter().chain(nodes)
    }

    /// Ends all parts in order. After an error the other parts are ended, too; the first error is
    /// returned.
    pub fn end(mut self, folder: &Path) -> Result<(), Error> {
        // Remove delay and losses from the link, so that the remaining data crosses it quickly.
        if let (Some(link), Some(line)) = (&mut self.link, &self.site.link) {
            let plain = |of: wan::DirectionSettings| wan::DirectionSettings {
                mtu: of.mtu,
                queue_bytes: of.queue_bytes,
                ..wan::DirectionSettings::default()
            };
            // Ignore an error of the link: the processes that use the link will report one.
            let _ = link.change(line.settings().map(plain));
        }
        let mut results = Vec::new();
        for seat in self.hosts.drain(..) {
            results.push(match seat {
                SiteVolumeAccess::Attached(attached) => attached.end(folder),
                SiteVolumeAccess::Shown(shown) => shown.end(),
                SiteVolumeAccess::Url(_) => Ok(()),
            });
        }
        results.extend(self.gateway.take().map(LabForebayServer::end));
        for node in self.nodes.drain(..) {
            results.push(match node {
                RunningNode::Nbdkit(nbdkit) => nbdkit.end(),
                RunningNode::Ours(served) => served.end(),
                // tgtd does not stop while it has targets, so it is killed when the value is dropped.
                RunningNode::Tgt(_) => Ok(()),
            });
        }
        results.into_iter().collect()
    }
}

impl RunningNode {
    fn url(&self) -> String {
        match self {
            Self::Nbdkit(nbdkit) => nbdkit.url.clone(),
            Self::Ours(served) => served.url(TARGET),
            Self::Tgt(tgt) => tgt.url().to_owned(),
        }
    }
}

/// Time limit for writing out a page cache of some gigabytes over a slow link.
const WRITE_OUT: Duration = Duration::from_secs(300);

/// Makes the kernel write out the cached data of a location. Returns false if that takes too long.
/// A separate process does this, since a thread that waits for a stuck volume cannot be
/// interrupted.
fn write_out(place: &WorkloadLocation, folder: &Path, stop: &AtomicBool) -> Result<bool, Error> {
    let mut command = Command::new("sync");
    match place {
        WorkloadLocation::Folder(path) => command.arg("--file-system").arg(path),
        WorkloadLocation::Device(path) => command.arg(path),
        // A workload that uses a URL has no data in the kernel's page cache.
        WorkloadLocation::Url(_) => return Ok(true),
    };
    let name = format!("syncing {place}");
    let patience = WaitLimit { limit: WRITE_OUT, stop };
    match process::run(&name, &mut command, &None, &folder.join("sync.events"), patience) {
        Ok(_) => Ok(true),
        Err(Error::Process(program::Error::Late { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fails if settings of the site contradict each other.
pub(crate) fn check(site: &LabSite) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::Settings(what.to_owned()));
    let beside = site.gateway.as_ref().map(|gateway| gateway.beside);
    match site {
        LabSite { nodes: 0 | 5.., .. } => wrong("a site has 1 to 4 nodes"),
        LabSite { bytes: 0, .. } => wrong("a volume needs a size"),
        LabSite { server: SiteServer::Host, link: Some(_), .. } => {
            wrong("a link is not possible with the host's own disk")
        }
        LabSite { server: SiteServer::Host, .. }
            if matches!(beside, Some(GatewayPlacement::Host | GatewayPlacement::Node)) =>
        {
            wrong("a gateway at the host or at the node is not possible with the host's own disk")
        }
        LabSite { server: SiteServer::Host, host: Host::Url | Host::QemuStorageDaemon, .. } => {
            wrong("the host's own disk is not served over iSCSI: attach it")
        }
        LabSite { host: Host::Url | Host::QemuStorageDaemon, .. }
            if beside == Some(GatewayPlacement::Attach) =>
        {
            wrong("a cache in the process that attaches needs an attached volume")
        }
        LabSite { server: SiteServer::Tgt, disk, .. } if disk.model.is_some() => {
            wrong("tgt has no simulated disks")
        }
        LabSite { server: SiteServer::Tgt, .. } if beside == Some(GatewayPlacement::Node) => {
            wrong("tgt cannot use our cache")
        }
        LabSite { server: SiteServer::Nbdkit, disk, gateway, host, .. }
            if disk.model.is_some()
                || disk.data != SiteBacking::Memory
                || gateway.is_some()
                || *host != Host::QemuStorageDaemon =>
        {
            wrong(
                "nbdkit serves a disk in memory here, which needs qemu-storage-daemon alone as the host",
            )
        }
        _ => Ok(()),
    }
}

fn open(end: WanLinkEnd, link: &str) -> Result<StageNamespace, Error> {
    let path = end.path(link);
    File::open(&path).map(Some).map_err(Error::file("open", &path))
}

/// Sets defaults of the kernel in a network namespace for the site. The defaults of the machine's own network namespace
/// do not change.
fn tune(namespace: &StageNamespace, site: &LabSite) -> Result<(), Error> {
    let Some(namespace) = namespace else { return Ok(()) };
    let write = |name: &str, value: &str| {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        std::fs::write(&path, value).map_err(Error::file("write", &path))
    };
    std::thread::scope(|scope| {
        // Write these files in a thread that has entered the namespace, because a file below /proc/sys/net belongs to
        // the network namespace of the thread that opens it.
        let thread = scope.spawn(|| {
            let kind = Some(LinkNameSpaceType::Network);
            let moved = move_into_link_name_space(namespace.as_fd(), kind);
            moved.map_err(|error| Error::system("enter a namespace")(error.into()))?;
            // Disable the kernel's cache of TCP metrics: a new connection must not use metrics that an earlier
            // connection measured at another delay.
            write("tcp_no_metrics_save", "1")?;
            let name = &site.session.congestion;
            let default = |name: &str| write("tcp_congestion_control", name);
            // Use Reno for sockets that will join an ensemble. A socket that starts with BBR is paced by the kernel
            // until it is closed.
            if name.starts_with("ensemble") {
                return default("reno");
            }
            if !available()?.iter().any(|known| known == name) {
                return Ok(());
            }
            // Only a congestion control that every user may select can be the default of a
            // namespace. If the kernel refuses this one as the default, the programs still select
            // it for each socket, since they run as root.
            default(name).or_else(|_| default("reno"))
        });
        thread.join().expect("writing settings does not panic")
    })
}

/// Returns the congestion controls that this kernel offers.
pub(crate) fn available() -> Result<Vec<String>, Error> {
    let path = Path::new("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let read = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    Ok(read.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_in_the_page_cache_is_written_out_or_the_failure_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let written = |name: &str| {
            write_out(&WorkloadLocation::Folder(folder.path().join(name)), folder.path(), &stop)
        };
        assert!(written("").unwrap());
        assert!(matches!(written("none"), Err(Error::Process(program::Error::Failed { .. }))));
        let url = WorkloadLocation::Url("iscsi://a/b/0".to_owned());
        assert!(write_out(&url, folder.path(), &stop).unwrap());
    }
}
