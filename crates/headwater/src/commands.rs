//! The commands, a file each: arguments and what they do.

pub mod check;
pub mod completions;
pub mod conflicts;
pub mod diff;
pub mod doctor;
pub mod idxbuild;
pub mod init;
pub mod lab;
pub mod purge;
pub mod query;
pub mod remote;
pub mod serve;
pub mod token;
pub mod track;
pub mod tune;
pub mod user;

/// A UUID's text of a remote ID.
pub(crate) fn remote_text(id: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(id).to_string()
}

/// A JSON image from a database as JSON, not as text; what is no JSON stays text.
pub(crate) fn image(text: Option<&str>) -> serde_json::Value {
    text.map_or(serde_json::Value::Null, |text| {
        serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::String(text.to_owned()))
    })
}
