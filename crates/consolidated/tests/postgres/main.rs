//! PostgreSQL as the consolidated database, against a real server: what the contract suite, which every backend runs, can't ask.

mod catalogue;
mod classification;
mod plain;
mod pooler;
mod session;
mod sets;
mod standby;
mod support;
mod tracking;
mod types;
mod watermark;
