//! iSCSI URLs: `iscsi://host[:port][/target[/lun]]` as libiscsi and QEMU write them, and, as our extension,
//! `iscsi://host[:port],host[:port]…/target[/lun]` for a target with several portals.

use std::{fmt, str::FromStr};

use scsi::is_plain;

/// The contents of an iSCSI URL, which names portals, a target or a unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Url {
    /// Portals as `host:port` for the system's resolver, IPv6 in brackets; the default port is 3260. 1 to 8 portals
    /// in the order in which they are to be tried.
    pub portals: Vec<String>,
    /// iSCSI name of the target; `None` if the URL names only a portal.
    pub target: Option<String>,
    /// The LUN, 0 to 16383. Present only if the URL has a target.
    pub lun: Option<u16>,
}

/// The reason why a text is not an iSCSI URL.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{url:?} is not iscsi://host[:port][,host[:port]…][/target[/lun]]: {reason}")]
pub struct UrlError {
    url: String,
    reason: &'static str,
}

/// The iSCSI port that IANA has assigned (RFC 7143, 15).
pub(crate) const PORT: u16 = 3260;

/// The most portals in a URL. A pair of gateways with two networks each has four. Every portal that does not answer
/// costs a `connect_time_out`.
const MOST_PORTALS: usize = 8;

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        parse(url).map_err(|reason| UrlError { url: url.to_owned(), reason })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi://{}", self.portals.join(","))?;
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        if let Some(lun) = self.lun {
            write!(f, "/{lun}")?;
        }
        Ok(())
    }
}

fn parse(url: &str) -> Result<Url, &'static str> {
    let rest = url.strip_prefix("iscsi://").ok_or("it does not begin with iscsi://")?;
    let mut parts = rest.splitn(3, '/');
    let written = parts.next().unwrap_or_default().split(',');
    let portals = written.map(portal).collect::<Result<Vec<_>, _>>()?;
    if portals.len() > MOST_PORTALS {
        return Err("it names more than 8 portals");
    }
    let target = parts.next().filter(|target| !target.is_empty());
    if target.is_some_and(|target| !is_iscsi_name(target)) {
        return Err("the target is not an iSCSI name (iqn., eui. or naa.)");
    }
    let lun = match parts.next() {
        None | Some("") => None,
        Some(_) if target.is_none() => return Err("a unit without a target"),
        Some(lun) => {
            let lun = lun.parse::<u16>().ok().filter(|&lun| lun < 16384);
            Some(lun.ok_or("the unit must be a number from 0 to 16383")?)
        }
    };
    Ok(Url { portals, target: target.map(str::to_owned), lun })
}

/// Parses a portal and adds the default port.
fn portal(written: &str) -> Result<String, &'static str> {
    let (host, port) = parse_portal(written)?;
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port` into host and port.
pub(crate) fn parse_portal(portal: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match portal.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a [ without its ]")?;
            let host = host.parse::<std::net::Ipv6Addr>().map_err(|_| "no IPv6 address in []")?;
            match port.strip_prefix(':') {
                Some(port) => (host.to_string(), Some(port)),
                None if port.is_empty() => (host.to_string(), None),
                None => return Err("unexpected text between ] and the port"),
            }
        }
        None => match portal.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err("an IPv6 address without []"),
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (portal.to_owned(), None),
        },
    };
    if host.is_empty() {
        return Err("it names no host");
    }
    if host.contains('@') {
        return Err("a URL must not contain user and password");
    }
    if !host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c)) {
        return Err("the host contains a character that is not allowed in host names");
    }
    let port = match port {
        None => PORT,
        Some(port) => {
            let port = port.parse().ok().filter(|&port| port != 0);
            port.ok_or("the port must be a number from 1 to 65535")?
        }
    };
    Ok((host, port))
}

/// Returns true for an iSCSI name that RFC 7143, 4.2.7 allows. Messages show such names, and strangers choose them:
/// with a line break or a change of the writing direction, a name could forge a message.
pub(crate) fn is_iscsi_name(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    let allowed = |c: char| {
        if c.is_ascii() { c.is_ascii_alphanumeric() || ".-:_".contains(c) } else { is_plain(c) }
    };
    known && name.len() <= 223 && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_parts_of_a_url_get_their_defaults() {
        let full =
            "iscsi://node.example:3261/iqn.2026-11.io.forebay:vol0/3".parse::<Url>().unwrap();
        assert_eq!(
            full,
            Url {
                portals: vec!["node.example:3261".into()],
                target: Some("iqn.2026-11.io.forebay:vol0".into()),
                lun: Some(3),
            }
        );
        let host = "iscsi://10.0.0.2".parse::<Url>().unwrap();
        assert_eq!(host.portals, ["10.0.0.2:3260"]);
        assert_eq!((host.target, host.lun), (None, None));
        let slash = "iscsi://10.0.0.2/iqn.2026-11.io.forebay:vol0/".parse::<Url>().unwrap();
        assert_eq!(slash.lun, None);
    }

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        let url = "iscsi://[fd00::0:2]:3261/iqn.x:y/0".parse::<Url>().unwrap();
        assert_eq!(url.portals, ["[fd00::2]:3261"]);
        assert_eq!("iscsi://[::1]".parse::<Url>().unwrap().portals, ["[::1]:3260"]);
    }

    #[test]
    fn several_portals_of_a_target() {
        let url = "iscsi://10.0.0.2,[fd00::3],node:3261/iqn.x:y/0".parse::<Url>().unwrap();
        assert_eq!(url.portals, ["10.0.0.2:3260", "[fd00::3]:3260", "node:3261"]);
        assert_eq!(url.to_string(), "iscsi://10.0.0.2:3260,[fd00::3]:3260,node:3261/iqn.x:y/0");
        assert!("iscsi://a,b,c,d,e,f,g,h/iqn.x:y".parse::<Url>().is_ok());
    }

    #[test]
    fn a_url_reads_back() {
        for url in [
            "iscsi://a:1",
            "iscsi://[::1]:3260/iqn.x:y",
            "iscsi://10.0.0.2:3260/iqn.x:y/7",
            "iscsi://a:1,b:2/iqn.x:y/7",
        ] {
            assert_eq!(url.parse::<Url>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_reason() {
        let wrong = [
            ("http://a", "begin"),
            ("iscsi://", "no host"),
            ("iscsi:///iqn.x:y/0", "no host"),
            ("iscsi://a,/iqn.x:y/0", "no host"),
            ("iscsi://a,b,c,d,e,f,g,h,i", "more than 8"),
            ("iscsi://a:0", "port"),
            ("iscsi://a:70000", "port"),
            ("iscsi://::1/iqn.x:y/0", "without []"),
            ("iscsi://[::1/iqn.x:y/0", "without its ]"),
            ("iscsi://[::1]3260", "between"),
            ("iscsi://[node]", "no IPv6"),
            ("iscsi://user%secret@a/iqn.x:y/0", "password"),
            ("iscsi://a/vol0/0", "iSCSI name"),
            ("iscsi://a/iqn.x\ny/0", "iSCSI name"),
            ("iscsi://a/iqn.x:y/one", "unit"),
            ("iscsi://a/iqn.x:y/16384", "unit"),
            ("iscsi://a/iqn.x:y/1/2", "unit"),
            ("iscsi://a//1", "without a target"),
        ];
        for (url, why) in wrong {
            let error = url.parse::<Url>().unwrap_err();
            assert!(error.reason.contains(why), "{url}: {error}");
        }
    }
}
