//! Two rows that exchange a unique value by which rows of another table refer to them.

use headwater_consolidated::{Dialect, Plan, track};
use headwater_protocol::Row;

use super::database::{Database, plan};
use super::replica::Replica;
use super::values::{int, text};

const MODEL: &str = r#"
    name = "swap"
    version = 1
    [tables.place]
    key = ["id"]
    unique = [["code"]]
    columns = { id = "int not null", code = "text not null", note = "text" }
    [tables.visit]
    key = ["id"]
    references = [{ columns = ["code"], table = "place", target = ["code"] }]
    columns = { id = "int not null", code = "text" }
"#;

fn made(database: &Database, reference: &str, model: &str) -> Plan {
    database.application(&format!(
        "CREATE TABLE place (id {{int}} NOT NULL PRIMARY KEY, code text NOT NULL UNIQUE, note text); \
         CREATE TABLE visit (id {{int}} NOT NULL PRIMARY KEY, code text REFERENCES place (code){reference}); \
         INSERT INTO place VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'x'); INSERT INTO visit VALUES (1, 'a'), (2, 'b')"
    ));
    let plan = plan(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

fn place(id: i64, code: &str, note: &str) -> Row {
    vec![int(id), text(code), text(note)]
}

/// PostgreSQL looks at a unique value row by row, and at such a foreign key after each statement: no statements exchange the values but those
/// that move the rows which refer to them. So both changes are set aside, the foreign key is the reason, and nothing else waits for them.
pub(crate) fn values_that_are_referred_to_change_places_or_are_set_aside(new: &dyn Fn() -> Database) {
    let hidden = MODEL.replace("references = [{ columns = [\"code\"], table = \"place\", target = [\"code\"] }]", "");
    for (reference, model) in [
        ("", MODEL),
        ("", &hidden),
        (" ON UPDATE CASCADE", MODEL),
        (" ON UPDATE CASCADE", &hidden),
        (" DEFERRABLE INITIALLY IMMEDIATE", MODEL),
        (" DEFERRABLE INITIALLY IMMEDIATE", &hidden),
    ] {
        let database = &new();
        let plan = made(database, reference, model);
        let mut remote = Replica::synced(database, &plan, "anna");
        remote.update(&plan, "place", place(1, "b", "swapped"));
        remote.update(&plan, "place", place(2, "a", "swapped"));
        remote.update(&plan, "place", place(3, "c", "beside"));
        remote.insert(&plan, "visit", vec![int(3), text("c")]);
        let synced = remote.sync(database, &plan);
        let is_possible = database.dialect() == Dialect::Sqlite || !reference.is_empty();
        let count = |sql: &str| database.number(sql);
        assert_eq!(count("SELECT count(*) FROM place WHERE note = 'beside'"), 1, "{reference}");
        assert_eq!(count("SELECT count(*) FROM visit"), 3, "{reference}");
        assert_eq!(
            count("SELECT count(*) FROM place WHERE note = 'swapped'"),
            if is_possible { 2 } else { 0 },
            "{reference}"
        );
        if is_possible {
            assert_eq!(synced.refusals(), [], "{reference}");
            remote.assert_equals_fresh(database, &plan);
        } else {
            assert_eq!(synced.refusals(), [(0, "foreign_key"), (1, "foreign_key")], "{reference}");
        }
        // A cascade takes the row that refers to the place with it.
        let code = count("SELECT count(*) FROM visit v JOIN place p ON p.code = v.code WHERE v.id = 1 AND p.id = 1");
        assert_eq!(code, i64::from(!is_possible || reference.contains("CASCADE")), "{reference}");
    }
}
