//! The table of the text keys of RFC 7143, 12 and 13, RFC 7144 and Forebay: when each may be sent,
//! by which end, and how two values are combined.

use crate::pdu::LoginStage;

/// A key of RFC 7143, RFC 7144 or Forebay. A key comes after those that its result depends on: the
/// pairs of a text are processed in this order.
///
/// The comment of a key says what our target and our initiator do; `docs/protocols.md` has it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum TextKey {
    /// `Normal` or `Discovery`; both ends support both.
    SessionType,
    /// The target requires the name in the first request, with up to 223 bytes.
    InitiatorName,
    /// The target replaces control characters.
    InitiatorAlias,
    /// The target requires the name in the first request of a normal session, with up to 223 bytes.
    TargetName,
    /// The initiator replaces control characters.
    TargetAlias,
    /// In the answer to SendTargets: the portals of the same group and kind (TLS or not), the one
    /// in use first. In a redirect: the portal to which the initiator then logs in.
    TargetAddress,
    /// The target sends the tag in its first whole response, and the initiator notes it.
    TargetPortalGroupTag,
    /// The target supports CHAP and None. The initiator proposes `None`, with a secret `CHAP,None`,
    /// and for mutual CHAP `CHAP`.
    AuthMethod,
    /// The target supports CRC32C and None; the initiator proposes `None,CRC32C`.
    HeaderDigest,
    /// As HeaderDigest.
    DataDigest,
    /// The target supports lz4 and zstd if its `compression` has them, and None. The initiator
    /// proposes its `compression`, and does not send the key if that is none.
    ///
    /// Names of private keys begin with X- (RFC 7143, 13.22).
    Compression,
    /// The target accepts up to 4; the initiator proposes `connections` (1).
    MaxConnections,
    /// The target proposes No, or Yes with `initial_r2t`; the initiator proposes No.
    InitialR2T,
    /// Both ends propose Yes; the target No with `immediate_data = false`.
    ImmediateData,
    /// The target declares `max_recv_data_segment_length` (256 KiB), the initiator 256 KiB.
    MaxRecvDataSegmentLength,
    /// The target accepts up to `max_burst_length` (1 MiB); the initiator proposes 1 MiB.
    MaxBurstLength,
    /// The target accepts up to `first_burst_length` (256 KiB); the initiator proposes 256 KiB. The
    /// result is never above MaxBurstLength.
    FirstBurstLength,
    /// Both ends propose 0 s.
    DefaultTime2Wait,
    /// Both ends accept up to 20 s.
    DefaultTime2Retain,
    /// Both ends propose Yes.
    DataPduInOrder,
    /// Both ends propose Yes.
    DataSequenceInOrder,
    /// The target accepts up to 2; the initiator proposes `error_recovery_level` (2).
    ErrorRecoveryLevel,
    /// The target accepts up to `max_outstanding_r2t` (8); the initiator proposes 8. With recovery
    /// and DataSequenceInOrder the result is 1.
    MaxOutstandingR2T,
    /// The target supports RFC3720; the initiator does not send the key.
    TaskReporting,
    /// The target supports 1; the initiator does not send the key.
    ProtocolLevel,
    /// The initiator does not send the key.
    IfMarker,
    /// The initiator does not send the key.
    OfMarker,
    /// The initiator does not send the key.
    IfMarkInt,
    /// The initiator does not send the key.
    OfMarkInt,
    /// The target answers `All`, a name and an empty value in full feature phase; the initiator
    /// asks in a discovery session.
    SendTargets,
    /// The target ignores the key; the initiator ignores it and does not send it.
    NodeArchitecture,
}

/// The number of variants of [`TextKey`].
pub(super) const KEYS: usize = TextKey::NodeArchitecture as usize + 1;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IscsiRole {
    Initiator,
    Target,
}

/// How two ends agree on the value of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyKind {
    /// The end with this role declares the value, and the other end does not answer.
    Declared(IscsiRole),
    /// Each end declares a value of its own, and neither answers.
    DeclaredByBoth,
    /// The proposal is a list. The answer is its first value that the peer supports.
    List,
    /// The result is Yes if at least one end says Yes.
    Or,
    /// The result is Yes if both ends say Yes.
    And,
    /// The result is the smaller number; the bounds are inclusive.
    Minimum(u32, u32),
    /// The result is the larger number; the bounds are inclusive.
    Maximum(u32, u32),
    /// The key has this answer, whatever the peer proposes (RFC 7143, 13.25).
    Obsolete(&'static str),
}

/// The stages in which a key may be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyStages {
    AnyStage,
    Only(LoginStage),
}

impl KeyStages {
    pub(super) fn allows(self, stage: LoginStage) -> bool {
        self == Self::AnyStage || self == Self::Only(stage)
    }
}

#[derive(Clone, Copy)]
pub(super) struct KeyTableRow {
    pub(super) key: TextKey,
    pub(super) name: &'static str,
    pub(super) when: KeyStages,
    pub(super) kind: KeyKind,
    /// True if the key is irrelevant with SessionType=Discovery.
    pub(super) normal_only: bool,
}

