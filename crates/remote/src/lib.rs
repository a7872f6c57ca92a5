//! One embedded SQLite database that synchronizes with a consolidated database.
//!
//! A [`Remote`] is an ordinary SQLite file with the tables of a model. Applications, in any language, read and write them with plain
//! SQL, online or not; triggers note what changed. [`Remote::sync`] sends the changes up and brings down what others changed.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use headwater_model::Model;
//! use headwater_remote::{CreateOptions, Remote};
//!
//! // As a server gives it: see `http::fetch_model`.
//! let model = Model::from_json(
//!     r#"{"name": "notes", "version": 1, "partitions": [], "tables": [{
//!         "schema": null, "name": "note", "columns": [
//!             {"name": "id", "type": "uuid", "nullable": false},
//!             {"name": "text", "type": "text", "nullable": true}],
//!         "key": [0], "partition": null, "direction": "both", "conflict": "remote_wins", "references": [], "unique": []}]}"#,
//! )?;
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("notes.db");
//! let remote = Remote::create(&path, &model, &CreateOptions::new("https://sync.example.com", "ann"))?;
//!
//! // The application's own connection, its own SQL.
//! let application = rusqlite::Connection::open(&path)?;
//! application.execute("INSERT INTO note VALUES ('00000000-0000-4000-8000-000000000001', 'milk')", [])?;
//! assert_eq!(remote.status()?.pending, 1);
//! # Ok(())
//! # }
//! ```
//!
//! What is where: change tracking is SQL text in `headwater_model::remote_sql`; a sync's steps are `cut` (freeze the changes), `receipt`,
//! `stage` and `apply`, each one transaction; what follows what is decided by `headwater_protocol::client::Session`, which `sync`
//! obeys; `http` is the socket.
//!
//! *Caveats.* Everything blocks. One sync at a time on a file; a second is answered [`Error::Busy`] or waits.

mod adopt;
mod apply;
mod aside;
mod counters;
mod cut;
mod database;
mod dependents;
mod error;
mod examine;
mod gone;
pub mod http;
mod index_sql;
mod key_ranges;
mod local;
mod lost;
mod missing;
mod older;
mod own_triggers;
mod pieces;
mod plan;
mod probe;
pub mod ready;
mod receipt;
mod remote;
mod report;
mod request;
mod rows;
mod schema;
mod sent;
mod stage;
mod state;
mod strays;
mod sync;
#[cfg(test)]
mod tests;
mod too_large;
mod unanswered;
mod unfit;
mod unique_values;
mod unsent;
mod untracked;
mod upgrade;
mod wake;
mod writing;

pub use aside::{Choice, PendingChoice, Retried};
pub use error::Error;
pub use examine::{Examination, examine};
pub use headwater_diskfaults::{FileFault, Leftover, leftovers};
pub use headwater_protocol::client::Config;
pub use probe::{Probe, probe};
pub use remote::{CreateOptions, Remote};
pub use report::{Conflict, HeldRow, LostUploads, Orphans, PendingChange, SetAside, Status, TableStatus};
pub use sync::{LargeDownload, Phase, Progress, Setback, SyncOptions, SyncReport, Times};
pub use upgrade::Upgraded;
