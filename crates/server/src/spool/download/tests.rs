use super::*;
use crate::Config;

const LONG: Duration = Duration::from_hours(1);

fn frame(number: u64) -> Frame {
    Frame::new(Kind::Rows, vec![number as u8; 50 + (number % 100) as usize])
}

fn end() -> Frame {
    Frame::new(Kind::End, Vec::new())
}

/// Frames as they travel, END after them.
fn stream(count: u64) -> Vec<u8> {
    (0..count).map(frame).chain([end()]).flat_map(|frame| frame.to_bytes()).collect()
}

fn small() -> Config {
    Config { spool_memory_bytes: 1_000, ..Config::default() }
}

async fn drain(reader: &mut Reader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = reader.next().await.expect("readable") {
        all.extend_from_slice(&bytes);
    }
    all
}

#[tokio::test]
async fn what_was_pushed_comes_out_in_order_through_memory_and_file() {
    for (config, in_file) in [(Config::default(), false), (small(), true)] {
        let budget = Budget::new(&config);
        let (writer, mut reader) = spool(Arc::clone(&budget), LONG);
        for number in 0..2_000 {
            writer.push(&frame(number)).expect("room");
        }
        writer.end_with(&end());
        let (memory, file) = budget.used();
        assert_eq!((memory + file, file > 0), ((stream(2_000).len() - end().wire_bytes()) as u64, in_file));
        assert!(!in_file || memory <= 1_000, "{memory}");
        assert!(drain(&mut reader).await == stream(2_000));
        assert_eq!(budget.used(), (0, 0));
        assert_eq!((writer.left(), writer.taken()), (Some(Left::Whole), stream(2_000).len() as u64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_as_fast_as_the_writer_uses_file_and_memory_by_turns() {
    for round in 0..20 {
        let budget = Budget::new(&Config { spool_memory_bytes: 50 * round, ..Config::default() });
        let (writer, mut reader) = spool(Arc::clone(&budget), LONG);
        let filling = tokio::task::spawn_blocking(move || {
            (0..2_000).for_each(|number| writer.push(&frame(number)).expect("room"));
            writer.end_with(&end());
        });
        assert!(drain(&mut reader).await == stream(2_000));
        filling.await.expect("no panic");
        assert_eq!(budget.used(), (0, 0));
    }
}

#[tokio::test]
async fn heartbeats_stand_between_frames_while_nothing_comes() {
    let (writer, mut reader) = spool(Budget::new(&small()), Duration::from_millis(1));
    let heartbeat = Frame::new(Kind::Heartbeat, Vec::new()).to_bytes();
    assert_eq!(reader.next().await.expect("readable").expect("more"), heartbeat);
    // Through the file, whose reads end in the midst of frames.
    let big = Frame::new(Kind::Rows, vec![7; 200_000]);
    writer.push(&big).expect("room");
    let mut got = Vec::new();
    while got.len() < big.wire_bytes() {
        got.extend_from_slice(&reader.next().await.expect("readable").expect("more"));
    }
    assert!(got == big.to_bytes());
    assert_eq!(reader.next().await.expect("readable").expect("more"), heartbeat);
    writer.end_with(&end());
    assert_eq!(reader.next().await.expect("readable").expect("more"), end().to_bytes());
    assert_eq!(reader.next().await.expect("readable"), None);
}

#[tokio::test]
async fn a_reader_that_goes_frees_everything_and_stops_the_writer() {
    let budget = Budget::new(&small());
    let (writer, mut reader) = spool(Arc::clone(&budget), LONG);
    (0..100).for_each(|number| writer.push(&frame(number)).expect("room"));
    reader.next().await.expect("readable");
    drop(reader);
    assert_eq!(budget.used(), (0, 0));
    assert!(matches!(writer.push(&frame(0)), Err(PushError::Left)));
    assert_eq!((writer.reader_left().await, budget.used()), (Left::Gone, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_and_one_that_waits_for_us_is_not() {
    let budget = Budget::new(&small());
    let (writer, mut reader) = spool(Arc::clone(&budget), LONG);
    let idle = Duration::from_millis(50);
    // It waits for us, far longer than the limit: heartbeats apart, nothing comes.
    {
        let waiting = reader.next();
        tokio::pin!(waiting);
        let watched = tokio::time::timeout(idle * 20, async { tokio::join!(writer.watch(idle), &mut waiting).0 }).await;
        assert!(watched.is_err(), "not cut while it waits");
    }
    (0..100).for_each(|number| writer.push(&frame(number)).expect("room"));
    reader.next().await.expect("readable").expect("more");
    tokio::time::advance(idle).await;
    assert_eq!(writer.watch(idle).await, Left::Cut);
    assert_eq!(budget.used(), (0, 0));
    assert_eq!(reader.next().await.expect_err("cut").kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_full_disk_fails_the_push_and_leaves_what_was_there() {
    let config = Config { spool_file_bytes_total: 500, ..small() };
    let budget = Budget::new(&config);
    let (writer, mut reader) = spool(Arc::clone(&budget), LONG);
    let mut pushed = 0;
    let error = loop {
        match writer.push(&frame(pushed)) {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, PushError::Io(error) if error.kind() == io::ErrorKind::StorageFull), "{error:?}");
    assert!(error.to_string().contains("spool_file_bytes_total"), "{error}");
    writer.end_with(&end());
    assert!(drain(&mut reader).await == stream(pushed));
    assert_eq!(budget.used(), (0, 0));
}
