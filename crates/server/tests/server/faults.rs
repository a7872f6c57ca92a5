//! A database that fails, a worker that panics, a disk that is full: one sync ends, with its code, and everything goes on.

use std::sync::Arc;

use headwater_protocol::Kind;
use headwater_protocol::message::ErrorCode;
use headwater_server::Config;

use crate::faulty::{Fault, Faults, Faulty};
use crate::support::{Stand, config};

fn faulty(config: Config) -> (Stand, Faults) {
    let faults = Faults::default();
    let shared = faults.clone();
    let stand = Stand::start_with(config, |inner| Arc::new(Faulty { inner, faults: shared }));
    (stand, faults)
}

#[test]
fn what_the_database_could_not_do_is_tried_again_whichever_part_it_was() {
    let (stand, faults) = faulty(Config { retries: 2, retry_ms: 1, ..config() });
    stand.fill(10);
    // A connection may be lost as long as nothing was said to the remote: the first two steps are the greeting's.
    let plans: [&[(&str, Fault)]; 6] = [
        &[("begin upload", Fault::Busy)],
        &[("begin upload", Fault::Lost), ("begin upload", Fault::Lost)],
        &[("commit", Fault::Lost)],
        &[("insert", Fault::Busy), ("insert", Fault::Busy)],
        &[("read", Fault::Busy), ("read", Fault::Busy)],
        &[("begin upload", Fault::Lost), ("insert", Fault::Busy), ("read", Fault::Busy)],
    ];
    for (number, plan) in (1..).zip(plans) {
        faults.plant(plan.iter().copied());
        let answer = stand.sync(&stand.upload(number, &[(i64::from(number) * 100, "new")]));
        assert!(answer.is_complete(), "{plan:?}: {:?}", answer.kinds());
        assert_eq!(answer.kinds()[..2], [Kind::Welcome, Kind::Receipt], "each is there once");
        assert_eq!(answer.rows(), 10 + u64::from(number), "{plan:?}: a table that comes whole has every row, once");
        assert_eq!((faults.left(), stand.items()), (0, 10 + i64::from(number)), "{plan:?}");
    }
    assert!(stand.ready()["database_reconnections"].as_u64() >= Some(3), "{}", stand.ready());
    stand.wait_until_idle();
}

/// Another writer may hold what it waits for for long: the worker is for others then.
#[test]
fn a_part_that_has_taken_its_time_is_not_tried_again() {
    let (stand, faults) = faulty(Config { retries: 4, retry_ms: 150, commit_wait_ms: 100, ..config() });
    let upload = stand.upload(1, &[(1, "new")]);
    faults.plant([("insert", Fault::Busy); 3]);
    assert_eq!(stand.sync(&upload).error().code, ErrorCode::DatabaseUnavailable);
    assert_eq!((faults.left(), stand.items()), (1, 0), "the second came too late for a third");
    assert!(stand.sync(&upload).is_complete());
    assert_eq!((faults.left(), stand.items()), (0, 1));
}

/// At the other end of the next connection need not be the database that greeted the remote.
#[test]
fn a_connection_lost_after_the_greeting_ends_the_attempt() {
    let (stand, faults) = faulty(Config { retries: 2, retry_ms: 1, ..config() });
    stand.fill(10);
    let plans: [&[(&str, Fault)]; 5] = [
        &[("begin upload", Fault::Lost)],
        &[("insert", Fault::Lost)],
        &[("commit", Fault::Lost)],
        &[("commit", Fault::AnswerLost)],
        &[("read", Fault::Lost)],
    ];
    for (number, plan) in (1..).zip(plans) {
        // Of a remote that is known the greeting writes nothing: what comes first is the upload's.
        assert!(stand.sync(&stand.download(number)).is_complete());
        faults.plant(plan.iter().copied());
        let request = stand.upload(number, &[(i64::from(number) * 100, "new")]);
        let lost = stand.sync(&request);
        assert_eq!(lost.error().code, ErrorCode::DatabaseUnavailable, "{plan:?}: {:?}", lost.kinds());
        assert_eq!(lost.kinds()[0], Kind::Welcome, "{plan:?}");
        let answer = stand.sync(&request);
        assert!(answer.is_complete(), "{plan:?}: {:?}", answer.kinds());
        assert_eq!((faults.left(), stand.items()), (0, 10 + i64::from(number)), "{plan:?}");
    }
    stand.wait_until_idle();
}

/// An upload that waits for its turn is not applied to the file that was moved away, nor to the one that took its place.
#[test]
fn a_file_moved_into_place_in_the_midst_of_a_sync_ends_it() {
    let stand = Stand::start(Config { heartbeat_ms: 20, ..config() });
    stand.fill(10);
    assert!(stand.sync(&stand.download(1)).is_complete());
    let [backup, moved] = ["backup.db", "moved.db"].map(|name| stand.folder.path().join(name));
    let copy = format!("VACUUM INTO '{}'", backup.display());
    stand.database().execute_batch(&copy).expect("a copy");
    let held = stand.hold();
    let mut client = stand.post(&stand.upload(1, &[(100, "new")]));
    assert_eq!(client.head().0, 200);
    let mut body = Vec::new();
    while !crate::support::frames(&body).iter().any(|frame| frame.kind == Kind::Welcome) {
        body.extend(client.chunk().expect("it is greeted"));
    }
    let file = stand.file();
    std::fs::rename(&file, &moved).expect("moved away");
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::rename(format!("{}{suffix}", file.display()), format!("{}{suffix}", moved.display()));
    }
    std::fs::rename(&backup, &file).expect("moved into place");
    drop(held);
    while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
        body.extend(chunk);
    }
    let last = crate::support::frames(&body).pop().expect("an error");
    let error = headwater_protocol::message::ServerError::from_payload(&last.payload(1 << 20).expect("a payload"));
    assert_eq!(error.expect("an error").code, ErrorCode::DatabaseUnavailable);
    let in_moved: i64 = rusqlite::Connection::open(&moved)
        .and_then(|moved| moved.query_row("SELECT count(*) FROM item", [], |row| row.get(0)))
        .expect("a count");
    assert_eq!((in_moved, stand.items()), (10, 10), "neither has it");
    assert!(stand.sync(&stand.upload(1, &[(100, "new")])).is_complete());
    assert_eq!(stand.items(), 11);
}

