//! The stages of login, both sides (RFC 7143, 6).
