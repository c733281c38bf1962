//! A node and its gateways, each a process of the real program. All their files are on file systems that lose
//! unsynced writes in a power cut.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rawclient::ClientLogin;
use rig::destage;
use rig::node::{ServeProcess, TestProcessPriority};
use rustix::process::Pid;
use serde_json::Value;

use super::mode::{GATEWAY, NODE, PARTNER, PowerRoundMode, Variant};
use super::site_settings;
use crate::powercut::{Boot, Chance, FaultFsSync, FaultFsTree, Honour, Mounted, Supply};

/// Time limit of a start, a takeover or the end of a killed process; long, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Decides which syncs of a disk are honoured, by the name of the disk.
pub type Judge = Arc<dyn Fn(&str, &FaultFsSync) -> bool + Send + std::marker::Sync>;

/// The processes, their power and their disks. Fields are dropped in the order of their
/// declaration. `processes` stands before `disks`, because the processes must end before their
/// disks are unmounted.
pub struct PowerSuiteSite {
    pub mode: PowerRoundMode,
    pub supply: Arc<Supply>,
    program: PathBuf,
    processes: Vec<Option<ServeProcess>>,
    disks: Vec<PowerSuiteDisk>,
    addresses: Vec<SocketAddr>,
    folder: tempfile::TempDir,
    judge: Judge,
    engine: &'static str,
    /// The boot id of all machines, which share one kernel. After the power cut of one machine the others have the new
    /// id, too; this has no effect on them, because their processes have read the id at their start and do not read it
    /// again.
    boot: Boot,
}

struct PowerSuiteDisk {
    name: &'static str,
    machine: usize,
    mounted: Option<Mounted>,
}

/// Folders that each disk has before the program starts.
const FOLDERS: [&str; 4] = ["volume", "log", "nvram", "var"];

const NAMES: [&str; 3] = ["node", "gateway", "partner"];

impl PowerSuiteSite {
    /// Makes a site with empty disks and without processes.
    pub fn new(
        program: &Path,
        mode: PowerRoundMode,
        engine: &'static str,
        judge: Judge,
    ) -> Result<PowerSuiteSite> {
        let folder = tempfile::tempdir()?;
        let disk = |name, machine| PowerSuiteDisk { name, machine, mounted: None };
        let mut disks = vec![disk("node", NODE), disk("gateway", GATEWAY)];
        match mode {
            PowerRoundMode::Mirrored => disks.push(disk("mirror", GATEWAY)),
            PowerRoundMode::Pair | PowerRoundMode::PairNvram => {
                disks.push(disk("partner", PARTNER))
            }
            _ => {}
        }
        let boot = Boot::new(folder.path().join("boot_id"), &mut Chance::new(0))?;
        let address = loopback();
        let addresses = (0..mode.machines() as u16)
            .map(|machine| SocketAddr::from((address, FIRST_PORT + machine)))
            .collect();
        let mut site = PowerSuiteSite {
            mode,
            supply: Supply::new(mode.machines()),
            program: program.to_owned(),
            processes: (0..mode.machines()).map(|_| None).collect(),
            disks,
            addresses,
            folder,
            judge,
            engine,
            boot,
        };
        for at in 0..site.disks.len() {
            let mut tree = FaultFsTree::new();
            FOLDERS.iter().try_for_each(|name| tree.add_folder(name)).map_err(errno)?;
            site.mount(at, tree)?;
        }
        Ok(site)
    }

    /// Makes the two encryption keys that the log gets in turn in [`PowerRoundMode::Changing`].
    pub fn make_keys(&self) -> Result<()> {
        for key in 1..=2 {
            let disk = self.path("gateway/var");
            let [secret, file] = ["secret", "key"].map(|kind| disk.join(format!("{kind}{key}")));
            let mut make_secret = Command::new(&self.program);
            make_secret.arg("secret").arg(&secret).args(["--characters", "64"]);
            let mut make_key = Command::new(&self.program);
            make_key.arg("key").arg(&file).arg("--secret-file").arg(&secret);
            for command in [&mut make_secret, &mut make_key] {
                let made = program::run(command, LIMIT)?;
                ensure!(made.success(), "{}: {}", made.ending(), made.tail(5));
            }
        }
        Ok(())
    }

    /// Starts every process that is not running, the node first. With a pair, waits until a gateway
    /// serves the volume.
    pub fn raise(&mut self, variant: Variant) -> Result<()> {
        for machine in 0..self.processes.len() {
            self.raise_one(machine, variant)?;
        }
        if self.mode.is_pair() {
            // Accept the role `alone`, too: on a busy machine the partner's mirror leg may not be
            // in sync in time. A gateway without its partner makes the same promises.
            self.wait_for_role(&["active"]).or_else(|_| self.wait_for_role(&["alone"]))?;
        }
        Ok(())
    }

