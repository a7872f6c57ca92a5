//! `diff` finds what is not the same: in each type, in each direction, in both databases. Nothing here was synchronized: both sides
//! are filled by hand.

use std::path::{Path, PathBuf};

use headwater::diff::{Kind, Options, Pending, Postgres, RemoteFile, Report, Source, SqliteDatabase, compare};
use headwater_model::{Model, parse::parse, remote_sql};
use rusqlite::Connection;

const MODEL: &str = r#"
name = "all"
version = 1
[partitions.region]
columns = { region = "text", zone = "int" }
members = "SELECT region, zone FROM member WHERE user_name = :s.user -- and no more"
[tables.every]
key = ["id", "label"]
partition = { name = "region", columns = ["place", "zone"] }
[tables.every.columns]
id = "int not null"
label = "text not null"
place = "text not null"
zone = "int not null"
truth = "bool"
number = "real"
small = "real"
amount = "decimal(60,30)"
bytes = "bytes"
day = "date"
clock = "time"
local = "timestamp"
moment = "timestamptz"
uuid = "uuid"
doc = "json"
padded = "text"
[tables.reading]
direction = "upload"
key = ["id"]
columns = { id = "int not null", value = "real" }
[tables.code]
direction = "download"
key = ["code"]
columns = { code = "text not null" }
"#;

/// Two rows of the user's, with every type, as PostgreSQL writes them; then one of another region, one of another user.
const POSTGRES: &str = r#"
CREATE TABLE member (user_name varchar(20), region varchar, zone smallint);
CREATE TABLE every (id int, label text, place text, zone int, truth bool, number float8, small float4, amount numeric, bytes bytea,
  day date, clock time, local timestamp, moment timestamptz, uuid uuid, doc jsonb, padded char(4));
