//! Types of values: names, addresses and choices. They are checked while they are parsed, so that an error has a line
//! and a column.

use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Deserializer, de};
use transport::CongestionChoice;

use crate::quantity::REMEDY;

/// The iSCSI port (RFC 7143, 4.2.7.1).
pub const PORT: u16 = 3260;

/// Address of a listening socket: IP address and port.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Address(pub SocketAddr);

impl Address {
    /// The default address of a portal: 127.0.0.1:3260.
    pub const LOOPBACK: Self =
        Self(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), PORT));
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let with_port = text.parse().ok();
            let bare = || Some(SocketAddr::new(text.trim_matches(['[', ']']).parse().ok()?, PORT));
            with_port.or_else(bare).map(Self).ok_or_else(|| {
                format!(
                    "`{text}` is not an address{REMEDY}write an IP address and a port, as in \
                     \"127.0.0.1:3260\" or \"[::]:3260\""
                )
            })
        };
        deserializer
            .deserialize_str(ParsedTextVisitor("an address such as \"127.0.0.1:3260\"", parse))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An iSCSI name (RFC 7143, 4.2.7): `iqn.`, `eui.` or `naa.`; at most 223 bytes.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct IscsiName(pub String);

impl IscsiName {
    /// Parses an iSCSI name. Returns the reason if the name is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let remedy = "write a name such as \"iqn.2026-11.com.example:disk1\"";
        let wrong =
            |what: &str| Err(format!("`{text}` is not an iSCSI name: {what}{REMEDY}{remedy}"));
        let known = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b".:-".contains(&c);
        let rest = ["iqn.", "eui.", "naa."].iter().find_map(|kind| text.strip_prefix(kind));
        match rest {
            None => wrong("it begins with none of iqn. eui. naa."),
            Some("") => wrong("nothing follows the type"),
            _ if text.len() > 223 => wrong("it is longer than 223 bytes"),
            // RFC 3722 allows other scripts than ASCII, which are not supported, and maps names to lower case.
            _ if !text.bytes().all(known) => {
                wrong("it has characters other than a-z, 0-9, `.`, `:` and `-`")
            }
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for IscsiName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a name such as \"iqn.2026-11.com.example:disk1\"";
        deserializer.deserialize_str(ParsedTextVisitor(expected, Self::parse))
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A serde visitor that parses a text with a function, so that an error points at the text. The first field describes
/// the expected value.
pub struct ParsedTextVisitor<F>(pub &'static str, pub F);

impl<T, F: FnOnce(&str) -> Result<T, String>> de::Visitor<'_> for ParsedTextVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        self.1(text).map_err(E::custom)
    }
}

/// The events to show: a level, or a filter such as `info,cache=debug`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLevel(pub String);

impl<'de> Deserialize<'de> for LogLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| match tracing_subscriber::EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!(
                "`{text}` is not a filter of events: {error}{REMEDY}write off, error, warn, info, \
                 debug or trace, or a filter such as \"info,cache=debug\""
            )),
        };
        deserializer.deserialize_str(ParsedTextVisitor("a level such as \"info\"", parse))
    }
}

/// Use of CRC32C digests (RFC 7143, 13.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Digest {
    /// Digests are not used; a peer that requires them is refused.
    Never,
    /// Digests are used if the peer requests them.
    #[default]
    Accept,
    /// Digests are requested, but a peer without them is accepted.
    Prefer,
    /// Digests are required; a peer without them is refused.
    Require,
}

/// Compression of the link to a remote target.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LinkCompressionSetting {
    /// Does not compress data.
    #[default]
    None,
    /// LZ4: fast, less CPU time.
    Lz4,
    /// Zstandard: smaller data, more CPU time.
    Zstd,
}

impl LinkCompressionSetting {
    /// Returns the method to propose at login or to accept; `None` for no compression.
    pub fn method(self) -> Option<iscsi::keys::Compression> {
        match self {
            Self::None => None,
            Self::Lz4 => Some(iscsi::keys::Compression::Lz4),
            Self::Zstd => Some(iscsi::keys::Compression::Zstd),
        }
    }
}

/// The congestion control of TCP connections.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CongestionSetting(pub CongestionChoice);

impl CongestionSetting {
    /// Parses the words of the settings or of the command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let choice = text.parse().map(Self);
        choice.map_err(|error| format!("{error}{REMEDY}write {}", CongestionChoice::WORDS))
    }
}

impl<'de> Deserialize<'de> for CongestionSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ParsedTextVisitor(
            "a congestion control such as \"cubic\"",
            Self::parse,
        ))
    }
}

/// The device type that a unit emulates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum UnitKind {
    /// A disk whose blocks are in a stack of layers.
    #[default]
    Block,
    /// An object storage device (OSD-2), which keeps objects in a stack of layers.
    Object,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FileEngineSetting {
    /// io_uring if the kernel allows it, otherwise threads.
    #[default]
    Auto,
    /// io_uring; the start fails if the kernel does not allow it.
    Uring,
    /// Threads that call preadv and pwritev.
    Threads,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_standard() {
        assert!(IscsiName::parse("iqn.2026-11.io.forebay:vol0").is_ok());
        assert!(IscsiName::parse("eui.02004567a425678d").is_ok());
        for wrong in ["", "disk", "iqn.", "iqn.2026-11.io:Vol", "iqn.2026 x"] {
            assert!(IscsiName::parse(wrong).is_err(), "{wrong}");
        }
        assert!(IscsiName::parse(&format!("iqn.{}", "a".repeat(220))).is_err());
    }

    #[test]
    fn the_port_may_be_left_out() {
        #[derive(Deserialize)]
        struct Listen {
            on: Vec<Address>,
        }
        let Listen { on } =
            toml::from_str("on = ['127.0.0.1:1', '0.0.0.0', '::1', '[::]:9']").unwrap();
        let text: Vec<_> = on.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["127.0.0.1:1", "0.0.0.0:3260", "[::1]:3260", "[::]:9"]);
        assert!(toml::from_str::<Listen>("on = ['localhost:1']").is_err());
    }
}
