//! Partitions that are left, starts afresh, and deletions whose rows leave.

use anyhow::Result;
use headwater_remote::{Choice, Remote};
use headwater_tests::{KINDS, Kind};

use super::{aside, ids, pair, world};

/// Rows that are deleted here have left the remote's partition: that they go here too is not what the deletions asked for.
#[test]
fn deletions_are_not_forgotten_when_their_rows_leave() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        world.central.execute("UPDATE shop SET region = 'south' WHERE id IN ('m', 'n')")?;
        world.edit(
            "ben",
            "DELETE FROM line WHERE id = 'n11'; UPDATE line SET n = 9 WHERE id = 'n12'; DELETE FROM shop WHERE id = 'm'",
        )?;
        assert_eq!(world.sync(&mut ben)?.refused, 5, "{kind:?}: m with all below it, and two lines");
        let keys = |ben: &Remote| -> Result<Vec<String>> { Ok(aside(ben)?.into_iter().map(|(key, _)| key).collect()) };
        assert_eq!(keys(&ben)?, ["m", "m1", "m11", "n11", "n12"], "{kind:?}: {:?}", aside(&ben)?);

        world.central.execute("UPDATE shop SET region = 'north' WHERE id IN ('m', 'n')")?;
        world.sync(&mut ben)?;
        assert_eq!(keys(&ben)?, ["m", "m1", "m11", "n11", "n12"], "{kind:?}: {:?}", aside(&ben)?);
        assert_eq!(ben.retry(&Choice::All)?.changes, 5, "{kind:?}");
        let report = world.sync(&mut ben)?;
        assert_eq!((report.changes_up, report.refused), (5, 0), "{kind:?}: {:?}", aside(&ben)?);
        let stored = world.central.rows("SELECT id, n FROM line ORDER BY id")?;
        let expected = [["e11", "5"], ["n12", "9"], ["s11", "4"]].map(|row| row.map(|it| Some(it.to_owned())).to_vec());
        assert_eq!(stored, expected, "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
        assert_eq!(ben.status()?.held, 0, "{kind:?}");
    }
    Ok(())
}

/// A deletion has arrived, and the one of what was below is refused: by then that is elsewhere. The partition is left, and nobody says that
/// it is gone.
#[test]
fn what_was_below_a_row_that_is_deleted_on_both_sides_does_not_come_back() -> Result<()> {
    for kind in KINDS {
        for change in [
            "DELETE FROM shop WHERE id = 'm'",
            "UPDATE line SET n = 9 WHERE id = 'm11'; DELETE FROM shop WHERE id = 'm'",
        ] {
            let world = world(kind)?;
            let mut ben = world.remote("ben", "ben")?;
            world.sync(&mut ben)?;
            world.edit("ben", change)?;
            world.central.execute(
                "DELETE FROM orders WHERE id = 'm1'; INSERT INTO line VALUES ('m11', 's1', 7); \
                 DELETE FROM member WHERE user_name = 'ben'",
            )?;
            world.sync(&mut ben)?;
            let listed = aside(&ben)?;
            assert!(listed.iter().any(|(key, _)| key == "m11"), "{kind:?}: {listed:?}");
            ben.drop_set_aside(&Choice::All)?;
            assert_eq!(ids(&world, "ben", "line")?, "", "{kind:?}");
            assert_eq!(ben.status()?.held, 0, "{kind:?}");
        }
    }
    Ok(())
}

/// Rows with changes that were refused come back into a partition of the remote's, as they were, while it leaves the one that they were in.
#[test]
fn what_comes_back_elsewhere_is_not_taken_for_gone() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        world.central.execute("INSERT INTO member VALUES ('ben', 'south')")?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        world.edit("ben", "UPDATE orders SET note = 'mine' WHERE id = 'm1'; UPDATE line SET n = 9 WHERE id = 'm11'")?;
        world.central.execute("UPDATE orders SET shop = 'e' WHERE id = 'm1'")?;
        assert_eq!(world.sync(&mut ben)?.refused, 2, "{kind:?}");
        world.central.execute(
            "UPDATE orders SET shop = 's' WHERE id = 'm1'; DELETE FROM member WHERE user_name = 'ben' AND region = 'north'",
        )?;
        world.sync(&mut ben)?;
        assert!(world.diff("ben")?.is_equal(true), "{kind:?}: {:?}", aside(&ben)?);
        ben.drop_set_aside(&Choice::All)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 s11", "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// Changes wait, and rows are held beside them. A fresh start finds that their partition is not the remote's any more.
