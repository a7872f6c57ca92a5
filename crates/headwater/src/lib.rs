//! The command line of Headwater, and what it does that no other crate needs.
pub mod diff;
