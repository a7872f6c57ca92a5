//! Spools, in memory, in the file, and on a disk that is full or damaged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use headwater_bufferpool::{Class, Config, Error, Floors, Key, Policy, Pool, Spool};
use headwater_testkit::apart::is_apart;
use headwater_testkit::disk::SmallDisk;

const BLOCK: u64 = 4096;

fn pool(blocks: u64, folder: Option<&Path>) -> Pool {
    let config = Config {
        block_bytes: BLOCK as usize,
        budget_bytes: blocks * BLOCK,
        floors: Floors::default(),
        policy: Policy::Lru { skips: 0 },
        overflow_folder: folder.map(Path::to_owned),
        ..Config::default()
    };
    Pool::new(&config).expect("a pool")
}

fn bytes(seed: u8, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at % 249) as u8 ^ seed).collect()
}

fn spool(pool: &Pool, seed: u8, blocks: u64) -> Spool {
    let spool = pool.spool(&format!("spool {seed}"), Class::Upload, u64::MAX).expect("room");
    spool.append(&bytes(seed, 0..blocks * BLOCK)).expect("appended");
    spool
}

fn read(spool: &Spool, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
    let mut read = vec![0; (range.end - range.start) as usize];
    let length = spool.read(range.start, &mut read)?;
    read.truncate(length);
    Ok(read)
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// The overflow file of a pool, by this process's descriptor of it: it has no name.
fn overflow_file(folder: &Path) -> Option<fs::File> {
    let mut links = fs::read_dir("/proc/self/fd").expect("/proc").filter_map(Result::ok);
    let ours = links.find(|link| fs::read_link(link.path()).is_ok_and(|target| target.starts_with(folder)))?;
    Some(OpenOptions::new().write(true).open(ours.path()).expect("it can be opened again"))
}

#[test]
fn a_small_spool_takes_little() {
    let pool = pool(8, None);
    let spool = pool.spool("a small upload", Class::Upload, u64::MAX).expect("room");
    assert_eq!((pool.used_bytes(), spool.end()), (0, 0));
    spool.append(b"little").expect("appended");
    assert_eq!(pool.used_bytes(), 256);
    assert_eq!(pool.holders().to_string(), "a small upload (256 bytes)");
    spool.append(&bytes(0, 0..1_000)).expect("appended");
    assert_eq!(pool.used_bytes(), 1024);
    assert_eq!(read(&spool, 3..6).expect("read"), b"tle");
    assert_eq!(read(&spool, 6..2_000).expect("read"), bytes(0, 0..1_000));
    drop(spool);
    assert_eq!((pool.used_bytes(), pool.holders().to_string().as_str()), (0, "nobody"));
}

#[test]
fn what_finds_no_room_in_memory_goes_to_the_file_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool(6, Some(folder.path()));
    let large = spool(&pool, 1, 20);
    assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0, "the file has no name");
    assert!(pool.used_bytes() <= 6 * BLOCK && pool.overflow_bytes() >= 14 * BLOCK);
    for start in [0, 5 * BLOCK - 10, 19 * BLOCK + 1] {
        let end = 20 * BLOCK;
        assert_eq!(read(&large, start..end).expect("read"), bytes(1, start..end));
    }
    let mut some = [0; 10];
    assert_eq!(large.try_read(0, &mut some).expect("read"), None, "it lies in the file");
    assert_eq!(large.try_read(20 * BLOCK - 4, &mut some).expect("read"), Some(4));
    assert_eq!(some[..4], bytes(1, 20 * BLOCK - 4..20 * BLOCK));
    let counters = pool.counters();
    assert_eq!(counters.overflow.written_bytes, counters.overflow.written_blocks * BLOCK);
    assert!(counters.overflow.read_bytes > 0 && counters.read_bytes() == counters.overflow.read_bytes);
    large.forget(10 * BLOCK + 5);
    assert_eq!(large.start(), 10 * BLOCK + 5);
    assert!(pool.overflow_bytes() <= 10 * BLOCK);
    let error = read(&large, 10 * BLOCK..11 * BLOCK).expect_err("it is forgotten");
    assert_eq!(error.to_string(), "spool 1: there are bytes 40965 to 81920, not byte 40960");
    assert_eq!(read(&large, 10 * BLOCK + 5..20 * BLOCK).expect("read"), bytes(1, 10 * BLOCK + 5..20 * BLOCK));
    assert!(overflow_file(folder.path()).is_some());
    drop(large);
    assert_eq!((pool.used_bytes(), pool.overflow_bytes()), (0, 0));
    assert!(overflow_file(folder.path()).is_none(), "it is closed as soon as nothing lies in it");
}

