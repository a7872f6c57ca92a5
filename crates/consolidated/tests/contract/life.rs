//! One sync is one life of the database: what is put in its place in the midst of a sync is noticed by what comes next of it, and no
//! watermark is handed out.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use headwater_consolidated::download::{self, DownloadRequest};
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::system::{Greeted, Greeting, SealRequest, greet, greet_before_count, seal_watermarks};
use headwater_consolidated::upload::{self, UploadLimits, UploadRequest};
use headwater_consolidated::{Backend, Connection, Dialect, Error, Plan, track};
use headwater_protocol::Value;
use headwater_protocol::message::{Hello, Watermarks};
use headwater_testkit::Postgres as Cluster;

use super::database::{Database, MODEL, TABLES, plan};
use super::replica::Replica;
use super::values::customer;

fn greeted(connection: &mut dyn Connection, plan: &Plan, hello: &Hello) -> Greeted {
    match greet(connection, plan, "anna", hello).expect("greeted") {
        Greeting::Welcome(greeted) => greeted,
        Greeting::WrongSecret => panic!("the secret is right"),
    }
}

fn read(connection: &mut dyn Connection, plan: &Plan, hello: &Hello, greeted: &Greeted) -> Result<Watermarks, Error> {
    let request = DownloadRequest {
        plan,
        user: "anna",
        remote_id: hello.remote_id,
        watermarks: &greeted.watermarks,
        restart: greeted.welcome.restart,
        life: Some(&greeted.life),
        own: &[],
        echo: &Echo::default(),
        conflicted: &[],
        refresh: &[],
        extended: &[],
        packing: None,
        snapshots: None,
        keeps_marks: false,
        tells_leaving: false,
    };
    download::write(connection, &request, &mut |_| Ok(())).map(|(_, seen)| seen)
}

fn count(
    connection: &mut dyn Connection,
    plan: &Plan,
    hello: &Hello,
    greeted: &Greeted,
    seen: Watermarks,
) -> Result<Watermarks, Error> {
    seal_watermarks(connection, &SealRequest { plan, user: "anna", hello, greeted }, seen)
}

/// A sync that goes well; what it brought is the remote's.
fn sync(connection: &mut dyn Connection, plan: &Plan, hello: &mut Hello) {
    let greeted = greeted(connection, plan, hello);
    let seen = read(connection, plan, hello, &greeted).expect("the same life");
    hello.watermarks = count(connection, plan, hello, &greeted, seen).expect("counted");
    hello.incarnation = greeted.welcome.incarnation;
}

fn is_other<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    assert!(matches!(&result, Err(Error::OtherLife)), "{result:?}");
    result.is_err_and(|error| error.is_retryable())
}

/// Another greeting has found the database to be another in between.
pub(crate) fn nothing_spans_two_incarnations(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::new("anna");
    let mut connection = database.connect();
    let mut hello = remote.hello(&plan);
    sync(&mut *connection, &plan, &mut hello);
    remote.insert(&plan, "customer", customer(1, "a", "x", 1));
    let greeted = greeted(&mut *connection, &plan, &hello);
    let seen = read(&mut *connection, &plan, &hello, &greeted).expect("the same life");
    let sql = "UPDATE {hw}identity SET incarnation = {new}";
    database.application(&match database.dialect() {
        Dialect::Sqlite => sql.replace("{hw}", "headwater_").replace("{new}", "randomblob(16)"),
        Dialect::Postgres => sql.replace("{hw}", "headwater.").replace("{new}", "uuid_send(gen_random_uuid())"),
    });
    assert!(is_other(read(&mut *connection, &plan, &hello, &greeted)));
    assert!(is_other(count(&mut *connection, &plan, &hello, &greeted, seen)));
    let (mut frames, end) = remote.cut(&plan);
    let request = UploadRequest {
        plan: &plan,
        remote_id: hello.remote_id,
        user: "anna",
        life: Some(&greeted.life),
        download_applied: [0; 16],
        acknowledged: 0,
        cut: None,
        end,
        limits: UploadLimits::default(),
    };
    assert!(is_other(upload::apply(&mut *connection, &request, &mut frames)));
    let stored = database.number("SELECT count(*) FROM customer");
    assert_eq!(stored, 0, "nothing of the upload is there");
    assert!(upload::apply(&mut *connection, &UploadRequest { life: None, ..request }, &mut frames).is_ok());
}

