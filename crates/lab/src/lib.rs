//! The lab: experiments written down, run on a database, and kept with all that is needed to trust the numbers.
//!
//! Data travels one way:
//!
//! ```text
//! experiment (a file, axes, cells) + scenario (what clients do)
//!      |
//!    plan (the order of the runs)
//!      |
//!   harness (schedule -> clients -> recorders -> observer)
//! ```

pub mod address;
pub mod error;
pub mod experiment;
pub mod harness;
pub mod plan;
pub mod random;
pub mod reading;
pub mod scenario;
pub mod value;

pub use error::Error;
