use std::sync::mpsc;

use headwater_bufferpool::{Config as PoolConfig, Floors};
use headwater_consolidated::download::{Build, Built, Found, Snapshots as _};
use headwater_protocol::chunk::{self, CHUNK_BYTES_TARGET};
use headwater_protocol::message::{ChunkRef, TableHeader};
use headwater_protocol::{Frame, Kind, Type};

use super::*;

fn chunks(config: &Config) -> Arc<Chunks> {
    chunks_in(config, 64 << 20)
}

/// With so many bytes for what is read of them.
fn chunks_in(config: &Config, budget_bytes: u64) -> Arc<Chunks> {
    let pool = PoolConfig { budget_bytes, floors: Floors::default(), ..PoolConfig::default() };
    let pools = Pools::new(&pool, None).expect("a pool");
    Chunks::new(config.clone().into(), Files::new(None, usize::MAX), Arc::new(pools))
}

fn view(chunks: &Arc<Chunks>) -> View {
    View::new(Arc::clone(chunks), 1, [2; 16])
}

fn build(view: &View) -> Box<dyn Build> {
    match view.find(0, b"p") {
        Found::Build(build) => build,
        other => panic!("{other:?}, expected a partition to build"),
    }
}

fn table() -> Frame {
    TableHeader { table: 0, name: "t".into(), columns: vec![("id".into(), Type::Int)], key: vec![0] }.to_frame()
}

/// Frames that don't pack, of so many bytes.
fn rows(count: usize) -> Vec<Frame> {
    let mut seed = 1_u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    (0..count).map(|_| Frame::packed(Kind::Rows, (0..60_000).map(|_| byte()).collect())).collect()
}

fn fill(build: &mut Box<dyn Build>, rows: &[Frame]) -> Built {
    build.push(table());
    for frame in rows {
        build.push(frame.clone());
    }
    build.finish(7)
}

#[test]
fn what_is_built_comes_out_of_its_chunks_again() {
    let chunks = chunks(&Config::default());
    let (view, rows) = (view(&chunks), rows(30));
    let mut first = build(&view);
    assert!(matches!(view.find(0, b"p"), Found::Busy), "it is being built");
    assert!(matches!(view.find(0, b"q"), Found::Build(_)), "another is not");
    let Built::Chunks(snapshot) = fill(&mut first, &rows) else { panic!("it is built") };
    assert_eq!((snapshot.table, snapshot.partition.as_slice(), snapshot.rows), (0, &b"p"[..], 7));
    assert!(snapshot.chunks.len() >= 3, "{} chunks", snapshot.chunks.len());
    let mut came = Vec::new();
    for (place, named) in snapshot.chunks.iter().enumerate() {
        let chunk = chunks.chunk(&named.id).expect("it is there before it is handed to others");
        assert!(chunk.bytes as usize <= CHUNK_BYTES_TARGET + 2 * 64 * 1024 && chunk.rest() > chunks.handed_out());
        let bytes = [chunk.read(0, 1000).expect("sound"), chunk.read(1000, u32::MAX).expect("sound")].concat();
        let opened = chunk::open_named(&snapshot.key, place as u64, named, bytes).expect("it is the one that is named");
        let frames = chunk::frames(&opened).expect("whole frames");
        assert_eq!(frames.first(), Some(&table()), "each can be read alone");
        came.extend(frames.into_iter().filter(|frame| frame.kind == Kind::Rows));
    }
    assert!(came == rows, "the frames are the same");
    first.publish(vec![1], [3; 16]);
    let Found::Kept(kept) = view.find(0, b"p") else { panic!("it is kept") };
    assert_eq!((&kept.snapshot, kept.watermark.as_slice(), kept.note), (&snapshot, &[1][..], [3; 16]));
    let elsewhere = [View::new(Arc::clone(&chunks), 2, [2; 16]), View::new(Arc::clone(&chunks), 1, [9; 16])];
    assert!(elsewhere.iter().all(|view| matches!(view.find(0, b"p"), Found::Build(_))), "another model, another life");
    view.give_up(0, b"p", &kept);
    assert!(matches!(view.find(0, b"p"), Found::Build(_)), "it was given up");
}

