//! Finds out why a TLS handshake has failed, and if a retry could help.

use std::{io, sync::Arc};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// The reason why a handshake failed, if a retry is useless.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct Distrust {
    /// The cause of the failed handshake, from which the remedy follows.
    pub cause: DistrustCause,
    /// The reason as text for messages, from rustls or from this file.
    pub reason: Arc<str>,
}

/// The cause of a failed handshake, as seen from this end. Each cause needs another remedy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DistrustCause {
    /// No authority that we trust has signed the peer's certificate.
    UnknownAuthority,
    /// The peer's certificate is for a name other than the one to which we have connected.
    OtherName,
    /// The peer's certificate has expired or is not valid yet.
    OutOfDate,
    /// The peer requires a certificate from us, and we have sent none.
    OursMissing,
    /// The peer does not accept our certificate.
    OursRefused,
    /// The peer does not speak TLS.
    NoTls,
    /// Any other cause, for example that the two ends have no algorithm in common.
    Other,
}

impl Distrust {
    fn new(cause: DistrustCause, reason: impl Into<Arc<str>>) -> Self {
        Self { cause, reason: reason.into() }
    }
}

/// Returns the reason if the handshake failed because the ends do not trust or understand each
/// other. Returns `None` for an error that may be temporary.
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

/// Returns the cause that a TLS alert of the peer reports; `None` for an alert that is not about
/// trust.
fn cause_of(alert: AlertDescription) -> Option<DistrustCause> {
    use AlertDescription as Is;
    match alert {
        Is::CertificateRequired => Some(DistrustCause::OursMissing),
        Is::BadCertificate
        | Is::CertificateExpired
        | Is::CertificateRevoked
        | Is::CertificateUnknown
        // DecryptError: our signature does not match the key of our certificate. (Bytes damaged on
        // the link cause BadRecordMac instead.)
        | Is::DecryptError
        | Is::UnknownCA
        | Is::UnsupportedCertificate => Some(DistrustCause::OursRefused),
        Is::AccessDenied | Is::HandshakeFailure | Is::ProtocolVersion => Some(DistrustCause::Other),
        _ => None,
    }
}