CREATE TABLE reading (id bigint, value float8);
CREATE TABLE code (code text);
INSERT INTO member VALUES ('ann', 'north', 1), ('ann', 'north', 1), ('ann', 'south', 2), ('bob', 'east', 1);
INSERT INTO every VALUES
 (1, 'a', 'north', 1, true, 0.1, 0.1, 123456789012345678901234567890.123456789012345678901234567890, '\x00ff', '2013-01-31',
  '05:00:00.5', '2013-01-31 05:00:00.000001', '2013-01-31 05:00:00.25-05', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"a":1}', 'ab'),
 (-1, 'b', 'south', 2, false, 'NaN', '-0', 'NaN', '', '0044-03-15 BC', '24:00:00', 'infinity', '12013-01-31 00:00:00+00', NULL, NULL, ''),
 (2, 'x', 'north', 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, 'y', 'east', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO reading VALUES (1, 1.5), (2, 2.5);
INSERT INTO code VALUES ('x'), ('y');
"#;

/// The same as a SQLite file holds it. The remote has the first two rows of `every` and the first reading.
const ROWS: &str = r#"
INSERT INTO every VALUES
 (1, 'a', 'north', 1, 1, 0.1, 0.10000000149011612, '123456789012345678901234567890.12345678901234567890123456789', x'00ff',
  '2013-01-31', '05:00:00.500000', '2013-01-31 05:00:00.000001', '2013-01-31 10:00:00.250000Z',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', 'ab  '),
 (-1, 'b', 'south', 2, 0, 'NaN', '-zero', 'NaN', x'', '-0043-03-15', '24:00:00', 'infinity', '+12013-01-31 00:00:00Z', NULL, NULL, '    ');
INSERT INTO reading VALUES (1, 1.5);
INSERT INTO code VALUES ('x'), ('y');
"#;

struct Scene {
    folder: tempfile::TempDir,
    model: Model,
}

impl Scene {
    /// A remote and a consolidated database in SQLite that agree.
    fn new() -> Scene {
        let model = parse("all.toml", MODEL).expect("the model is valid");
        let scene = Scene { folder: tempfile::tempdir().expect("a folder"), model };
        scene
            .change_remote(&(remote_sql::system_tables().to_owned() + &remote_sql::create_tables(&scene.model) + ROWS));
        let state =
            "INSERT INTO hw_state (one, format, remote_id, secret, server, user, model, fingerprint, incarnation, note,
                     download_applied) VALUES (1, 1, zeroblob(16), '', '', 'ann', ?1, 0, '', '', '')";
        open(&scene.remote_path()).execute(state, [scene.model.to_json()]).expect("the state");
        let tables: String =
            scene.model.tables.iter().map(|table| remote_sql::create_table(&scene.model, table)).collect();
        open(&scene.central_path()).execute_batch(&(tables + ROWS)).expect("the rows");
        scene.change_central(
            "CREATE TABLE member (user_name TEXT, region TEXT, zone INTEGER);
             INSERT INTO member VALUES ('ann', 'north', 1), ('ann', 'north', 1), ('ann', 'south', 2), ('bob', 'east', 1);
             INSERT INTO every (id, label, place, zone) VALUES (2, 'x', 'north', 2), (3, 'y', 'east', 1);
             INSERT INTO reading VALUES (2, 2.5);",
        );
        scene
    }

    fn remote_path(&self) -> PathBuf {
        self.folder.path().join("remote.db")
    }

    fn central_path(&self) -> PathBuf {
        self.folder.path().join("central.db")
    }

    fn change_remote(&self, sql: &str) {
        open(&self.remote_path()).execute_batch(sql).expect(sql);
    }

    fn change_central(&self, sql: &str) {
        open(&self.central_path()).execute_batch(sql).expect(sql);
    }

    fn with_sqlite(&self) -> Report {
        let mut central = SqliteDatabase::open(&self.central_path(), &self.model, "ann", "").expect("a database");
        self.compare(&mut central, &Options { details_max: 10, ..Options::default() })
    }

    fn with_postgres(&self, url: &str) -> Report {
        let config = url.parse().expect("a URL");
        let mut central = Postgres::connect(&config, tokio_postgres::NoTls, &self.model, "ann", "").expect("connected");
        self.compare(&mut central, &Options { details_max: 10, ..Options::default() })
    }

    fn compare(&self, central: &mut dyn Source, options: &Options) -> Report {
        let mut remote = RemoteFile::open(&self.remote_path()).expect("a remote");
        assert_eq!(remote.user, "ann");
        compare(&self.model, &mut remote, central, options, &mut |_, _| ()).expect("compared")
    }
}

fn open(path: &Path) -> Connection {
    Connection::open(path).expect("a SQLite file")
}

/// Missing, extra and different rows of a table.
fn counts(report: &Report, table: &str) -> (u64, u64, u64) {
    let found = report.tables.iter().find(|found| found.table == table).expect("the table is compared");
    (found.missing, found.extra, found.different)
}

#[test]
fn equal_sides_are_equal() {
    let report = Scene::new().with_sqlite();
    assert!(report.is_equal(false), "{report:?}");
    assert_eq!(report.tables.iter().map(|t| t.remote_rows).collect::<Vec<_>>(), [2, 1, 2]);
    assert_eq!(report.tables.iter().map(|t| t.consolidated_rows).collect::<Vec<_>>(), [2, 2, 2], "part of the rows");
}

#[test]
fn one_digit_lost_is_found_in_every_type() {
    for (column, value) in [
        ("truth", "0"),
        ("number", "0.10000000000000002"),
        ("small", "0.1"),
        ("amount", "'123456789012345678901234567890.123456789012345678901234567891'"),
        ("bytes", "x'00fe'"),
        ("day", "'2013-01-30'"),
        ("clock", "'05:00:00.500001'"),
        ("local", "'2013-01-31 05:00:00'"),
        ("moment", "'2013-01-31 10:00:00.250001Z'"),
        ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'"),
        ("doc", "'{\"a\": 2}'"),
        ("padded", "'ab'"),
        ("truth", "NULL"),
    ] {
        let scene = Scene::new();
        scene.change_remote(&format!("UPDATE every SET {column} = {value} WHERE id = 1"));
        let report = scene.with_sqlite();
        assert_eq!(counts(&report, "every"), (0, 0, 1), "{column}");
        let difference = &report.tables[0].differences[0];
        assert_eq!(difference.kind, Kind::Different);
        assert_eq!(difference.columns.iter().map(|c| c.column.as_str()).collect::<Vec<_>>(), [column]);
        let key: Vec<_> = difference.key.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(key, ["id=1", "label=\"a\""]);
    }
}

#[test]
fn rows_too_few_and_too_many_are_found() {
    let scene = Scene::new();
    scene.change_remote("DELETE FROM every WHERE id = 1; UPDATE every SET label = 'c' WHERE id = -1; DELETE FROM code");
    scene.change_remote("DELETE FROM reading; INSERT INTO reading VALUES (9, 9)");
    let report = scene.with_sqlite();
    assert_eq!(counts(&report, "every"), (2, 1, 0), "a changed key is one row missing and one too many");
    assert_eq!(counts(&report, "code"), (2, 0, 0));
    assert_eq!(counts(&report, "reading"), (0, 1, 0), "what others uploaded need not be here");
    assert!(!report.is_equal(false) && !report.is_equal(true));
}

#[test]
fn rows_of_a_partition_left_are_extra_and_of_one_joined_are_missing() {
    let scene = Scene::new();
    scene.change_central("DELETE FROM member WHERE region = 'south'; INSERT INTO member VALUES ('ann', 'east', 1)");
    assert_eq!(counts(&scene.with_sqlite(), "every"), (1, 1, 0));
    scene.change_central("DELETE FROM member");
    assert_eq!(counts(&scene.with_sqlite(), "every"), (0, 2, 0));
}

#[test]
fn pending_changes_are_differences_told_apart() {
    let scene = Scene::new();
    scene.change_remote("UPDATE every SET number = 7 WHERE id = 1; INSERT INTO hw_log_every (upload, k_id, k_label, existed) VALUES (0, 1, 'a', 1)");
    scene.change_remote("DELETE FROM every WHERE id = -1; INSERT INTO hw_log_every (upload, k_id, k_label, existed, aside) VALUES (0, -1, 'b', 1, 3)");
    let report = scene.with_sqlite();
    assert_eq!(counts(&report, "every"), (1, 0, 1));
    assert_eq!(report.tables[0].pending, 2);
    let pending: Vec<_> = report.tables[0].differences.iter().map(|difference| difference.pending).collect();
    assert_eq!(pending, [Some(Pending::SetAside), Some(Pending::Waiting)]);
    assert!(!report.is_equal(false) && report.is_equal(true));
    scene.change_remote("UPDATE every SET number = 7; DELETE FROM code WHERE code = 'x'");
    assert!(!scene.with_sqlite().is_equal(true), "a difference beside the pending ones is not hidden");
}

#[test]
fn what_is_told_is_limited_and_what_is_compared_chosen() {
    let scene = Scene::new();
    scene.change_remote("DELETE FROM every; DELETE FROM code");
    let mut central = SqliteDatabase::open(&scene.central_path(), &scene.model, "ann", "").expect("a database");
    let report = scene.compare(&mut central, &Options { tables: vec!["every".into()], details_max: 1 });
    assert_eq!(report.tables.len(), 1);
    assert_eq!((report.tables[0].missing, report.tables[0].differences.len()), (2, 1));
}

#[test]
fn other_files_are_no_remotes() {
    let scene = Scene::new();
    let error = |path: &Path| format!("{:#}", RemoteFile::open(path).err().expect("refused"));
    assert!(error(&scene.central_path()).contains("is no remote"));
    assert!(error(&scene.folder.path().join("absent.db")).contains("there is no file"));
    assert!(!scene.folder.path().join("absent.db").exists());
}

#[test]
fn postgres_is_compared_by_its_own_text() {
    let scene = Scene::new();
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    let url = cluster.create_database().expect("a database");
    headwater_testkit::postgres::sql(&url, POSTGRES).expect("the rows");
    let compared = || scene.with_postgres(&url);
    let report = compared();
    assert!(report.is_equal(false), "{report:#?}");
    assert_eq!(report.tables.iter().map(|t| t.consolidated_rows).collect::<Vec<_>>(), [2, 2, 2], "part of the rows");
    for lost in [
        "amount = amount + 0.000000000000000000000000000001",
        "number = 0.30000000000000004",
        "small = 0.10000001",
        "moment = moment + interval '1 microsecond'",
        "padded = 'abc'",
        "label = 'A'",
        "zone = 2",
    ] {
        headwater_testkit::postgres::sql(&url, &format!("UPDATE every SET {lost} WHERE id = 1")).expect(lost);
        let report = compared();
        assert!(!report.is_equal(true), "{lost}");
        headwater_testkit::postgres::sql(&url, "TRUNCATE every").expect("emptied");
        let insert = POSTGRES.split(';').find(|statement| statement.contains("INSERT INTO every")).expect("the insert");
        headwater_testkit::postgres::sql(&url, insert).expect("refilled");
        assert!(compared().is_equal(false), "and with it undone");
    }
}

/// A scene in which the user is a member of a partition whose value is larger than can travel.
fn scene_of_large_partitions() -> (Scene, String) {
    let scene = Scene::new();
    let large = "x".repeat(5_000);
    let rows = format!(
        "INSERT INTO member VALUES ('ann', '{large}', 1), ('ann', '{large}', 1), ('ann', NULL, 1); \
         INSERT INTO every (id, label, place, zone) VALUES (4, 'z', '{large}', 1)"
    );
    (scene, rows)
}

fn assert_one_left_out(report: &Report, with: &[&str]) {
    assert!(report.is_equal(false), "{report:#?}");
    let [left_out] = report.left_out.as_slice() else { panic!("{:?}", report.left_out) };
    assert_eq!(left_out.partition, "region");
    let told = format!("{}: {} bytes, {}", left_out.why, left_out.bytes, left_out.values);
    assert!(with.iter().all(|word| told.contains(word)) && told.len() < 200, "{told}");
}

#[test]
fn a_membership_that_no_download_brings_is_left_out_and_named() {
    let (scene, rows) = scene_of_large_partitions();
    let words = ["larger than can travel", "5004 bytes", "xxx..., 1"];
    scene.change_central(&rows);
    assert_one_left_out(&scene.with_sqlite(), &words);
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    let url = cluster.create_database().expect("a database");
    headwater_testkit::postgres::sql(&url, POSTGRES).expect("the rows");
    headwater_testkit::postgres::sql(&url, &rows).expect("the memberships");
    assert_one_left_out(&scene.with_postgres(&url), &words);
    // What the remote holds of it is too much.
    scene.change_remote(&rows[rows.find("INSERT INTO every").expect("the row")..]);
    assert_eq!(counts(&scene.with_sqlite(), "every"), (0, 1, 0));
    assert_eq!(counts(&scene.with_postgres(&url), "every"), (0, 1, 0));
}

/// Spelled larger than can travel: a row of a partition of the user's, and his membership in one that a row spells as usual.
fn spelled_large() -> String {
    let blanks = " ".repeat(5_000);
    format!(
        "INSERT INTO every (id, label, place, zone) VALUES (4, 'z', 'north{blanks}', 1); \
         INSERT INTO member VALUES ('ann', 'east{blanks}', 1)"
    )
}

#[test]
fn what_is_spelled_too_large_is_left_out_of_sqlite() {
    let scene = Scene::new();
    scene.change_central(
        "ALTER TABLE every RENAME TO old; CREATE TABLE every (id int, label text, place text COLLATE RTRIM, zone int, truth, number, \
         small, amount, bytes, day, clock, local, moment, uuid, doc, padded); INSERT INTO every SELECT * FROM old",
    );
    scene.change_central(&spelled_large());
    assert_one_left_out(&scene.with_sqlite(), &["larger than can travel"]);
}

#[test]
fn what_is_spelled_too_large_is_left_out_of_postgres() {
    let scene = Scene::new();
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    let url = cluster.create_database().expect("a database");
    let rows = POSTGRES.replace("place text", "place text COLLATE bare");
    let collation = "CREATE COLLATION bare (provider = icu, locale = 'und-u-ka-shifted', deterministic = false);";
    headwater_testkit::postgres::sql(&url, &format!("{collation}{rows}{}", spelled_large())).expect("the rows");
    assert_one_left_out(&scene.with_postgres(&url), &["larger than can travel"]);
}

/// The server compares partitions by the equality of the table's column, whatever collation the membership query gives.
#[test]
fn the_tables_collation_decides_which_partitions_are_equal() {
    const ROW: &str = "INSERT INTO every (id, label, place, zone) VALUES (4, 'z', 'NORTH', 1)";
    let scene = Scene::new();
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    for (altered, missing) in [("member ALTER region", 0), ("every ALTER place", 1)] {
        let url = cluster.create_database().expect("a database");
        let run =
            |sql: &str| headwater_testkit::postgres::sql(&url, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        run("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
        run(POSTGRES);
        run(&format!("{ROW}; ALTER TABLE {altered} TYPE text COLLATE ci"));
        assert_eq!(counts(&scene.with_postgres(&url), "every"), (missing, 0, 0), "{altered}");
    }
}

#[test]
fn a_membership_that_is_not_utf_8_is_left_out_and_named() {
    let scene = Scene::new();
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    let url = cluster.create_database_with("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").expect("a database");
    headwater_testkit::postgres::sql(&url, POSTGRES).expect("the rows");
    let rows = "INSERT INTO member VALUES ('ann', convert_from('\\xe4', 'SQL_ASCII'), 1); \
                INSERT INTO every (id, label, place, zone) VALUES (4, 'z', convert_from('\\xe4', 'SQL_ASCII'), 1)";
    headwater_testkit::postgres::sql(&url, rows).expect("the membership");
    assert_one_left_out(&scene.with_postgres(&url), &["not UTF-8", "x'e4'"]);
}

/// A database, or a role, may set how values are written as text.
#[test]
fn settings_of_the_database_change_no_text() {
    const MODEL: &str = "name = \"settings\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", \
        span = \"text\", at = \"timestamptz\", day = \"date\", number = \"real\", bytes = \"bytes\", many = \"text\", local = \"text\" }";
    let folder = tempfile::tempdir().expect("a folder");
    let model = parse("settings.toml", MODEL).expect("the model is valid");
    let path = folder.path().join("remote.db");
    let file = open(&path);
    file.execute_batch(&(remote_sql::system_tables().to_owned() + &remote_sql::create_tables(&model))).expect("tables");
    let state = "INSERT INTO hw_state (one, format, remote_id, secret, server, user, model, fingerprint, incarnation, note, \
                 download_applied) VALUES (1, 1, zeroblob(16), '', '', 'ann', ?1, 0, '', '', '')";
    file.execute(state, [model.to_json()]).expect("the state");
    file.execute_batch(
        "INSERT INTO t VALUES (1, '1 year 2 mons 3 days 04:05:06', '2013-01-31 10:00:00.250000Z', '2013-01-31', 0.30000000000000004, \
         x'00ff', '{\"1 mon\",\"2013-01-31 05:00:00+00\"}', '05:00:00+02')",
    )
    .expect("a row");
    let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
    let url = cluster.create_database().expect("a database");
    let name = url.rsplit('/').next().and_then(|rest| rest.split('?').next()).expect("its name");
    let run = |sql: &str| headwater_testkit::postgres::sql(&url, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    run(
        "CREATE TABLE t (id int PRIMARY KEY, span interval, at timestamptz, day date, number float8, bytes bytea, many text, local timetz); \
         INSERT INTO t VALUES (1, '1 year 2 months 3 days 4 hours 5 minutes 6 seconds', '2013-01-31 10:00:00.25+00', '2013-01-31', \
         0.30000000000000004, '\\x00ff', '{\"1 mon\",\"2013-01-31 05:00:00+00\"}', '05:00:00+02')",
    );
    for setting in [
        "IntervalStyle = 'iso_8601'",
        "IntervalStyle = 'sql_standard'",
        "DateStyle = 'SQL, DMY'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "TimeZone = 'Asia/Kolkata'",
        "standard_conforming_strings = off",
        "quote_all_identifiers = on",
    ] {
        run(&format!("ALTER DATABASE {name} SET {setting}"));
        let mut central = Postgres::connect(&url.parse().expect("a URL"), tokio_postgres::NoTls, &model, "ann", "")
            .expect("connected");
        let mut remote = RemoteFile::open(&path).expect("a remote");
        let report = compare(&model, &mut remote, &mut central, &Options::default(), &mut |_, _| ()).expect("compared");
        assert!(report.is_equal(false), "{setting}: {report:#?}");
    }
}

/// A file of an older version makes a text of a number that its head has in a column of dates; it has no other difference.
#[test]
fn an_older_file_equals_a_head_with_numbers_in_dates() {
    const MODEL: &str = "name = \"visits\"\nversion = 1\n[tables.visit]\nkey = [\"id\"]\n\
        columns = { id = \"int not null\", at = \"timestamp\", day = \"date\" }";
    let folder = tempfile::tempdir().expect("a folder");
    let model = parse("visits.toml", MODEL).expect("the model is valid");
    let central = folder.path().join("central.db");
    open(&central)
        .execute_batch(
            "CREATE TABLE visit (id INTEGER PRIMARY KEY, at DATETIME, day DATE); \
             INSERT INTO visit VALUES (1, 1704067200, 2460310.123456789), (2, '2024-01-01 00:00:00', 2460310.5)",
        )
        .expect("rows");
    let compared = |declared: &str, change: &str| {
        let path = folder.path().join(format!("{declared}.db"));
        let _ = std::fs::remove_file(&path);
        let file = open(&path);
        let tables = remote_sql::create_tables(&model).replace("_BLOB", declared);
        file.execute_batch(&(remote_sql::system_tables().to_owned() + &tables)).expect("tables");
        let state = "INSERT INTO hw_state (one, format, remote_id, secret, server, user, model, fingerprint, incarnation, note, \
                     download_applied) VALUES (1, 1, zeroblob(16), '', '', 'ann', ?1, 0, '', '', '')";
        file.execute(state, [model.to_json()]).expect("the state");
        file.execute_batch(&format!(
            "ATTACH '{}' AS c; INSERT INTO visit SELECT * FROM c.visit; {change}",
            central.display()
        ))
        .expect("rows");
        let mut there = SqliteDatabase::open(&central, &model, "ann", "").expect("a database");
        let mut remote = RemoteFile::open(&path).expect("a remote");
        compare(&model, &mut remote, &mut there, &Options::default(), &mut |_, _| ()).expect("compared").is_equal(false)
    };
    for declared in ["_TEXT", "_BLOB"] {
        assert!(compared(declared, ""), "{declared}");
        assert!(!compared(declared, "UPDATE visit SET at = 1704067201 WHERE id = 1"), "{declared}");
    }
}
