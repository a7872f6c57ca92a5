//! What goes wrong: the file stays as it was, and the error says what and why.

use std::path::{Path, PathBuf};

use headwater_idxbuild::{Builder, Error, Options, TempDir, build, build_within};
use headwater_testkit::random::Random;
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Outcome<Place> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        Ok(Place { folder })
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("x.db")
    }

    /// A table of so many rows with two indexes, one of long keys.
    fn fill(&self, page_size: u32, rows: u32) -> Outcome<Connection> {
        let connection = Connection::open(self.file())?;
        connection.execute_batch(&format!(
            "PRAGMA page_size = {page_size}; PRAGMA synchronous = OFF;
             CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
               INSERT INTO t SELECT i, i * 7919 % 10007, hex(i * 31337) || substr(hex(zeroblob(400)), 1, i % 700) FROM n;
             CREATE INDEX t_a ON t(a); CREATE INDEX t_b ON t(b, a DESC);"
        ))?;
        Ok(connection)
    }
}

fn integrity(path: &Path) -> Vec<String> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let connection = Connection::open(path)?;
        let mut check = connection.prepare("PRAGMA integrity_check(100000)")?;
        check.query_map([], |row| row.get(0))?.collect()
    };
    let lines = check().unwrap_or_else(|error| vec![error.to_string()]);
    lines.iter().flat_map(|line| line.lines()).map(str::to_owned).collect()
}

#[test]
fn an_index_that_lacks_rows_is_mended() -> Outcome {
    let place = Place::new()?;
    let connection = place.fill(1024, 3000)?;
    // As a program that writes behind SQLite's back would leave it: rows that are in the table alone.
    connection.execute_batch(
        "CREATE TABLE plain(id INTEGER PRIMARY KEY, a INTEGER, b TEXT); INSERT INTO plain SELECT id + 5000, a, b FROM t;
         INSERT INTO plain SELECT * FROM t;
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'plain') WHERE name = 't';
         DELETE FROM sqlite_schema WHERE name = 'plain';",
    )?;
    drop(connection);
    let is_missing = |lines: &[String]| lines.iter().any(|line| line.contains("missing from index"));
    let before = integrity(&place.file());
    assert!(is_missing(&before), "the index lacks rows at first: {before:?}");
    build(&place.file(), &Options::default())?;
    assert!(!is_missing(&integrity(&place.file())), "{:?}", integrity(&place.file()));
    Ok(())
}

#[test]
fn a_database_in_use_is_left_alone() -> Outcome {
    for journal in ["DELETE", "WAL"] {
        let place = Place::new()?;
        let other = place.fill(4096, 500)?;
        other.pragma_update(None, "journal_mode", journal)?;
        other.execute_batch("BEGIN IMMEDIATE; UPDATE t SET a = a + 1 WHERE id = 1;")?;
        let refused = build(&place.file(), &Options::default()).expect_err("it is locked");
        assert!(matches!(refused, Error::InUse { .. }), "{journal}: {refused:?}");
        other.execute_batch("COMMIT")?;
        drop(other);
        build(&place.file(), &Options::default())?;
        assert_eq!(integrity(&place.file()), ["ok"], "{journal}");
    }
    Ok(())
}

#[test]
fn what_waits_in_a_log_is_in_the_indexes() -> Outcome {
    let place = Place::new()?;
    let other = place.fill(4096, 500)?;
    other.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; UPDATE t SET a = -id;")?;
    // Copied with its log while it is open: as a crash of that program would leave it.
    let copy = place.folder.path().join("copy.db");
    std::fs::copy(place.file(), &copy)?;
    std::fs::copy(place.folder.path().join("x.db-wal"), place.folder.path().join("copy.db-wal"))?;
    build(&copy, &Options::default())?;
    assert_eq!(integrity(&copy), ["ok"]);
    let least: i64 =
        Connection::open(&copy)?.query_row("SELECT a FROM t INDEXED BY t_a ORDER BY a", [], |row| row.get(0))?;
    assert_eq!(least, -500);
    Ok(())
}

