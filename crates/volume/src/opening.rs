//! Opens files by name without following a symbolic link that another user could have planted.
//!
//! A user who may write to a folder can replace a name in it by a symbolic link. A program that follows the
//! link then reads, overwrites or locks, with its own rights, a file that this user chose (CVE-2009-1297).

use std::{
    ffi::OsStr,
    fs::{File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Options for opening a file that the administrator named.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenNamed {
    /// True to open the file for writing as well as for reading.
    pub write: bool,
    /// True to create the file with mode 0600 if it does not exist.
    pub create: bool,
    /// True to fail on a block device that is mounted or otherwise in use (`O_EXCL`). Without effect on files.
    pub exclusive: bool,
}

/// A file or device that was opened by the path that the administrator gave.
#[derive(Debug)]
pub struct NamedFile {
    pub file: File,
    /// The path of the file, after symbolic links in its last part were followed.
    pub path: PathBuf,
    /// True if this call has created the file.
    pub is_new: bool,
}

impl OpenNamed {
    /// Opens a path that the administrator named: a volume, a log, a secret.
    ///
    /// A symbolic link as the last part of the path is followed if the link and its folder belong to root or
    /// to the user of this process and no other user may write to the folder. If the link leads to a block
    /// device, only the owner of the link counts. Links in earlier parts of the path are always followed.
    /// Opening a pipe does not block, so the caller must check the type of the opened file.
    ///
    /// # Errors
    /// The system's error; [`UntrustedLink`] inside of an [`io::Error`] for a link that is not followed.
    pub fn open(self, path: &Path) -> io::Result<NamedFile> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let is_device =
                std::fs::metadata(&path).is_ok_and(|found| found.file_type().is_block_device());
            let opened =
                if is_device { self.open_device(&path) } else { self.open_file(&path, false) };
            match opened {
                Ok(file) => return Ok(NamedFile { file, path, is_new: false }),
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                    path = follow(&path, is_device)?;
                }
                Err(error) if self.create && error.kind() == io::ErrorKind::NotFound => {
                    match self.open_file(&path, true) {
                        Ok(file) => return Ok(NamedFile { file, path, is_new: true }),
                        // Another process has just created the file. Try again: the next pass of the loop opens the
                        // file.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    fn open_file(self, path: &Path, make: bool) -> io::Result<File> {
        let mut options = self.options();
        let file = options.create_new(make).mode(0o600).custom_flags(PLAIN).open(path)?;
        wait_in_calls(&file)?;
        Ok(file)
    }

    fn open_device(self, path: &Path) -> io::Result<File> {
        // On a block device only, O_EXCL without O_CREAT makes open(2) fail while the device is in use.
        let exclusive = if self.exclusive { libc::O_EXCL } else { 0 };
        let file = self.options().custom_flags(libc::O_NOFOLLOW | exclusive).open(path)?;
        if !file.metadata()?.file_type().is_block_device() {
            return Err(io::Error::other("another file has taken the place of the block device"));
        }
        Ok(file)
    }

    fn options(self) -> OpenOptions {
        let mut options = File::options();
        options.read(true).write(self.write);
        options
    }
}

impl NamedFile {
    /// Removes the file again if this opening has created it and its name still leads to it. Otherwise a file
    /// that could not be finished would fill the disk.
    pub fn take_back(&self) {
        let same =
            |found: &Metadata, own: &Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        let found = std::fs::symlink_metadata(&self.path).and_then(|found| {
            let own = self.file.metadata()?;
            Ok(same(&found, &own))
        });
        if self.is_new
            && found.is_ok_and(|is_own| is_own)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(
                path = %self.path.display(), %error, "an unfinished file cannot be removed"
            );
        }
    }
}

/// Returns the bytes that the user of this process can still write to the file system of `path`. The file
/// itself need not exist.
///
/// # Errors
/// Returns the system's error; [`io::ErrorKind::NotFound`] if the folder of `path` does not exist.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder_of(path))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the folder in which the last part of a path is looked up.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens a file that only this program creates and names, such as a lock or a record. Never follows a
/// symbolic link.
///
/// # Errors
/// Returns the system's error, or another one if `path` is a symbolic link or no regular file. With `create`,
/// which is for locks whose content is replaced, a file with a second hard link is refused, too: it could be
/// another user's file.
pub fn open_own(path: &Path, write: bool, create: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(write).create(create).mode(0o600).custom_flags(PLAIN);
    let refused = |what: &str| io::Error::other(format!("{} {what}", path.display()));
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("is a symbolic link, which is not followed; remove it"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("is no plain file; remove it"));
    }
    if create && found.nlink() > 1 {
        return Err(refused("has a second name, so it may be another file; remove this name"));
    }
    wait_in_calls(&file)?;
    Ok(file)
}

/// Removes the permissions of group and others from a file that holds data of hosts. Changes only regular files, not
/// devices.
///
/// A failure is reported as an event and not returned: the file was open to others before as well, and its data is
/// needed.
pub fn narrow(file: &File, path: &Path) {
    let Ok(found) = file.metadata() else { return };
    let mode = found.permissions().mode() & 0o7777;
    if !found.is_file() || mode & OF_OTHERS == 0 {
        return;
    }
    let (path, narrowed) = (path.display(), mode & !OF_OTHERS);
    let (old, new) = (format!("{mode:04o}"), format!("{narrowed:04o}"));
    match file.set_permissions(Permissions::from_mode(narrowed)) {
        Ok(()) => tracing::warn!(
            %path, old, new,
            "the file was open to other users: its mode was narrowed; they may have read it before"
        ),
        Err(error) => tracing::warn!(
            %path, mode = old, %error,
            "the file is open to other users, and its mode cannot be changed: chmod it to 0600"
        ),
    }
}

/// A symbolic link that was not followed, because another user could replace it.
#[derive(Debug, thiserror::Error)]
#[error("{link:?} is a symbolic link that another user could replace: {why}")]
pub struct UntrustedLink {
    link: PathBuf,
    why: Untrusted,
}

/// Why a symbolic link is not trusted.
#[derive(Debug, thiserror::Error)]
enum Untrusted {
    #[error("it belongs to user {owner}")]
    Link { owner: u32 },
    #[error("its folder {folder:?} belongs to user {owner}")]
    Owner { folder: PathBuf, owner: u32 },
    #[error("group or others may write to its folder {folder:?} (mode {mode:04o})")]
    Mode { folder: PathBuf, mode: u32 },
}

impl UntrustedLink {
    /// Returns the [`UntrustedLink`] that caused `error`, if there is one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns what the administrator can do so that the file is opened.
    #[must_use]
    pub fn remedy(&self) -> String {
        let or = match &self.why {
            Untrusted::Link { .. } => {
                format!(
                    "create the link again as the user of this process: {}",
                    self.link.display()
                )
            }
            Untrusted::Owner { folder, .. } => {
                format!("make the user of this process the owner of {}", folder.display())
            }
            Untrusted::Mode { folder, .. } => {
                format!("if only its owner should write there, chmod go-w {}", folder.display())
            }
        };
        format!("name the file that the link leads to; or {or}")
    }
}

/// Returns the path that a link leads to. Fails if another user could have put the link there. For a link to a block
/// device only its owner is checked: it may lie in a folder that other users can write to, as with the kernel's
/// fs.protected_symlinks.
fn follow(link: &Path, leads_to_device: bool) -> io::Result<PathBuf> {
    let folder = folder_of(link);
    // Read owner and destination through one descriptor: another link may take the name in between.
    let opened =
        File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(link)?;
    let (found, around) = (opened.metadata()?, std::fs::metadata(folder)?);
    let why = if !is_ours(&found) {
        Untrusted::Link { owner: found.uid() }
    } else if leads_to_device {
        return destination(&opened, folder);
    } else if !is_ours(&around) {
        Untrusted::Owner { folder: folder.to_owned(), owner: around.uid() }
    } else if around.mode() & 0o022 != 0 {
        Untrusted::Mode { folder: folder.to_owned(), mode: around.mode() & 0o7777 }
    } else {
        return destination(&opened, folder);
    };
    Err(io::Error::other(UntrustedLink { link: link.to_owned(), why }))
}

/// Returns the path that an open link in this folder leads to. Fails if the opened file is no link, because
/// another file took its name.
fn destination(link: &File, folder: &Path) -> io::Result<PathBuf> {
    let to = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(folder.join(OsStr::from_bytes(to.as_bytes())))
}

/// Returns true if the file belongs to root or to the user of this process.
#[must_use]
pub fn is_ours(found: &Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&found.uid())
}

