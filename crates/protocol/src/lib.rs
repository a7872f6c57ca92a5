//! The wire of a synchronization, and of remote cursors, without a socket.
//!
//! docs/protocol.md describes it byte by byte. From the bottom: [`value`], [`decimal`] and [`row`] (what a row is), [`frame`] (length,
//! kind, checksum), [`message`] (what each frame holds), [`upload`] (what makes an upload apply exactly once), and the sessions that
//! say what follows what. Nothing here knows a clock, a file, a socket or randomness.

pub mod chunk;
pub mod client;
pub mod counter;
pub mod cursor;
pub mod decimal;
pub mod frame;
pub mod fuzzing;
pub mod limits;
pub mod message;
pub mod packer;
pub mod row;
pub mod server;
pub mod stored;
pub mod text;
pub mod upload;
pub mod value;
pub mod wire;

pub use decimal::{Decimal, DecimalRef};
pub use frame::{Decoder, Frame, Kind};
pub use limits::{Limits, ROW_BYTES_MAX};
pub use value::{Row, Type, Value, ValueRef};
pub use wire::DecodeError;
