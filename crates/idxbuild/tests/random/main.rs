//! Random databases: after a rebuild the file is sound, and each index says what it says after SQLite's own REINDEX.

mod schema;

use std::path::Path;

use headwater_idxbuild::{Builder, Error, Options, Report, build, build_within};
use headwater_testkit::random::Random;
use rusqlite::Connection;

use crate::schema::Made;

const CASES: u64 = 2000;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// All rows in the order of an index, with the types of their values.
fn dump(connection: &Connection, index: &str) -> Outcome<Vec<Vec<u8>>> {
    let table: String =
        connection.query_row("SELECT tbl_name FROM sqlite_schema WHERE name = ?1", [index], |row| row.get(0))?;
    let sql = "SELECT name, \"desc\", coll FROM pragma_index_xinfo(?1) WHERE key";
    let mut select = connection.prepare(sql)?;
    let columns = select.query_map([index], |row| {
        Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?, row.get::<_, String>(2)?))
    })?;
    let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
    let (mut values, mut orders) = (Vec::new(), Vec::new());
    for (name, descending, collation) in columns {
        // An expression has no name: its index is SQLite's work alone.
        let Some(name) = name else { return Ok(Vec::new()) };
        values.push(format!("quote({name}), typeof({name})"));
        orders.push(format!("{name} COLLATE {collation} {}", if descending { "DESC" } else { "ASC" }));
    }
    let sql = format!(
        "SELECT concat_ws('|', {}) FROM {table} INDEXED BY {index} ORDER BY {}",
        values.join(", "),
        orders.join(", ")
    );
    let Ok(mut rows) = connection.prepare(&sql) else { return Ok(Vec::new()) };
    let rows = rows.query_map([], |row| Ok(row.get_ref(0)?.as_bytes()?.to_vec()))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn index_names(connection: &Connection) -> Outcome<Vec<String>> {
    let mut select = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'index' ORDER BY name")?;
    let names = select.query_map([], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Every index's own pages, record by record, as the file has them.
fn check_sound(connection: &Connection) -> Outcome {
    let mut check = connection.prepare("PRAGMA integrity_check")?;
    let lines: Vec<String> = check.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if lines == ["ok"] { Ok(()) } else { Err(lines.join("; ").into()) }
}

/// No index was left to SQLite because SQLite reads rows otherwise than they are read here: it would hide a fault.
fn check_read_alike(report: &Report) {
    for built in &report.indexes {
        let is_fault = matches!(&built.by, Builder::Sqlite { why } if why.contains("report this"));
        assert!(!is_fault, "{built:?}");
    }
}

fn knobs(random: &mut Random) -> Options {
    let mut options = Options::default();
    let some = |random: &mut Random, values: &[usize]| {
        let chosen = random.pick(values).copied();
        chosen.filter(|_| random.chance(60))
    };
    options.threads = some(random, &[1, 2, 3]);
    options.merge_threads = some(random, &[1, 2, 4]);
    options.groups = some(random, &[1, 2, 3]);
    options.groups_at_once = some(random, &[1, 2]);
    options.merge_width = some(random, &[2, 3, 16]);
    options.sort_block = some(random, &[1024, 4096, 65536]).map(|size| size as u64);
    options.memory = some(random, &[1 << 20]).map(|size| size as u64);
    options.integrity_check = random.chance(20);
    options
}

fn same_after_both(ours: &Path, theirs: &Path) -> Outcome {
    let (ours, theirs) = (Connection::open(ours)?, Connection::open(theirs)?);
    check_sound(&ours)?;
    let names = index_names(&theirs)?;
    assert_eq!(index_names(&ours)?, names);
    for name in names {
        let (ours, theirs) = (dump(&ours, &name)?, dump(&theirs, &name)?);
        if let Some(place) = (0..ours.len().max(theirs.len())).find(|&place| ours.get(place) != theirs.get(place)) {
            return Err(format!("{name} at {place}: {:?}, SQLite has {:?}", ours.get(place), theirs.get(place)).into());
        }
    }
    Ok(())
}

/// Writes after a rebuild, and checks again: the free list and the trees must be such that SQLite can go on with them.
fn write_on(path: &Path, made: &Made, random: &mut Random) -> Outcome {
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = OFF")?;
    for (place, _) in made.tables.iter().enumerate() {
        connection.execute_batch(&format!(
            "DELETE FROM t{place} WHERE random() % 4 = 0; CREATE TABLE more{place} AS SELECT * FROM t{place};"
        ))?;
    }
    check_sound(&connection)?;
    if random.chance(10) {
        connection.execute_batch("VACUUM")?;
    }
    Ok(())
}

/// A folder in memory where there is one: what is tested here does not depend on the disk.
fn folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

fn rebuilt(seed: u64, folder: &Path) -> Outcome<(usize, usize)> {
    let mut random = Random::seeded(seed);
    let made = Made::of(&mut random, 120);
    let (ours, theirs) = (folder.join(format!("{seed}-ours.db")), folder.join(format!("{seed}-theirs.db")));
    made.write(&Connection::open(&ours)?, &mut random, true)?;
    // As it lies there, log and all: the file is closed.
    std::fs::copy(&ours, &theirs)?;
    Connection::open(&theirs)?.execute_batch("PRAGMA synchronous = OFF; REINDEX")?;
    let report = build(&ours, &knobs(&mut random))?;
    check_read_alike(&report);
    let by_us = report.indexes.iter().filter(|index| matches!(index.by, Builder::Headwater { .. })).count();
    same_after_both(&ours, &theirs)?;
    write_on(&ours, &made, &mut random)?;
    std::fs::remove_file(&ours)?;
    std::fs::remove_file(&theirs)?;
    Ok((by_us, report.indexes.len() - by_us))
}

#[test]
fn after_a_rebuild_every_index_is_as_after_sqlites_own() -> Outcome {
    let folder = folder()?;
    let (mut ours, mut theirs) = (0, 0);
    for seed in 0..CASES {
        let (by_us, by_sqlite) =
            rebuilt(seed, folder.path()).map_err(|error| format!("seed {seed}: {error} {error:?}"))?;
        ours += by_us;
        theirs += by_sqlite;
    }
    eprintln!("{ours} built here, {theirs} by SQLite");
    assert!(ours > 2 * theirs, "{ours} indexes built here, {theirs} left to SQLite");
    Ok(())
}

fn created(seed: u64, folder: &Path) -> Outcome {
    let mut random = Random::seeded(seed);
    let made = Made::of(&mut random, 120);
    let (ours, theirs) = (folder.join(format!("{seed}-ours.db")), folder.join(format!("{seed}-theirs.db")));
    made.write(&Connection::open(&ours)?, &mut random, false)?;
    std::fs::copy(&ours, &theirs)?;
    let theirs_open = Connection::open(&theirs)?;
    theirs_open.execute_batch("PRAGMA synchronous = OFF")?;
    let mut options = knobs(&mut random);
    for sql in made.tables.iter().flat_map(|table| &table.indexes) {
        if theirs_open.execute_batch(sql).is_ok() {
            options.create.push(sql.clone());
        } else {
            let mut alone = Options::default();
            alone.create.push(sql.clone());
            let refused = build(&ours, &alone);
            assert!(refused.is_err(), "seed {seed}: {sql} is refused by SQLite");
        }
    }
    check_read_alike(&build(&ours, &options)?);
    same_after_both(&ours, &theirs)?;
    write_on(&ours, &made, &mut random)?;
    std::fs::remove_file(&ours)?;
    std::fs::remove_file(&theirs)?;
    Ok(())
}

#[test]
fn created_indexes_are_as_sqlite_would_have_made_them() -> Outcome {
    let folder = folder()?;
    for seed in 0..CASES / 4 {
        created(seed, folder.path()).map_err(|error| format!("seed {seed}: {error} {error:?}"))?;
    }
    Ok(())
}

/// What a transaction has done to the tables before their indexes are built; statements that a table does not take do nothing to it.
fn write_before(connection: &Connection, made: &Made) {
    for place in 0..made.tables.len() {
        for sql in [
            format!("DELETE FROM t{place} WHERE rowid % 7 = 3"),
            format!("INSERT INTO t{place} SELECT * FROM t{place} WHERE rowid % 5 = 1"),
            format!("CREATE TABLE before{place} AS SELECT * FROM t{place}; DROP TABLE before{place}"),
        ] {
            let _ = connection.execute_batch(&sql);
        }
    }
}

fn created_within(seed: u64, folder: &Path) -> Outcome {
    let mut random = Random::seeded(seed);
    let made = Made::of(&mut random, 120);
    let (ours, theirs) = (folder.join(format!("{seed}-ours.db")), folder.join(format!("{seed}-theirs.db")));
    let writer = Connection::open(&ours)?;
    made.write(&writer, &mut random, false)?;
    // The free list has pages that name others.
    writer.execute_batch("CREATE TABLE gone AS SELECT zeroblob(3000) FROM t0; DROP TABLE gone")?;
    drop(writer);
    std::fs::copy(&ours, &theirs)?;
    let (here, there) = (Connection::open(&ours)?, Connection::open(&theirs)?);
    // Pages leave the cache before the end.
    let cache = *random.pick(&[10, 2000]).ok_or("a cache")?;
    for connection in [&here, &there] {
        connection.execute_batch(&format!("PRAGMA synchronous = OFF; PRAGMA cache_size = {cache}; BEGIN IMMEDIATE"))?;
        write_before(connection, &made);
    }
    let mut options = knobs(&mut random);
    for sql in made.tables.iter().flat_map(|table| &table.indexes) {
        if there.execute_batch(sql).is_ok() {
            options.create.push(sql.clone());
            continue;
        }
        // The transaction goes on as if it had not been tried.
        let mut alone = Options::default();
        alone.create.push(sql.clone());
        assert!(build_within(&here, &alone).is_err(), "seed {seed}: {sql} is refused by SQLite");
    }
    let before = index_names(&here)?;
    check_read_alike(&build_within(&here, &options)?);
    assert_eq!(here.pragma_query_value(None, "cache_size", |row| row.get::<_, i64>(0))?, cache);
    assert!(!here.is_autocommit(), "the transaction is the caller's to end");
    for connection in [&here, &there] {
        write_before(connection, &made);
    }
    if random.chance(20) {
        here.execute_batch("ROLLBACK")?;
        check_sound(&here)?;
        assert_eq!(index_names(&here)?, before);
        assert_eq!(index_names(&Connection::open(&ours)?)?, before);
    } else {
        for connection in [&here, &there] {
            connection.execute_batch("COMMIT")?;
        }
        check_sound(&here)?;
        same_after_both(&ours, &theirs)?;
        drop(here);
        write_on(&ours, &made, &mut random)?;
    }
    std::fs::remove_file(&ours)?;
    std::fs::remove_file(&theirs)?;
    Ok(())
}

#[test]
fn a_transaction_goes_on_after_its_indexes_were_built() -> Outcome {
    let folder = folder()?;
    for seed in 0..CASES / 4 {
        created_within(seed, folder.path()).map_err(|error| format!("seed {seed}: {error} {error:?}"))?;
    }
    let nothing = build_within(&Connection::open_in_memory()?, &Options::default());
    assert!(matches!(nothing, Err(Error::NoTransaction)));
    Ok(())
}
