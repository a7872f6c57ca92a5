//! Read-only queries over HTTP, in a form that caches can carry.
//!
//! ```text
//! frontier   the protocol of the Frontier clients: requests, payloads, answers
//! format     rows in JSON, NDJSON and CSV
//! query      files of SQL whose heads say what they may be asked, and the values of a request
//! ```
//!
//! What is here knows no socket and no database: bytes in, bytes out.

pub mod format;
pub mod frontier;
pub mod query;
