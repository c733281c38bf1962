//! Nodes for tests of the naming service, and queries of what they know.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt};

use serde_json::Value;

use super::{Place, Serving, forebay, stderr};

/// Name of the target in the settings of [`gateway`].
pub const GATEWAY: &str = "iqn.2026-11.test:gateway";

/// Writes the secret that all nodes share to the file `name`.
pub fn secret(place: &Place, name: &str) {
    let path = place.path(name);
    std::fs::write(&path, format!("the secret called {name}\n")).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

fn list(addresses: &[SocketAddr]) -> String {
    let quoted: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    quoted.join(", ")
}

/// Settings of a node that listens for naming requests on this port and contacts its seeds, without targets.
pub fn names(node: &str, port: u16, seeds: &[SocketAddr], secret: &str) -> String {
    format!(
        r#"
listen = ["127.0.0.1:{port}"]
state = "{node}.state"
[names]
node = "{node}"
listen = ["127.0.0.1:0"]
seeds = [{}]
secret_file = "{secret}"
stale_after = "5s"
"#,
        list(seeds)
    )
}

/// Settings of a target that is not announced.
pub fn untold(node: &str) -> String {
    format!(
        "[[target]]\nname = \"iqn.2026-11.test:{node}\"\n[[target.unit]]\n\
         stack = [ {{ memory = {{ size = \"1MiB\" }} }} ]\n"
    )
}

/// Settings of a node that announces no volumes.
pub fn other(node: &str, seeds: &[SocketAddr], secret: &str) -> String {
    names(node, 0, seeds, secret) + &untold(node)
}

/// Returns settings of a gateway over the volume `payroll`, which it finds by name.
pub fn gateway(seeds: &[SocketAddr]) -> String {
    format!(
        r#"
listen = ["127.0.0.1:0"]
state = "gateway.state"
[names]
seeds = [{}]
secret_file = "names"
stale_after = "5s"
[[target]]
name = "{GATEWAY}"
[[target.unit]]
[[target.unit.stack]]
remote = {{ url = "gln:payroll", give_up_after = "20s" }}
[[target.unit.stack]]
[target.unit.stack.cache]
log = "gateway.log"
log_size = "32MiB"
dram = "8MiB"
"#,
        list(seeds)
    )
}

/// Runs a command with `--json` on a process, and returns the last line of its output.
pub fn json(of: &Serving, arguments: &[&str]) -> Value {
    let output = forebay()
        .args(arguments)
        .args(["--json", "--control"])
        .arg(&of.control)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// Returns the output of `forebay names --json` for this process.
pub fn known(of: &Serving) -> Value {
    json(of, &["names"])
}

/// Returns the entry of the node named `node` that process `of` has received.
pub fn known_node(of: &Serving, node: &str) -> Option<Value> {
    let known = known(of);
    known["nodes"].as_array().expect("nodes").iter().find(|found| found["node"] == node).cloned()
}

/// Returns the address at which the process answers naming requests.
pub fn naming(of: &Serving) -> SocketAddr {
    known(of)["nodes"][0]["addresses"][0].as_str().expect("an address").parse().expect("an address")
}
