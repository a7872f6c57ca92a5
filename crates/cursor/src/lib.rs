//! The client of remote cursors: rows of a server's queries, prefetched over one connection.
//!
//! ```text
//! cursor       rows in their order, back over those that are kept
//!   connection  several cursors, one socket: whoever waits reads for all
//!     line      TCP, TLS, and the request that is upgraded
//! ```
//!
//! ```no_run
//! # fn main() -> Result<(), headwater_cursor::Error> {
//! use headwater_cursor::{Connection, Credentials, Server};
//!
//! let credentials = Credentials::Token("...".to_owned());
//! let server = Server { url: "https://sync.example.com".to_owned(), credentials, ca_file: None };
//! let connection = Connection::open(&server)?;
//! let mut flights = connection.query("flights", &[("origin", "JFK")])?;
//! let mut airports = connection.query("airports", &[])?; // beside it, over the same connection
//! while let Some(row) = flights.next_row()? {
//!     println!("{row:?}");
//! }
//! println!("{} columns", airports.columns()?.len());
//! # Ok(())
//! # }
//! ```
//!
//! Rows come in messages that the server packs. They come before they are asked for, until as many bytes wait as [`Options::window_bytes`] says;
//! then the server waits. What was fetched is kept for going back ([`Cursor::seek`]), up to [`Options::kept_bytes`].
//!
//! *Caveats.* Everything blocks. There is no thread: a connection that nobody reads from takes nothing, so keep the time between two calls below
//! the server's `idle_s`. Nothing is tried again: a cursor that broke is to be opened anew, and begins with its first row.

mod connection;
mod cursor;
mod error;
mod line;

use std::path::PathBuf;

pub use connection::{Connection, Options};
pub use cursor::Cursor;
pub use error::Error;
pub use headwater_protocol::cursor::{Batch, BatchRows, Column};
pub use headwater_protocol::{Row, Value, ValueRef};

/// Where the server is, and how to be let in.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address, `https://...`.
    pub url: String,
    /// What to show.
    pub credentials: Credentials,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// What is shown to be let in.
#[derive(Clone)]
pub enum Credentials {
    /// Nothing: public queries alone.
    Nothing,
    /// A token.
    Token(String),
    /// User and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Nothing => f.write_str("Nothing"),
            Credentials::Token(_) => f.write_str("Token(..)"),
            Credentials::Password { user, .. } => write!(f, "Password({user}, ..)"),
        }
    }
}
