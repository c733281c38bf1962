//! The change that a reload makes in a layer in use.

use crate::quantity::Size;

/// A change of a layer that a reload makes. Texts describe the change for the user.
pub enum LayerChange {
    /// The layer is unchanged, or it differs in a key that cannot change while the layer is in use.
    None,
    /// The layer grows; the text names the old and the new size.
    Grows(String),
    /// The new size is smaller, which is refused.
    Shrinks,
    Other(String),
}

impl LayerChange {
    /// Replaces the size `old` by `new` and returns the change. `what` names the layer in messages.
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
