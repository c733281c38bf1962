//! Recognizes the content of a volume by its first bytes, so that no file system is made on a volume that is
//! not empty.

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VolumeContent {
    Nothing,
    /// A file system, with the name that `mount` uses.
    FileSystem(&'static str),
    /// The volume has known content of another kind, such as a partition table; the text names that kind.
    Other(&'static str),
    Unknown,
}

/// Recognizes the content of a volume by its first and last bytes. `first` should reach beyond the offsets of
/// the table (0x10048 bytes), or to the end of a smaller volume.
///
/// The magic numbers are those of libblkid. If several entries of the table match, the first one decides. The file
/// system that a kernel would mount comes last, because the tools that make file systems wipe the magic numbers of
/// earlier content.
#[must_use]
pub fn content(first: &[u8], last: &[u8]) -> VolumeContent {
    let found = MAGIC.iter().find(|(at, magic, _)| {
        first.get(*at..*at + magic.len()).is_some_and(|there| there == *magic)
    });
    if let Some((.., content)) = found {
        return *content;
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    match (is_zero(first), is_zero(last)) {
        (true, true) => VolumeContent::Nothing,
        _ => VolumeContent::Unknown,
    }
}

/// Each entry: an offset in bytes, the magic number that identifies the content, and the content.
const MAGIC: &[(usize, &[u8], VolumeContent)] = &[
    (0, b"LUKS\xba\xbe", VolumeContent::Other("an encrypted volume (LUKS)")),
    (0, b"XFSB", VolumeContent::FileSystem("xfs")),
    (3, b"NTFS    ", VolumeContent::FileSystem("ntfs3")),
    (3, b"EXFAT   ", VolumeContent::FileSystem("exfat")),
    (0x52, b"FAT32", VolumeContent::FileSystem("vfat")),
    (0x36, b"FAT1", VolumeContent::FileSystem("vfat")),
    (512, b"EFI PART", VolumeContent::Other("a partition table (GPT)")),
    (4096, b"EFI PART", VolumeContent::Other("a partition table (GPT)")),
    (512, b"LABELONE", VolumeContent::Other("a physical volume of LVM")),
    (0, b"\xfc\x4e\x2b\xa9", VolumeContent::Other("a member of a RAID (md)")),
    (4096, b"\xfc\x4e\x2b\xa9", VolumeContent::Other("a member of a RAID (md)")),
    (1024, b"\x10\x20\xf5\xf2", VolumeContent::FileSystem("f2fs")),
    (4086, b"SWAPSPACE2", VolumeContent::Other("swap space")),
    (0x8001, b"CD001", VolumeContent::FileSystem("iso9660")),
    (0x10040, b"_BHRfS_M", VolumeContent::FileSystem("btrfs")),
    (0x438, b"\x53\xef", VolumeContent::FileSystem("ext4")),
    (510, b"\x55\xaa", VolumeContent::Other("a partition table (MBR)")),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn with(at: usize, magic: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    }

    #[test]
    fn a_volume_is_empty_only_if_both_ends_are_zeros() {
        let zeros = vec![0; 1 << 20];
        assert_eq!(content(&zeros, &zeros), VolumeContent::Nothing);
        assert_eq!(content(&zeros, &with(7, b"x")), VolumeContent::Unknown);
        assert_eq!(content(&with((1 << 20) - 1, b"x"), &zeros), VolumeContent::Unknown);
        assert_eq!(content(&[], &[]), VolumeContent::Nothing);
    }

    #[test]
    fn known_contents_are_named() {
        for (at, magic, expected) in MAGIC {
            assert_eq!(content(&with(*at, magic), &[]), *expected);
        }
        // The boot sector of a FAT file system ends with the same two bytes as a partition table (55h, AAh).
        let mut fat = with(0x52, b"FAT32");
        fat[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(content(&fat, &[]), VolumeContent::FileSystem("vfat"));
    }
}
