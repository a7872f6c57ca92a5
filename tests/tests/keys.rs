//! Integer keys for rows made offline: ranges handed to each remote, topped up before they end, held to by the remote.

use std::collections::HashSet;

use anyhow::Result;
use headwater_remote::Remote;
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, text TEXT);";
const MODEL: &str = "name = \"items\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\nkey_range = { size = 10, from = 1000 }\n\
    [tables.item.columns]\nid = \"int not null\"\ntext = \"text\"\n";
const INSERT: &str = "INSERT INTO item (id, text) SELECT key, 'made offline' FROM hw_next_key WHERE \"table\" = 'item'";

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
