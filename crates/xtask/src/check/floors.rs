//! Checks the floors (layers of crates) in ARCHITECTURE.md: a crate uses only the crates that its
//! line in the table allows, all of them on lower floors.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A line of the table in ARCHITECTURE.md: a crate, its floor, and the crates of the workspace that
/// it may use.
struct CrateFloor {
    name: &'static str,
    floor: u8,
    uses: &'static [&'static str],
}

const fn place(name: &'static str, floor: u8, uses: &'static [&'static str]) -> CrateFloor {
    CrateFloor { name, floor, uses }
}

/// The table of ARCHITECTURE.md in a form that this check can read. `xtask` itself is in no line: the crate uses no
/// crate of the product, because the check must run while the product does not compile.
#[rustfmt::skip]
const PLACES: &[CrateFloor] = &[
    place("scsi", 0, &[]),
    place("volume", 0, &[]),
    place("coherence", 0, &[]),
    place("program", 0, &[]),
    place("rawclient", 0, &[]),
    place("iscsi", 1, &["scsi"]),
    place("journal", 1, &["volume"]),
    place("sim", 1, &["volume"]),
    place("names", 1, &[]),
    place("object", 1, &["volume"]),
    place("rig", 1, &["program"]),
    place("fairtcp", 1, &[]),
    place("object", 1, &["volume"]),
    place("cache", 2, &["coherence", "journal", "volume"]),
    place("unit", 2, &["scsi", "coherence", "volume"]),
    place("transport", 2, &["fairtcp", "iscsi"]),
    place("wan", 2, &["sim"]),
    place("osd", 2, &["object", "scsi"]),
    place("initiator", 3, &["transport", "iscsi", "object", "osd", "scsi", "volume"]),
    place("target", 3, &["transport", "iscsi", "scsi", "unit", "volume"]),
    place("attach", 3, &["volume"]),
    place("control", 3, &["names", "wan"]),
    place("drive", 3, &["object", "osd", "scsi", "unit", "volume"]),
    place("config", 4, &["cache", "control", "initiator", "iscsi", "names", "target", "transport", "unit", "volume"]),
    place("workload", 4, &["initiator", "program", "transport", "sim", "volume"]),
    place("stack", 5, &["cache", "config", "control", "drive", "fairtcp", "initiator", "iscsi", "names", "osd", "scsi", "transport", "unit", "volume"]),
    place("lab", 5, &["control", "fairtcp", "program", "rig", "wan", "workload"]),
    place("bench", 5, &["initiator", "object", "osd", "program", "rawclient", "rig", "volume", "workload"]),
    place("node", 6, &["cache", "config", "control", "initiator", "names", "scsi", "stack", "target", "transport", "unit", "volume"]),
    place("forebay", 7, &["attach", "cache", "config", "control", "initiator", "iscsi", "lab", "names", "node", "object", "osd", "program", "stack", "target", "transport", "unit", "volume", "wan", "workload"]),
    place("xtask", 8, &["program", "rawclient", "rig"]),
];

/// A dependency: the first crate uses the second.
#[derive(Debug, PartialEq, Eq)]
struct Arrow {
    from: String,
    to: String,
    tests_only: bool,
}

/// Reads the dependencies between the crates from cargo, and checks them against the layers in ARCHITECTURE.md.
pub fn check() -> Result<String> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = command.output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let (crates, arrows) = read(&metadata)?;
    let wrong = violations(&crates, &arrows);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!("{} crates, every dependency is on a lower floor", crates.len()))
}

fn read(metadata: &Value) -> Result<(Vec<String>, Vec<Arrow>)> {
    let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
    let mut crates = vec![];
    let mut arrows = vec![];
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        crates.push(name.to_owned());
        for dependency in package["dependencies"].as_array().context("dependencies")? {
            arrows.push(Arrow {
                from: name.to_owned(),
                to: dependency["name"].as_str().context("a dependency without a name")?.to_owned(),
                tests_only: dependency["kind"] == "dev",
            });
        }
    }
    Ok((crates, arrows))
}

