//! What becomes of tracking, and of the application's statements, when a table is altered beneath it (PostgreSQL).

use headwater_consolidated::{Plan, check, system, track};
use headwater_protocol::Value;
use sha2::{Digest, Sha256};

use super::database::{Database, plan};
use super::replica::Replica;

const MODEL: &str = r#"
    name = "widened"
    version = 1

    [partitions.area]
    columns = { area = "text" }
    members = "SELECT area FROM member WHERE user_name = :s.user"

    [tables.item]
    key = ["id", "code"]
    partition = "area"
    columns = { id = "int not null", code = "text not null", area = "text", note = "text" }

    [tables.part]
    key = ["no"]
    partition = { through = "item" }
    references = [{ columns = ["item", "code"], table = "item", on_delete = "cascade" }]
    columns = { no = "decimal not null", item = "int not null", code = "text not null", note = "text" }

    [tables.mood]
    key = ["mood"]
    columns = { mood = "text not null", note = "text" }
"#;

const TABLES: &str = "
    CREATE TABLE member (user_name text NOT NULL, area text NOT NULL);
    INSERT INTO member VALUES ('anna', 'n'), ('anna', 's'), ('anna', 'rather long'), ('ben', 's');
    CREATE TYPE mood_type AS ENUM ('calm', 'wild');
    CREATE DOMAIN small AS smallint CHECK (VALUE < 100);
    CREATE TABLE item (id small NOT NULL, code varchar(3) COLLATE \"C\" NOT NULL, area varchar(4), note text, loud text GENERATED ALWAYS AS (upper(note)) STORED,
        PRIMARY KEY (id, code));
    CREATE TABLE part (no numeric(5, 0) PRIMARY KEY, item smallint NOT NULL, code varchar(3) NOT NULL, note text);
    CREATE TABLE mood (mood mood_type PRIMARY KEY, note text);
    INSERT INTO item VALUES (1, 'a', 'n', 'x'), (2, 'b', 's', 'y'), (3, 'c', 's', 'z');
    INSERT INTO part VALUES (1, 1, 'a', 'x'), (2, 2, 'b', 'y'), (3, 3, 'c', 'z');
    INSERT INTO mood VALUES ('calm', 'x')";

struct Altered<'d> {
    database: &'d Database,
    plan: Plan,
    anna: Replica,
    ben: Replica,
}

