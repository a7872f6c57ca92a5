//! What reads bytes of others, as targets for a fuzzer: each takes any bytes at all, and panics if a promise is broken.
//!
//! `scripts/fuzz` searches with libFuzzer for inputs that reach new code; those worth keeping, and those that once broke something, lie
//! in [`corpus`] and are replayed by `make test`. A target promises more than not to panic: what is read is written the same again, and
//! how bytes are cut into pieces changes nothing.

pub mod access;
pub mod corpus;
pub mod cursor;
pub mod frontier;
pub mod gateway;
pub mod model;
pub mod sqlite;
pub mod stream;
pub mod values;
pub mod wire;

/// A target: its name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("frame", stream::frame),
    ("request", stream::request),
    ("answer", stream::answer),
    ("ready", stream::ready),
    ("session", stream::session),
    ("cursor_client", cursor::client),
    ("cursor_server", cursor::server),
    ("message", wire::message),
    ("row", wire::row),
    ("change", wire::change),
    ("rows", wire::rows),
    ("text", values::text),
    ("decimal", values::decimal),
    ("stored", values::stored),
    ("model", model::file),
    ("model_json", model::json),
    ("sql", model::sql),
    ("script", model::script),
    ("credentials", access::credentials),
    ("token", access::token),
    ("database_url", access::database_url),
    ("frontier_request", frontier::request),
    ("frontier_statement", frontier::statement),
    ("frontier_fields", frontier::fields),
    ("gateway_rows", gateway::rows),
    ("sqlite_pages", sqlite::pages),
    ("sqlite_key", sqlite::key),
];

/// The target of this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
