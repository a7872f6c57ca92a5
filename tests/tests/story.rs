//! The main job, on both databases: changes go both ways, offline in between, and everybody ends with the same.

use anyhow::{Context, Result};
use headwater_tests::{KINDS, Kind, World};

const MODEL: &str = r#"
name = "shop"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.product]
direction = "download"
key = ["id"]
[tables.product.columns]
id = "int not null"
name = "text not null"
[tables.customer]
conflict = "merge(consolidated)"
key = ["id"]
partition = "region"
unique = [["id", "region"]]
[tables.customer.columns]
id = "text not null"
region = "text not null"
name = "text"
city = "text"
credit = "decimal(12,2)"
[tables.purchase]
conflict = "consolidated_wins"
key = ["id"]
partition = "region"
references = [{ columns = ["customer", "region"], table = "customer", target = ["id", "region"] }]
[tables.purchase.columns]
id = "text not null"
region = "text not null"
customer = "text not null"
amount = "int"
"#;

fn schema(kind: Kind) -> String {
    let decimal = match kind {
        Kind::Sqlite => "DECIMAL_TEXT",
        Kind::Postgres => "numeric(12,2)",
    };
    format!(
        "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
         CREATE TABLE product (id integer NOT NULL PRIMARY KEY, name text NOT NULL);
         CREATE TABLE customer (id text NOT NULL PRIMARY KEY, region text NOT NULL, name text, city text, credit {decimal},
             UNIQUE (id, region));
         CREATE TABLE purchase (id text NOT NULL PRIMARY KEY, region text NOT NULL, customer text NOT NULL,
             amount integer CHECK (amount > 0),
             FOREIGN KEY (customer, region) REFERENCES customer (id, region) ON UPDATE CASCADE);
         INSERT INTO member VALUES ('ann', 'north'), ('bob', 'south'), ('eve', 'north'), ('eve', 'south');
         INSERT INTO product VALUES (1, 'nail'), (2, 'screw');
         INSERT INTO customer VALUES ('c1', 'north', 'Ada', 'Oslo', '10.50'), ('c2', 'south', 'Ben', 'Rome', NULL);
         INSERT INTO purchase VALUES ('p1', 'north', 'c1', 5);"
    )
}

fn cell(rows: &[Vec<Option<String>>]) -> Option<&str> {
    rows.first()?.first()?.as_deref()
}

#[test]
fn both_ways_with_everything_that_can_meet() -> Result<()> {
    for kind in KINDS {
        story(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

fn story(kind: Kind) -> Result<()> {
    let world = World::new(kind, &schema(kind), MODEL, &["ann", "bob", "eve"])?;
    let (mut ann, mut bob, mut eve) =
        (world.remote("ann", "ann")?, world.remote("bob", "bob")?, world.remote("eve", "eve")?);
    for remote in [&mut ann, &mut bob, &mut eve] {
        world.sync(remote)?;
    }
    let ids = |name: &str| world.rows(name, "SELECT id FROM customer ORDER BY id");
    assert_eq!(ids("ann")?, [[Some("c1".to_owned())]]);
    assert_eq!(ids("bob")?, [[Some("c2".to_owned())]]);
    assert_eq!(ids("eve")?.len(), 2);

    // Offline: an insert with its parent, a change of one column on each side, a refusal, a download-only table.
    world.edit("ann", "INSERT INTO customer VALUES ('c3', 'north', 'Cy', NULL, '0.10'); INSERT INTO purchase VALUES ('p2', 'north', 'c3', 7)")?;
    world.edit("ann", "UPDATE customer SET name = 'Ada L.' WHERE id = 'c1'")?;
    world.edit("ann", "INSERT INTO purchase VALUES ('p3', 'north', 'c1', -1)")?;
    assert!(world.edit("ann", "UPDATE product SET name = 'x'").is_err(), "a download-only table took an edit");
    world.central.execute("UPDATE customer SET city = 'Bergen' WHERE id = 'c1'")?;
    let report = world.sync(&mut ann)?;
    assert_eq!((report.conflicts, report.refused), (1, 1), "{report:?}");
    let central = |sql: &str| world.central.rows(sql);
    assert_eq!(
        central("SELECT name, city FROM customer WHERE id = 'c1'")?,
        [[Some("Ada L.".to_owned()), Some("Bergen".to_owned())]]
    );
    assert_eq!(cell(&world.rows("ann", "SELECT city FROM customer WHERE id = 'c1'")?), Some("Bergen"));
    assert_eq!(
        cell(&central("SELECT count(*) FROM purchase")?),
        Some("2"),
        "the refused row is not there, the others are"
    );
    assert_eq!(ann.set_aside(10)?.len(), 1);
    assert_eq!(cell(&world.rows("ann", "SELECT count(*) FROM purchase")?), Some("3"), "and at the remote it stays");

    // What was refused is not sent again by itself; mended, it goes up.
    assert_eq!(world.sync(&mut ann)?.changes_up, 0);
    world.edit("ann", "UPDATE purchase SET amount = 1 WHERE id = 'p3'")?;
    assert_eq!(world.sync(&mut ann)?.refused, 0);
    assert_eq!(cell(&central("SELECT count(*) FROM purchase")?), Some("3"));
    assert!(ann.set_aside(10)?.is_empty());

    // A row moves to another partition: it leaves one remote, reaches another, and stays at the third.
    world.central.execute("UPDATE customer SET region = 'south' WHERE id = 'c3'; UPDATE purchase SET region = 'south' WHERE customer = 'c3' AND region <> 'south'")?;
    for remote in [&mut ann, &mut bob, &mut eve] {
        world.sync(remote)?;
    }
    assert_eq!(ids("ann")?.len(), 1);
    assert_eq!(ids("bob")?.len(), 2);
    assert_eq!(ids("eve")?.len(), 3);

    // Memberships change: what is joined comes whole, what is left goes.
    world.central.execute("UPDATE member SET region = 'south' WHERE user_name = 'ann'")?;
    world.sync(&mut ann)?;
    assert_eq!(ids("ann")?.len(), 2);
    assert_eq!(cell(&world.rows("ann", "SELECT count(*) FROM purchase")?), Some("1"));

    // Nothing changed, nothing is sent.
    let quiet = world.sync(&mut ann)?;
    assert_eq!((quiet.rows_down, quiet.deletions_down, quiet.changes_up), (0, 0, 0));
    Ok(())
}