impl<'d> Altered<'d> {
    fn new(database: &'d Database) -> Altered<'d> {
        database.application(TABLES);
        let plan = plan(MODEL);
        track::track(&mut *database.connect(), &plan).expect("tracked");
        let [anna, ben] = ["anna", "ben"].map(|user| Replica::synced(database, &plan, user));
        Altered { database, plan, anna, ben }
    }

    /// Each statement goes well, and both remotes end as new ones do.
    fn arrives(&mut self, statements: &[&str]) {
        for statement in statements {
            self.database.application(statement);
        }
        for remote in [&mut self.anna, &mut self.ben] {
            remote.sync(self.database, &self.plan);
            remote.assert_equals_fresh(self.database, &self.plan);
            assert_eq!(remote.sync(self.database, &self.plan).count(), 0, "sent twice: {statements:?}");
        }
    }

    /// Both remotes end as new ones do; what has come before may come again.
    fn arrives_whole(&mut self) {
        for remote in [&mut self.anna, &mut self.ben] {
            remote.sync(self.database, &self.plan);
            remote.assert_equals_fresh(self.database, &self.plan);
        }
    }

    fn track(&self) -> Vec<String> {
        track::track(&mut *self.database.connect(), &self.plan).expect("tracked")
    }

    fn findings(&self, code: &str) -> String {
        let findings = check::check(&mut *self.database.connect(), &self.plan).expect("checked");
        findings.iter().filter(|finding| finding.code == code).map(|finding| finding.message.clone() + "\n").collect()
    }

    /// How many rows of refreshes have a cause like this. An altered type is one of its own.
    fn causes(&self, like: &str) -> i64 {
        let sql = format!(
            "SELECT count(*) FROM headwater.refresh_event WHERE cause LIKE '{like}' AND cause NOT LIKE 'column %'"
        );
        self.database.number(&sql)
    }

    fn incarnation(&self) -> [u8; 16] {
        system::identity(&mut *self.database.connect()).expect("an identity").incarnation
    }
}

/// Nothing has to be run, and everything can be noted.
pub(crate) fn columns_are_widened_without_a_word(database: &Database) {
    let mut altered = Altered::new(database);
    altered.arrives(&[
        "ALTER TABLE item ALTER COLUMN id TYPE bigint; ALTER TABLE item ALTER COLUMN code TYPE varchar(30) COLLATE \"C\"",
        "ALTER TABLE item ALTER COLUMN area TYPE text; ALTER TABLE part ALTER COLUMN no TYPE numeric(9, 0)",
        "ALTER TABLE part ALTER COLUMN item TYPE bigint; ALTER TABLE part ALTER COLUMN code TYPE text",
        "ALTER TYPE mood_type ADD VALUE 'elated'",
    ]);
    altered.arrives(&[
        "INSERT INTO item VALUES (3000000000, 'rather long', 'rather long', 'new')",
        "INSERT INTO part VALUES (1234567, 3000000000, 'rather long', 'new')",
        "INSERT INTO mood VALUES ('elated', 'new')",
    ]);
    altered.arrives(&["UPDATE item SET id = 4000000000 WHERE id = 1; UPDATE part SET item = 4000000000 WHERE no = 1"]);
    altered.arrives(&["UPDATE item SET area = 's' WHERE id > 100; DELETE FROM mood WHERE mood = 'calm'"]);
    altered.arrives(&["DELETE FROM part WHERE no = 1234567; DELETE FROM item WHERE id = 3000000000"]);
    assert_eq!(altered.causes("%"), 0, "everything could be noted");
    assert_eq!(altered.findings("side_table_narrow"), "");
    let triggers = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'item'::regclass AND NOT tgisinternal AND tgname LIKE '%headwater%'";
    assert_eq!(database.rows(triggers).len(), 7, "none of the older build's is left");
    assert_eq!(altered.track(), Vec::<String>::new());
}

/// A session that is open while a parent's key gets another type has one change that can't be noted, and then notes all.
pub(crate) fn an_open_session_forgets_its_old_plans(database: &Database) {
    let mut altered = Altered::new(database);
    let mut session = database.connect();
    let mut write = |sql: &str| session.batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    write(
        "UPDATE item SET area = 's' WHERE id = 1; INSERT INTO part VALUES (4, 1, 'a', 'planned'); DELETE FROM part WHERE no = 4",
    );
    altered.arrives(&["ALTER TABLE item ALTER COLUMN id TYPE bigint; ALTER TABLE part ALTER COLUMN item TYPE bigint"]);
    write("UPDATE item SET area = 'n' WHERE id = 1");
    write("INSERT INTO part VALUES (5, 1, 'a', 'new')");
    let failed = altered.causes("%42804%");
    assert!(failed > 0, "{}", altered.findings("comes_afresh"));
    altered.arrives(&[]);
    for change in [
        "UPDATE item SET area = 's' WHERE id = 1",
        "DELETE FROM part WHERE no = 5",
        "INSERT INTO item VALUES (7, 'g', 's', 'x')",
    ] {
        write(change);
        assert_eq!(altered.causes("%42804%"), failed, "{change}");
        altered.arrives(&[]);
    }
}

/// The side tables, the triggers' names and the record as an older build made them.
fn as_an_older_build(altered: &Altered<'_>) {
    let name = database_name(altered, "item");
    altered.database.application(&format!(
        "ALTER TABLE headwater.\"side_{name}\" ALTER COLUMN key_id TYPE int, ALTER COLUMN key_code TYPE varchar(3) COLLATE \"C\", \
         ALTER COLUMN partition_area TYPE varchar(4); \
         UPDATE headwater.tracked SET definition_hash = '\\x00' WHERE table_name = '{name}'; \
         DO $$ DECLARE t record; BEGIN \
         FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'item'::regclass AND tgname LIKE '%!_of!_item%' ESCAPE '!' LOOP \
         EXECUTE format('ALTER TRIGGER %I ON item RENAME TO %I', t.tgname, replace(t.tgname, '_of_item', '')); END LOOP; END $$"
    ));
    remember(altered);
}

fn database_name(altered: &Altered<'_>, table: &str) -> String {
    let found = altered.plan.tables.iter().find(|found| found.table.name == table).expect("a table");
    headwater_model::tracking::tracked_name(&found.lineage())
}

/// What `track` keeps a hash of.
const OBJECTS: &str = "SELECT concat_ws(' ', t.tgname, t.tgtype, t.tgenabled, t.tgoldtable, t.tgnewtable, n.nspname, p.proname, p.prosecdef,
        p.proconfig, p.prosrc)
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE t.tgrelid = 'item'::regclass AND n.nspname = 'headwater' AND NOT t.tgisinternal
    UNION ALL SELECT concat_ws(' ', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
    FROM pg_attribute a WHERE a.attrelid = 'headwater.\"SIDE\"'::regclass AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT concat_ws(' ', i.indisunique, i.indisvalid, i.indkey) FROM pg_index i WHERE i.indrelid = 'headwater.\"SIDE\"'::regclass";

/// Has `track` believe that what is there is what it made.
fn remember(altered: &Altered<'_>) {
    let name = database_name(altered, "item");
    let rows = altered.database.rows(&OBJECTS.replace("SIDE", &format!("side_{name}")));
    let mut parts: Vec<Vec<u8>> = rows
        .into_iter()
        .map(|row| match row.into_iter().next() {
            Some(Value::Text(text)) => text,
            other => panic!("{other:?} is no text"),
        })
        .collect();
    parts.sort_unstable();
    let mut hash = Sha256::new();
    for part in &parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hex = hex::encode(hash.finalize());
    altered
        .database
        .application(&format!("UPDATE headwater.tracked SET installed_hash = '\\x{hex}' WHERE table_name = '{name}'"));
}

/// What an older build made is brought up to date where it is; what remotes have seen stays seen.
pub(crate) fn an_older_installation_is_widened_in_place(database: &Database) {
    let mut altered = Altered::new(database);
    let incarnation = altered.incarnation();
    as_an_older_build(&altered);
    altered.arrives(&["UPDATE item SET note = 'before' WHERE id = 1"]);
    assert!(altered.findings("side_table_narrow").contains("key_id of its side table is integer"));
    database.application("UPDATE item SET note = 'unseen' WHERE id = 2; DELETE FROM item WHERE id = 3");
    assert!(!altered.track().is_empty());
    assert_eq!(altered.track(), Vec::<String>::new());
    assert_eq!(altered.findings("side_table_narrow"), "");
    let synced = altered.anna.sync(database, &altered.plan);
    assert_eq!((synced.upserts.len(), synced.marks.len()), (1, 0), "only what was not seen: {synced:?}");
    altered.arrives(&["ALTER TABLE item ALTER COLUMN id TYPE bigint", "UPDATE item SET id = 3000000000 WHERE id = 1"]);
    assert_eq!(altered.incarnation(), incarnation);
}

/// What does not fit is no reason for the application's statement to fail: the table comes afresh, and `check` says why.
pub(crate) fn what_does_not_fit_comes_afresh(database: &Database) {
    let mut altered = Altered::new(database);
    let incarnation = altered.incarnation();
    as_an_older_build(&altered);
    let large = "ALTER TABLE item ALTER COLUMN id TYPE bigint; INSERT INTO item VALUES (3000000000, 'b', 's', 'new'); \
                 INSERT INTO part VALUES (7, 1, 'b', 'new')";
    altered.arrives(&[large]);
    assert!(altered.causes("%22003%") > 0, "{}", altered.findings("comes_afresh"));
    altered.arrives(&["UPDATE item SET id = 4000000000 WHERE id = 2; UPDATE item SET note = 'again' WHERE id > 5"]);
    altered.arrives(&["DELETE FROM item WHERE id > 3000000000"]);
    // A value that no index takes.
    let long = "md5('a') || (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 310) n)";
    let long = format!("ALTER TABLE item ALTER COLUMN area TYPE text; INSERT INTO item SELECT 9, 'b', {long}, 'long'");
    altered.arrives(&[&long]);
    altered.track();
    altered.arrives(&["UPDATE item SET note = 'longer' WHERE id = 9; UPDATE item SET code = 'x' WHERE id = 9"]);
    assert!(altered.causes("%54000%") > 0, "{}", altered.findings("comes_afresh"));
    altered.arrives(&["INSERT INTO part VALUES (9, 9, 'x', 'below'); UPDATE item SET area = 's' WHERE id = 9"]);
    altered.arrives(&["DELETE FROM item WHERE id = 9", "TRUNCATE part"]);
    assert_eq!(altered.incarnation(), incarnation);
}

/// A side table that is gone, and columns that have another kind of type or another name, until `track` is run.
pub(crate) fn a_table_altered_beneath_its_tracking_stops_nobody(database: &Database) {
    let mut altered = Altered::new(database);
    let writes = "INSERT INTO item (id, area) VALUES (50, 's'); UPDATE item SET area = 'n' WHERE id = 50; DELETE FROM item WHERE id = 50; \
                  UPDATE item SET area = 's' WHERE id = 1; UPDATE item SET note = note || '!'";
    let to_text = "ALTER TABLE item ALTER COLUMN code SET DEFAULT 'q'; ALTER TABLE part ALTER COLUMN no TYPE text USING no::text; \
         INSERT INTO part VALUES ('7', 2, 'b', 'new'); UPDATE part SET note = 'changed' WHERE no = '2'; DELETE FROM part WHERE no = '3'";
    for (change, back) in [
        ("ALTER TABLE item RENAME COLUMN id TO number", "ALTER TABLE item RENAME COLUMN number TO id"),
        ("ALTER TABLE item RENAME COLUMN area TO place", "ALTER TABLE item RENAME COLUMN place TO area"),
        (
            "ALTER TABLE item DROP CONSTRAINT item_pkey; ALTER TABLE item ALTER COLUMN code DROP NOT NULL, ALTER COLUMN code DROP DEFAULT",
            "DELETE FROM item WHERE code IS NULL; UPDATE item SET code = code; ALTER TABLE item ADD PRIMARY KEY (id, code)",
        ),
    ] {
        database.application(to_text.split(';').next().expect("a default"));
        database.application(change);
        let renamed = change.contains("number").then(|| writes.replace("id", "number"));
        let renamed = renamed.or_else(|| change.contains("place").then(|| writes.replace("area", "place")));
        database.application(renamed.as_deref().unwrap_or(writes));
        altered.arrives(&[back]);
    }
    let incarnation = altered.incarnation();
    database.application(to_text);
    altered.plan = plan(&MODEL.replace("no = \"decimal not null\"", "no = \"text not null\""));
    assert!(altered.findings("not_tracked").contains("key_no"), "{}", altered.findings("not_tracked"));
    assert!(!altered.track().is_empty());
    assert_eq!(altered.track(), Vec::<String>::new());
    assert_eq!(altered.incarnation(), incarnation);
    let mut anna = Replica::synced(database, &altered.plan, "anna");
    database.application("DELETE FROM part WHERE no = '1'; INSERT INTO part VALUES ('x', 1, 'a', 'text')");
    anna.sync(database, &altered.plan);
    anna.assert_equals_fresh(database, &altered.plan);
    // A type of another kind that the model calls by the same name: nobody has to be told.
    let mut altered = Altered { plan: altered.plan, anna, ben: Replica::new("ben"), database };
    database.application(
        "ALTER TABLE mood ALTER COLUMN mood TYPE text; INSERT INTO mood VALUES ('none', 'x'); DELETE FROM mood WHERE mood = 'calm'",
    );
    altered.track();
    altered.arrives(&["UPDATE mood SET mood = 'other'; INSERT INTO mood VALUES ('more', 'x')"]);
    assert_eq!(altered.incarnation(), incarnation);
    let mut anna = altered.anna;
    let altered = Altered { plan: altered.plan, anna: Replica::new("anna"), ben: altered.ben, database };
    database.application(&format!("DROP TABLE headwater.\"side_{}\"", database_name(&altered, "item")));
    database.application(writes);
    altered.track();
    anna.sync(database, &altered.plan);
    anna.assert_equals_fresh(database, &altered.plan);
}

/// Columns whose collation comes to ignore case, or ceases to: rows are in other partitions than their side tables say.
pub(crate) fn a_collation_of_another_equality_is_noticed(database: &Database) {
    let mut altered = Altered::new(database);
    database.application(
        "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         INSERT INTO item VALUES (10, 'x', 'S', 'upper'), (11, 'y', 's', 'lower'); INSERT INTO part VALUES (10, 10, 'x', 'below'); \
         UPDATE item SET area = 'N' WHERE id = 10; UPDATE item SET area = 'S' WHERE id = 10",
    );
    altered.arrives(&[]);
    let incarnation = altered.incarnation();
    let noted = |number: i64| {
        format!(
            "INSERT INTO item VALUES ({number}, 'x', 'S', 'new'); INSERT INTO part VALUES ({number}, {number}, 'x', 'below'); \
             UPDATE item SET area = 's', note = 'lower' WHERE id = 10"
        )
    };
    for (place, collation) in (50..).step_by(10).zip(["ci", "\"default\""]) {
        database.application(&format!("ALTER TABLE item ALTER COLUMN area TYPE text COLLATE {collation}"));
        for number in [place, place + 1] {
            database.application(&noted(number));
            altered.arrives_whole();
        }
        let named = altered.findings("side_table_narrow");
        assert!(
            named.contains("partition_area of its side table") && named.contains("comes whole at each sync"),
            "{named}"
        );
        altered.arrives_whole();
        altered.track();
        assert_eq!(altered.track(), Vec::<String>::new());
        assert_eq!(altered.findings("not_tracked") + &altered.findings("side_table_narrow"), "");
        altered.arrives(&[]);
        altered.arrives(&[&noted(place + 2), "DELETE FROM part WHERE no < 20; DELETE FROM item WHERE id < 20"]);
        database.application(
            "INSERT INTO item VALUES (10, 'x', 'S', 'upper'); INSERT INTO part VALUES (10, 10, 'x', 'below')",
        );
    }
    assert_eq!(altered.incarnation(), incarnation);
}

/// Errors of circumstance are the application's to handle.
pub(crate) fn circumstances_still_end_the_statement(database: &Database) {
    let altered = Altered::new(database);
    database.application("UPDATE item SET note = 'noted'");
    let mut holder = database.connect();
    holder
        .batch(&format!("BEGIN; UPDATE headwater.\"side_{}\" SET deleted = NULL", database_name(&altered, "item")))
        .expect("held");
    let update = "SET lock_timeout = '100ms'; UPDATE item SET note = 'refused' WHERE id = 1";
    assert!(database.connect().batch(update).is_err(), "it waits for what another transaction notes");
    let update = "SET statement_timeout = '100ms'; UPDATE item SET note = 'refused' WHERE id = 1";
    assert!(database.connect().batch(update).is_err(), "it is cancelled");
    holder.batch("ROLLBACK").expect("over");
    assert_eq!(database.number("SELECT count(*) FROM headwater.refresh"), 0);
    assert_eq!(database.number("SELECT count(*) FROM item WHERE note = 'refused'"), 0);
}
