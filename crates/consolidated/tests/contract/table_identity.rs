//! Changes of tracked tables that fire no trigger: what may have changed rows comes afresh, what can't have does not.

use headwater_consolidated::catalogue::Tracking;
use headwater_consolidated::{Backend as _, Connection, Error, Plan, track};
use headwater_model::tracking::Kin;
use headwater_protocol::Row;
use headwater_protocol::message::PartitionAction;

use super::database::{Database, plan};
use super::grants::by_role;
use super::replica::{Replica, Synced, find};
use super::values::text;

const TABLES: &str = "
    CREATE TABLE member (user_name text NOT NULL, area text NOT NULL);
    INSERT INTO member VALUES ('ben', 'north');
    CREATE TYPE mood AS ENUM ('sad', 'glad', 'wild');
    CREATE TABLE item (
        id bigint PRIMARY KEY, area text, note text, a int, b int, c int, v varchar(10), m mood,
        g bigint GENERATED ALWAYS AS (id * 2) STORED
    );
    CREATE TABLE other (id bigint PRIMARY KEY, area text, note text);
    CREATE TYPE comp AS (a int, b text);
    CREATE TYPE inner_comp AS (a int, b mood);
    CREATE DOMAIN comps AS inner_comp[];
    CREATE TABLE kind (a int, b text);
    CREATE TABLE shape (id bigint PRIMARY KEY, c comp, d comps, r kind);
    INSERT INTO shape VALUES (1, (1, 'x'), ARRAY[(1, 'wild')::inner_comp], (1, 'x'));
    CREATE TABLE doc (id bigint PRIMARY KEY, area text);
    CREATE TABLE page (id bigint PRIMARY KEY, doc bigint REFERENCES doc, note text);
    CREATE TABLE log (id bigint PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (0) TO (100);
    CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (100) TO (200);
    CREATE TABLE old (id bigint PRIMARY KEY, note text);
    CREATE TABLE older (PRIMARY KEY (id)) INHERITS (old);
    INSERT INTO item SELECT n, CASE WHEN n > 8 THEN 'south' ELSE 'north' END, 'a', n, 100 - n, 0, 'v',
        (ARRAY['sad', 'glad', 'wild'])[n % 3 + 1]::mood FROM generate_series(1, 10) n;
    INSERT INTO other VALUES (1, 'north', 'other'), (2, 'south', 'other');
    INSERT INTO doc VALUES (1, 'north'), (2, 'south');
    INSERT INTO page VALUES (1, 1, 'p'), (2, 2, 'p');
    INSERT INTO log SELECT n, n FROM generate_series(98, 102) n;
    INSERT INTO older VALUES (1, 'a'), (2, 'a')";

const MODEL: &str = r#"
    name = "identity"
    version = 1

    [partitions.area]
    columns = { area = "text" }
    members = "SELECT area FROM member WHERE user_name = :s.user"

    [tables.item]
    key = ["id"]
    partition = "area"
    conflict = "merge(remote)"
    columns = { id = "int not null", area = "text", note = "text", a = "int", b = "int", c = "int", v = "text", m = "text" }

    [tables.other]
    key = ["id"]
    partition = "area"
    columns = { id = "int not null", area = "text", note = "text" }

    [tables.shape]
    key = ["id"]
    columns = { id = "int not null", c = "text", d = "text", r = "text" }

    [tables.doc]
    key = ["id"]
    partition = "area"
    columns = { id = "int not null", area = "text" }

    [tables.page]
    key = ["id"]
    partition = { through = "doc" }
    references = [{ columns = ["doc"], table = "doc" }]
    columns = { id = "int not null", doc = "int", note = "text" }

    [tables.log]
    key = ["id"]
    columns = { id = "int not null", n = "int" }

    [tables.old]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
"#;

/// What puts a table back as `pg_restore --clean --table` does: the same text, another table.
const RESTORED: &str = "DO $$ DECLARE made record; BEGIN
    CREATE TEMP TABLE made ON COMMIT DROP AS SELECT pg_get_triggerdef(oid) AS text, tgname AS name,
        CASE tgenabled WHEN 'R' THEN 'REPLICA' ELSE 'ALWAYS' END AS state
        FROM pg_trigger WHERE tgrelid = 'item'::regclass AND NOT tgisinternal;
    CREATE TABLE copied (LIKE item INCLUDING ALL);
    INSERT INTO copied (id, area, note, a, b, c, v, m) SELECT id, area, note, a, b, 5, v, m FROM item WHERE id <> 3;
    DROP TABLE item; ALTER TABLE copied RENAME TO item;
    FOR made IN SELECT * FROM made LOOP
        EXECUTE made.text; EXECUTE format('ALTER TABLE item ENABLE %s TRIGGER %I', made.state, made.name);
    END LOOP;
END $$";

/// Triggers that are dropped and made again.
const TRIGGERS_MADE_AGAIN: &str = "DO $$ DECLARE made record; BEGIN
    FOR made IN SELECT pg_get_triggerdef(oid) AS text, tgname AS name FROM pg_trigger
        WHERE tgrelid = 'item'::regclass AND tgname LIKE 'headwater_update%' LOOP
        EXECUTE format('DROP TRIGGER %I ON item', made.name);
        UPDATE item SET a = 78 WHERE id = 4;
        EXECUTE made.text; EXECUTE format('ALTER TABLE item ENABLE ALWAYS TRIGGER %I', made.name);
    END LOOP;
END $$";

/// A function that does nothing for a moment.
const FUNCTION_PUT_BACK: &str = "DO $$ DECLARE text text := pg_get_functiondef('headwater.\"track_item@area\"'::regproc); BEGIN
    CREATE OR REPLACE FUNCTION headwater.\"track_item@area\"() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    UPDATE item SET a = 79 WHERE id = 4;
    EXECUTE text;
END $$";

/// Names, statements, and the tables that come afresh.
const EVENTS: &[(&str, &str, &[&str])] = &[
    ("nothing", "SELECT 1", &[]),
    ("default", "ALTER TABLE item ALTER COLUMN a SET DEFAULT 5", &[]),
    ("not null", "ALTER TABLE item ALTER COLUMN b SET NOT NULL", &[]),
    ("statistics", "ALTER TABLE item ALTER COLUMN a SET STATISTICS 50", &[]),
    ("collation", "ALTER TABLE item ALTER COLUMN note TYPE text COLLATE \"C\"", &[]),
    ("longer varchar", "ALTER TABLE item ALTER COLUMN v TYPE varchar(20)", &[]),
    ("vacuum full", "VACUUM FULL item", &[]),
    ("cluster", "CLUSTER item USING item_pkey", &[]),
    ("vacuum of the catalogue", "VACUUM FULL pg_attribute; VACUUM FREEZE pg_trigger", &[]),
    ("grant", "GRANT SELECT ON item TO PUBLIC", &[]),
    ("reindex", "REINDEX TABLE item", &[]),
    ("analyze", "VACUUM item; ANALYZE item", &[]),
    ("index", "CREATE INDEX item_a ON item (a); COMMENT ON COLUMN item.a IS 'a'", &[]),
    ("row security that binds nobody here", "ALTER TABLE item ENABLE ROW LEVEL SECURITY", &[]),
    ("column", "ALTER TABLE item ADD COLUMN extra int DEFAULT 5", &[]),
    ("column with a volatile default", "ALTER TABLE item ADD COLUMN more float DEFAULT random()", &[]),
    ("column of no model", "ALTER TABLE item DROP COLUMN extra; ALTER TABLE item ADD COLUMN extra text", &[]),
    ("new label", "ALTER TYPE mood ADD VALUE 'calm'", &[]),
    ("replica", "SET session_replication_role = replica; UPDATE item SET a = a + 1 WHERE id = 1", &[]),
    (
        "truncate",
        "CREATE TABLE kept AS SELECT * FROM log; TRUNCATE log; INSERT INTO log SELECT * FROM kept WHERE id <> 98; DROP TABLE kept",
        &[],
    ),
    (
        "partitions exchanged",
        "CREATE TABLE log_3 (id bigint PRIMARY KEY, n int); INSERT INTO log_3 VALUES (101, 7), (104, 7); \
         BEGIN; ALTER TABLE log DETACH PARTITION log_2; ALTER TABLE log ATTACH PARTITION log_3 FOR VALUES FROM (100) TO (200); COMMIT",
        &[],
    ),
    ("heir", "CREATE TABLE oldest (PRIMARY KEY (id)) INHERITS (old); INSERT INTO oldest VALUES (3, 'a')", &[]),
    ("attribute renamed", "ALTER TYPE comp RENAME ATTRIBUTE a TO q; ALTER TABLE kind RENAME COLUMN a TO q", &[]),
    ("attribute dropped", "ALTER TYPE comp DROP ATTRIBUTE b", &["shape"]),
    ("attribute added", "ALTER TYPE comp ADD ATTRIBUTE z int", &["shape"]),
    ("attribute inside an array of a domain", "ALTER TYPE inner_comp ADD ATTRIBUTE z int", &["shape"]),
    ("column of a row type dropped", "ALTER TABLE kind DROP COLUMN b", &["shape"]),
    ("converted", "ALTER TABLE item ALTER COLUMN a TYPE int USING a * 10", &["item"]),
    ("widened", "ALTER TABLE item ALTER COLUMN a TYPE bigint USING a + 1", &["item"]),
    ("another type of the same bytes", "ALTER TABLE item ALTER COLUMN v TYPE text", &["item"]),
    (
        "columns exchanged",
        "ALTER TABLE item RENAME a TO x; ALTER TABLE item RENAME b TO a; ALTER TABLE item RENAME x TO b",
        &["item"],
    ),
    ("dropped and added", "ALTER TABLE item DROP COLUMN c; ALTER TABLE item ADD COLUMN c int DEFAULT 7", &["item"]),
    ("label", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", &["item", "shape"]),
    (
        "labels exchanged",
        "ALTER TYPE mood RENAME VALUE 'glad' TO 'x'; ALTER TYPE mood RENAME VALUE 'wild' TO 'glad'; ALTER TYPE mood RENAME VALUE 'x' TO 'wild'",
        &["item", "shape"],
    ),
    ("enum to text", "ALTER TABLE item ALTER COLUMN m TYPE text USING upper(m::text)", &["item"]),
    (
        "triggers off and on",
        "BEGIN; ALTER TABLE item DISABLE TRIGGER \"headwater_update@area\"; UPDATE item SET a = 77 WHERE id = 4; \
         ALTER TABLE item ENABLE ALWAYS TRIGGER \"headwater_update@area\"; COMMIT",
        &["item"],
    ),
    ("triggers made again", TRIGGERS_MADE_AGAIN, &["item"]),
    ("function put back", FUNCTION_PUT_BACK, &["item"]),
    ("restored", RESTORED, &["item"]),
    (
        "triggers of a parent off and on",
        "DO $$ DECLARE made record; BEGIN FOR made IN SELECT tgname AS name FROM pg_trigger WHERE tgrelid = 'doc'::regclass \
         AND tgname LIKE '~headwater%' LOOP EXECUTE format('ALTER TABLE doc DISABLE TRIGGER %I', made.name); END LOOP; \
         UPDATE doc SET area = 'south' WHERE id = 1; \
         FOR made IN SELECT tgname AS name FROM pg_trigger WHERE tgrelid = 'doc'::regclass \
         AND tgname LIKE '~headwater%' LOOP EXECUTE format('ALTER TABLE doc ENABLE ALWAYS TRIGGER %I', made.name); END LOOP; END $$",
        &["doc", "page"],
    ),
    ("a leaf converted", "ALTER TABLE log ALTER COLUMN n TYPE bigint USING n + 1", &["log"]),
    (
        "detached and attached",
        "ALTER TABLE log DETACH PARTITION log_1; ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (0) TO (100)",
        &["log"],
    ),
    ("inherits no more, and again", "ALTER TABLE older NO INHERIT old; ALTER TABLE older INHERIT old", &["old"]),
];

fn stocked(database: &Database) -> Plan {
    database.application(TABLES);
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

/// Syncs as a server does: again where the database could not do it at once, on another connection where this one has to prepare anew.
fn sync(replica: &mut Replica, database: &Database, connection: &mut Box<dyn Connection>, plan: &Plan) -> Synced {
    for _ in 0..5 {
        match replica.try_sync(&mut **connection, plan) {
            Ok(synced) => return synced,
            Err(error) => {
                eprintln!("  again: {error}");
                *connection = database.connect();
            }
        }
    }
    panic!("the sync does not go well");
}

fn row(rows: &[Row], id: i64) -> &Row {
    rows.iter().find(|row| row[0] == super::values::int(id)).expect("the row is held")
}

/// The names of the tables that came whole.
pub(crate) fn whole(plan: &Plan, synced: &Synced) -> Vec<String> {
    let marks = synced.marks.iter().filter(|mark| mark.action == PartitionAction::Whole);
    let mut names: Vec<String> = marks.map(|mark| plan.tables[mark.table as usize].table.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The model, a connection, and a remote that has synced by it.
fn synced(database: &Database) -> (Plan, Box<dyn Connection>, Replica) {
    let plan = stocked(database);
    let mut connection = database.connect();
    let mut ben = Replica::new("ben");
    sync(&mut ben, database, &mut connection, &plan);
    (plan, connection, ben)
}

/// What the database knows of the partitions of `log` and of its rows: which step was missing, where a remote lacks some.
fn on_record(database: &Database) -> String {
    let rows = database.rows(
        "SELECT concat_ws(' ', 'part', p.part::regclass, p.state, p.tried_at) FROM headwater.part p WHERE p.table_name = 'log' \
         UNION ALL SELECT concat_ws(' ', 'below', i.inhrelid::regclass, i.xmin) FROM pg_inherits i WHERE i.inhparent = 'log'::regclass \
         UNION ALL SELECT concat_ws(' ', 'side', s) FROM headwater.side_log s \
         UNION ALL SELECT concat_ws(' ', 'row', l.tableoid::regclass, l.id, l.n, l.xmin) FROM log l",
    );
    format!("{rows:?}")
}

/// Each event meets a remote that has a pending change of `item`, and a connection that has synced before.
pub(crate) fn what_no_trigger_sees_comes_afresh(database: &Database) {
    let (plan, mut connection, mut ben) = synced(database);
    for (place, (name, statements, afresh)) in EVENTS.iter().enumerate() {
        eprintln!("{name}");
        let pending = format!("pending {place}");
        let mut changed = row(&ben.table(&plan, "item"), 2).clone();
        changed[2] = text(&pending);
        // A converted column would make a conflict of it, which `merge` ends, but for the other columns.
        ben.update(&plan, "item", changed);
        for statement in split(statements) {
            database.application(statement);
        }
        let seen_before = ben.watermarks.clone();
        let synced = sync(&mut ben, database, &mut connection, &plan);
        assert_eq!(whole(&plan, &synced), *afresh, "{name}");
        let recorded = on_record(database);
        let mut fresh = Replica::synced(database, &plan, "ben");
        for table in plan.tables.iter().map(|table| table.table.name.as_str()) {
            assert_eq!(
                ben.table(&plan, table),
                fresh.table(&plan, table),
                "{name}: {table}; seen before: {seen_before:?}, now: {:?}; {recorded}",
                ben.watermarks
            );
        }
        assert_eq!(row(&fresh.table(&plan, "item"), 2)[2], text(&pending), "{name}: the pending change is there");
        let again = sync(&mut ben, database, &mut connection, &plan);
        assert_eq!((again.count(), again.marks.len()), (0, 0), "{name}: nothing comes twice");
        sync(&mut fresh, database, &mut connection, &plan);
    }
}

/// Makes a table whose OID differs from that of `log` in the same bits in which the OIDs of their primary keys' indexes differ.
const EVENLY_NUMBERED: &str = "DO $$ BEGIN
    FOR attempt IN 1..1000 LOOP
        CREATE TABLE even (id bigint PRIMARY KEY, n int);
        EXIT WHEN ('even'::regclass::oid::int8 # 'log'::regclass::oid::int8)
            = ('even_pkey'::regclass::oid::int8 # 'log_pkey'::regclass::oid::int8);
        DROP TABLE even;
    END LOOP;
END $$";

/// OIDs may come so that the rows of a partition and of its index in `pg_inherits` have the same hash. One partition
/// takes the place of another that was there when the table was tracked, and one of another that came later.
pub(crate) fn partitions_are_followed_whatever_their_numbers(database: &Database) {
    let exchange = |name: &str, id: i64, before: &str| {
        database.application(EVENLY_NUMBERED);
        database.application(&format!(
            "ALTER TABLE even RENAME TO {name}; ALTER INDEX even_pkey RENAME TO {name}_pkey; INSERT INTO {name} VALUES ({id}, 7); \
             BEGIN; {before}; ALTER TABLE log ATTACH PARTITION {name} FOR VALUES FROM (200) TO (300); COMMIT"
        ));
    };
    database.application(TABLES);
    exchange("second", 202, "SELECT 1");
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut connection = database.connect();
    let mut ben = Replica::new("ben");
    sync(&mut ben, database, &mut connection, &plan);
    for (name, id, before) in [("third", 203, "second"), ("fourth", 204, "third")] {
        exchange(name, id, &format!("ALTER TABLE log DETACH PARTITION {before}"));
        let synced = sync(&mut ben, database, &mut connection, &plan);
        ben.assert_equals_fresh(database, &plan);
        assert!(row(&ben.table(&plan, "log"), id)[1] == super::values::int(7) && whole(&plan, &synced).is_empty());
    }
}

/// VACUUM and others run in no transaction, which several statements in one message are.
fn split(statements: &str) -> Vec<&str> {
    let is_alone = ["VACUUM", "CLUSTER", "SET"].iter().any(|word| statements.starts_with(word));
    match statements {
        _ if statements.starts_with("SET") || !is_alone => vec![statements],
        _ => statements.split("; ").collect(),
    }
}

/// Where triggers are missing, or are another table's, the download is refused by name, and `track` puts it right.
pub(crate) fn exchanged_tables_are_refused_by_name(database: &Database) {
    let (plan, mut connection, mut ben) = synced(database);
    let exchanges = [
        "BEGIN; ALTER TABLE other RENAME TO x; ALTER TABLE item RENAME TO other; ALTER TABLE x RENAME TO item; COMMIT",
        "BEGIN; ALTER TABLE other RENAME TO x; ALTER TABLE item RENAME TO other; ALTER TABLE x RENAME TO item; COMMIT",
        "CREATE TABLE fresh AS SELECT * FROM other; ALTER TABLE fresh ADD PRIMARY KEY (id); UPDATE fresh SET note = 'fresh'; \
         BEGIN; ALTER TABLE other RENAME TO x; ALTER TABLE fresh RENAME TO other; COMMIT",
    ];
    for (place, exchange) in exchanges.iter().enumerate() {
        database.application(exchange);
        if place == 1 {
            // All is where it was.
            continue;
        }
        let refused = ben.try_sync(&mut *connection, &plan).map(|_| ()).expect_err("a download with a hole");
        assert!(
            matches!(&refused, Error::Untracked { table, .. } if table.contains("other") || table.contains("item")),
            "{refused:?}"
        );
        if place == 0 {
            continue;
        }
        track::track(&mut *database.connect(), &plan).expect("tracked");
        sync(&mut ben, database, &mut connection, &plan);
        ben.assert_equals_fresh(database, &plan);
        assert_eq!(row(&ben.table(&plan, "other"), 1)[2], text("fresh"));
    }
}

/// Statements after which triggers are enabled, but not as they were made; the table whose triggers they are, and the tables that come
/// afresh.
const ENABLED_PLAINLY: &[(&str, &str, &[&str])] = &[
    ("item", "UPDATE item SET note = 'unseen' WHERE id = 4; DELETE FROM item WHERE id = 7", &["item"]),
    ("doc", "UPDATE doc SET area = 'south' WHERE id = 1", &["doc", "page"]),
    ("page", "UPDATE page SET note = 'unseen' WHERE id = 1", &["page"]),
    ("log", "INSERT INTO log VALUES (150, 7)", &["log"]),
    ("log_1", "UPDATE log_1 SET n = 77 WHERE id = 98", &["log"]),
    ("old", "INSERT INTO old VALUES (9, 'unseen')", &["old"]),
    ("older", "UPDATE older SET note = 'unseen' WHERE id = 1", &["old"]),
];

/// What must stay: the incarnation, and the side tables.
fn kept(database: &Database) -> Vec<Row> {
    database.rows(
        "SELECT encode(incarnation, 'hex') FROM headwater.identity UNION ALL SELECT oid::text FROM pg_class \
         WHERE relnamespace = 'headwater'::regnamespace AND relname LIKE 'side%' AND relkind = 'r' ORDER BY 1",
    )
}

fn assert_whole_tracking(database: &Database, plan: &Plan, event: &str) {
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let state = track::state(&mut *database.connect(), &Kin::new(&plan.model, table)).expect("a state");
        assert_eq!(state, Tracking::Complete, "{event}: {}", table.name);
    }
    let other = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%headwater%' AND NOT tgisinternal \
                 AND tgenabled <> CASE WHEN tgname LIKE 'headwater!_row%' ESCAPE '!' THEN 'R' ELSE 'A' END";
    assert_eq!(database.number(other), 0, "{event}: triggers are enabled as they were made");
}

/// A pending change goes up, the tables come whole, and no other table does.
fn assert_comes_whole(
    (database, plan, connection): (&Database, &Plan, &mut Box<dyn Connection>),
    ben: &mut Replica,
    event: &str,
    afresh: &[&str],
) {
    let mut changed = row(&ben.table(plan, "item"), 2).clone();
    changed[2] = text(event);
    ben.update(plan, "item", changed);
    let synced = sync(ben, database, connection, plan);
    assert_eq!(whole(plan, &synced), *afresh, "{event}");
    let mut fresh = Replica::synced(database, plan, "ben");
    for table in plan.tables.iter().map(|table| table.table.name.as_str()) {
        assert_eq!(ben.table(plan, table), fresh.table(plan, table), "{event}: {table}");
    }
    assert_eq!(row(&fresh.table(plan, "item"), 2)[2], text(event), "{event}: the pending change is there");
    let again = sync(ben, database, connection, plan);
    assert_eq!((again.count(), again.marks.len()), (0, 0), "{event}: nothing comes twice");
    sync(&mut fresh, database, connection, plan);
    assert_whole_tracking(database, plan, event);
}

/// `ENABLE TRIGGER USER` and `ALL` leave triggers in another state than they were made in: the next download sets them right.
pub(crate) fn triggers_enabled_plainly_are_set_right_by_the_next_download(database: &Database) {
    let (plan, mut connection, mut ben) = synced(database);
    let kept_before = kept(database);
    for (table, writes, afresh) in ENABLED_PLAINLY {
        let all = ["item", "doc"].contains(table).then_some("ALL");
        for which in std::iter::once("USER").chain(all) {
            let event = format!("{which} of {table}");
            eprintln!("{event}");
            database.application(&format!("ALTER TABLE {table} DISABLE TRIGGER {which}"));
            database.application(writes);
            database.application(&format!("ALTER TABLE {table} ENABLE TRIGGER {which}"));
            assert_comes_whole((database, &plan, &mut connection), &mut ben, &event, afresh);
            assert_eq!(kept(database), kept_before, "{event}: no side table was dropped, and the incarnation stays");
        }
    }
}

/// While triggers are off, syncs end with an error that names the table; `track` enables them, and the table comes whole.
pub(crate) fn triggers_that_are_off_are_enabled_by_track(database: &Database) {
    let (plan, mut connection, mut ben) = synced(database);
    let kept_before = kept(database);
    for (table, writes, afresh) in ENABLED_PLAINLY {
        eprintln!("{table}");
        database.application(&format!("ALTER TABLE {table} DISABLE TRIGGER USER"));
        database.application(writes);
        let refused = ben.try_sync(&mut *connection, &plan).map(|_| ()).expect_err("a download with a hole");
        let named = if *table == "log_1" { "log" } else { table.strip_suffix("er").unwrap_or(table) };
        assert!(
            matches!(&refused, Error::Untracked { table, mend, .. } if table == named && mend.contains("headwater track")),
            "{refused:?}"
        );
        connection = database.connect();
        if *table == "item" {
            // As `pg_restore --disable-triggers` leaves them.
            database.application("ALTER TABLE item ENABLE TRIGGER ALL");
        }
        let shown = track::plan_tracking(&mut *database.connect(), &plan).expect("planned");
        assert!(shown.iter().all(|sql| sql.contains("TRIGGER")) && !shown.is_empty(), "{shown:?}");
        assert_eq!(track::track(&mut *database.connect(), &plan).expect("tracked"), shown);
        assert_whole_tracking(database, &plan, table);
        assert_comes_whole((database, &plan, &mut connection), &mut ben, table, afresh);
        assert_eq!(kept(database), kept_before, "{table}: no side table was dropped, and the incarnation stays");
    }
}

/// A server whose role does not own the table can't enable its triggers: it goes on naming the table until `track` has run.
pub(crate) fn triggers_of_a_table_of_another_owner_wait_for_track(database: &Database) {
    let plan = stocked(database);
    let mut connection = by_role(database).1.connect().expect("connected");
    let mut ben = Replica::new("ben");
    ben.try_sync(&mut *connection, &plan).expect("synced");
    let kept_before = kept(database);
    for statement in ["DISABLE TRIGGER USER", "ENABLE TRIGGER USER"] {
        database.application(&format!("ALTER TABLE item {statement}; UPDATE item SET note = 'unseen' WHERE id = 4"));
    }
    for _ in 0..2 {
        let refused = ben.try_sync(&mut *connection, &plan).map(|_| ()).expect_err("a download with a hole");
        assert!(matches!(&refused, Error::Untracked { table, .. } if table == "item"), "{refused:?}");
    }
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let synced = ben.try_sync(&mut *connection, &plan).expect("synced");
    assert_eq!(whole(&plan, &synced), ["item"]);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(kept(database), kept_before);
}

/// Tables that come to have another's name, or that lost their triggers, come whole after `track`; the others stay as they are.
pub(crate) fn exchanged_tables_keep_the_incarnation(database: &Database) {
    let (plan, _, mut ben) = synced(database);
    let incarnation = ben.incarnation;
    let events: &[(&str, &[&str])] = &[
        (
            "CREATE TABLE fresh AS SELECT * FROM other; ALTER TABLE fresh ADD PRIMARY KEY (id); UPDATE fresh SET note = 'fresh'; \
             INSERT INTO fresh VALUES (9, 'north', 'fresh'); \
             BEGIN; ALTER TABLE other RENAME TO x; ALTER TABLE fresh RENAME TO other; DROP TABLE x; COMMIT",
            &["other"],
        ),
        (
            "CREATE TABLE fresh AS SELECT * FROM other; ALTER TABLE fresh ADD PRIMARY KEY (id); DELETE FROM fresh WHERE id = 9; \
             BEGIN; ALTER TABLE other RENAME TO x; ALTER TABLE fresh RENAME TO other; COMMIT; UPDATE x SET note = 'x'",
            &["other"],
        ),
        (
            "BEGIN; ALTER TABLE other RENAME TO y; ALTER TABLE x RENAME TO other; COMMIT; UPDATE other SET note = 'back'",
            &["other"],
        ),
        ("UPDATE other SET note = 'noted'; DROP TABLE headwater.\"side_other@area\"", &["other"]),
        (
            "DO $$ BEGIN EXECUTE (SELECT format('DROP FUNCTION headwater.%I CASCADE', proname) FROM pg_proc \
             WHERE proname LIKE 'track!_doc%' ESCAPE '!'); END $$; UPDATE doc SET area = 'south'",
            &["doc", "page"],
        ),
    ];
    for (event, afresh) in events {
        eprintln!("{event}");
        database.application(event);
        // One that has seen the table as it was takes a side table for granted.
        let mut connection = database.connect();
        let refused = ben.try_sync(&mut *connection, &plan).map(|_| ()).expect_err("a download with a hole");
        assert!(matches!(&refused, Error::Untracked { table, .. } if table == afresh[0]), "{refused:?}");
        connection = database.connect();
        track::track(&mut *database.connect(), &plan).expect("tracked");
        assert_comes_whole((database, &plan, &mut connection), &mut ben, event, afresh);
        assert_eq!(ben.incarnation, incarnation, "{event}");
    }
}

/// Tables that a build without records has tracked are recorded by the first download.
pub(crate) fn an_installation_without_records_gets_them(database: &Database) {
    let plan = stocked(database);
    database.application("DROP TABLE headwater.table_identity");
    let mut connection = database.connect();
    let mut ben = Replica::new("ben");
    sync(&mut ben, database, &mut connection, &plan);
    database.application("ALTER TABLE item ALTER COLUMN a TYPE int USING a * 10");
    let synced = sync(&mut ben, database, &mut connection, &plan);
    assert_eq!(whole(&plan, &synced), ["item"]);
    ben.assert_equals_fresh(database, &plan);
}

/// `track` does not take for its own what others did to a table before.
pub(crate) fn tracking_again_hides_nothing(database: &Database) {
    let (plan, mut connection, mut ben) = synced(database);
    database.application("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'");
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let synced = sync(&mut ben, database, &mut connection, &plan);
    assert_eq!(whole(&plan, &synced), ["item", "shape"]);
    ben.assert_equals_fresh(database, &plan);
    let kin = Kin::new(&plan.model, &find(&plan, "item").table);
    assert_eq!(track::state(&mut *database.connect(), &kin).expect("a state"), Tracking::Complete);
    track::untrack(&mut *database.connect(), &plan).expect("untracked");
    assert_eq!(database.number("SELECT count(*) FROM headwater.table_identity"), 0);
}

fn change_notes(remote: &mut Replica, plan: &Plan) {
    for table in ["item", "other"] {
        let mut changed = row(&remote.table(plan, table), 1).clone();
        changed[2] = text("mine");
        remote.update(plan, table, changed);
    }
}

/// What is written to a table that stands in a tracked one's place would go with it: nothing of the upload is applied until that is put right.
pub(crate) fn an_upload_is_not_written_to_another_table(database: &Database) {
    let exchange = "ALTER TABLE other RENAME TO x; ALTER TABLE item RENAME TO other; ALTER TABLE x RENAME TO item";
    let replace = "ALTER TABLE item RENAME TO kept; CREATE TABLE item (LIKE kept INCLUDING ALL EXCLUDING GENERATED); \
                   INSERT INTO item (id, area, note) SELECT id, area, note FROM kept";
    let places = [(exchange, exchange), (replace, "DROP TABLE item; ALTER TABLE kept RENAME TO item")];
    let plan = stocked(database);
    let mut connection = database.connect();
    for (away, back) in places {
        let mut ben = Replica::new("ben");
        sync(&mut ben, database, &mut connection, &plan);
        change_notes(&mut ben, &plan);
        database.application(&format!("BEGIN; {away}; COMMIT"));
        for mut any in [database.connect(), std::mem::replace(&mut connection, database.connect())] {
            let refused = ben.upload_only(&mut *any, &plan).expect_err("refused");
            assert!(matches!(&refused, Error::Untracked { .. }), "{refused:?}");
        }
        database.application(&format!("BEGIN; {back}; COMMIT"));
        assert_eq!(database.number("SELECT count(*) FROM item WHERE note = 'mine'"), 0, "nothing was applied");
        assert!(sync(&mut ben, database, &mut connection, &plan).outcomes().is_empty());
        assert_eq!(database.number("SELECT count(*) FROM item WHERE note = 'mine'"), 1);
        ben.assert_equals_fresh(database, &plan);
        database.application("UPDATE item SET note = 'a'; UPDATE other SET note = 'other'");
    }
}

/// The tables are exchanged, or triggers switched off, when an upload has begun and has not come to them yet.
pub(crate) fn a_table_exchanged_during_an_upload_is_not_written_to(database: &Database) {
    let deeds = [
        "ALTER TABLE other RENAME TO x; CREATE TABLE other (LIKE x INCLUDING ALL); INSERT INTO other SELECT * FROM x",
        "ALTER TABLE other DISABLE TRIGGER USER",
    ];
    let backs = ["DROP TABLE other; ALTER TABLE x RENAME TO other", ""];
    database.application(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
         $$BEGIN PERFORM pg_advisory_xact_lock(4712); RETURN new; END$$",
    );
    let plan = stocked(database);
    database.application("CREATE TRIGGER waits BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION waits()");
    for (deed, back) in deeds.into_iter().zip(backs) {
        let mut connection = database.connect();
        let mut ben = Replica::new("ben");
        sync(&mut ben, database, &mut connection, &plan);
        change_notes(&mut ben, &plan);
        let mut gate = database.connect();
        gate.batch("SELECT pg_advisory_lock(4712)").expect("locked");
        let uploaded = std::thread::scope(|scope| {
            let (ben, plan) = (&ben, &plan);
            let uploading = scope.spawn(move || ben.upload_only(&mut *connection, plan));
            let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            while database.number(waits) == 0 {
                assert!(!uploading.is_finished(), "it waits in the first table's trigger");
                std::thread::yield_now();
            }
            database.application(&format!("BEGIN; {deed}; COMMIT"));
            gate.batch("SELECT pg_advisory_unlock(4712)").expect("let through");
            uploading.join().expect("no panic")
        });
        assert!(matches!(uploaded, Err(Error::Retry { broken: false, .. })), "{deed}: {uploaded:?}");
        let refused = ben.upload_only(&mut *database.connect(), &plan);
        assert!(matches!(&refused, Err(Error::Untracked { table, .. }) if table == "other"), "{deed}: {refused:?}");
        database.application(back);
        assert_eq!(database.number("SELECT count(*) FROM other WHERE note = 'mine'"), 0, "{deed}");
    }
}
