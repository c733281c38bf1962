//! Regression tests: message sequences in which a late, lost or duplicated message once made a gateway use
//! a range that another gateway had been granted.

use coherence::{
    Begin, Cleaning, CoherenceRange, CoherenceReply, CoherenceRequest, CoherenceToken, Grantor,
    Holder, MOST_TOKENS, Millis, SharingMember, Terms,
};

const A: SharingMember = SharingMember(0);
const B: SharingMember = SharingMember(1);
const X: CoherenceRange = CoherenceRange(0);
const LEASE: Millis = 8000;

fn node() -> Grantor {
    let mut node = Grantor::new(Terms { lease: LEASE, ranges: 4 }, 1, [], 0);
    [A, B].into_iter().for_each(|member| node.attach(member, 0));
    node
}

/// Fetches the node's answers to all members. Returns only the answers to the member `to`.
fn answers(node: &mut Grantor, to: SharingMember) -> Vec<CoherenceReply> {
    std::iter::from_fn(|| node.poll_answer()).filter(|(of, _)| *of == to).map(|(_, a)| a).collect()
}

fn requests(holder: &mut Holder) -> Vec<CoherenceRequest> {
    std::iter::from_fn(|| holder.poll_request()).collect()
}

/// Delivers the holder's requests to the node, and the answers to the holder.
fn talk(holder: &mut Holder, node: &mut Grantor, member: SharingMember, now: Millis) {
    for _ in 0..8 {
        requests(holder).into_iter().for_each(|request| node.handle(member, request, now));
        answers(node, member).into_iter().for_each(|answer| holder.handle(answer, now));
    }
}

/// Joins as a member whose messages the test makes itself. Returns the number of the membership (life) that begins.
fn join(node: &mut Grantor, member: SharingMember, named: &[CoherenceRange], now: Millis) -> u64 {
    node.handle(member, CoherenceRequest::Join { number: 1, exclusive: named.to_vec() }, now);
    let joined = answers(node, member);
    let Some(CoherenceReply::Joined { life, .. }) = joined.last() else { panic!("{joined:?}") };
    *life
}

fn acquire(
    node: &mut Grantor,
    member: SharingMember,
    life: u64,
    token: CoherenceToken,
    now: Millis,
) {
    node.handle(member, CoherenceRequest::Acquire { life, range: X, token, number: 1 }, now);
}

/// Returns a gateway that has joined, has written the first range, and has ended this use.
fn writer(node: &mut Grantor) -> Holder {
    let mut holder = Holder::new(LEASE, [], 0);
    talk(&mut holder, node, A, 0);
    assert!(matches!(holder.begin(X, CoherenceToken::ExclusiveWrite, 0), Begin::Waits(_)));
    talk(&mut holder, node, A, 0);
    assert!(holder.poll_begun().is_some());
    holder.end(X, 0);
    holder
}

#[test]
fn a_gateway_does_not_keep_a_token_for_reading_that_was_granted_to_another() {
    let mut node = node();
    let mut a = writer(&mut node);
    let life = join(&mut node, B, &[], 0);
    acquire(&mut node, B, life, CoherenceToken::SharedRead, 0);
    let recall = answers(&mut node, A);
    assert!(matches!(recall[..], [CoherenceReply::Recall { keeps: true, .. }]), "{recall:?}");
    recall.into_iter().for_each(|answer| a.handle(answer, 0));
    assert_eq!(a.poll_cleaning(), Some(Cleaning { range: X, writes_back: true, keeps: true }));
    a.cleaned(X, 0);
    // The node receives the release with which gateway A keeps the range for reading. The test drops the
    // answer.
    requests(&mut a).into_iter().for_each(|request| node.handle(A, request, 0));
    answers(&mut node, A);
    // The node has received no message from gateway A for the time of a lease, so gateway B may write.
    acquire(&mut node, B, life, CoherenceToken::ExclusiveWrite, LEASE);
    assert!(node.may_write(B, X));
    // Gateway A reaches the node again. The node answers its renewal before the repeated release.
    let now = LEASE + 1;
    a.handle_timeout(now);
    talk(&mut a, &mut node, A, now);
    assert_eq!((a.is_leased(now), a.usable(X, now)), (true, None));
    assert_eq!(
        a.poll_cleaning(),
        Some(Cleaning { range: X, writes_back: false, keeps: false }),
        "what is cached is dropped"
    );
    a.cleaned(X, now);
    talk(&mut a, &mut node, A, now);
    assert_eq!(a.count(), (0, 0));
}

