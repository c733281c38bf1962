//! The ways of serving a volume whose promises a power cut puts to the test.

use super::model::Promise;

/// The machines of a site, by the number of their power.
pub const NODE: usize = 0;
pub const GATEWAY: usize = 1;
pub const PARTNER: usize = 2;

/// How machines fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Their processes are killed (`kill -9`); what they wrote stays.
    Kill,
    /// Their power fails.
    Power,
}

/// One way of serving a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    AfterComplete,
    /// Immediate report, with an NVRAM that a power cut treats like any file.
    ImmediateRestart,
    /// Immediate report, with an NVRAM that survives a power cut (`power-loss`).
    ImmediatePowerLoss,
    Through,
    Around,
    /// The node has a cache whose writes count with the next flush.
    AtFlush,
    /// The gateway's log is on two disks.
    Mirrored,
    /// Two gateways with half of the log each.
    Pair,
    /// Report, order, NVRAM and the log's key are others after each cut.
    Changing,
}

impl Mode {
    pub const ALL: [Mode; 9] = [
        // The slowest first, so that no thread is left with it at the end.
        Mode::Pair,
        Mode::Changing,
        Mode::AtFlush,
        Mode::Mirrored,
        Mode::ImmediateRestart,
        Mode::ImmediatePowerLoss,
        Mode::AfterComplete,
        Mode::Through,
        Mode::Around,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Mode::AfterComplete => "after-complete",
            Mode::ImmediateRestart => "immediate-restart",
            Mode::ImmediatePowerLoss => "immediate-power-loss",
            Mode::Through => "through",
            Mode::Around => "around",
            Mode::AtFlush => "at-flush",
            Mode::Mirrored => "mirrored",
            Mode::Pair => "pair",
            Mode::Changing => "changing",
        }
    }

    pub fn named(name: &str) -> Result<Mode, String> {
        let names = Mode::ALL.map(Mode::name).join(", ");
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| format!("the modes are {names}"))
    }

    /// The machines that can fail together.
    pub fn victims(self, failure: Failure) -> &'static [&'static [usize]] {
        match self {
            Mode::Pair => &[&[GATEWAY, PARTNER], &[GATEWAY], &[PARTNER], &[NODE, GATEWAY, PARTNER]],
            // What a read has found in the NVRAM is not on the log disk yet, so the model takes what it
            // reads for stable only when the gateway was among the victims.
            Mode::ImmediateRestart if failure == Failure::Power => &[&[NODE, GATEWAY], &[GATEWAY]],
            // Other settings come with a start.
            Mode::Changing => &[&[NODE, GATEWAY], &[GATEWAY]],
            _ => &[&[NODE, GATEWAY], &[NODE, GATEWAY], &[GATEWAY], &[NODE]],
        }
    }

    pub fn machines(self) -> usize {
        if self == Mode::Pair { 3 } else { 2 }
    }
}

/// What of the settings changes between two cuts in [`Mode::Changing`], and stands in all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub report: &'static str,
    pub order: &'static str,
    pub nvram_survives: &'static str,
    /// The number of the log's key; 0 for a log in clear.
    pub key: u64,
    /// The size of the node's volume.
    pub volume_mib: u64,
}

impl Variant {
    pub fn of(mode: Mode) -> Variant {
        let report = match mode {
            Mode::ImmediateRestart | Mode::ImmediatePowerLoss => "immediate",
            Mode::Through => "through",
            Mode::Around => "around",
            _ => "after-complete",
        };
        let nvram_survives =
            if mode == Mode::ImmediatePowerLoss { "power-loss" } else { "restart" };
        Variant { report, order: "strict", nvram_survives, key: 0, volume_mib: 4 }
    }

    /// The promise of a volume with these settings after a failure.
    pub fn promise(self, failure: Failure) -> Promise {
        match (failure, self.report, self.nvram_survives) {
            (Failure::Power, "immediate", "restart") => Promise::FlushedPrefix,
            _ => Promise::Acknowledged,
        }
    }
}
