//! The calls on a volume that commands about blocks make: read, write, verify, write same.

use bytes::{Bytes, BytesMut};
use scsi::Sense;
use volume::{Data, Durability, Extent, Io, Lba, Volume};

use crate::{
    Completion, UnitReply,
    block::{claim::BlockRangeGuard, patience::StepRetryWait},
    primary::order::TaskTurn,
    sense::{FailedAccessKind, UnitCommandFailure},
};

/// The data that VERIFY compares the blocks with.
#[derive(Clone)]
pub(crate) enum Against {
    /// No data: the blocks only have to be readable.
    Nothing,
    /// Data of at most the length of the blocks. Blocks after its end are read, but not compared.
    Data(Data),
    /// The content that each block must have.
    Block(Bytes),
}

/// The version of the blocks that a command reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadVersion {
    Newest,
    /// The newest version, which must be stable before the command is answered (FUA).
    Stable,
    /// Read the blocks as they were at the last flush, since another nexus is writing an epoch that is still open.
    Flushed,
}

impl ReadVersion {
    /// Reads this version of the blocks. [`ReadVersion::Stable`] is read like [`ReadVersion::Newest`]: the
    /// caller has to flush first.
    pub(crate) fn of<'a>(self, volume: &'a dyn Volume, extent: Extent) -> Io<'a, Data> {
        match self {
            Self::Newest | Self::Stable => volume.read(extent),
            Self::Flushed => volume.extensions().read_flushed(extent),
        }
    }
}

/// READ. For [`ReadVersion::Stable`], flushes the volume first.
pub(crate) fn read<'a>(
    volume: &'a dyn Volume,
    extent: Extent,
    version: ReadVersion,
    turn: TaskTurn<'a>,
) -> UnitReply<'a> {
    if version == ReadVersion::Stable {
        return UnitReply::new(async move {
            if let Err(error) = volume.flush().await {
                return failed_flush(error).into();
            }
            read(volume, extent, ReadVersion::Newest, turn).await
        });
    }
    match version.of(volume, extent).now() {
        Ok(result) => UnitReply::done(completion_of_read(result)),
        Err(read) => UnitReply::new(async move {
            let _turn = turn;
            completion_of_read(read.await)
        }),
    }
}

fn completion_of_read(result: Result<Data, volume::Error>) -> Completion {
    match result {
        Ok(data) => Completion::good(data),
        Err(error) => UnitCommandFailure::new(&error, FailedAccessKind::Read).into(),
    }
}

/// Writes whole blocks, at least one, for WRITE. `taken`: the length in bytes that the CDB asked for.
pub(crate) fn write<'a>(
    volume: &'a dyn Volume,
    lba: Lba,
    data: Data,
    durability: Durability,
    taken: u32,
    held: (TaskTurn<'a>, BlockRangeGuard<'a>),
) -> UnitReply<'a> {
    let good = move || Completion { data_out_length: Some(taken), ..Completion::good(Data::new()) };
    let first = match volume.write(lba, data.clone(), durability).now() {
        Ok(Ok(())) => return UnitReply::done(good()),
        Ok(failed) => Io::done(failed),
        Err(first) => first,
    };
    UnitReply::new(async move {
        let _held = held;
        let mut written = first.await.map_err(failed_write);
        if written == Err(UnitCommandFailure::Unanswered) {
            // The volume may have performed the write, although it did not answer. So repeat the write and do not
            // answer BUSY: an initiator reads BUSY as "nothing was written".
            let write = || async {
                volume.write(lba, data.clone(), durability).await.map_err(failed_write)
            };
            written = StepRetryWait::begun().step(lba.0, write).await;
        }
        match written {
            Ok(()) => good(),
            Err(failure) => failure.into(),
        }
    })
}

/// Writes whole blocks, at least one, and then reads and compares them (WRITE AND VERIFY).
pub(crate) async fn write_and_verify(
    volume: &dyn Volume,
    lba: Lba,
    data: Data,
    compare: bool,
) -> Result<(), UnitCommandFailure> {
    let blocks = data.len() / volume.geometry().block_size as usize;
    let extent = Extent { lba, blocks: blocks as u32 };
    let against = if compare { Against::Data(data.clone()) } else { Against::Nothing };
    let mut patience = StepRetryWait::default();
    let write = || async {
        volume.write(lba, data.clone(), Durability::Stable).await.map_err(failed_write)
    };
    patience.step(lba.0, write).await?;
    patience.step(lba.0, || verify(volume, extent, against.clone(), ReadVersion::Newest)).await
}

