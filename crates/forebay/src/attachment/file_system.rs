//! The file system of an attached volume: detects, makes and mounts it with the system's programs.

use std::{path::Path, process::Stdio};

use attach::VolumeContent;
use control::Failure;
use tokio::process::Command;
use volume::{Data, Durability, Extent, Geometry, Lba, Volume};

use crate::{attachment::host::SYSTEM_FOLDERS, cli::Attach};

/// The work to do on the file system once the device exists.
#[derive(Debug, Eq, PartialEq)]
pub struct FileSystemPlan {
    /// Type of the file system to make; `None` to make none.
    pub make: Option<String>,
    pub found: VolumeContent,
}

/// Number of bytes that are examined at both ends of a volume. No known file system or partition table has its first
/// magic number beyond them; those at the end (GPT, md) are in the last 128 KiB.
const LOOKED_AT: u64 = 1 << 20;

/// Examines the volume and plans the work. Fails if the volume has content that may be valuable.
pub async fn plan(args: &Attach, volume: &dyn Volume) -> Result<FileSystemPlan, Failure> {
    if args.mkfs.is_none() && args.mount.is_none() {
        return Ok(FileSystemPlan { make: None, found: VolumeContent::Unknown });
    }
    let found = look(volume).await?;
    match (&args.mkfs, found) {
        (Some(kind), _) if args.force => {
            wipe(volume).await?;
            Ok(FileSystemPlan { make: Some(kind.clone()), found })
        }
        (Some(kind), VolumeContent::Nothing) => Ok(FileSystemPlan { make: Some(kind.clone()), found }),
        (Some(kind), VolumeContent::FileSystem(there)) if is_the_same(kind, there) => {
            Ok(FileSystemPlan { make: None, found })
        }
        (Some(kind), VolumeContent::FileSystem(there)) => {
            Err(refusal(&format!("the volume holds a file system of type {there}, not {kind}")))
        }
        (Some(_), VolumeContent::Other(what)) => Err(refusal(&format!("the volume holds {what}"))),
        (Some(_), VolumeContent::Unknown) => {
            Err(refusal("the volume holds data of an unknown kind"))
        }
        (None, VolumeContent::Nothing) => Err(Failure::new("there is no file system on the volume")
            .remedy(
                "its first and its last MiB hold zeros only: if it is a new volume, `--mkfs TYPE`, such as \
                 `--mkfs ext4`, makes a file system",
            )),
        (None, VolumeContent::Other(what)) => {
            Err(Failure::new(format!("the content of the volume cannot be mounted: {what}"))
                .remedy("leave out --mount, and use the device"))
        }
        // The kernel may be able to mount content that is not in the table of known file systems.
        (None, VolumeContent::FileSystem(_) | VolumeContent::Unknown) => Ok(FileSystemPlan { make: None, found }),
    }
}

fn refusal(what: &str) -> Failure {
    Failure::new(format!("{what}: no file system is made"))
        .remedy("if it is no longer needed, --force overwrites it; otherwise leave out --mkfs")
}

/// Returns true if the two types have the same magic number; ext2, ext3 and ext4 share one.
fn is_the_same(wanted: &str, found: &str) -> bool {
    let family = |kind: &str| if kind.starts_with("ext") { "ext".into() } else { kind.to_owned() };
    family(wanted) == family(found)
}

async fn look(volume: &dyn Volume) -> Result<VolumeContent, Failure> {
    let (first, last) = ends(volume.geometry());
    let mut found = Vec::new();
    for extent in [first, last] {
        let read = volume.read(extent).await;
        let data = read.map_err(|error| {
            Failure::new(format!("cannot read the volume: {error}")).remedy(
                "`forebay ls iscsi://HOST/TARGET` shows whether the unit answers; see the \
                 events of its target, and attach it again",
            )
        })?;
        found.push(data.into_bytes());
    }
    Ok(attach::content(&found[0], &found[1]))
}

/// Overwrites both ends of the volume with zeros, so that mkfs finds no old magic number and does not ask questions.
async fn wipe(volume: &dyn Volume) -> Result<(), Failure> {
    let geometry = volume.geometry();
    for extent in <[Extent; 2]>::from(ends(geometry)) {
        let zeros = Data::zeros(extent.blocks as usize * geometry.block_size as usize);
        let wiped = volume.write(extent.lba, zeros, Durability::Stable).await;
        wiped.map_err(|error| {
            Failure::new(format!("cannot write to the volume: {error}")).remedy(
                "`forebay ls iscsi://HOST/TARGET` shows whether the unit answers; see the \
                 events of its target, and attach it again",
            )
        })?;
    }
    Ok(())
}

fn ends(geometry: Geometry) -> (Extent, Extent) {
    let blocks = (LOOKED_AT / u64::from(geometry.block_size)).min(geometry.blocks);
    let extent = |lba| Extent { lba: Lba(lba), blocks: blocks as u32 };
    (extent(0), extent(geometry.blocks - blocks))
}

pub async fn make(kind: &str, device: &Path) -> Result<(), Failure> {
    tracing::info!(kind, device = %device.display(), "making a file system");
    let mut program = program(&format!("mkfs.{kind}"));
    program.arg(device);
    run(program, "cannot make a file system").await
}

