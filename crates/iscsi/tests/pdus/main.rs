//! PDUs as bytes: the codec, layouts, and PDUs of hostile peers.

mod codec;
mod pdu;
mod pdu_layout;
mod pdu_hostile;
