//! Tables that take their partition from the row that a foreign key refers to: order lines from their order, orders from their shop.
//!
//! `HEADWATER_PARENTS_SEED` repeats a run of the random story, `HEADWATER_PARENTS_STORIES` (3) makes it longer.

use anyhow::Result;
use headwater_remote::{Choice, Remote};
use headwater_testkit::Random;
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE member (user_name TEXT NOT NULL, region TEXT NOT NULL, PRIMARY KEY (user_name, region)); \
    INSERT INTO member VALUES ('ann', 'north'), ('ann', 'south'), ('ben', 'north'); \
    CREATE TABLE shop (id TEXT NOT NULL PRIMARY KEY, region TEXT, note TEXT); \
    CREATE TABLE orders (id TEXT NOT NULL PRIMARY KEY, shop TEXT REFERENCES shop (id) ON DELETE CASCADE, note TEXT); \
    CREATE TABLE line (id TEXT NOT NULL PRIMARY KEY, orders TEXT REFERENCES orders (id) ON DELETE CASCADE, n BIGINT CHECK (n < 100)); \
    CREATE INDEX line_orders ON line (orders); CREATE INDEX orders_shop ON orders (shop); \
    INSERT INTO shop VALUES ('n', 'north', ''), ('m', 'north', ''), ('s', 'south', ''), ('e', 'east', ''); \
    INSERT INTO orders VALUES ('n1', 'n', ''), ('m1', 'm', ''), ('s1', 's', ''), ('e1', 'e', ''); \
    INSERT INTO line VALUES ('n11', 'n1', 1), ('n12', 'n1', 2), ('m11', 'm1', 3), ('s11', 's1', 4), ('e11', 'e1', 5);";

const MODEL: &str = r#"
name = "shop"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.shop]
key = ["id"]
partition = "region"
columns = { id = "text not null", region = "text", note = "text" }
[tables.orders]
key = ["id"]
partition = { through = "shop" }
conflict = "merge(remote)"
references = [{ columns = ["shop"], table = "shop", on_delete = "cascade" }]
columns = { id = "text not null", shop = "text", note = "text" }
[tables.line]
key = ["id"]
partition = { through = "orders" }
conflict = "remote_wins"
references = [{ columns = ["orders"], table = "orders", on_delete = "cascade" }]
columns = { id = "text not null", orders = "text", n = "int" }
"#;

fn world(kind: Kind) -> Result<World> {
    World::new(kind, SCHEMA, MODEL, &["ann", "ben"])
}

fn ids(world: &World, remote: &str, table: &str) -> Result<String> {
    let rows = world.rows(remote, &format!("SELECT id FROM {table} ORDER BY id"))?;
    Ok(rows.into_iter().map(|row| row[0].clone().unwrap_or_default()).collect::<Vec<_>>().join(" "))
}

/// Key and reason of each change set aside, in the order of keys.
fn aside(remote: &Remote) -> Result<Vec<(String, String)>> {
    let id = |key: &str| key.trim_start_matches("{\"id\":\"").trim_end_matches("\"}").to_owned();
    let mut list: Vec<_> = remote.set_aside(100)?.into_iter().map(|change| (id(&change.key), change.reason)).collect();
    list.sort();
    Ok(list)
}

fn pair(key: &str, reason: &str) -> (String, String) {
    (key.to_owned(), reason.to_owned())
}

#[test]
fn what_is_below_a_row_goes_where_it_goes() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let (mut ann, mut ben) = (world.remote("ann", "ann")?, world.remote("ben", "ben")?);
        world.sync(&mut ann)?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ann", "line")?, "m11 n11 n12 s11", "{kind:?}");
        assert_eq!(ids(&world, "ben", "line")?, "m11 n11 n12", "{kind:?}");
        world
            .central
            .execute("UPDATE shop SET region = 'south' WHERE id = 'n'; UPDATE orders SET shop = 'm' WHERE id = 's1'")?;
        world.sync(&mut ann)?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ann", "line")?, "m11 n11 n12 s11", "{kind:?}");
        assert_eq!(ids(&world, "ben", "line")?, "m11 s11", "{kind:?}");
        // A remote moves them as well, and what it moves to where ben is comes to him.
        world.edit(
            "ann",
            "UPDATE shop SET region = 'north' WHERE id = 'n'; UPDATE line SET orders = 's1' WHERE id = 'm11'; \
                           INSERT INTO orders VALUES ('n2', 'n', ''); INSERT INTO line VALUES ('n21', 'n2', 9)",
        )?;
        let report = world.sync(&mut ann)?;
        assert_eq!((report.changes_up, report.refused), (4, 0), "{kind:?}");
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 n11 n12 n21 s11", "{kind:?}");
        world.central.execute("DELETE FROM shop WHERE id = 'n'")?;
        world.sync(&mut ann)?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 s11", "{kind:?}");
        for name in ["ann", "ben"] {
            assert!(world.diff(name)?.is_equal(false), "{kind:?} {name}");
        }
        for remote in [&mut ann, &mut ben] {
            let report = world.sync(remote)?;
            assert_eq!((report.rows_down, report.deletions_down), (0, 0), "{kind:?}: nothing twice");
        }
    }
    Ok(())
}

