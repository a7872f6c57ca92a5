//! The Frontier protocol, as its deployed clients speak it: SQL in the URL, rows in XML.
//!
//! ```text
//! GET /X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1J...   request: what is asked, and how it is to come
//!     |
//! 06 00000002 4944 ... 07                                                            payload: a header and the rows, in fields
//!     | zlib, base64 in lines of 76
//! <frontier ...><transaction ...><payload ...><data>eF5j...</data><quality md5=.../> answer: the frame around it
//! ```
//!
//! The facts are those of `frontier-protocol.md`, most of them seen on the wire with the C client 2.10 or the servlet 3.42.
//!
//! *Caveats.* A value that is bound can't contain a colon: nothing in the protocol says where it would end.

mod answer;
mod payload;
mod request;
pub(crate) mod results;
mod signature;

pub use answer::{Answer, Quality, escaped};
pub use payload::{Field, FieldError, Fields, Rows};
pub use request::{Asked, Encoding, Kind, P1Error, Request, RequestError, SQL_BYTES_MAX, Statement, Ttl};
#[cfg(test)]
pub(crate) use signature::tests::signer;
pub use signature::{Signer, SignerError};