/// Reads the blocks a piece at a time and compares each piece with `against`.
pub(crate) async fn verify(
    volume: &dyn Volume,
    extent: Extent,
    against: Against,
    version: ReadVersion,
) -> Result<(), UnitCommandFailure> {
    let block_size = volume.geometry().block_size as usize;
    let pattern = match &against {
        Against::Block(block) => repeated(block, PIECE),
        _ => Data::new(),
    };
    let mut done = 0;
    for piece in pieces(extent, block_size) {
        let found = version.of(volume, piece).await;
        let found =
            found.map_err(|error| UnitCommandFailure::new(&error, FailedAccessKind::Read))?;
        let expected = match &against {
            Against::Nothing => Data::new(),
            Against::Data(data) => {
                let start = done.min(data.len());
                data.slice(start, found.len().min(data.len() - start))
            }
            Against::Block(_) => pattern.slice(0, found.len()),
        };
        if let Some(offset) = first_difference(&expected, &found) {
            let lba = piece.lba.0 + (offset / block_size) as u64;
            return Err(Sense::MISCOMPARE_DURING_VERIFY.with_information(lba).into());
        }
        done += found.len();
    }
    Ok(())
}

/// Writes `block` into every block of `extent`, a piece at a time.
pub(crate) async fn write_same(
    volume: &dyn Volume,
    extent: Extent,
    block: Bytes,
    durability: Durability,
) -> Result<(), UnitCommandFailure> {
    let block_size = block.len();
    let pattern = repeated(&block, (extent.blocks as usize * block_size).min(PIECE));
    let mut patience = StepRetryWait::default();
    for piece in pieces(extent, block_size) {
        let write = || async {
            let data = pattern.slice(0, piece.blocks as usize * block_size);
            volume.write(piece.lba, data, durability).await.map_err(failed_write)
        };
        patience.step(piece.lba.0, write).await?;
    }
    Ok(())
}

pub(crate) fn failed_write(error: volume::Error) -> UnitCommandFailure {
    UnitCommandFailure::new(&error, FailedAccessKind::Write)
}

pub(crate) fn failed_flush(error: volume::Error) -> UnitCommandFailure {
    UnitCommandFailure::new(&error, FailedAccessKind::Flush)
}

/// Returns `length` bytes that repeat `block`. The parts of the result share one buffer of at most 64 KiB.
pub(crate) fn repeated(block: &Bytes, length: usize) -> Data {
    let run_length = RUN.min(length.next_multiple_of(block.len()));
    let mut run = BytesMut::with_capacity(run_length);
    while run.len() < run_length {
        run.extend_from_slice(block);
    }
    let run = run.freeze();
    let mut data = Data::new();
    while data.len() < length {
        data.push(run.slice(..run.len().min(length - data.len())));
    }
    data
}

/// Splits `extent` into pieces of at most [`PIECE`] bytes.
pub(crate) fn pieces(extent: Extent, block_size: usize) -> impl Iterator<Item = Extent> {
    let step = (PIECE / block_size) as u32;
    (0..extent.blocks.div_ceil(step)).map(move |index| Extent {
        lba: Lba(extent.lba.0 + u64::from(index * step)),
        blocks: step.min(extent.blocks - index * step),
    })
}

/// Returns the offset of the first byte of `a` that differs from `b`. `b` may be longer: the bytes after the
/// end of `a` are ignored.
pub(crate) fn first_difference(a: &Data, b: &Data) -> Option<usize> {
    let mut rest = b.parts().iter().map(|part| &part[..]);
    let mut other: &[u8] = &[];
    let mut at = 0;
    for part in a.parts() {
        let mut part = &part[..];
        while !part.is_empty() {
            if other.is_empty() {
                other = rest.next()?;
            }
            let length = part.len().min(other.len());
            if part[..length] != other[..length] {
                let same = part.iter().zip(other).take_while(|(x, y)| x == y).count();
                return Some(at + same);
            }
            (part, other, at) = (&part[length..], &other[length..], at + length);
        }
    }
    None
}

/// Bytes that VERIFY and WRITE SAME hold in memory at once. This bounds memory for commands of any length,
/// and lets other commands run between the pieces.
pub(crate) const PIECE: usize = 1 << 20;
/// Bytes of the buffer that holds a repeated pattern; divisible by every block size.
const RUN: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn data(parts: &[&'static str]) -> Data {
        parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect()
    }

    #[test]
    fn the_first_difference_is_found_across_pieces() {
        assert_eq!(first_difference(&data(&["abc", "def"]), &data(&["a", "bcde", "f"])), None);
        assert_eq!(first_difference(&data(&["abc", "dXf"]), &data(&["ab", "cdef"])), Some(4));
        assert_eq!(first_difference(&data(&["Xbc"]), &data(&["a", "bc"])), Some(0));
        assert_eq!(first_difference(&data(&["ab"]), &data(&["abc"])), None);
    }

    #[test]
    fn a_pattern_of_any_length_repeats_its_block() {
        let block = Bytes::from((0..=255).cycle().take(512).collect::<Vec<u8>>());
        for length in [512, 1024, RUN, RUN + 512, 3 * RUN] {
            let pattern = repeated(&block, length).into_bytes();
            assert_eq!(pattern.len(), length);
            assert!(pattern.chunks_exact(512).all(|chunk| chunk == block));
        }
    }

    #[test]
    fn pieces_cover_the_extent_once() {
        let extent = Extent { lba: Lba(10), blocks: 5000 };
        let all: Vec<_> = pieces(extent, 512).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[2], Extent { lba: Lba(10 + 4096), blocks: 5000 - 4096 });
    }
}
