//! The methods of SANITIZE, and the pass of each over the blocks.

use std::time::Duration;

use bytes::Bytes;
use scsi::Overwrite;
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::block::access::repeated;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Method {
    /// Writes a pattern to every block, in one or several passes.
    Overwrite(Overwrite),
    /// Overwrites all mapped blocks with zeros, and then unmaps them.
    BlockErase,
    /// Destroys the key that all blocks are encrypted with.
    CryptographicErase,
}

impl Method {
    /// Returns the number of steps of the work, for the progress report.
    pub(super) fn steps(&self, volume: &Stack) -> u64 {
        let pieces = volume.geometry().bytes().div_ceil(PIECE);
        match self {
            Self::Overwrite(list) => pieces * u64::from(list.passes),
            Self::BlockErase => 2 * pieces,
            Self::CryptographicErase => 1,
        }
    }

    /// Performs the work from the first block on, and calls `step` after each step.
    pub(super) async fn run(&self, volume: &Stack, step: impl Fn()) -> Result<(), Error> {
        match self {
            Self::CryptographicErase => {
                stubborn(|| volume.extensions().erase_key()).await?;
                step();
            }
            Self::Overwrite(list) => {
                for pass in 0..list.passes {
                    let block = block_of(list, pass, volume.geometry().block_size as usize);
                    for extent in pieces(volume) {
                        write(volume, extent, &block).await?;
                        step();
                    }
                    // Make each pass stable before the next one overwrites its pattern.
                    stubborn(|| volume.flush()).await?;
                }
            }
            Self::BlockErase => {
                let zeros = Bytes::from(vec![0; volume.geometry().block_size as usize]);
                for extent in pieces(volume) {
                    erase(volume, extent, &zeros).await?;
                    step();
                }
                stubborn(|| volume.flush()).await?;
                for extent in pieces(volume) {
                    stubborn(|| volume.discard(extent)).await?;
                    step();
                    tokio::task::yield_now().await;
                }
                stubborn(|| volume.flush()).await?;
            }
        }
        Ok(())
    }
}

/// Writes zeros over the mapped blocks before they are unmapped: a discard alone would leave the data on the
/// medium below.
async fn erase(volume: &Stack, extent: Extent, zeros: &Bytes) -> Result<(), Error> {
    let mut rest = extent;
    while rest.blocks > 0 {
        let allocation = stubborn(|| volume.extensions().allocation(rest)).await?;
        for run in allocation.runs() {
            if run.mapped {
                write(volume, Extent { lba: rest.lba, blocks: run.blocks }, zeros).await?;
            }
            rest = Extent {
                lba: Lba(rest.lba.0 + u64::from(run.blocks)),
                blocks: rest.blocks - run.blocks,
            };
        }
    }
    Ok(())
}

async fn write(volume: &Stack, extent: Extent, block: &Bytes) -> Result<(), Error> {
    let data: Data = repeated(block, extent.blocks as usize * block.len());
    stubborn(|| volume.write(extent.lba, data.clone(), Durability::Volatile)).await?;
    // Yield to other tasks, since a volume in memory completes every call without waiting.
    tokio::task::yield_now().await;
    Ok(())
}

/// Repeats a call that fails because something is unreachable or full, as long as a host would retry. If the
/// call still fails then, so does the SANITIZE, and the unit stays unusable until another SANITIZE succeeds.
async fn stubborn<'a, T>(call: impl Fn() -> volume::Io<'a, T>) -> Result<T, Error> {
    for _ in 0..TRIES {
        match call().await {
            Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
            result => return result,
        }
    }
    call().await
}

/// Returns one block of a pass: the repeated pattern, inverted in every second pass if the initiator asked
/// for that.
fn block_of(list: &Overwrite, pass: u8, block_size: usize) -> Bytes {
    let invert = if list.invert && pass % 2 == 1 { 0xff } else { 0 };
    list.pattern.iter().cycle().take(block_size).map(|byte| byte ^ invert).collect()
}

/// Splits the whole volume into pieces of [`PIECE`] bytes.
fn pieces(volume: &Stack) -> impl Iterator<Item = Extent> + use<> {
    let geometry = volume.geometry();
    let step = PIECE / u64::from(geometry.block_size);
    (0..geometry.blocks.div_ceil(step)).map(move |index| Extent {
        lba: Lba(index * step),
        blocks: step.min(geometry.blocks - index * step) as u32,
    })
}

/// Bytes that one step of a SANITIZE writes: as many as one step of VERIFY and WRITE SAME.
const PIECE: u64 = 1 << 20;
/// Number of tries of a failing call: one minute in total, twice the SCSI time-out of Linux.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_begins_with_the_pattern_and_every_second_pass_is_inverted() {
        let list = Overwrite { invert: true, passes: 2, pattern: vec![1, 2, 3] };
        assert_eq!(block_of(&list, 0, 512)[..5], [1, 2, 3, 1, 2]);
        assert_eq!(block_of(&list, 1, 512)[..4], [0xfe, 0xfd, 0xfc, 0xfe]);
    }
}
