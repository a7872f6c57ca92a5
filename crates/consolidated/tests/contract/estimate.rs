//! What a download comes to is told beforehand, about.

use std::time::Duration;

use headwater_consolidated::download::{DownloadRequest, DownloadSummary, Estimate, estimate, write};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::{Dialect, Error, Plan};

use super::database::Database;
use super::replica::Replica;

const LIMIT: Duration = Duration::from_mins(1);

/// Runs `work` with the request of a replica's next download.
fn with_request<T>(replica: &Replica, plan: &Plan, work: impl FnOnce(&DownloadRequest<'_>) -> T) -> T {
    work(&DownloadRequest {
        plan,
        user: &replica.user,
        remote_id: replica.id,
        watermarks: &replica.watermarks,
        restart: false,
        life: None,
        own: &[],
        echo: &Echo::default(),
        conflicted: &[],
        refresh: &[],
        extended: &[],
        packing: None,
        snapshots: None,
        keeps_marks: false,
        tells_leaving: false,
    })
}

/// What is expected of a replica's next download, and what it comes to.
fn expected(database: &Database, plan: &Plan, replica: &Replica) -> (Estimate, DownloadSummary) {
    with_request(replica, plan, |request| {
        let expected = estimate(&mut *database.connect(), request, LIMIT).expect("an estimate");
        let (summary, _) = write(&mut *database.connect(), request, &mut |_| Ok(())).expect("a download");
        (expected, summary)
    })
}

fn assert_right(database: &Database, plan: &Plan, replica: &Replica, rows: u64) {
    let (expected, came) = expected(database, plan, replica);
    assert_eq!((expected.rows, came.rows), (rows, rows), "few rows are counted exactly");
    let bytes = came.wire_bytes / 2..came.wire_bytes * 2;
    assert!(bytes.contains(&expected.bytes), "{} bytes came, {} were expected", came.wire_bytes, expected.bytes);
}

/// Numbers from 1 on, as a table `n` of column `i`.
fn numbers(count: u64) -> String {
    format!("(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n) AS n")
}

/// Never analyzed, partitioned and not, all of a partition and a small part of it.
pub(crate) fn a_download_is_as_large_as_expected(database: &Database) {
    let plan = database.standard();
    let random =
        if database.dialect() == Dialect::Sqlite { "hex(randomblob(32))" } else { "md5(i::text) || md5((-i)::text)" };
    database.application(&format!(
        "INSERT INTO customer SELECT i, 'c' || i, {random}, i FROM {};
         INSERT INTO orders SELECT i, CASE WHEN i % 10 < 6 THEN 'north' WHEN i % 10 < 9 THEN 'south' ELSE 'east' END, {random} FROM {};
         INSERT INTO line SELECT i, 1, 'south', '2.50' FROM {}",
        numbers(3_000),
        numbers(20_000),
        numbers(5_000),
    ));
    let mut anna = Replica::new("anna");
    assert_right(database, &plan, &anna, 3_000 + 18_000 + 5_000);
    let mut ben = Replica::new("ben");
    assert_right(database, &plan, &ben, 3_000 + 12_000);
    anna.sync(database, &plan);
    ben.sync(database, &plan);
    assert_eq!(expected(database, &plan, &anna).0, Estimate::default(), "nothing has changed");
    database.application(
        "UPDATE orders SET note = 'b' || note WHERE id <= 5000; DELETE FROM orders WHERE id > 19000 AND id % 10 < 6",
    );
    let (changes, came) = expected(database, &plan, &ben);
    assert_eq!((changes.rows, came.rows), (3_600, 3_600));
    // A partition that came later is whole.
    database.application("INSERT INTO member VALUES ('ben', 'east')");
    let (changes, came) = expected(database, &plan, &ben);
    assert_eq!((changes.rows, came.rows), (5_600, 5_600));
}

/// Whatever it takes too long for ends with an error, and nothing is left of it.
pub(crate) fn an_estimate_that_takes_too_long_ends(database: &Database) {
    let plan = database.standard();
    database.application(&format!("INSERT INTO customer SELECT i, 'c' || i, 'x', i FROM {}", numbers(100_000)));
    let mut connection = database.connect();
    let anna = Replica::new("anna");
    with_request(&anna, &plan, |request| {
        let late = estimate(&mut *connection, request, Duration::ZERO);
        assert!(matches!(late, Err(Error::Retry { .. })), "{late:?}");
        let (summary, _) =
            write(&mut *connection, request, &mut |_| Ok(())).expect("the limit was the estimate's alone");
        assert_eq!(summary.rows, 100_000);
    });
}

/// A lock that others wait for would keep it, and by it the download whose own lock they wait for.
pub(crate) fn an_estimate_waits_for_no_lock(database: &Database) {
    let plan = database.standard();
    let mut application = database.connect();
    application.batch("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").expect("locked");
    let kept = with_request(&Replica::new("anna"), &plan, |request| estimate(&mut *database.connect(), request, LIMIT));
    assert!(matches!(&kept, Err(Error::Retry { detail, .. }) if detail.contains("lock timeout")), "{kept:?}");
}
