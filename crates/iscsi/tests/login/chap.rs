//! CHAP: successful and refused authentications (RFC 7143, 9.2.1 and 12.1.3).

use iscsi::login::{
    Authentication,
    chap::{Challenge, ChapAlgorithm, ChapSecret, ChapTerms, Credential, InitiatorChap},
};

use super::{pair::log_in, *};

const ALICE: &str = "alice of twelve or more";
const STORAGE: &str = "storage of twelve or more";

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.to_owned(), secret: ChapSecret::new(secret.as_bytes()).unwrap() }
}

/// A directory with one target that requires CHAP. `bob` can authenticate and is not authorized.
#[derive(Clone)]
struct Guarded {
    none: bool,
    preferred: bool,
    mutual: Option<Credential>,
    algorithms: Vec<ChapAlgorithm>,
}

impl Guarded {
    fn new() -> Self {
        let algorithms = ChapAlgorithm::ALL.to_vec();
        let mutual = Some(credential("storage", STORAGE));
        Self { none: false, preferred: false, mutual, algorithms }
    }

    fn login(&self) -> TargetLogin {
        TargetLogin::new(NegotiationOffer::target(), Arc::new(self.clone()))
            .with_challenge(challenge(1))
    }
}

impl Directory for Guarded {
    fn admit(&self, _: &str, _: Option<&str>) -> Result<u16, Denial> {
        Ok(7)
    }

    fn authentication(&self, _: &str, _: Option<&str>) -> Authentication {
        let users = [credential("alice", ALICE), credential("bob", "bob of twelve or more")];
        let chap = ChapTerms {
            users: users.into(),
            algorithms: self.algorithms.clone().into(),
            mutual: self.mutual.clone(),
            preferred: self.preferred,
        };
        Authentication { none: self.none, chap: Some(chap) }
    }

    fn authorize(&self, _: &str, _: Option<&str>, user: Option<&str>) -> Result<(), Denial> {
        if user == Some("bob") { Err(LoginStatus::NotFound.into()) } else { Ok(()) }
    }

    fn alias(&self, _: &str) -> Option<String> {
        Some("a disk".to_owned())
    }
}

fn challenge(seed: u8) -> Challenge {
    Challenge { identifier: seed, value: [seed; 32] }
}

fn chap(name: &str, secret: &str) -> InitiatorChap {
    let algorithms = ChapAlgorithm::ALL.to_vec();
    InitiatorChap { user: credential(name, secret), target: None, algorithms }
}

fn mutual(secret: &str) -> InitiatorChap {
    InitiatorChap { target: Some(credential("storage", secret)), ..chap("alice", ALICE) }
}

fn with(chap: InitiatorChap) -> InitiatorLogin {
    initiator(NegotiationOffer::initiator(), Some(TARGET)).with_chap(chap, challenge(2))
}

fn refused_with(status: LoginStatus) -> LoginFailure {
    LoginFailure::Refused(status)
}

#[test]
fn an_initiator_that_knows_the_secret_is_logged_in() {
    let (result, round_trips) = log_in(with(chap("alice", ALICE)), Guarded::new().login());
    let (ours, theirs) = result.unwrap();
    assert_eq!((ours.user.as_deref(), theirs.user.as_deref()), (Some("alice"), Some("alice")));
    assert_eq!(ours.target_alias.as_deref(), Some("a disk"));
    assert_eq!(round_trips, 4);
}

#[test]
fn both_ends_authenticate_if_the_initiator_requires_it() {
    for algorithm in ChapAlgorithm::ALL {
        let one = InitiatorChap { algorithms: vec![algorithm], ..mutual(STORAGE) };
        let (result, _) = log_in(with(one), Guarded::new().login());
        assert_eq!(result.unwrap().0.user.as_deref(), Some("alice"), "{algorithm:?}");
    }
}

