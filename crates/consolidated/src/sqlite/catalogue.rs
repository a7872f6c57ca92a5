//! What a SQLite file has.

use super::SqliteConnection;
use crate::Error;
use crate::catalogue::Catalogue;

/// Reads the catalogue.
pub(super) fn read(_connection: &mut SqliteConnection) -> Result<Catalogue, Error> {
    Ok(Catalogue::default())
}
