//! Writes the archive that a kernel unpacks into memory at boot: cpio's "newc" format (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

#[derive(Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

/// File types, as in the field `st_mode` of stat(2).
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Cpio {
    /// Adds a folder to the archive, which must already contain the folders above it.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER | 0o755, (0, 0), &[]);
    }

    /// Adds a file to the archive, with permission to execute it.
    pub fn file(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, REGULAR | 0o755, (0, 0), contents);
    }

    /// Adds a character device. The kernel opens `dev/console` for the first process, so the
    /// archive must have it.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// Completes the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("nothing here is near 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        // ino, mode, uid, gid, nlink, mtime, size, dev major and minor, rdev major and minor, name
        // size, checksum (not used). All times are 0, so that the same files always give the same
        // archive.
        let (major, minor) = device;
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    /// Pads with zeros to a multiple of four bytes, as the format requires after names and
    /// contents.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_bytes_of_the_format() {
        let mut archive = Cpio::default();
        archive.file("a", b"xyz");
        let bytes = archive.finish();
        let head = "070701\
            00000001000081ed00000000000000000000000100000000\
            000000030000000000000000000000000000000000000002\
            00000000a\0";
        assert_eq!(&bytes[..112], head.as_bytes());
        assert_eq!(&bytes[112..116], b"xyz\0");
        assert!(bytes[116..].starts_with(b"070701") && bytes.len() % 4 == 0);
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"));
    }
}