/// What was put in its place has counted less than the remote presents: one more would hide that for good.
pub(crate) fn a_count_below_the_one_presented_is_no_count(database: &Database) {
    let plan = database.standard();
    let mut connection = database.connect();
    let mut hello = Replica::new("anna").hello(&plan);
    for _ in 0..2 {
        sync(&mut *connection, &plan, &mut hello);
    }
    for greet in [greet, greet_before_count] {
        let Greeting::Welcome(greeted) = greet(&mut *connection, &plan, "anna", &hello).expect("greeted") else {
            panic!("the secret is right")
        };
        let seen = read(&mut *connection, &plan, &hello, &greeted).expect("the same life");
        let hw = if database.dialect() == Dialect::Sqlite { "headwater_" } else { "headwater." };
        let counted = || database.number(&format!("SELECT syncs FROM {hw}remote"));
        let presented = counted();
        let set = |count| {
            database.application(&match database.dialect() {
                Dialect::Sqlite => format!("UPDATE headwater_remote SET syncs = {count}"),
                Dialect::Postgres => format!("UPDATE headwater.remote SET syncs = {count}"),
            });
        };
        set(presented - 1);
        assert!(is_other(count(&mut *connection, &plan, &hello, &greeted, seen.clone())));
        assert_eq!(counted(), presented - 1, "nothing was counted");
        set(presented);
        hello.watermarks = count(&mut *connection, &plan, &hello, &greeted, seen).expect("counted");
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_file(to);
    let sql = format!("VACUUM INTO '{}'", to.display());
    rusqlite::Connection::open(from).expect("a file").execute_batch(&sql).expect("copied");
}

/// A file with a state from before what the download has seen is moved into the place of the database, or written over it, after the
/// download was read. Without the comparison the count would be made there.
fn the_file_goes_back(put_back: impl Fn(&Path, &Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, backup] = ["central.db", "backup.db"].map(|name| folder.path().join(name));
    std::fs::write(&path, "").expect("an empty file");
    let backend = Sqlite::new(&path).durable(false);
    let connect = || backend.connect().expect("a connection");
    let tables = TABLES.replace("{int}", "INTEGER").replace("{decimal}", "TEXT").replace("{real}", "REAL");
    connect().batch(&tables).expect("tables");
    let plan = plan(MODEL);
    track::track(&mut *connect(), &plan).expect("tracked");
    let mut hello = Replica::new("anna").hello(&plan);
    sync(&mut *connect(), &plan, &mut hello);
    copy(&path, &backup);
    let mut connection = connect();
    connection.batch("INSERT INTO customer VALUES (1, 'a', 'x', 1)").expect("a row that only this life has");
    let greeted = greeted(&mut *connection, &plan, &hello);
    let seen = read(&mut *connection, &plan, &hello, &greeted).expect("the same life");
    put_back(&path, &backup);
    let counted = count(&mut *connect(), &plan, &hello, &greeted, seen);
    assert!(is_other(counted));
}

/// The cause for which the tables of a backup come whole is no number of statements.
#[test]
fn a_backup_moved_into_place_is_named_as_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, backup] = ["central.db", "backup.db"].map(|name| folder.path().join(name));
    std::fs::write(&path, "").expect("an empty file");
    let connect = || Sqlite::new(&path).durable(false).connect().expect("a connection");
    let tables = TABLES.replace("{int}", "INTEGER").replace("{decimal}", "TEXT").replace("{real}", "REAL");
    connect().batch(&tables).expect("tables");
    let plan = plan(MODEL);
    track::track(&mut *connect(), &plan).expect("tracked");
    Replica::new("anna").try_sync(&mut *connect(), &plan).expect("synced");
    copy(&path, &backup);
    // As SQLite's backup API leaves a new file.
    let as_backed_up = "PRAGMA journal_mode = WAL; PRAGMA schema_version = 1";
    rusqlite::Connection::open(&backup).expect("a file").execute_batch(as_backed_up).expect("a backup");
    std::fs::rename(&backup, &path).expect("moved into place");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.path().join(format!("central.db{end}")));
    }
    Replica::new("ben").try_sync(&mut *connect(), &plan).expect("synced");
    let causes = connect().query("SELECT DISTINCT cause FROM headwater_refresh", &[]).expect("causes");
    let [cause] = causes.as_slice() else { panic!("{causes:?}") };
    let Some(Value::Text(cause)) = cause.first() else { panic!("{cause:?}") };
    let cause = String::from_utf8_lossy(cause);
    assert!(cause.starts_with("the file is a backup or another one: its schema has version 1, and"), "{cause}");
}