/// Returns a sentence for each dependency that violates the table.
fn violations(crates: &[String], arrows: &[Arrow]) -> Vec<String> {
    let mut wrong = vec![];
    for name in crates.iter().filter(|name| find(name).is_none()) {
        wrong.push(format!(
            "{name} is on no floor: give it a line in ARCHITECTURE.md and in floors.rs"
        ));
    }
    let house: BTreeSet<&str> = crates.iter().map(String::as_str).collect();
    for arrow in arrows.iter().filter(|arrow| !arrow.tests_only && house.contains(&*arrow.to)) {
        let (Some(from), Some(to)) = (find(&arrow.from), find(&arrow.to)) else { continue };
        if to.floor >= from.floor {
            wrong.push(format!(
                "{} (floor {}) must not use {} (floor {})",
                from.name, from.floor, to.name, to.floor
            ));
        } else if !from.uses.contains(&to.name) {
            wrong.push(format!(
                "{} must not use {}: ARCHITECTURE.md does not list it",
                from.name, to.name
            ));
        }
    }
    wrong
}

fn find(name: &str) -> Option<&'static CrateFloor> {
    PLACES.iter().find(|place| place.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(from: &str, to: &str, tests_only: bool) -> Arrow {
        Arrow { from: from.to_owned(), to: to.to_owned(), tests_only }
    }

    fn check(arrows: &[Arrow]) -> Vec<String> {
        let crates: Vec<String> = PLACES.iter().map(|place| place.name.to_owned()).collect();
        violations(&crates, arrows)
    }

    #[test]
    fn arrows_of_the_table_are_allowed() {
        assert_eq!(
            check(&[arrow("unit", "volume", false), arrow("iscsi", "scsi", false)]),
            [""; 0]
        );
        assert_eq!(check(&[arrow("scsi", "thiserror", false)]), [""; 0]);
    }

    #[test]
    fn an_arrow_that_points_up_or_sideways_is_refused() {
        let wrong = check(&[arrow("volume", "cache", false), arrow("target", "initiator", false)]);
        assert_eq!(wrong[0], "volume (floor 0) must not use cache (floor 2)");
        assert_eq!(wrong[1], "target (floor 3) must not use initiator (floor 3)");
    }

    #[test]
    fn a_lower_crate_outside_the_table_is_refused() {
        assert_eq!(check(&[arrow("cache", "scsi", false)]).len(), 1);
        assert_eq!(check(&[arrow("xtask", "iscsi", false)]).len(), 1);
    }

    #[test]
    fn tests_may_use_any_crate() {
        assert_eq!(
            check(&[arrow("target", "initiator", true), arrow("iscsi", "sim", true)]),
            [""; 0]
        );
    }

    #[test]
    fn a_crate_without_a_floor_is_named() {
        let wrong = violations(&["cellar".to_owned()], &[]);
        assert!(wrong[0].starts_with("cellar is on no floor"));
    }

    #[test]
    fn the_table_itself_points_down() {
        for place in PLACES {
            for used in place.uses {
                assert!(find(used).unwrap().floor < place.floor, "{} uses {used}", place.name);
            }
        }
    }

    #[test]
    fn cargo_metadata_is_read() {
        let metadata = serde_json::json!({"packages": [{"name": "unit", "dependencies": [
            {"name": "scsi", "kind": null}, {"name": "sim", "kind": "dev"}]}]});
        let (crates, arrows) = read(&metadata).unwrap();
        assert_eq!(crates, ["unit"]);
        assert_eq!(arrows, [arrow("unit", "scsi", false), arrow("unit", "sim", true)]);
    }

    #[test]
    fn the_architecture_page_has_the_same_table() {
        let page = std::fs::read_to_string(crate::check::root().join("ARCHITECTURE.md")).unwrap();
        for place in PLACES.iter().filter(|place| place.name != "xtask") {
            let start = format!("| `{}` | ", place.name);
            let row = page.lines().find_map(|line| line.strip_prefix(&start)).expect(place.name);
            let uses = row.split(" | ").next().unwrap();
            if uses != "everything" {
                let mut uses: Vec<&str> = uses.split(", ").filter(|name| *name != "-").collect();
                let mut ours = place.uses.to_vec();
                uses.sort_unstable();
                ours.sort_unstable();
                assert_eq!(uses, ours, "{}", place.name);
            }
            let floor = format!("    {}  ", place.floor);
            let line = page.lines().find(|line| line.starts_with(&floor)).expect(place.name);
            assert!(line.contains(place.name), "{} on {line}", place.name);
        }
    }
}