#[test]
fn a_wrong_secret_and_an_unknown_user_get_the_same_answers() {
    for (name, secret, reason) in [
        ("alice", "mallory guesses this", "wrong CHAP secret"),
        ("mallory", ALICE, "unknown CHAP user"),
        ("alice", STORAGE, "wrong CHAP secret"),
    ] {
        let mut login = Guarded::new().login();
        let failure = talk(&mut with(chap(name, secret)), &mut login).unwrap_err();
        assert_eq!(failure, refused_with(LoginStatus::AuthenticationFailure));
        assert_eq!(login.reason(), Some(reason));
        assert_eq!(login.claims().user.as_deref(), Some(name));
        assert_eq!(login.claims().initiator.as_deref(), Some(INITIATOR));
    }
}

/// Runs a login between both ends. Takes them by reference, so that the test can inspect them
/// afterwards.
fn talk(initiator: &mut InitiatorLogin, target: &mut TargetLogin) -> Result<(), LoginFailure> {
    let mut request = initiator.start();
    loop {
        let response = match target.handle_request(request) {
            TargetStep::Respond(response) | TargetStep::Refused(response) => response,
            TargetStep::Established { response, .. } => LoginResponse { tsih: Tsih(9), ..response },
        };
        match initiator.handle_response(response) {
            InitiatorStep::Send(next) => request = next,
            InitiatorStep::Established(_) => return Ok(()),
            InitiatorStep::Failed(failure) => return Err(failure),
            InitiatorStep::Redirected { .. } => panic!("the target has not moved"),
        }
    }
}

#[test]
fn an_authenticated_user_can_still_be_refused() {
    let (result, _) = log_in(with(chap("bob", "bob of twelve or more")), Guarded::new().login());
    assert_eq!(result.unwrap_err(), refused_with(LoginStatus::NotFound));
}

#[test]
fn no_initiator_logs_in_without_a_required_authentication() {
    let (result, _) =
        log_in(initiator(NegotiationOffer::initiator(), Some(TARGET)), Guarded::new().login());
    assert_eq!(result.unwrap_err(), refused_with(LoginStatus::AuthenticationFailure));
    // Log in without the security stage, and then with a security stage that has no authentication.
    for (stage, next, more) in [
        (Operational, FullFeature, &[][..]),
        (Security, Operational, &[]),
        (Security, FullFeature, &[]),
        (Security, Operational, &["AuthMethod=None"]),
        (Security, Operational, &["AuthMethod=SRP,KRB5"]),
    ] {
        let request = request(stage, Some(next), &[&NAMES, more].concat());
        let status = refuse(&mut Guarded::new().login(), request);
        assert_eq!(status, LoginStatus::AuthenticationFailure, "{stage:?} {more:?}");
    }
}

#[test]
fn a_target_without_random_bytes_refuses_every_login() {
    let login = TargetLogin::new(NegotiationOffer::target(), Arc::new(Guarded::new()));
    let (result, _) = log_in(with(chap("alice", ALICE)), login);
    assert_eq!(result.unwrap_err(), refused_with(LoginStatus::TargetError));
}

#[test]
fn auth_method_none_is_accepted_if_the_target_allows_it() {
    let open = Guarded { none: true, ..Guarded::new() };
    let (result, _) = log_in(with(chap("alice", ALICE)), open.login());
    assert_eq!(result.unwrap().1.user, None);
    // The target allows no authentication, but CHAP is used if the initiator requires mutual CHAP,
    // or if the target prefers CHAP.
    let (result, _) = log_in(with(mutual(STORAGE)), open.login());
    assert_eq!(result.unwrap().1.user.as_deref(), Some("alice"));
    let preferring = Guarded { preferred: true, ..open };
    let (result, _) = log_in(with(chap("alice", ALICE)), preferring.login());
    assert_eq!(result.unwrap().1.user.as_deref(), Some("alice"));
    let (result, _) =
        log_in(initiator(NegotiationOffer::initiator(), Some(TARGET)), preferring.login());
    assert_eq!(result.unwrap().1.user, None);
}

