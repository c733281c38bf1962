//! Makes the machine's disk, kernel and first programs from Debian packages, without root or a loop device. All three
//! are kept for later runs, and made again only if the recipe changes or on request.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::vm::cpio::Cpio;
use crate::vm::packages;

const FIRST_PROGRAM: &str = include_str!("guest/initrd.sh");
const GUEST_PROGRAM: &str = include_str!("guest/init.sh");

/// Version of the code in this file. Increase it with every change that changes the image, so that
/// old images are made again.
const RECIPE: u32 = 1;

/// Kernel modules that the machine needs to read its root disk, named as in the kernel's
/// `modules.dep`.
const DISK_MODULES: &[&str] = &["virtio_pci", "virtio_blk"];

/// Paths that the disk leaves out: files that no program in the machine reads, and programs that
/// only package scripts need.
const LEFT_OUT: &[&str] = &[
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/share/locale",
    "./usr/share/info",
    "./usr/share/perl",
    "./usr/lib/x86_64-linux-gnu/perl",
    "./usr/lib/x86_64-linux-gnu/perl-base",
];

/// Size of the root disk in bytes. The packages unpack to some 190 MB, and the machine writes very
/// little to this disk.
const DISK_BYTES: u64 = 400 << 20;

/// Time limit of each program that makes the image. Unpacking one package takes milliseconds, the
/// kernel's modules some seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The kernel and the other files with which QEMU boots the virtual machine.
pub struct VmImage {
    /// The kernel, compressed as in Debian's package.
    pub kernel: PathBuf,
    /// The archive with the first programs (initial RAM file system).
    pub initrd: PathBuf,
    /// The root disk, an ext4 file system.
    pub disk: PathBuf,
    /// The version of the kernel's package.
    pub kernel_version: String,
    /// The file names of all packages in the image.
    pub packages: Vec<String>,
}

impl VmImage {
    /// Returns the image in this folder. Makes it if it does not exist, if it is out of date, or if
    /// `fresh` is true.
    pub fn provide(folder: &Path, fresh: bool) -> Result<VmImage> {
        if let (Some(image), false) = (VmImage::existing(folder), fresh) {
            return Ok(image);
        }
        let start = Instant::now();
        println!("    making the machine from Debian's packages");
        let packages = packages::provide(&folder.join("packages"))?;
        let image = VmImage::make(folder, &packages)?;
        println!("    made from {} packages in {:.0?}", packages.len(), start.elapsed());
        Ok(image)
    }

    fn existing(folder: &Path) -> Option<VmImage> {
        let record: Value = serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()?;
        if record["recipe"] != recipe() {
            return None;
        }
        let packages = record["packages"].as_array()?;
        let packages = packages.iter().filter_map(|file| Some(file.as_str()?.to_owned())).collect();
        let image = VmImage::at(folder, record["kernel"].as_str()?.to_owned(), packages);
        [&image.kernel, &image.initrd, &image.disk]
            .iter()
            .all(|path| path.is_file())
            .then_some(image)
    }

    fn at(folder: &Path, kernel_version: String, packages: Vec<String>) -> VmImage {
        VmImage {
            kernel: folder.join("vmlinuz"),
            initrd: folder.join("initrd"),
            disk: folder.join("disk.img"),
            kernel_version,
            packages,
        }
    }

    fn make(folder: &Path, packages: &[PathBuf]) -> Result<VmImage> {
        let names = packages.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let image = VmImage::at(folder, packages::kernel(packages)?, names.collect());
        // Remove the record first, and write it last: after an interrupted build, the image does
        // not seem complete.
        let _ = fs::remove_file(folder.join(RECORD));
        let scratch = tempfile::tempdir_in(folder)?;
        let root = scratch.path().join("disk");
        unpack(packages, &root)?;
        settle(&root)?;
        let release = release(&root)?;
        index_modules(&root, &release)?;
        fs::copy(root.join(format!("boot/vmlinuz-{release}")), &image.kernel)?;
        fs::remove_dir_all(root.join("boot"))?;
        fs::write(&image.initrd, initrd(&root, &release)?)?;
        File::create(&image.disk)?.set_len(DISK_BYTES)?;
        let mut mkfs = Command::new(program::find("mkfs.ext4").context("mkfs.ext4")?);
        run(mkfs.args(["-q", "-F", "-d"]).arg(&root).arg(&image.disk))?;
        let record = json!({
            "recipe": recipe(), "kernel": image.kernel_version, "packages": image.packages,
        });
        fs::write(folder.join(RECORD), record.to_string())?;
        Ok(image)
    }
}

/// File name of the record of the recipe and the packages of an image.
const RECORD: &str = "image.json";

/// Returns everything that determines the content of an image, except the versions of the packages.
fn recipe() -> Value {
    json!([RECIPE, packages::WANTED, FIRST_PROGRAM, GUEST_PROGRAM])
}

fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    // Packages of this release still contain files in both `/bin` and `/usr/bin`. Make the links
    // first, as on an installed system.
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    for package in packages {
        let mut archive = Command::new("dpkg-deb");
        archive.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped());
        let mut archive = program::start(&mut archive)?;
        let pipe = archive.stdout().context("no pipe")?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--keep-directory-symlink", "--no-same-owner", "--directory"]);
        tar.arg(root).args(LEFT_OUT.iter().map(|path| format!("--exclude={path}"))).stdin(pipe);
        let unpacked = program::start(&mut tar)?.ended(LIMIT)?;
        let read = archive.ended(LIMIT)?;
        let both = [unpacked, read].iter().all(|status| status.is_some_and(|s| s.success()));
        ensure!(both, "cannot unpack {}", package.display());
    }
    Ok(())
}

