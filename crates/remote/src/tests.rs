//! What a remote does with its file, step by step: real SQLite, real frames, no server.

mod blocked;
mod cascade;
mod comes_whole;
mod counters;
mod crash;
mod departure;
mod filling;
mod gone;
mod history;
mod involved;
mod kept;
mod key_ranges;
mod lost;
mod own_columns;
mod own_tables;
mod own_triggers;
mod pending;
mod prepared;
mod server;
mod story;
pub(crate) mod support;
mod tracking;
mod transport;
mod types;
mod unsent;
mod untracked;
mod versions;
