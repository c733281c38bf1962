//! The keys of RFC 7143, 12 and 13, and RFC 7144, and the one of ours: who may send them, when, and
//! how two values become one.

use crate::pdu::Stage;

/// A key that RFC 7143 or RFC 7144 defines, or we do. A key stands after those that its result depends on:
/// that is the order in which a text's pairs are dealt with.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Key {
    SessionType,
    InitiatorName,
    InitiatorAlias,
    TargetName,
    TargetAlias,
    TargetAddress,
    TargetPortalGroupTag,
    AuthMethod,
    HeaderDigest,
    DataDigest,
    Compression,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    MaxOutstandingR2T,
    TaskReporting,
    ProtocolLevel,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
    SendTargets,
    NodeArchitecture,
}

/// How many keys there are.
pub(super) const KEYS: usize = Key::NodeArchitecture as usize + 1;

/// One of the two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    Initiator,
    Target,
}

/// How a key becomes a result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// One end tells the other; no answer.
    Declared(Side),
    /// Each end tells the other; no answer.
    DeclaredByBoth,
    /// The first value of the list that the acceptor supports.
    List,
    /// Yes if one end says so.
    Or,
    /// Yes if both ends say so.
    And,
    /// The smaller number, within these bounds.
    Minimum(u32, u32),
    /// The larger number, within these bounds.
    Maximum(u32, u32),
    /// Always answered with this (RFC 7143, 13.25).
    Obsolete(&'static str),
}

/// When a key may be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Use {
    AnyStage,
    Only(Stage),
}

impl Use {
    pub(super) fn allows(self, stage: Stage) -> bool {
        self == Self::AnyStage || self == Self::Only(stage)
    }
}

/// A line of the table.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) name: &'static str,
    pub(super) when: Use,
    pub(super) kind: Kind,
    /// Irrelevant when SessionType=Discovery.
    pub(super) normal_only: bool,
}

impl Key {
    /// The key of this name, exactly as spelled.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.key)
    }

    /// As on the wire.
    pub(super) fn name(self) -> &'static str {
        self.row().name
    }

    pub(super) fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

/// Every key's name, as on the wire.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.name)
}

const fn row(key: Key, name: &'static str, when: Use, kind: Kind) -> Row {
    Row { key, name, when, kind, normal_only: false }
}

const fn normal(key: Key, name: &'static str, kind: Kind) -> Row {
    Row { key, name, when: OPERATIONAL, kind, normal_only: true }
}

const ANY: Use = Use::AnyStage;
const OPERATIONAL: Use = Use::Only(Stage::Operational);
const SECURITY: Use = Use::Only(Stage::Security);
const FULL_FEATURE: Use = Use::Only(Stage::FullFeature);
const BY_INITIATOR: Kind = Kind::Declared(Side::Initiator);
const BY_TARGET: Kind = Kind::Declared(Side::Target);

/// The longest data segment or burst: 2^24 - 1 bytes.
pub(super) const LENGTH_MAX: u32 = (1 << 24) - 1;
const LENGTH: Kind = Kind::Minimum(512, LENGTH_MAX);

#[rustfmt::skip]
const TABLE: [Row; KEYS] = [
    row(Key::SessionType, "SessionType", ANY, BY_INITIATOR),
    row(Key::InitiatorName, "InitiatorName", ANY, BY_INITIATOR),
    row(Key::InitiatorAlias, "InitiatorAlias", ANY, BY_INITIATOR),
    row(Key::TargetName, "TargetName", ANY, BY_INITIATOR),
    row(Key::TargetAlias, "TargetAlias", ANY, BY_TARGET),
    row(Key::TargetAddress, "TargetAddress", ANY, BY_TARGET),
    row(Key::TargetPortalGroupTag, "TargetPortalGroupTag", ANY, BY_TARGET),
    row(Key::AuthMethod, "AuthMethod", SECURITY, Kind::List),
    row(Key::HeaderDigest, "HeaderDigest", OPERATIONAL, Kind::List),
    row(Key::DataDigest, "DataDigest", OPERATIONAL, Kind::List),
    // Ours; private keys begin so (RFC 7143, 13.22).
    normal(Key::Compression, "X-io.forebay.Compression", Kind::List),
    normal(Key::MaxConnections, "MaxConnections", Kind::Minimum(1, 65_535)),
    normal(Key::InitialR2T, "InitialR2T", Kind::Or),
    normal(Key::ImmediateData, "ImmediateData", Kind::And),
    row(Key::MaxRecvDataSegmentLength, "MaxRecvDataSegmentLength", OPERATIONAL, Kind::DeclaredByBoth),
    normal(Key::MaxBurstLength, "MaxBurstLength", LENGTH),
    normal(Key::FirstBurstLength, "FirstBurstLength", LENGTH),
    row(Key::DefaultTime2Wait, "DefaultTime2Wait", OPERATIONAL, Kind::Maximum(0, 3600)),
    row(Key::DefaultTime2Retain, "DefaultTime2Retain", OPERATIONAL, Kind::Minimum(0, 3600)),
    normal(Key::DataPduInOrder, "DataPDUInOrder", Kind::Or),
    normal(Key::DataSequenceInOrder, "DataSequenceInOrder", Kind::Or),
    row(Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", OPERATIONAL, Kind::Minimum(0, 2)),
    normal(Key::MaxOutstandingR2T, "MaxOutstandingR2T", Kind::Minimum(1, 65_535)),
    normal(Key::TaskReporting, "TaskReporting", Kind::List),
    normal(Key::ProtocolLevel, "iSCSIProtocolLevel", Kind::Minimum(0, 31)),
    // RFC 7143 13.25 prefers Reject for the first two and allows No, which the initiators of
    // RFC 3720 that still send them expect.
    row(Key::IfMarker, "IFMarker", OPERATIONAL, Kind::Obsolete("No")),
    row(Key::OfMarker, "OFMarker", OPERATIONAL, Kind::Obsolete("No")),
    row(Key::IfMarkInt, "IFMarkInt", OPERATIONAL, Kind::Obsolete("Reject")),
    row(Key::OfMarkInt, "OFMarkInt", OPERATIONAL, Kind::Obsolete("Reject")),
    row(Key::SendTargets, "SendTargets", FULL_FEATURE, BY_INITIATOR),
    row(Key::NodeArchitecture, "X#NodeArchitecture", ANY, Kind::DeclaredByBoth),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_at_its_key() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, index, "{}", row.name);
            assert_eq!(Key::from_name(row.name), Some(row.key));
        }
        assert_eq!(Key::from_name("maxburstlength"), None);
    }
    #[test]
    fn the_page_lists_every_key() {
        let page = include_str!("../../../../docs/protocols.md");
        let (_, section) = page.split_once("\n## Text keys\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let mut listed: Vec<_> = cells.flat_map(|cell| cell.trim().split(", ")).collect();
        let mut names: Vec<_> = TABLE.iter().map(|row| row.name).chain(["any other"]).collect();
        listed.sort_unstable();
        names.sort_unstable();
        assert_eq!(listed, names);
    }
}
