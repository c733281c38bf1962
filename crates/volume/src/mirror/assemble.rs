//! Decides from the labels of two legs which leg has the newest content, and what has to be done before the mirror is
//! used.

use super::{
    MirrorError,
    label::{LABEL_BYTES, MirrorLabel, MirrorLabelError},
};
use crate::{Durability, Error, Extent, Lba, Stack};

/// Bytes at the beginning of a leg for its two labels; the blocks of the mirror follow.
pub(super) const RESERVED_BYTES: u64 = 2 * LABEL_BYTES as u64;

/// The result of reading the labels of a leg.
#[derive(Clone, Debug)]
pub(super) enum MirrorLabelScan {
    Absent,
    /// The blocks of the leg's labels and the block behind them are zeros, so it is a new disk.
    Blank,
    Label(MirrorLabel),
}

impl MirrorLabelScan {
    /// Returns true if the leg has a label that does not mark it as incomplete: it may hold all blocks of a mirror.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Label(label) if label.epoch > 0)
    }

    /// Returns true if the leg's label records that the leg has lost acknowledged writes.
    pub fn has_lost(&self) -> bool {
        matches!(self, Self::Label(label) if label.has_lost)
    }

    /// Returns the number of times that the label was written.
    pub fn count(&self) -> u64 {
        if let Self::Label(label) = self { label.count } else { 0 }
    }
}

/// The decision which legs of a mirror are used, and what has to be done first.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum MirrorAssemblyPlan {
    /// Both legs are blank: create a new mirror on them.
    New,
    /// Both legs are current, but may differ in the regions `dirty`, which were being written at a crash.
    Both { label: MirrorLabel, dirty: Vec<u32> },
    /// The leg with the index `right` has the newest content of all blocks; the other leg is missing or has to be
    /// filled from it.
    One { right: usize, label: MirrorLabel },
}

/// Reads the newer valid label of a leg.
pub(super) async fn look(index: usize, half: &Stack) -> Result<MirrorLabelScan, MirrorError> {
    let failed = |error| MirrorError::Io { half: index, error };
    let geometry = half.geometry();
    let blocks = (RESERVED_BYTES / u64::from(geometry.block_size)) as u32;
    // Read the block behind the labels, too: a leg whose labels are zeros, but which has data behind them, is not a new
    // disk.
    if geometry.blocks <= u64::from(blocks) {
        return Err(MirrorError::TooSmall { half: index });
    }
    let read = half.read(Extent { lba: Lba(0), blocks: blocks + 1 }).await;
    let bytes = read.map_err(failed)?.into_bytes();
    if bytes.len() <= 2 * LABEL_BYTES {
        return Err(failed(Error::Device("the read returned fewer bytes than requested".into())));
    }
    let copies = [
        MirrorLabel::decode(&bytes[..LABEL_BYTES]),
        MirrorLabel::decode(&bytes[LABEL_BYTES..][..LABEL_BYTES]),
    ];
    for copy in &copies {
        if let Err(MirrorLabelError::Version(version)) = copy {
            return Err(MirrorError::Version { half: index, version: *version });
        }
    }
    let blank = bytes.iter().all(|&byte| byte == 0);
    match copies.into_iter().flatten().max_by_key(|label| label.count) {
        Some(label) => Ok(MirrorLabelScan::Label(label)),
        None if blank => Ok(MirrorLabelScan::Blank),
        None => {
            let begins = bytes[..8].try_into().expect("eight bytes");
            Err(MirrorError::NotAHalf { half: index, begins, other_is_whole: false })
        }
    }
}

/// Writes both copies of the label of a leg that no mirror uses at the moment.
pub(super) async fn write_both_copies(half: &Stack, label: MirrorLabel) -> Result<(), Error> {
    let blocks = LABEL_BYTES as u64 / u64::from(half.geometry().block_size);
    for count in label.count + 1..label.count + 3 {
        let copy = MirrorLabel { count, ..label.clone() }.encode();
        half.write(Lba(count % 2 * blocks), copy.into(), Durability::Stable).await?;
    }
    half.flush().await
}

/// Makes the decision. With `degraded`, a single leg is used although the other one may have newer data.
pub(super) fn decide(
    found: [MirrorLabelScan; 2],
    degraded: bool,
) -> Result<MirrorAssemblyPlan, MirrorError> {
    // A leg with epoch 0 was being filled and is as good as blank.
    let found = found.map(|found| match found {
        MirrorLabelScan::Label(label) if label.epoch == 0 => MirrorLabelScan::Blank,
        found => found,
    });
    let [first, second] = match found {
        [MirrorLabelScan::Label(first), MirrorLabelScan::Label(second)] => [first, second],
        [MirrorLabelScan::Blank, MirrorLabelScan::Blank] => return Ok(MirrorAssemblyPlan::New),
        [MirrorLabelScan::Label(label), _] => return alone(0, label, degraded),
        [_, MirrorLabelScan::Label(label)] => return alone(1, label, degraded),
        [MirrorLabelScan::Absent, _] => return Err(MirrorError::Absent { half: 0, epoch: 0 }),
        [_, MirrorLabelScan::Absent] => return Err(MirrorError::Absent { half: 1, epoch: 0 }),
    };
    if first.mirror != second.mirror {
        return Err(MirrorError::Strangers);
    }
    if first.alone && second.alone {
        return Err(MirrorError::Split { epochs: [first.epoch, second.epoch] });
    }
    if first.epoch == second.epoch && !first.alone && !second.alone {
        let mut dirty = [first.dirty.as_slice(), &second.dirty].concat();
        dirty.sort_unstable();
        dirty.dedup();
        // A crash during a resize leaves two sizes. No block beyond the smaller one is in use.
        let blocks = first.blocks.min(second.blocks);
        return Ok(MirrorAssemblyPlan::Both { label: MirrorLabel { blocks, ..first }, dirty });
    }
    let right = usize::from((second.epoch, second.alone) > (first.epoch, first.alone));
    let label = if right == 0 { first } else { second };
    Ok(MirrorAssemblyPlan::One { right, label })
}

