//! The files of the web site: their sizes, their content, and the order in which users request
//! them.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use sim::Rng;

use super::distribution::{BODY, LARGE, STACK, TAIL, TAIL_PERCENT};
use crate::Error;

/// Upper bound of a file's size in bytes. Surge's distribution has no bound; with this one 20,000 files take 1 GB, as
/// in the paper.
const LARGEST: f64 = 4_194_304.0;
/// Measured mean size of all files in bytes. It is used to estimate the space that they need.
pub(super) const MEAN: u64 = 55_000;
/// Number of files in each subfolder of the site.
const IN_FOLDER: u32 = 1000;
/// Number of bytes that are generated and compared at a time. It must be a multiple of the size of
/// a random number.
pub(super) const PIECE: usize = 16 * 1024;
/// Maximum number of bytes of one write. It is large because each write may be synchronous.
const BUFFER: usize = 256 * 1024;
/// The model draws a position in the stack of recently requested files. The next file to request is chosen among the
/// file at this position and this many neighbours on either side.
const WINDOW: usize = 5;

/// The files of the simulated web site: their sizes, indexed by file number, and the seed of their content.
pub(super) struct SurgeSite {
    seed: u64,
    sizes: Vec<u64>,
}

impl SurgeSite {
    /// Draws a size for each of `files` files.
    pub(super) fn new(files: u32, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self { seed, sizes: (0..files).map(|_| size(&mut rng)).collect() }
    }

    /// Returns the size of a file in bytes.
    pub(super) fn size(&self, file: u32) -> u64 {
        self.sizes[file as usize]
    }