    /// Starts the process of a machine unless it is running.
    pub fn raise_one(&mut self, machine: usize, variant: Variant) -> Result<()> {
        if self.processes[machine].is_some() {
            return Ok(());
        }
        let settings = self.settings(machine, variant);
        let mut named = Ok(());
        let runs = |process| {
            let process = Pid::from_raw(process as i32).expect("no process has the number 0");
            named = self.supply.runs(machine, process);
        };
        let (program, folder) = (&self.program, self.folder.path());
        let name = NAMES[machine];
        let node = ServeProcess::start_heard(
            TestProcessPriority::Usual,
            program,
            folder,
            name,
            &settings,
            runs,
        )?;
        self.processes[machine] = Some(node);
        named
    }

    fn settings(&self, machine: usize, variant: Variant) -> String {
        let places = site_settings::PowerSiteLocation {
            folder: self.folder.path(),
            addresses: &self.addresses,
            engine: self.engine,
        };
        match machine {
            NODE => site_settings::node(&places, self.mode, variant),
            _ => site_settings::gateway(&places, self.mode, machine, variant),
        }
    }

    /// Changes the volume of the running node to the size of the variant.
    pub fn grow_volume(&self, variant: Variant) -> Result<()> {
        self.process(NODE)?.change(&self.settings(NODE, variant))
    }

    /// Drains the log of the running gateway, and then changes the size of the log.
    pub fn resize_log(&self, mib: u64) -> Result<()> {
        let gateway = self.process(GATEWAY)?;
        destage::drained(gateway, LIMIT)?;
        let size = format!("{mib}MiB");
        let resized = gateway.ask(&["gateway", "log-resize", site_settings::GATEWAY, &size])?;
        ensure!(resized.success(), "log-resize {}: {}", resized.ending(), resized.tail(5));
        Ok(())
    }

    /// Restores the disks after a power cut of these machines: waits until their processes have ended, and mounts an
    /// image that the cut may leave, drawn with `seed`.
    pub fn fall(&mut self, machines: &[usize], seed: u64) -> Result<()> {
        self.bury(machines)?;
        for at in 0..self.disks.len() {
            let disk = &mut self.disks[at];
            if machines.contains(&disk.machine) {
                let tree = disk.mounted.take().context("not mounted")?.unmount()?;
                self.mount(at, tree.draw(seed ^ (at as u64 + 1)))?;
            }
        }
        machines.iter().for_each(|machine| self.supply.restore(*machine));
        self.boot.renew(&mut Chance::new(seed))
    }

    /// Waits until the killed processes of these machines have ended. Their disks keep all data, but a later power cut
    /// can still lose the unsynced writes of these processes.
    pub fn fall_alone(&mut self, machines: &[usize]) -> Result<()> {
        self.bury(machines)?;
        machines.iter().for_each(|machine| self.supply.restore(*machine));
        Ok(())
    }

    fn bury(&mut self, machines: &[usize]) -> Result<()> {
        for machine in machines {
            self.supply.wait_off(*machine)?;
            if let Some(mut process) = self.processes[*machine].take() {
                let has_ended = process.has_ended(LIMIT)?;
                ensure!(has_ended, "{} does not end when it is killed", NAMES[*machine]);
            }
        }
        Ok(())
    }

    /// Destages all dirty data of the serving gateway, and stops all gateways.
    pub fn settle(&mut self) -> Result<()> {
        let serving = self.serving()?;
        destage::drained(self.process(serving)?, LIMIT)?;
        // Stop the serving gateway first. While its partner still runs, the gateway does not have to wait for the
        // partner when it stops, and it releases its exclusive right to write the volume (claim).
        self.stop_one(serving)?;
        match serving {
            GATEWAY if self.mode.is_pair() => self.stop_one(PARTNER),
            PARTNER => self.stop_one(GATEWAY),
            _ => Ok(()),
        }
    }

    /// Stops the process of a machine by SIGTERM, and checks that it ends without an error.
    pub fn stop_one(&mut self, machine: usize) -> Result<()> {
        let process = self.processes[machine].take();
        process.with_context(|| format!("{} is down", NAMES[machine]))?.stop().map(drop)
    }

