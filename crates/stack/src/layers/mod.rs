//! The layers of a stack at run time. The file of a layer opens it and implements its run-time operations; its
//! settings are in `config::layers`.

mod running;
mod memory;
mod file;
mod half;
mod remote;
mod slice;
mod encrypt;
mod delay;
mod disk;
mod observe;
mod fault;
mod read_only;
mod cache;

use config::Layer;
use control::Failure;
use volume::Stack;

pub use cache::CacheLayer;
pub use file::{FileLayer, FileUse, open as open_file};
pub use half::open as open_half;
pub use memory::open as open_memory;
pub use remote::{FarVolume, FarWrites, OpenedFarVolume, open as open_far_volume};
pub use running::{OpenedLayer, StackLayer};

/// Opens a layer over `lower` that is not a cache. `identity` is the name that a log above uses for the volume below.
///
/// # Errors
/// The layer does not fit on the volume below, or a file that it names cannot be used.
pub fn open_filter(layer: &Layer, lower: Stack, identity: &str) -> Result<OpenedLayer, Failure> {
    match layer {
        Layer::Slice(settings) => slice::open(settings, lower, identity),
        Layer::Encrypt(settings) => encrypt::open(settings, lower),
        Layer::Delay(settings) => Ok(delay::open(settings, lower)),
        Layer::Disk(settings) => Ok(disk::open(settings, lower)),
        Layer::Observe(settings) => Ok(observe::open(settings, lower)),
        Layer::Fault(settings) => Ok(fault::open(settings, lower)),
        Layer::ReadOnly => Ok(read_only::open(lower)),
        Layer::Memory(_) | Layer::File(_) | Layer::Half(_) | Layer::Remote(_) => {
            unreachable!("settings put a bottom first, and nowhere else")
        }
        Layer::Cache(_) => unreachable!("a cache is opened with its log"),
        Layer::CommonCache(common) => {
            let what = format!("the common cache {} is opened with all its units", common.name);
            Err(Failure::new(what).remedy("it is open while `forebay serve` runs"))
        }
    }
}
