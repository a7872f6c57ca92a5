//! Parents that are moved while change tracking is off at a remote, and partitions that it leaves then. What is below them is tracked.

use anyhow::Result;
use headwater_remote::{Choice, Remote};
use headwater_tests::{KINDS, World};

use super::{aside, ids, world};

/// Moves a row without a trace.
fn moved_untracked(world: &World, table: &str, sql: &str) -> Result<Remote> {
    world.untrack("ben", table)?;
    world.edit("ben", sql)?;
    Ok(Remote::open(world.path("ben"))?)
}

/// A shop that the database has in the north stands in the south here when the north is left: orders and lines below it are not this
/// remote's any more, though by what stands here they are.
#[test]
fn nothing_stays_below_a_parent_that_was_moved_out_of_a_partition_that_is_left() -> Result<()> {
    for kind in KINDS {
        let (shop, order) = (
            ("shop", "n", "UPDATE shop SET region = 'south' WHERE id = 'n'"),
            ("orders", "n1", "UPDATE orders SET shop = 's' WHERE id = 'n1'"),
        );
        for ((table, moved, sql), below) in [
            (shop, ""),
            (order, ""),
            (order, "UPDATE line SET n = 9 WHERE id = 'n11'; INSERT INTO line VALUES ('n13', 'n1', 3)"),
            (shop, "UPDATE line SET n = 9 WHERE id = 'n11'; UPDATE orders SET note = 'mine' WHERE id = 'n1'"),
            (
                shop,
                "DELETE FROM line WHERE id = 'n12'; INSERT INTO line VALUES ('n13', 'n1', 3); \
                 INSERT INTO orders VALUES ('n2', 'n', ''); INSERT INTO line VALUES ('n21', 'n2', 1)",
            ),
            (shop, "UPDATE line SET orders = 's1' WHERE id = 'n11'; UPDATE orders SET shop = 'n' WHERE id = 's1'"),
        ] {
            let world = world(kind)?;
            world.central.execute("INSERT INTO member VALUES ('ben', 'south')")?;
            let mut ben = world.remote("ben", "ben")?;
            world.sync(&mut ben)?;
            drop(ben);
            let mut ben = moved_untracked(&world, table, sql)?;
            world.edit("ben", below)?;
            world.central.execute("DELETE FROM member WHERE user_name = 'ben' AND region = 'north'")?;
            world.sync(&mut ben)?;
            world.sync(&mut ben)?;
            let listed = aside(&ben)?;
            assert!(
                listed.iter().any(|(key, reason)| key == moved && reason == "untracked"),
                "{kind:?} {moved} {below}: {listed:?}"
            );
            let report = world.diff("ben")?;
            assert!(report.is_equal(true), "{kind:?} {moved} {below}: {report:?}");
            ben.drop_set_aside(&Choice::All)?;
            let rows = [ids(&world, "ben", "shop")?, ids(&world, "ben", "orders")?, ids(&world, "ben", "line")?];
            assert_eq!(rows, ["s", "s1", "s11"], "{kind:?} {moved} {below}: {listed:?}");
            assert!(world.diff("ben")?.is_equal(false), "{kind:?} {moved} {below}");
            assert_eq!(ben.status()?.held, 0, "{kind:?} {moved} {below}");
        }
    }
    Ok(())
}

/// The remote has no partition any more, and nothing comes. The table below may have been untracked too, since a change of it: its parents
/// are no guide to where the row of that change lay.
#[test]
fn all_below_it_goes_where_no_partition_is_left_over() -> Result<()> {
    for kind in KINDS {
        for (change, order, is_tracked) in [
            ("UPDATE orders SET note = 'mine'", "n1", false),
            ("DELETE FROM orders", "n1", false),
            ("UPDATE orders SET shop = 'm'", "n1", false),
            ("UPDATE orders SET note = 'mine'", "m1", true),
        ] {
            let world = world(kind)?;
            let mut ben = world.remote("ben", "ben")?;
            world.sync(&mut ben)?;
            drop(ben);
            world.edit("ben", &format!("{change} WHERE id = '{order}'"))?;
            if !is_tracked {
                world.untrack("ben", "orders")?;
            }
            let mut ben = moved_untracked(&world, "shop", "UPDATE shop SET region = 'south' WHERE id = 'n'")?;
            world.central.execute("DELETE FROM member WHERE user_name = 'ben'")?;
            world.sync(&mut ben)?;
            world.sync(&mut ben)?;
            let listed = aside(&ben)?;
            let is_listed = |id| listed.iter().any(|(key, _)| key == id);
            assert!(is_listed("n") && is_listed(order), "{kind:?} {change}: {listed:?}");
            ben.drop_set_aside(&Choice::All)?;
            let rows = [ids(&world, "ben", "shop")?, ids(&world, "ben", "orders")?, ids(&world, "ben", "line")?];
            assert_eq!(rows.concat(), "", "{kind:?} {change}: {listed:?}");
            assert_eq!(ben.status()?.held, 0, "{kind:?} {change}");
        }
    }
    Ok(())
}

/// The other way round: the database has it in the south, and it stands in the north here, which is left. What is below it comes back.
#[test]
fn all_stays_below_a_parent_that_was_moved_into_a_partition_that_is_left() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        world.central.execute("INSERT INTO member VALUES ('ben', 'south')")?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        drop(ben);
        let mut ben = moved_untracked(&world, "shop", "UPDATE shop SET region = 'north' WHERE id = 's'")?;
        world.edit("ben", "INSERT INTO line VALUES ('s12', 's1', 3); UPDATE line SET n = 9 WHERE id = 's11'")?;
        world.central.execute("DELETE FROM member WHERE user_name = 'ben' AND region = 'north'")?;
        world.sync(&mut ben)?;
        let report = world.diff("ben")?;
        assert!(report.is_equal(true), "{kind:?}: {report:?} {:?}", aside(&ben)?);
        ben.drop_set_aside(&Choice::All)?;
        world.sync(&mut ben)?;
        let rows = [ids(&world, "ben", "shop")?, ids(&world, "ben", "orders")?];
        assert_eq!(rows, ["s", "s1"], "{kind:?}: {:?}", aside(&ben)?);
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
        assert_eq!(ben.status()?.held, 0, "{kind:?}");
    }
    Ok(())
}
