//! Logins with the text keys that existing initiators send, taken from their source code.

use super::*;

const SECURITY_KEYS: [&str; 4] = [NAMES[0], NAMES[1], "SessionType=Normal", "AuthMethod=None"];

/// Sends the keys of the security stage, then those of the operational stage. Returns the answers
/// to the operational keys, and the result.
fn two_stages(security: &[&str], operational: &[&str]) -> (Vec<String>, Parameters) {
    let mut login = target(NegotiationOffer::target());
    let response = respond(&mut login, request(Security, Some(Operational), security));
    assert_eq!((response.transit, response.next_stage), (true, Operational));
    let (said, end) = establish(&mut login, request(Operational, Some(FullFeature), operational));
    (said, end.parameters)
}

#[test]
fn linux_logs_in() {
    let (said, agreed) = two_stages(
        &[NAMES[0], "InitiatorAlias=debian", NAMES[1], "SessionType=Normal", "AuthMethod=None"],
        &[
            "HeaderDigest=None",
            "DataDigest=None",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "IFMarker=No",
            "OFMarker=No",
            "ErrorRecoveryLevel=0",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=16776192",
            "FirstBurstLength=262144",
            "MaxOutstandingR2T=1",
            "MaxConnections=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "MaxRecvDataSegmentLength=262144",
        ],
    );
    assert!(said.contains(&"IFMarker=No".to_owned()));
    assert!(!said.iter().any(|pair| pair.ends_with("NotUnderstood") || pair.ends_with("Reject")));
    let expected = Parameters {
        initial_r2t: false,
        max_recv_data_segment_length: 262_144,
        max_send_data_segment_length: 262_144,
        max_burst_length: 16_776_192,
        first_burst_length: 262_144,
        default_time2retain: 0,
        ..Parameters::default()
    };
    assert_eq!(agreed, expected);
}

#[test]
fn libiscsi_logs_in() {
    let (_, agreed) = two_stages(
        &[
            NAMES[0],
            "InitiatorAlias=libiscsi",
            NAMES[1],
            "SessionType=Normal",
            "AuthMethod=CHAP,None",
        ],
        &[
            "HeaderDigest=None,CRC32C",
            "DataDigest=None",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=16776192",
            "FirstBurstLength=262144",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "MaxOutstandingR2T=1",
            "ErrorRecoveryLevel=0",
            "IFMarker=No",
            "OFMarker=No",
            "MaxConnections=1",
            "MaxRecvDataSegmentLength=262144",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
        ],
    );
    assert!(!agreed.digests.header);
    assert_eq!(agreed.max_burst_length, 16_776_192);
}

/// libiscsi with a CHAP user, and a target that chose None (libiscsi issue 196).
#[test]
fn libiscsi_names_itself_again_in_the_operational_stage() {
    let names = [NAMES[0], "InitiatorAlias=me", NAMES[1], "SessionType=Normal"];
    let security = [&names[..], &["AuthMethod=CHAP,None"]].concat();
    let operational = [&names[..], &["HeaderDigest=None,CRC32C", "MaxBurstLength=262144"]].concat();
    two_stages(&security, &operational);
    for other in
        ["InitiatorName=iqn.x", "InitiatorAlias=you", "TargetName=iqn.x", "SessionType=Discovery"]
    {
        let mut login = target(NegotiationOffer::target());
        respond(&mut login, request(Security, Some(Operational), &security));
        let changed = request(Operational, Some(FullFeature), &[other]);
        assert_eq!(refuse(&mut login, changed), LoginStatus::InitiatorError, "{other}");
    }
}

#[test]
fn ipxe_logs_in() {
    let (said, agreed) = two_stages(
        &SECURITY_KEYS,
        &[
            "HeaderDigest=None",
            "DataDigest=None",
            "MaxConnections=1",
            "InitialR2T=Yes",
            "ImmediateData=No",
            "MaxRecvDataSegmentLength=8192",
            "MaxBurstLength=262144",
            "FirstBurstLength=65536",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=0",
            "MaxOutstandingR2T=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "ErrorRecoveryLevel=0",
        ],
    );
    assert!(said.contains(&"InitialR2T=Yes".to_owned()));
    assert!(agreed.initial_r2t && !agreed.immediate_data);
    assert_eq!(agreed.default_time2wait, 0);
}

#[test]
fn freebsd_logs_in() {
    let (_, agreed) = two_stages(
        &[NAMES[0], NAMES[1], "SessionType=Normal", "AuthMethod=None,CHAP"],
        &[
            "HeaderDigest=CRC32C",
            "DataDigest=CRC32C",
            "ImmediateData=Yes",
            "MaxBurstLength=262144",
            "FirstBurstLength=262144",
            "InitialR2T=Yes",
            "MaxOutstandingR2T=1",
            "MaxRecvDataSegmentLength=262144",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=0",
            "ErrorRecoveryLevel=0",
        ],
    );
    assert!(agreed.digests.header && agreed.digests.data);
    assert_eq!(agreed.first_burst_length, 262_144);
}

#[test]
fn openbsd_logs_in() {
    let (_, agreed) = two_stages(
        &[NAMES[0], NAMES[1], "AuthMethod=None"],
        &["MaxRecvDataSegmentLength=65536", "HeaderDigest=None", "DataDigest=None"],
    );
    assert_eq!(agreed.max_send_data_segment_length, 65_536);
    assert_eq!(agreed.max_recv_data_segment_length, 262_144);
}