/// A remote has read a download with a row that is lost when `swap` has put another state of the cluster into its place, which has counted as many
/// downloads of it. Without the comparison it would count one more.
fn the_cluster_goes_back<B>(prepare: impl FnOnce(&Cluster) -> B, swap: impl FnOnce(&Cluster, &B) -> String) {
    let cluster = Cluster::start().expect("a cluster");
    let url = cluster.create_database().expect("a database");
    let connect =
        |url: &str| Postgres::new(url, Settings::default()).expect("an address").connect().expect("a connection");
    let tables =
        TABLES.replace("{int}", "bigint").replace("{decimal}", "numeric").replace("{real}", "double precision");
    connect(&url).batch(&tables).expect("tables");
    let plan = plan(MODEL);
    track::track(&mut *connect(&url), &plan).expect("tracked");
    let mut hello = Replica::new("anna").hello(&plan);
    sync(&mut *connect(&url), &plan, &mut hello);
    let prepared = prepare(&cluster);
    let mut connection = connect(&url);
    connection.batch("INSERT INTO customer VALUES (1, 'a', 'x', 1)").expect("a row that only this life has");
    let greeted = greeted(&mut *connection, &plan, &hello);
    let seen = read(&mut *connection, &plan, &hello, &greeted).expect("the same life");
    let url = swap(&cluster, &prepared);
    // It goes on for itself, past what the download has seen.
    for id in 2..20 {
        let sql = format!("INSERT INTO customer VALUES ({id}, 'c{id}', 'y', 1)");
        connect(&url).batch(&sql).expect("a row");
    }
    assert!(is_other(read(&mut *connect(&url), &plan, &hello, &greeted)));
    assert!(is_other(count(&mut *connect(&url), &plan, &hello, &greeted, seen)));
}

#[test]
fn a_data_directory_put_back_is_not_counted_in() {
    the_cluster_goes_back(
        |cluster| cluster.copy_data().expect("a copy"),
        |cluster, backup| {
            cluster.put_back(backup).expect("put back");
            cluster.url("test_0")
        },
    );
}

#[test]
fn a_promoted_standby_is_not_counted_in() {
    the_cluster_goes_back(
        |cluster| {
            let standby = cluster.standby().expect("a standby");
            standby.catch_up(cluster).expect("it has all");
            standby.cut_off().expect("and gets no more");
            standby
        },
        |cluster, standby| {
            cluster.kill().expect("killed");
            standby.promote().expect("promoted");
            standby.url("test_0")
        },
    );
}

/// PostgreSQL starts all of its processes anew after a crash of one, and says the same time of start.
#[test]
fn a_crash_of_one_process_is_another_life() {
    the_cluster_goes_back(
        |_| (),
        |cluster, ()| {
            let url = cluster.url("test_0");
            let start = "SELECT pg_postmaster_start_time()";
            let before = headwater_testkit::sql(&url, start).expect("a time");
            let pid =
                headwater_testkit::sql(&url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
            let pid = pid.expect("a process")[0][0].clone().expect("a number");
            assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
            let deadline = Instant::now() + Duration::from_mins(1);
            while headwater_testkit::sql(&url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
                .map_or(true, |rows| rows.is_empty() || rows[0][0].as_deref() == Some(&pid))
            {
                assert!(Instant::now() < deadline, "it comes back");
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(headwater_testkit::sql(&url, start).expect("a time"), before);
            url
        },
    );
}

#[test]
fn a_file_moved_into_place_is_not_counted_in() {
    the_file_goes_back(|path, backup| {
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
        std::fs::rename(backup, path).expect("moved");
        // It goes on for itself, past what the download has seen.
        let sql = "INSERT INTO customer VALUES (2, 'b', 'y', 1); INSERT INTO customer VALUES (3, 'c', 'y', 1)";
        rusqlite::Connection::open(path).expect("a file").execute_batch(sql).expect("two rows");
    });
}

#[test]
fn a_file_written_over_is_not_counted_in() {
    the_file_goes_back(|path, backup| {
        let restore = format!(".restore '{}'", backup.display());
        let restored = Command::new("sqlite3").arg(path).arg(restore).status().expect("sqlite3 runs");
        assert!(restored.success());
    });
}