#[test]
fn a_spool_keeps_to_its_part_of_the_memory() {
    let pool = pool(20, None);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    let object = pool.object();
    for number in 0..14 {
        let load = || Ok::<_, Error>(vec![number as u8; BLOCK as usize]);
        session.load(Key { object, number }, load).expect("loaded");
    }
    let spool = pool.spool("a large download", Class::Download, 2 * BLOCK).expect("room");
    spool.append(&bytes(2, 0..30 * BLOCK)).expect("appended");
    assert_eq!(pool.used_bytes_of(Class::Download), 3 * BLOCK, "two blocks and the tail");
    assert_eq!(read(&spool, 0..30 * BLOCK).expect("read"), bytes(2, 0..30 * BLOCK));
    let hits = (0..14).filter(|number| session.find(Key { object, number: *number }).expect("a pin").is_some());
    assert_eq!(hits.count(), 14, "nothing was washed out by writing or reading it");
}

#[test]
fn what_is_taken_off_is_written_anew() {
    let pool = pool(4, None);
    let spool = spool(&pool, 1, 10);
    for (end, seed) in [(9 * BLOCK + 7, 2), (5 * BLOCK, 3), (100, 4), (0, 5)] {
        spool.truncate(end + BLOCK * 50).expect("nothing to be done");
        let before = read(&spool, 0..end).expect("read");
        spool.truncate(end).expect("truncated");
        assert_eq!((spool.end(), read(&spool, 0..end + 1).expect("read")), (end, before.clone()));
        spool.append(&bytes(seed, end..10 * BLOCK)).expect("appended");
        let expected = [before, bytes(seed, end..10 * BLOCK)].concat();
        assert_eq!(read(&spool, 0..11 * BLOCK).expect("read"), expected);
        assert!(pool.used_bytes() <= 4 * BLOCK);
    }
    let error = spool.read(10 * BLOCK + 1, &mut [0]).expect_err("behind the end");
    assert_eq!((error.code(), spool.read(10 * BLOCK, &mut [0]).expect("the end")), ("out_of_range", 0));
}

#[test]
fn a_block_that_was_forgotten_before_it_was_whole_is_dropped_with_the_spool() {
    let pool = pool(4, None);
    for more in [0, 1] {
        let spool = spool(&pool, 1, 2);
        spool.forget(2 * BLOCK);
        assert_eq!((spool.start(), spool.end(), pool.used_bytes()), (2 * BLOCK, 2 * BLOCK, BLOCK));
        spool.append(&bytes(1, 2 * BLOCK..2 * BLOCK + more)).expect("appended");
        assert_eq!(read(&spool, 2 * BLOCK..3 * BLOCK).expect("read"), bytes(1, 2 * BLOCK..2 * BLOCK + more));
        drop(spool);
        assert_eq!((pool.used_bytes(), pool.blocks()), (0, 0));
    }
}

