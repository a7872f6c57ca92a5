//! How long a file is kept, and when it goes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater_consolidated::system::{self, PurgeRequest};
use headwater_protocol::client::ReadyAnswer;
use headwater_testkit::wait_until;
use headwater_tests::{Central, KINDS, Kind};

use super::{ANN, BOB, CAT, ask_file, create, get, hello, promised, warm, world};

const PURGED_WITHIN: Duration = Duration::from_mins(1);

/// Many want the same at once: one file is made, for all but the first that asked.
#[test]
fn a_file_is_made_once() -> Result<()> {
    let world = world(Kind::Postgres, 4_000)?;
    ensure!(create(&world, "first", ANN)?.1.is_none());
    let given = std::thread::scope(|scope| {
        let others: Vec<_> = (1..=6)
            .map(|number: u8| {
                let world = &world;
                scope.spawn(move || promised(world, if number.is_multiple_of(2) { BOB } else { CAT }, number))
            })
            .collect();
        others.into_iter().map(|other| other.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    ensure!(given.len() == 6 && given.iter().all(|(file, _)| file.digest == given[0].0.digest), "several were made");
    let notes = world.central.rows("SELECT count(*) FROM headwater.note")?;
    ensure!(notes == [[Some("2".to_owned())]], "one note at the beginning, one for the file: {notes:?}");
    Ok(())
}

/// The same remote that asks again is not another.
#[test]
fn who_asks_twice_is_one() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    for _ in 0..3 {
        ensure!(ask_file(&world, ANN, &hello(&world, 1))? == ReadyAnswer::None);
    }
    promised(&world, ANN, 2).map(drop)
}

/// A database that was put back from a backup, and has gone on since, is not the one that the file was read from.
#[test]
fn a_database_that_was_put_back_takes_its_files_with_it() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 600)?;
        warm(&world, ANN, BOB)?;
        let (file, _) = promised(&world, CAT, 7)?;
        // What a backup from before lacks.
        let note = if kind == Kind::Sqlite { "headwater_note" } else { "headwater.note" };
        world.central.execute(&format!("DELETE FROM {note} WHERE number = (SELECT max(number) FROM {note})"))?;
        ensure!(get(&world, CAT, 7, &file, 0)?.0 == 410, "{kind:?}: a promise of before");
        ensure!(ask_file(&world, CAT, &hello(&world, 8))? == ReadyAnswer::None, "{kind:?}: a file of before");
        ensure!(promised(&world, CAT, 9)?.0.digest != [0; 32], "{kind:?}: another is made when others want it");
    }
    Ok(())
}

/// Of a file that is older than the horizon nobody can tell what has changed since.
#[test]
fn a_file_below_the_horizon_goes() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 600)?;
        warm(&world, ANN, BOB)?;
        let mut connection = world.central.backend()?.connect()?;
        world.central.execute("UPDATE item SET body = 'later' WHERE id = 2; DELETE FROM item WHERE id = 4")?;
        let purge = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };
        // In a cluster that others use, what they have open holds the horizon back for a moment.
        let mut purge_and_ask = || {
            system::take_note(&mut *connection)?;
            system::purge(&mut *connection, &purge, &mut || true)?;
            anyhow::Ok(ask_file(&world, CAT, &hello(&world, 8))? == ReadyAnswer::None)
        };
        ensure!(wait_until(PURGED_WITHIN, || purge_and_ask().expect("an answer")), "{kind:?}: it is below the horizon");
        let (mut remote, taken) = create(&world, "next", CAT)?;
        ensure!(taken.is_some(), "{kind:?}: another is made");
        world.sync(&mut remote)?;
        ensure!(world.diff("next")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// A new incarnation has files of its own.
#[test]
fn another_incarnation_has_other_files() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    let (file, _) = promised(&world, CAT, 7)?;
    world.central.execute("UPDATE headwater_identity SET incarnation = randomblob(16)")?;
    ensure!(get(&world, CAT, 7, &file, 0)?.0 == 410, "a promise of the other");
    ensure!(ask_file(&world, CAT, &hello(&world, 8))? == ReadyAnswer::None, "nothing of the other");
    Ok(())
}

/// The room that files have holds: what was given longest ago goes, and what is larger than it is not kept.
#[test]
fn the_bound_in_bytes_holds() -> Result<()> {
    let mut world = world(Kind::Sqlite, 8_000)?;
    // As it is kept.
    let one = warm(&world, ANN, BOB)?.bytes_down;
    world.config.ready_bytes_max = one * 5 / 2;
    world.start_server()?;
    warm(&world, ANN, BOB).err().context("the names are taken")?;
    ensure!(ask_file(&world, ANN, &hello(&world, 11))? == ReadyAnswer::None, "a server begins with none");
    promised(&world, CAT, 12)?;
    // Both regions take more than one, and so the first goes.
    ask_file(&world, "two-of-both", &hello(&world, 13))?;
    promised(&world, "twin-of-both", 14)?;
    ensure!(ask_file(&world, CAT, &hello(&world, 15))? == ReadyAnswer::None, "the one that was given longest ago went");
    world.config.ready_bytes_max = one * 7 / 8;
    world.start_server()?;
    for number in 20..23 {
        ensure!(ask_file(&world, ANN, &hello(&world, number))? == ReadyAnswer::None, "it is larger than all room");
    }
    world.config.ready_bytes_max = 0;
    world.start_server()?;
    for number in 30..33 {
        ensure!(ask_file(&world, ANN, &hello(&world, number))? == ReadyAnswer::None, "none are to be made");
    }
    Ok(())
}

/// Few rows are not worth a file; and one grows old.
#[test]
fn small_ones_are_not_made_and_old_ones_go() -> Result<()> {
    let mut world = world(Kind::Sqlite, 600)?;
    world.config.ready_bytes_min = 1 << 20;
    world.start_server()?;
    for number in 1..4 {
        ensure!(ask_file(&world, ANN, &hello(&world, number))? == ReadyAnswer::None, "a small one");
    }
    world.config.ready_bytes_min = 0;
    world.config.ready_ms_max = 1_000;
    world.start_server()?;
    let made = wait_until(Duration::from_mins(1), || {
        let _ = ask_file(&world, ANN, &hello(&world, 4));
        matches!(ask_file(&world, ANN, &hello(&world, 5)), Ok(ReadyAnswer::File(..)))
    });
    ensure!(made, "none was made");
    let gone = wait_until(Duration::from_mins(1), || {
        matches!(ask_file(&world, ANN, &hello(&world, 6)), Ok(ReadyAnswer::None))
    });
    ensure!(gone, "it stays");
    let Central::Sqlite(path) = &world.central else { anyhow::bail!("a file") };
    ensure!(path.is_file());
    Ok(())
}
