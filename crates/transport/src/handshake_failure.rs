//! The reasons for which a TLS handshake fails permanently.

use std::{io, sync::Arc};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// The reason of a failed handshake for which a retry is useless.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct Distrust {
    /// The cause, which decides the remedy.
    pub cause: DistrustCause,
    /// The reason as text for a message, from rustls or from this file.
    pub reason: Arc<str>,
}

/// The causes with different remedies, as seen from this end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DistrustCause {
    /// No authority that we trust has signed the peer's certificate.
    UnknownAuthority,
    /// The peer's certificate is for another name than the one we connected to.
    OtherName,
    /// The peer's certificate has expired, or is not valid yet.
    OutOfDate,
    /// The peer requires a certificate from us, and we have sent none.
    OursMissing,
    /// The peer does not accept our certificate.
    OursRefused,
    /// The peer does not speak TLS.
    NoTls,
    /// Anything else, such as no algorithm in common.
    Other,
}

impl Distrust {
    fn new(cause: DistrustCause, reason: impl Into<Arc<str>>) -> Self {
        Self { cause, reason: reason.into() }
    }
}

/// Returns the reason if the handshake failed because the two ends do not trust or understand each
/// other; `None` for an error that may be temporary.
#[must_use]
pub fn distrust(error: &io::Error) -> Option<Distrust> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let cause = match error {
        Error::AlertReceived(alert) => {
            let reason = format!("the peer does not accept our certificate ({alert:?})");
            return Some(Distrust::new(cause_of(*alert)?, reason));
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return Some(Distrust::new(DistrustCause::NoTls, "the peer does not speak TLS"));
        }
        Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer => DistrustCause::UnknownAuthority,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                DistrustCause::OtherName
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => DistrustCause::OutOfDate,
            _ => DistrustCause::Other,
        },
        Error::NoCertificatesPresented
        | Error::PeerIncompatible(_)
        | Error::UnsupportedNameType => DistrustCause::Other,
        _ => return None,
    };
    Some(Distrust::new(cause, error.to_string()))
}

/// Returns the cause of an alert; `None` for an alert that is not about trust.
fn cause_of(alert: AlertDescription) -> Option<DistrustCause> {
    use AlertDescription as Is;
    match alert {
        Is::CertificateRequired => Some(DistrustCause::OursMissing),
        Is::BadCertificate
        | Is::CertificateExpired
        | Is::CertificateRevoked
        | Is::CertificateUnknown
        // The signature does not match the certificate's key. Bytes damaged on the link cause
        // BadRecordMac instead.
        | Is::DecryptError
        | Is::UnknownCA
        | Is::UnsupportedCertificate => Some(DistrustCause::OursRefused),
        Is::AccessDenied | Is::HandshakeFailure | Is::ProtocolVersion => Some(DistrustCause::Other),
        _ => None,
    }
}
