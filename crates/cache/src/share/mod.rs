//! A volume that several gateways share: coherence tokens, and what the cache forgets when it gives one back.

pub(crate) mod invalidate;
pub(crate) mod coherent;
