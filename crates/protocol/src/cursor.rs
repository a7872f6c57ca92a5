//! Remote cursors: rows of queries that come prefetched, in packed messages, over one connection.
//!
//! Both sides send frames ([`crate::frame`]). The client opens cursors under numbers of its own, each with a *credit*: the bytes of rows that
//! the server may send before it has to wait. As rows are consumed, the client gives more. So a client has no more in memory than it has
//! given, the server no more than it has packed, and a slow cursor holds up no other on the same connection.
//!
//! ```text
//! server  WELCOME    what it takes
//! client  OPEN       cursor 1: a query, its arguments, 1 MiB of credit
//! client  OPEN       cursor 2
//! server  COLUMNS    of cursor 1
//! server  MESSAGE    cursor 1: the first row, alone
//! server  FAILED     cursor 2: there is no such query
//! server  MESSAGE    cursor 1: two rows; then four, eight, ...
//! client  CREDIT     cursor 1: so many bytes more
//! server  END        cursor 1: so many rows, and all of them have come
//! ```
//!
//! Every cursor ends by one END or FAILED, one that the client cancels too. A number is used once, and numbers grow.
//!
//! [`Client`] and [`Server`] are the two sides without a socket: bytes in, events out. docs/cursors.md has the byte tables.
//!
//! *Caveats.* Credit counts bytes of rows: a message that begins within it goes whole, so a client holds one more than it gave. What is in a
//! row is read when it is asked for ([`Batch::rows`]).

mod batch;
mod client;
mod message;
mod server;

pub use batch::{Batch, BatchRows};
pub use client::{Client, Event, Misled};
pub use message::{Cancel, Column, Columns, Credit, End, Failed, Open, Question, Rows, Welcome};
pub use server::{Asked, Server};

/// The version of the protocol, in WELCOME and in the name by which a connection is upgraded.
pub const VERSION: u8 = 1;
/// What a connection is upgraded to.
pub const UPGRADE: &str = "headwater-cursor/1";
/// The most bytes of a frame that a client sends: SQL and arguments.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The most arguments.
pub const ARGUMENTS_MAX: usize = 1_000;
/// The most columns of a result.
pub const COLUMNS_MAX: usize = 4_096;
/// The most bytes of a name.
pub const NAME_BYTES_MAX: usize = 4_096;
/// The most bytes of a text for people.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// The most credit that a cursor may have.
pub const CREDIT_MAX: u64 = 1 << 30;
/// The most cursors on a connection that a server may say it takes.
pub const CURSORS_MAX: u64 = 65_536;

#[cfg(test)]
mod tests;
