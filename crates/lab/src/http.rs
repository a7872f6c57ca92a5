//! GETs as a load: what HTTP servers and the caches before them answer, counted at each layer and checked.
//!
//! ```text
//! settings  the parameters of the scenario `http`
//! target    where requests go: any server's URL or the lab's own, a gateway, directly or by a proxy
//! asks      paths and SQL, drawn by Zipf's law
//! gateway   a gateway that the lab starts, and the table that it is asked for
//! payload   rows of a column, which their key fixes
//! origin    a server that answers with them, and does nothing else: the most that can be had
//! fetch     one connection: a request, and its answer to the last byte
//! decode    a body as it was before its encoding, counted and checked while it comes
//! told      whether an answer comes from a cache, as it says itself
//! workload  all of it, as the harness drives it
//! ```

pub mod asks;
mod decode;
mod fetch;
mod gateway;
pub mod origin;
pub mod payload;
pub mod settings;
mod target;
pub mod told;
mod workload;

pub use origin::Origin;
pub use settings::HttpSettings;
pub(crate) use target::HttpTarget;
pub(crate) use workload::HttpWorkload;
