//! Parents that move at the consolidated database, and what is made or waits below them here.

use anyhow::Result;
use headwater_remote::Choice;
use headwater_tests::KINDS;

use super::{ids, world};

/// A parent moves at the centre and its old partition's membership ends, while something is made below it here. That is taken where the
/// parent is by then, and stays here though the partition in which it was made goes.
#[test]
fn what_is_made_below_a_row_that_moves_stays() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ann = world.remote("ann", "ann")?;
        world.sync(&mut ann)?;
        world.edit(
            "ann",
            "INSERT INTO orders VALUES ('n9', 'n', 'mine'); INSERT INTO line VALUES ('n91', 'n9', 1), ('n19', 'n1', 2); \
             UPDATE line SET n = 7 WHERE id = 'n11'",
        )?;
        world.central.execute(
            "UPDATE shop SET region = 'south' WHERE id = 'n'; DELETE FROM member WHERE user_name = 'ann' AND region = 'north'",
        )?;
        let report = world.sync(&mut ann)?;
        assert_eq!((report.changes_up, report.refused), (4, 0), "{kind:?}");
        assert_eq!(ids(&world, "ann", "orders")?, "n1 n9 s1", "{kind:?}");
        assert_eq!(ids(&world, "ann", "line")?, "n11 n12 n19 n91 s11", "{kind:?}");
        let report = world.diff("ann")?;
        assert!(report.is_equal(false), "{kind:?}: {report:?}");
    }
    Ok(())
}

/// The same at a fresh start, where a change of a row below it is set aside.
#[test]
fn what_is_set_aside_below_a_row_that_moves_stays() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ann = world.remote("ann", "ann")?;
        world.sync(&mut ann)?;
        world.edit("ann", "UPDATE line SET n = 1000 WHERE id = 'n11'; INSERT INTO line VALUES ('n19', 'n1', 1000)")?;
        assert_eq!(world.sync(&mut ann)?.refused, 2, "{kind:?}");
        ann.reset()?;
        world.central.execute(
            "UPDATE shop SET region = 'south' WHERE id = 'n'; DELETE FROM member WHERE user_name = 'ann' AND region = 'north'",
        )?;
        world.sync(&mut ann)?;
        let aside = ann.set_aside(10)?;
        assert!(
            aside.len() == 2 && aside.iter().all(|change| change.is_in_place && change.reason == "check"),
            "{aside:?}"
        );
        assert_eq!(ids(&world, "ann", "line")?, "n11 n12 n19 s11", "{kind:?}");
        let report = world.diff("ann")?;
        assert!(report.is_equal(true), "{kind:?}: {report:?}");
        ann.drop_set_aside(&Choice::All)?;
        let report = world.diff("ann")?;
        assert!(report.is_equal(false), "{kind:?}: {report:?}");
    }
    Ok(())
}
