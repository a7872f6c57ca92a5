//! What people change while they are offline, in plain SQL on each file.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rusqlite::Connection;

use super::show::Screen;

struct Edit {
    file: &'static str,
    words: &'static str,
    sql: &'static str,
}

/// All of the flights are of one hour; the values differ from the data's own.
const EDITS: [Edit; 12] = [
    Edit {
        file: "ann.db",
        words: "UA 1124 gets another plane, N24212",
        sql: "UPDATE flights SET tailnum = 'N24212' WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'UA' AND flight = 1124",
    },
    Edit {
        file: "central.db",
        words: "UA 1124 left 12 minutes late (another column: will merge)",
        sql: "UPDATE flights SET dep_delay = 12 WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'UA' AND flight = 1124",
    },
    Edit {
        file: "ann.db",
        words: "UA 1187 arrived 35 minutes late",
        sql: "UPDATE flights SET arr_delay = 35 WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'UA' AND flight = 1187",
    },
    Edit {
        file: "central.db",
        words: "UA 1187 arrived 50 minutes late (the same column: will collide)",
        sql: "UPDATE flights SET arr_delay = 50 WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'UA' AND flight = 1187",
    },
    Edit {
        file: "ben.db",
        words: "it was 41.5 degrees at JFK",
        sql: "UPDATE weather SET temp = 41.5 WHERE origin = 'JFK' AND time_hour = '2013-01-01 11:00:00Z'",
    },
    Edit {
        file: "central.db",
        words: "it was 38.75 degrees at JFK (weather: the consolidated database wins)",
        sql: "UPDATE weather SET temp = 38.75 WHERE origin = 'JFK' AND time_hour = '2013-01-01 11:00:00Z'",
    },
    Edit {
        file: "central.db",
        words: "B6 79 leaves from LGA, not JFK (moves to another partition)",
        sql: "UPDATE flights SET origin = 'LGA' WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'B6' AND flight = 79",
    },
    Edit {
        file: "cal.db",
        words: "a new flight DL 9003, by mistake from EWR (not cal's: will be set aside)",
        sql: "INSERT INTO flights (time_hour, carrier, flight, origin, dest, year, month, day, hour, minute)
              VALUES ('2013-01-01 11:00:00Z', 'DL', 9003, 'EWR', 'ATL', 2013, 1, 1, 6, 15)",
    },
    Edit {
        file: "ann.db",
        words: "a new flight UA 9001",
        sql: "INSERT INTO flights (time_hour, carrier, flight, origin, dest, year, month, day, hour, minute)
              VALUES ('2013-01-01 11:00:00Z', 'UA', 9001, 'EWR', 'SFO', 2013, 1, 1, 6, 45)",
    },
    Edit {
        file: "central.db",
        words: "a new flight B6 9002 from JFK",
        sql: "INSERT INTO flights (time_hour, carrier, flight, origin, dest, year, month, day, hour, minute)
              VALUES ('2013-01-01 11:00:00Z', 'B6', 9002, 'JFK', 'BOS', 2013, 1, 1, 6, 50)",
    },
    Edit {
        file: "ben.db",
        words: "B6 49 is deleted",
        sql: "DELETE FROM flights WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'B6' AND flight = 49",
    },
    Edit {
        file: "central.db",
        words: "AA 707 from LGA is deleted",
        sql: "DELETE FROM flights WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'AA' AND flight = 707",
    },
];

/// Makes all edits. Each must meet its row.
pub(super) fn make(folder: &Path) -> Result<()> {
    EDITS.iter().try_for_each(|edit| execute(&folder.join(edit.file), edit.sql))
}

/// Tells them.
pub(super) fn tell(screen: &Screen) {
    screen.step("Offline, everybody edits (any SQLite program may write; the server only waits)");
    screen.table(&["file", "edit"], EDITS.iter().map(|edit| vec![edit.file.to_owned(), edit.words.to_owned()]));
}

/// The row that was set aside is made one of LGA.
pub(super) fn mend(file: &Path) -> Result<()> {
    let sql = "UPDATE flights SET origin = 'LGA' WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'DL' AND flight = 9003";
    execute(file, sql)
}

/// Whether a file has the flight that moved.
pub(super) fn holds_moved_flight(file: &Path) -> Result<bool> {
    let sql =
        "SELECT count(*) FROM flights WHERE time_hour = '2013-01-01 11:00:00Z' AND carrier = 'B6' AND flight = 79";
    let count: i64 = open(file)?.query_row(sql, [], |row| row.get(0))?;
    Ok(count == 1)
}

/// Runs one statement, which must change one row.
pub(super) fn execute(file: &Path, sql: &str) -> Result<()> {
    let changed = open(file)?.execute(sql, []).with_context(|| format!("{} refused {sql}", file.display()))?;
    anyhow::ensure!(changed == 1, "{changed} rows changed in {}, expected 1: {sql}", file.display());
    Ok(())
}

fn open(file: &Path) -> Result<Connection> {
    let connection = Connection::open(file).with_context(|| format!("opening {}", file.display()))?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}
