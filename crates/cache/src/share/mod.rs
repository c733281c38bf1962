//! A volume that several gateways share: coherence tokens, and the invalidation of cached slots.

pub(crate) mod invalidate;
pub(crate) mod coherent;