/// Mounts the file system of a device whose volume held `found`.
pub async fn mount(
    device: &Path,
    args: &Attach,
    folder: &Path,
    found: VolumeContent,
) -> Result<(), Failure> {
    let mut program = program("mount");
    let mut options: Vec<&str> = args.mount_options.iter().map(String::as_str).collect();
    if args.read_only {
        options.push("ro");
    }
    if !options.is_empty() {
        program.args(["-o", &options.join(",")]);
    }
    program.arg(device).arg(folder);
    let mounted = run(program, "cannot mount the file system").await;
    mounted.map_err(|failure| not_mounted(failure, found))
}

/// Adds a remedy for a file system that cannot be mounted. Only a volume of zeros is called empty: any other content
/// may be valuable.
fn not_mounted(failure: Failure, found: VolumeContent) -> Failure {
    match found {
        VolumeContent::Unknown => Failure::new(format!(
            "the volume has no file system that Forebay knows, but it has data: {}",
            failure.message
        ))
        .remedy(
            "if the data is needed, leave out --mount and use the device; otherwise `--mkfs TYPE \
             --force`, such as `--mkfs ext4 --force`, overwrites it and makes a file system",
        ),
        VolumeContent::FileSystem(there) => failure.remedy(format!(
            "the volume holds a file system of type {there}: `dmesg` shows why the kernel does \
             not mount it; without --mount its fsck can use the device"
        )),
        VolumeContent::Nothing | VolumeContent::Other(_) => failure,
    }
}

fn program(name: &str) -> Command {
    let mut program = Command::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(Into::into));
    if let Ok(path) = std::env::join_paths(folders) {
        program.env("PATH", path);
    }
    program
}

async fn run(mut program: Command, what: &str) -> Result<(), Failure> {
    program.stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{what}: {why}"));
    let output = program.output().await.map_err(|error| failed(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(failed(&if said.is_empty() { output.status.to_string() } else { said.to_owned() }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volume::MemVolume;

    use super::*;
    use crate::cli::{Cli, ForebayCommand};

    fn args(more: &[&str]) -> Attach {
        let words = ["forebay", "attach", "iscsi://a/iqn.x:y"].iter().chain(more);
        match Cli::parse_from(words).command {
            ForebayCommand::Attach(args) => args,
            other => panic!("{other:?}"),
        }
    }

    async fn with(at: usize, bytes: &[u8]) -> MemVolume {
        let volume = MemVolume::new(Geometry::with_blocks(8192));
        let mut block = vec![0; 512];
        block[at % 512..at % 512 + bytes.len()].copy_from_slice(bytes);
        let lba = Lba(at as u64 / 512);
        volume.write(lba, Data::from(block), Durability::Stable).await.unwrap();
        volume
    }

    #[tokio::test]
    async fn a_file_system_is_made_only_on_an_empty_volume() {
        let empty = MemVolume::new(Geometry::with_blocks(8192));
        let mkfs = args(&["--mkfs", "ext4"]);
        let make = FileSystemPlan { make: Some("ext4".into()), found: VolumeContent::Nothing };
        assert_eq!(plan(&mkfs, &empty).await.unwrap(), make);
        let ext4 = with(0x438, b"\x53\xef").await;
        let keep = FileSystemPlan { make: None, found: VolumeContent::FileSystem("ext4") };
        assert_eq!(plan(&mkfs, &ext4).await.unwrap(), keep);
        let xfs = plan(&args(&["--mkfs", "xfs"]), &ext4).await.unwrap_err();
        assert!(xfs.message.contains("ext4, not xfs"), "{xfs}");
        for (at, bytes) in [(512, &b"EFI PART"[..]), (700_000, b"x"), (4_194_303, b"x")] {
            let refused = plan(&mkfs, &with(at, bytes).await).await.unwrap_err();
            assert!(refused.message.ends_with("no file system is made"), "{refused}");
        }
    }

    #[tokio::test]
    async fn force_wipes_the_former_content() {
        let volume = with(0x438, b"\x53\xef").await;
        let forced = args(&["--mkfs", "xfs", "--force"]);
        assert_eq!(plan(&forced, &volume).await.unwrap().make.as_deref(), Some("xfs"));
        assert_eq!(look(&volume).await.unwrap(), VolumeContent::Nothing);
    }

    #[tokio::test]
    async fn a_volume_without_a_file_system_is_not_mounted() {
        let empty = MemVolume::new(Geometry::with_blocks(16));
        let refused = plan(&args(&["--mount", "/mnt"]), &empty).await.unwrap_err();
        assert!(refused.remedy.unwrap().contains("--mkfs ext4"));
        let table = with(510, b"\x55\xaa").await;
        assert!(plan(&args(&["--mount", "/mnt"]), &table).await.is_err());
    }

    #[tokio::test]
    async fn data_that_cannot_be_mounted_is_not_called_empty() {
        let volume = with(700_000, b"x").await;
        let kept = plan(&args(&["--mount", "/mnt"]), &volume).await.unwrap();
        assert_eq!(kept, FileSystemPlan { make: None, found: VolumeContent::Unknown });
        let failure = not_mounted(Failure::new("wrong fs type"), kept.found);
        assert!(failure.message.contains("but it has data: wrong fs type"), "{failure}");
        assert!(failure.remedy.unwrap().contains("`--mkfs TYPE --force`"));
        let failure = not_mounted(Failure::new("bad superblock"), VolumeContent::FileSystem("xfs"));
        assert!(!failure.remedy.unwrap().contains("--force"));
        assert_eq!(look(&volume).await.unwrap(), VolumeContent::Unknown, "nothing is written over");
    }
}
