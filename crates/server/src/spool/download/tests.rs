use std::os::unix::fs::FileExt as _;

use headwater_bufferpool::{Config, Floors, Pool};

use super::*;

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

fn spools(config: Config, memory: u64) -> Spools {
    Spools::new(
        Pool::new(&Config { block_bytes: 512, floors: Floors::default(), ..config }).expect("a pool"),
        crate::Config { spool_memory_bytes: memory, ..crate::Config::default() }.into(),
    )
}

fn large() -> Spools {
    spools(Config::default(), 1 << 20)
}

fn small() -> Spools {
    spools(Config::default(), 1_024)
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
    for (spools, in_file) in [(large(), false), (small(), true)] {
        let (writer, mut reader) = spool(&spools, LONG);
        for number in 0..2_000 {
            writer.push(&frame(number)).expect("room");
        }
        writer.end_with(&end());
        let (memory, file) = spools.used();
        assert!(memory + file >= (stream(2_000).len() - end().wire_bytes()) as u64);
        assert_eq!((file > 0, memory <= 2_048), (in_file, in_file), "{memory} {file}");
        assert!(drain(&mut reader).await == stream(2_000));
        assert_eq!(spools.used(), (0, 0));
        assert_eq!((writer.left(), writer.taken()), (Some(Left::Whole), stream(2_000).len() as u64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_as_fast_as_the_writer_uses_file_and_memory_by_turns() {
    for round in 0..20 {
        let spools = spools(Config { budget_bytes: 512 * (1 + round / 2), ..Config::default() }, 512 * (round % 4));
        let (writer, mut reader) = spool(&spools, LONG);
        let filling = tokio::task::spawn_blocking(move || {
            (0..2_000).for_each(|number| writer.push(&frame(number)).expect("room"));
            writer.end_with(&end());
        });
        assert!(drain(&mut reader).await == stream(2_000));
        filling.await.expect("no panic");
        assert_eq!(spools.used(), (0, 0));
    }
}

#[tokio::test]
async fn heartbeats_stand_between_frames_while_nothing_comes() {
    let (writer, mut reader) = spool(&small(), Duration::from_millis(1));
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
    let spools = small();
    let (writer, mut reader) = spool(&spools, LONG);
    (0..100).for_each(|number| writer.push(&frame(number)).expect("room"));
    reader.next().await.expect("readable");
    drop(reader);
    assert_eq!(spools.used(), (0, 0));
    assert!(matches!(writer.push(&frame(0)), Err(PushError::Left)));
    assert_eq!((writer.reader_left().await, spools.used()), (Left::Gone, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_and_one_that_waits_for_us_is_not() {
    let spools = small();
    let (writer, mut reader) = spool(&spools, LONG);
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
    assert_eq!(spools.used(), (0, 0));
    assert_eq!(reader.next().await.expect_err("cut").kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_full_disk_fails_the_push_and_leaves_what_was_there() {
    let spools = spools(Config { budget_bytes: 2_048, overflow_bytes_max: 1_024, ..Config::default() }, 1 << 20);
    let (writer, mut reader) = spool(&spools, LONG);
    let mut pushed = 0;
    let error = loop {
        match writer.push(&frame(pushed)) {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, PushError::Io(error) if error.kind() == io::ErrorKind::StorageFull), "{error:?}");
    assert!(error.to_string().contains("overflow_bytes_max"), "{error}");
    writer.end_with(&end());
    assert!(drain(&mut reader).await == stream(pushed));
    assert_eq!(spools.used(), (0, 0));
}

/// Everything from an offset on, as often as it is asked for; nothing is freed before it is given up.
#[tokio::test]
async fn what_is_kept_can_be_read_again_from_any_offset() {
    for spools in [large(), small()] {
        let (writer, mut reader) = spool(&spools, LONG);
        writer.push(&frame(0)).expect("room");
        writer.keep(1 << 20);
        (1..200).for_each(|number| writer.push(&frame(number)).expect("room"));
        let welcome = frame(0).wire_bytes();
        let mut got = reader.next().await.expect("readable").expect("more").to_vec();
        drop(reader);
        assert_eq!(writer.left(), Some(Left::Gone));
        writer.push(&frame(200)).expect("the writer goes on");
        writer.end_with(&end());
        let all = stream(201);
        for offset in [0, 1, 700, 5_000, all.len() - welcome - end().wire_bytes()] {
            let (watched, mut reader) = writer.resume(offset as u64).expect("kept");
            assert!(drain(&mut reader).await == all[welcome + offset..], "from {offset}");
            assert_eq!((watched.left(), watched.taken()), (Some(Left::Whole), all.len() as u64));
        }
        assert!(writer.resume(all.len() as u64).is_none(), "more than there is");
        got.truncate(welcome);
        assert!(got == all[..welcome]);
        assert_eq!(writer.held(), (all.len() - welcome - end().wire_bytes()) as u64, "WELCOME and END aside");
        writer.give_up();
        assert_eq!((spools.used(), writer.resume(0).is_none()), ((0, 0), true));
    }
}

#[tokio::test]
async fn the_last_reader_to_come_takes_the_place_of_the_one_before() {
    let (writer, mut before) = spool(&small(), Duration::from_millis(1));
    writer.keep(1 << 20);
    (0..10).for_each(|number| writer.push(&frame(number)).expect("room"));
    before.next().await.expect("readable").expect("more");
    let (_watched, mut reader) = writer.resume(0).expect("kept");
    assert_eq!(
        (writer.left(), before.next().await.expect_err("another came").kind()),
        (Some(Left::Cut), io::ErrorKind::TimedOut)
    );
    drop(before);
    let first = &reader.next().await.expect("readable").expect("more")[..frame(0).wire_bytes()];
    assert_eq!(first, frame(0).to_bytes());
    // Where it has everything so far, it is told that more is coming, as the first was.
    let pushed: usize = (0..10).map(|number| frame(number).wire_bytes()).sum();
    let (_watched, mut waiting) = writer.resume(pushed as u64).expect("kept");
    let heartbeat = Frame::new(Kind::Heartbeat, Vec::new()).to_bytes();
    assert_eq!(waiting.next().await.expect("readable").expect("more"), heartbeat);
    drop(reader);
    let (_watched, mut reader) = writer.resume(first.len() as u64).expect("kept");
    // Given up in the midst: who reads it reads on, and what he has taken is freed.
    writer.give_up();
    writer.end_with(&end());
    let rest = drain(&mut reader).await;
    assert!(rest == stream(10)[first.len()..]);
}

/// What gets larger than may be kept is sent all the same.
#[tokio::test]
async fn a_download_too_large_to_keep_can_not_be_resumed() {
    let spools = small();
    let (writer, mut reader) = spool(&spools, LONG);
    writer.keep(3_000);
    (0..100).for_each(|number| writer.push(&frame(number)).expect("room"));
    assert!(writer.resume(0).is_none());
    writer.end_with(&end());
    assert!(drain(&mut reader).await == stream(100));
    assert_eq!(spools.used(), (0, 0));
    assert!(matches!(writer.push(&frame(0)), Err(PushError::Left)));
}

#[tokio::test]
async fn what_is_kept_gives_way_where_the_disk_is_full() {
    let spools = spools(Config { budget_bytes: 2_048, overflow_bytes_max: 2_048, ..Config::default() }, 1 << 20);
    let (writer, mut reader) = spool(&spools, LONG);
    writer.keep(1 << 20);
    let mut got = Vec::new();
    for number in 0..200 {
        writer.push(&frame(number)).expect("room, whatever was kept");
        got.extend_from_slice(&reader.next().await.expect("readable").expect("more"));
    }
    assert!(writer.resume(0).is_none());
    writer.end_with(&end());
    got.extend(drain(&mut reader).await);
    assert!(got == stream(200));
    assert_eq!(spools.used(), (0, 0));
}

/// Part of what is kept can't be read any more. The rest of it would fail each time, until it was given up.
#[tokio::test]
async fn what_can_not_be_read_can_not_be_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let spools = spools(Config { overflow_folder: Some(folder.path().to_owned()), ..Config::default() }, 1_024);
    let (writer, mut reader) = spool(&spools, LONG);
    writer.keep(1 << 20);
    (0..200).for_each(|number| writer.push(&frame(number)).expect("room"));
    writer.end_with(&end());
    overflow_file(folder.path()).write_all_at(&[0xff; 4_096], 0).expect("written over");
    let failure = loop {
        match reader.next().await {
            Ok(bytes) => assert!(bytes.is_some(), "the file comes before the end"),
            Err(error) => break error,
        }
    };
    assert_eq!(failure.kind(), io::ErrorKind::InvalidData);
    drop(reader);
    assert!(writer.resume(0).is_none());
    assert_eq!(spools.used(), (0, 0), "and takes no room");
}

/// By this process's descriptor of it: it has no name.
fn overflow_file(folder: &std::path::Path) -> std::fs::File {
    let mut links = std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(Result::ok);
    let ours = links.find(|link| std::fs::read_link(link.path()).is_ok_and(|target| target.starts_with(folder)));
    std::fs::OpenOptions::new().write(true).open(ours.expect("something lies in it").path()).expect("it can be opened")
}