fn alone(
    right: usize,
    label: MirrorLabel,
    degraded: bool,
) -> Result<MirrorAssemblyPlan, MirrorError> {
    if label.alone || degraded {
        Ok(MirrorAssemblyPlan::One { right, label })
    } else {
        Err(MirrorError::Absent { half: 1 - right, epoch: label.epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(epoch: u64, alone: bool) -> MirrorLabel {
        let dirty = vec![epoch as u32];
        let mirror = [1; 16];
        MirrorLabel {
            mirror,
            blocks: 100,
            count: 5,
            epoch,
            alone,
            has_lost: false,
            number: 0,
            dirty,
        }
    }

    fn decide_on(
        first: MirrorLabel,
        second: MirrorLabel,
    ) -> Result<MirrorAssemblyPlan, MirrorError> {
        decide([MirrorLabelScan::Label(first), MirrorLabelScan::Label(second)], false)
    }

    #[test]
    fn legs_of_one_epoch_differ_only_in_dirty_regions() {
        let other = MirrorLabel { dirty: vec![1, 4], ..label(4, false) };
        let Ok(MirrorAssemblyPlan::Both { dirty, .. }) = decide_on(label(4, false), other) else {
            panic!("another plan")
        };
        assert_eq!(dirty, [1, 4]);
    }

    #[test]
    fn of_two_sizes_the_smaller_one_is_used_until_one_leg_was_used_alone() {
        let larger = MirrorLabel { blocks: 200, ..label(4, false) };
        for (first, second) in [(&larger, &label(4, false)), (&label(4, false), &larger)] {
            let plan = decide_on(first.clone(), second.clone());
            assert!(
                matches!(plan, Ok(MirrorAssemblyPlan::Both { label, .. }) if label.blocks == 100)
            );
        }
        let alone = MirrorLabel { blocks: 200, ..label(5, true) };
        let plan = decide_on(label(4, false), alone);
        assert!(
            matches!(plan, Ok(MirrorAssemblyPlan::One { right: 1, label }) if label.blocks == 200)
        );
    }

    #[test]
    fn the_leg_that_was_used_last_is_the_right_one() {
        for (first, second, right) in [
            (label(5, true), label(4, false), 0),
            (label(4, false), label(5, true), 1),
            (label(5, true), label(6, false), 1),
            (label(0, false), label(9, true), 1),
        ] {
            let plan = decide_on(first, second).expect("one of them");
            assert!(
                matches!(plan, MirrorAssemblyPlan::One { right: found, .. } if found == right),
                "{plan:?}"
            );
        }
    }

    #[test]
    fn legs_that_were_both_used_alone_are_refused_with_both_epochs() {
        let error = decide_on(label(5, true), label(7, true)).expect_err("split");
        assert!(matches!(error, MirrorError::Split { epochs: [5, 7] }));
        let text = error.to_string();
        assert!(text.contains('5') && text.contains('7'), "{text}");
    }

    #[test]
    fn a_single_leg_is_used_only_if_its_label_or_the_caller_permits_it() {
        for other in [MirrorLabelScan::Absent, MirrorLabelScan::Blank] {
            let of = |alone, degraded| {
                decide([other.clone(), MirrorLabelScan::Label(label(3, alone))], degraded)
            };
            assert!(matches!(of(true, false), Ok(MirrorAssemblyPlan::One { right: 1, .. })));
            assert!(matches!(of(false, false), Err(MirrorError::Absent { half: 0, epoch: 3 })));
            assert!(matches!(of(false, true), Ok(MirrorAssemblyPlan::One { right: 1, .. })));
        }
        assert!(decide([MirrorLabelScan::Absent, MirrorLabelScan::Blank], true).is_err());
        assert!(matches!(
            decide([MirrorLabelScan::Blank, MirrorLabelScan::Blank], false),
            Ok(MirrorAssemblyPlan::New)
        ));
    }

    #[test]
    fn legs_of_two_mirrors_are_refused() {
        let other = MirrorLabel { mirror: [2; 16], ..label(4, false) };
        assert!(matches!(decide_on(label(4, false), other), Err(MirrorError::Strangers)));
    }
}
