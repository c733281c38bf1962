//! A simulated NVRAM in memory that outlives the cache.

use std::sync::Arc;

use cache::{StableMemory, length_for};
use parking_lot::Mutex;

/// The bytes of a simulated NVRAM. Clones share one memory.
#[derive(Clone)]
pub struct Memory(pub Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub fn new(slots: u64) -> Self {
        Self(Arc::new(Mutex::new(vec![0; length_for(slots) as usize])))
    }
}

impl StableMemory for Memory {
    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.0.lock()[offset..offset + to.len()]);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.0.lock()[offset..offset + from.len()].copy_from_slice(from);
    }
}
