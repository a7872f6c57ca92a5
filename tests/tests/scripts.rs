//! Who syncs is known to the application's own triggers, queries and policies.

use anyhow::{Result, ensure};
use headwater_tests::{Central, KINDS, Kind, World, read_model};

/// The rows of a query, as text.
fn rows(world: &World, sql: &str) -> Result<Vec<Vec<String>>> {
    Ok(texts(world.central.rows(sql)?))
}

fn texts(rows: Vec<Vec<Option<String>>>) -> Vec<Vec<String>> {
    rows.into_iter()
        .map(|row| row.into_iter().map(|value| value.unwrap_or_else(|| "NULL".to_owned())).collect())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

const NOTES: &str = "CREATE TABLE note (id int NOT NULL PRIMARY KEY, owner text NOT NULL, text text);
    CREATE TABLE member (login text, owner text);
    INSERT INTO member VALUES ('ann', 'ann'), ('bob', 'bob');
    INSERT INTO note VALUES (1, 'ann', 'hers'), (2, 'bob', 'his');
    CREATE TABLE audit (id int, who text, remote text);";

fn audit_trigger(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => {
            "CREATE TRIGGER audited AFTER INSERT ON note BEGIN
                INSERT INTO audit SELECT new.id, user_name, lower(hex(remote_id)) FROM headwater_actor; END"
        }
        Kind::Postgres => {
            "CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO audit VALUES (new.id, current_setting('headwater.user', true),
                    replace(current_setting('headwater.remote_id', true), '-', '')); RETURN NULL; END $$;
             CREATE TRIGGER audited AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION audited()"
        }
    }
}

/// A membership query that asks the database who syncs.
fn model_of_the_actor(kind: Kind) -> String {
    let members = match kind {
        Kind::Sqlite => "SELECT owner FROM member JOIN headwater_actor ON login = user_name",
        Kind::Postgres => "SELECT owner FROM member WHERE login = current_setting('headwater.user', true)",
    };
    format!(
        "name = \"notes\"\nversion = 1\n[partitions.owner]\ncolumns = {{ owner = \"text\" }}\nmembers = \"{members}\"\n\
         [tables.note]\nkey = [\"id\"]\npartition = \"owner\"\n\
         columns = {{ id = \"int not null\", owner = \"text not null\", text = \"text\" }}\n"
    )
}

#[test]
fn who_syncs_is_known_in_uploads_and_in_downloads() -> Result<()> {
    for kind in KINDS {
        let schema = format!("{NOTES}{}", audit_trigger(kind));
        // A name with quotes is a name.
        let users = ["ann", "bob", "o'hara \\"];
        let world = World::new(kind, &schema, &model_of_the_actor(kind), &users)?;
        world.central.execute("INSERT INTO member VALUES ('o''hara \\', 'o')")?;
        for (file, user, owner) in [("a", "ann", "ann"), ("b", "bob", "bob"), ("c", users[2], "o")] {
            let mut remote = world.remote(file, user)?;
            world.sync(&mut remote)?;
            let seen = texts(world.rows(file, "SELECT DISTINCT owner FROM note")?);
            ensure!(owner == "o" && seen.is_empty() || seen == [[owner]], "{kind:?}: {user} holds {seen:?}");
            let id = 10 + i32::from(file.as_bytes()[0]);
            world.edit(file, &format!("INSERT INTO note VALUES ({id}, '{owner}', 'new')"))?;
            let report = world.sync(&mut remote)?;
            ensure!(report.refused == 0, "{kind:?}: {report:?}");
            let expected = vec![user.to_owned(), hex(&remote.status()?.remote_id)];
            let audited = rows(&world, &format!("SELECT who, remote FROM audit WHERE id = {id}"))?;
            ensure!(audited == [expected], "{kind:?}: {audited:?}");
        }
        // Afterwards nobody acts: not on the connections that synced, and not in the file.
        world.central.execute("INSERT INTO note VALUES (3, 'ann', 'by the application')")?;
        let by_hand = rows(&world, "SELECT coalesce(who, '') FROM audit WHERE id = 3")?;
        ensure!(by_hand == [[""]], "{kind:?}: {by_hand:?}");
    }
    Ok(())
}

/// The server's role owns the tables, and is held to their policies all the same.
const POLICIES: &str = "ALTER TABLE note ENABLE ROW LEVEL SECURITY; ALTER TABLE note FORCE ROW LEVEL SECURITY;
    CREATE POLICY own ON note USING (owner = current_setting('headwater.user', true))
        WITH CHECK (owner = current_setting('headwater.user', true) AND text <> 'forbidden')";

const WHOLE: &str = "name = \"notes\"\nversion = 1\n[tables.note]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
    columns = { id = \"int not null\", owner = \"text not null\", text = \"text\" }\n";

#[test]
fn row_security_holds_in_uploads_and_in_downloads() -> Result<()> {
    let postgres = headwater_testkit::Postgres::shared()?;
    let admin = postgres.create_database()?;
    let name = admin.rsplit('/').next().unwrap_or_default().to_owned();
    let role = format!("server_{name}");
    headwater_testkit::sql(
        &admin,
        &format!(
            "CREATE ROLE {role} LOGIN; ALTER DATABASE {name} OWNER TO {role}; ALTER SCHEMA public OWNER TO {role}"
        ),
    )?;
    let (scheme, rest) = admin.split_once("://").unwrap_or_default();
    let (_, address) = rest.split_once('@').unwrap_or_default();
    let central = Central::Postgres(format!("{scheme}://{role}@{address}"));
    central.execute(&format!("{NOTES}{POLICIES}"))?;
    let mut world = World::over(central, tempfile::tempdir()?, read_model(WHOLE)?, &["ann", "bob"])?;
    world.start_server()?;
    let mut ann = world.remote("ann", "ann")?;
    let mut bob = world.remote("bob", "bob")?;
    let held =
        |name: &str| Ok::<_, anyhow::Error>(texts(world.rows(name, "SELECT id FROM note ORDER BY id")?).concat());
    world.sync(&mut ann)?;
    world.sync(&mut bob)?;
    ensure!(held("ann")? == ["1"] && held("bob")? == ["2"], "{:?} {:?}", held("ann")?, held("bob")?);
    // Changes, and not only first downloads.
    headwater_testkit::sql(&admin, "INSERT INTO note VALUES (3, 'ann', 'new'), (4, 'bob', 'new')")?;
    world.edit("ann", "INSERT INTO note VALUES (5, 'ann', 'mine'), (6, 'bob', 'not mine'), (7, 'ann', 'forbidden')")?;
    let report = world.sync(&mut ann)?;
    ensure!(report.refused == 2, "{report:?}");
    let reasons: Vec<String> = ann.set_aside(10)?.into_iter().map(|aside| aside.reason).collect();
    ensure!(reasons == ["policy", "policy"], "{reasons:?}");
    world.sync(&mut bob)?;
    ensure!(
        held("ann")? == ["1", "3", "5", "6", "7"] && held("bob")? == ["2", "4"],
        "{:?} {:?}",
        held("ann")?,
        held("bob")?
    );
    let stored = headwater_testkit::sql(&admin, "SELECT id FROM note ORDER BY id")?;
    ensure!(texts(stored).concat() == ["1", "2", "3", "4", "5"]);
    Ok(())
}