#[test]
fn the_node_lets_no_gateway_keep_a_token_that_was_granted_to_another() {
    let mut node = node();
    let mut a = writer(&mut node);
    let life = join(&mut node, B, &[], 0);
    acquire(&mut node, B, life, CoherenceToken::SharedRead, 0);
    answers(&mut node, A).into_iter().for_each(|answer| a.handle(answer, 0));
    a.poll_cleaning();
    a.cleaned(X, 0);
    let release = requests(&mut a).pop().expect("a release");
    node.handle(A, release.clone(), 0);
    let kept = answers(&mut node, A);
    assert!(matches!(kept[..], [CoherenceReply::Released { keeps: true, .. }]), "{kept:?}");
    acquire(&mut node, B, life, CoherenceToken::ExclusiveWrite, LEASE);
    node.handle(A, release, LEASE);
    let gone = answers(&mut node, A);
    assert!(matches!(gone[..], [CoherenceReply::Released { keeps: false, .. }]), "{gone:?}");
    // Gateway A has not noticed yet that its lease has ended. It accepts the answer, and does not wait for
    // ever.
    gone.into_iter().for_each(|answer| a.handle(answer, 1));
    assert_eq!(a.usable(X, 1), None);
    let cleaning = a.poll_cleaning().expect("what is cached is dropped");
    assert_eq!((cleaning.keeps, cleaning.writes_back), (false, false));
    a.cleaned(X, 1);
    talk(&mut a, &mut node, A, LEASE + 1);
    assert_eq!(a.count(), (0, 0));
}

#[test]
fn a_grant_from_before_the_lease_ended_is_not_accepted_in_the_next_lease() {
    let mut node = node();
    let mut a = Holder::new(LEASE, [], 0);
    talk(&mut a, &mut node, A, 0);
    // The gateway requests within the lease. The request is lost, and the repeated one has another number.
    a.begin(X, CoherenceToken::SharedRead, 0);
    requests(&mut a);
    let late = LEASE + 1;
    a.handle_timeout(late);
    assert!(!a.is_leased(late));
    let (renewals, others): (Vec<_>, Vec<_>) = requests(&mut a)
        .into_iter()
        .partition(|request| matches!(request, CoherenceRequest::Renew { .. }));
    others.into_iter().for_each(|request| node.handle(A, request, late));
    let old = answers(&mut node, A);
    assert!(matches!(old[..], [CoherenceReply::Granted { .. }]), "{old:?}");
    // The node grants the range to gateway B, because it has received nothing from gateway A for a lease.
    let life = join(&mut node, B, &[], late);
    let later = late + LEASE;
    acquire(&mut node, B, life, CoherenceToken::ExclusiveWrite, later);
    assert!(node.may_write(B, X));
    // The answer to a renewal overtakes the grant.
    a.handle_timeout(later);
    let renewal =
        requests(&mut a).into_iter().find(|r| matches!(r, CoherenceRequest::Renew { .. }));
    assert!(renewals.len() == 1 && renewal.is_some());
    node.handle(A, renewal.expect("looked at"), later);
    answers(&mut node, A).into_iter().for_each(|answer| a.handle(answer, later));
    assert!(a.is_leased(later));
    old.into_iter().for_each(|answer| a.handle(answer, later));
    assert_eq!((a.usable(X, later), a.poll_begun()), (None, None));
    // Gateway A requests the token of the range again under the new lease.
    let asked = requests(&mut a);
    assert!(
        asked.iter().any(|request| matches!(request, CoherenceRequest::Acquire { .. })),
        "{asked:?}"
    );
}