#[test]
fn temporary_directories_without_room_are_named() -> Outcome {
    let place = Place::new()?;
    drop(place.fill(4096, 30_000)?);
    let before = std::fs::read(place.file())?;
    let mut options = Options::default();
    (options.memory, options.sort_block) = (Some(1 << 20), Some(16 << 10));
    let dir = |name: &str, limit| -> Outcome<TempDir> {
        let path = place.folder.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(TempDir { path, limit: Some(limit) })
    };
    options.temp_dirs = vec![dir("first", 300_000)?, dir("second", 600_000)?];
    let refused = build(&place.file(), &options).expect_err("there is no room");
    assert!(matches!(refused, Error::NoTemporarySpace { .. }), "{refused:?}");
    let said = refused.to_string();
    assert!(said.contains("first") && said.contains("of 600000"), "{said}");
    assert!(before == std::fs::read(place.file())?, "the file has changed");
    // With one more, all three are used.
    options.temp_dirs.push(dir("third", 1 << 30)?);
    options.integrity_check = true;
    build(&place.file(), &options)?;
    assert_eq!(std::fs::read_dir(place.folder.path().join("third"))?.count(), 0, "temporary files have no names");
    Ok(())
}

#[test]
fn what_is_no_database_is_said_to_be_none() -> Outcome {
    let place = Place::new()?;
    let missing = build(&place.file(), &Options::default()).expect_err("there is no file");
    assert!(matches!(missing, Error::Open { .. }), "{missing:?}");
    assert!(!place.file().exists(), "nor is one made");
    std::fs::write(place.file(), "a text, not a database. ".repeat(100))?;
    let other = build(&place.file(), &Options::default()).expect_err("it is no database");
    assert!(matches!(other, Error::Open { .. }), "{other:?}");
    Ok(())
}

#[test]
fn an_empty_file_stays_empty() -> Outcome {
    let place = Place::new()?;
    std::fs::write(place.file(), "")?;
    let mut create = Options::default();
    create.create.push("CREATE INDEX t_a ON t(a)".to_owned());
    for options in [Options::default(), create] {
        let refused = build(&place.file(), &options).expect_err("there is nothing in it");
        assert!(matches!(refused, Error::Empty { .. }), "{refused:?}");
        assert!(refused.to_string().ends_with("x.db is empty: it has no tables, and so no indexes"), "{refused}");
        assert_eq!(std::fs::read_dir(place.folder.path())?.count(), 1, "nothing beside it");
        assert_eq!(std::fs::metadata(place.file())?.len(), 0, "the file has grown");
    }
    // One that was emptied has pages.
    Connection::open(place.file())?.execute_batch("CREATE TABLE t(a); DROP TABLE t")?;
    assert!(build(&place.file(), &Options::default())?.indexes.is_empty());
    Ok(())
}

/// In a transaction of the caller's: the error is the disk's, whether SQLite keeps the transaction or not.
#[test]
fn a_full_disk_is_told_as_one_within_a_transaction_too() -> Outcome {
    let place = Place::new()?;
    let connection = place.fill(1024, 3000)?;
    let mut options = Options::default();
    options.create.push("CREATE INDEX t_again ON t(b)".to_owned());
    for cache in [10, 2000] {
        connection.execute_batch(&format!("PRAGMA cache_size = {cache}; BEGIN; UPDATE t SET a = -a"))?;
        let pages: u32 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        connection.pragma_update(None, "max_page_count", pages + 20)?;
        let refused = build_within(&connection, &options).expect_err("there is no room");
        assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
        let is_kept = !connection.is_autocommit();
        let least: i64 = connection.query_row("SELECT min(a) FROM t", [], |row| row.get(0))?;
        assert_eq!(least < 0, is_kept, "what the transaction wrote is there as long as it is");
        connection
            .execute_batch(&format!("PRAGMA max_page_count = 1000000; {}", if is_kept { "ROLLBACK" } else { "" }))?;
        connection.execute_batch("CREATE TABLE new(a); DROP TABLE new")?;
    }
    drop(connection);
    assert_eq!(integrity(&place.file()), ["ok"]);
    Ok(())
}

