//! Whole syncs with a server: stopped at each durable step, cut at every place of the answer, refused, copied, restarted.

use std::time::Duration;

use headwater_protocol::message::ErrorCode;
use headwater_protocol::{Row, Type, Value};

use super::server::{Fault, Server};
use super::support::{Fixture, model, row, table};
use crate::database::crash;
use crate::http::Credentials;
use crate::{Config, Error, LargeDownload, Phase, Progress, SyncOptions, SyncReport};

/// A remote of `doc (id, title, body)` and `tag (id, doc)`, and its server.
pub(super) fn pair() -> (Fixture, Server) {
    let doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("body", Type::Text)]);
    let tag = table("tag", &[("id", Type::Text), ("doc", Type::Int)]);
    let mut f = Fixture::new(&model(vec![doc, tag]));
    let server = Server::start(f.remote.plan.tables.iter().map(|table| table.header.clone()).collect());
    f.remote.set_server(&server.url, "ann").expect("the server is set");
    (f, server)
}

pub(super) fn options<'a>() -> SyncOptions<'a> {
    let mut options = SyncOptions::new(Credentials::Password { user: "ann".to_owned(), password: "secret".to_owned() });
    options.config =
        Config { backoff_min: Duration::from_millis(1), backoff_max: Duration::from_millis(2), ..Config::default() };
    options
}

pub(super) fn sync(f: &mut Fixture) -> Result<SyncReport, Error> {
    f.remote.sync(&mut options())
}

/// The remote's rows are the database's, but for what is set aside.
pub(super) fn assert_converged(f: &Fixture, server: &Server, context: &str) {
    let database = server.database();
    for (number, sql) in [(0, "SELECT * FROM doc"), (1, "SELECT * FROM tag")] {
        let mut theirs: Vec<String> = database.table(number).into_iter().map(show).collect();
        let mut ours = f.rows(sql);
        ours.retain(|row| !row.contains("|bad|"));
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs, "{context}");
    }
    drop(database);
    f.check();
}

fn show(row: &Row) -> String {
    let cell = |value: &Value| match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    };
    row.iter().map(cell).collect::<Vec<_>>().join("|")
}

/// What each sweep goes through: rows on both sides, a conflict, a refusal, a deletion, and more rows than fit into memory frames.
fn prepare(f: &mut Fixture, server: &Server) {
    for id in 0..3 {
        server.database().set(0, &row(&id.to_string()), Some(row(&format!("{id},t,b"))));
    }
    sync(f).expect("the first sync");
    f.sql(
        "INSERT INTO doc VALUES (10, 'mine', 'b'), (11, 'bad', 'b'); UPDATE doc SET title = 'mine' WHERE id = 1;
           DELETE FROM doc WHERE id = 2; INSERT INTO tag VALUES ('x', 10)",
    );
    let mut database = server.database();
    database.set(0, &row("1"), Some(row("1,theirs,b")));
    database.set(0, &row("20"), Some(row("20,new,b")));
    database.set(1, &[Value::text("y")], Some(vec![Value::text("y"), Value::Int(20)]));
}

