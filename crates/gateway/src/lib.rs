//! Read-only queries over HTTP, in a form that caches can carry.
//!
//! ```text
//! frontier   the protocol of the Frontier clients: requests, payloads, answers
//! ```
//!
//! What is here knows no socket and no database: bytes in, bytes out.

pub mod frontier;