#[test]
fn every_doubt_is_told() -> Outcome {
    let place = Place::new()?;
    let connection = place.fill(4096, 100)?;
    connection.execute_batch(
        "CREATE TABLE w(k TEXT PRIMARY KEY, v) WITHOUT ROWID; CREATE INDEX w_v ON w(v); INSERT INTO w VALUES ('a', 1);
         CREATE INDEX t_part ON t(a) WHERE a > 10; CREATE INDEX t_expr ON t(a + 1);
         CREATE TABLE g(a, b AS (a || 'x') VIRTUAL, c AS (a || 'y') STORED); INSERT INTO g(a) VALUES (1), (2);
         CREATE INDEX g_b ON g(b); CREATE INDEX g_c ON g(c);",
    )?;
    drop(connection);
    let report = build(&place.file(), &Options::default())?;
    let by = |name: &str| report.indexes.iter().find(|built| built.index == name).map(|built| built.by.clone());
    for (name, part) in
        [("w_v", "WITHOUT ROWID"), ("t_part", "partial"), ("t_expr", "expression"), ("g_b", "not stored")]
    {
        let Some(Builder::Sqlite { why }) = by(name) else { return Err(format!("{name}: {:?}", by(name)).into()) };
        assert!(why.contains(part), "{name}: {why}");
    }
    assert_eq!(by("g_c"), Some(Builder::Headwater { keys: 2 }));
    assert_eq!(integrity(&place.file()), ["ok"]);
    Ok(())
}

#[test]
fn a_page_of_two_indexes_is_damage() -> Outcome {
    let place = Place::new()?;
    let connection = place.fill(1024, 3000)?;
    let root = |name: &str| -> rusqlite::Result<u32> {
        connection.query_row("SELECT rootpage FROM sqlite_schema WHERE name = ?1", [name], |row| row.get(0))
    };
    let (a, b) = (root("t_a")?, root("t_b")?);
    drop(connection);
    let mut bytes = std::fs::read(place.file())?;
    // The last page below each root stands at its eighth byte.
    let last = |root: u32| (root as usize - 1) * 1024 + 8;
    bytes.copy_within(last(b)..last(b) + 4, last(a));
    std::fs::write(place.file(), &bytes)?;
    let refused = build(&place.file(), &Options::default()).expect_err("a page has two owners");
    assert!(refused.to_string().contains("two things"), "{refused}");
    assert!(bytes == std::fs::read(place.file())?, "the file has changed");
    Ok(())
}

/// Bits that fall over anywhere: an error, or a result that is no worse than what was there.
#[test]
fn a_damaged_file_gives_an_error_or_is_no_worse() -> Outcome {
    let place = Place::new()?;
    drop(place.fill(1024, 400)?);
    let sound = std::fs::read(place.file())?;
    let damaged = place.folder.path().join("damaged.db");
    let (mut refused, mut built) = (0, 0);
    for seed in 0..600 {
        let mut random = Random::seeded(seed);
        let mut bytes = sound.clone();
        for _ in 0..=random.below(3) {
            let place = random.below(bytes.len() as u64) as usize;
            // Heads of pages matter most.
            let place = if random.chance(50) { place / 1024 * 1024 + random.below(16) as usize } else { place };
            bytes[place] ^= 1 << random.below(8);
        }
        std::fs::write(&damaged, &bytes)?;
        let before = integrity(&damaged);
        if before.iter().any(|line| line.contains("not a database") || line.contains("unsupported")) {
            continue;
        }
        std::fs::write(&damaged, &bytes)?;
        match build(&damaged, &Options::default()) {
            Err(_) => {
                refused += 1;
                assert!(bytes == std::fs::read(&damaged)?, "seed {seed}: the file has changed");
            }
            Ok(_) => {
                built += 1;
                let after = integrity(&damaged);
                // A check that gave up says nothing of what else there is.
                let gave_up = before.iter().any(|line| line.contains("malformed"));
                let new: Vec<_> = after.iter().filter(|line| *line != "ok" && !before.contains(line)).collect();
                assert!(gave_up || new.is_empty(), "seed {seed}: {new:?} after {before:?}");
            }
        }
    }
    assert!(refused > 50 && built > 50, "{refused} refused, {built} built");
    Ok(())
}