impl TextKey {
    /// Returns the key named `name`, which is case-sensitive; `None` if no key has that name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.key)
    }

    pub(super) fn name(self) -> &'static str {
        self.row().name
    }

    pub(super) fn row(self) -> &'static KeyTableRow {
        &TABLE[self as usize]
    }
}

const fn row(key: TextKey, name: &'static str, when: KeyStages, kind: KeyKind) -> KeyTableRow {
    KeyTableRow { key, name, when, kind, normal_only: false }
}

const fn normal(key: TextKey, name: &'static str, kind: KeyKind) -> KeyTableRow {
    KeyTableRow { key, name, when: OPERATIONAL, kind, normal_only: true }
}

const ANY: KeyStages = KeyStages::AnyStage;
const OPERATIONAL: KeyStages = KeyStages::Only(LoginStage::Operational);
const SECURITY: KeyStages = KeyStages::Only(LoginStage::Security);
const FULL_FEATURE: KeyStages = KeyStages::Only(LoginStage::FullFeature);
const BY_INITIATOR: KeyKind = KeyKind::Declared(IscsiRole::Initiator);
const BY_TARGET: KeyKind = KeyKind::Declared(IscsiRole::Target);

/// The longest data segment or burst: 2^24 - 1 bytes.
pub(super) const LENGTH_MAX: u32 = (1 << 24) - 1;
const LENGTH: KeyKind = KeyKind::Minimum(512, LENGTH_MAX);

#[rustfmt::skip]
const TABLE: [KeyTableRow; KEYS] = [
    row(TextKey::SessionType, "SessionType", ANY, BY_INITIATOR),
    row(TextKey::InitiatorName, "InitiatorName", ANY, BY_INITIATOR),
    row(TextKey::InitiatorAlias, "InitiatorAlias", ANY, BY_INITIATOR),
    row(TextKey::TargetName, "TargetName", ANY, BY_INITIATOR),
    row(TextKey::TargetAlias, "TargetAlias", ANY, BY_TARGET),
    row(TextKey::TargetAddress, "TargetAddress", ANY, BY_TARGET),
    row(TextKey::TargetPortalGroupTag, "TargetPortalGroupTag", ANY, BY_TARGET),
    row(TextKey::AuthMethod, "AuthMethod", SECURITY, KeyKind::List),
    row(TextKey::HeaderDigest, "HeaderDigest", OPERATIONAL, KeyKind::List),
    row(TextKey::DataDigest, "DataDigest", OPERATIONAL, KeyKind::List),
    normal(TextKey::Compression, "X-io.forebay.Compression", KeyKind::List),
    normal(TextKey::MaxConnections, "MaxConnections", KeyKind::Minimum(1, 65_535)),
    normal(TextKey::InitialR2T, "InitialR2T", KeyKind::Or),
    normal(TextKey::ImmediateData, "ImmediateData", KeyKind::And),
    row(TextKey::MaxRecvDataSegmentLength, "MaxRecvDataSegmentLength", OPERATIONAL, KeyKind::DeclaredByBoth),
    normal(TextKey::MaxBurstLength, "MaxBurstLength", LENGTH),
    normal(TextKey::FirstBurstLength, "FirstBurstLength", LENGTH),
    row(TextKey::DefaultTime2Wait, "DefaultTime2Wait", OPERATIONAL, KeyKind::Maximum(0, 3600)),
    row(TextKey::DefaultTime2Retain, "DefaultTime2Retain", OPERATIONAL, KeyKind::Minimum(0, 3600)),
    normal(TextKey::DataPduInOrder, "DataPDUInOrder", KeyKind::Or),
    normal(TextKey::DataSequenceInOrder, "DataSequenceInOrder", KeyKind::Or),
    row(TextKey::ErrorRecoveryLevel, "ErrorRecoveryLevel", OPERATIONAL, KeyKind::Minimum(0, 2)),
    normal(TextKey::MaxOutstandingR2T, "MaxOutstandingR2T", KeyKind::Minimum(1, 65_535)),
    normal(TextKey::TaskReporting, "TaskReporting", KeyKind::List),
    normal(TextKey::ProtocolLevel, "iSCSIProtocolLevel", KeyKind::Minimum(0, 31)),
    // RFC 7143, 13.25 prefers Reject as the answer to IFMarker and OFMarker and allows No.
    // Initiators that still send these keys (RFC 3720) expect No.
    row(TextKey::IfMarker, "IFMarker", OPERATIONAL, KeyKind::Obsolete("No")),
    row(TextKey::OfMarker, "OFMarker", OPERATIONAL, KeyKind::Obsolete("No")),
    row(TextKey::IfMarkInt, "IFMarkInt", OPERATIONAL, KeyKind::Obsolete("Reject")),
    row(TextKey::OfMarkInt, "OFMarkInt", OPERATIONAL, KeyKind::Obsolete("Reject")),
    row(TextKey::SendTargets, "SendTargets", FULL_FEATURE, BY_INITIATOR),
    row(TextKey::NodeArchitecture, "X#NodeArchitecture", ANY, KeyKind::DeclaredByBoth),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_row_is_at_the_index_of_its_key() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, index, "{}", row.name);
            assert_eq!(TextKey::from_name(row.name), Some(row.key));
        }
        assert_eq!(TextKey::from_name("maxburstlength"), None);
    }
}