fn check_end(f: &Fixture, server: &Server, context: &str) {
    assert_converged(f, server, context);
    assert_eq!(f.rows("SELECT * FROM doc WHERE id IN (1, 11)"), ["1|theirs|b", "11|bad|b"], "{context}");
    assert_eq!(f.set_aside(), ["doc {\"id\":11} check in place"], "{context}");
    let conflicts = f.remote.conflicts(10).expect("a list");
    assert_eq!(
        (conflicts.len(), conflicts[0].ours.as_deref()),
        (1, Some(r#"{"id":1,"title":"mine","body":"b"}"#)),
        "{context}"
    );
    let inserted = server.database().inserted.len();
    assert_eq!(inserted, 2, "each insert is applied once: {context}");
    assert_eq!(f.pending().len(), 1, "what is set aside is all that is left: {context}");
}

#[test]
fn a_sync_both_ways() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    let mut phases = Vec::new();
    let mut progress = |progress: crate::Progress| phases.push(progress.phase);
    let mut options = options();
    options.progress = Some(&mut progress);
    let report = f.remote.sync(&mut options).expect("the sync");
    check_end(&f, &server, "one sync");
    assert_eq!((report.changes_up, report.conflicts, report.refused, report.requests), (5, 1, 1, 1));
    assert!(report.rows_down >= 3 && report.bytes_up > 0 && report.bytes_down > 0, "{report:?}");
    phases.dedup();
    assert_eq!(phases, [Phase::Cut, Phase::Send, Phase::Receive, Phase::Apply]);
    let again = sync(&mut f).expect("another");
    assert_eq!((again.changes_up, again.rows_down + again.deletions_down), (0, 0), "nothing is sent twice");
}

#[test]
fn stopped_at_each_step_it_goes_on() {
    for steps in 0.. {
        let (mut f, server) = pair();
        prepare(&mut f, &server);
        crash::after(Some(steps));
        let crashed = sync(&mut f);
        crash::after(None);
        let context = format!("crash after {steps} steps: {crashed:?}");
        f.reopen();
        f.check();
        if crashed.is_ok() {
            check_end(&f, &server, &context);
            assert!(steps > 6, "there are at least three transactions: {steps}");
            return;
        }
        assert!(matches!(crashed, Err(Error::Crash(_))), "{context}");
        f.sql("UPDATE doc SET body = 'later' WHERE id = 10");
        sync(&mut f).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(server.database().row(0, &row("10")).map(show).as_deref(), Some("10|mine|later"), "{context}");
        check_end(&f, &server, &context);
    }
}

#[test]
fn an_answer_cut_anywhere_is_asked_for_again() {
    for bytes in (0..700).step_by(13) {
        let (mut f, server) = pair();
        prepare(&mut f, &server);
        server.database().faults = vec![Fault::CutAnswer(bytes), Fault::BeforeUpload];
        let report = sync(&mut f).unwrap_or_else(|error| panic!("cut at {bytes}: {error}"));
        check_end(&f, &server, &format!("cut at {bytes}"));
        assert!(report.failures >= 1, "{report:?}");
    }
}

/// More rows than stay in memory.
fn fill(server: &Server, count: i64) {
    for id in 0..count {
        // Text that does not compress.
        let mut random = super::history::Random(id as u64);
        let text: String = (0..4000).map(|_| char::from(b'!' + random.below(90) as u8)).collect();
        server.database().set(0, &[Value::Int(id)], Some(vec![Value::Int(id), Value::text(text), Value::Null]));
    }
}

/// Whatever the server says of the size is only told, and harms nothing.
#[test]
fn a_size_that_can_not_be_is_only_told() {
    for announced in [(u64::MAX, u64::MAX), (1, 1), (0, u64::MAX / 2), (u64::MAX, 1), (u64::MAX, 0), (0, 0)] {
        let (mut f, server) = pair();
        fill(&server, 400);
        server.database().announced = announced;
        let mut told = Vec::new();
        let mut large = |large: &LargeDownload| told.push(*large);
        let mut progress =
            |progress: Progress| assert!(progress.total.is_none_or(|total| progress.done <= total), "{progress:?}");
        let mut options = options();
        options.large = Some(&mut large);
        options.progress = Some(&mut progress);
        let report = f.remote.sync(&mut options).expect("the sync");
        assert_converged(&f, &server, &format!("{announced:?}"));
        assert_eq!((report.rows_down, report.large.as_ref()), (400, told.last()), "{announced:?}");
        assert!(!told[0].is_more && told.len() == 1, "it is told once: {told:?}");
        let (rows, bytes) = announced;
        let large = told[0];
        assert_eq!(large.rows, Some(rows).filter(|rows| *rows > 0), "{large:?}");
        assert!(large.bytes >= bytes.max(1 << 20) && large.disk_bytes > large.bytes.min(u64::MAX - 1), "{large:?}");
        assert!(large.fits() == (bytes < u64::MAX / 2), "{large:?}");
    }
}

/// The server estimates by some rows. Where much more comes, that is told before the disk is full.
#[test]
fn a_size_that_was_told_too_small_is_told_again() {
    let (mut f, server) = pair();
    fill(&server, 1600);
    server.database().announced = (1600, 1);
    let mut told = Vec::new();
    let mut large = |large: &LargeDownload| told.push(*large);
    let mut options = options();
    options.large = Some(&mut large);
    let report = f.remote.sync(&mut options).expect("the sync");
    assert_eq!(report.large.as_ref(), told.last());
    assert!(told.len() > 1 && !told[0].is_more && told[1..].iter().all(|large| large.is_more), "{told:?}");
    assert!(told.windows(2).all(|pair| pair[1].bytes / 3 > pair[0].bytes / 2), "each much more than before: {told:?}");
}

/// DOWNLOAD does not count chunks: what is told at first has those that are known by then.
#[test]
fn chunks_are_told_with_the_rest() {
    const CHUNK_BYTES: u32 = 30_000_000;
    let (mut f, server) = pair();
    fill(&server, 400);
    (server.database().announced, server.database().chunk_bytes) = ((400, 1_500_000), Some(CHUNK_BYTES));
    let mut told = Vec::new();
    let mut large = |large: &LargeDownload| told.push(*large);
    let mut options = options();
    options.large = Some(&mut large);
    f.remote.sync(&mut options).expect("the sync, without the chunk that nobody has");
    assert_converged(&f, &server, "without the chunk");
    assert_eq!(told.len(), 1, "it is told once: {told:?}");
    assert_eq!(told[0].bytes, 1_500_000 + u64::from(CHUNK_BYTES));
    assert!(told[0].disk_bytes > u64::from(CHUNK_BYTES), "{told:?}");
}

/// Enough rows that the download is staged in the file.
#[test]
fn a_large_download_is_staged_in_the_file_and_survives_a_crash() {
    for steps in [Some(1), Some(4), Some(5), Some(6), Some(8), None] {
        let (mut f, server) = pair();
        fill(&server, 400);
        crash::after(steps);
        let crashed = sync(&mut f);
        crash::after(None);
        f.reopen();
        let staged = f.rows("SELECT count(*) FROM hw_staged")[0].clone();
        if crashed.is_err() {
            sync(&mut f).expect("the next sync");
        }
        assert_converged(&f, &server, &format!("{steps:?}: {staged} frames were staged"));
        assert_eq!(f.rows("SELECT count(*) FROM hw_staged"), ["0"]);
    }
}

/// A disk that is full is told as that, changes nothing, and the sync after it does all.
#[test]
fn a_full_disk_changes_nothing() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    let before = (f.rows("SELECT * FROM doc"), f.pending());
    for id in 100..300 {
        let text = format!("{id}").repeat(1000);
        server.database().set(0, &[Value::Int(id)], Some(vec![Value::Int(id), Value::text(text), Value::Null]));
    }
    // SQLite says that a file is full in the same words, whether it is the disk or this.
    let pages: u32 = f.rows("PRAGMA page_count")[0].parse().expect("a number");
    let limit = |f: &Fixture, pages: u32| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        f.remote.database.connection.query_row(&sql, [], |_| Ok(())).expect("a pragma");
    };
    limit(&f, pages + 20);
    let error = sync(&mut f).expect_err("full");
    assert_eq!((error.code(), error.is_retryable()), ("disk_full", false), "{error}");
    assert_eq!(f.rows("SELECT * FROM doc"), before.0, "after its upload, before its download");
    limit(&f, pages + 10_000);
    sync(&mut f).expect("room again");
    assert_converged(&f, &server, "after a full disk");
    assert_ne!(f.pending(), before.1);
}

