//! Errors in the settings of a link.

/// An invalid setting. No setting was changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LinkSettingsError {
    #[error("{setting} of {value} is out of range: it must be {range}")]
    Range {
        /// The name of the setting in messages.
        setting: &'static str,
        value: String,
        /// The valid range of the setting, and the reason for its limits.
        range: String,
    },
    #[error("{0}")]
    Together(String),
}
