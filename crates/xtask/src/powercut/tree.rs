//! The folders and files of a file system: their current state, and the images that a power cut may leave.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::powercut::content::FaultFsContent;
use crate::powercut::fate::{Chance, PowerCutFate};

/// The inode number of the root folder, which FUSE fixes.
pub const ROOT: u64 = 1;

/// All inodes of a file system. An inode without a name stays until the next power cut.
#[derive(Clone, Debug)]
pub struct FaultFsTree {
    inodes: BTreeMap<u64, Inode>,
    /// The number of operations so far that changed the tree.
    operations: u64,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub node: FaultFsNode,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// The path from the root, with a slash before each name. A file that was removed keeps its
    /// last path here.
    pub path: String,
}

#[derive(Clone, Debug)]
pub enum FaultFsNode {
    File(FaultFsContent),
    Folder(FaultFsFolder),
}

/// The names in a folder: current, stable, and the changes in between.
#[derive(Clone, Debug, Default)]
pub struct FaultFsFolder {
    names: BTreeMap<OsString, u64>,
    stable: BTreeMap<OsString, u64>,
    /// Changes of names that are not in `stable` yet, oldest first.
    unsynced: Vec<FaultFsNameChange>,
}

/// The names that one operation changes together: each name gets the inode with this number, or is removed (`None`).
type FaultFsNameChange = Vec<(OsString, Option<u64>)>;

/// An error number of Linux (`errno`).
pub type FaultFsErrno = i32;

impl FaultFsTree {
    /// Returns a tree that has only an empty root folder.
    pub fn new() -> FaultFsTree {
        let root = Inode {
            node: FaultFsNode::Folder(FaultFsFolder::default()),
            mode: 0o700,
            uid: 0,
            gid: 0,
            path: String::new(),
        };
        FaultFsTree { inodes: BTreeMap::from([(ROOT, root)]), operations: 0 }
    }

    /// Adds a folder to the root that no power cut removes, like a folder that exists before the program is installed.
    pub fn add_folder(&mut self, name: &str) -> Result<(), FaultFsErrno> {
        let node = FaultFsNode::Folder(FaultFsFolder::default());
        let inode = Inode { node, mode: 0o700, uid: 0, gid: 0, path: String::new() };
        self.create(ROOT, OsStr::new(name), inode)?;
        self.sync_names(ROOT)
    }

    pub fn inode(&self, ino: u64) -> Result<&Inode, FaultFsErrno> {
        self.inodes.get(&ino).ok_or(libc::ENOENT)
    }