#[test]
fn statuses_and_errors_that_may_pass_are_tried_again() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    let overloaded = Fault::Error(ErrorCode::Overloaded);
    server.database().faults =
        vec![Fault::Status(503), Fault::Status(502), overloaded, Fault::Error(ErrorCode::RemoteBusy)];
    let report = sync(&mut f).expect("the sync");
    assert_eq!((report.failures, report.requests), (4, 5));
    check_end(&f, &server, "after refusals");

    server.database().faults = vec![Fault::Error(ErrorCode::Forbidden)];
    let error = sync(&mut f).expect_err("forbidden");
    assert_eq!((error.code(), error.is_retryable()), ("forbidden", false));
    server.database().faults = vec![Fault::BeforeUpload; 8];
    let error = sync(&mut f).expect_err("no connection");
    assert_eq!((error.code(), error.is_retryable()), ("network", true));
    assert_eq!(f.rows("SELECT count(*) FROM hw_applying"), ["0"]);
}

#[test]
fn a_login_page_is_told_from_a_server_and_changes_nothing() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    server.database().faults = vec![Fault::Status(200)];
    let error = sync(&mut f).expect_err("a page");
    let said = error.to_string();
    assert_eq!((error.code(), error.is_retryable()), ("http", false));
    assert!(said.contains("/v1/sync answered with HTTP status 200: that is no Headwater server"), "{said}");
    assert!(said.contains("type text/html, expected application/vnd.headwater.sync"), "{said}");
    sync(&mut f).expect("the server again");
    check_end(&f, &server, "after the page");
}

