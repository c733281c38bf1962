//! What a reload changes in a layer that is in use.

use crate::quantity::Size;

/// A change of a layer that a reload makes.
pub enum LayerChange {
    /// The layer is as before, or it differs in a key that cannot change while it is in use.
    None,
    /// The layer grows: the change in words.
    Grows(String),
    /// The layer would become smaller, which is refused.
    Shrinks,
    /// Another change, in words.
    Other(String),
}

impl LayerChange {
    /// Sets the size of a layer that messages call `what`, and returns the change.
    pub(super) fn of_size(what: &str, old: &mut Option<Size>, new: Option<Size>) -> Self {
        let before = std::mem::replace(old, new);
        if new < before {
            return Self::Shrinks;
        }
        match new.filter(|_| new != before) {
            Some(size) => Self::Grows(format!("its {what} grows to {size}")),
            None => Self::None,
        }
    }
}