#[test]
fn a_fresh_start_keeps_nothing_of_a_partition_that_is_left() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        world.edit("ben", "INSERT INTO shop VALUES ('x', 'east', ''); INSERT INTO line VALUES ('x11', 'n1', 1000)")?;
        assert_eq!(world.sync(&mut ben)?.refused, 2, "{kind:?}");
        world
            .central
            .execute("INSERT INTO shop VALUES ('x', 'north', 'theirs'); INSERT INTO line VALUES ('x11', 'm1', 1)")?;
        world.sync(&mut ben)?;
        assert_eq!(ben.status()?.held, 2, "{kind:?}");
        world.edit(
            "ben",
            "UPDATE shop SET note = 'mine' WHERE id = 'n'; DELETE FROM shop WHERE id = 'm'; UPDATE line SET n = 7 WHERE id = 'n12'",
        )?;

        ben.reset()?;
        world.central.execute("DELETE FROM member WHERE user_name = 'ben'")?;
        let report = world.sync(&mut ben)?;
        assert!(report.refused > 0, "{kind:?}: {report:?}");
        let keys: Vec<String> = aside(&ben)?.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["m", "m1", "m11", "n", "n12", "x", "x11"], "{kind:?}: {:?}", aside(&ben)?);
        ben.drop_set_aside(&Choice::All)?;
        assert_eq!(ids(&world, "ben", "shop")? + &ids(&world, "ben", "line")?, "", "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
        assert_eq!(ben.status()?.held, 0, "{kind:?}");
    }
    Ok(())
}

/// The tables are empty, for all was deleted here, when a fresh start finds that the membership has ended.
#[test]
fn deletions_alone_are_kept_too_when_the_partition_is_left() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        ben.reset()?;
        world.edit("ben", "DELETE FROM shop")?;
        world.central.execute(
            "INSERT INTO line VALUES ('n13', 'n1', 1); DELETE FROM member WHERE user_name = 'ben' AND region = 'north'",
        )?;
        assert_eq!(world.sync(&mut ben)?.refused, 7, "{kind:?}");
        let below = ben.set_aside(10)?.into_iter().filter(|change| change.table != "shop");
        assert!(below.map(|change| change.is_in_place).eq([false; 5]), "{kind:?}: {:?}", ben.set_aside(10)?);
        world.central.execute("INSERT INTO member VALUES ('ben', 'north')")?;
        for _ in 0..2 {
            world.sync(&mut ben)?;
        }
        let report = world.diff("ben")?;
        assert!(report.is_equal(true), "{kind:?}: {report:?}");
        ben.drop_set_aside(&Choice::All)?;
        let report = world.diff("ben")?;
        assert!(report.is_equal(false), "{kind:?}: {report:?}");
        assert_eq!(ids(&world, "ben", "line")?, "m11 n11 n12 n13", "{kind:?}");
    }
    Ok(())
}

