//! Translates a site to the settings of `forebay serve` and `forebay attach`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
};

use crate::{
    LabSite,
    site::{GatewayPlacement, SiteBacking, SiteGateway, SiteSession},
};

/// The name of the target at every node. Nodes have different ports.
pub(crate) const TARGET: &str = "iqn.2026-11.io.forebay.lab:disk";
pub(crate) fn gateway_target(node: u8) -> String {
    format!("iqn.2026-11.io.forebay.lab:gateway-{node}")
}

/// The two folders of a stage: on the disk and in memory.
#[derive(Clone, Copy)]
pub(crate) struct Folders<'a> {
    pub disk: &'a Path,
    pub memory: &'a Path,
}

/// Returns the settings file of a node that listens at `address`.
pub(crate) fn node(site: &LabSite, node: u8, address: &str, folders: Folders<'_>) -> String {
    let mut layers = disk(site, node, folders);
    if let Some(gateway) = site.gateway.as_ref().filter(|it| it.beside == GatewayPlacement::Node) {
        layers.push(cache(gateway, node, folders));
    }
    format!(
        "control = \"node-{node}.sock\"\nlisten = [{}]\n{}{}",
        text(&format!("{address}:0")),
        iscsi(&site.session),
        target(TARGET, &layers) + &serial("N", node, folders)
    )
}

/// Returns the key `serial` of a unit. A host identifies a volume by it, so it must differ between
/// targets of the same name at other nodes and in other runs on this machine.
fn serial(whose: &str, node: u8, folders: Folders<'_>) -> String {
    let mut run = DefaultHasher::new();
    folders.memory.hash(&mut run);
    format!("serial = \"LAB-{:016x}-{whose}{node}\"\n", run.finish())
}

/// Returns the settings of a gateway in front of these nodes. The gateway listens on the loopback interface of its
/// network namespace.
pub(crate) fn gateway(
    site: &LabSite,
    gateway: &SiteGateway,
    urls: &[String],
    folders: Folders<'_>,
) -> String {
    let mut settings = format!(
        "control = \"gateway.sock\"\nlisten = [\"127.0.0.1:0\"]\n{}",
        iscsi(&SiteSession { socket_buffer: None, ..site.session.clone() })
    );
    for (node, url) in (1..).zip(urls) {
        let layers = [remote(&site.session, url), cache(gateway, node, folders)];
        settings += &target(&gateway_target(node), &layers);
        settings += &serial("G", node, folders);
    }
    settings
}

/// Returns the settings with which the host attaches a volume. `url` is the volume's URL at the
/// node or gateway; `None` if the disk is local to the host.
pub(crate) fn host(site: &LabSite, node: u8, url: Option<&str>, folders: Folders<'_>) -> String {
    let mut layers = match url {
        Some(url) => vec![remote(&site.session, url)],
        None => disk(site, node, folders),
    };
    if let Some(gateway) = site.gateway.as_ref().filter(|it| it.beside == GatewayPlacement::Attach)
    {
        layers.push(cache(gateway, node, folders));
    }
    target(TARGET, &layers) + &serial("H", node, folders)
}

fn target(name: &str, layers: &[String]) -> String {
    let layers: String = layers.iter().map(|layer| format!("  {layer},\n")).collect();
    format!("[[target]]\nname = {}\n[[target.unit]]\nstack = [\n{layers}]\n", text(name))
}

fn disk(site: &LabSite, node: u8, folders: Folders<'_>) -> Vec<String> {
    let size = text(&format!("{}B", site.bytes));
    let bottom = match site.disk.data {
        SiteBacking::Memory => format!("{{ memory = {{ size = {size} }} }}"),
        SiteBacking::File => {
            let path = folders.disk.join(format!("far-{node}.img"));
            let path = text(&path.display().to_string());
            format!("{{ file = {{ path = {path}, size = {size}, preallocate = true }} }}")
        }
    };
    let model = site.disk.model.as_ref();
    let more = more(&site.disk.more, ", ");
    let model = model.map(|model| format!("{{ disk = {{ model = {}{more} }} }}", text(model)));
    [bottom].into_iter().chain(model).collect()
}

fn remote(session: &SiteSession, url: &str) -> String {
    let mut layer = format!(
        "{{ remote = {{ url = {}, connections = {}, congestion = {}",
        text(url),
        session.connections,
        text(&session.congestion)
    );
    if let Some(bytes) = session.socket_buffer {
        let _ = write!(layer, ", {SOCKET_BUFFER} = \"{bytes}B\"");
    }
    layer + " } }"
}

/// A settings key that both `[iscsi]` and a remote layer have.
const SOCKET_BUFFER: &str = "socket_buffer";

fn cache(gateway: &SiteGateway, node: u8, folders: Folders<'_>) -> String {
    let log = folders.disk.join(format!("log-{node}"));
    let nvram = folders.memory.join(format!("nvram-{node}"));
    let mut layer = format!(
        "{{ cache = {{ log = {}, log_size = \"{}B\", dram = \"{}B\", nvram = {}, nvram_size = \"{}B\", report = {}",
        text(&log.display().to_string()),
        gateway.log,
        gateway.dram,
        text(&nvram.display().to_string()),
        gateway.nvram,
        text(&gateway.report)
    );
    if gateway.stable_nvram {
        layer += ", nvram_survives = \"power-loss\"";
    }
    layer += &more(&gateway.more, ", ");
    layer + " } }"
}

