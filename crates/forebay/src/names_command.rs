//! `forebay names`: lists the volumes that the naming service knows, and the nodes that serve them.

use std::fmt::Write as _;

use ::names::NodeVolumeEntry;
use control::{ControlRequest, ControlResponse, Failure, KnownNode, NamingStatus};

use crate::{
    cli::NamesArgs,
    control_socket,
    output::{print, print_line},
    table::table,
};

pub fn run(args: &NamesArgs) -> Result<(), Failure> {
    match control_socket::ask(&args.whom.path()?, ControlRequest::Names)? {
        ControlResponse::Names(known) if args.json => {
            print_line(serde_json::to_string(&known).map_err(Failure::new)?)
        }
        ControlResponse::Names(known) => print(for_people(&known)),
        other => Err(other.unexpected()),
    }
}

fn for_people(known: &NamingStatus) -> String {
    let mut table = table(&["volume", "node", "last sign of life", "target", "LUN", "portals"]);
    for node in &known.nodes {
        let sign_of_life = sign_of_life(node, known);
        if node.volumes.is_empty() {
            table.add_row(["-", node.node.as_str(), &sign_of_life, "", "", ""]);
        }
        for entry in &node.volumes {
            let portals = entry.portals.iter().map(|portal| match portal.tls {
                true => format!("{} (TLS)", portal.address),
                false => portal.address.clone(),
            });
            table.add_row([
                entry.volume.to_string(),
                match has_moved(entry, known) {
                    true => format!("{} (former: the volume has moved)", node.node),
                    false => node.node.to_string(),
                },
                sign_of_life.clone(),
                entry.target.clone(),
                entry.lun.to_string(),
                portals.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    let mut text = format!("{table}\n");
    for trouble in &known.troubles {
        let _ = writeln!(text, "{trouble}");
    }
    text
}

/// Returns true if another node announces the volume with a higher generation, after a later move.
fn has_moved(entry: &NodeVolumeEntry, known: &NamingStatus) -> bool {
    let mut entries = known.nodes.iter().flat_map(|node| &node.volumes);
    entries.any(|other| other.volume == entry.volume && other.generation > entry.generation)
}

fn sign_of_life(node: &KnownNode, known: &NamingStatus) -> String {
    let age = match (node.gln == known.gln, node.stale) {
        (true, _) => "this node".to_owned(),
        (false, false) => format!("{} s ago", node.heard_seconds),
        (false, true) => format!("{} s ago: stale", node.heard_seconds),
    };
    if node.twins { format!("{age}; two processes have its number") } else { age }
}

#[cfg(test)]
mod tests {
    use ::names::{Gln, NamingProblem, PortalAddress};

    use super::*;

    #[test]
    fn the_table_shows_volumes_nodes_and_silent_nodes() {
        let node = |number: u8, stale| KnownNode {
            gln: Gln::new([number; 16]),
            node: format!("n{number}").parse().unwrap(),
            addresses: Vec::new(),
            heard_seconds: 70,
            stale,
            twins: stale,
            volumes: Vec::new(),
        };
        let portals = vec![PortalAddress { address: "10.0.0.2:3260".into(), tls: true }];
        let volume = "payroll".parse().unwrap();
        let entry =
            NodeVolumeEntry { volume, target: "iqn.a:b".into(), lun: 3, portals, generation: 0 };
        let newer = NodeVolumeEntry { generation: 1, ..entry.clone() };
        let far = KnownNode { volumes: vec![entry], ..node(2, true) };
        let now = KnownNode { volumes: vec![newer], ..node(3, false) };
        let nodes = vec![node(1, false), far, now];
        let known =
            NamingStatus { gln: Gln::new([1; 16]), nodes, troubles: vec![NamingProblem::Full] };
        let text = for_people(&known);
        for expected in [
            "this node",
            "70 s ago: stale; two processes have its number",
            "payroll",
            "n2 (former: the volume has moved)",
            "n3  ",
            "10.0.0.2:3260 (TLS)",
            "than there is room for",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
}
