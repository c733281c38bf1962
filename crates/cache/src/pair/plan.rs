//! Decides from the labels of both legs how a member may try to open the log. The storage node makes the
//! final decision when it grants or refuses the claim.

use volume::HalfLabel;

/// The legs of the mirrored log with which the log is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PairOpeningPlan {
    /// Open the log with both legs. They differ at most by writes that were never acknowledged.
    Both,
    /// Only the local leg. The partner's leg is filled from it after the node has granted the claim of the
    /// local leg.
    Here,
}

/// Decides how to open the log. `theirs` is `None` while the partner does not answer. An error says why the
/// log must not be opened here.
pub(super) fn plan(
    here: Option<HalfLabel>,
    theirs: Option<Option<HalfLabel>>,
) -> Result<PairOpeningPlan, String> {
    let whole = |label: Option<HalfLabel>| label.filter(|label| label.epoch > 0);
    let Some(ours) = whole(here) else {
        return match (here, theirs) {
            (None, Some(None)) => Ok(PairOpeningPlan::Both),
            (_, Some(Some(theirs))) if theirs.epoch > 0 => {
                Err("this leg of the log is not filled yet: the partner has the log".into())
            }
            (_, None) => {
                Err("this leg of the log is not filled, and the partner does not answer".into())
            }
            (_, Some(_)) => Err("neither leg of the log is complete".into()),
        };
    };
    let alone = match ours.has_lost {
        false => Ok(PairOpeningPlan::Here),
        true => Err(LACKS_WRITES.to_owned()),
    };
    let Some(theirs) = whole(theirs.flatten()) else { return alone };
    if theirs.mirror != ours.mirror {
        return Err("the partner's leg belongs to another log".into());
    }
    if ours.epoch == theirs.epoch && !ours.alone && !theirs.alone {
        return Ok(PairOpeningPlan::Both);
    }
    if theirs.alone && !ours.alone && theirs.epoch > ours.epoch {
        return Err(format!(
            "this leg of the log is of epoch {}, and the partner continued alone in epoch {}: \
             this leg is filled when the partner serves the unit",
            ours.epoch, theirs.epoch
        ));
    }
    alone
}

const LACKS_WRITES: &str = "this leg of the log lacks writes that were in its NVRAM: it can only \
                            be opened together with the partner's leg, or be filled from it";

#[cfg(test)]
mod tests {
    use super::*;

    fn label(epoch: u64, alone: bool) -> Option<HalfLabel> {
        Some(HalfLabel { mirror: [1; 16], epoch, alone, has_lost: false })
    }

    #[test]
    fn a_new_pair_needs_both_legs() {
        assert_eq!(plan(None, Some(None)), Ok(PairOpeningPlan::Both));
        assert!(plan(None, None).is_err());
        assert!(plan(None, Some(label(3, false))).is_err());
        // This leg was still being filled when the partner's leg was replaced. No complete leg is left.
        assert!(plan(label(0, false), Some(None)).is_err());
        assert!(plan(label(0, false), Some(label(0, false))).is_err());
    }

    #[test]
    fn legs_that_agree_are_both_used() {
        assert_eq!(plan(label(3, false), Some(label(3, false))), Ok(PairOpeningPlan::Both));
    }

    #[test]
    fn a_leg_that_may_have_every_write_is_opened_alone_if_the_node_agrees() {
        for theirs in [None, Some(None), Some(label(0, false)), Some(label(2, false))] {
            for alone in [false, true] {
                assert_eq!(plan(label(3, alone), theirs), Ok(PairOpeningPlan::Here), "{theirs:?}");
            }
        }
        assert_eq!(plan(label(4, true), Some(label(4, true))), Ok(PairOpeningPlan::Here));
        // This leg was filled completely, but the link broke before the partner's leg had recorded that.
        assert_eq!(plan(label(4, false), Some(label(3, true))), Ok(PairOpeningPlan::Here));
        assert_eq!(plan(label(3, true), Some(label(4, false))), Ok(PairOpeningPlan::Here));
    }

    #[test]
    fn a_stale_leg_is_refused_and_both_epochs_are_named() {
        let refused = plan(label(3, false), Some(label(4, true))).unwrap_err();
        assert!(refused.contains("epoch 3") && refused.contains("epoch 4"), "{refused}");
        let other = label(3, false).map(|label| HalfLabel { mirror: [2; 16], ..label });
        assert!(plan(label(3, false), Some(other)).is_err());
    }

    #[test]
    fn a_leg_that_lacks_writes_is_opened_only_together_with_the_other_leg() {
        let lacking =
            |epoch, alone| label(epoch, alone).map(|label| HalfLabel { has_lost: true, ..label });
        assert_eq!(plan(lacking(3, false), Some(label(3, false))), Ok(PairOpeningPlan::Both));
        assert_eq!(plan(label(3, false), Some(lacking(3, false))), Ok(PairOpeningPlan::Both));
        assert_eq!(plan(lacking(3, false), Some(lacking(3, false))), Ok(PairOpeningPlan::Both));
        for theirs in [None, Some(None), Some(label(0, false)), Some(label(2, false))] {
            for alone in [false, true] {
                assert!(plan(lacking(3, alone), theirs).is_err(), "{theirs:?}");
            }
        }
        assert_eq!(plan(label(3, false), None), Ok(PairOpeningPlan::Here));
    }
}