#[test]
fn the_target_chooses_the_strongest_algorithm_that_both_support() {
    for (ours, theirs, expected) in [
        ("5,6,7,8", &ChapAlgorithm::ALL[..], Some("CHAP_A=8")),
        ("5,7", &ChapAlgorithm::ALL, Some("CHAP_A=7")),
        ("0x5", &ChapAlgorithm::ALL, Some("CHAP_A=5")),
        ("5,6", &[ChapAlgorithm::Md5, ChapAlgorithm::Sha1], Some("CHAP_A=5")),
        ("5", &[ChapAlgorithm::Sha3, ChapAlgorithm::Sha256], None),
        ("4,9,many", &ChapAlgorithm::ALL, None),
    ] {
        let guarded = Guarded { algorithms: theirs.to_vec(), ..Guarded::new() };
        let mut login = guarded.login();
        let pairs = [&NAMES[..], &["AuthMethod=CHAP,None"]].concat();
        let response = respond(&mut login, request(Security, None, &pairs));
        assert_eq!(said(&response), ["TargetPortalGroupTag=7", "AuthMethod=CHAP"]);
        let offer = request(Security, None, &[&format!("CHAP_A={ours}")]);
        match expected {
            Some(expected) => {
                let answer = said(&respond(&mut login, offer));
                assert_eq!(answer[0], expected);
                assert_eq!(answer[1], "CHAP_I=1");
                let bytes = match expected {
                    "CHAP_A=5" => 16,
                    _ => 32,
                };
                assert_eq!(answer[2], format!("CHAP_C=0x{}", "01".repeat(bytes)));
            }
            None => assert_eq!(refuse(&mut login, offer), LoginStatus::AuthenticationFailure),
        }
    }
}

/// Returns a login in which the target has sent alice a challenge for MD5.
fn asked() -> TargetLogin {
    let mut login = Guarded::new().login();
    let pairs = [&NAMES[..], &["AuthMethod=CHAP,None"]].concat();
    respond(&mut login, request(Security, None, &pairs));
    respond(&mut login, request(Security, None, &["CHAP_A=5"]));
    login
}

/// The CHAP response that alice must give: MD5 over identifier 1, her secret and sixteen bytes 01.
/// It was computed by another implementation.
const PROOF: &str = "0x7be724c225604c97bb6dcb080f13ba38";
/// The CHAP response of [`PROOF`], encoded in base64.
const PROOF_64: &str = "0be+ckwiVgTJe7bcsIDxO6OA==";

#[test]
fn a_chap_response_is_read_in_both_notations() {
    for proof in [PROOF, PROOF_64] {
        let pairs = ["CHAP_N=alice", &format!("CHAP_R={proof}")];
        let response = respond(&mut asked(), request(Security, Some(Operational), &pairs));
        assert!(response.transit, "{proof}");
        assert_eq!(said(&response), ["TargetAlias=a disk"]);
    }
}

/// iPXE sets T in each request, which LIO once refused (iPXE pull request 1444).
#[test]
fn ipxe_requests_the_next_stage_at_every_step() {
    let mut login = Guarded::new().login();
    let ask = |pairs: &[&str]| request(Security, Some(Operational), pairs);
    let first = [&NAMES[..], &["SessionType=Normal", "AuthMethod=CHAP"]].concat();
    assert!(!respond(&mut login, ask(&first)).transit);
    assert!(!respond(&mut login, ask(&["CHAP_A=5"])).transit);
    assert!(!respond(&mut login, ask(&[])).transit);
    let own = format!("CHAP_C=0x{}", "03".repeat(16));
    let proof = format!("CHAP_R={PROOF}");
    let last = respond(&mut login, ask(&["CHAP_N=alice", &proof, "CHAP_I=5", &own]));
    assert!(last.transit && last.next_stage == Operational);
    assert_eq!(said(&last)[1], "CHAP_N=storage");
}

