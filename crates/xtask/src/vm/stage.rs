//! What a scenario plays on: the program, the machine, a folder; and what it found so far.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rig::node::ServeProcess;

use crate::vm::guest::{self, Guest, Hardware};
use crate::vm::image::VmImage;

/// A script that does nothing long: some commands, a login, a small file system.
pub const SHORT: Duration = Duration::from_secs(40);

/// A script that waits for recovery or moves some tens of megabytes.
pub const LONG: Duration = Duration::from_secs(90);

/// The name that machines log in under.
pub const INITIATOR: &str = "iqn.2026-11.forebay.vm:guest";

/// Settings of a target with one unit, on these ports of the loopback (0: any).
pub fn settings(target: &str, ports: &[u16], stack: &str) -> String {
    let portals: Vec<String> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let portals = portals.join(", ");
    format!(
        "listen = [{portals}]\n[[target]]\nname = \"{target}\"\n[[target.unit]]\n\
         serial = \"VM-UNIT\"\nstack = [{stack}]\n"
    )
}

/// A layer: a file of so many MiB.
pub fn file(name: &str, mib: u32) -> String {
    format!("{{ file = {{ path = \"{name}\", size = \"{mib}MiB\" }} }}")
}

/// A number that a scenario found.
pub struct VmScenarioFigure {
    /// What was done.
    pub what: &'static str,
    /// With which parts.
    pub name: String,
    /// In what it is counted.
    pub unit: &'static str,
    /// The number.
    pub value: f64,
}

/// The stage of one scenario.
pub struct VmScenarioStage<'a> {
    /// The program under test.
    pub program: &'a Path,
    /// The machine's image.
    pub image: &'a VmImage,
    /// Files of this scenario: backing files, settings, events, consoles.
    pub folder: PathBuf,
    /// Whether everything is wanted, however long it takes.
    pub all: bool,
    /// The release of the kernel that ran.
    pub release: Option<String>,
    /// What held.
    pub held: Vec<String>,
    /// Steps that were not run, and why.
    pub not_run: Vec<(String, String)>,
    /// What was measured.
    pub figures: Vec<VmScenarioFigure>,
    guests: usize,
}

impl<'a> VmScenarioStage<'a> {
    /// An empty stage; the folder exists.
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

    /// Boots a machine.
    pub fn boot(&mut self, hardware: Hardware) -> Result<Guest> {
        self.guests += 1;
        let folder = guest::folder(&self.folder, self.guests);
        std::fs::create_dir_all(&folder)?;
        let guest = Guest::boot(self.image, hardware, &folder)?;
        self.release = Some(guest.release.clone());
        Ok(guest)
    }

    /// Starts our program with these settings.
    pub fn serve(&self, name: &str, settings: &str) -> Result<ServeProcess> {
        ServeProcess::start(self.program, &self.folder, name, settings)
    }

    /// Remembers something that held.
    pub fn held(&mut self, what: impl Into<String>) {
        self.held.push(what.into());
    }

    /// Remembers a step that is not run, and why: whatever else cannot be run is a failure.
    pub fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.not_run.push((what.into(), why.into()));
    }

    /// What the machines' consoles say last.
    pub fn consoles(&self) -> String {
        let texts = (1..=self.guests).filter_map(|number| {
            let text = guest::console(&guest::folder(&self.folder, number))?;
            Some(format!("--- console of machine {number}\n{text}\n"))
        });
        texts.collect()
    }
}
