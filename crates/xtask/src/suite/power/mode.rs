//! The modes of the power suite: ways to serve a volume, and for each the data that must survive a failure.

use super::model::DurabilityPromise;

/// The numbers of a site's machines in the simulated power supply.
pub const NODE: usize = 0;
pub const GATEWAY: usize = 1;
pub const PARTNER: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRoundFailure {
    /// The processes of the machines are killed (`kill -9`); the file system keeps all their writes.
    Kill,
    /// The power of the machines fails, so unsynced writes may be lost or torn.
    Power,
}

/// A way of serving the volume under test, with a node and gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRoundMode {
    AfterComplete,
    /// Immediate report, with an NVRAM that a power cut treats like any file.
    ImmediateRestart,
    /// Immediate report, with an NVRAM that survives a power cut (`power-loss`).
    ImmediatePowerLoss,
    Through,
    Around,
    /// The node has a cache whose writes become stable with the next flush (`report = "at-flush"`).
    AtFlush,
    /// The gateway's log is on two disks.
    Mirrored,
    /// A pair of gateways, each of which holds one leg of the mirrored log.
    Pair,
    /// A pair with immediate report, whose gateways have NVRAMs that survive a power cut.
    PairNvram,
    /// A gateway whose settings change after each failure: `report`, `order`, `nvram_survives` and the log's key.
    Changing,
}

impl PowerRoundMode {
    pub const ALL: [PowerRoundMode; 10] = [
        // Begin with the slowest mode: if it started last, one thread would still run it while all others are idle.
        PowerRoundMode::Pair,
        PowerRoundMode::PairNvram,
        PowerRoundMode::Changing,
        PowerRoundMode::AtFlush,
        PowerRoundMode::Mirrored,
        PowerRoundMode::ImmediateRestart,
        PowerRoundMode::ImmediatePowerLoss,
        PowerRoundMode::AfterComplete,
        PowerRoundMode::Through,
        PowerRoundMode::Around,
    ];

    pub fn name(self) -> &'static str {
        match self {
            PowerRoundMode::AfterComplete => "after-complete",
            PowerRoundMode::ImmediateRestart => "immediate-restart",
            PowerRoundMode::ImmediatePowerLoss => "immediate-power-loss",
            PowerRoundMode::Through => "through",
            PowerRoundMode::Around => "around",
            PowerRoundMode::AtFlush => "at-flush",
            PowerRoundMode::Mirrored => "mirrored",
            PowerRoundMode::Pair => "pair",
            PowerRoundMode::PairNvram => "pair-nvram",
            PowerRoundMode::Changing => "changing",
        }
    }

    pub fn named(name: &str) -> Result<PowerRoundMode, String> {
        let names = PowerRoundMode::ALL.map(PowerRoundMode::name).join(", ");
        let found = PowerRoundMode::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| format!("the modes are {names}"))
    }

    /// Returns the possible failures of a round in this mode: each is a group of machines that fail together.
    pub fn victims(self, failure: PowerRoundFailure) -> &'static [&'static [usize]] {
        match self {
            PowerRoundMode::Pair | PowerRoundMode::PairNvram => {
                &[&[GATEWAY, PARTNER], &[GATEWAY], &[PARTNER], &[NODE, GATEWAY, PARTNER]]
            }
            // Never fail the node alone in this mode. The gateway would continue to run with data
            // that is only in its NVRAM, and the model would wrongly record data that it reads
            // there as stable.
            PowerRoundMode::ImmediateRestart if failure == PowerRoundFailure::Power => {
                &[&[NODE, GATEWAY], &[GATEWAY]]
            }
            // The gateway is in every group, since it reads its changed settings only when it starts.
            PowerRoundMode::Changing => &[&[NODE, GATEWAY], &[GATEWAY]],
            _ => &[&[NODE, GATEWAY], &[NODE, GATEWAY], &[GATEWAY], &[NODE]],
        }
    }

    pub fn machines(self) -> usize {
        if self.is_pair() { 3 } else { 2 }
    }

    /// Returns true if two gateways serve the volume in turn.
    pub fn is_pair(self) -> bool {
        matches!(self, PowerRoundMode::Pair | PowerRoundMode::PairNvram)
    }
}

/// The settings that [`PowerRoundMode::Changing`] changes between two failures; all other modes keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub report: &'static str,
    pub order: &'static str,
    pub nvram_survives: &'static str,
    /// The number of the log's key; 0 for an unencrypted log.
    pub key: u64,
    /// Size of the node's volume in MiB.
    pub volume_mib: u64,
}

impl Variant {
    pub fn of(mode: PowerRoundMode) -> Variant {
        let report = match mode {
            PowerRoundMode::ImmediateRestart
            | PowerRoundMode::ImmediatePowerLoss
            | PowerRoundMode::PairNvram => "immediate",
            PowerRoundMode::Through => "through",
            PowerRoundMode::Around => "around",
            _ => "after-complete",
        };
        let nvram_survives = match mode {
            PowerRoundMode::ImmediatePowerLoss | PowerRoundMode::PairNvram => "power-loss",
            _ => "restart",
        };
        Variant { report, order: "strict", nvram_survives, key: 0, volume_mib: 4 }
    }

    /// Returns which acknowledged writes a volume with these settings must still have after the failure.
    pub fn promise(self, failure: PowerRoundFailure) -> DurabilityPromise {
        match (failure, self.report, self.nvram_survives) {
            (PowerRoundFailure::Power, "immediate", "restart") => DurabilityPromise::FlushedPrefix,
            _ => DurabilityPromise::Acknowledged,
        }
    }
}