/// Makes the changes that the packages' own scripts would make in an installation.
fn settle(root: &Path) -> Result<()> {
    for folder in ["dev", "proc", "sys", "run", "tmp", "mnt", "etc", "var/lib"] {
        fs::create_dir_all(root.join(folder))?;
    }
    symlink("bash", root.join("usr/bin/sh")).context("a shell")?;
    let groups = [
        "root", "tty", "disk", "lp", "kmem", "dialout", "audio", "video", "input", "render", "sgx",
        "kvm", "cdrom", "tape",
    ];
    let groups = groups.iter().zip(0..).map(|(name, id)| format!("{name}:x:{id}:\n"));
    fs::write(root.join("etc/group"), groups.collect::<String>())?;
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/tmp:/bin/bash\n")?;
    fs::write(root.join("etc/fstab"), "")?;
    symlink("/proc/mounts", root.join("etc/mtab"))?;
    program(&root.join("usr/sbin/forebay-guest"), GUEST_PROGRAM)
}

fn program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Returns the release of the kernel, which is the name of its folder of modules.
fn release(root: &Path) -> Result<String> {
    let mut folders = fs::read_dir(root.join("lib/modules"))?;
    let folder = folders.next().context("the kernel has no modules")??;
    folder.file_name().into_string().ok().context("the kernel release is not UTF-8")
}

/// Runs depmod of the image with the image's libraries, since the host may not have depmod.
fn index_modules(root: &Path, release: &str) -> Result<()> {
    let libraries = root.join("lib/x86_64-linux-gnu");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.args(["--argv0", "depmod", "--library-path"]).arg(&libraries);
    command.arg(root.join("bin/kmod")).arg("-b").arg(root).arg(release);
    run(&mut command)
}

/// Returns the archive with which the kernel boots: busybox, one script and the modules for the
/// disk.
fn initrd(root: &Path, release: &str) -> Result<Vec<u8>> {
    let modules = root.join("lib/modules").join(release);
    let index = fs::read_to_string(modules.join("modules.dep"))?;
    let wanted = in_order(&index, DISK_MODULES).context("modules of the root disk")?;
    let mut archive = Cpio::default();
    ["bin", "dev", "disk", "modules.d"].iter().for_each(|name| archive.folder(name));
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", &fs::read(root.join("bin/busybox"))?);
    archive.file("init", FIRST_PROGRAM.as_bytes());
    let mut list = String::new();
    for path in wanted {
        let file = path.rsplit('/').next().unwrap_or(path);
        let name = format!("modules.d/{file}");
        archive.file(&name, &fs::read(modules.join(path))?);
        list += &format!("{name}\n");
    }
    archive.file("modules", list.as_bytes());
    Ok(archive.finish())
}

/// Returns the files of these modules and of all modules that they need, in an order in which they
/// can be loaded.
fn in_order<'a>(index: &'a str, wanted: &[&str]) -> Option<Vec<&'a str>> {
    let name = |path: &'a str| path.rsplit('/').next()?.strip_suffix(".ko");
    let lines = index.lines().filter_map(|line| line.split_once(':'));
    let needs: HashMap<&str, (&str, &str)> =
        lines.filter_map(|(path, needs)| Some((name(path)?, (path, needs)))).collect();
    let mut order: Vec<&str> = vec![];
    for module in wanted {
        let &(path, needs) = needs.get(module)?;
        // depmod lists the dependencies of a module in reverse order, so load the last one first.
        for file in needs.split_whitespace().rev().chain([path]) {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    Some(order)
}

fn run(command: &mut Command) -> Result<()> {
    let finished = program::run(command, LIMIT)?;
    let program = command.get_program().display();
    ensure!(finished.success(), "{program} {}: {}", finished.ending(), finished.tail(5));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let index = "a/virtio_blk.ko: b/virtio.ko b/ring.ko\nb/ring.ko:\nb/virtio.ko: b/ring.ko\n\
            b/virtio_pci.ko: b/modern.ko b/virtio.ko b/ring.ko\nb/modern.ko:\n";
        assert_eq!(
            in_order(index, &["virtio_pci", "virtio_blk"]).unwrap(),
            ["b/ring.ko", "b/virtio.ko", "b/modern.ko", "b/virtio_pci.ko", "a/virtio_blk.ko"]
        );
        assert_eq!(in_order(index, &["nvme"]), None);
    }

    #[test]
    fn an_image_made_by_another_recipe_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["vmlinuz", "initrd", "disk.img"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let record = |recipe: Value| {
            let record = json!({ "recipe": recipe, "kernel": "6.1", "packages": ["a.deb"] });
            fs::write(folder.path().join(RECORD), record.to_string()).unwrap();
            VmImage::existing(folder.path())
        };
        assert_eq!(record(recipe()).unwrap().kernel_version, "6.1");
        assert!(record(json!([0])).is_none());
        fs::remove_file(folder.path().join("initrd")).unwrap();
        assert!(record(recipe()).is_none());
    }
}
