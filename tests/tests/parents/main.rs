//! Tables that take their partition from the row that a foreign key refers to: order lines from their order, orders from their shop.

mod doubt;
mod left;
mod moves;
mod story;

use anyhow::Result;
use headwater_remote::{Choice, Remote};
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