    pub fn inode_mut(&mut self, ino: u64) -> Result<&mut Inode, FaultFsErrno> {
        self.inodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    pub fn file(&self, ino: u64) -> Result<&FaultFsContent, FaultFsErrno> {
        match &self.inode(ino)?.node {
            FaultFsNode::File(content) => Ok(content),
            FaultFsNode::Folder(_) => Err(libc::EISDIR),
        }
    }

    pub fn file_mut(&mut self, ino: u64) -> Result<&mut FaultFsContent, FaultFsErrno> {
        match &mut self.inode_mut(ino)?.node {
            FaultFsNode::File(content) => Ok(content),
            FaultFsNode::Folder(_) => Err(libc::EISDIR),
        }
    }

    /// Counts another operation on the file system, and returns its number.
    pub fn next_operation(&mut self) -> u64 {
        self.operations += 1;
        self.operations
    }

    pub fn lookup(&self, folder: u64, name: &OsStr) -> Result<u64, FaultFsErrno> {
        self.folder(folder)?.names.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Returns the names in a folder with their inode numbers, sorted by name.
    pub fn names(&self, folder: u64) -> Result<Vec<(OsString, u64)>, FaultFsErrno> {
        let names = &self.folder(folder)?.names;
        Ok(names.iter().map(|(name, ino)| (name.clone(), *ino)).collect())
    }

    /// Adds a file or folder under a name that must not exist yet.
    pub fn create(&mut self, folder: u64, name: &OsStr, inode: Inode) -> Result<u64, FaultFsErrno> {
        if self.folder(folder)?.names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let path = format!("{}/{}", self.inode(folder)?.path, name.display());
        let ino = self.inodes.last_key_value().map_or(ROOT, |(last, _)| *last) + 1;
        self.inodes.insert(ino, Inode { path, ..inode });
        self.change(folder, vec![(name.to_owned(), Some(ino))])?;
        Ok(ino)
    }

    pub fn remove(
        &mut self,
        folder: u64,
        name: &OsStr,
        is_folder: bool,
    ) -> Result<(), FaultFsErrno> {
        match &self.inode(self.lookup(folder, name)?)?.node {
            FaultFsNode::Folder(found) if is_folder && found.names.is_empty() => {}
            FaultFsNode::Folder(_) if is_folder => return Err(libc::ENOTEMPTY),
            FaultFsNode::Folder(_) => return Err(libc::EISDIR),
            FaultFsNode::File(_) if is_folder => return Err(libc::ENOTDIR),
            FaultFsNode::File(_) => {}
        }
        self.change(folder, vec![(name.to_owned(), None)])
    }

    /// Renames within one folder. A rename between two folders is not supported: a power cut would have to keep or undo
    /// the change in both folders together, and the program makes no such rename.
    pub fn rename(&mut self, folder: u64, from: &OsStr, to: &OsStr) -> Result<(), FaultFsErrno> {
        let ino = self.lookup(folder, from)?;
        if from == to {
            return Ok(());
        }
        let path = format!("{}/{}", self.inode(folder)?.path, to.display());
        self.inode_mut(ino)?.path = path;
        self.change(folder, vec![(from.to_owned(), None), (to.to_owned(), Some(ino))])
    }

    /// Makes the names in a folder stable (fsync of the folder).
    pub fn sync_names(&mut self, folder: u64) -> Result<(), FaultFsErrno> {
        let FaultFsNode::Folder(folder) = &mut self.inode_mut(folder)?.node else {
            return Err(libc::ENOTDIR);
        };
        for change in std::mem::take(&mut folder.unsynced) {
            apply(&mut folder.stable, &change);
        }
        Ok(())
    }

    /// Draws the tree that a power cut leaves. The same operations and the same seed give the same tree.
    pub fn draw(&self, seed: u64) -> FaultFsTree {
        let mut chance = Chance::new(seed);
        let fate = PowerCutFate::draw(self.operations, &mut chance);
        let mut left = FaultFsTree { inodes: BTreeMap::new(), operations: 0 };
        self.keep(ROOT, fate, &mut chance, &mut left);
        left
    }

    /// Copies an inode and everything below it to `left`, as a power cut leaves them. An inode without a surviving name
    /// is not copied.
    fn keep(&self, ino: u64, fate: PowerCutFate, chance: &mut Chance, left: &mut FaultFsTree) {
        let inode = &self.inodes[&ino];
        let node = match &inode.node {
            FaultFsNode::File(content) => FaultFsNode::File(content.draw(fate, chance)),
            FaultFsNode::Folder(folder) => {
                let names = folder.draw(fate, chance);
                for below in names.values() {
                    self.keep(*below, fate, chance, left);
                }
                FaultFsNode::Folder(FaultFsFolder {
                    stable: names.clone(),
                    names,
                    unsynced: vec![],
                })
            }
        };
        left.inodes.insert(ino, Inode { node, ..inode.clone() });
    }

    fn folder(&self, ino: u64) -> Result<&FaultFsFolder, FaultFsErrno> {
        match &self.inode(ino)?.node {
            FaultFsNode::Folder(folder) => Ok(folder),
            FaultFsNode::File(_) => Err(libc::ENOTDIR),
        }
    }

    fn change(&mut self, folder: u64, change: FaultFsNameChange) -> Result<(), FaultFsErrno> {
        self.next_operation();
        let FaultFsNode::Folder(folder) = &mut self.inode_mut(folder)?.node else {
            return Err(libc::ENOTDIR);
        };
        apply(&mut folder.names, &change);
        folder.unsynced.push(change);
        Ok(())
    }
}

impl FaultFsFolder {
    /// Draws the names that survive: the stable names, with the unsynced changes up to a random one applied in order.
    fn draw(&self, fate: PowerCutFate, chance: &mut Chance) -> BTreeMap<OsString, u64> {
        let count = match fate {
            PowerCutFate::Lost => 0,
            PowerCutFate::Kept => self.unsynced.len(),
            _ => chance.below(self.unsynced.len() as u64 + 1) as usize,
        };
        let mut names = self.stable.clone();
        self.unsynced[..count].iter().for_each(|change| apply(&mut names, change));
        names
    }
}

fn apply(names: &mut BTreeMap<OsString, u64>, change: &FaultFsNameChange) {
    for (name, ino) in change {
        match ino {
            Some(ino) => names.insert(name.clone(), *ino),
            None => names.remove(name),
        };
    }
}