#[test]
fn keys_that_are_missing_or_out_of_turn_end_the_login() {
    let proof = &format!("CHAP_R={PROOF}")[..];
    let reflected = format!("CHAP_C=0x{}", "01".repeat(16));
    let long = format!("CHAP_C=0x{}", "01".repeat(1025));
    use LoginStatus::{AuthenticationFailure, InitiatorError, MissingParameter};
    for (pairs, status) in [
        // The initiator sends a challenge but no response of its own. The target must not answer,
        // since the initiator may only want a response to this challenge (RFC 7143, 9.2).
        (&["CHAP_N=alice", "CHAP_I=1", "CHAP_C=0x01020304"][..], MissingParameter),
        (&["CHAP_I=1", "CHAP_C=0x01020304"], MissingParameter),
        (&[proof], MissingParameter),
        (&["CHAP_N=alice", proof, "CHAP_I=1"], MissingParameter),
        (&["CHAP_N=alice", proof, &long, "CHAP_I=1"], InitiatorError),
        (&["CHAP_N=alice", proof, "CHAP_C=0x01", "CHAP_I=256"], InitiatorError),
        (&["CHAP_N=alice", "CHAP_R=0xno"], InitiatorError),
        (&["CHAP_N=alice", "CHAP_R="], InitiatorError),
        (&["CHAP_N=alice", "CHAP_R=0x00"], AuthenticationFailure),
        (&["CHAP_A=5"], InitiatorError),
        (&["CHAP_A=5", "CHAP_N=alice", proof], InitiatorError),
        (&["CHAP_X=5"], InitiatorError),
        (&["AuthMethod=None"], InitiatorError),
        // The initiator sends the target's own challenge back.
        (&["CHAP_N=alice", proof, "CHAP_I=1", &reflected], AuthenticationFailure),
        (&["CHAP_N=alice", proof, "CHAP_I=2", &reflected], AuthenticationFailure),
    ] {
        let request = request(Security, Some(Operational), pairs);
        assert_eq!(refuse(&mut asked(), request), status, "{pairs:?}");
    }
    for pairs in [&["CHAP_A=5"][..], &["CHAP_N=alice", proof], &["AuthMethod=CHAP", "CHAP_A=5"]] {
        let request = request(Security, None, &[&NAMES, pairs].concat());
        assert_eq!(refuse(&mut Guarded::new().login(), request), InitiatorError, "{pairs:?}");
    }
    let mut proved = asked();
    respond(&mut proved, request(Security, None, &["CHAP_N=alice", proof]));
    let again = request(Security, None, &["CHAP_A=5"]);
    assert_eq!(refuse(&mut proved, again), InitiatorError);
}

#[test]
fn one_secret_for_both_directions_is_refused_by_either_end() {
    let same = Guarded { mutual: Some(credential("storage", ALICE)), ..Guarded::new() };
    let mut login = same.login();
    let failure = talk(&mut with(chap("alice", ALICE)), &mut login).unwrap_err();
    assert_eq!(failure, refused_with(LoginStatus::AuthenticationFailure));
    assert_eq!(login.reason(), Some("the CHAP secrets of both directions are the same"));
}

#[test]
fn the_initiator_ends_the_login_if_the_target_cannot_authenticate() {
    let (result, _) = log_in(with(mutual("another of twelve or more")), Guarded::new().login());
    let wrong = LoginFailure::Proof("wrong response to our challenge");
    assert_eq!(result.unwrap_err(), wrong);
    let renamed = Guarded { mutual: Some(credential("other", STORAGE)), ..Guarded::new() };
    let (result, _) = log_in(with(mutual(STORAGE)), renamed.login());
    let other = LoginFailure::Proof("its CHAP name is not the expected one");
    assert_eq!(result.unwrap_err(), other);
    let silent = Guarded { mutual: None, ..Guarded::new() };
    let (result, _) = log_in(with(mutual(STORAGE)), silent.login());
    assert_eq!(result.unwrap_err(), refused_with(LoginStatus::AuthenticationFailure));
}

/// Returns the step of our initiator after a target has sent `texts`, one after the other.
fn hears(chap: Option<InitiatorChap>, texts: &[&[&str]]) -> InitiatorStep {
    let mut login = initiator(NegotiationOffer::initiator(), Some(TARGET));
    if let Some(chap) = chap {
        login = login.with_chap(chap, challenge(2));
    }
    let mut request = login.start();
    for (index, pairs) in texts.iter().enumerate() {
        let response = LoginResponse {
            transit: request.transit,
            current_stage: Security,
            next_stage: request.next_stage,
            isid: request.isid,
            itt: request.itt,
            text: text(pairs),
            ..LoginResponse::default()
        };
        match login.handle_response(response) {
            InitiatorStep::Send(next) => request = next,
            step => {
                assert_eq!(index + 1, texts.len(), "{step:?}");
                return step;
            }
        }
    }
    InitiatorStep::Send(request)
}