#[test]
fn answers_to_renewals_that_are_not_fetched_do_not_accumulate() {
    let mut node = node();
    let (a, b) = (join(&mut node, A, &[], 0), join(&mut node, B, &[], 0));
    acquire(&mut node, A, a, CoherenceToken::ExclusiveWrite, 0);
    acquire(&mut node, B, b, CoherenceToken::ExclusiveWrite, 0);
    answers(&mut node, A);
    for sent in 0..1000 {
        node.handle(A, CoherenceRequest::Renew { life: a, sent }, 0);
    }
    assert_eq!(node.answers(A).count(), 2);
    let told = answers(&mut node, A);
    assert!(matches!(
        told[..],
        [CoherenceReply::Recall { .. }, CoherenceReply::Renewed { sent: 999, .. }]
    ));
    // Repeat another request: its answers are limited, too. After that, `told` must remove exactly the
    // fetched answers.
    for number in 0..5 * MOST_TOKENS as u64 {
        let (range, token) = (X, CoherenceToken::SharedRead);
        node.handle(A, CoherenceRequest::Acquire { life: a, range, token, number }, 0);
    }
    assert_eq!(node.answers(A).count(), 4 * MOST_TOKENS);
    node.told(A, 4 * MOST_TOKENS - 1);
    assert_eq!(node.answers(A).count(), 1);
}

#[test]
fn an_expelled_gateway_keeps_no_token_by_renewing() {
    let mut node = node();
    let (a, b) = (join(&mut node, A, &[], 0), join(&mut node, B, &[], 0));
    acquire(&mut node, A, a, CoherenceToken::ExclusiveWrite, 0);
    acquire(&mut node, B, b, CoherenceToken::ExclusiveWrite, 0);
    node.expel(A, 0);
    assert!(!node.may_write(A, X) && !node.may_write(B, X), "it may read until its lease ends");
    for now in [LEASE / 2, LEASE - 1] {
        node.handle(A, CoherenceRequest::Renew { life: a, sent: now }, now);
        node.attach(A, now);
    }
    node.handle_timeout(LEASE);
    assert!(node.may_write(B, X));
}

#[test]
fn held_and_requested_tokens_of_a_gateway_are_bounded_together() {
    let ranges = 4 * MOST_TOKENS as u32;
    let mut node = Grantor::new(Terms { lease: LEASE, ranges }, 1, [A, B], 0);
    [A, B].into_iter().for_each(|member| node.attach(member, 0));
    let most = 2 * MOST_TOKENS as u32;
    let of_b: Vec<_> = (most..2 * most).map(CoherenceRange).collect();
    let of_a: Vec<_> = (0..most - 10).map(CoherenceRange).collect();
    join(&mut node, B, &of_b, 0);
    let life = join(&mut node, A, &of_a, 0);
    for range in of_b {
        let (token, number) = (CoherenceToken::SharedRead, 1);
        node.handle(A, CoherenceRequest::Acquire { life, range, token, number }, 0);
    }
    assert_eq!(node.standing(B, 0).recalled, 10);
}

#[test]
fn tokens_that_the_node_does_not_confirm_are_lost() {
    let mut a = Holder::new(LEASE, [X, CoherenceRange(1)], 0);
    let (number, life) = (1, 5);
    assert!(matches!(requests(&mut a)[..], [CoherenceRequest::Join { number: 1, .. }]));
    let grants = vec![(X, coherence::Grant(7))];
    a.handle(CoherenceReply::Joined { number, life, grants, lost: Vec::new() }, 0);
    assert_eq!(a.lost(), Some(CoherenceRange(1)));
}

#[test]
fn a_lease_ends_an_eighth_early_and_the_eighth_is_rounded_up() {
    let mut a = Holder::new(15, [], 0);
    let joined =
        CoherenceReply::Joined { number: 1, life: 5, grants: Vec::new(), lost: Vec::new() };
    a.handle(joined, 0);
    assert!(a.is_leased(12) && !a.is_leased(13));
}
