//! The optional abilities of a volume in a file.

use std::os::unix::fs::MetadataExt;

use super::FileVolume;
use crate::{Allocation, Extent, Io, Provisioning, Resizable, ThinSpaceUsage};

impl Provisioning for FileVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Io::new(self.allocation_of(extent))
    }

    /// Returns the space of the file and the free space of its file system; `None` for a block
    /// device.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        let metadata = self.file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let system = rustix::fs::fstatvfs(&self.file).ok()?;
        let available = system.f_bavail.saturating_mul(system.f_frsize);
        Some(ThinSpaceUsage { used: metadata.blocks() * 512, available, shared: true })
    }
}

impl Resizable for FileVolume {
    /// Adopts the present size of the file or device as the size of the volume.
    fn refresh(&self) {
        let Ok(bytes) = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)) else { return };
        let blocks = bytes / u64::from(self.geometry.block_size);
        // Ignore a size of zero: the file is empty only while another process rewrites it.
        if blocks > 0 {
            self.size.note_found(blocks);
        }
    }
}
