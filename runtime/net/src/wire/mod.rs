//! The wire format: frames, the table of message kinds, and the checked decoder of payloads.
//!
//! This module does not know sockets, streams, peers or the meaning of messages.

mod codec;
mod frame;
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod golden;
mod kind;
mod reader;
mod scan;
mod shared;

pub use codec::{
    DEPTH_MAX, WireError, decode, decode_payload, decode_stored, encode, encode_into,
    encode_named_into, encode_payload, encode_payload_into,
};
pub use frame::{FRAME_MAX, Frame, HEADER_LEN, Header, HeaderError, WIRE_VERSION};
pub use kind::{DATA_MAX, Encoding, INLINE_MAX, KINDS, Kind, KindInfo};
pub use shared::{decode_shared, shared_bytes};
