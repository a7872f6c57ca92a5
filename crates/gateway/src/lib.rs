//! Read-only queries over HTTP, in a form that caches can carry.
//!
//! ```text
//! routes     URLs, headers, conditional requests
//!   service    who may, what is kept, one execution for all who ask at once
//!     cache      answers within a bound in bytes
//!     coding     zstd, brotli and gzip
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
//! that the query reads, and the answer is kept.

mod cache;
mod coding;
mod fault;
pub mod format;
pub mod frontier;
mod frontier_routes;
mod handover;
mod openapi;
mod page;
pub mod query;
mod routes;
mod run;
mod service;
mod watches;

pub use frontier_routes::FrontierSettings;
pub use routes::Gateway;
pub use service::Settings;
