//! What the database has: for `init` and `check`.

use super::connection::PostgresConnection;
use crate::Error;
use crate::catalogue::Catalogue;

pub(super) fn read(_connection: &mut PostgresConnection) -> Result<Catalogue, Error> {
    Ok(Catalogue::default())
}
