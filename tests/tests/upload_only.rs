//! Rows of a table that only goes up, below others that come and go. Nothing of it comes down: where a row can't stay, it goes, and what
//! may not have gone up is on the list.

use anyhow::Result;
use headwater_remote::{Choice, PendingChoice, Remote};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE member (user_name TEXT NOT NULL, region TEXT NOT NULL, PRIMARY KEY (user_name, region)); \
    INSERT INTO member VALUES ('anna', 'north'); \
    CREATE TABLE shop (id TEXT NOT NULL PRIMARY KEY, region TEXT); \
    CREATE TABLE visit (id TEXT NOT NULL PRIMARY KEY, shop TEXT REFERENCES shop (id) ON DELETE CASCADE, text TEXT); \
    INSERT INTO shop VALUES ('a', 'north'), ('b', 'north');";

const MODEL: &str = r#"
name = "visits"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.shop]
key = ["id"]
partition = "region"
columns = { id = "text not null", region = "text" }
[tables.visit]
key = ["id"]
direction = "upload"
partition = { through = "shop" }
references = [{ columns = ["shop"], table = "shop", on_delete = "cascade" }]
columns = { id = "text not null", shop = "text", text = "text" }
"#;

const NAME: &str = "anna";

/// A remote that has synced, and made two visits.
fn visited(kind: Kind) -> Result<(World, Remote)> {
    let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
    let mut remote = world.remote(NAME, NAME)?;
    world.sync(&mut remote)?;
    world.edit(NAME, "INSERT INTO visit VALUES ('a1', 'a', 'x'), ('b1', 'b', 'y')")?;
    Ok((world, remote))
}

fn ids(rows: Vec<Vec<Option<String>>>) -> String {
    rows.into_iter().flatten().flatten().collect::<Vec<_>>().join(" ")
}

fn here(world: &World, table: &str) -> Result<String> {
    Ok(ids(world.rows(NAME, &format!("SELECT id FROM {table} ORDER BY id"))?))
}

fn listed(remote: &Remote) -> Result<Vec<String>> {
    let mut list: Vec<String> =
        remote.set_aside(10)?.into_iter().map(|it| format!("{} {} {}", it.key, it.reason, it.is_in_place)).collect();
    list.sort();
    Ok(list)
}

#[test]
fn what_has_gone_up_goes_with_what_it_refers_to() -> Result<()> {
    for kind in KINDS {
        for gone in ["UPDATE shop SET region = 'south' WHERE id = 'a'", "DELETE FROM shop WHERE id = 'a'"] {
            let (world, mut remote) = visited(kind)?;
            world.sync(&mut remote)?;
            world.central.execute(gone)?;
            for _ in 0..2 {
                let report = world.sync(&mut remote)?;
                assert_eq!(
                    (report.held, report.not_stored, report.displaced),
                    (0, 0, 0),
                    "{kind:?} {gone}: {report:?}"
                );
            }
            assert_eq!(here(&world, "visit")?, "b1", "{kind:?} {gone}");
            assert_eq!((remote.status()?.held, listed(&remote)?.len()), (0, 0), "{kind:?} {gone}");
            let there = ids(world.central.rows("SELECT id FROM visit ORDER BY id")?);
            assert_eq!(there, if gone.starts_with("UPDATE") { "a1 b1" } else { "b1" }, "{kind:?}");
        }
    }
    Ok(())
}

/// Tracking was off when it was written, so nobody knows whether it has gone up: the list keeps it, and it goes up when it is asked for.
#[test]
fn what_may_not_have_gone_up_stays_on_the_list() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = visited(kind)?;
        world.sync(&mut remote)?;
        world.untrack(NAME, "visit")?;
        world.edit(NAME, "INSERT INTO visit VALUES ('a2', 'a', 'untracked')")?;
        world.central.execute("UPDATE shop SET region = 'south' WHERE id = 'a'")?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.perhaps_unsent, report.not_stored), (3, 0), "{kind:?}: {report:?}");
        assert_eq!(here(&world, "visit")?, "b1", "{kind:?}");
        let expected = ["a1", "a2", "b1"].map(|id| format!(r#"{{"id":"{id}"}} untracked false"#));
        assert_eq!(listed(&remote)?, expected, "{kind:?}");

        world.central.execute("UPDATE shop SET region = 'north' WHERE id = 'a'")?;
        world.sync(&mut remote)?;
        assert_eq!(remote.retry(&Choice::All)?.changes, 3, "{kind:?}");
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused, report.conflicts), (3, 0, 0), "{kind:?}: {report:?}");
        assert_eq!(ids(world.central.rows("SELECT id FROM visit ORDER BY id")?), "a1 a2 b1", "{kind:?}");
        assert_eq!(here(&world, "visit")?, "a1 a2 b1", "{kind:?}");
    }
    Ok(())
}

