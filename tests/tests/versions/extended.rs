//! A version that adds nullable columns to a table: the rows with a value there come, and no other.

use anyhow::{Context as _, Result};
use headwater_model::Model;
use headwater_remote::Remote;
use headwater_tests::{KINDS, Kind, World};

use super::{texts, upgrade};

const ROWS: u32 = 2_000;

fn model(version: u32, more: &str) -> String {
    format!(
        r#"
name = "shop"
version = {version}
[partitions.area]
columns = {{ area = "text" }}
members = "SELECT area FROM member WHERE login = :s.user"
[tables.item]
key = ["id"]
partition = "area"
conflict = "consolidated_wins"
columns = {{ id = "int not null", area = "text not null", name = "text", n = "int"{more} }}
[tables.kind]
key = ["id"]
columns = {{ id = "int not null", name = "text"{more} }}
"#
    )
}

const MORE: &str = r#", price = "int", tag = "text""#;

fn schema() -> String {
    let rows = (1..=ROWS).map(|id| format!("({id}, '{}', 'item {id}', {id})", ["north", "south"][id as usize % 2]));
    let items = rows.collect::<Vec<_>>().join(", ");
    format!(
        "CREATE TABLE member (login TEXT NOT NULL, area TEXT NOT NULL, PRIMARY KEY (login, area));
         INSERT INTO member VALUES ('ann', 'north'), ('bo', 'north'), ('bo', 'south');
         CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, area TEXT NOT NULL, name TEXT, n BIGINT);
         CREATE TABLE kind (id BIGINT NOT NULL PRIMARY KEY, name TEXT);
         INSERT INTO item VALUES {items}; INSERT INTO kind VALUES (1, 'one'), (2, 'two');"
    )
}

const COLUMNS: &str = "
    ALTER TABLE item ADD COLUMN price BIGINT; ALTER TABLE item ADD COLUMN tag TEXT;
    ALTER TABLE kind ADD COLUMN price BIGINT; ALTER TABLE kind ADD COLUMN tag TEXT;";

/// Of nine rows the first column, of the tenth the second one; two of them are the application's to edit.
const VALUES: &str = "UPDATE item SET price = id * 10 WHERE id <= 9; UPDATE item SET tag = 'ten' WHERE id = 10;";

/// A remote of the first version, and a database that has the columns of the next. Their values are older than the remote's last sync.
fn prepared(kind: Kind, values: &str) -> Result<(World, Remote, Model)> {
    let mut world = World::new(kind, &schema(), &model(1, ""), &["ann", "bo"])?;
    let mut remote = world.remote("one", "bo")?;
    world.sync(&mut remote)?;
    world.central.execute(&format!("{COLUMNS} {values}"))?;
    let touched = world.sync(&mut remote)?;
    assert_eq!(touched.rows_down, if values.is_empty() { 0 } else { 10 }, "{kind:?}");
    world.serve_also(&model(3, MORE))?;
    remote.set_server(&world.server_url()?, "bo")?;
    let new = world.beside[0].model.clone();
    Ok((world, remote, new))
}

#[test]
fn rows_with_a_value_in_a_new_column_come_and_no_other() -> Result<()> {
    for (kind, values) in KINDS.into_iter().flat_map(|kind| ["", VALUES].map(|values| (kind, values))) {
        let context = format!("{kind:?}, {values}");
        let (world, mut remote, new) = prepared(kind, values)?;
        world.edit("one", "UPDATE item SET name = 'mine' WHERE id IN (1, 1000); DELETE FROM item WHERE id = 2000")?;
        let done = upgrade(&world, &mut remote, &new).context(context.clone())?;
        assert_eq!((done.from, done.to, done.whole), (1, 3, Vec::new()), "{context}");
        let expected = if values.is_empty() { 0 } else { 10 };
        assert_eq!((done.sync.rows_down, done.sync.conflicts, done.sync.afresh), (expected, 0, 0), "{context}");
        assert!(done.sync.bytes_down < 2_000, "{context}: {} bytes", done.sync.bytes_down);
        assert!(world.diff("one")?.is_equal(false), "{context}: {:?}", world.diff("one")?);
        assert_eq!(world.sync(&mut remote)?.rows_down, 0, "{context}");
        world.edit("one", "UPDATE item SET price = 7, tag = 'new' WHERE id = 1; DELETE FROM item WHERE id = 3")?;
        world.central.execute("UPDATE item SET price = 8 WHERE id = 50")?;
        let after = world.sync(&mut remote)?;
        assert_eq!((after.changes_up, after.rows_down, after.conflicts), (2, 1, 0), "{context}");
        assert!(world.diff("one")?.is_equal(false), "{context}: {:?}", world.diff("one")?);
    }
    Ok(())
}

/// No server has the old version any more, so that what was changed under it goes up under the new one.
#[test]
fn what_is_pending_takes_the_values_and_takes_none_away() -> Result<()> {
    for kind in KINDS {
        let (mut world, mut remote, new) = prepared(kind, VALUES)?;
        world.edit(
            "one",
            "UPDATE item SET name = 'mine' WHERE id IN (1, 10, 1000); DELETE FROM item WHERE id IN (2, 2000);
             INSERT INTO item VALUES (3000, 'north', 'new', 1)",
        )?;
        world.plan = world.beside.remove(0);
        world.start_server()?;
        remote.set_server(&world.server_url()?, "bo")?;
        let done = upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        assert!(done.before.is_none());
        assert_eq!((done.sync.rows_down, done.sync.conflicts, done.sync.refused), (10, 0, 0), "{kind:?}");
        let report = world.sync(&mut remote)?;
        assert_eq!((report.conflicts, report.refused), (0, 0), "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
        let sql = "SELECT id, name, price, tag FROM item WHERE id IN (1, 2, 10, 1000, 2000, 3000) ORDER BY id";
        let expected: [&[&str]; 4] = [
            &["1", "mine", "10", "-"],
            &["10", "mine", "-", "ten"],
            &["1000", "mine", "-", "-"],
            &["3000", "new", "-", "-"],
        ];
        assert_eq!(world.central.rows(sql)?, texts(&expected), "{kind:?}");
    }
    Ok(())
}

/// What the remote may have by then is decided in the same snapshot.
#[test]
fn partitions_that_come_or_go_meanwhile_are_right() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote, new) = prepared(kind, VALUES)?;
        world.central.execute(
            "DELETE FROM member WHERE login = 'bo' AND area = 'south'; DELETE FROM item WHERE id = 2;
             UPDATE item SET area = 'south' WHERE id = 4; UPDATE item SET area = 'north' WHERE id = 5;
             UPDATE kind SET name = 'uno', price = 1 WHERE id = 1",
        )?;
        upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
        world.central.execute("INSERT INTO member VALUES ('bo', 'south')")?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
    }
    Ok(())
}
