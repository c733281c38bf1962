//! PDUs as bytes: the codec, layouts, and what hostile peers send.

mod codec;
mod pdu;
mod pdu_layout;
mod pdu_hostile;
