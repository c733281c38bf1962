//! The list of scenarios with a real kernel. Each scenario is in a file of its own.

pub mod filesystem;
pub mod cut;
pub mod space;
pub mod multipath;
pub mod reservations;
pub mod tools;
pub mod conformance;
pub mod digests;
pub mod chap;
pub mod lio;
pub mod gateway;
pub mod full_log;
pub mod peers;

use anyhow::Result;

use crate::vm::stage::VmScenarioStage;

/// A test scenario in a virtual machine, which the option `--scenario` selects by its name.
pub struct Scenario {
    pub name: &'static str,
    /// Describes for the output what the scenario shows.
    pub shows: &'static str,
    /// Runs the scenario. An error means that the scenario failed.
    pub play: fn(&mut VmScenarioStage<'_>) -> Result<()>,
}

/// All scenarios, in the order in which they are run.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "filesystem",
        shows: "log in, make an ext4 file system, write, log out and in, check, compare",
        play: filesystem::play,
    },
    Scenario {
        name: "cut",
        shows: "cut the network for 20 s under load, without an error",
        play: cut::play,
    },
    Scenario {
        name: "space",
        shows: "free space by discard, and grow while in use",
        play: space::play,
    },
    Scenario {
        name: "multipath",
        shows: "two paths by multipath, each of them cut under load",
        play: multipath::play,
    },
    Scenario {
        name: "reservations",
        shows: "persistent reservations of two initiators, kept through a restart of the target",
        play: reservations::play,
    },
    Scenario {
        name: "tools",
        shows: "sg3-utils through the kernel: inquiry, pages, provisioning, compare, sanitize",
        play: tools::play,
    },
    Scenario {
        name: "conformance",
        shows: "iscsi-test-cu from inside the machine: fast families, or every test with --all",
        play: conformance::play,
    },
    Scenario {
        name: "digests",
        shows: "header and data digests in every combination",
        play: digests::play,
    },
    Scenario {
        name: "chap",
        shows: "CHAP, one-way and mutual, with every hash that open-iscsi has; refusals",
        play: chap::play,
    },
    Scenario {
        name: "lio",
        shows: "our initiator on the kernel's target, through cuts",
        play: lio::play,
    },
    Scenario {
        name: "gateway",
        shows: "a gateway over a slow link is killed under load and started again",
        play: gateway::play,
    },
    Scenario {
        name: "full-log",
        shows: "how long the kernel waits on a full log, with BUSY and with held commands",
        play: full_log::play,
    },
    Scenario {
        name: "peers",
        shows: "PostMark over a link of 4 ms: the kernel's initiator, target and caches, and a gateway",
        play: peers::play,
    },
];

/// Returns the scenarios with these names; all scenarios if `names` is empty.
pub fn named(names: &[String]) -> Result<Vec<&'static Scenario>> {
    let unknown = names.iter().find(|name| SCENARIOS.iter().all(|known| known.name != **name));
    if let Some(name) = unknown {
        let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        anyhow::bail!("there is no scenario '{name}': it is one of {}", known.join(", "));
    }
    let wanted =
        |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(SCENARIOS.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_scenario_has_a_unique_name_and_a_description() {
        let names: HashSet<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        for scenario in SCENARIOS {
            let plain = scenario.name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            assert!(plain && !scenario.shows.is_empty(), "{}", scenario.name);
        }
    }

    #[test]
    fn scenarios_are_chosen_by_name() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let scenarios = named(&names)?;
            Ok::<_, anyhow::Error>(
                scenarios.iter().map(|scenario| scenario.name).collect::<Vec<_>>(),
            )
        };
        assert_eq!(chosen(&["cut", "filesystem"]).unwrap(), ["filesystem", "cut"]);
        assert_eq!(chosen(&[]).unwrap().len(), SCENARIOS.len());
        assert!(chosen(&["cuts"]).unwrap_err().to_string().contains("it is one of filesystem,"));
    }
}
