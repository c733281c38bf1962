//! Default names made of the host name, for settings that give none.

use super::value_types::IscsiName;

/// Returns the host name in lower case, without characters that an iSCSI name or a node name may not have, and at most
/// 64 characters long. The result may be empty.
pub fn host_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    host.chars().filter(|c| allowed(*c)).take(64).collect()
}

pub fn name_of_host() -> IscsiName {
    let host = host_name();
    IscsiName(format!(
        "iqn.2026-11.io.forebay:{}",
        if host.is_empty() { "initiator" } else { &host }
    ))
}