#[test]
fn chunks_are_the_same_from_memory_and_past_it() {
    let mut came = Vec::new();
    // None of it stays, one block does, all do.
    for budget_bytes in [0, 16 << 10, 64 << 20] {
        let chunks = chunks_in(&Config::default(), budget_bytes);
        let mut build = build(&view(&chunks));
        let Built::Chunks(snapshot) = fill(&mut build, &rows(30)) else { panic!("it is built") };
        let pool = chunks.pools.main().clone();
        for _ in 0..2 {
            let read = |named: &ChunkRef| {
                let chunk = chunks.chunk(&named.id).expect("it is there");
                let bytes: Vec<u8> =
                    (0..chunk.bytes).step_by(50_000).flat_map(|at| chunk.read(at, 50_000).expect("read")).collect();
                assert_eq!(chunk::digest(&bytes), named.digest);
                bytes.len()
            };
            came.push(snapshot.chunks.iter().map(read).sum::<usize>());
        }
        let counts = pool.counters().of(Class::Chunk);
        assert_eq!(counts.hits > counts.misses, budget_bytes > 16 << 10, "{counts:?}");
        assert!(pool.used_bytes() <= budget_bytes);
        drop(build);
        chunks.lock().chunks.clear();
        assert_eq!((pool.used_bytes(), pool.blocks()), (0, 0), "they go with the file");
    }
    assert!(came.iter().all(|bytes| *bytes == came[0]));
}

#[test]
fn a_build_that_ends_without_result_is_for_the_next() {
    let chunks = chunks(&Config::default());
    let view = view(&chunks);
    drop(build(&view));
    let mut failed = build(&view);
    assert!(matches!(fill(&mut failed, &rows(3)), Built::Chunks(_)));
    assert!(matches!(view.find(0, b"p"), Found::Busy), "not before there is a note");
    drop(failed);
    drop(build(&view));
}

#[test]
fn little_is_not_put_into_chunks() {
    let chunks = chunks(&Config::default());
    let view = view(&chunks);
    let mut small = build(&view);
    let rows = vec![Frame::new(Kind::Rows, vec![1; 1000])];
    assert!(matches!(fill(&mut small, &rows), Built::Small(frames) if frames == [table(), rows[0].clone()]));
    assert!(matches!(view.find(0, b"p"), Found::Nothing));
    assert_eq!(chunks.stats(), (0, 0, 0));
}

#[test]
fn who_waits_goes_on_when_the_build_has_ended_or_takes_too_long() {
    let chunks = chunks(&Config { shared_wait_ms_max: 600_000, ..Config::default() });
    let other = view(&chunks);
    let mut first = build(&other);
    let (begun, has_begun) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        begun.send(()).expect("somebody waits");
        other.wait(0, b"p")
    });
    has_begun.recv().expect("it begins");
    fill(&mut first, &rows(3));
    first.publish(vec![1], [3; 16]);
    assert!(waiting.join().expect("no panic"), "it was built");
    let chunks = self::chunks(&Config { shared_wait_ms_max: 1, ..Config::default() });
    let (view, other) = (view(&chunks), view(&chunks));
    let _unfinished = build(&view);
    assert!(!other.wait(0, b"p"), "it takes too long");
    assert!(view.waited().is_zero() && other.waited() >= std::time::Duration::from_millis(1), "{other:?}");
    assert!(other.wait(0, b"q"), "nobody builds that");
}

#[test]
fn what_has_no_room_is_not_kept_and_what_is_old_makes_room() {
    let chunks = chunks(&Config { shared_bytes_max: 1 << 20, ..Config::default() });
    let view = view(&chunks);
    let mut large = build(&view);
    assert!(matches!(fill(&mut large, &rows(30)), Built::Nothing), "1.8 MB have no room in one");
    assert!(matches!(view.find(0, b"p"), Found::Nothing), "for a while");
    drop(large);
    assert_eq!(chunks.stats().0, 0, "all room is given back");
    // One that is there already, and is handed out no more, gives way.
    let Found::Build(mut old) = view.find(0, b"old") else { panic!("to be built") };
    let Built::Chunks(first) = fill(&mut old, &rows(10)) else { panic!("there is room") };
    drop(old);
    let Found::Build(mut new) = view.find(0, b"new") else { panic!("to be built") };
    assert!(matches!(fill(&mut new, &rows(10)), Built::Chunks(_)));
    new.publish(vec![1], [1; 16]);
    assert!(chunks.chunk(&first.chunks[0].id).is_none(), "it made room");
    // One that is handed out does not.
    let Found::Build(mut third) = view.find(0, b"third") else { panic!("to be built") };
    assert!(matches!(fill(&mut third, &rows(10)), Built::Nothing));
}

#[test]
fn chunks_outlast_what_hands_them_out_and_then_go() {
    let chunks = chunks(&Config { shared_ms: 400, ..Config::default() });
    let view = view(&chunks);
    let mut first = build(&view);
    let Built::Chunks(snapshot) = fill(&mut first, &rows(3)) else { panic!("it is built") };
    first.publish(vec![1], [3; 16]);
    let id = snapshot.chunks[0].id;
    let told = chunks.chunk(&id).expect("it is there").rest();
    assert!(told > Duration::from_millis(400), "for longer than it is handed out: {told:?}");
    while chunks.chunk(&id).is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(view.find(0, b"p"), Found::Build(_)), "it is not handed out any more");
    chunks.expire();
    assert_eq!((chunks.stats().0, chunks.files.open(), chunks.lock().chunks.len()), (0, 0, 0));
}
