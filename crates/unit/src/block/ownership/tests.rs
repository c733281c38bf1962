//! Tests of the rules by which claims are granted.

use super::*;

fn owner(generation: u64, opening: u64) -> ClaimOwner {
    ClaimOwner {
        name: "iqn.a:a".into(),
        instance: [1; 16],
        generation,
        opening,
        is_held: true,
        is_dirty: true,
        is_dropped: false,
        confirmed: 0,
    }
}

fn asked(generation: u64, opening: u64, granted: u64, predecessors: &[u64]) -> ClaimParameters {
    ClaimParameters {
        owner: "iqn.a:a".into(),
        instance: [1; 16],
        generation,
        opening,
        granted,
        predecessors: predecessors.to_vec(),
        writes_back: true,
        is_dirty: true,
        accept_loss: false,
        takes_over: false,
        shares: false,
        confirmed: Some(0),
    }
}

fn accepting(asked: &ClaimParameters) -> ClaimParameters {
    ClaimParameters { accept_loss: true, ..asked.clone() }
}

struct Nothing;

impl UnitStore for Nothing {
    fn load(&self, _: UnitRecordKind) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn save(&self, _: UnitRecordKind, _: Vec<u8>) -> crate::store::Saving<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The owner may change blocks while another session reads them; the data read is then of two epochs.
#[test]
fn a_read_of_another_session_fails_if_the_owner_changes_blocks_before_or_during_it() {
    const OWNER: u64 = 1;
    let ownership = Ownership::load(Arc::new(Nothing)).unwrap();
    ownership.change(|known, holder| {
        known.last = Some(owner(1, 10));
        *holder = OWNER;
    });
    let begun = ownership.begin_read().unwrap();
    assert_eq!(ownership.end_read(begun), Ok(()));
    ownership.note_change(OWNER);
    assert_eq!(ownership.end_read(begun), Err(UnitCommandFailure::Busy));
    assert_eq!(ownership.begin_read(), Err(UnitCommandFailure::Busy), "half an epoch");
    ownership.note_flush(OWNER, ownership.changes());
    assert!(ownership.begin_read().is_ok());
}

#[test]
fn the_first_claim_is_granted_and_its_successors_are() {
    assert_eq!(admit(None, &asked(2, 20, 0, &[]), false), Ok(()));
    let last = owner(2, 20);
    assert_eq!(admit(Some(&last), &asked(2, 20, 2, &[]), true), Ok(()), "it comes back");
    assert_eq!(admit(Some(&last), &asked(3, 30, 2, &[20]), false), Ok(()));
    // The gateway lost its connection after the claim was granted and before its log recorded that.
    assert_eq!(admit(Some(&last), &asked(3, 30, 1, &[10, 20]), false), Ok(()));
}

#[test]
fn of_two_copies_of_a_log_the_second_is_fenced_whatever_its_generation() {
    let last = owner(3, 30);
    for generation in [3, 4, 99] {
        let copy = asked(generation, 31, 2, &[20]);
        assert_eq!(admit(Some(&last), &copy, false), Err(Sense::CLAIM_FENCED));
        // The second copy of the log is refused even if it claims with `accept_loss`.
        assert_eq!(admit(Some(&last), &accepting(&copy), false), Err(Sense::CLAIM_FENCED));
    }
    let given_back = ClaimOwner { is_held: false, is_dirty: false, ..last };
    let copy = asked(4, 31, 2, &[20]);
    assert_eq!(admit(Some(&given_back), &copy, false), Err(Sense::CLAIM_FENCED));
}

#[test]
fn a_connected_owner_is_fenced_only_by_an_explicit_takeover() {
    let last = owner(2, 20);
    let next = asked(3, 30, 2, &[20]);
    let refused = Err(Sense::CLAIM_OWNER_IS_PRESENT);
    assert_eq!(admit(Some(&last), &next, true), refused);
    assert_eq!(admit(Some(&last), &accepting(&next), true), refused);
    let adopts = ClaimParameters { takes_over: true, ..next };
    assert_eq!(admit(Some(&last), &adopts, true), Ok(()));
}

#[test]
fn a_unit_restored_from_an_older_copy_is_detected() {
    let later = asked(8, 80, 7, &[70]);
    for last in [None, Some(&owner(5, 50))] {
        assert_eq!(admit(last, &later, false), Err(Sense::CLAIM_WENT_BACK));
        assert_eq!(admit(last, &accepting(&later), false), Ok(()));
    }
    // The session of opening 80 comes back; its claim was granted after that of opening 70.
    let again = asked(8, 80, 8, &[70]);
    for last in [None, Some(&owner(7, 70))] {
        assert_eq!(admit(last, &again, false), Err(Sense::CLAIM_WENT_BACK));
        assert_eq!(admit(last, &accepting(&again), false), Ok(()));
    }
    assert_eq!(admit(Some(&owner(8, 80)), &again, false), Ok(()));
}

#[test]
fn another_log_is_refused_until_the_claim_is_released() {
    let other = ClaimParameters { instance: [2; 16], is_dirty: false, ..asked(2, 9, 0, &[]) };
    let held = owner(3, 30);
    let refused = Err(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
    assert_eq!(admit(Some(&held), &other, false), refused);
    assert_eq!(admit(Some(&held), &accepting(&other), false), refused);
    // A clean log holds nothing that could be lost, so its claim ends with its session.
    let clean = ClaimOwner { is_dirty: false, ..owner(3, 30) };
    assert_eq!(admit(Some(&clean), &other, true), refused);
    assert_eq!(admit(Some(&clean), &other, false), Ok(()));
    let free = ClaimOwner { is_held: false, is_dirty: false, ..owner(3, 30) };
    assert_eq!(admit(Some(&free), &other, false), Ok(()));
    let dirty = ClaimParameters { is_dirty: true, ..other };
    assert_eq!(admit(Some(&free), &dirty, false), Err(Sense::CLAIM_OUT_OF_DATE));
    assert_eq!(admit(Some(&free), &accepting(&dirty), false), Ok(()));
}

#[test]
fn a_claim_that_was_dropped_is_granted_again_only_with_accept_loss() {
    let dropped = ClaimOwner { is_held: false, is_dropped: true, ..owner(3, 30) };
    let same = asked(3, 30, 2, &[20]);
    assert_eq!(admit(Some(&dropped), &same, false), Err(Sense::CLAIM_DROPPED));
    let next = asked(4, 40, 3, &[30]);
    assert_eq!(admit(Some(&dropped), &next, false), Err(Sense::CLAIM_DROPPED));
    assert_eq!(admit(Some(&dropped), &accepting(&next), false), Ok(()));
    // With accept_loss, an older copy of the log is granted the claim, too: the newer log may be lost.
    let copy = asked(3, 31, 2, &[20]);
    assert_eq!(admit(Some(&dropped), &copy, false), Err(Sense::CLAIM_DROPPED));
    assert_eq!(admit(Some(&dropped), &accepting(&copy), false), Ok(()));
}

#[test]
fn the_record_is_encoded_byte_by_byte_and_decoded_again() {
    let record = owner(0x0201, 0x0403).to_record();
    assert_eq!(record[..4], [1, 3, 7, 0]);
    assert_eq!(record[4..20], [1; 16]);
    assert_eq!(record[20..36], [1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]);
    assert_eq!(record[36..], *b"iqn.a:a");
    assert_eq!(ClaimOwner::from_record(&record), Some(owner(0x0201, 0x0403)));
    for length in 0..record.len() {
        assert_eq!(ClaimOwner::from_record(&record[..length]), None, "{length}");
    }
    for (at, byte) in [(0, 3), (1, 8), (2, 8), (3, 1), (36, 0x1b)] {
        let mut bytes = record.clone();
        bytes[at] = byte;
        assert_eq!(ClaimOwner::from_record(&bytes), None, "{at}");
    }
    let confirmed = ClaimOwner { confirmed: 0x0605, ..owner(0x0201, 0x0403) };
    let record = confirmed.to_record();
    assert_eq!((record[0], &record[36..44]), (2, &[5, 6, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(record[44..], *b"iqn.a:a");
    assert_eq!(ClaimOwner::from_record(&record), Some(confirmed));
    for length in 0..record.len() {
        assert_eq!(ClaimOwner::from_record(&record[..length]), None, "{length}");
    }
}

/// A copy of log and NVRAM that was made within one opening passes every check of openings, so only the confirmed
/// number can show that it is old.
#[test]
fn a_log_that_ends_before_its_confirmed_number_is_refused() {
    let last = ClaimOwner { confirmed: 100, ..owner(2, 20) };
    let next = |confirmed| ClaimParameters { confirmed, ..asked(3, 30, 2, &[20]) };
    let behind = Err(Sense::CLAIM_BEHIND.with_information(100));
    assert_eq!(admit(Some(&last), &next(Some(100)), false), Ok(()));
    assert_eq!(admit(Some(&last), &next(Some(99)), false), behind);
    assert_eq!(admit(Some(&last), &accepting(&next(Some(99))), false), Ok(()));
    let given_back = ClaimOwner { is_held: false, is_dirty: false, ..last.clone() };
    assert_eq!(admit(Some(&given_back), &next(Some(99)), false), behind);
    // A gateway of an older version does not send its newest confirmed write: the unit keeps the number on record.
    assert_eq!(admit(Some(&last), &next(None), false), Ok(()));
    assert_eq!(ClaimOwner::granted(Some(&last), next(None)).confirmed, 100);
    // Another log has numbers of its own. After accept_loss, the unit takes the log's lower number.
    let other = ClaimParameters { instance: [2; 16], ..next(Some(5)) };
    assert_eq!(ClaimOwner::granted(Some(&last), other).confirmed, 5);
    assert_eq!(ClaimOwner::granted(Some(&last), accepting(&next(Some(99)))).confirmed, 99);
}

#[test]
fn a_refused_claim_that_is_repeated_is_reported_once() {
    let mut refused = RefusedClaims::default();
    assert!(refused.is_new([1; 16], Sense::CLAIM_FENCED));
    assert!(!refused.is_new([1; 16], Sense::CLAIM_FENCED));
    assert!(refused.is_new([1; 16], Sense::CLAIM_NOT_SHARED), "for another reason");
    assert!(refused.is_new([2; 16], Sense::CLAIM_NOT_SHARED), "of another log");
}
