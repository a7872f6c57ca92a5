//! What cursors may take of the server: nothing of its pool, little of its memory, and a place for as long as its client makes use of it.

use std::time::{Duration, Instant};

use headwater_cursor::{Options, Value};
use headwater_protocol::cursor::Question;
use headwater_testkit::wait_until;

use super::cursors::{all, connect, count, memory_kb, sqlite};
use super::{Stage, get};

const PATIENCE: Duration = Duration::from_mins(1);

/// As little as a pool may have: 64 blocks of 1 KiB, and no overflow file to speak of.
const TINY: &str = "[pool]\nmemory_bytes = 65536\nblock_bytes = 1024\nupload_bytes_min = 0\ndownload_bytes_min = 0\n\
    answer_bytes_min = 0\nchunk_bytes_min = 0\noverflow_bytes_max = 65536\n";

/// Rows of so many bytes.
const WIDE: &str = "-- public = true\n-- bytes_max = 1000000000000\n-- [parameters]\n-- count = { type = \"int\" }\n-- bytes = { type = \"int\" }\n\
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)\n\
    SELECT i, printf('%.*c', :bytes, 'x') AS t FROM n";

fn tiny(cursor: &str, gateway: &str) -> (Stage, String) {
    let mut stage = sqlite(cursor);
    stage.query("wide.sql", WIDE);
    stage.configure(TINY);
    let text = std::fs::read_to_string(stage.path("headwater.toml")).expect("written");
    let text = text.replace("[gateway]\n", &format!("[gateway]\nheld_bytes_max = 16384\n{gateway}\n"));
    std::fs::write(stage.path("headwater.toml"), text).expect("written");
    let address = stage.serve();
    (stage, address)
}

fn wide(count: u64, bytes: u64) -> Question {
    let arguments = [("count", count), ("bytes", bytes)];
    Question::Named("wide".to_owned(), arguments.map(|(name, value)| (name.to_owned(), value.to_string())).to_vec())
}

/// What `/ready` says of the pool: bytes in memory, and those that were written to the overflow file.
fn pool(address: &str) -> (u64, u64) {
    let (_, body) = get(address, "/ready", "");
    let ready: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let main = &ready["pool"]["main"];
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("no number in {ready}"));
    (number(&main["memory_bytes"]), number(&main["overflow"]["written_bytes"]))
}

#[test]
fn rows_that_no_pool_holds_come_whole_and_leave_it_alone() {
    let (_stage, address) = tiny("", "");
    // Answers that fill the pool, beside.
    let full = get(&address, "/q/many.csv?count=200", "");
    assert!(full.0.starts_with("http/1.1 200") && full.1.lines().count() == 201, "{}", full.0);
    let before = pool(&address);
    assert!(before.0 > 0, "it is kept");
    let connection = connect(&address);
    let mut narrow = connection.query("many", &[("count", "200000")]).expect("open");
    assert_eq!(count(&mut narrow, 0).expect("rows"), 200_000, "ten megabytes");
    // A row that is larger than all of the pool with its overflow.
    for bytes in [100_000, 3_000_000] {
        let mut cursor = connection.open_cursor(wide(5, bytes), Options::default()).expect("open");
        let rows = all(&mut cursor).expect("rows");
        let lengths = rows.iter().map(|row| match &row[1] {
            Value::Text(text) => text.len() as u64,
            other => panic!("{other:?}"),
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [bytes; 5]);
    }
    assert_eq!(pool(&address), before, "they took nothing of it");
}

#[test]
fn slow_readers_of_wide_rows_hold_no_more_than_their_bound() {
    const CURSORS: u64 = 8;
    const ROW: u64 = 60_000;
    /// Messages that wait (256 KiB), the one that fills and the one that is written (64 KiB and a row each), with room for as much again.
    const EACH: u64 = 2 * ((256 << 10) + 2 * ((64 << 10) + ROW));
    /// Threads, connections to the database and their caches.
    const BESIDE: u64 = 16 << 20;
    let (stage, address) = tiny("", "");
    let process = stage.server.as_ref().expect("it runs").id();
    let connection = connect(&address);
    let mut warm = connection.open_cursor(wide(1_000, ROW), Options::default()).expect("open");
    assert_eq!(all(&mut warm).expect("rows").len(), 1_000);
    let before = memory_kb(process);
    // Sixty megabytes each, of which its client takes a row.
    let open = || connection.open_cursor(wide(1_000, ROW), Options { window_bytes: 1, kept_bytes: 0 }).expect("open");
    let mut slow: Vec<_> = (0..CURSORS).map(|_| open()).collect();
    for cursor in &mut slow {
        cursor.next_row().expect("a row").expect("one");
    }
    // It has settled once it has not grown for a while.
    let (mut last, mut since) = (0, Instant::now());
    assert!(wait_until(PATIENCE, || {
        let now = memory_kb(process);
        if now > last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    }));
    let grown = last.saturating_sub(before) * 1024;
    assert!(grown < CURSORS * EACH + BESIDE, "{grown} bytes");
    // Whoever goes on gets what comes next, and in the order.
    for cursor in &mut slow {
        for number in 2..=20 {
            assert_eq!(cursor.next_row().expect("a row").expect("one")[0], Value::Int(number));
        }
    }
}

#[test]
fn who_takes_rows_too_slowly_gives_its_place_to_who_waits() {
    let (_stage, address) = tiny("cursors_max = 1", "waiting_s_max = 20\nreader_bytes_per_s_min = 1000000000");
    let connection = connect(&address);
    let options = Options { window_bytes: 1_000, kept_bytes: 0 };
    let mut slow = connection.open_cursor(wide(1_000_000, 900), options).expect("open");
    slow.next_row().expect("a row");
    let mut next = connection.query("many", &[("count", "5")]).expect("open");
    let waits = std::thread::spawn(move || count(&mut next, 0));
    // It takes rows all the while, one now and then.
    let until = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < until, "it keeps its place");
        std::thread::sleep(Duration::from_millis(20));
        match slow.next_row() {
            Ok(row) => assert!(row.is_some(), "it ended by itself"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), "slow_reader", "{error}");
    assert!(error.to_string().contains("1000000000"), "{error}");
    assert_eq!(waits.join().expect("no panic").expect("rows"), 5);
}
