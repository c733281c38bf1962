//! What is wrong with the settings of a link.

/// A setting that no link can have. Nothing was changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LinkSettingsError {
    /// A number outside its range.
    #[error("{setting} of {value} is out of range: it must be {range}")]
    Range {
        /// Which, as it is called for people.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What would be right, and why.
        range: String,
    },
    /// Two settings that do not go together.
    #[error("{0}")]
    Together(String),
}
