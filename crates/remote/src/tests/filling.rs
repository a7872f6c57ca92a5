//! A first download: how it fills an empty file, with its indexes, stopped anywhere, beside others and alone.

use headwater_protocol::Value;
use rusqlite::Connection;

use super::crash::{assert_converged, pair, sync};
use super::server::Server;
use super::support::{Fixture, row};
use crate::Error;
use crate::apply::apply;
use crate::database::crash;

/// More than goes by the write-ahead log.
const ROWS: i64 = 1_000;

/// A server with so many rows that a remote fills its file, and an application's indexes of many kinds.
fn large_pair() -> (Fixture, Server) {
    let (f, server) = pair();
    let mut state = 7u64;
    let mut text = || {
        (0..40).fold(String::new(), |text, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text + &format!("{state:016x}")
        })
    };
    for id in 0..ROWS {
        let values = vec![Value::Int(id), Value::text(format!("t{}", id % 7)), Value::text(text())];
        server.database().set(0, &row(&id.to_string()), Some(values));
    }
    f.sql(INDEXES);
    (f, server)
}

const INDEXES: &str =
    "CREATE INDEX plain ON doc (title, id); CREATE INDEX \"as it\"\"is\" ON doc (body COLLATE NOCASE DESC);
    CREATE INDEX of_an_expression ON doc (length(body)); CREATE INDEX of_some ON doc (id) WHERE title = 't1';
    CREATE UNIQUE INDEX of_its_own ON doc (body)";

fn indexes(connection: &Connection) -> Vec<String> {
    let sql =
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND name NOT LIKE 'hw%' ORDER BY name";
    let mut select = connection.prepare(sql).expect("a statement");
    let names = select.query_map([], |row| row.get(0)).and_then(Iterator::collect);
    names.expect("names")
}

fn journal(connection: &Connection) -> String {
    connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode")
}

fn is_sound(connection: &Connection) {
    let found: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
    assert_eq!(found, "ok");
}

/// Nobody else has the file open.
fn alone(f: &mut Fixture) {
    f.application = Connection::open_in_memory().expect("a connection");
}

/// The application comes back.
fn beside(f: &mut Fixture) {
    f.application = Connection::open(f.remote.path()).expect("the application's connection");
}

/// Indexes that can be put off are not there while rows are stored, and all are as they were when they have come.
#[test]
fn indexes_are_built_after_the_rows() {
    let (f, server) = large_pair();
    let before = f.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY name");
    let down = f.down().whole("doc", &[]).whole("tag", &[]);
    let rows: Vec<_> = server.database().table(0).into_iter().cloned().collect();
    let mut frames = down.rows("doc", &rows).finish().into_iter();
    let mut meanwhile = Vec::new();
    let mut next = |connection: &Connection| {
        let frame = frames.next();
        if frame.is_none() {
            meanwhile = indexes(connection);
        }
        Ok(frame)
    };
    let database = &f.remote.database;
    let applied = apply(database, &f.remote.plan, super::support::NOW, &mut next, &mut |_| Ok(())).expect("applied");
    assert_eq!(applied.rows, ROWS as u64);
    assert_eq!(meanwhile, ["of_an_expression", "of_its_own", "of_some"]);
    assert_eq!(f.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY name"), before);
    assert_eq!(f.rows("SELECT count(*) FROM doc INDEXED BY plain WHERE title = 't1'"), [(ROWS / 7 + 1).to_string()]);
    is_sound(&f.application);
    // A table that has rows keeps its indexes.
    let mut frames = f.down().whole("doc", &[]).rows("doc", &rows).finish().into_iter();
    let mut kept = Vec::new();
    let mut next = |connection: &Connection| {
        kept = indexes(connection);
        Ok(frames.next())
    };
    apply(database, &f.remote.plan, super::support::NOW, &mut next, &mut |_| Ok(())).expect("applied");
    assert_eq!(kept.len(), 5);
}

/// Stopped at each step, with the file to itself and beside the application: it is empty or whole, sound, and the next sync ends it.
#[test]
fn stopped_at_each_step_a_first_download_goes_on() {
    for is_alone in [true, false] {
        let (mut stops, mut fills) = (0, false);
        for steps in 0..200 {
            let (mut f, server) = large_pair();
            let before = indexes(&f.application);
            if is_alone {
                alone(&mut f);
            }
            // Pages go to the file before the end.
            f.remote.database.connection.pragma_update(None, "cache_size", 20).expect("pragma");
            crash::after(Some(steps));
            let stopped = sync(&mut f);
            crash::after(None);
            beside(&mut f);
            let held = f.rows("SELECT count(*) FROM doc");
            assert!(held == ["0"] || held == [ROWS.to_string()], "{held:?} after {steps} steps");
            assert_eq!(indexes(&f.application), before, "after {steps} steps");
            is_sound(&f.application);
            if stopped.is_ok() {
                assert_eq!(held, [ROWS.to_string()]);
                assert_eq!(journal(&f.application), "wal", "it is left as it was");
                break;
            }
            let Err(Error::Crash(step)) = stopped else { panic!("{stopped:?}") };
            fills |= step == "filling the file";
            stops += 1;
            alone(&mut f);
            f.reopen();
            sync(&mut f).expect("the next sync");
            beside(&mut f);
            assert_converged(&f, &server, &format!("after {steps} steps"));
            assert_eq!(journal(&f.application), "wal");
        }
        assert!(stops > 5 && fills, "{stops} stops");
    }
}

/// A file that a killed process has left without its write-ahead log has it again with the next sync, and not before others let go.
#[test]
fn the_write_ahead_log_comes_back() {
    let (mut f, _server) = large_pair();
    alone(&mut f);
    let mode = f.remote.database.filling(|| Ok(journal(&f.remote.database.connection))).expect("done");
    assert_eq!((mode.as_str(), journal(&f.remote.database.connection).as_str()), ("delete", "wal"));
    let failed = f.remote.database.filling(|| Err::<(), _>(Error::Cancelled));
    assert!(matches!(failed, Err(Error::Cancelled)) && journal(&f.remote.database.connection) == "wal");
    beside(&mut f);
    f.rows("SELECT count(*) FROM doc");
    let mode = f.remote.database.filling(|| Ok(journal(&f.remote.database.connection))).expect("done");
    assert_eq!(mode, "wal", "somebody else has the file open");
}