fn iscsi(session: &SiteSession) -> String {
    let mut section = format!("[iscsi]\ncongestion = {}\n", text(&session.congestion));
    if let Some(bytes) = session.socket_buffer {
        let _ = writeln!(section, "{SOCKET_BUFFER} = \"{bytes}B\"");
    }
    let more = more(&session.iscsi, "\n");
    section + more.trim_start() + if more.is_empty() { "" } else { "\n" }
}

/// Formats keys with their values for TOML. Numbers and truth values are bare, all other values are
/// quoted.
fn more(keys: &BTreeMap<String, String>, before: &str) -> String {
    let line = |(key, value): (&String, &String)| {
        let is_bare = value == "true" || value == "false" || value.parse::<f64>().is_ok();
        let value = if is_bare { value.clone() } else { text(value) };
        format!("{before}{key} = {value}")
    };
    keys.iter().map(line).collect()
}

/// Returns a text as a quoted string for TOML.
fn text(words: &str) -> String {
    let mut quoted = String::from("\"");
    for character in words.chars() {
        match character {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SiteDisk;

    fn folders() -> (std::path::PathBuf, std::path::PathBuf) {
        ("/disk".into(), "/memory".into())
    }

    #[test]
    fn a_node_has_the_disk_and_the_session_of_its_site() {
        let (disk, memory) = folders();
        let folders = Folders { disk: &disk, memory: &memory };
        let mut site = LabSite { bytes: 4096, ..LabSite::default() };
        site.disk = SiteDisk {
            data: SiteBacking::File,
            model: Some("ibm-dnes".to_owned()),
            ..SiteDisk::default()
        };
        site.disk.more.insert("cache_protected".to_owned(), "true".to_owned());
        site.disk.more.insert("cache".to_owned(), "2MiB".to_owned());
        site.session.socket_buffer = Some(65536);
        let text = node(&site, 2, "10.99.0.2", folders);
        assert_eq!(
            text,
            "control = \"node-2.sock\"\nlisten = [\"10.99.0.2:0\"]\n[iscsi]\ncongestion = \"reno\"\n\
             socket_buffer = \"65536B\"\n[[target]]\nname = \"iqn.2026-11.io.forebay.lab:disk\"\n[[target.unit]]\nstack = [\n  \
             { file = { path = \"/disk/far-2.img\", size = \"4096B\", preallocate = true } },\n  \
             { disk = { model = \"ibm-dnes\", cache = \"2MiB\", cache_protected = true } },\n]\n"
                .to_owned()
                + &serial("N", 2, folders)
        );
    }

    /// Two units must not have the same serial number: a host refuses to attach a volume twice, and
    /// recognises it by this number.
    #[test]
    fn volumes_of_two_runs_and_of_two_nodes_have_different_serial_numbers() {
        let disk = std::path::PathBuf::from("/disk");
        let [one, other] = ["/dev/shm/forebay-lab-one", "/dev/shm/forebay-lab-other"]
            .map(std::path::PathBuf::from);
        let folders = |memory| Folders { disk: &disk, memory };
        let site = LabSite::default();
        let gateway_of = |memory| {
            let urls = ["iscsi://10.99.0.2:1/x/0".to_owned()];
            gateway(&site, &SiteGateway::default(), &urls, folders(memory))
        };
        let all = [
            node(&site, 1, "10.99.0.2", folders(&one)),
            node(&site, 2, "10.99.0.2", folders(&one)),
            node(&site, 1, "10.99.0.2", folders(&other)),
            host(&site, 1, None, folders(&one)),
            host(&site, 1, None, folders(&other)),
            gateway_of(&one),
            gateway_of(&other),
        ];
        let serials: std::collections::BTreeSet<&str> = all
            .iter()
            .filter_map(|text| text.lines().find(|it| it.starts_with("serial")))
            .collect();
        assert_eq!(serials.len(), all.len(), "{serials:?}");
        assert!(serials.iter().all(|it| it.len() - "serial = \"\"".len() <= 36));
    }

    #[test]
    fn a_gateway_is_placed_as_the_site_specifies() {
        let (disk, memory) = folders();
        let folders = Folders { disk: &disk, memory: &memory };
        let has_cache = |text: &str| text.contains("{ cache = ");
        for beside in [GatewayPlacement::Host, GatewayPlacement::Node, GatewayPlacement::Attach] {
            let cached = SiteGateway { beside, ..SiteGateway::default() };
            let site = LabSite { gateway: Some(cached.clone()), ..LabSite::default() };
            let url = "iscsi://10.99.0.2:1/x/0";
            assert_eq!(
                has_cache(&node(&site, 1, "10.99.0.2", folders)),
                beside == GatewayPlacement::Node
            );
            let host = host(&site, 1, Some(url), folders);
            assert_eq!(has_cache(&host), beside == GatewayPlacement::Attach);
            assert!(host.contains(url));
            let gateway = gateway(&site, &cached, &[url.to_owned(), url.to_owned()], folders);
            assert_eq!(gateway.matches("{ cache = ").count(), 2);
            assert!(gateway.contains("/disk/log-2") && gateway.contains("/memory/nvram-1"));
        }
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(text("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
