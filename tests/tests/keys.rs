//! Integer keys for rows made offline: ranges handed to each remote, topped up before they end, held to by the remote.

use std::collections::HashSet;

use anyhow::Result;
use headwater_remote::Remote;
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, text TEXT);";
const MODEL: &str = "name = \"items\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\nkey_range = { size = 10, from = 1000 }\n\
    [tables.item.columns]\nid = \"int not null\"\ntext = \"text\"\n";
const INSERT: &str = "INSERT INTO item (id, text) SELECT key, 'made offline' FROM hw_next_key WHERE \"table\" = 'item'";
const NEXT: &str = "SELECT key FROM hw_next_key";

fn next(key: i64) -> [[Option<String>; 1]; 1] {
    [[Some(key.to_string())]]
}

fn world(kind: Kind) -> Result<(World, Remote, Remote)> {
    let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
    let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
    world.sync(&mut one)?;
    world.sync(&mut two)?;
    Ok((world, one, two))
}

fn ranges(world: &World) -> Result<Vec<(i64, i64)>> {
    let table = if matches!(world.central, headwater_tests::Central::Sqlite(_)) {
        "headwater_key_range"
    } else {
        "headwater.key_range"
    };
    let rows = world.central.rows(&format!("SELECT first_key, last_key FROM {table} ORDER BY first_key"))?;
    let number = |cell: &Option<String>| -> Result<i64> { Ok(cell.as_deref().unwrap_or_default().parse()?) };
    rows.iter().map(|row| Ok((number(&row[0])?, number(&row[1])?))).collect()
}

#[test]
fn rows_made_offline_never_meet_on_one_key() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, mut two) = world(kind)?;
        assert_eq!(ranges(&world)?, [(1000, 1009), (1010, 1019)], "{kind:?}");
        for _ in 0..5 {
            for name in ["one", "two"] {
                for _ in 0..5 {
                    world.edit(name, INSERT)?;
                }
            }
            assert_eq!(world.sync(&mut one)?.refused, 0);
            assert_eq!(world.sync(&mut two)?.refused, 0);
        }
        world.sync(&mut one)?;
        let keys: HashSet<_> = world.central.rows("SELECT id FROM item")?.into_iter().collect();
        assert_eq!(keys.len(), 50, "{kind:?}: 2 x 5 x 5 keys, each once");
        assert!(world.diff("one")?.is_equal(false) && world.diff("two")?.is_equal(false), "{kind:?}");
        let left = ranges(&world)?;
        assert!(left.len() <= 12, "{kind:?}: no more ranges than were needed: {left:?}");
    }
    Ok(())
}

#[test]
fn a_remote_holds_to_its_ranges() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        world.central.execute("INSERT INTO item VALUES (7, 'the database''s own')")?;
        world.sync(&mut one)?;
        for outside in [
            "INSERT INTO item VALUES (1010, 'another''s')",
            "INSERT INTO item VALUES (8, 'nobody''s')",
            "INSERT INTO item (text) VALUES ('SQLite chooses')",
            "INSERT OR REPLACE INTO item VALUES (8, 'x')",
            "INSERT OR IGNORE INTO item VALUES (8, 'x')",
            "UPDATE item SET id = 8 WHERE id = 7",
        ] {
            let error = world.edit("one", outside).expect_err(outside);
            assert!(format!("{error:#}").contains("hw_next_key"), "{outside}: {error:#}");
        }
        // A row that is or was there keeps its key.
        world.edit("one", "INSERT OR REPLACE INTO item VALUES (7, 'replaced')")?;
        world.edit("one", "DELETE FROM item WHERE id = 7; INSERT INTO item VALUES (7, 'again')")?;
        world.edit("one", "INSERT INTO item VALUES (1003, 'chosen'); UPDATE item SET id = 1005 WHERE id = 1003")?;
        assert_eq!(world.rows("one", "SELECT key FROM hw_next_key")?, [[Some("1006".to_owned())]]);
        assert_eq!(world.sync(&mut one)?.refused, 0);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// A key is never used twice, whatever becomes of its row; and when none are left the next sync brings more.
#[test]
fn a_range_that_is_used_up_is_followed_by_another() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        for _ in 0..10 {
            world.edit("one", INSERT)?;
            world.edit("one", "DELETE FROM item")?;
        }
        assert_eq!(world.rows("one", "SELECT key FROM hw_next_key")?.len(), 0, "used up");
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", "SELECT key FROM hw_next_key")?, [[Some("1020".to_owned())]], "{kind:?}");
        // Those of the database itself that lie above are gone round.
        world.central.execute("INSERT INTO item VALUES (1033, 'no sequence should come here')")?;
        for _ in 0..10 {
            world.edit("one", INSERT)?;
        }
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", "SELECT key FROM hw_next_key")?, [[Some("1034".to_owned())]], "{kind:?}");
    }
    Ok(())
}

/// What was handed over is noted before it is sent: a hand-over that is lost is repeated, not followed by another.
#[test]
fn a_lost_hand_over_is_repeated() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        world.edit("one", "DELETE FROM hw_key_range")?;
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", "SELECT key FROM hw_next_key")?, [[Some("1000".to_owned())]], "{kind:?}");
        assert_eq!(ranges(&world)?.len(), 2);
    }
    Ok(())
}

/// The database was restored from before the hand-over: the remote keeps its range, and nobody else is given keys of it.
#[test]
fn a_database_that_forgot_a_range_learns_of_it_again() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, mut two) = world(kind)?;
        let table = if kind == Kind::Sqlite { "headwater_key_range" } else { "headwater.key_range" };
        world.central.execute(&format!("DELETE FROM {table}"))?;
        world.sync(&mut two)?;
        world.sync(&mut one)?;
        let mut three = world.remote("three", "ann")?;
        world.sync(&mut three)?;
        assert_eq!(ranges(&world)?, [(1000, 1009), (1010, 1019), (1020, 1029)], "{kind:?}");
        assert_eq!(world.rows("three", "SELECT key FROM hw_next_key")?, [[Some("1020".to_owned())]]);
    }
    Ok(())
}

