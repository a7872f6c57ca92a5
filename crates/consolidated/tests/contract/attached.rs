//! A table that is tracked itself becomes a partition of another that is.

use headwater_consolidated::track;

use super::database::{Database, plan};
use super::replica::Replica;

const MODEL: &str = r#"
    name = "m"
    version = 1
    [tables.whole]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.piece]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
    [tables.below]
    key = ["id"]
    references = [{ columns = ["piece"], table = "piece" }]
    columns = { id = "int not null", piece = "int" }
"#;

pub(crate) fn a_tracked_table_becomes_a_partition(database: &Database) {
    database.application(
        "CREATE TABLE whole (id bigint NOT NULL PRIMARY KEY, note text) PARTITION BY RANGE (id); \
         CREATE TABLE piece (id bigint NOT NULL PRIMARY KEY, note text); \
         CREATE TABLE below (id bigint NOT NULL PRIMARY KEY, piece bigint REFERENCES piece (id))",
    );
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("INSERT INTO piece VALUES (1, 'one'), (2, 'two'); INSERT INTO below VALUES (1, 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut check = |sql: &str, rows: [usize; 2]| {
        database.application(sql);
        remote.sync(database, &plan);
        remote.assert_equals_fresh(database, &plan);
        assert_eq!(["whole", "piece"].map(|table| remote.table(&plan, table).len()), rows, "{sql}");
    };
    check("ALTER TABLE whole ATTACH PARTITION piece FOR VALUES FROM (0) TO (10)", [2, 2]);
    check("INSERT INTO piece VALUES (3, 'x'); UPDATE piece SET note = 'y' WHERE id = 1", [3, 3]);
    check(
        "SET session_replication_role = replica; INSERT INTO piece VALUES (5, 'x'); DELETE FROM piece WHERE id = 2",
        [3, 3],
    );
    check("ALTER TABLE whole DETACH PARTITION piece", [0, 3]);
    check("INSERT INTO piece VALUES (6, 'y')", [0, 4]);
}
