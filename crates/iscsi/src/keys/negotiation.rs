//! The negotiation of text keys during a login, as one end performs it (RFC 7143, 6.2).

use super::table::{IscsiRole, KEYS, KeyKind, TextKey};
use super::text::{
    boolean, is_answer_word, is_name, local_name, number_within, push, segment_length, yes_no,
};
use super::{DigestPolicy, KeyError, NegotiationOffer, Parameters};
use crate::pdu::LoginStage;

/// The values that a peer only declares, without a negotiation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    pub(crate) discovery: bool,
    pub(crate) initiator_name: Option<String>,
    pub(crate) initiator_alias: Option<String>,
    pub(crate) target_name: Option<String>,
    pub(crate) target_alias: Option<String>,
    pub(crate) tpgt: Option<u16>,
    /// AuthMethod. At the target: the initiator's list; at the initiator: the target's choice.
    pub(crate) auth_method: Option<String>,
}

impl Declared {
    /// Returns true if the initiator sent the same value of this key before; the caller treats a
    /// different value as an error. libiscsi repeats its name and the target's in each stage,
    /// though it must not (RFC 7143, 13.4, 13.5).
    fn is_known(&self, key: TextKey, value: &str) -> bool {
        match key {
            TextKey::SessionType => value == if self.discovery { "Discovery" } else { "Normal" },
            TextKey::InitiatorName => self.initiator_name.as_deref() == Some(value),
            TextKey::InitiatorAlias => self.initiator_alias.as_deref() == Some(&local_name(value)),
            TextKey::TargetName => self.target_name.as_deref() == Some(value),
            _ => false,
        }
    }
}

/// The answers of this end to one login text of the peer.
#[derive(Debug, Default)]
pub(crate) struct NegotiationAnswers {
    pub(crate) text: Vec<u8>,
    /// True if `text` answers at least one proposal of the peer, which waits for the answer.
    pub(crate) awaited: bool,
}

/// The state of a key.
///
/// ```text
/// Open ── we propose ──> Proposed ── answer ──> Settled
///   └──── peer proposes, we answer, or peer declares ──^
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum KeyState {
    Open,
    Proposed,
    Settled,
}

/// The state of one end that negotiates all text keys during a login.
pub(crate) struct Negotiation {
    side: IscsiRole,
    offer: NegotiationOffer,
    states: [KeyState; KEYS],
    /// True if our MaxRecvDataSegmentLength was sent. The entry of that key in `states` says only
    /// if the peer has declared its own value.
    length_declared: bool,
    /// The parameters negotiated so far; initially the defaults of the standard.
    parameters: Parameters,
    pub(crate) declared: Declared,
    /// True for the first connection of a session.
    leading: bool,
}

impl Negotiation {
    /// # Panics
    ///
    /// If the offer is out of range. The settings were checked when they were read.
    pub(crate) fn new(side: IscsiRole, offer: NegotiationOffer) -> Self {
        if let Err(field) = offer.validate() {
            panic!("{field} is out of range in an offer");
        }
        Self {
            side,
            offer,
            states: [KeyState::Open; KEYS],
            length_declared: false,
            parameters: Parameters::default(),
            declared: Declared::default(),
            leading: true,
        }
    }

    /// Processes the pairs of a complete text and returns the answers.
    pub(crate) fn receive(
        &mut self,
        stage: LoginStage,
        pairs: &[(&str, &str)],
    ) -> Result<NegotiationAnswers, KeyError> {
        let mut answers = NegotiationAnswers::default();
        let mut known = Vec::new();
        for &(name, value) in pairs {
            match TextKey::from_name(name) {
                Some(key) => known.push((key, value)),
                None => answers.not_understood(name, value)?,
            }
        }
        known.sort_unstable_by_key(|&(key, _)| key);
        for (key, value) in known {
            self.receive_key(stage, key, value, &mut answers)?;
        }
        Ok(answers)
    }