/// A backup is put back, and another remote is first to ask for keys: it is given a range again. Whoever had it gets a further one.
#[test]
fn who_lost_a_range_to_another_gets_a_further_one() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        let table = if kind == Kind::Sqlite { "headwater_key_range" } else { "headwater.key_range" };
        for _ in 0..8 {
            world.edit("one", INSERT)?;
        }
        world.sync(&mut one)?;
        let given = ranges(&world)?;
        assert_eq!(given.last(), Some(&(1020, 1029)), "{kind:?}: its second range");
        // As in a backup from before that.
        world.central.execute(&format!("DELETE FROM {table} WHERE first_key = 1020"))?;
        let mut three = world.remote("three", "ann")?;
        world.sync(&mut three)?;
        assert_eq!(world.rows("three", NEXT)?, next(1020), "{kind:?}");
        for _ in 0..12 {
            world.edit("one", INSERT)?;
        }
        assert_eq!(world.rows("one", NEXT)?.len(), 0, "{kind:?}: all are used");
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?, next(1030), "{kind:?}");
        world.edit("one", INSERT)?;
        assert_eq!(world.sync(&mut one)?.refused, 0, "{kind:?}");
        world.sync(&mut one)?;
        assert_eq!(ranges(&world)?.len(), given.len() + 1, "{kind:?}: one");
    }
    Ok(())
}

/// The file was copied: before the copy has synced under a remote ID of its own, it uses the same keys.
#[test]
fn keys_that_a_copy_has_used_are_passed_over() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        world.central.execute("INSERT INTO item VALUES (7, 'the database''s own')")?;
        world.sync(&mut one)?;
        world.edit("one", "PRAGMA wal_checkpoint(TRUNCATE)")?;
        std::fs::copy(world.path("one"), world.path("copy"))?;
        let mut copy = Remote::open(world.path("copy"))?;
        // The original is the first to upload, and so the one that keeps the remote ID.
        world.edit("one", "UPDATE item SET text = 'changed' WHERE id = 7")?;
        world.sync(&mut one)?;
        for _ in 0..3 {
            world.edit("copy", INSERT)?;
        }
        assert!(world.sync(&mut copy)?.new_remote_id);
        assert_eq!(world.rows("copy", NEXT)?, next(1020), "{kind:?}: a range of its own");
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?, next(1003), "{kind:?}");
        for (name, remote) in [("one", &mut one), ("copy", &mut copy)] {
            world.edit(name, INSERT)?;
            let report = world.sync(remote)?;
            assert_eq!((report.refused, report.conflicts), (0, 0), "{kind:?}");
        }
        world.sync(&mut one)?;
        assert!(world.diff("one")?.is_equal(false) && world.diff("copy")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// The database itself writes keys of a remote's range, the next one too.
#[test]
fn keys_that_the_database_has_used_are_passed_over() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        world.central.execute("INSERT INTO item VALUES (1000, 'the database'), (1001, 'its'), (1003, 'own')")?;
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?, next(1002), "{kind:?}");
        world.edit("one", INSERT)?;
        assert_eq!(world.rows("one", NEXT)?, next(1004), "{kind:?}");
        // What the server is told is left counts from there: fewer than half of the range, and so comes the next.
        world.central.execute("INSERT INTO item VALUES (1004, 'and'), (1005, 'these')")?;
        world.sync(&mut one)?;
        world.sync(&mut one)?;
        assert_eq!(ranges(&world)?, [(1000, 1009), (1010, 1019), (1020, 1029)], "{kind:?}");
        assert_eq!(world.rows("one", "SELECT \"left\" FROM hw_next_key")?, [[Some("14".to_owned())]], "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_range_that_others_have_used_up_is_followed_by_another() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        let rows: Vec<String> = (1000..=1009).map(|id| format!("({id}, 'the database''s')")).collect();
        world.central.execute(&format!("INSERT INTO item VALUES {}", rows.join(", ")))?;
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?.len(), 0, "{kind:?}: used up");
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?, next(1020), "{kind:?}");
        world.edit("one", INSERT)?;
        assert_eq!(world.sync(&mut one)?.refused, 0);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// The application makes its table anew, as SQLite's manual tells it to, and goes on with the next keys before anybody has made its triggers
/// again.
#[test]
fn keys_that_were_used_while_tracking_was_off_are_passed_over() -> Result<()> {
    for kind in KINDS {
        let (world, mut one, _two) = world(kind)?;
        world.edit("one", INSERT)?;
        world.sync(&mut one)?;
        world.edit(
            "one",
            "PRAGMA foreign_keys = OFF; BEGIN; CREATE TABLE new_item (id INTEGER PRIMARY KEY, text TEXT, mine TEXT); \
             INSERT INTO new_item (id, text) SELECT id, text FROM item; DROP TABLE item; \
             ALTER TABLE new_item RENAME TO item; COMMIT",
        )?;
        world.edit("one", INSERT)?;
        world.edit("one", INSERT).expect_err("nobody has moved the range on");
        world.sync(&mut one)?;
        assert_eq!(world.rows("one", NEXT)?, next(1002), "{kind:?}");
        world.edit("one", INSERT)?;
        assert_eq!(world.sync(&mut one)?.refused, 0);
        assert_eq!(world.central.rows("SELECT id FROM item WHERE id = 1002")?.len(), 1, "{kind:?}");
    }
    Ok(())
}