/// Deletions are refused; then the centre deletes the same rows, and makes some of them again, with another below. That one comes down,
/// and the deletions of those above it give way, though they were the centre's too for a while.
#[test]
fn deletions_give_way_to_rows_that_are_made_again() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        for table in ["shop", "orders", "line"] {
            world.central.execute(&match kind {
                Kind::Sqlite => format!(
                    "CREATE TRIGGER keep_{table} BEFORE DELETE ON {table} \
                     WHEN EXISTS (SELECT 1 FROM headwater_actor WHERE user_name IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'no'); END"
                ),
                Kind::Postgres => format!(
                    "CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                     IF current_setting('headwater.user', true) <> '' THEN RAISE EXCEPTION 'no'; END IF; RETURN OLD; END $$; \
                     CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION keep()"
                ),
            })?;
        }
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        world.edit("ben", "DELETE FROM shop WHERE id = 'n'")?;
        assert_eq!(world.sync(&mut ben)?.refused, 4, "{kind:?}");
        world.central.execute("DELETE FROM shop WHERE id = 'n'")?;
        assert_eq!(world.sync(&mut ben)?.held, 4, "{kind:?}");
        world.central.execute(
            "INSERT INTO shop VALUES ('n', 'north', ''); INSERT INTO orders VALUES ('n1', 'n', ''); \
             INSERT INTO line VALUES ('n13', 'n1', 1)",
        )?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 n13", "{kind:?}");
        assert_eq!(ids(&world, "ben", "orders")?, "m1 n1", "{kind:?}");
        let report = world.diff("ben")?;
        assert!(report.is_equal(true), "{kind:?}: {report:?}");
        ben.drop_set_aside(&Choice::All)?;
        let report = world.diff("ben")?;
        assert!(report.is_equal(false), "{kind:?}: {report:?}");
    }
    Ok(())
}

/// Leaving a partition, or having it anew, takes everything below its rows along, whatever is pending there.
#[test]
fn a_partition_that_is_left_leaves_nothing_behind() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        world.central.execute("INSERT INTO member VALUES ('ben', 'south')")?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        // A parent deleted with what is below it, one that moves to the other side, one that is new, and a line that changes.
        world.edit(
            "ben",
            "DELETE FROM orders WHERE id = 'm1'; UPDATE shop SET region = 'south' WHERE id = 'n'; \
                           INSERT INTO shop VALUES ('x', 'north', ''); INSERT INTO orders VALUES ('x1', 'x', ''); \
                           INSERT INTO line VALUES ('x11', 'x1', 1); UPDATE line SET n = 9 WHERE id = 'n11'",
        )?;
        world.central.execute("DELETE FROM member WHERE user_name = 'ben' AND region = 'north'; UPDATE shop SET note = 'new' WHERE id = 'n'")?;
        world.sync(&mut ben)?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "shop")?, "s", "{kind:?}: {:?}", aside(&ben)?);
        assert_eq!(
            (ids(&world, "ben", "orders")?, ids(&world, "ben", "line")?),
            ("s1".to_owned(), "s11".to_owned()),
            "{kind:?}"
        );
        let set_aside: Vec<String> = aside(&ben)?.into_iter().map(|(id, _)| id).collect();
        assert_eq!(set_aside, ["m1", "m11", "n", "n11", "x", "x1", "x11"], "{kind:?}");
        let held = world.rows("ben", "SELECT count(*) FROM hw_held")?;
        assert_eq!(held, [[Some("0".to_owned())]], "{kind:?}");
        // Back again: everything comes, and what was set aside is on the list alone.
        world.central.execute("INSERT INTO member VALUES ('ben', 'north')")?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 n11 n12 s11", "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// What a remote that starts afresh held of parents that are gone since goes too.
#[test]
fn starting_afresh_leaves_nothing_behind() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ann = world.remote("ann", "ann")?;
        world.sync(&mut ann)?;
        world
            .edit("ann", "UPDATE line SET n = 50 WHERE id = 'm11'; UPDATE orders SET note = 'mine' WHERE id = 's1'")?;
        world.central.execute("DELETE FROM shop WHERE id = 'n'; UPDATE shop SET region = 'east' WHERE id = 's'; UPDATE shop SET region = 'south' WHERE id = 'm'")?;
        ann.reset()?;
        world.sync(&mut ann)?;
        world.sync(&mut ann)?;
        assert_eq!(
            (ids(&world, "ann", "orders")?, ids(&world, "ann", "line")?),
            ("m1".to_owned(), "m11".to_owned()),
            "{kind:?}"
        );
        assert_eq!(aside(&ann)?, [pair("s1", "foreign_key")], "{kind:?}: its shop is gone");
        ann.drop_set_aside(&Choice::All)?;
        world.sync(&mut ann)?;
        assert!(world.diff("ann")?.is_equal(false), "{kind:?}: {:?}", world.diff("ann")?);
    }
    Ok(())
}
