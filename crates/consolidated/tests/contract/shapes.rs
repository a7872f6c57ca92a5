//! Tables that are altered while a connection keeps statements prepared for them.

use headwater_consolidated::{Error, track};
use headwater_protocol::{Row, Value};

use super::database::{Database, plan};
use super::replica::{Replica, Synced};
use super::values::{int, text};

const MODEL: &str = "name = \"m\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\n\
    columns = { id = \"int not null\", n = \"int\", made = \"int\", label = \"text\" }";

fn row(id: i64, n: i64, made: Value, label: &str) -> Row {
    vec![int(id), int(n), made, text(label)]
}

/// An upload over a connection that has seen the table before: right, whatever was done to the table meanwhile.
pub(crate) fn an_altered_table_takes_what_is_uploaded(new: &dyn Fn() -> Database) {
    let columns = "id bigint PRIMARY KEY, n int, made bigint, label text";
    let identity = "id bigint PRIMARY KEY, n int, made bigint GENERATED ALWAYS AS IDENTITY, label text";
    let generated = "id bigint PRIMARY KEY, n int, made bigint GENERATED ALWAYS AS (n * 2) STORED, label text";
    for (before, change, expected) in [
        (columns, "ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY", row(7, 8, int(9), "x")),
        (
            columns,
            "UPDATE t SET made = 6; ALTER TABLE t ALTER made SET NOT NULL, ALTER made ADD GENERATED ALWAYS AS IDENTITY",
            row(7, 8, int(9), "x"),
        ),
        (identity, "ALTER TABLE t ALTER made DROP IDENTITY", row(7, 8, int(9), "x")),
        (generated, "ALTER TABLE t ALTER made DROP EXPRESSION", row(7, 8, int(9), "x")),
        (
            columns,
            "ALTER TABLE t DROP made; ALTER TABLE t ADD made bigint GENERATED ALWAYS AS (n + 1) STORED",
            row(7, 8, int(9), "x"),
        ),
        (columns, "ALTER TABLE t ALTER n TYPE bigint", row(7, 8_000_000_000, int(9), "x")),
        (
            columns,
            "CREATE TYPE kind AS ENUM ('x', 'a', 'b'); ALTER TABLE t ALTER label TYPE kind USING label::kind",
            row(7, 8, int(9), "x"),
        ),
        (columns, "ALTER TABLE t ALTER label TYPE varchar(9)", row(7, 8, int(9), "x")),
        (
            columns,
            "ALTER TABLE t RENAME n TO was; ALTER TABLE t RENAME made TO n; ALTER TABLE t RENAME was TO made",
            row(7, 8, int(9), "x"),
        ),
    ] {
        for has_inserted in [false, true] {
            let database = new();
            let plan = plan(MODEL);
            database.application(&format!(
                "CREATE TABLE t ({before}); INSERT INTO t (id, n, label) VALUES (1, 1, 'a'), (2, 2, 'b')"
            ));
            track::track(&mut *database.connect(), &plan).expect("tracked");
            let mut running = database.connect();
            let mut remote = Replica::new("anna");
            let mut sync = |remote: &mut Replica| -> Synced {
                match remote.try_sync(&mut *running, &plan) {
                    // As the server does.
                    Err(Error::Retry { broken: false, .. }) => {
                        remote.try_sync(&mut *running, &plan).expect("the second attempt")
                    }
                    synced => synced.unwrap_or_else(|error| panic!("{change}: {error}")),
                }
            };
            sync(&mut remote);
            let held = remote.table(&plan, "t")[1].clone();
            remote.update(&plan, "t", vec![held[0].clone(), held[1].clone(), held[2].clone(), text("a")]);
            if has_inserted {
                remote.insert(&plan, "t", row(3, 3, int(6), "x"));
            }
            assert_eq!(sync(&mut remote).refusals(), [], "{change}");
            database.application(change);
            remote.insert(&plan, "t", expected.clone());
            assert_eq!(sync(&mut remote).refusals(), [], "{change}");
            let stored = database.rows("SELECT n::int8, made, label::text FROM t WHERE id = 7");
            assert_eq!(stored, [expected[1..].to_vec()], "{change}");
            let held = remote.table(&plan, "t").into_iter().find(|row| row[0] == int(7)).expect("it is held");
            // What it may not set stays.
            let is_always = change.contains("ADD GENERATED ALWAYS AS IDENTITY") && change.contains("made")
                || change.contains("STORED");
            let made = if is_always { held[2].clone() } else { int(11) };
            remote.update(&plan, "t", vec![int(7), held[1].clone(), made.clone(), text("b")]);
            assert_eq!(sync(&mut remote).refusals(), [], "{change}");
            let stored = database.rows("SELECT made, label::text FROM t WHERE id = 7");
            assert_eq!(stored, [vec![made, text("b")]], "{change}");
        }
    }
}
