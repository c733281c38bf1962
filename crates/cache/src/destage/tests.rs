//! Tests of the last step of a destage round, which frees log space.

use journal::{ring::SegmentRing, segment::LogRecordKind};

use super::*;
use crate::{
    epoch::Epochs,
    slots::{sectors::WHOLE, table::SlotTable},
};

#[test]
fn once_every_slot_is_clean_no_older_version_is_kept_for_a_roll_back() {
    let (mut table, mut epochs) = (SlotTable::new(64), Epochs::by_flush(0));
    let mut ring = SegmentRing::new(2, 100, 9, 1, 2);
    let index = table.find_or_insert(70);
    for segment in 1..=2 {
        let block = ring.push(2) + 1;
        let place =
            LogAddress { segment, block, checksum: 0, mask: WHOLE, kind: LogRecordKind::Data };
        epochs.supersede(&mut table, index, place);
        if segment == 1 {
            epochs.seal(1);
        }
    }
    let mut state = CacheState::new((table, epochs), ring, None, 2);
    state.destage.round = Some(DestageRound::new(1));
    assert_eq!(state.epochs.replaced(index).map(|place| place.segment), Some(1));
    assert!(!state.clean_some(1, Instant::now()));
    assert!(state.destage.round.is_none() && !state.log.ring.reaches_back_to(1));
    assert_eq!(state.epochs.replaced(index), None);
}