    fn receive_key(
        &mut self,
        stage: LoginStage,
        key: TextKey,
        value: &str,
        answers: &mut NegotiationAnswers,
    ) -> Result<(), KeyError> {
        let row = key.row();
        if !row.when.allows(stage) || row.kind == KeyKind::Declared(self.side) {
            return Err(KeyError::NotAllowed(row.name.to_owned()));
        }
        if key == TextKey::TargetAddress {
            // Accept a repeated TargetAddress (RFC 7143, 6.3): only a redirect uses the key.
            return Ok(());
        }
        match std::mem::replace(&mut self.states[key as usize], KeyState::Settled) {
            KeyState::Settled if self.declared.is_known(key, value) => return Ok(()),
            KeyState::Settled => return Err(KeyError::Repeated(row.name.to_owned())),
            KeyState::Proposed => return self.take_answer(key, value),
            KeyState::Open => {}
        }
        if is_answer_word(value) {
            return Err(KeyError::Value(row.name.to_owned()));
        }
        match row.kind {
            KeyKind::Declared(_) | KeyKind::DeclaredByBoth => self.take_declaration(key, value),
            _ if row.normal_only && self.declared.discovery => {
                answers.push(key, "Irrelevant");
                Ok(())
            }
            // Only store the list: `TargetLogin` chooses the method, since the choice depends on
            // the initiator and the target.
            KeyKind::List if key == TextKey::AuthMethod => {
                self.declared.auth_method = Some(value.to_owned());
                Ok(())
            }
            kind => {
                let answer = self.take_proposal(key, kind, value)?;
                answers.push(key, &answer);
                Ok(())
            }
        }
    }

    /// Returns our answer to a key that the peer has proposed, and stores the negotiated value.
    fn take_proposal(
        &mut self,
        key: TextKey,
        kind: KeyKind,
        value: &str,
    ) -> Result<String, KeyError> {
        const REJECT: &str = "Reject";
        let answer = match kind {
            KeyKind::List => match self.select(key, value) {
                Some(selected) => selected,
                None => REJECT,
            },
            KeyKind::Or | KeyKind::And => match boolean(value) {
                Some(theirs) => {
                    let ours = self.wanted_flag(key);
                    let result = if kind == KeyKind::Or { theirs || ours } else { theirs && ours };
                    self.set_flag(key, result);
                    yes_no(result)
                }
                None => REJECT,
            },
            KeyKind::Minimum(low, high) | KeyKind::Maximum(low, high) => {
                let Some(theirs) = number_within(value, low, high) else {
                    return Ok(REJECT.to_owned());
                };
                let ours = self.wanted_number(key);
                let is_minimum = matches!(kind, KeyKind::Minimum(..));
                let result = if is_minimum { theirs.min(ours) } else { theirs.max(ours) };
                self.set_number(key, result);
                return Ok(result.to_string());
            }
            KeyKind::Obsolete(answer) => answer,
            KeyKind::Declared(_) | KeyKind::DeclaredByBoth => {
                unreachable!("declared, not proposed")
            }
        };
        Ok(answer.to_owned())
    }