/// A user reaches for rows below a parent that is not his, by name, by moving them, or by moving their parent.
#[test]
fn rows_below_anothers_are_out_of_reach() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        // He knows the keys, and makes himself what is there.
        world.edit("ben", "PRAGMA foreign_keys = OFF; INSERT INTO line VALUES ('mine', 's1', 1), ('s11', 'n1', 1), ('no', 'none', 1); \
                           INSERT INTO orders VALUES ('e1', 'n', 'mine'), ('new', 'e', ''); UPDATE line SET orders = 'e1' WHERE id = 'n12'; \
                           UPDATE shop SET region = 'south' WHERE id = 'm'; UPDATE orders SET shop = 's' WHERE id = 'n1'")?;
        let report = world.sync(&mut ben)?;
        assert_eq!((report.changes_up, report.refused), (8, 8), "{kind:?}: {:?}", aside(&ben)?);
        let texts: Vec<String> = ben
            .set_aside(100)?
            .into_iter()
            .filter(|change| ["mine", "no"].iter().any(|id| change.key.contains(&format!("\"{id}\""))))
            .map(|change| change.message)
            .collect();
        assert_eq!(texts.len(), 2);
        assert_eq!(texts[0], texts[1], "{kind:?}: whether there is such an order he is not told");
        let stored = world.central.rows("SELECT id, orders, n FROM line ORDER BY id")?;
        assert_eq!(stored.len(), 5, "{kind:?}: {stored:?}");
        assert_eq!(stored[4][1].as_deref(), Some("s1"), "{kind:?}");
        ben.drop_set_aside(&Choice::All)?;
        world.sync(&mut ben)?;
        assert_eq!(ids(&world, "ben", "line")?, "m11 n11 n12", "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

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

/// A parent that is refused leaves what is below it waiting, and they go up together.
#[test]
fn what_is_below_a_refused_row_waits_with_it() -> Result<()> {
    for kind in KINDS {
        let world = world(kind)?;
        let mut ben = world.remote("ben", "ben")?;
        world.sync(&mut ben)?;
        world.edit(
            "ben",
            "INSERT INTO shop VALUES ('x', 'east', ''); INSERT INTO orders VALUES ('x1', 'x', ''); \
                           INSERT INTO line VALUES ('x11', 'x1', 1), ('n13', 'n1', 1)",
        )?;
        let report = world.sync(&mut ben)?;
        assert_eq!((report.changes_up, report.refused), (4, 3), "{kind:?}");
        assert_eq!(
            aside(&ben)?,
            [pair("x", "partition"), pair("x1", "dependent"), pair("x11", "dependent")],
            "{kind:?}"
        );
        world.edit("ben", "UPDATE shop SET region = 'north' WHERE id = 'x'")?;
        let report = world.sync(&mut ben)?;
        assert_eq!((report.changes_up, report.refused), (3, 0), "{kind:?}");
        assert!(world.diff("ben")?.is_equal(false), "{kind:?}");
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

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn a_random_story_on_sqlite() -> Result<()> {
    stories(Kind::Sqlite)
}

#[test]
fn a_random_story_on_postgresql() -> Result<()> {
    stories(Kind::Postgres)
}

/// Users, applications and memberships change what they like; in the end, what could not be had is dropped, and each remote holds its
/// part and nothing else.
fn stories(kind: Kind) -> Result<()> {
    let seeds = match setting("HEADWATER_PARENTS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("HEADWATER_PARENTS_STORIES").unwrap_or(3),
    };
    for seed in seeds {
        story(kind, seed).map_err(|error| error.context(format!("again with HEADWATER_PARENTS_SEED={seed}")))?;
    }
    Ok(())
}

fn story(kind: Kind, seed: u64) -> Result<()> {
    let mut random = Random::seeded(seed);
    let world = world(kind)?;
    let mut remotes = [("ann", world.remote("ann", "ann")?), ("ben", world.remote("ben", "ben")?)];
    let mut history = Vec::new();
    // A remote that starts afresh keeps what is pending in partitions that it has left meanwhile, so either the one or the other.
    let starts_afresh = seed.is_multiple_of(3);
    for _ in 0..60 {
        match random.below(10) {
            0 => {
                let (user, region) =
                    (["ann", "ben"][random.below(2) as usize], ["north", "south", "east"][random.below(3) as usize]);
                let sql = if starts_afresh || random.chance(50) {
                    format!("INSERT INTO member VALUES ('{user}', '{region}') ON CONFLICT DO NOTHING")
                } else {
                    format!("DELETE FROM member WHERE user_name = '{user}' AND region = '{region}'")
                };
                world.central.execute(&sql)?;
                history.push(format!("central: {sql}"));
            }
            1..=3 => {
                let sql = write(&mut random);
                let done = world.central.execute(&sql).is_ok();
                history.push(format!("central: {sql} -- {done}"));
            }
            4..=7 => {
                let name = remotes[random.below(2) as usize].0;
                let sql = write(&mut random);
                let done = world.edit(name, &sql).is_ok();
                history.push(format!("{name}: {sql} -- {done}"));
            }
            _ => {
                let (name, remote) = &mut remotes[random.below(2) as usize];
                if starts_afresh && random.chance(30) {
                    remote.reset()?;
                    history.push(format!("{name}: reset"));
                }
                world.sync(remote).map_err(|error| error.context(history.join("\n")))?;
                history.push(format!("{name}: sync"));
            }
        }
    }
    for (name, remote) in &mut remotes {
        for _ in 0..3 {
            world.sync(remote)?;
            remote.drop_set_aside(&Choice::All)?;
        }
        world.sync(remote)?;
        let status = remote.status()?;
        let left = world.rows(name, "SELECT \"table\", hex(key) FROM hw_held")?;
        let report = world.diff(name)?;
        let is_well = report.is_equal(false) && (status.pending, status.set_aside, status.held) == (0, 0, 0);
        assert!(
            is_well,
            "{kind:?} {name} of seed {seed}: {report:?}\n{status:?}\nheld: {left:?}\n{}",
            history.join("\n")
        );
    }
    Ok(())
}

fn write(random: &mut Random) -> String {
    let pick = |random: &mut Random, of: &[&'static str]| of[random.below(of.len() as u64) as usize];
    let regions = ["'north'", "'south'", "'east'", "NULL"];
    let (shop, order, other) = (
        pick(random, &["n", "m", "s", "e", "x"]),
        pick(random, &["n1", "m1", "s1", "e1", "x1", "x2"]),
        pick(random, &["n1", "m1", "s1", "e1", "x1", "x2"]),
    );
    let (line, region, n) =
        (pick(random, &["n11", "n12", "m11", "s11", "e11", "x11", "x12"]), pick(random, &regions), random.below(110));
    match random.below(13) {
        0 => format!("INSERT INTO shop VALUES ('{shop}', {region}, '{n}')"),
        1 | 2 => format!("UPDATE shop SET region = {region} WHERE id = '{shop}'"),
        3 => format!("UPDATE shop SET note = '{n}' WHERE id = '{shop}'"),
        4 => format!("DELETE FROM shop WHERE id = '{shop}'"),
        5 => format!("INSERT INTO orders VALUES ('{order}', '{shop}', '{n}')"),
        6 => format!("UPDATE orders SET shop = '{shop}' WHERE id = '{order}'"),
        7 => format!("UPDATE orders SET note = '{n}' WHERE id = '{order}'"),
        8 => format!("DELETE FROM orders WHERE id = '{order}'"),
        9 => format!("INSERT INTO line VALUES ('{line}', '{order}', {n})"),
        10 => format!("UPDATE line SET orders = '{other}' WHERE orders = '{order}'"),
        11 => format!("UPDATE line SET n = {n} WHERE id = '{line}'"),
        _ => format!("DELETE FROM line WHERE id = '{line}'"),
    }
}

/// The parent is a partitioned table of PostgreSQL's: written through it or through its partitions, which come and go.
#[test]
fn parents_in_a_partitioned_table() -> Result<()> {
    let schema = "CREATE TABLE member (user_name text, region text); INSERT INTO member VALUES ('ann', 'north'); \
        CREATE TABLE shop (id text NOT NULL PRIMARY KEY, region text, note text) PARTITION BY RANGE (id); \
        CREATE TABLE shop_low PARTITION OF shop FOR VALUES FROM ('a') TO ('m'); \
        CREATE TABLE shop_high PARTITION OF shop FOR VALUES FROM ('m') TO ('z'); \
        CREATE TABLE orders (id text NOT NULL PRIMARY KEY, shop text, note text); \
        CREATE TABLE line (id text NOT NULL PRIMARY KEY, orders text, n bigint) PARTITION BY RANGE (id); \
        CREATE TABLE line_all PARTITION OF line DEFAULT; \
        INSERT INTO shop VALUES ('b', 'north', ''), ('n', 'south', ''); INSERT INTO orders VALUES ('b1', 'b', ''), ('n1', 'n', ''); \
        INSERT INTO line VALUES ('b11', 'b1', 1), ('n11', 'n1', 1)";
    let world = World::new(Kind::Postgres, schema, MODEL, &["ann"])?;
    let mut ann = world.remote("ann", "ann")?;
    let mut check = |sql: &str, lines: &str| -> Result<()> {
        world.central.execute(sql)?;
        world.sync(&mut ann)?;
        assert_eq!(ids(&world, "ann", "line")?, lines, "{sql}");
        assert!(world.diff("ann")?.is_equal(false), "{sql}: {:?}", world.diff("ann")?);
        Ok(())
    };
    check("SELECT 1", "b11")?;
    check("UPDATE shop_high SET region = 'north' WHERE id = 'n'", "b11 n11")?;
    check("UPDATE shop SET id = 'q' WHERE id = 'b'; UPDATE orders SET shop = 'q' WHERE id = 'b1'", "b11 n11")?;
    check(
        "UPDATE shop SET id = 'b', region = 'south' WHERE id = 'q'; UPDATE orders SET shop = 'b' WHERE id = 'b1'",
        "n11",
    )?;
    check("INSERT INTO line_all VALUES ('n12', 'n1', 2); UPDATE shop_low SET region = 'north'", "b11 n11 n12")?;
    check("DELETE FROM shop_low", "n11 n12")?;
    check("INSERT INTO shop_low VALUES ('b', 'north', 'again')", "b11 n11 n12")?;
    check("ALTER TABLE shop DETACH PARTITION shop_low", "n11 n12")?;
    check("ALTER TABLE shop ATTACH PARTITION shop_low FOR VALUES FROM ('a') TO ('m')", "b11 n11 n12")?;
    check("TRUNCATE shop_high", "b11")?;
    check(
        "CREATE TABLE shop_new (LIKE shop INCLUDING ALL); INSERT INTO shop_new VALUES ('zz', 'north', ''); \
         ALTER TABLE shop ATTACH PARTITION shop_new FOR VALUES FROM ('z') TO ('zzz'); UPDATE orders SET shop = 'zz' WHERE id = 'n1'",
        "b11 n11 n12",
    )?;
    check("DROP TABLE shop_low", "n11 n12")
}

/// What `check` says of a database in which a table can't follow its parent as it should.
#[test]
fn check_names_what_is_missing_for_a_partition_by_a_parent() -> Result<()> {
    for kind in KINDS {
        let schema = SCHEMA
            .replace("CREATE INDEX line_orders ON line (orders);", "")
            .replace(" REFERENCES shop (id) ON DELETE CASCADE", "");
        let world = World::unserved(kind, &schema, MODEL, &[])?;
        let mut connection = world.central.backend()?.connect()?;
        let found = headwater_consolidated::check::check(&mut *connection, &world.plan)?;
        let codes: Vec<_> =
            found.iter().map(|finding| (finding.table.as_deref().unwrap_or(""), finding.code)).collect();
        assert_eq!(codes, [("line", "partition_not_indexed"), ("orders", "partition_not_enforced")], "{kind:?}");
        connection.batch(&found[0].mend)?;
        let left = headwater_consolidated::check::check(&mut *connection, &world.plan)?;
        assert_eq!(left, found[1..], "{kind:?}: the database takes what mends it as it stands");
    }
    Ok(())
}