#[test]
fn a_commit_whose_answer_is_lost_is_applied_once() {
    let (stand, faults) = faulty(Config { retry_ms: 1, ..config() });
    // Of a remote that is known the greeting writes nothing: the first commit is the upload's.
    assert!(stand.sync(&stand.download(1)).is_complete());
    faults.plant([("commit", Fault::AnswerLost)]);
    let request = stand.upload(1, &[(1, "one")]);
    stand
        .database()
        .execute_batch(
            "CREATE TABLE seen (id); CREATE TRIGGER t AFTER INSERT ON item BEGIN INSERT INTO seen VALUES (new.id); END",
        )
        .expect("a trigger");
    assert_eq!(stand.sync(&request).error().code, ErrorCode::DatabaseUnavailable);
    assert!(stand.sync(&request).is_complete());
    let seen: i64 = stand.database().query_row("SELECT count(*) FROM seen", [], |row| row.get(0)).expect("a count");
    assert_eq!((faults.left(), seen), (0, 1));
}

#[test]
fn a_database_that_stays_away_is_told_and_all_is_freed() {
    let (stand, faults) = faulty(Config { retries: 2, retry_ms: 1, ..config() });
    for (call, applied) in [("begin upload", false), ("insert", false), ("read", true)] {
        let first = if call == "begin upload" { Fault::Lost } else { Fault::Busy };
        faults.plant([(call, first), (call, first), (call, Fault::Busy)]);
        let answer = stand.sync(&stand.upload(1, &[(1, "one")]));
        let error = answer.error();
        assert_eq!((answer.status, error.code), (200, ErrorCode::DatabaseUnavailable));
        assert!(!error.message.contains("planted"), "the database's own words stay in the log: {}", error.message);
        assert_eq!((stand.items() == 1, answer.kinds().contains(&Kind::Receipt)), (applied, applied));
        stand.wait_until_idle();
    }
    assert!(stand.sync(&stand.upload(1, &[(1, "one")])).is_complete());
}

#[test]
fn a_panic_ends_one_sync_and_frees_everything() {
    let (stand, faults) = faulty(Config { workers: 1, uploaders: 1, ..config() });
    for call in ["begin upload", "insert", "begin download", "read"] {
        faults.plant([(call, Fault::Panic)]);
        let answer = stand.sync(&stand.upload(1, &[(1, "one")]));
        assert_eq!((answer.status, answer.error().code), (200, ErrorCode::Internal), "{call}");
        stand.wait_until_idle();
    }
    assert!(stand.sync(&stand.upload(1, &[(1, "one")])).is_complete(), "the only worker is free");
}

#[test]
fn readiness_tells_that_the_database_is_away() {
    let (stand, faults) = faulty(config());
    faults.plant([("probe", Fault::Lost)]);
    let answer = stand.get("/ready", None);
    assert_eq!((answer.status, &answer.json()["database"]), (503, &false.into()));
    assert_eq!(stand.get("/ready", None).status, 200);
}

#[test]
fn a_full_disk_ends_the_upload_that_needs_it_alone() {
    let stand = Stand::start_small(config(), 40_000, 8_192);
    let rows: Vec<(i64, String)> =
        (0..9_000_i64).map(|id| (id, format!("{:x}", id.wrapping_mul(0x9E37_79B9_7F4A)))).collect();
    let rows: Vec<(i64, &str)> = rows.iter().map(|(id, name)| (*id, name.as_str())).collect();
    let answer = stand.sync(&stand.upload(1, &rows));
    let error = answer.expect_error(503, ErrorCode::Overloaded);
    assert!(error.message.contains("no room left to spool"), "{}", error.message);
    stand.wait_until_idle();
    assert_eq!(stand.items(), 0);
    assert!(stand.sync(&stand.upload(1, &[(1, "one")])).is_complete());
}

#[test]
fn a_full_disk_ends_the_download_that_needs_it_with_an_error() {
    let stand = Stand::start_small(config(), 50_000, 10_000_000);
    // More than the system's own buffers take; in few rows, so that a busy machine has read them soon.
    stand.fill_with(20_000, 1_000);
    // It doesn't read before the spool is full.
    let mut client = stand.post(&stand.download(1));
    stand.wait_until("the worker given back", |ready| ready["load"]["sending"] == 1);
    let answer = client.answer();
    assert_eq!((answer.status, answer.whole, answer.error().code), (200, true, ErrorCode::Overloaded));
    stand.wait_until_idle();
}
