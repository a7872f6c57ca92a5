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
    let plans: [&[(&str, Fault)]; 8] = [
        &[("begin upload", Fault::Busy)],
        &[("begin upload", Fault::Lost), ("begin upload", Fault::Lost)],
        &[("commit", Fault::Lost)],
        &[("commit", Fault::AnswerLost)],
        &[("insert", Fault::Busy), ("insert", Fault::Lost)],
        &[("begin download", Fault::Lost)],
        &[("read", Fault::Busy), ("read", Fault::Lost)],
        &[("begin upload", Fault::Lost), ("insert", Fault::Lost), ("begin download", Fault::Lost)],
    ];
    for (number, plan) in (1..).zip(plans) {
        faults.plant(plan.iter().copied());
        let answer = stand.sync(&stand.upload(number, &[(i64::from(number) * 100, "new")]));
        assert!(answer.is_complete(), "{plan:?}: {:?}", answer.kinds());
        assert_eq!(answer.kinds()[..2], [Kind::Welcome, Kind::Receipt], "each is there once");
        assert_eq!(answer.rows(), 10 + u64::from(number), "{plan:?}: a table that comes whole has every row, once");
        assert_eq!((faults.left(), stand.items()), (0, 10 + i64::from(number)), "{plan:?}");
    }
    assert!(stand.ready()["database_reconnections"].as_u64() >= Some(4), "{}", stand.ready());
    stand.wait_until_idle();
}

#[test]
fn a_commit_whose_answer_is_lost_is_applied_once() {
    let (stand, faults) = faulty(Config { retry_ms: 1, ..config() });
    // The first commit is the greeting's.
    faults.plant([("commit", Fault::Busy), ("commit", Fault::AnswerLost)]);
    stand
        .database()
        .execute_batch(
            "CREATE TABLE seen (id); CREATE TRIGGER t AFTER INSERT ON item BEGIN INSERT INTO seen VALUES (new.id); END",
        )
        .expect("a trigger");
    assert!(stand.sync(&stand.upload(1, &[(1, "one")])).is_complete());
    let seen: i64 = stand.database().query_row("SELECT count(*) FROM seen", [], |row| row.get(0)).expect("a count");
    assert_eq!((faults.left(), seen), (0, 1));
}

#[test]
fn a_database_that_stays_away_is_told_and_all_is_freed() {
    let (stand, faults) = faulty(Config { retries: 2, retry_ms: 1, ..config() });
    for (call, applied) in [("begin upload", false), ("insert", false), ("read", true)] {
        faults.plant([(call, Fault::Lost), (call, Fault::Lost), (call, Fault::Busy)]);
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