    /// Checks that the node has a record of a claim, the exclusive right of a gateway to write the volume. A gateway
    /// serves only after it has obtained the claim, so the record must have survived the failure.
    pub fn check_claim(&self) -> Result<()> {
        let folder = self.path("node/var/state");
        let names = fs::read_dir(&folder).with_context(|| format!("{} is lost", folder.display()));
        let names: Vec<_> = names?.collect::<Result<_, _>>()?;
        let is_claim = |entry: &fs::DirEntry| entry.path().extension() == Some("claim".as_ref());
        ensure!(names.iter().any(is_claim), "the node has lost the record of the claim: {names:?}");
        Ok(())
    }

    /// Returns the login to the volume through a gateway.
    pub fn near(&self, machine: usize) -> Result<ClientLogin> {
        Ok(ClientLogin::new(self.process(machine)?.portal(), site_settings::GATEWAY, 0))
    }

    /// Returns the login to the node's own volume.
    pub fn far(&self) -> Result<ClientLogin> {
        Ok(ClientLogin::new(self.process(NODE)?.portal(), site_settings::NODE, 0))
    }

    fn process(&self, machine: usize) -> Result<&ServeProcess> {
        let process = self.processes[machine].as_ref();
        process.with_context(|| format!("{} is down", NAMES[machine]))
    }

    /// Returns the last 12 log events of every process.
    pub fn events(&self) -> String {
        let tail = |name: &&str| {
            let path = self.path(&format!("{name}.events"));
            let events = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = events.lines().collect();
            format!("{name}:\n{}\n", lines[lines.len().saturating_sub(12)..].join("\n"))
        };
        NAMES.iter().take(self.mode.machines()).map(tail).collect()
    }

    /// Returns the gateway that serves the volume. With a pair, waits until one of the two does.
    pub fn serving(&self) -> Result<usize> {
        match self.mode {
            PowerRoundMode::Pair | PowerRoundMode::PairNvram => {
                self.wait_for_role(&["active", "alone"])
            }
            _ => Ok(GATEWAY),
        }
    }

    /// Waits until a gateway of a pair has one of these roles, and returns it.
    fn wait_for_role(&self, roles: &[&str]) -> Result<usize> {
        let deadline = Instant::now() + LIMIT;
        loop {
            for machine in [GATEWAY, PARTNER] {
                if self.processes[machine].is_some() && roles.contains(&&*self.role(machine)?) {
                    return Ok(machine);
                }
            }
            ensure!(Instant::now() < deadline, "no gateway of the pair is {roles:?} in {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this gateway of a pair serves the volume without its partner, which is down. Returns false if the
    /// gateway's status says that it may not serve: on a busy machine the partner may have served without this gateway
    /// before, and only the partner has the newest data.
    pub fn takes_over(&self, machine: usize) -> Result<bool> {
        let Err(error) = self.wait_for_role(&["active", "alone"]) else { return Ok(true) };
        match self.pair(machine)?["reason"].as_str() {
            Some(reason) => {
                println!("pair: {} does not serve alone: {reason}", NAMES[machine]);
                Ok(false)
            }
            None => Err(error),
        }
    }

    /// Returns the role that a gateway of a pair reports: `active`, `alone` or `standby`.
    fn role(&self, machine: usize) -> Result<String> {
        Ok(self.pair(machine)?["role"].as_str().unwrap_or_default().to_owned())
    }

    fn pair(&self, machine: usize) -> Result<Value> {
        let status = self.process(machine)?.status()?;
        let targets = status["targets"].as_array().context("no targets")?;
        let found = targets.iter().find(|target| target["name"] == site_settings::GATEWAY);
        Ok(found.map(|target| target["pair"].clone()).unwrap_or_default())
    }

    /// Returns true if the partner of a gateway has taken the volume over. This happens to a
    /// gateway with power if it gets no CPU for longer than `dead_after`.
    pub fn was_taken_over(&self, machine: usize) -> Result<bool> {
        Ok(self.mode.is_pair() && self.role(machine)? == "standby")
    }

    fn mount(&mut self, at: usize, tree: FaultFsTree) -> Result<()> {
        let PowerSuiteDisk { name, machine, .. } = self.disks[at];
        let judge = Arc::clone(&self.judge);
        let honour: Honour = Arc::new(move |sync| judge(name, sync));
        let path = self.path(name);
        let mounted = Mounted::mount(tree, &path, &self.supply, machine, honour)?;
        self.disks[at].mounted = Some(mounted);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Port of the first machine; the other machines use the ports after it.
const FIRST_PORT: u16 = 3260;

/// Returns a loopback address that no other test process and no other site of this process uses.
/// With a shared address, a connection of another process could use a machine's port while that
/// machine is down, and the machine's next start would fail.
fn loopback() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + NEXT.fetch_add(1, Ordering::Relaxed) % 128, high, low)
}

fn errno(errno: i32) -> anyhow::Error {
    std::io::Error::from_raw_os_error(errno).into()
}
