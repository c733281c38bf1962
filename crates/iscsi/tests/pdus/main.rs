//! Tests PDUs as bytes: the decoder, the layouts of the standard, and PDUs of peers that violate
//! it.

mod codec;
mod pdu;
mod pdu_layout;
mod pdu_hostile;
