//! What goes over the network: frames, the one table of message kinds, the one gate through which bytes become values.
//!
//! Must not know sockets, streams or peers, nor what a message means.

mod codec;
mod frame;
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod golden;
mod kind;
mod scan;

pub use codec::{
    DEPTH_MAX, WireError, decode, decode_payload, encode, encode_into, encode_payload,
    encode_payload_into,
};
pub use frame::{FRAME_MAX, Frame, HEADER_LEN, Header, HeaderError, WIRE_VERSION};
pub use kind::{DATA_MAX, Encoding, INLINE_MAX, KINDS, Kind, KindInfo};
