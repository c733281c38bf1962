//! Creates certificates for the tests of this crate and of other crates.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority for tests, which issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of the authority as PEM.
    pub certificate: String,
}

/// A certificate and its private key as PEM texts.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// Creates a certificate authority with a unique name.
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        Self::named(&format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Issues a certificate for the host `name`, which may be an address.
    pub fn issue(&self, name: &str) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}
