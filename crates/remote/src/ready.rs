//! Ready files: how a new remote begins with the rows of others that hold the same partitions, in the place of a first download.
//!
//! The server makes such a file by [`build`]: an empty file to which a download was applied, by the very code that applies one here. So what
//! is in it equals what the ordinary way brings. It has no identity: no remote ID, secret, user or server, and watermarks that nobody
//! takes. [`Remote::create_from`](crate::Remote::create_from) asks for one (`take`), and makes it the remote's own:
//!
//! ```text
//! x.db-ready-DIGEST    the bytes as they come; those of a broken attempt stay, and the next goes on after them
//!    | all have come, and have the digest that was promised
//!    | its schema is to the letter what we would make
//!    | identity, watermarks, incarnation, in one transaction; fsync
//! x.db                 by a link, which is there whole or not at all and never takes another file's place
//! ```
//!
//! Whatever goes wrong before that, nothing is there but the bytes that came, and the remote is made the ordinary way; then they go. A file that is
//! there already, with tables of the application's perhaps, is never replaced: it gets its rows by a download.
//!
//! *Caveats.* The digest shows what the way has damaged. A server that means ill can put any rows into a file, as it can into a download.

mod build;
mod take;

pub use self::build::build;
pub(crate) use self::build::nobody;
pub use self::take::Taken;

#[cfg(test)]
mod tests;
