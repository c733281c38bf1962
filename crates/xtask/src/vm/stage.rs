//! The environment of a scenario (program, machine image and folder) and its results so far.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rig::node::ServeProcess;

use crate::vm::guest::{self, Guest, Hardware};
use crate::vm::image::VmImage;

/// Time limit of a short script: some commands, a login or a small file system.
pub const SHORT: Duration = Duration::from_secs(40);

/// Time limit of a script that waits for a recovery or transfers some tens of megabytes.
pub const LONG: Duration = Duration::from_secs(90);

/// The iSCSI initiator name of the virtual machines.
pub const INITIATOR: &str = "iqn.2026-11.forebay.vm:guest";

/// Returns the settings of a target with one unit. It listens on these ports of the loopback
/// interface; 0 means any free port.
pub fn settings(target: &str, ports: &[u16], stack: &str) -> String {
    let portals: Vec<String> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let portals = portals.join(", ");
    format!(
        "listen = [{portals}]\n[[target]]\nname = \"{target}\"\n[[target.unit]]\n\
         serial = \"VM-UNIT\"\nstack = [{stack}]\n"
    )
}

/// Returns the settings of a layer that is a file of `mib` MiB.
pub fn file(name: &str, mib: u32) -> String {
    format!("{{ file = {{ path = \"{name}\", size = \"{mib}MiB\" }} }}")
}

/// A value that a scenario has measured.
pub struct VmScenarioFigure {
    /// The load under which the value was measured.
    pub what: &'static str,
    /// The combination of initiator, target and cache that was measured.
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
}

/// The environment in which a scenario runs, and its results.
pub struct VmScenarioStage<'a> {
    pub program: &'a Path,
    pub image: &'a VmImage,
    /// The folder with the files of this scenario: volumes, settings, events and console output.
    pub folder: PathBuf,
    /// True to run all parts of the scenario, even those that take long.
    pub all: bool,
    /// Release of the kernel; None before a machine has booted.
    pub release: Option<String>,
    /// The statements that the scenario has checked and found true.
    pub held: Vec<String>,
    /// Steps that were not run, each with the reason.
    pub not_run: Vec<(String, String)>,
    pub figures: Vec<VmScenarioFigure>,
    guests: usize,
}

impl<'a> VmScenarioStage<'a> {
    /// Makes the environment. The folder must exist.
    pub fn new(
        program: &'a Path,
        image: &'a VmImage,
        folder: PathBuf,
        all: bool,
    ) -> VmScenarioStage<'a> {
        let (held, not_run, figures) = (vec![], vec![], vec![]);
        VmScenarioStage {
            program,
            image,
            folder,
            all,
            release: None,
            held,
            not_run,
            figures,
            guests: 0,
        }
    }

    /// Boots a machine with the stage's image.
    pub fn boot(&mut self, hardware: Hardware) -> Result<Guest> {
        self.guests += 1;
        let folder = guest::folder(&self.folder, self.guests);
        std::fs::create_dir_all(&folder)?;
        let guest = Guest::boot(self.image, hardware, &folder)?;
        self.release = Some(guest.release.clone());
        Ok(guest)
    }

    /// Starts the program under test with these settings.
    pub fn serve(&self, name: &str, settings: &str) -> Result<ServeProcess> {
        ServeProcess::start(self.program, &self.folder, name, settings)
    }

    /// Records a statement that the scenario has checked and found true.
    pub fn held(&mut self, what: impl Into<String>) {
        self.held.push(what.into());
    }

    /// Records a step that the scenario does not run, with the reason. Use this only for a step
    /// that is impossible here or left out on purpose; any other reason is a failure of the
    /// scenario.
    pub fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.not_run.push((what.into(), why.into()));
    }

    /// Returns the last lines of the consoles of all machines.
    pub fn consoles(&self) -> String {
        let texts = (1..=self.guests).filter_map(|number| {
            let text = guest::console(&guest::folder(&self.folder, number))?;
            Some(format!("--- console of machine {number}\n{text}\n"))
        });
        texts.collect()
    }
}