#[test]
fn a_token_that_is_no_longer_good_is_renewed_once() {
    let (mut f, server) = pair();
    sync(&mut f).expect("the first sync");
    server.database().token = "another".to_owned();
    sync(&mut f).expect("with a new token");
    let mut with_token = SyncOptions::new(Credentials::Token("forged".to_owned()));
    let error = f.remote.sync(&mut with_token).expect_err("a forged token");
    assert_eq!(error.code(), "unauthenticated");
    let mut wrong = SyncOptions::new(Credentials::Password { user: "ann".to_owned(), password: "guess".to_owned() });
    f.reopen();
    assert_eq!(f.remote.sync(&mut wrong).expect_err("a wrong password").code(), "unauthenticated");
    sync(&mut f).expect("the right one, and the token is kept");
    f.remote.set_server(&server.url, "bo").expect("another user");
    assert_eq!(f.remote.sync(&mut wrong).expect_err("ann's token is not shown for bo").code(), "unauthenticated");
}

#[test]
fn a_second_sync_of_the_same_file_does_not_mix_with_the_first() {
    let (mut f, _server) = pair();
    let mut beside = f.remote.path().as_os_str().to_owned();
    beside.push("-sync");
    let first = std::fs::File::options().create(true).append(true).open(beside).expect("the lock's file");
    first.lock().expect("the lock");
    f.sql("INSERT INTO doc VALUES (70, 'pending', '')");
    let error = sync(&mut f).expect_err("another sync holds the file");
    assert_eq!((error.code(), error.is_retryable()), ("running", true));
    drop(first);
    sync(&mut f).expect("the other has ended");
}

