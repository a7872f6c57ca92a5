//! Rows that are larger than anybody takes keep no other row from where it belongs.

use anyhow::Result;
use headwater_tests::{KINDS, Kind, World};

const MODEL: &str = "name = \"files\"\nversion = 1\n[tables.file]\nkey = [\"id\"]\n[tables.file.columns]\nid = \"int not null\"\n\
    body = \"text\"\n";

fn repeated(kind: Kind, bytes: u32) -> String {
    match kind {
        Kind::Sqlite => format!("replace(hex(zeroblob({})), '00', 'ab')", bytes / 2),
        Kind::Postgres => format!("repeat('ab', {})", bytes / 2),
    }
}

#[test]
fn a_row_that_remotes_do_not_take_keeps_no_other_from_them() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, "CREATE TABLE file (id BIGINT NOT NULL PRIMARY KEY, body TEXT)", MODEL, &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        let (large, larger) = (repeated(kind, 50_000_000), repeated(kind, 70_000_000));
        world
            .central
            .execute(&format!("INSERT INTO file VALUES (1, 'small'), (2, {larger}), (3, {large}), (4, 'small')"))?;
        world.sync(&mut remote)?;
        let lengths = |id: u32| world.rows("one", &format!("SELECT length(body) FROM file WHERE id = {id}"));
        assert_eq!(world.rows("one", "SELECT id FROM file ORDER BY id")?.len(), 3, "{kind:?}");
        assert_eq!(lengths(3)?, [[Some("50000000".to_owned())]], "{kind:?}");
        // It grows too large, and others change; then it is smaller.
        world
            .central
            .execute(&format!("UPDATE file SET body = {larger} WHERE id = 1; DELETE FROM file WHERE id = 4"))?;
        world.sync(&mut remote)?;
        assert_eq!(world.rows("one", "SELECT id FROM file ORDER BY id")?.len(), 2, "{kind:?}");
        world.central.execute("UPDATE file SET body = 'small again' WHERE id <= 2")?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}