    /// Chooses the first value of a proposed list that this end supports, and stores it.
    fn select(&mut self, key: TextKey, list: &str) -> Option<&'static str> {
        let supported = self.values(key);
        let find = |value: &str| supported.iter().find(|&&ours| ours == value).copied();
        let selected = list.split(',').find_map(find)?;
        self.set_choice(key, selected);
        Some(selected)
    }

    /// Returns the values of a list key that this end supports: in our order of preference if we propose the list, in
    /// the order of the peer's list if the peer proposes it.
    fn values(&self, key: TextKey) -> Vec<&'static str> {
        match key {
            TextKey::HeaderDigest => self.offer.header_digest.values().to_vec(),
            TextKey::DataDigest => self.offer.data_digest.values().to_vec(),
            TextKey::Compression => {
                self.offer.compression.iter().map(|method| method.name()).chain([NONE]).collect()
            }
            _ => vec!["RFC3720"],
        }
    }

    /// Processes the answer to our proposal.
    fn take_answer(&mut self, key: TextKey, value: &str) -> Result<(), KeyError> {
        let wrong = || KeyError::Answer(key.name().to_owned());
        match (key.row().kind, value) {
            (_, "Reject") if key == TextKey::AuthMethod => return Err(KeyError::NoAuthMethod),
            // Store the chosen method only: `InitiatorLogin` checks that the initiator has proposed it.
            (_, method) if key == TextKey::AuthMethod => {
                self.declared.auth_method = Some(method.to_owned());
            }
            // The peer has rejected the key, so its default stays in force. [`Self::conclude`] checks that default.
            (_, "Irrelevant" | "Reject") => {}
            // Another implementation does not know Forebay's key: the connection stays uncompressed.
            (_, "NotUnderstood") if key == TextKey::Compression => {}
            (KeyKind::List, _) => {
                // The target must answer with exactly one value of the list that the initiator has proposed.
                let single = !value.contains(',');
                single.then(|| self.select(key, value)).flatten().ok_or_else(wrong)?;
            }
            (kind @ (KeyKind::Or | KeyKind::And), _) => {
                let answer = boolean(value).ok_or_else(wrong)?;
                let decided = kind == KeyKind::Or;
                if self.wanted_flag(key) == decided && answer != decided {
                    return Err(wrong());
                }
                self.set_flag(key, answer);
            }
            (KeyKind::Minimum(low, _), _) => {
                let answer = number_within(value, low, self.wanted_number(key));
                self.set_number(key, answer.ok_or_else(wrong)?);
            }
            (KeyKind::Maximum(_, high), _) => {
                let answer = number_within(value, self.wanted_number(key), high);
                self.set_number(key, answer.ok_or_else(wrong)?);
            }
            (KeyKind::Declared(_) | KeyKind::DeclaredByBoth | KeyKind::Obsolete(_), _) => {
                unreachable!("we do not propose these")
            }
        }
        Ok(())
    }

    fn take_declaration(&mut self, key: TextKey, value: &str) -> Result<(), KeyError> {
        let wrong = || KeyError::Value(key.name().to_owned());
        let name = || if is_name(value) { Ok(Some(value.to_owned())) } else { Err(wrong()) };
        let declared = &mut self.declared;
        match key {
            TextKey::SessionType => {
                declared.discovery = match value {
                    "Discovery" => true,
                    "Normal" => false,
                    _ => return Err(KeyError::SessionType),
                }
            }
            TextKey::InitiatorName => declared.initiator_name = name()?,
            TextKey::TargetName => declared.target_name = name()?,
            TextKey::InitiatorAlias => declared.initiator_alias = Some(local_name(value)),
            TextKey::TargetAlias => declared.target_alias = Some(local_name(value)),
            TextKey::TargetPortalGroupTag => {
                let tag = number_within(value, 0, u32::from(u16::MAX)).ok_or_else(wrong)?;
                declared.tpgt = Some(tag as u16);
            }
            TextKey::MaxRecvDataSegmentLength => {
                let length = segment_length(value).ok_or_else(wrong)?;
                self.parameters.max_send_data_segment_length = length;
            }
            // Ignore all other keys that the peer declares.
            _ => {}
        }
        Ok(())
    }

    /// Marks this connection as one that joins a session, whose keys are settled. Only digests,
    /// compression and segment lengths are negotiated for each connection (RFC 7143, 13: use LO).
    pub(crate) fn join_session(&mut self) {
        self.leading = false;
    }

    /// Settles the names of initiator and target and the type of session. They must be in the first
    /// text.
    pub(crate) fn close_identity(&mut self) {
        for key in [TextKey::SessionType, TextKey::InitiatorName, TextKey::TargetName] {
            self.states[key as usize] = KeyState::Settled;
        }
    }

    /// Appends this end's MaxRecvDataSegmentLength to `text`, unless it was sent already.
    pub(crate) fn declare_length(&mut self, text: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.length_declared, true) {
            let length = self.offer.max_recv_data_segment_length;
            self.parameters.max_recv_data_segment_length = length;
            push(text, TextKey::MaxRecvDataSegmentLength.name(), &length.to_string());
        }
    }

    /// Proposes AuthMethod, in the security stage.
    pub(crate) fn propose_auth_method(&mut self, methods: &str, text: &mut Vec<u8>) {
        self.states[TextKey::AuthMethod as usize] = KeyState::Proposed;
        push(text, TextKey::AuthMethod.name(), methods);
    }

    /// Proposes every open key of the operational stage, as an initiator does.
    pub(crate) fn propose_all(&mut self, text: &mut Vec<u8>) {
        for key in PROPOSED {
            if self.is_open(key) {
                self.propose(key, text);
            }
        }
        self.declare_length(text);
    }

    /// Proposes only those open keys whose default is unacceptable to this end, as a target does:
    /// the simplest initiators do not expect proposals.
    pub(crate) fn propose_needed(&mut self, text: &mut Vec<u8>) {
        for key in PROPOSED {
            if self.needs(key) {
                self.propose(key, text);
            }
        }
    }

    /// Returns true if [`Self::propose_needed`] would propose a key.
    pub(crate) fn needs_proposal(&self) -> bool {
        PROPOSED.into_iter().any(|key| self.needs(key))
    }

    fn needs(&self, key: TextKey) -> bool {
        self.is_open(key) && self.check(key).is_err()
    }

    fn is_open(&self, key: TextKey) -> bool {
        self.is_relevant(key) && self.states[key as usize] == KeyState::Open
    }

    fn is_relevant(&self, key: TextKey) -> bool {
        if key == TextKey::Compression && self.offer.compression.is_empty() {
            return false;
        }
        let of_connection =
            matches!(key, TextKey::HeaderDigest | TextKey::DataDigest | TextKey::Compression);
        (self.leading || of_connection) && !(key.row().normal_only && self.declared.discovery)
    }

    fn propose(&mut self, key: TextKey, text: &mut Vec<u8>) {
        self.states[key as usize] = KeyState::Proposed;
        let value = match key.row().kind {
            KeyKind::Or | KeyKind::And => yes_no(self.wanted_flag(key)).to_owned(),
            KeyKind::List => self.values(key).join(","),
            _ => self.wanted_number(key).to_string(),
        };
        push(text, key.name(), &value);
    }

    /// Returns the result, after checking that it obeys the rules between keys and is acceptable to
    /// this end.
    ///
    /// Some peers do not answer a proposal. The default then applies, unless our proposal alone
    /// determines the result (RFC 7143, 6.2.2).
    pub(crate) fn conclude(&mut self) -> Result<Parameters, KeyError> {
        for key in PROPOSED {
            let decided = match key.row().kind {
                KeyKind::Or => true,
                KeyKind::And => false,
                _ => continue,
            };
            if self.states[key as usize] == KeyState::Proposed && self.wanted_flag(key) == decided {
                self.set_flag(key, decided);
            }
        }
        self.states = [KeyState::Settled; KEYS];
        for key in PROPOSED {
            if self.is_relevant(key) {
                self.check(key)?;
            }
        }
        let mut parameters = self.parameters.clone();
        // FirstBurstLength may be larger than MaxBurstLength only where it has no effect: limit it.
        parameters.first_burst_length =
            parameters.first_burst_length.min(parameters.max_burst_length);
        Ok(parameters)
    }

    /// Checks that this end accepts the value that key `key` has at present.
    fn check(&self, key: TextKey) -> Result<(), KeyError> {
        let now = &self.parameters;
        let suits = match key.row().kind {
            _ if key == TextKey::Compression => true,
            KeyKind::List => {
                let on = match key {
                    TextKey::HeaderDigest => now.digests.header,
                    _ => now.digests.data,
                };
                on || self.policy(key) != DigestPolicy::Require
            }
            // Without unsolicited data, FirstBurstLength has no effect (RFC 7143, 13.14).
            _ if key == TextKey::FirstBurstLength && now.initial_r2t && !now.immediate_data => true,
            // The default Yes is always acceptable. If we proposed Yes, `take_answer` has refused
            // the answer No.
            KeyKind::Or => true,
            KeyKind::And => !now.immediate_data || self.offer.immediate_data,
            KeyKind::Maximum(..) => self.number(key) >= self.wanted_number(key),
            _ => self.number(key) <= self.wanted_number(key),
        };
        if suits { Ok(()) } else { Err(KeyError::Disagreement(key.name())) }
    }

    fn policy(&self, key: TextKey) -> DigestPolicy {
        match key {
            TextKey::HeaderDigest => self.offer.header_digest,
            _ => self.offer.data_digest,
        }
    }

    fn wanted_flag(&self, key: TextKey) -> bool {
        match key {
            TextKey::InitialR2T => self.offer.initial_r2t,
            TextKey::ImmediateData => self.offer.immediate_data,
            TextKey::DataPduInOrder => self.offer.data_pdu_in_order,
            TextKey::DataSequenceInOrder => self.offer.data_sequence_in_order,
            _ => unreachable!("{key:?} is not a flag"),
        }
    }

    fn set_flag(&mut self, key: TextKey, value: bool) {
        let flag = match key {
            TextKey::InitialR2T => &mut self.parameters.initial_r2t,
            TextKey::ImmediateData => &mut self.parameters.immediate_data,
            TextKey::DataPduInOrder => &mut self.parameters.data_pdu_in_order,
            TextKey::DataSequenceInOrder => &mut self.parameters.data_sequence_in_order,
            _ => unreachable!("{key:?} is not a flag"),
        };
        *flag = value;
    }

    /// Returns the number that we propose, which is also the bound of what we accept.
    fn wanted_number(&self, key: TextKey) -> u32 {
        let offer = &self.offer;
        match key {
            TextKey::MaxConnections => u32::from(offer.max_connections),
            TextKey::MaxBurstLength => offer.max_burst_length,
            // "FirstBurstLength MUST NOT exceed MaxBurstLength" (RFC 7143, 13.14).
            TextKey::FirstBurstLength => offer.first_burst_length.min(self.max_burst_length()),
            TextKey::DefaultTime2Wait => u32::from(offer.default_time2wait),
            TextKey::DefaultTime2Retain => u32::from(offer.default_time2retain),
            // Discovery sessions use error recovery level 0 only (RFC 7143, 7.4.1).
            TextKey::ErrorRecoveryLevel if self.declared.discovery => 0,
            TextKey::ErrorRecoveryLevel => u32::from(offer.error_recovery_level),
            TextKey::MaxOutstandingR2T if self.recovers_in_order() => 1,
            TextKey::MaxOutstandingR2T => u32::from(offer.max_outstanding_r2t),
            TextKey::ProtocolLevel => 1,
            _ => unreachable!("{key:?} is not a number"),
        }
    }

    /// Returns the value that MaxBurstLength is expected to get in this negotiation.
    fn max_burst_length(&self) -> u32 {
        match self.states[TextKey::MaxBurstLength as usize] {
            KeyState::Proposed => self.offer.max_burst_length,
            KeyState::Open | KeyState::Settled => self.parameters.max_burst_length,
        }
    }

    /// Returns true if only one R2T may be outstanding, because of recovery with sequences in order
    /// (RFC 7143, 13.19).
    fn recovers_in_order(&self) -> bool {
        let level = match self.states[TextKey::ErrorRecoveryLevel as usize] {
            KeyState::Proposed => self.offer.error_recovery_level,
            KeyState::Open | KeyState::Settled => self.parameters.error_recovery_level,
        };
        level > 0 && (self.parameters.data_sequence_in_order || self.offer.data_sequence_in_order)
    }

    fn number(&self, key: TextKey) -> u32 {
        let now = &self.parameters;
        match key {
            TextKey::MaxConnections => u32::from(now.max_connections),
            TextKey::MaxBurstLength => now.max_burst_length,
            TextKey::FirstBurstLength => now.first_burst_length,
            TextKey::DefaultTime2Wait => u32::from(now.default_time2wait),
            TextKey::DefaultTime2Retain => u32::from(now.default_time2retain),
            TextKey::ErrorRecoveryLevel => u32::from(now.error_recovery_level),
            TextKey::MaxOutstandingR2T => u32::from(now.max_outstanding_r2t),
            _ => unreachable!("{key:?} is not a number that we propose"),
        }
    }

    /// Stores a negotiated number in its field of `parameters`. The number fits the field, since
    /// the key's row in the table bounds it.
    fn set_number(&mut self, key: TextKey, value: u32) {
        let now = &mut self.parameters;
        match key {
            TextKey::MaxConnections => now.max_connections = value as u16,
            TextKey::MaxBurstLength => now.max_burst_length = value,
            TextKey::FirstBurstLength => now.first_burst_length = value,
            TextKey::DefaultTime2Wait => now.default_time2wait = value as u16,
            TextKey::DefaultTime2Retain => now.default_time2retain = value as u16,
            TextKey::ErrorRecoveryLevel => now.error_recovery_level = value as u8,
            TextKey::MaxOutstandingR2T => now.max_outstanding_r2t = value as u16,
            // Ignore the result, which is 0 or 1: we propose level 1, and level 0 requires nothing
            // more.
            TextKey::ProtocolLevel => {}
            _ => unreachable!("{key:?} is not a number"),
        }
    }

    fn set_choice(&mut self, key: TextKey, selected: &str) {
        match key {
            TextKey::Compression => {
                let mut ours = self.offer.compression.iter().copied();
                self.parameters.compression = ours.find(|method| method.name() == selected);
            }
            TextKey::HeaderDigest => self.parameters.digests.header = selected == CRC32C,
            TextKey::DataDigest => self.parameters.digests.data = selected == CRC32C,
            _ => {}
        }
    }
}

