//! What Headwater keeps in the consolidated database: its identity, remotes, receipts, conflicts, accounts.
//!
//! The tables stand in PostgreSQL's schema `headwater` (`headwater.remote`), in SQLite under the prefix `headwater_`
//! (`headwater_remote`); their SQL is written once, with `{hw}` for either. docs/protocol.md lists them column by column.

mod accounts;
mod conflicts;
mod count;
mod greet;
mod history;
mod horizon;
mod identity;
mod key_ranges;
mod life;
mod recent;
mod remotes;
mod schema;
mod seal;
mod share;
pub(crate) mod sql;

pub use accounts::{
    Account, accounts, add_account, find_account, has_accounts, remove_account, set_account_disabled,
    set_account_password,
};
pub use conflicts::{ConflictQuery, ConflictRecord, conflicts};
pub use count::{Count, Counted, SealRequest, Tally, count_downloads, seal_watermarks};
pub(crate) use greet::lock_asked;
pub use greet::{Greeted, Greeting, greet, greet_before_count, greet_before_upload};
pub(crate) use history::{Cuts, History};
pub use horizon::{PurgeRequest, Purged, is_note_due, purge};
pub(crate) use identity::renew_incarnation;
pub use identity::{Identity, identity, take_note};
pub use key_ranges::key_ranges;
pub use life::Life;
pub(crate) use life::life_asked;
pub use remotes::{RemoteRecord, forget_remotes, remotes};
pub use schema::install;
pub(crate) use schema::{is_installed, missing_columns, table_statements};
pub(crate) use share::SERVER_NAME;
pub use share::connection_share;
pub(crate) use sql::{bytes, dialect_sql, integer, optional_text};
