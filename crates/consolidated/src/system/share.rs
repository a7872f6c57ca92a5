//! How many connections a server may have, so that all servers of one database and everybody else find room.

use super::sql::integer;
use crate::{Connection, Dialect, Error};

/// Places for connections, those that others than Headwater have taken, and servers, this one among them. Each server's connections
/// have a name of their own (see [`SERVER_NAME`]), which every role may read.
const SHARE_SQL: &str =
    "SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
        count(*) FILTER (WHERE application_name !~ '^headwater-[0-9a-f]{8}$'),
        count(DISTINCT application_name) FILTER (WHERE application_name ~ '^headwater-[0-9a-f]{8}$')
    FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'";

/// How connections are called where their URL says nothing else: this, and eight hex digits that a process has for itself.
pub(crate) const SERVER_NAME: &str = "headwater-";

/// How many connections one server may have now: an equal part of four fifths of what is left to all of them, one at least. `None`:
/// the database does not count connections (SQLite).
///
/// Servers whose URL names an `application_name` can't be told apart, and count as others.
pub fn connection_share(connection: &mut dyn Connection) -> Result<Option<usize>, Error> {
    if connection.dialect() == Dialect::Sqlite {
        return Ok(None);
    }
    let rows = connection.query(SHARE_SQL, &[])?;
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    let number = |place: usize| integer(row.get(place), "number of connections");
    Ok(Some(share(number(0)?, number(1)?, number(2)?)))
}

fn share(places: i64, others: i64, servers: i64) -> usize {
    let left = places.saturating_sub(others).max(0) * 4 / 5;
    usize::try_from(left / servers.max(1)).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_and_others_find_room() {
        assert_eq!(share(97, 7, 1), 72);
        assert_eq!(share(97, 7, 3), 24);
        assert_eq!(share(97, 7, 0), 72);
        assert_eq!(share(97, 97, 2), 1);
        assert_eq!(share(20, 30, 50), 1);
        for servers in 1..10 {
            assert!(share(97, 17, servers) * servers as usize <= 64);
        }
    }
}
