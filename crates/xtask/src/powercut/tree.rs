//! The folders and files of a file system: their current state, and the images that a power cut may leave.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::powercut::content::Content;
use crate::powercut::fate::{Chance, Fate};

/// The inode number of the root folder, which FUSE fixes.
pub const ROOT: u64 = 1;

/// All inodes of a file system. An inode without a name stays until the next power cut.
#[derive(Clone, Debug)]
pub struct Tree {
    inodes: BTreeMap<u64, Inode>,
    /// The number of operations so far that changed the tree.
    operations: u64,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub node: Node,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// The path from the root, with a slash before each name. A removed file keeps its last path.
    pub path: String,
}

#[derive(Clone, Debug)]
pub enum Node {
    File(Content),
    Folder(Folder),
}

/// The names in a folder: current, stable, and the changes in between.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    names: BTreeMap<OsString, u64>,
    stable: BTreeMap<OsString, u64>,
    /// Changes that `stable` does not contain yet, oldest first.
    unsynced: Vec<Change>,
}

/// The names that one operation changes together: each gets an inode, or is removed (`None`).
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

    /// Adds a stable folder to the root: one that exists before the program is installed.
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

    /// Adds a file or folder; the name must not exist yet.
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

    /// Renames within one folder. A rename between two folders is not supported: a power cut would have to
    /// keep or undo it in both together, and the program does not use it.
    pub fn rename(&mut self, folder: u64, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let ino = self.lookup(folder, from)?;
        if from == to {
            return Ok(());
        }
        let path = format!("{}/{}", self.inode(folder)?.path, to.display());
        self.inode_mut(ino)?.path = path;
        self.change(folder, vec![(from.to_owned(), None), (to.to_owned(), Some(ino))])
    }

    /// Makes the names in a folder stable (fsync of the folder).
    pub fn sync_names(&mut self, folder: u64) -> Result<(), Errno> {
        let Node::Folder(folder) = &mut self.inode_mut(folder)?.node else {
            return Err(libc::ENOTDIR);
        };
        for change in std::mem::take(&mut folder.unsynced) {
            apply(&mut folder.stable, &change);
        }
        Ok(())
    }

    /// Draws the tree that a power cut leaves. The same operations and the same seed give the same tree.
    pub fn draw(&self, seed: u64) -> Tree {
        let mut chance = Chance::new(seed);
        let fate = Fate::draw(self.operations, &mut chance);
        let mut left = Tree { inodes: BTreeMap::new(), operations: 0 };
        self.keep(ROOT, fate, &mut chance, &mut left);
        left
    }

    /// Copies to `left` what a power cut leaves of an inode and of everything below it. An inode without a
    /// surviving name is not copied.
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
    /// Draws the names that survive: the stable ones with the first changes, up to a random one, applied in order.
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
