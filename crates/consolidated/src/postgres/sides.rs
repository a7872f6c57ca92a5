//! Side tables whose columns are not what their tables call for: `headwater_model::tracking::postgres::sides` says what that is.

use headwater_model::Lineage;
use headwater_model::tracking::postgres::sides;
use headwater_protocol::Value;

use crate::catalogue::text;
use crate::{Connection, Error};

/// A column of a side table that has another type than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) column: String,
    pub(crate) wanted: String,
    pub(crate) found: String,
    /// Of the same kind, so that it takes the values that fit: an older build made side tables as narrow as their tables.
    pub(crate) is_narrow: bool,
    /// Its collation calls other values equal than the table's own column does: what it says of partitions is of no use.
    pub(crate) equals_otherwise: bool,
}

/// The columns of a table's side table that have another type than they should.
pub(crate) fn differences(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<Difference>, Error> {
    let rows = connection.query(&sides::differences(lineage), &[])?;
    let difference = |row: &headwater_protocol::Row| Difference {
        column: text(row, 0),
        wanted: text(row, 1),
        found: text(row, 2),
        is_narrow: row.get(3) == Some(&Value::Bool(true)),
        equals_otherwise: row.get(4) == Some(&Value::Bool(true)),
    };
    Ok(rows.iter().map(difference).collect())
}

/// The first column of a table's side table whose collation calls other values equal than the table's own column does. Until `track` makes
/// the side table anew, the table comes whole at each sync.
pub(crate) fn unequal(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Option<Difference>, Error> {
    Ok(differences(connection, lineage)?.into_iter().find(|difference| difference.equals_otherwise))
}

/// Whether the side table has the columns that this build gives it.
pub(crate) fn has_columns(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<bool, Error> {
    let rows = connection.query(&sides::has_columns(lineage), &[])?;
    Ok(rows.first().and_then(|row| row.first()) == Some(&Value::Bool(true)))
}