#[test]
fn the_overflow_files_limit_fails_who_needs_more() {
    let config = Config { overflow_bytes_max: 3 * BLOCK, block_bytes: BLOCK as usize, ..Config::default() };
    let config = Config { budget_bytes: 6 * BLOCK, floors: Floors::default(), ..config };
    let pool = Pool::new(&config).expect("a pool");
    let spool = pool.spool("upload 7", Class::Upload, 0).expect("room");
    spool.append(&bytes(1, 0..9 * BLOCK)).expect("what the file does not take stays in memory");
    let error = spool.append(&bytes(1, 9 * BLOCK..9 * BLOCK + 1)).expect_err("no room");
    let text = "upload 7 has failed: the buffer pool's overflow file has no room for a block of it; make room in overflow_folder, or \
                raise overflow_bytes_max, whichever it is";
    assert_eq!((error.to_string().as_str(), error.code(), error.retry_helps()), (text, "disk_full", true));
    assert_eq!(cause(&error), "no room for a block more, the limit is 12288 bytes (overflow_bytes_max)");
    assert_eq!(read(&spool, 0..10 * BLOCK).expect("nothing is lost"), bytes(1, 0..9 * BLOCK));
    let error = pool.set_budget(4 * BLOCK).expect_err("blocks would have to go");
    assert_eq!((error.code(), pool.used_bytes()), ("disk_full", 6 * BLOCK), "{error}");
    spool.forget(BLOCK);
    spool.append(b"more").expect("there is room again");
}

#[test]
fn a_full_disk_fails_who_needs_room_and_nothing_else() {
    if !is_apart("a_full_disk_fails_who_needs_room_and_nothing_else", "--mount").expect("it passes there") {
        return;
    }
    let disk = SmallDisk::new(4).expect("mounted");
    let pool = pool(12, Some(disk.path()));
    let session = pool.session("a reader", Class::Answer, 2).expect("room");
    let key = Key { object: pool.object(), number: 0 };
    let held = session.load(key, || Ok::<_, Error>(vec![9; BLOCK as usize])).expect("loaded");
    let first = spool(&pool, 1, 20);
    disk.leave(0).expect("filled");
    // It needs room, and all blocks that are in memory and not pinned are the first one's.
    let second = pool.spool("spool 2", Class::Download, u64::MAX).expect("room");
    let error = second.append(b"little").expect_err("no room");
    assert!(error.to_string().starts_with("spool 2 has failed:"), "{error}");
    assert!(cause(&error).contains("No space left on device"), "{error:?}");
    assert_eq!((error.code(), error.retry_helps()), ("disk_full", true));
    assert_eq!(read(&first, 0..20 * BLOCK).expect("it is whole"), bytes(1, 0..20 * BLOCK));
    // What has claimed its room has it all the same: that is at the cost of the first.
    let other = Key { number: 1, ..key };
    assert_eq!(session.load(other, || Ok::<_, Error>(vec![8])).expect("it has its room")[..], [8]);
    let error = read(&first, 0..1).expect_err("lost");
    assert!(error.to_string().starts_with("spool 1 has failed:") && error.code() == "disk_full", "{error}");
    assert_eq!(first.append(b"more").expect_err("lost").code(), "disk_full");
    drop(first);
    assert_eq!(*held, *vec![9; BLOCK as usize]);
    disk.clear().expect("it was there");
    second.append(&bytes(2, 0..40 * BLOCK)).expect("there is room again");
    assert_eq!(read(&second, 0..40 * BLOCK).expect("read"), bytes(2, 0..40 * BLOCK));
    drop((second, held));
    pool.remove(other);
    assert_eq!((pool.overflow_bytes(), pool.used_bytes()), (0, BLOCK));
}