#[test]
fn a_copied_file_goes_on_under_a_new_remote_id() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    f.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    let copy = f.folder.path().join("copy.db");
    std::fs::copy(f.remote.path(), &copy).expect("a copy");
    sync(&mut f).expect("the original syncs");
    let id = f.remote.status().expect("a status").remote_id;

    let path = f.remote.path().to_owned();
    let mut second = crate::Remote::open(&copy).expect("the copy opens");
    let application = rusqlite::Connection::open(&copy).expect("a connection");
    application.execute_batch("INSERT INTO doc VALUES (77, 'from the copy', '')").expect("an insert");
    let report = second.sync(&mut options()).expect("the copy syncs");
    assert!(report.new_remote_id);
    assert_ne!(second.status().expect("a status").remote_id, id);
    assert!(server.database().row(0, &row("77")).is_some());
    assert_eq!(server.database().inserted.len(), 3, "what both had was applied once: the other is there already");
    sync(&mut f).expect("the original again");
    assert_eq!(
        (f.remote.path(), f.rows("SELECT title FROM doc WHERE id = 77")),
        (path.as_path(), vec!["from the copy".to_owned()])
    );
}

#[test]
fn a_new_incarnation_sends_everything_again_and_keeps_what_is_pending() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    sync(&mut f).expect("the first sync");
    f.sql("UPDATE doc SET body = 'pending' WHERE id = 20");
    server.database().incarnation = [2; 16];
    let report = sync(&mut f).expect("a sync with another incarnation");
    assert!(report.restarted && report.rows_down >= 4, "{report:?}");
    assert_eq!(server.database().row(0, &row("20")).map(show).as_deref(), Some("20|new|pending"));
    check_end(&f, &server, "after a restart");
}

#[test]
fn the_application_writes_all_the_while() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    let path = f.remote.path().to_owned();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let application = rusqlite::Connection::open(&path).expect("a connection");
            application.busy_timeout(Duration::from_secs(20)).expect("a time-out");
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && count < 2000 {
                let sql = format!("INSERT INTO doc VALUES ({}, 'w', 'b')", 1000 + count);
                application.execute_batch(&sql).expect("an insert");
                count += 1;
            }
            count
        });
        for _ in 0..20 {
            sync(&mut f).expect("a sync beside a writer");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = writer.join().expect("the writer");
        sync(&mut f).expect("the last sync");
        assert_eq!(f.rows("SELECT count(*) FROM doc WHERE id >= 1000"), [count.to_string()]);
        assert_eq!(server.database().inserted.len(), 2 + count as usize);
    });
    check_end_of_writers(&f, &server);
}

fn check_end_of_writers(f: &Fixture, server: &Server) {
    assert_converged(f, server, "beside a writer");
    assert_eq!(f.set_aside().len(), 1);
}

#[test]
fn a_file_that_stays_locked_is_reported_and_a_cancelled_sync_ends() {
    let (mut f, server) = pair();
    prepare(&mut f, &server);
    f.remote.database = crate::database::Database::open(f.remote.path(), Duration::from_millis(30)).expect("open");
    f.sql("BEGIN IMMEDIATE");
    let error = sync(&mut f).expect_err("locked");
    assert_eq!((error.code(), error.is_retryable()), ("busy", true));
    f.sql("ROLLBACK");
    // One that keeps the file to itself, between its transactions too.
    let path = f.remote.path().to_owned();
    drop(std::mem::replace(
        &mut f.remote.database,
        crate::database::Database::create_scratch(&path.with_extension("other")).expect("a file"),
    ));
    f.sql("PRAGMA journal_mode = DELETE; PRAGMA locking_mode = EXCLUSIVE; DELETE FROM doc WHERE id = -1");
    let error = crate::Remote::open_with(&path, Duration::from_millis(30)).expect_err("locked");
    assert_eq!((error.code(), error.is_retryable()), ("busy", true), "{error}");
    f.sql("PRAGMA locking_mode = NORMAL; SELECT count(*) FROM doc");
    f.remote.database = crate::database::Database::open(&path, Duration::from_secs(10)).expect("open");
    let cancel = std::sync::atomic::AtomicBool::new(true);
    let mut cancelled = options();
    cancelled.cancel = Some(&cancel);
    assert_eq!(f.remote.sync(&mut cancelled).expect_err("cancelled").code(), "cancelled");
    sync(&mut f).expect("the sync");
    check_end(&f, &server, "after a lock");
}