impl NegotiationAnswers {
    fn push(&mut self, key: TextKey, value: &str) {
        push(&mut self.text, key.name(), value);
        self.awaited = true;
    }

    /// Answers an unknown key. An unknown key whose value is an answer is an error: two ends could
    /// otherwise send each other NotUnderstood forever.
    fn not_understood(&mut self, name: &str, value: &str) -> Result<(), KeyError> {
        if is_answer_word(value) {
            return Err(KeyError::Value(name.to_owned()));
        }
        // Keys with these prefixes belong to authentication methods that the login does not use.
        if ["CHAP_", "KRB_", "SRP_"].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(KeyError::NotAllowed(name.to_owned()));
        }
        push(&mut self.text, name, "NotUnderstood");
        Ok(())
    }
}

impl DigestPolicy {
    /// Returns the values of a digest key that this policy permits: in this order if we propose the list, in the order
    /// of the peer's list if the peer proposes it.
    fn values(self) -> &'static [&'static str] {
        match self {
            Self::Off => &[NONE],
            Self::Allow => &[NONE, CRC32C],
            Self::Prefer => &[CRC32C, NONE],
            Self::Require => &[CRC32C],
        }
    }
}

const CRC32C: &str = "CRC32C";
const NONE: &str = "None";

/// The keys that an initiator proposes. A key comes after those that its value depends on.
const PROPOSED: [TextKey; 14] = [
    TextKey::HeaderDigest,
    TextKey::DataDigest,
    TextKey::Compression,
    TextKey::MaxConnections,
    TextKey::InitialR2T,
    TextKey::ImmediateData,
    TextKey::MaxBurstLength,
    TextKey::FirstBurstLength,
    TextKey::DefaultTime2Wait,
    TextKey::DefaultTime2Retain,
    TextKey::DataPduInOrder,
    TextKey::DataSequenceInOrder,
    TextKey::ErrorRecoveryLevel,
    TextKey::MaxOutstandingR2T,
];