    /// Returns the size of all files in bytes.
    pub(super) fn total(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Returns the path of a file in the served folder.
    pub(super) fn path(file: u32) -> String {
        format!("{}/{file}", file / IN_FOLDER)
    }

    pub(super) fn content(&self, file: u32) -> SurgeFileContent {
        let seed = Rng::new(self.seed ^ (u64::from(file) + 1).rotate_left(24)).next_u64();
        SurgeFileContent { rng: Rng::new(seed), left: self.size(file), piece: vec![0; PIECE] }
    }

    pub(super) fn write(&self, folder: &Path, progress: &dyn Fn(f64)) -> Result<(), Error> {
        let failed = |path: &PathBuf| Error::system(format!("write {}", path.display()));
        for file in 0..self.sizes.len() as u32 {
            let path = folder.join(Self::path(file));
            let parent = path.parent().expect("it is in a folder").to_owned();
            if file % IN_FOLDER == 0 {
                fs::create_dir(&parent).map_err(failed(&parent))?;
            }
            let write = || {
                let mut to = BufWriter::with_capacity(BUFFER, File::create_new(&path)?);
                let mut content = self.content(file);
                while let Some(piece) = content.next_piece() {
                    to.write_all(piece)?;
                }
                to.flush()
            };
            write().map_err(failed(&path))?;
            progress(f64::from(file + 1) / self.sizes.len() as f64);
        }
        Ok(())
    }

    /// Returns the sequence of requests. By Zipf's law the file of rank r is requested 1/r times as often as the file
    /// of rank 1; the file of the last rank is requested once. Surge's stack model prefers files that were requested
    /// recently.
    pub(super) fn sequence(&self) -> Vec<u32> {
        let files = self.sizes.len();
        let mut rng = Rng::new(self.seed.rotate_left(7));
        // Each entry is a file and the number of its remaining requests. The file that was
        // requested last is at the end.
        let mut stack: Vec<(u32, u64)> =
            (0..files).map(|rank| (rank as u32, (files / (rank + 1)) as u64)).collect();
        // Shuffle, so that neither the rank nor the first stack position of a file depends on its
        // size.
        let mut names: Vec<u32> = (0..files as u32).collect();
        rng.shuffle(&mut names);
        stack.iter_mut().for_each(|(file, _)| *file = names[*file as usize]);
        rng.shuffle(&mut stack);
        let mut sequence = Vec::new();
        while !stack.is_empty() {
            let at = choose(&stack, STACK.draw(&mut rng), &mut rng);
            let (file, left) = stack.remove(at);
            sequence.push(file);
            if left > 1 {
                stack.push((file, left - 1));
            }
        }
        sequence
    }
}

/// Chooses the file to request next, and returns its index in `stack`. The file is near the given distance from the top
/// of the stack; its probability is proportional to the number of its remaining requests.
fn choose(stack: &[(u32, u64)], distance: f64, rng: &mut Rng) -> usize {
    let depth = (distance as usize).min(stack.len() - 1);
    let centre = stack.len() - 1 - depth;
    let (first, last) = (centre.saturating_sub(WINDOW), (centre + WINDOW).min(stack.len() - 1));
    let all: u64 = stack[first..=last].iter().map(|(_, left)| left).sum();
    let mut drawn = rng.below(all);
    for (at, (_, left)) in (first..).zip(&stack[first..=last]) {
        if drawn < *left {
            return at;
        }
        drawn -= left;
    }
    last
}

fn size(rng: &mut Rng) -> u64 {
    let size = if rng.chance(TAIL_PERCENT) { TAIL.draw(rng) } else { small(rng) };
    // The smallest size is 1: an empty file would have no content to compare.
    size.clamp(1.0, LARGEST) as u64
}

/// Draws a size below [`LARGE`] from [`BODY`]. Of the drawn numbers, 97 % are below; a number that is not is drawn
/// again.
fn small(rng: &mut Rng) -> f64 {
    loop {
        let size = BODY.draw(rng);
        if size < LARGE {
            return size;
        }
    }
}

/// A generator for the content of a file.
pub(super) struct SurgeFileContent {
    rng: Rng,
    left: u64,
    piece: Vec<u8>,
}

impl SurgeFileContent {
    /// Returns the next bytes of the file's content; `None` at the end of the file.
    pub(super) fn next_piece(&mut self) -> Option<&[u8]> {
        let length = self.left.min(PIECE as u64) as usize;
        self.left -= length as u64;
        let piece = &mut self.piece[..length];
        self.rng.fill(piece);
        (length > 0).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_thousand_files_are_a_gigabyte() {
        let sites: Vec<SurgeSite> = (0..6).map(|seed| SurgeSite::new(20_000, seed)).collect();
        for site in &sites {
            let total = site.total() as f64;
            assert!((0.95e9..1.25e9).contains(&total), "{total}");
            // The tail of the distribution has 7 % of the files. If sizes from the body were not limited, 3 % more of
            // the files would be large.
            let large = (0..20_000).filter(|file| site.size(*file) as f64 >= LARGE).count();
            assert!((1250..1550).contains(&large), "{large}");
        }
        let mean = sites.iter().map(SurgeSite::total).sum::<u64>() as f64 / (6.0 * 20_000.0);
        assert!((mean / MEAN as f64 - 1.0).abs() < 0.06, "{mean}");
    }

    #[test]
    fn files_are_asked_for_by_zipfs_law_and_again_soon() {
        let site = SurgeSite::new(1000, 2);
        let sequence = site.sequence();
        let mut counts = vec![0u64; 1000];
        sequence.iter().for_each(|file| counts[*file as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!([counts[0], counts[1], counts[9], counts[999]], [1000, 500, 100, 1]);
        // In a random order, only a minority of the requests would repeat one of the last ten
        // files. Here most requests do.
        let again = sequence.windows(11).filter(|ten| ten[..10].contains(&ten[10])).count();
        assert!(again * 2 > sequence.len(), "{again} of {}", sequence.len());
        assert_eq!(sequence, SurgeSite::new(1000, 2).sequence());
        assert_ne!(sequence, SurgeSite::new(1000, 3).sequence());
    }

    #[test]
    fn a_file_has_constant_content_that_differs_from_all_others() {
        let site = SurgeSite::new(10, 1);
        let first = |file: u32| site.content(file).next_piece().unwrap()[..1].to_vec();
        assert_eq!(first(3), first(3));
        let all = |file: u32| {
            let (mut content, mut all) = (site.content(file), Vec::new());
            while let Some(piece) = content.next_piece() {
                all.extend_from_slice(piece);
            }
            all
        };
        assert_eq!(all(3).len() as u64, site.size(3));
        assert_ne!(all(3)[..], all(4)[..]);
    }
}