/// Clears O_NONBLOCK, so that later calls wait. Only the opening needs the flag: a pipe would block it.
fn wait_in_calls(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

/// The permission bits of group and others in a file's mode.
const OF_OTHERS: u32 = 0o077;
/// Open flags: do not follow a link, and do not wait for the other end of a pipe.
const PLAIN: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;
/// The maximum number of links that are followed; the kernel has the same limit
/// (path_resolution(7)).
const MOST_LINKS: usize = 40;

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{lchown, symlink},
    };

    use super::*;

    fn folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("chmod");
        folder
    }

    const READ: OpenNamed = OpenNamed { write: false, create: false, exclusive: false };
    const MAKE: OpenNamed = OpenNamed { write: true, create: true, exclusive: false };

    #[test]
    fn a_link_in_a_folder_that_others_write_to_is_not_followed() {
        for mode in [0o777, 0o1777, 0o770] {
            let folder = folder(mode);
            let (file, link) = (folder.path().join("file"), folder.path().join("link"));
            fs::write(&file, "bytes").expect("written");
            symlink(&file, &link).expect("linked");
            for how in [READ, MAKE] {
                let error = how.open(&link).expect_err("refused");
                let refused = UntrustedLink::of(&error).expect("as a link");
                assert!(refused.remedy().contains("chmod go-w"), "{}", refused.remedy());
                assert!(how.open(&file).is_ok(), "the file itself may be opened");
            }
        }
    }

    #[test]
    fn a_link_that_no_other_user_can_replace_is_followed_in_each_of_its_steps() {
        let (ours, shared) = (folder(0o755), folder(0o777));
        let (file, link) = (ours.path().join("file"), ours.path().join("link"));
        symlink("file", &link).expect("linked");
        assert!(READ.open(&link).is_err(), "it leads nowhere");
        MAKE.open(&link).expect("made where the link leads");
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o7777, 0o600);
        // The second link is in a directory that other users can change, so it must not be followed.
        let (first, second) = (ours.path().join("first"), shared.path().join("second"));
        symlink(&second, &first).expect("linked");
        symlink(&file, &second).expect("linked");
        assert!(UntrustedLink::of(&READ.open(&first).expect_err("refused")).is_some());
        symlink("round", ours.path().join("round")).expect("linked");
        assert!(READ.open(&ours.path().join("round")).is_err(), "a loop has an end");
    }

    /// A link of another user must be refused in any folder. The kernel's fs.protected_symlinks refuses it only in a
    /// sticky folder.
    #[test]
    fn a_link_of_another_user_is_not_followed_though_it_leads_to_a_block_device() {
        let is_device = |found: fs::DirEntry| {
            let path = found.path();
            let kind = fs::symlink_metadata(&path).ok()?.file_type();
            (kind.is_block_device() && READ.open(&path).is_ok()).then_some(path)
        };
        let mut devices = fs::read_dir("/dev").expect("read").flatten().filter_map(is_device);
        let Some(device) = devices.next().filter(|_| rustix::process::geteuid().is_root()) else {
            eprintln!(
                "left out: it needs a block device and the right to make a link another user's"
            );
            return;
        };
        for mode in [0o1777, 0o755] {
            let folder = folder(mode);
            let link = folder.path().join("link");
            symlink(&device, &link).expect("linked");
            assert!(READ.open(&link).is_ok(), "a link of root");
            lchown(&link, Some(65_534), None).expect("given away");
            let error = READ.open(&link).expect_err("refused");
            let refused = UntrustedLink::of(&error).expect("as a link");
            assert!(error.to_string().contains("it belongs to user 65534"), "{error}");
            assert!(refused.remedy().contains("create the link again"), "{}", refused.remedy());
        }
    }

    #[test]
    fn own_files_are_never_opened_through_symbolic_or_hard_links() {
        let folder = folder(0o700);
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "bytes").expect("written");
        symlink(&file, &link).expect("linked");
        let said = open_own(&link, true, true).expect_err("refused").to_string();
        assert!(said.contains("link is a symbolic link"), "{said}");
        fs::hard_link(&file, folder.path().join("second")).expect("linked");
        assert!(open_own(&folder.path().join("second"), true, true).is_err());
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe"), 0o600.into())
            .expect("made");
        assert!(open_own(&folder.path().join("pipe"), false, false).is_err(), "and does not hang");
    }

    #[test]
    fn take_back_removes_only_a_file_that_the_opening_created() {
        let folder = folder(0o700);
        let path = folder.path().join("file");
        MAKE.open(&path).expect("made").take_back();
        assert!(!path.exists());
        let named = MAKE.open(&path).expect("made");
        fs::rename(&path, folder.path().join("elsewhere")).expect("renamed");
        fs::write(&path, "another").expect("written");
        named.take_back();
        MAKE.open(&path).expect("opened").take_back();
        assert!(path.exists());
    }

    #[test]
    fn opening_a_pipe_does_not_block() {
        let folder = folder(0o700);
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).expect("made");
        let named = READ.open(&pipe).expect("opened");
        assert!(!named.file.metadata().expect("looked at").is_file());
    }

    #[test]
    fn permissions_are_narrowed_for_regular_files_only() {
        let folder = folder(0o700);
        let path = folder.path().join("file");
        for (old, new) in [(0o644, 0o600), (0o666, 0o600), (0o600, 0o600), (0o4755, 0o4700)] {
            fs::write(&path, "").expect("written");
            fs::set_permissions(&path, Permissions::from_mode(old)).expect("chmod");
            narrow(&READ.open(&path).expect("opened").file, &path);
            assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, new);
        }
        // The pipe is an example of everything that is no regular file, such as a device.
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o666.into()).expect("made");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("chmod");
        let pipe = File::options().read(true).write(true).open(&path).expect("opened");
        narrow(&pipe, &path);
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o666);
    }
}