#[test]
fn where_all_room_is_claimed_the_tail_lies_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool(3, Some(folder.path()));
    let session = pool.session("somebody", Class::Answer, 2).expect("room");
    let first = spool(&pool, 1, 1);
    let second = pool.spool("spool 2", Class::Upload, u64::MAX).expect("room");
    for start in (0..3 * BLOCK).step_by(700) {
        second.append(&bytes(2, start..(3 * BLOCK).min(start + 700))).expect("there is room on disk");
        assert!(pool.used_bytes() <= 3 * BLOCK);
    }
    assert_eq!((second.end(), pool.overflow_bytes()), (3 * BLOCK, 3 * BLOCK));
    assert_eq!(second.try_append(&[1]).expect("it would have to be written"), 0);
    for start in [0, 10, BLOCK - 1, 2 * BLOCK + 5, 3 * BLOCK] {
        assert_eq!(read(&second, start..4 * BLOCK).expect("read"), bytes(2, start..3 * BLOCK), "from {start}");
    }
    assert_eq!(second.try_read(2 * BLOCK + 1, &mut [0]).expect("read"), None);
    for (end, seed) in [(2 * BLOCK + 100, 3), (BLOCK + 7, 4)] {
        let before = read(&second, 0..end).expect("read");
        second.truncate(end).expect("truncated");
        second.append(&bytes(seed, end..end + 900)).expect("appended");
        assert_eq!(read(&second, 0..4 * BLOCK).expect("read"), [before, bytes(seed, end..end + 900)].concat());
    }
    let file = overflow_file(folder.path()).expect("the tail lies in it");
    for slot in 0..3 {
        file.write_all_at(&[0xff; 4], slot * BLOCK + 1).expect("written");
    }
    assert!(
        read(&second, BLOCK..4 * BLOCK).is_err_and(|error| error.code() == "damaged"),
        "its tail is not what it was"
    );
    drop((session, first));
    drop(second);
    assert_eq!((pool.used_bytes(), pool.overflow_bytes()), (0, 0));
    assert_eq!(pool.holders().to_string(), "nobody");
}

#[test]
fn what_can_be_added_at_once_is_and_nothing_is_written_for_it() {
    let pool = pool(6, None);
    let session = pool.session("a reader", Class::Answer, 1).expect("room");
    let object = pool.object();
    for number in 0..6 {
        session.load(Key { object, number }, || Ok::<_, Error>(vec![0; BLOCK as usize])).expect("loaded");
    }
    let spool = pool.spool("an upload", Class::Upload, 2 * BLOCK).expect("room");
    let all = bytes(1, 0..9 * BLOCK);
    let at_once = spool.try_append(&all).expect("appended");
    assert_eq!(at_once as u64, 3 * BLOCK, "answers go for it; a block more would have to be written");
    assert_eq!((spool.end(), pool.overflow_bytes()), (3 * BLOCK, 0));
    spool.append(&all[at_once..]).expect("appended");
    assert_eq!(read(&spool, 0..9 * BLOCK).expect("read"), all);
}

#[test]
fn a_block_that_comes_back_damaged_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = pool(5, Some(folder.path()));
    let damaged = pool.spool("damaged", Class::Upload, 0).expect("room");
    damaged.append(&bytes(1, 0..3 * BLOCK + 1)).expect("appended");
    let sound = pool.spool("sound", Class::Upload, 0).expect("room");
    sound.append(&bytes(2, 0..3 * BLOCK + 1)).expect("appended");
    let file = overflow_file(folder.path()).expect("blocks lie in it");
    file.write_all_at(&[0xff], BLOCK + 17).expect("written");
    assert_eq!(read(&damaged, 0..BLOCK).expect("read"), bytes(1, 0..BLOCK));
    let error = read(&damaged, BLOCK..2 * BLOCK).expect_err("damaged");
    assert!(matches!(&error, Error::Damaged { name, number: 1, .. } if name == "damaged"), "{error}");
    assert!(!error.retry_helps());
    // A block in the place of another is not taken for it.
    file.write_all_at(&bytes(1, 0..BLOCK), 2 * BLOCK).expect("written");
    assert_eq!(read(&damaged, 2 * BLOCK..3 * BLOCK).expect_err("another's").code(), "damaged");
    assert_eq!(read(&sound, 0..4 * BLOCK).expect("read"), bytes(2, 0..3 * BLOCK + 1));
}

#[test]
fn nothing_is_left_of_a_process_that_dies() {
    const FOLDER: &str = "HEADWATER_OVERFLOW_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER) {
        let pool = pool(4, Some(Path::new(&folder)));
        let _spool = spool(&pool, 1, 50);
        assert!(pool.overflow_bytes() > 0 && overflow_file(Path::new(&folder)).is_some());
        eprintln!("overflowed");
        std::process::abort();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "nothing_is_left_of_a_process_that_dies", "--nocapture"]).env(FOLDER, folder.path());
    let output = child.output().expect("it runs");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("overflowed"), "{output:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
}
