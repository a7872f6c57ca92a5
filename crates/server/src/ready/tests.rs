//! The book of files: who asked, what is made, what is promised, and for how long.

use super::*;

const AGE: Duration = Duration::from_secs(100);
const KEPT: Duration = Duration::from_secs(10);

fn files(bytes_max: u64) -> ReadyFiles {
    let config = Config {
        ready_bytes_max: bytes_max,
        ready_ms_max: AGE.as_millis() as u64,
        kept_ms: KEPT.as_millis() as u64,
        ..Config::default()
    };
    ReadyFiles::new(config.into(), None)
}

fn ready(key: u8, bytes: u64) -> Ready {
    let seen = Watermarks::default();
    let file = Packed::that_keeps(bytes);
    Ready { key: [key; 32], fingerprint: 1, file, digest: [key; 32], rows: 1, seen, note: [0; 16] }
}

/// Has a file made for two remotes that ask.
fn make(files: &ReadyFiles, key: u8, bytes: u64) {
    assert!(matches!(files.next([key; 32], [1; 16], true), Next::Nothing), "the first that asks");
    let Next::Make(_tell, _told) = files.next([key; 32], [2; 16], true) else { panic!("the second that asks") };
    files.made([key; 32], Ok(Some(ready(key, bytes))));
}

#[tokio::test(start_paused = true)]
async fn a_second_remote_has_a_file_made_and_the_others_wait_for_it() {
    let files = files(1000);
    let key = [7; 32];
    assert!(matches!(files.next(key, [1; 16], true), Next::Nothing));
    assert!(matches!(files.next(key, [1; 16], true), Next::Nothing), "the same remote again is no second one");
    assert!(matches!(files.next(key, [2; 16], false), Next::Nothing), "it has waited already");
    let Next::Make(tell, mut told) = files.next(key, [2; 16], true) else { panic!("it is made") };
    assert!(matches!(files.next(key, [3; 16], true), Next::Wait(_)), "others of the same wait");
    assert!(matches!(files.next([8; 32], [3; 16], true), Next::Nothing));
    assert!(matches!(files.next([8; 32], [4; 16], true), Next::Nothing), "one at a time is made");
    files.made(key, Ok(Some(ready(7, 100))));
    drop(tell);
    told.changed().await.expect_err("it has ended");
    assert!(matches!(files.next(key, [3; 16], false), Next::Take(_)));
    assert!(matches!(files.next([8; 32], [5; 16], true), Next::Make(..)), "now the other");
    files.made([8; 32], Ok(None));
    assert!(matches!(files.next([8; 32], [6; 16], true), Next::Nothing), "what is not worth it is not tried again");
    assert!(matches!(files.next([9; 32], [6; 16], true), Next::Nothing));
    assert!(matches!(files.next([9; 32], [7; 16], true), Next::Make(..)));
    files.made([9; 32], Err(BadLuck));
    assert!(matches!(files.next([9; 32], [6; 16], true), Next::Nothing), "it asks as the first");
    assert!(matches!(files.next([9; 32], [7; 16], true), Next::Make(..)), "and the next has it tried again");
}

#[tokio::test(start_paused = true)]
async fn files_go_when_they_are_old_and_who_asked_is_forgotten() {
    let files = files(1000);
    make(&files, 7, 100);
    assert!(matches!(files.next([8; 32], [1; 16], true), Next::Nothing));
    tokio::time::advance(AGE.mul_f64(0.99)).await;
    assert!(matches!(files.next([7; 32], [3; 16], true), Next::Take(_)));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(matches!(files.next([7; 32], [4; 16], true), Next::Nothing), "given lately, and old all the same");
    assert!(matches!(files.next([8; 32], [5; 16], true), Next::Nothing), "it asks as the first");
    assert_eq!(files.held(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_given_longest_ago_makes_room() {
    let files = files(250);
    for key in 1..=2 {
        make(&files, key, 100);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(matches!(files.next([1; 32], [3; 16], true), Next::Take(_)));
    tokio::time::advance(Duration::from_secs(1)).await;
    make(&files, 3, 100);
    assert_eq!(files.held(), (2, 200));
    assert!(files.find(&[2; 32]).is_none(), "the one that was given longest ago");
    assert!(files.find(&[1; 32]).is_some() && files.find(&[3; 32]).is_some());
    make(&files, 4, 251);
    assert!(files.find(&[4; 32]).is_none(), "larger than all room");
    assert_eq!(files.held(), (2, 200), "and nothing goes for it");
}

#[tokio::test(start_paused = true)]
async fn promises_are_for_one_and_end() {
    let files = files(1000);
    make(&files, 7, 100);
    let ready = files.find(&[7; 32]).expect("made");
    let id = files.promise("ann", [9; 16], &ready);
    assert!(files.promised(&id, "bob", &[9; 16]).is_none() && files.promised(&id, "ann", &[8; 16]).is_none());
    assert!(files.promised(&[0; 16], "ann", &[9; 16]).is_none());
    for _ in 0..3 {
        tokio::time::advance(KEPT.mul_f64(0.9)).await;
        files.expire();
        assert!(files.promised(&id, "ann", &[9; 16]).is_some(), "each request renews it");
    }
    tokio::time::advance(KEPT).await;
    files.expire();
    assert!(files.promised(&id, "ann", &[9; 16]).is_none());
    let id = files.promise("ann", [9; 16], &ready);
    files.forget(&[7; 32]);
    assert!(files.promised(&id, "ann", &[9; 16]).is_none(), "what is of no use is promised to nobody");
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_bounded() {
    let files = files(1000);
    let key = |number: usize| -> Key { std::array::from_fn(|place| (number >> (8 * (place % 4))) as u8) };
    for number in 0..ASKED_MAX + 10 {
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(matches!(files.next(key(number), [1; 16], true), Next::Nothing));
    }
    assert_eq!(files.lock().entries.len(), ASKED_MAX);
    assert!(matches!(files.next(key(ASKED_MAX), [2; 16], true), Next::Make(..)), "the last ones are remembered");
    let made = Arc::new(ready(1, 1));
    for _ in 0..OFFERS_MAX + 10 {
        files.promise("ann", [1; 16], &made);
    }
    assert_eq!(files.lock().offers.len(), OFFERS_MAX);
}
