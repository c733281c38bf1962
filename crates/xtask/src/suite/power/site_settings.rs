//! Generates the settings of a node and its gateways for each mode.

use std::net::SocketAddr;
use std::path::Path;

use super::mode::{GATEWAY as FIRST, NODE as NODES, PARTNER, PowerRoundMode, Variant};

pub const NODE: &str = "iqn.2026-11.forebay.test:power-node";
pub const GATEWAY: &str = "iqn.2026-11.forebay.test:power-gateway";

/// The folder and the addresses of a site.
pub struct PowerSiteLocation<'a> {
    /// The folder that contains the mount points of all disks, under their names.
    pub folder: &'a Path,
    /// The address at which each machine listens.
    pub addresses: &'a [SocketAddr],
    /// The I/O engine of all files: `engine` of a volume file, `log_engine` of a log.
    pub engine: &'static str,
}

/// Returns the settings of the node as TOML.
pub fn node(places: &PowerSiteLocation<'_>, mode: PowerRoundMode, variant: Variant) -> String {
    let disk = places.folder.join("node");
    let disk = disk.display();
    let cache = match mode {
        PowerRoundMode::AtFlush => format!(
            ", {{ cache = {{ log = \"{disk}/log/log\", log_size = \"8MiB\", dram = \"8MiB\", \
             report = \"at-flush\", dirty_age = \"20ms\", destage_idle = \"1ms\", \
             log_engine = \"{}\" }} }}",
            places.engine
        ),
        _ => String::new(),
    };
    format!(
        "listen = [\"{}\"]\nstate = \"{disk}/var/state\"\n[[target]]\nname = \"{NODE}\"\n\
         [[target.unit]]\nstack = [{{ file = {{ path = \"{disk}/volume/volume\", size = \"{}MiB\", \
         engine = \"{}\" }} }}{cache}]\n",
        places.addresses[NODES], variant.volume_mib, places.engine
    )
}

/// Returns the settings of a gateway as TOML.
pub fn gateway(
    places: &PowerSiteLocation<'_>,
    mode: PowerRoundMode,
    machine: usize,
    variant: Variant,
) -> String {
    let disk = places.folder.join(if machine == PARTNER { "partner" } else { "gateway" });
    let disk = disk.display();
    let mut cache = format!(
        "log = \"{disk}/log/log\", log_size = \"8MiB\", dram = \"8MiB\", report = \"{}\", \
         order = \"{}\", dirty_age = \"20ms\", destage_idle = \"1ms\", log_engine = \"{}\"",
        variant.report, variant.order, places.engine
    );
    if mode == PowerRoundMode::Changing || variant.report == "immediate" {
        cache += &format!(
            ", nvram = \"{disk}/nvram/nvram\", nvram_size = \"1MiB\", nvram_survives = \"{}\"",
            variant.nvram_survives
        );
    }
    if mode == PowerRoundMode::Mirrored {
        cache += &format!(", log_mirror = \"{}/mirror/log/log\"", places.folder.display());
    }
    if variant.key > 0 {
        cache += &format!(
            ", log_key = \"{disk}/var/key{0}\", log_secret_file = \"{disk}/var/secret{0}\"",
            variant.key
        );
    }
    let mut half = String::new();
    if mode.is_pair() {
        let (own, other) = if machine == FIRST { ("a", "b") } else { ("b", "a") };
        let partner = places.addresses[if machine == FIRST { PARTNER } else { FIRST }];
        cache += &format!(
            ", pair = {{ partner = {{ url = \"iscsi://{partner}/{GATEWAY}-half-{other}/0\" }}, \
             dead_after = \"3s\", first = {} }}",
            machine == FIRST
        );
        half = format!(
            "[[target]]\nname = \"{GATEWAY}-half-{own}\"\n[[target.unit]]\n\
             stack = [{{ half = {{ of = \"{GATEWAY}\" }} }}]\n"
        );
    }
    format!(
        "initiator_name = \"iqn.2026-11.forebay.test:power-{machine}\"\nlisten = [\"{}\"]\n\
         state = \"{disk}/var/state\"\n[[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }},\n{{ cache = {{ {cache} }} }},\n]\n{half}",
        places.addresses[machine], places.addresses[NODES]
    )
}
