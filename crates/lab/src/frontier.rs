//! A client of the Frontier protocol: it asks as the deployed clients do, and takes no answer that they would not take. It has nothing in
//! common with what the gateway writes, so it reads whatever serves the protocol.
//!
//! ```text
//! request     SQL, or a file's path, to the last part of a URL
//! answer      the frame around the payload: errors, the digest or the signature, sizes
//! payload     fields to records
//! signature   whose key has signed an answer
//! ```
//!
//! ```
//! use headwater_lab::frontier::Request;
//!
//! let request = Request::new("select id, name from t").level(Some(5));
//! assert!(request.target().starts_with("type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1="));
//! assert_eq!(request.encoding(), "BLOBzip5");
//! ```
//!
//! *Caveats.* One payload a request. A certificate is taken as it comes: what vouches for it is not looked at.

mod answer;
mod payload;
mod request;
mod signature;
#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerError};
pub use payload::{Field, PayloadError, Records};
pub use request::{Request, Ttl};
pub use signature::{Certificate, CertificateError};

/// The header that each request must have, ...
pub const ID_HEADER: &str = "x-frontier-id";
/// ... and what this client says of itself there.
pub const ID: &str = concat!("headwater-lab ", env!("CARGO_PKG_VERSION"));
