//! Read-only queries over HTTP, in a form that caches can carry.
//!
//! ```text
//! routes     URLs, headers, conditional requests
//!   service    who may, what is kept, one execution for all who ask at once
//!     cache      answers within a bound in bytes
//!     tag        what tags of answers say
//!     lane       places to execute in
//!     alive      bytes that are kept or on their way
//!     coding     zstd, brotli and gzip
//!     packing    answers in one of them, kept or as they come
//!     levels     how hard to compress, by the processor and the link
//!     run        one execution: rows in pieces, limits, an end when nobody waits
//!   openapi    what there is to ask, for programs
//!   page       the same for people
//!   query      files of SQL whose heads say what they may be asked, and the values of a request
//!   format     rows in JSON, NDJSON, CSV and Arrow
//! frontier_routes  the Frontier protocol over HTTP, on the same service
//!   frontier   the protocol of the Frontier clients: requests, payloads, answers, in bytes
//! ```
//!
//! [`Gateway`] makes an [`axum::Router`] that is served beside others.
//!
//! *Caveats.* An answer is known by its content: whether it has changed is found out by running the query, unless change tracking knows all
//! that the query reads.

mod alive;
mod cache;
mod coding;
mod fault;
pub mod format;
pub mod frontier;
mod frontier_routes;
mod handover;
mod lane;
mod levels;
mod openapi;
mod packing;
mod page;
pub mod query;
mod routes;
mod run;
mod service;
mod tag;
mod watches;

pub use frontier_routes::FrontierSettings;
pub use packing::Compression;
pub use routes::{Gateway, Rate};
pub use service::Settings;