#[test]
fn a_hostile_target_gets_no_valid_response_from_our_initiator() {
    let (one_way, both) = (chap("alice", ALICE), mutual(STORAGE));
    let chosen: &[&str] = &["AuthMethod=CHAP"];
    let question: &[&str] = &["CHAP_A=5", "CHAP_I=7", "CHAP_C=0x0102030405060708"];
    let ours = format!("CHAP_C=0x{}", "02".repeat(16));
    let wrong = format!("CHAP_R=0x{}", "00".repeat(16));
    let cases: &[(&InitiatorChap, &[&[&str]])] = &[
        // The initiator requires mutual CHAP and the target chooses None or nothing, or the target
        // chooses a method that is invalid.
        (&both, &[&["AuthMethod=None"]]),
        (&both, &[&[]]),
        (&one_way, &[&["AuthMethod=SRP"]]),
        (&one_way, &[&["AuthMethod=CHAP,None"]]),
        (&one_way, &[&["AuthMethod=CHAP", "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x01"]]),
        (&one_way, &[chosen, &["CHAP_A=4", "CHAP_I=1", "CHAP_C=0x01"]]),
        (&one_way, &[chosen, &["CHAP_A=5,6", "CHAP_I=1", "CHAP_C=0x01"]]),
        (&one_way, &[chosen, &["CHAP_A=5", "CHAP_I=1"]]),
        (&one_way, &[chosen, &["CHAP_A=5", "CHAP_I=1", "CHAP_C=0x"]]),
        (&one_way, &[chosen, &["CHAP_I=1", "CHAP_C=0x01"]]),
        (&one_way, &[chosen, &[]]),
        // The target sends a response although the initiator does not use mutual CHAP.
        (&one_way, &[chosen, question, &["CHAP_N=storage", &wrong]]),
        // The target sends the same challenge twice.
        (&one_way, &[chosen, question, question]),
        // The target sends the challenge that the initiator will send, before the initiator has
        // sent it.
        (&both, &[chosen, &["CHAP_A=5", "CHAP_I=7", &ours]]),
        // The target sends no response, only a name, a wrong response, and the response that
        // alice's own secret gives.
        (&both, &[chosen, question, &[]]),
        (&both, &[chosen, question, &["CHAP_N=storage"]]),
        (&both, &[chosen, question, &["CHAP_N=storage", &wrong]]),
        (&both, &[chosen, question, &["CHAP_N=storage", OURS]]),
    ];
    for (chap, texts) in cases {
        match hears(Some((*chap).clone()), texts) {
            InitiatorStep::Failed(LoginFailure::Proof(_) | LoginFailure::Keys(_)) => {}
            step => panic!("{texts:?}: {step:?}"),
        }
    }
    match hears(None, &[question]) {
        InitiatorStep::Failed(LoginFailure::Proof(_)) => {}
        step => panic!("{step:?}"),
    }
    match hears(Some(both), &[chosen, question, &["CHAP_N=storage", OURS]]) {
        InitiatorStep::Failed(failure) => {
            assert_eq!(failure, LoginFailure::Proof("its response was made with our own secret"));
        }
        step => panic!("{step:?}"),
    }
}

/// The CHAP response that alice's own secret gives to her challenge: MD5 over identifier 2, her
/// secret and sixteen bytes 02. A target that reflects the challenge could obtain it.
const OURS: &str = "CHAP_R=0x72dd9158ac2e6767454c832383a1629f";

#[test]
fn an_initiator_requests_the_next_stage_with_its_chap_response() {
    let mut login = with(mutual(STORAGE));
    let mut target = Guarded::new().login();
    let mut request = login.start();
    let mut asked = Vec::new();
    loop {
        asked.push(request.transit);
        let (TargetStep::Respond(response) | TargetStep::Refused(response)) =
            target.handle_request(request)
        else {
            break;
        };
        let InitiatorStep::Send(next) = login.handle_response(response) else { panic!() };
        request = next;
    }
    assert_eq!(asked, [false, false, true, true]);
}
