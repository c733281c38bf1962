//! Parses the congestion control that a setting names.

use std::{fmt, str::FromStr, sync::Arc};

use fairtcp::{EnsembleOptions, Fair, Growth, WindowSharing};
use serde::{Deserialize, Serialize};

use crate::CongestionControl;

/// A congestion control as settings name it: `kernel default`; `ensemble`, optionally followed by `per connection` and
/// then by `per ack` or `by model`; or a name of the kernel.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum CongestionChoice {
    #[default]
    KernelDefault,
    /// The connections form an ensemble, which shares a congestion window or a model of the path.
    Ensemble {
        /// Which connections belong to the same ensemble.
        sharing: WindowSharing,
        /// The algorithm by which the shared congestion window grows.
        growth: Growth,
    },
    /// The congestion control of the kernel with this name.
    Named(String),
}

/// The error for a text that does not name a congestion control.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not a congestion control")]
pub struct NoCongestion(pub String);

impl CongestionChoice {
    /// The accepted texts, for error messages.
    pub const WORDS: &str = "\"kernel default\", \"ensemble\", \"ensemble per connection\", \"ensemble per ack\", \"ensemble by model\" or a name such as \"cubic\"";

    /// Returns the ensemble that is used by default: one window per session, which grows by segments.
    #[must_use]
    pub const fn ensemble() -> Self {
        Self::Ensemble { sharing: WindowSharing::Session, growth: Growth::PerSegment }
    }

    /// Returns the options of the BPF program that implements the ensemble; `None` if none is needed.
    #[must_use]
    pub fn options(&self) -> Option<EnsembleOptions> {
        match *self {
            Self::Ensemble { sharing, growth } => {
                Some(EnsembleOptions { sharing, growth, ..EnsembleOptions::default() })
            }
            _ => None,
        }
    }

    /// Returns the congestion control for sessions. Loads the BPF program of an ensemble.
    ///
    /// # Errors
    /// If the program cannot be loaded.
    pub fn load(&self) -> Result<CongestionControl, fairtcp::Error> {
        Ok(match (self, self.options()) {
            (_, Some(options)) => CongestionControl::ensemble(Arc::new(Fair::load(&options)?)),
            (Self::Named(name), None) => CongestionControl::named(name),
            _ => CongestionControl::default(),
        })
    }
}

const CONNECTION: &str = " per connection";
const ACK: &str = " per ack";
const MODEL: &str = " by model";

impl FromStr for CongestionChoice {
    type Err = NoCongestion;

    fn from_str(text: &str) -> Result<Self, NoCongestion> {
        if text == "kernel default" {
            return Ok(Self::KernelDefault);
        }
        if let Some(rest) = text.strip_prefix("ensemble") {
            let (rest, growth) = [(ACK, Growth::PerAck), (MODEL, Growth::ByModel)]
                .into_iter()
                .find_map(|(words, growth)| Some((rest.strip_suffix(words)?, growth)))
                .unwrap_or((rest, Growth::PerSegment));
            match rest {
                "" => return Ok(Self::Ensemble { sharing: WindowSharing::Session, growth }),
                CONNECTION => {
                    return Ok(Self::Ensemble { sharing: WindowSharing::Connection, growth });
                }
                _ => {}
            }
        }
        // The kernel's limit TCP_CA_NAME_MAX (16) includes the terminating zero byte.
        let is_name = (1..16).contains(&text.len())
            && text.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.".contains(&it));
        match is_name {
            true => Ok(Self::Named(text.to_owned())),
            false => Err(NoCongestion(text.to_owned())),
        }
    }
}

impl TryFrom<String> for CongestionChoice {
    type Error = NoCongestion;

    fn try_from(text: String) -> Result<Self, NoCongestion> {
        text.parse()
    }
}

impl From<CongestionChoice> for String {
    fn from(choice: CongestionChoice) -> Self {
        choice.to_string()
    }
}

impl fmt::Display for CongestionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelDefault => f.write_str("kernel default"),
            Self::Ensemble { sharing, growth } => {
                let connection =
                    if *sharing == WindowSharing::Connection { CONNECTION } else { "" };
                let growth = match growth {
                    Growth::PerAck => ACK,
                    Growth::PerSegment => "",
                    Growth::ByModel => MODEL,
                };
                write!(f, "ensemble{connection}{growth}")
            }
            Self::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_as_they_were_written() {
        for text in [
            "kernel default",
            "ensemble",
            "ensemble per connection",
            "ensemble per ack",
            "ensemble per connection per ack",
            "ensemble by model",
            "ensemble per connection by model",
            "reno",
            "fairtcp_2",
        ] {
            assert_eq!(text.parse::<CongestionChoice>().unwrap().to_string(), text);
        }
        assert_eq!("ensemble".parse(), Ok(CongestionChoice::ensemble()));
        let options = "ensemble per connection per ack".parse::<CongestionChoice>().unwrap();
        let options = options.options().unwrap();
        assert_eq!((options.sharing, options.growth), (WindowSharing::Connection, Growth::PerAck));
    }

    #[test]
    fn unknown_words_are_refused() {
        for text in [
            "",
            "two words",
            "ensemble per",
            "ensemble  per ack",
            "ensemble per ack per connection",
            "ensemble by model per ack",
        ] {
            assert!(text.parse::<CongestionChoice>().is_err(), "{text}");
        }
        assert!("a".repeat(16).parse::<CongestionChoice>().is_err());
    }
}