/// A shop that was made without tracking is dropped, alone or with the visit below it.
#[test]
fn what_is_dropped_takes_along_what_has_gone_up() -> Result<()> {
    for kind in KINDS {
        for is_alone in [true, false] {
            let (world, mut remote) = visited(kind)?;
            world.sync(&mut remote)?;
            world.untrack(NAME, "visit")?;
            world.untrack(NAME, "shop")?;
            world.edit(
                NAME,
                "INSERT INTO shop VALUES ('c', 'north'); INSERT INTO visit VALUES ('c1', 'c', 'untracked')",
            )?;
            world.sync(&mut remote)?;
            world.sync(&mut remote)?;
            assert_eq!(here(&world, "visit")?, "a1 b1 c1", "{kind:?}: its shop has only been compared");
            let report = world.diff(NAME)?;
            assert!(
                !report.is_equal(false) && report.is_equal(true),
                "{kind:?}: what is on the list explains it: {report:?}"
            );
            let choice = if is_alone { Choice::Table("shop".to_owned()) } else { Choice::All };
            assert_eq!(
                remote.drop_set_aside(&choice)?,
                if is_alone { 1 } else { 4 },
                "{kind:?}: {:?}",
                listed(&remote)?
            );
            assert_eq!(
                (here(&world, "shop")?, here(&world, "visit")?),
                ("a b".to_owned(), "a1 b1".to_owned()),
                "{kind:?}"
            );
            let left = listed(&remote)?;
            let c1 = r#"{"id":"c1"} untracked false"#.to_owned();
            assert_eq!(left.contains(&c1), is_alone, "{kind:?}: what was not given up stays on the list: {left:?}");
        }
    }
    Ok(())
}

/// The shop stands in a partition that is left, without a trace; in truth it is elsewhere, and comes back with the same sync.
#[test]
fn what_has_gone_up_stays_below_what_comes_back() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = visited(kind)?;
        world.central.execute("INSERT INTO member VALUES ('anna', 'south')")?;
        world.sync(&mut remote)?;
        world.untrack(NAME, "shop")?;
        world.edit(NAME, "UPDATE shop SET region = 'south' WHERE id = 'a'")?;
        world.central.execute("DELETE FROM member WHERE region = 'south'")?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.not_stored, report.refused), (0, 0), "{kind:?}: {report:?}");
        assert_eq!((here(&world, "shop")?, here(&world, "visit")?), ("a b".to_owned(), "a1 b1".to_owned()), "{kind:?}");
        assert_eq!(remote.status()?.held, 0, "{kind:?}");
    }
    Ok(())
}

/// A database that the remote starts afresh with may be another one than its rows went up to.
#[test]
fn a_fresh_start_lists_what_goes() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = visited(kind)?;
        world.sync(&mut remote)?;
        world.central.execute("DELETE FROM shop WHERE id = 'a'")?;
        remote.reset()?;
        let report = world.sync(&mut remote)?;
        assert_eq!(report.displaced, 1, "{kind:?}: {report:?}");
        assert_eq!(here(&world, "visit")?, "b1", "{kind:?}");
        assert_eq!(listed(&remote)?, [r#"{"id":"a1"} foreign_key false"#], "{kind:?}");
        assert_eq!(remote.set_aside(1)?[0].new.as_deref(), Some(r#"{"id":"a1","shop":"a","text":"x"}"#), "{kind:?}");
    }
    Ok(())
}

/// The shop is gone but for a change of it that was refused. An application writes visits as they were.
#[test]
fn what_goes_with_what_is_dropped_is_not_deleted_for_others() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = visited(kind)?;
        world.sync(&mut remote)?;
        world.edit(NAME, "UPDATE shop SET region = 'west' WHERE id = 'a'")?;
        assert_eq!(world.sync(&mut remote)?.refused, 1, "{kind:?}: she is no member there");
        world.central.execute("UPDATE shop SET region = 'south' WHERE id = 'a'")?;
        world.sync(&mut remote)?;
        world.edit(NAME, "UPDATE visit SET text = text")?;
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 1, "{kind:?}");
        assert_eq!((here(&world, "shop")?, here(&world, "visit")?), ("b".to_owned(), "b1".to_owned()), "{kind:?}");
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused, report.held), (0, 0, 0), "{kind:?}: {report:?}");
        assert_eq!(ids(world.central.rows("SELECT id FROM visit ORDER BY id")?), "a1 b1", "{kind:?}");
    }
    Ok(())
}

/// A shop that waits to be sent is given up before anybody has seen that a visit to it was made without tracking.
#[test]
fn what_was_made_untracked_is_listed_when_what_it_refers_to_is_dropped() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = visited(kind)?;
        world.sync(&mut remote)?;
        world.edit(NAME, "INSERT INTO shop VALUES ('c', 'north')")?;
        world.untrack(NAME, "visit")?;
        world.edit(NAME, "INSERT INTO visit VALUES ('c1', 'c', 'untracked')")?;
        assert_eq!(remote.drop_pending(&PendingChoice::All)?, 1, "{kind:?}");
        assert_eq!(here(&world, "visit")?, "a1 b1", "{kind:?}");
        let expected = ["a1", "b1", "c1"].map(|id| format!(r#"{{"id":"{id}"}} untracked false"#));
        assert_eq!(listed(&remote)?, expected, "{kind:?}");
    }
    Ok(())
}
