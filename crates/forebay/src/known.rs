//! `forebay names`: which volumes of which nodes are known.

use std::fmt::Write as _;

use crate::{
    cli::Names,
    control::{self, Request, Response},
    failure::Failure,
    naming::{Known, KnownNode},
    output::{print, print_line},
    status::table,
};

/// Asks and prints.
pub fn run(args: &Names) -> Result<(), Failure> {
    match control::ask(&args.whom.path()?, Request::Names)? {
        Response::Names(known) if args.json => {
            print_line(serde_json::to_string(&known).map_err(Failure::new)?)
        }
        Response::Names(known) => print(for_people(&known)),
        other => Err(other.unexpected()),
    }
}

fn for_people(known: &Known) -> String {
    let mut table = table(&["volume", "node", "heard", "target", "LUN", "portals"]);
    for node in &known.nodes {
        let heard = heard(node, known);
        if node.volumes.is_empty() {
            table.add_row(["-", node.node.as_str(), &heard, "", "", ""]);
        }
        for entry in &node.volumes {
            let portals = entry.portals.iter().map(|portal| match portal.tls {
                true => format!("{} (TLS)", portal.address),
                false => portal.address.clone(),
            });
            table.add_row([
                entry.volume.to_string(),
                node.node.to_string(),
                heard.clone(),
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

fn heard(node: &KnownNode, known: &Known) -> String {
    let heard = match (node.gln == known.gln, node.stale) {
        (true, _) => "this node".to_owned(),
        (false, false) => format!("{} s ago", node.heard_seconds),
        (false, true) => format!("{} s ago: stale", node.heard_seconds),
    };
    if node.twins { format!("{heard}; two have its number") } else { heard }
}

#[cfg(test)]
mod tests {
    use ::names::{Entry, Gln, Portal, Trouble};

    use super::*;

    #[test]
    fn the_table_tells_volumes_nodes_and_who_is_silent() {
        let node = |number: u8, stale| KnownNode {
            gln: Gln::new([number; 16]),
            node: format!("n{number}").parse().unwrap(),
            addresses: Vec::new(),
            heard_seconds: 70,
            stale,
            twins: stale,
            volumes: Vec::new(),
        };
        let portals = vec![Portal { address: "10.0.0.2:3260".into(), tls: true }];
        let volume = "payroll".parse().unwrap();
        let entry = Entry { volume, target: "iqn.a:b".into(), lun: 3, portals, generation: 0 };
        let far = KnownNode { volumes: vec![entry], ..node(2, true) };
        let nodes = vec![node(1, false), far];
        let known = Known { gln: Gln::new([1; 16]), nodes, troubles: vec![Trouble::Full] };
        let text = for_people(&known);
        for expected in [
            "this node",
            "70 s ago: stale; two have its number",
            "payroll",
            "n2",
            "10.0.0.2:3260 (TLS)",
            "than there is room for",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
}
