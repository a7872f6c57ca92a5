//! The server: HTTP, TLS, admission, workers, spools, shutdown.
//!
//! ```text
//! connection ──> routes ──> sync ──> receive ──> [upload spool] ──> work ──> [answer's spool] ──> connection
//!  (limits of time)         (admission)              │ greet, upload, download on a worker's thread
//! ```
//!
//! No worker waits for a client: an upload is received whole before one is taken, and a download is read from the database into a
//! spool, from which it is sent at the client's speed. So the number of workers depends on the database alone, and slow or vanished
//! clients cost a little memory, some disk, and a connection until they are cut. Every limit is in [`limits`].
//!
//! The server keeps nothing that must last: any other on the same database can take any remote's next sync.

mod admin;
mod admission;
mod beginning;
mod chunk;
mod chunks;
mod comeback;
mod connection;
mod counts;
mod descriptors;
mod downloads;
mod failure;
mod files;
mod front;
mod host;
mod limit;
pub mod limits;
mod line;
mod log;
mod packing;
mod pieces;
mod places;
mod ready;
mod receive;
mod resume;
mod routes;
mod server;
mod spool;
mod state;
mod sync;
mod tickets;
mod tls;
mod tuning;
mod upkeep;
mod without_syncs;
mod work;

pub use admin::{Admin, AdminError, TUNING_LOG, TokenDigest};
pub use connection::Stopping;
pub use descriptors::raise_open_files;
pub use limits::{Config, ConfigError};
pub use line::Line;
pub use packing::FramePacking;
pub use ready::{BuildReady, READY_FOLDER};
pub use server::{Handle, Joined, Server, StartError, Stopped};
pub use tls::TlsError;
