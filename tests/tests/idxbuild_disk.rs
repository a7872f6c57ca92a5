//! Disks that are full while indexes are rebuilt: the one for temporary files, and the database's own.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use headwater_idxbuild::{Error, Options, TempDir, build};
use headwater_tests::apart::is_apart;
use headwater_tests::disk::SmallDisk;
use rusqlite::Connection;

const KIB: u64 = 1 << 10;

fn make(path: &Path) -> Result<()> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA synchronous = OFF; CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
           INSERT INTO t SELECT i, i * 7919 % 10007, hex(i * 31337 % 65521) || hex(zeroblob(20)) FROM n;
         CREATE INDEX t_b ON t(b);",
    )?;
    Ok(())
}

fn is_sound(path: &Path) -> Result<()> {
    let connection = Connection::open(path)?;
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(sound == "ok", "{sound}");
    Ok(())
}

#[test]
fn the_disk_of_temporary_files_is_full() -> Result<()> {
    if !is_apart("the_disk_of_temporary_files_is_full", "--mount")? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("x.db");
    make(&path)?;
    let before = std::fs::read(&path)?;
    let (small, other) = (SmallDisk::new(1)?, SmallDisk::new(64)?);
    let mut options = Options::default();
    (options.memory, options.sort_block) = (Some(1 << 20), Some(32 << 10));
    options.temp_dirs.push(TempDir { path: small.path().to_owned(), limit: None });
    small.leave(300 * KIB)?;
    let Err(Error::NoTemporarySpace { .. }) = build(&path, &options) else { bail!("there was room") };
    ensure!(before == std::fs::read(&path)?, "the file has changed");
    // A second place takes what the first can't.
    options.temp_dirs.push(TempDir { path: other.path().to_owned(), limit: None });
    build(&path, &options)?;
    is_sound(&path)
}

#[test]
fn the_databases_disk_is_full() -> Result<()> {
    if !is_apart("the_databases_disk_is_full", "--mount")? {
        return Ok(());
    }
    let disk = SmallDisk::new(64)?;
    let path = disk.path().join("x.db");
    make(&path)?;
    let mut options = Options::default();
    options.create.push("CREATE INDEX t_a ON t(a, b)".to_owned());
    options.indexes.push("t_b".to_owned());
    let before = std::fs::read(&path)?;
    let (mut room, mut refused) = (0, 0);
    loop {
        disk.leave(room)?;
        let done = build(&path, &options);
        disk.clear()?;
        match done {
            Ok(_) => break,
            Err(Error::DiskFull { .. }) => refused += 1,
            Err(error) => return Err(error).with_context(|| format!("with {room} bytes of room")),
        }
        is_sound(&path).with_context(|| format!("with {room} bytes of room"))?;
        ensure!(before == std::fs::read(&path)?, "with {room} bytes of room the file has changed");
        room += 700 * KIB;
    }
    ensure!(refused > 3, "only {refused} times too little");
    is_sound(&path)
}
