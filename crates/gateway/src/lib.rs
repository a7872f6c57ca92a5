//! Read-only queries over HTTP, in a form that caches can carry.
//!
//! ```text
//! routes     URLs, headers, conditional requests
//!   service    who may, what is kept, one execution for all who ask at once
//!     cache      which answers are kept
//!     tag        what tags of answers say
//!     knobs      options that can be changed while it runs
//!     lane       places to execute in
//!     held       an answer's bytes, in the buffer pool or not
//!     alive      bytes on their way that are not in the pool
//!     coding     zstd, brotli and gzip
//!     packing    answers in one of them, kept or as they come
//!     levels     how hard to compress, by the processor and the link
//!     pace       how fast clients must take what comes, while others wait
//!     run        one execution: rows in pieces, limits, an end when nobody waits
//!   openapi    what there is to ask, for programs
//!   page       the same for people
//!   query      files of SQL whose heads say what they may be asked, and the values of a request
//!   format     rows in JSON, NDJSON, CSV and Arrow
//! frontier_routes  the Frontier protocol over HTTP, on the same service
//! cursors    rows that come prefetched, over a connection of their own
//!   client_sql where SQL of clients is run
//!   frontier   the protocol of the Frontier clients: requests, payloads, answers, in bytes
//! ```
//!
//! [`Gateway`] makes an [`axum::Router`] that is served beside others.
//!
//! *Caveats.* An answer is known by its content: whether it has changed is found out by running the query, unless change tracking knows all
//! that the query reads.

mod alive;
mod cache;
mod client_sql;
mod coding;
mod cursors;
mod fault;
pub mod format;
pub mod frontier;
mod frontier_routes;
mod handover;
mod held;
mod knobs;
mod lane;
mod levels;
mod openapi;
mod pace;
mod packing;
mod page;
pub mod query;
mod routes;
mod run;
mod service;
mod tag;
mod watches;

pub use client_sql::ClientSql;
pub use cursors::{CursorSettings, Stopping};
pub use frontier_routes::FrontierSettings;
pub use knobs::{EXECUTIONS_MAX, PIECE_BYTES_MAX, WAITING_S_MAX};
pub use packing::Compression;
pub use routes::{Gateway, Rate};
pub use service::Settings;
