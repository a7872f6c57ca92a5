//! Change tracking: whatever way a row changes, a download brings it.

use headwater_consolidated::{Connection, Plan};
use headwater_model::tracking::Kin;
use headwater_protocol::{Row, Value};

use crate::support::{Database, changes, plan};

const TABLES: &str = "
    CREATE TABLE item (id int PRIMARY KEY, area text, note text);
    CREATE TABLE part (item int REFERENCES item ON DELETE CASCADE ON UPDATE CASCADE, n int, note text, PRIMARY KEY (item, n));
    INSERT INTO item SELECT n, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 'old' FROM generate_series(1, 6) n;
    INSERT INTO part SELECT n, 1, 'old' FROM generate_series(1, 6) n";

const MODEL: &str = "
    [partitions.area]
    columns = { area = \"text\" }
    members = \"SELECT 'odd'\"
    [tables.item]
    key = [\"id\"]
    partition = \"area\"
    [tables.item.columns]
    id = \"int not null\"
    area = \"text\"
    note = \"text\"
    [tables.part]
    key = [\"item\", \"n\"]
    [tables.part.columns]
    item = \"int not null\"
    n = \"int not null\"
    note = \"text\"";

/// A tracked database and a remote of it that holds both areas' items, and all parts.
struct Tracked {
    database: Database,
    plan: Plan,
    connection: Box<dyn Connection>,
    seen: Vec<u8>,
}

impl Tracked {
    fn new() -> Tracked {
        let database = Database::with(TABLES);
        let plan = plan(MODEL);
        database.track(&plan);
        let seen = database.watermark();
        let connection = database.connect();
        Tracked { database, plan, connection, seen }
    }

    fn areas(names: &[&str]) -> Vec<Row> {
        names.iter().map(|name| vec![Value::text(*name)]).collect()
    }

    /// What the next download brings: `+row` and `-key`, items before parts.
    fn download(&mut self) -> Vec<String> {
        self.download_of(&["even", "odd"])
    }

    fn download_of(&mut self, areas: &[&str]) -> Vec<String> {
        let areas = Tracked::areas(areas);
        let mut lines = Vec::new();
        let mut seen = Vec::new();
        for table in &self.plan.tables {
            let partitions = if table.table.partition.is_some() { areas.as_slice() } else { &[] };
            let (read, watermark) = changes(&mut *self.connection, table, partitions, partitions, &self.seen);
            let (upserts, deletes) = read.shown();
            lines.extend(upserts.iter().map(|row| format!("+{row}")));
            lines.extend(deletes.iter().map(|key| format!("-{key}")));
            seen = watermark;
        }
        self.seen = seen;
        lines
    }

    /// Runs the application's statements and compares what comes of them; then nothing more may come.
    fn check(&mut self, statements: &str, expected: &[&str]) {
        self.database.sql(statements);
        assert_eq!(self.download(), expected, "{statements}");
        assert!(self.download().is_empty(), "sent again: {statements}");
    }
}

#[test]
fn statements_of_every_kind() {
    let mut tracked = Tracked::new();
    tracked.check("INSERT INTO item VALUES (7, 'odd', 'new')", &["+7 odd new"]);
    tracked.check("UPDATE item SET note = 'changed' WHERE id IN (1, 2)", &["+1 odd changed", "+2 even changed"]);
    tracked.check("UPDATE item SET note = note WHERE false", &[]);
    tracked.check("DELETE FROM item WHERE id = 7", &["-7"]);
    tracked.check("DELETE FROM item WHERE id = 77", &[]);
    tracked.check("INSERT INTO item VALUES (7, 'odd', 'again'); DELETE FROM item WHERE id = 7", &["-7"]);
    tracked.check(
        "DELETE FROM item WHERE id = 6; INSERT INTO item VALUES (6, 'even', 'again')",
        &["+6 even again", "-6 1"],
    );
    tracked.check(
        "INSERT INTO item VALUES (5, 'odd', 'upsert'), (8, 'even', 'upsert') ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note",
        &["+5 odd upsert", "+8 even upsert"],
    );
    tracked.check("INSERT INTO item VALUES (8, 'even', 'left alone') ON CONFLICT DO NOTHING", &[]);
    tracked.check(
        "COPY item FROM PROGRAM 'printf \"9\\todd\\tcopied\\n10\\t\\\\\\\\N\\tnowhere\\n\"'",
        &["+9 odd copied"],
    );
    tracked.check(
        "MERGE INTO item t USING (VALUES (9, 'gone'), (8, 'merged'), (11, 'made')) s(id, note) ON t.id = s.id
         WHEN MATCHED AND s.note = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET note = s.note
         WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'odd', s.note)",
        &["+11 odd made", "+8 even merged", "-9"],
    );
    tracked.check("BEGIN; UPDATE item SET note = 'undone'; ROLLBACK", &[]);
    tracked.check("BEGIN; SAVEPOINT s; UPDATE item SET note = 'undone'; ROLLBACK TO s; UPDATE item SET note = 'kept' WHERE id = 1; COMMIT", &["+1 odd kept"]);
    tracked.check(
        "WITH gone AS (DELETE FROM item WHERE id = 11 RETURNING *) INSERT INTO item SELECT 12, area, note FROM gone",
        &["+12 odd made", "-11"],
    );
}

#[test]
fn cascades_and_key_changes() {
    let mut tracked = Tracked::new();
    tracked.check("DELETE FROM item WHERE id = 1", &["-1", "-1 1"]);
    tracked.check("UPDATE item SET id = 20 WHERE id = 2", &["+20 even old", "-2", "+20 1 old", "-2 1"]);
    tracked.check(
        "UPDATE part SET n = n + 1",
        &["+20 2 old", "+3 2 old", "+4 2 old", "+5 2 old", "+6 2 old", "-20 1", "-3 1", "-4 1", "-5 1", "-6 1"],
    );
    tracked.check(
        "ALTER TABLE part ADD UNIQUE (n, item) DEFERRABLE; UPDATE part SET n = CASE item WHEN 3 THEN 9 ELSE n END WHERE item IN (3, 4)",
        &["+3 9 old", "+4 2 old", "-3 2"],
    );
}

#[test]
fn truncate() {
    let mut tracked = Tracked::new();
    tracked.check("TRUNCATE part", &["-1 1", "-2 1", "-3 1", "-4 1", "-5 1", "-6 1"]);
    tracked.check("TRUNCATE item CASCADE", &["-1", "-2", "-3", "-4", "-5", "-6"]);
    tracked.check("INSERT INTO item VALUES (1, 'odd', 'back')", &["+1 odd back"]);
    tracked.check("BEGIN; TRUNCATE item CASCADE; ROLLBACK", &[]);
    tracked.check("BEGIN; TRUNCATE item CASCADE; INSERT INTO item VALUES (1, 'odd', 'anew'); COMMIT", &["+1 odd anew"]);
}

#[test]
fn moves_between_partitions() {
    let mut tracked = Tracked::new();
    tracked.check("UPDATE item SET area = 'odd' WHERE id = 2", &["+2 odd old"]);
    tracked.check("UPDATE item SET area = 'far' WHERE id = 2", &["-2"]);
    tracked.check("UPDATE item SET area = NULL WHERE id = 3", &["-3"]);
    tracked.check("UPDATE item SET note = 'unseen' WHERE area IS NULL OR area = 'far'", &[]);
    tracked.check("UPDATE item SET area = 'even' WHERE id IN (2, 3)", &["+2 even unseen", "+3 even unseen"]);
    // A remote of one area: what moves to the other is gone from it.
    tracked.database.sql("UPDATE item SET area = 'odd' WHERE id IN (2, 4); UPDATE item SET area = 'even' WHERE id = 5");
    let since = tracked.seen.clone();
    assert_eq!(tracked.download_of(&["even"]), ["+5 even old", "-2", "-4"]);
    tracked.seen = since;
    assert_eq!(tracked.download_of(&["odd"]), ["+2 odd unseen", "+4 odd old", "-5"]);
}

#[test]
fn partitions_with_different_watermarks() {
    let tracked = Tracked::new();
    let mut connection = tracked.database.connect();
    let (even, odd) = (Tracked::areas(&["even"]), Tracked::areas(&["odd"]));
    let wanted = Tracked::areas(&["even", "odd"]);
    let first = tracked.database.watermark();
    tracked.database.sql("UPDATE item SET area = 'odd', note = 'moved' WHERE id = 2");
    let second = tracked.database.watermark();
    let table = &tracked.plan.tables[0];
    let (read, _) = changes(&mut *connection, table, &odd, &wanted, &second);
    assert_eq!(read.shown(), (vec![], vec![]), "odd has seen the row");
    let (read, _) = changes(&mut *connection, table, &even, &wanted, &first);
    assert_eq!(read.shown(), (vec![], vec![]), "so its tombstone in even is not sent");
    let (read, _) = changes(&mut *connection, table, &even, &even, &first);
    assert_eq!(read.shown(), (vec![], vec!["2".to_owned()]), "unless odd is not wanted");
}

#[test]
fn a_role_without_grants_of_ours() {
    let mut tracked = Tracked::new();
    tracked.database.sql("CREATE ROLE clerk; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON item, part TO clerk");
    let as_clerk = |statement: &str| format!("SET ROLE clerk; SET search_path = pg_temp; {statement}");
    tracked.check(&as_clerk("INSERT INTO public.item VALUES (7, 'odd', 'new')"), &["+7 odd new"]);
    tracked.check(&as_clerk("UPDATE public.item SET id = 8 WHERE id = 7"), &["+8 odd new", "-7"]);
    tracked.check(&as_clerk("DELETE FROM public.item WHERE id = 8"), &["-8"]);
    tracked.check(&as_clerk("TRUNCATE public.part"), &["-1 1", "-2 1", "-3 1", "-4 1", "-5 1", "-6 1"]);
    let denied = headwater_testkit::sql(&tracked.database.url, &as_clerk("SELECT * FROM headwater.\"side_item@area\""));
    assert!(denied.is_err(), "it sees nothing of ours");
    let denied = headwater_testkit::sql(&tracked.database.url, &as_clerk("SELECT headwater.\"track_item@area\"()"));
    assert!(denied.is_err(), "nor does it call it");
    tracked.database.sql("DROP OWNED BY clerk; DROP ROLE clerk");
}

#[test]
fn a_session_that_replicates() {
    let mut tracked = Tracked::new();
    let statement = "SET session_replication_role = replica; INSERT INTO item VALUES (7, 'odd', 'new'); DELETE FROM item WHERE id = 1";
    tracked.check(statement, &["+7 odd new", "-1"]);
}

#[test]
fn triggers_of_the_application_that_change_the_table_again() {
    let mut tracked = Tracked::new();
    tracked.database.sql(
        "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF TG_OP = 'DELETE' THEN INSERT INTO item VALUES (OLD.id, OLD.area, 'risen') ON CONFLICT DO NOTHING;
             ELSIF NEW.note = 'doomed' THEN DELETE FROM item WHERE id = NEW.id;
             ELSIF NEW.note = 'twice' THEN UPDATE item SET note = 'thrice' WHERE id = NEW.id;
             END IF; RETURN NULL; END $$;
         CREATE TRIGGER again AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION again()",
    );
    tracked.check("DELETE FROM item WHERE id = 3", &["+3 odd risen", "-3 1"]);
    tracked.check("UPDATE item SET note = 'twice' WHERE id = 4", &["+4 even thrice"]);
    tracked.check("INSERT INTO item VALUES (30, 'odd', 'doomed')", &["+30 odd risen"]);
}

#[test]
fn a_partitioned_table_through_its_parent() {
    let database = Database::with(
        "CREATE TABLE log (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
         CREATE TABLE log_1 PARTITION OF log FOR VALUES IN (1); CREATE TABLE log_2 PARTITION OF log FOR VALUES IN (2);
         INSERT INTO log VALUES (1, 1, 'a'), (2, 2, 'b')",
    );
    let model = "[tables.log]\nkey = [\"id\", \"day\"]\n[tables.log.columns]\nid = \"int not null\"\nday = \"int not null\"\nnote = \"text\"";
    let plan = plan(model);
    database.track(&plan);
    let mut connection = database.connect();
    let mut seen = database.watermark();
    let mut check = |statement: &str, upserts: &[&str], deletes: &[&str]| {
        database.sql(statement);
        let (read, watermark) = changes(&mut *connection, &plan.tables[0], &[], &[], &seen);
        seen = watermark;
        let expected =
            (upserts.iter().map(ToString::to_string).collect(), deletes.iter().map(ToString::to_string).collect());
        assert_eq!(read.shown(), expected, "{statement}");
    };
    check("UPDATE log SET note = 'c' WHERE id = 1", &["1 1 c"], &[]);
    check("UPDATE log SET day = 2 WHERE id = 1", &["1 2 c"], &["1 1"]);
    check("INSERT INTO log VALUES (3, 1, 'd')", &["3 1 d"], &[]);
    check("TRUNCATE log", &[], &["1 2", "2 2", "3 1"]);
}

#[test]
fn keys_of_every_kind() {
    let database = Database::with(
        "CREATE TYPE mood AS ENUM ('calm', 'wild');
         CREATE TABLE t (a text COLLATE \"C\", b mood, c uuid, d timestamptz, e numeric(6,2), f char(3), zone inet, x int,
                         PRIMARY KEY (a, b, c, d, e, f))",
    );
    let model = "
        [partitions.zone]
        columns = { zone = \"text\" }
        members = \"SELECT 'x'\"
        [tables.t]
        key = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]
        partition = \"zone\"
        [tables.t.columns]
        a = \"text not null\"
        b = \"text not null\"
        c = \"uuid not null\"
        d = \"timestamptz not null\"
        e = \"decimal(6,2) not null\"
        f = \"text not null\"
        zone = \"text\"
        x = \"int\"";
    let plan = plan(model);
    database.track(&plan);
    let seen = database.watermark();
    database.sql(
        "INSERT INTO t VALUES ('ä', 'wild', '00000000-0000-0000-0000-000000000001', '2005-06-09 10:30:00.000001+00', 1.50, 'ab', '10.0.0.0/8', 1),
                              ('b', 'calm', '00000000-0000-0000-0000-000000000001', 'infinity', 1.50, 'ab', '11.0.0.0/8', 1)",
    );
    let mut connection = database.connect();
    let zone = [vec![Value::text("10.0.0.0/8")]];
    let (read, seen) = changes(&mut *connection, &plan.tables[0], &zone, &zone, &seen);
    assert_eq!(read.upserts.len(), 1);
    let key: Row = read.upserts[0][..6].to_vec();
    assert_eq!(key[0], Value::text("ä"));
    connection.begin(headwater_consolidated::Mode::Upload).expect("begin");
    assert_eq!(connection.delete(&plan.tables[0], &[&key]).expect("deleted"), 1);
    connection.commit().expect("committed");
    let (read, _) = changes(&mut *connection, &plan.tables[0], &zone, &zone, &seen);
    assert_eq!(read.deletes, [key]);
}

#[test]
fn installing_again_changes_nothing_and_another_key_is_refused() {
    let tracked = Tracked::new();
    tracked.database.sql("INSERT INTO item VALUES (7, 'odd', 'new')");
    tracked.database.track(&tracked.plan);
    assert_eq!(tracked.database.sql("SELECT count(*) FROM headwater.\"side_item@area\""), [["1"]]);
    let other = plan(&MODEL.replace("key = [\"item\", \"n\"]", "key = [\"n\", \"item\"]"));
    let kin = Kin::new(&other.model, other.model.table("part").expect("part"));
    let statements = headwater_model::tracking::postgres::install(&headwater_model::tracking::TrackedTable {
        kin: &kin,
        declared: &[],
        unique: &[],
    });
    let refused = headwater_testkit::sql(&tracked.database.url, &format!("BEGIN; {}; COMMIT", statements.join(";")));
    assert!(format!("{:?}", refused.expect_err("another key")).contains("headwater untrack"));
    for table in &tracked.plan.tables {
        for _ in 0..2 {
            tracked.database.sql(
                &headwater_model::tracking::postgres::uninstall(&Kin::new(&tracked.plan.model, &table.table)).join(";"),
            );
        }
    }
    let left = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'headwater' \
         AND relname NOT LIKE 'table_change%'";
    assert_eq!(tracked.database.sql(left), [["0"]]);
    tracked.database.sql("INSERT INTO item VALUES (8, 'odd', 'new')");
}

#[test]
fn a_publication_of_all_tables_does_not_stop_the_application() {
    let mut tracked = Tracked::new();
    tracked.database.sql("CREATE PUBLICATION everything FOR ALL TABLES");
    tracked.check("UPDATE item SET note = 'a' WHERE id = 1", &["+1 odd a"]);
    tracked
        .check("UPDATE item SET note = 'b' WHERE id = 1; DELETE FROM item WHERE id = 2", &["+1 odd b", "-2", "-2 1"]);
}

#[test]
fn one_plan_serves_one_row_and_a_hundred_thousand() {
    let mut tracked = Tracked::new();
    // In one session, so that the function's plan is made for one row.
    let statements = "UPDATE item SET note = 'one' WHERE id = 1;
        INSERT INTO item SELECT n, 'odd', 'many' FROM generate_series(101, 100100) n;
        SET statement_timeout = '60s'; UPDATE item SET note = 'more' WHERE id > 100; DELETE FROM item WHERE id > 100";
    tracked.database.sql(statements);
    assert_eq!(tracked.download().len(), 100_001);
}
