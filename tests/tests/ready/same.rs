//! The content is what the ordinary way brings, and nobody's.

use anyhow::{Context as _, Result, ensure};
use headwater_tests::{KINDS, Kind};

use super::{ANN, BOB, CAT, EVE, USERS, content, create, get, promised, warm, world};

/// A file is taken, changes that came since come down, and all is as in a remote that came the ordinary way. It goes on as any.
#[test]
fn a_remote_of_a_ready_file_equals_one_of_a_download() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 3_000)?;
        let made = warm(&world, ANN, BOB)?;
        ensure!(made.rows == 2 + 1_500 + 1_500, "{kind:?}: {made:?}");
        // Before it is brought up to date, it is as the download was that it was made of.
        let mut ordinary = world.remote("ordinary", CAT)?;
        world.sync(&mut ordinary)?;
        let before = without_last_sync(content(&world.path(&format!("warm {BOB}")))?);
        ensure!(before == without_last_sync(content(&world.path("ordinary"))?), "{kind:?}: the file is another");

        world.central.execute(
            "UPDATE item SET body = 'new' WHERE id = 2; DELETE FROM item WHERE id = 4; UPDATE item SET region = 'south' WHERE id = 6;
             UPDATE item SET region = 'north' WHERE id = 7; INSERT INTO item VALUES (9001, 'north', 'c9001', 1, 'made'); \
             INSERT INTO area VALUES (3, 'moor'); INSERT INTO line VALUES (9001, 9001, 1)",
        )?;
        let (mut remote, taken) = create(&world, "taken", CAT)?;
        let taken = taken.with_context(|| format!("{kind:?}: nothing was given"))?;
        ensure!(taken.rows == made.rows && taken.bytes_down > 10_000, "{kind:?}: {taken:?}");
        let report = world.sync(&mut remote)?;
        ensure!((5..20).contains(&report.rows_down), "{kind:?}: what has changed comes alone: {report:?}");
        let mut other = world.remote("other", BOB)?;
        world.sync(&mut other)?;
        ensure!(content(&world.path("taken"))? == content(&world.path("other"))?, "{kind:?}: it is another");
        ensure!(world.diff("taken")?.is_equal(false), "{kind:?}");

        // It is tracked, and sends.
        world.edit("taken", "UPDATE item SET body = 'mine' WHERE id = 8; INSERT INTO note VALUES ('n', 'up')")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.refused, report.restarted) == (2, 0, false), "{kind:?}: {report:?}");
        let stored = world.central.rows("SELECT body FROM item WHERE id = 8 UNION ALL SELECT text FROM note")?;
        ensure!(stored == [[Some("mine".to_owned())], [Some("up".to_owned())]], "{kind:?}: {stored:?}");
        ensure!(world.diff("taken")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// The one has never synced.
fn without_last_sync(content: Vec<String>) -> Vec<String> {
    let state = |line: String| if line.starts_with("hw_state") { line.replace("\"1\")]", "\"0\")]") } else { line };
    content.into_iter().map(state).collect()
}

/// The bytes that go out name no user and no remote, hold no secret, and no watermark that the database would take.
#[test]
fn a_ready_file_holds_nothing_of_anybody() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 600)?;
        warm(&world, ANN, BOB)?;
        let (file, seen) = promised(&world, CAT, 7)?;
        let (status, bytes) = get(&world, CAT, 7, &file, 0)?;
        ensure!((status, bytes.len() as u64) == (200, file.bytes), "{kind:?}: {status}, {} bytes", bytes.len());
        ensure!(bytes.starts_with(b"SQLite format 3\0") && has(&bytes, b"body 2"), "{kind:?}: that is no such file");
        ensure!(!has(&bytes, b"body 1'") && !has(&bytes, b"south"), "{kind:?}: rows of another partition");
        for user in USERS {
            ensure!(!has(&bytes, user.as_bytes()), "{kind:?}: it names {user}");
        }
        for path in [world.path(&format!("warm {ANN}")), world.path(&format!("warm {BOB}"))] {
            let sql = "SELECT remote_id, secret FROM hw_state";
            let connection = rusqlite::Connection::open(path)?;
            let who: ([u8; 16], [u8; 32]) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            for bytes_of in [&who.0[..], &who.1[..], hex::encode(who.0).as_bytes(), hex::encode(who.1).as_bytes()] {
                ensure!(!has(&bytes, bytes_of), "{kind:?}: something of a remote is in it");
            }
        }
        ensure!(!has(&bytes, &[7; 16]) && !has(&bytes, &[7 ^ 0x55; 32]), "{kind:?}: who asks is in it");
        for mark in &seen.marks {
            ensure!(
                mark.len() > 20 && !has(&bytes, mark) && !has(&bytes, &mark[mark.len() - 16..]),
                "{kind:?}: a seal"
            );
        }
        // Watermarks are sealed for who asks: another that asks has others.
        let (again, others) = promised(&world, ANN, 8)?;
        ensure!(again.digest == file.digest && again.id != file.id && others.marks != seen.marks, "{kind:?}");
    }
    Ok(())
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Memberships count as a set, whatever their order; who has one more or less is another.
#[test]
fn files_are_for_exactly_the_same_partitions() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    ensure!(create(&world, "south", EVE)?.1.is_none(), "of another partition");
    ensure!(create(&world, "both", "two-of-both")?.1.is_none(), "of one partition more");
    let taken = create(&world, "twins", "twin-of-both")?.1.context("a file for both regions is made")?;
    ensure!(taken.rows == 2 + 600 + 600, "{taken:?}");
    ensure!(world.diff("twins")?.is_equal(false));
    ensure!(create(&world, "again", CAT)?.1.is_some_and(|taken| taken.rows == 602), "the first is there still");
    Ok(())
}
