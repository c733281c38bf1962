//! Folders and files: as they are now, and as a power cut may leave them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::powercut::content::Content;
use crate::powercut::fate::{Chance, Fate};

/// The inode of the root folder, as FUSE wants it.
pub const ROOT: u64 = 1;

/// All inodes of a file system. What has no name any more stays until the next power cut.
#[derive(Clone, Debug)]
pub struct Tree {
    inodes: BTreeMap<u64, Inode>,
    /// How many operations have changed something so far.
    operations: u64,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub node: Node,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// From the root, with a slash before each name. A file keeps its last one when it is removed.
    pub path: String,
}

#[derive(Clone, Debug)]
pub enum Node {
    File(Content),
    Folder(Folder),
}

/// The names in a folder.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    names: BTreeMap<OsString, u64>,
    stable: BTreeMap<OsString, u64>,
    /// Changes that are not in `stable`, oldest first.
    unsynced: Vec<Change>,
}

/// Names that one operation changes together: to an inode, or to nothing.
type Change = Vec<(OsString, Option<u64>)>;

/// An `errno`.
pub type Errno = i32;

impl Tree {
    /// An empty root folder.
    pub fn new() -> Tree {
        let root = Inode {
            node: Node::Folder(Folder::default()),
            mode: 0o700,
            uid: 0,
            gid: 0,
            path: String::new(),
        };
        Tree { inodes: BTreeMap::from([(ROOT, root)]), operations: 0 }
    }

    /// A folder in the root that is stable, for what a machine has before the program comes.
    pub fn add_folder(&mut self, name: &str) -> Result<(), Errno> {
        let node = Node::Folder(Folder::default());
        let inode = Inode { node, mode: 0o700, uid: 0, gid: 0, path: String::new() };
        self.create(ROOT, OsStr::new(name), inode)?;
        self.sync_names(ROOT)
    }

    pub fn inode(&self, ino: u64) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(libc::ENOENT)
    }

    pub fn inode_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    pub fn file(&self, ino: u64) -> Result<&Content, Errno> {
        match &self.inode(ino)?.node {
            Node::File(content) => Ok(content),
            Node::Folder(_) => Err(libc::EISDIR),
        }
    }

    pub fn file_mut(&mut self, ino: u64) -> Result<&mut Content, Errno> {
        match &mut self.inode_mut(ino)?.node {
            Node::File(content) => Ok(content),
            Node::Folder(_) => Err(libc::EISDIR),
        }
    }

    /// The number of the next operation.
    pub fn next_operation(&mut self) -> u64 {
        self.operations += 1;
        self.operations
    }

    pub fn lookup(&self, folder: u64, name: &OsStr) -> Result<u64, Errno> {
        self.folder(folder)?.names.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Names in a folder, in order, with their inodes.
    pub fn names(&self, folder: u64) -> Result<Vec<(OsString, u64)>, Errno> {
        let names = &self.folder(folder)?.names;
        Ok(names.iter().map(|(name, ino)| (name.clone(), *ino)).collect())
    }

    /// A new file or folder under a name that is free.
    pub fn create(&mut self, folder: u64, name: &OsStr, inode: Inode) -> Result<u64, Errno> {
        if self.folder(folder)?.names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let path = format!("{}/{}", self.inode(folder)?.path, name.display());
        let ino = self.inodes.last_key_value().map_or(ROOT, |(last, _)| *last) + 1;
        self.inodes.insert(ino, Inode { path, ..inode });
        self.change(folder, vec![(name.to_owned(), Some(ino))])?;
        Ok(ino)
    }

    pub fn remove(&mut self, folder: u64, name: &OsStr, is_folder: bool) -> Result<(), Errno> {
        match &self.inode(self.lookup(folder, name)?)?.node {
            Node::Folder(found) if is_folder && found.names.is_empty() => {}
            Node::Folder(_) if is_folder => return Err(libc::ENOTEMPTY),
            Node::Folder(_) => return Err(libc::EISDIR),
            Node::File(_) if is_folder => return Err(libc::ENOTDIR),
            Node::File(_) => {}
        }
        self.change(folder, vec![(name.to_owned(), None)])
    }

    /// Renames within one folder. Between two of them a power cut would have to treat both alike; the
    /// program does not need that.
    pub fn rename(&mut self, folder: u64, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(folder, from)?;
        if from == to {
            return Ok(());
        }
        let path = format!("{}/{}", self.inode(folder)?.path, to.display());
        self.inode_mut(ino)?.path = path;
        self.change(folder, vec![(from.to_owned(), None), (to.to_owned(), Some(ino))])
    }

    /// fsync of a folder.
    pub fn sync_names(&mut self, folder: u64) -> Result<(), Errno> {
        let Node::Folder(folder) = &mut self.inode_mut(folder)?.node else {
            return Err(libc::ENOTDIR);
        };
        for change in std::mem::take(&mut folder.unsynced) {
            apply(&mut folder.stable, &change);
        }
        Ok(())
    }

    /// What a power cut leaves: the same for the same operations and the same seed.
    pub fn draw(&self, seed: u64) -> Tree {
        let mut chance = Chance::new(seed);
        let fate = Fate::draw(self.operations, &mut chance);
        let mut left = Tree { inodes: BTreeMap::new(), operations: 0 };
        self.keep(ROOT, fate, &mut chance, &mut left);
        left
    }

    /// Copies what is left of an inode, and of all below it. Inodes that are left without a name are
    /// gone.
    fn keep(&self, ino: u64, fate: Fate, chance: &mut Chance, left: &mut Tree) {
        let inode = &self.inodes[&ino];
        let node = match &inode.node {
            Node::File(content) => Node::File(content.draw(fate, chance)),
            Node::Folder(folder) => {
                let names = folder.draw(fate, chance);
                for below in names.values() {
                    self.keep(*below, fate, chance, left);
                }
                Node::Folder(Folder { stable: names.clone(), names, unsynced: vec![] })
            }
        };
        left.inodes.insert(ino, Inode { node, ..inode.clone() });
    }

    fn folder(&self, ino: u64) -> Result<&Folder, Errno> {
        match &self.inode(ino)?.node {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(libc::ENOTDIR),
        }
    }

    fn change(&mut self, folder: u64, change: Change) -> Result<(), Errno> {
        self.next_operation();
        let Node::Folder(folder) = &mut self.inode_mut(folder)?.node else {
            return Err(libc::ENOTDIR);
        };
        apply(&mut folder.names, &change);
        folder.unsynced.push(change);
        Ok(())
    }
}

impl Folder {
    /// Changes of names survive in their order: all up to one of them.
    fn draw(&self, fate: Fate, chance: &mut Chance) -> BTreeMap<OsString, u64> {
        let count = match fate {
            Fate::Lost => 0,
            Fate::Kept => self.unsynced.len(),
            _ => chance.below(self.unsynced.len() as u64 + 1) as usize,
        };
        let mut names = self.stable.clone();
        self.unsynced[..count].iter().for_each(|change| apply(&mut names, change));
        names
    }
}

fn apply(names: &mut BTreeMap<OsString, u64>, change: &Change) {
    for (name, ino) in change {
        match ino {
            Some(ino) => names.insert(name.clone(), *ino),
            None => names.remove(name),
        };
    }
}
