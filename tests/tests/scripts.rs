//! The user's own SQL in the place of generated steps; and who syncs, known to the application's own triggers, queries and policies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_consolidated::check::check;
use headwater_consolidated::download::{DownloadRequest, estimate};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Error, Mode, Plan};
use headwater_model::Model;
use headwater_protocol::message::Watermarks;
use headwater_testkit::FaultProxy;
use headwater_testkit::proxy::{Direction, Plan as Faults};
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

/// Gives a database to a role that is no superuser; the role, and the database as it sees it.
fn owned_by_a_role(admin: &str) -> Result<(String, Central)> {
    let name = admin.rsplit('/').next().unwrap_or_default();
    let role = format!("server_{name}");
    let sql =
        format!("CREATE ROLE {role} LOGIN; ALTER DATABASE {name} OWNER TO {role}; ALTER SCHEMA public OWNER TO {role}");
    headwater_testkit::sql(admin, &sql)?;
    let (scheme, rest) = admin.split_once("://").unwrap_or_default();
    let (_, address) = rest.split_once('@').unwrap_or_default();
    Ok((role.clone(), Central::Postgres(format!("{scheme}://{role}@{address}"))))
}

#[test]
fn row_security_holds_in_uploads_and_in_downloads() -> Result<()> {
    let admin = headwater_testkit::Postgres::shared()?.create_database()?;
    let (_, central) = owned_by_a_role(&admin)?;
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

/// How much comes down is told by the rows that come down.
#[test]
fn row_security_holds_in_estimates() -> Result<()> {
    let admin = headwater_testkit::Postgres::shared()?.create_database()?;
    let (_, central) = owned_by_a_role(&admin)?;
    central.execute(&format!("{NOTES}{POLICIES}"))?;
    let world = World::over(central, tempfile::tempdir()?, read_model(WHOLE)?, &["ann", "bob"])?;
    let more = "INSERT INTO note SELECT i, CASE WHEN i % 5 = 0 THEN 'ann' ELSE 'bob' END, 'more' FROM generate_series(11, 1010) AS i";
    headwater_testkit::sql(&admin, more)?;
    let mut connection = world.central.backend()?.connect()?;
    for (user, rows) in [("ann", 201), ("bob", 801), ("eve", 0)] {
        let request = DownloadRequest {
            plan: &world.plan,
            user,
            remote_id: [1; 16],
            watermarks: &Watermarks::default(),
            restart: true,
            life: None,
            own: &[],
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            extended: &[],
            packing: None,
            snapshots: None,
            keeps_marks: false,
            tells_leaving: false,
        };
        let estimated = estimate(&mut *connection, &request, Duration::from_mins(1))?;
        assert_eq!(estimated.rows, rows, "{user}");
    }
    Ok(())
}

/// A world whose model has scripts: by the file's name, their text.
fn scripted(kind: Kind, schema: &str, model: &str, users: &[&str], scripts: &[(&str, &str)]) -> Result<World> {
    let folder = tempfile::tempdir()?;
    let central = match kind {
        Kind::Sqlite => Central::Sqlite(folder.path().join("central.db")),
        Kind::Postgres => Central::Postgres(headwater_testkit::Postgres::shared()?.create_database()?),
    };
    central.execute(schema)?;
    let mut world = World::over(central, folder, with_scripts(model, scripts)?, users)?;
    world.start_server()?;
    Ok(world)
}

fn with_scripts(model: &str, scripts: &[(&str, &str)]) -> Result<Model> {
    let mut model = read_model(model)?;
    model.load_scripts(|file| {
        let script = scripts.iter().find(|(name, _)| *name == file);
        script.map(|(_, text)| (*text).to_owned()).with_context(|| format!("no script {file}"))
    })?;
    Ok(model)
}

/// A table that keeps the time of each change and a flag of deletion, of which a remote knows nothing.
fn stamped(kind: Kind) -> (&'static str, Vec<(&'static str, &'static str)>) {
    match kind {
        Kind::Sqlite => (
            "CREATE TABLE item (id int NOT NULL PRIMARY KEY, name text, updated_at text NOT NULL DEFAULT CURRENT_TIMESTAMP,
                deleted int NOT NULL DEFAULT 0); INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two')",
            vec![
                ("cursor", "SELECT id, name FROM item WHERE updated_at >= :s.last_download AND NOT deleted;"),
                ("deletes", "SELECT id FROM item WHERE updated_at >= :s.last_download AND deleted -- :not.this;"),
                ("fetch", "SELECT id, name FROM item WHERE id = :r.id AND NOT deleted"),
                (
                    "insert",
                    "INSERT INTO item (id, name) VALUES (:r.id, :r.name)
                     ON CONFLICT (id) DO UPDATE SET name = :r.name, deleted = 0, updated_at = CURRENT_TIMESTAMP",
                ),
                ("update", "UPDATE item SET name = :r.name, updated_at = CURRENT_TIMESTAMP WHERE id = :r.id"),
                ("delete", "UPDATE item SET deleted = 1, updated_at = CURRENT_TIMESTAMP WHERE id = :o.id"),
            ],
        ),
        Kind::Postgres => (
            "CREATE TABLE item (id int NOT NULL PRIMARY KEY, name text, updated_at timestamptz NOT NULL DEFAULT now(),
                deleted bool NOT NULL DEFAULT false); INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two')",
            vec![
                ("cursor", "SELECT id, name FROM item WHERE updated_at >= :s.last_download AND NOT deleted;"),
                ("deletes", "SELECT id FROM item WHERE updated_at >= :s.last_download AND deleted"),
                ("fetch", "SELECT id, name FROM item WHERE id = :r.id AND NOT deleted"),
                (
                    "insert",
                    "INSERT INTO item (id, name) VALUES (:r.id, :r.name)
                     ON CONFLICT (id) DO UPDATE SET name = :r.name, deleted = false, updated_at = now()",
                ),
                ("update", "UPDATE item SET name = :r.name, updated_at = now() WHERE id = :r.id"),
                ("delete", "UPDATE item SET deleted = true, updated_at = now() WHERE id = :o.id"),
            ],
        ),
    }
}

const STAMPED: &str = "name = \"items\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
    columns = { id = \"int not null\", name = \"text\" }\n\
    scripts = { download_cursor = \"cursor\", download_delete_cursor = \"deletes\", upload_fetch = \"fetch\", \
    upload_insert = \"insert\", upload_update = \"update\", upload_delete = \"delete\" }\n";

const LIVE: &str = "SELECT id, name FROM item WHERE NOT deleted ORDER BY id";

#[test]
fn a_table_with_its_own_time_and_flag_goes_both_ways_without_triggers() -> Result<()> {
    for kind in KINDS {
        let (schema, scripts) = stamped(kind);
        let world = scripted(kind, schema, STAMPED, &["ann"], &scripts)?;
        let triggers = match kind {
            Kind::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'",
            Kind::Postgres => "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'item'::regclass",
        };
        ensure!(rows(&world, triggers)? == [["0"]], "{kind:?}: it has triggers");
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        let mut in_step = |step: &str| -> Result<()> {
            for _ in 0..2 {
                let reports = [world.sync(&mut one)?, world.sync(&mut two)?];
                ensure!(reports.iter().all(|report| report.refused == 0), "{kind:?} {step}: {reports:?}");
            }
            let live = rows(&world, LIVE)?;
            for name in ["one", "two"] {
                let held = texts(world.rows(name, "SELECT id, name FROM item ORDER BY id")?);
                ensure!(held == live, "{kind:?} {step}: {name} holds {held:?}, expected {live:?}");
                let diff = world.diff(name)?;
                ensure!(diff.is_equal(false), "{kind:?} {step}: {name}: {diff:?}");
            }
            Ok(())
        };
        in_step("the beginning")?;
        world.edit("one", "INSERT INTO item VALUES (3, 'three'); UPDATE item SET name = 'eins' WHERE id = 1")?;
        in_step("a remote's rows")?;
        world.edit("two", "DELETE FROM item WHERE id = 2")?;
        in_step("a remote's deletion")?;
        ensure!(rows(&world, "SELECT count(*) FROM item WHERE deleted")? == [["1"]], "the row itself stays");
        let stamp = if kind == Kind::Sqlite { "CURRENT_TIMESTAMP" } else { "now()" };
        world.central.execute(&format!(
            "UPDATE item SET name = 'drei', updated_at = {stamp} WHERE id = 3;
             UPDATE item SET deleted = (1 = 1), updated_at = {stamp} WHERE id = 1; INSERT INTO item (id, name) VALUES (4, 'four')"
        ))?;
        in_step("the application's changes")?;
        world.edit("two", "INSERT INTO item VALUES (2, 'again')")?;
        world.edit("one", "UPDATE item SET name = 'vier' WHERE id = 4")?;
        in_step("a row made again")?;
        ensure!(rows(&world, LIVE)?.len() == 3, "{:?}", rows(&world, LIVE)?);
    }
    Ok(())
}

#[test]
fn diff_asks_a_cursor_as_a_first_download_does() -> Result<()> {
    for kind in KINDS {
        let asked = match kind {
            Kind::Sqlite => "EXISTS (SELECT 1 FROM headwater_actor WHERE user_name = :s.user)",
            Kind::Postgres => "current_setting('headwater.user', true) = :s.user",
        };
        let cursor =
            format!("SELECT id, owner, upper(text) FROM note WHERE :s.last_download < '1900-01-02' AND {asked}");
        let model = format!("{}scripts = {{ download_cursor = \"cursor\" }}\n", model_of_the_actor(kind));
        let world = scripted(kind, NOTES, &model, &["ann"], &[("cursor", &cursor)])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        ensure!(texts(world.rows("one", "SELECT id, text FROM note")?) == [["1", "HERS"]], "{kind:?}");
        ensure!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
        world
            .central
            .execute("INSERT INTO note VALUES (3, 'ann', 'x'), (4, 'bob', 'x'); DELETE FROM note WHERE id = 1")?;
        let found = world.diff("one")?.tables.remove(0);
        ensure!((found.missing, found.extra, found.different) == (1, 1, 0), "{kind:?}: {found:?}");
    }
    Ok(())
}

/// Waits, so that what bears an earlier second is not found by chance.
fn seconds_pass(world: &World, seconds: u32) -> Result<()> {
    world.central.execute(&format!("SELECT pg_sleep({seconds})"))
}

#[test]
fn a_transaction_that_commits_late_is_not_missed_by_a_time() -> Result<()> {
    let (schema, scripts) = stamped(Kind::Postgres);
    let world = scripted(Kind::Postgres, schema, STAMPED, &["ann"], &scripts)?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    let mut writer = world.central.backend()?.connect()?;
    writer.begin(Mode::Upload)?;
    writer.batch("INSERT INTO item (id, name) VALUES (10, 'late')")?;
    for id in 20..23 {
        seconds_pass(&world, 1)?;
        world.central.execute(&format!("INSERT INTO item (id, name) VALUES ({id}, 'early')"))?;
        world.sync(&mut remote)?;
    }
    seconds_pass(&world, 2)?;
    world.sync(&mut remote)?;
    writer.commit()?;
    world.sync(&mut remote)?;
    let held = texts(world.rows("one", "SELECT id, name FROM item ORDER BY id")?);
    ensure!(held == rows(&world, LIVE)?, "{held:?}");
    // Once nothing is open, nothing old comes again and again.
    seconds_pass(&world, 3)?;
    world.sync(&mut remote)?;
    seconds_pass(&world, 1)?;
    let report = world.sync(&mut remote)?;
    ensure!(report.rows_down == 0, "{report:?}");
    Ok(())
}

/// A prepared transaction shows no beginning: a remote that is new beside one has seen nothing that a time could name.
#[test]
fn deletions_beside_a_prepared_transaction_are_not_missed_by_a_time() -> Result<()> {
    let (schema, scripts) = stamped(Kind::Postgres);
    let world = scripted(Kind::Postgres, schema, STAMPED, &["ann"], &scripts)?;
    let name = world.central.rows("SELECT current_database()")?.remove(0).remove(0).context("a name")?;
    let prepare = format!("BEGIN; INSERT INTO item (id, name) VALUES (10, 'prepared'); PREPARE TRANSACTION '{name}'");
    let mut writer = world.central.backend()?.connect()?;
    writer.batch(&prepare)?;
    let mut remote = world.remote("one", "ann")?;
    let mut deleted = |id: u32, step: &str| -> Result<()> {
        world.central.execute(&format!("UPDATE item SET deleted = true, updated_at = now() WHERE id = {id}"))?;
        world.sync(&mut remote)?;
        let held = texts(world.rows("one", "SELECT id, name FROM item ORDER BY id")?);
        ensure!(held == rows(&world, LIVE)?, "{step}: {held:?}");
        Ok(())
    };
    deleted(99, "the first download")?;
    deleted(1, "beside it")?;
    writer.batch(&format!("COMMIT PREPARED '{name}'"))?;
    deleted(2, "after it")?;
    deleted(10, "what it wrote")
}

const STOCK: &str = "CREATE TABLE stock (id int NOT NULL PRIMARY KEY, count int, note text);
    CREATE TABLE booking (id int, change int CHECK (change <> 13), who text);
    INSERT INTO stock VALUES (1, 100, 'tea'), (2, 9, 'milk');";

/// A remote's change is added to what is stored, and put into a book.
const BOOKED: &str = "name = \"stock\"\nversion = 1\n[tables.stock]\nkey = [\"id\"]\n\
    columns = { id = \"int not null\", count = \"int\", note = \"text\" }\n\
    scripts = { upload_insert = \"insert\", upload_update = \"book\", resolve_conflict = \"resolve\" }\n";

fn booked(kind: Kind) -> Vec<(&'static str, &'static str)> {
    let greatest = match kind {
        Kind::Sqlite => "SELECT :c.id, max(:r.count, :c.count), :r.note || '+' || :c.note WHERE :c.note <> 'fixed'",
        Kind::Postgres => {
            "SELECT :c.id, greatest(:r.count, :c.count), :r.note || '+' || :c.note WHERE :c.note <> 'fixed'"
        }
    };
    let (book, insert) = match kind {
        Kind::Sqlite => (
            "INSERT INTO booking VALUES (:r.id, :r.count - :o.count, :s.user)",
            "INSERT INTO booking VALUES (:r.id, :r.count, 'new; ' || :s.user)",
        ),
        // A function of the database's own.
        Kind::Postgres => (
            "SELECT book(:r.id::int, (:r.count - :o.count)::int, :s.user)",
            "SELECT book(:r.id::int, :r.count::int, 'new; ' || :s.user);",
        ),
    };
    vec![("insert", insert), ("book", book), ("resolve", greatest)]
}

fn book(kind: Kind) -> Result<World> {
    let function = "CREATE FUNCTION book(int, int, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF $2 = 12 THEN RAISE EXCEPTION 'no dozens'; END IF;
        INSERT INTO booking VALUES ($1, $2, $3); UPDATE stock SET count = count + $2 WHERE id = $1; END $$;";
    let trigger = "CREATE TRIGGER counted AFTER INSERT ON booking BEGIN
        SELECT RAISE(ABORT, 'no dozens') WHERE new.change = 12;
        UPDATE stock SET count = count + new.change WHERE id = new.id; END;";
    let schema = format!("{STOCK}{}", if kind == Kind::Sqlite { trigger } else { function });
    scripted(kind, &schema, BOOKED, &["ann"], &booked(kind))
}

#[test]
fn upload_scripts_write_where_they_like_and_are_refused_row_by_row() -> Result<()> {
    for kind in KINDS {
        let world = book(kind)?;
        world
            .central
            .execute("INSERT INTO stock VALUES (3, 0, 'a'), (4, 0, 'b'), (5, 0, 'c'), (6, 0, 'd'), (7, 0, 'e')")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "UPDATE stock SET count = count - 5 WHERE id = 1; UPDATE stock SET count = count + 12 WHERE id = 3;
             UPDATE stock SET count = count + 1 WHERE id IN (4, 5, 6); UPDATE stock SET count = count + 13 WHERE id = 7;
             INSERT INTO stock VALUES (9, 7, 'sugar')",
        )?;
        let report = world.sync(&mut remote)?;
        ensure!(report.refused == 2 && report.conflicts == 0, "{kind:?}: {report:?}");
        let mut aside: Vec<_> = remote.set_aside(10)?.into_iter().map(|aside| (aside.key, aside.reason)).collect();
        aside.sort();
        let expected = [("{\"id\":3}", "trigger"), ("{\"id\":7}", "check")].map(|(k, r)| (k.to_owned(), r.to_owned()));
        ensure!(aside == expected, "{kind:?}: {aside:?}");
        let booked = rows(&world, "SELECT id, change, who FROM booking ORDER BY id")?;
        let once =
            [["1", "-5", "ann"], ["4", "1", "ann"], ["5", "1", "ann"], ["6", "1", "ann"], ["9", "7", "new; ann"]];
        ensure!(booked == once, "{kind:?}: {booked:?}");
        ensure!(rows(&world, "SELECT count FROM stock WHERE id = 1")? == [["95"]], "{kind:?}");
    }
    Ok(())
}

/// A script may leave a row as it is, and no change of it is tracked then: the row goes back all the same, or the remote would differ for good.
#[test]
fn what_a_script_leaves_as_it_is_comes_back() -> Result<()> {
    let model = "name = \"m\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", name = \"text\" }\n\
                 scripts = { upload_update = \"update\", upload_delete = \"delete\" }\n";
    let scripts = [
        ("update", "UPDATE item SET name = :r.name WHERE id = :r.id AND name <> 'locked'"),
        ("delete", "DELETE FROM item WHERE id = :o.id AND name <> 'locked'"),
    ];
    let schema = "CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, name TEXT);
        INSERT INTO item VALUES (1, 'a'), (2, 'locked'), (3, 'locked'), (4, 'd');";
    for kind in KINDS {
        let world = scripted(kind, schema, model, &["ann"], &scripts)?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE item SET name = 'mine' WHERE id < 3; DELETE FROM item WHERE id > 2")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down, report.deletions_down) == (4, 2, 0), "{kind:?}: {report:?}");
        let held = texts(world.rows("one", "SELECT id, name FROM item ORDER BY id")?);
        ensure!(held == [["1", "mine"], ["2", "locked"], ["3", "locked"]], "{kind:?}: {held:?}");
        ensure!(world.diff("one")?.is_equal(false), "{kind:?}");
        let again = world.sync(&mut remote)?;
        ensure!((again.changes_up, again.rows_down) == (0, 0), "{kind:?}: {again:?}");
    }
    Ok(())
}

#[test]
fn a_script_says_what_becomes_of_a_conflict() -> Result<()> {
    for kind in KINDS {
        let scripts: Vec<_> = booked(kind).into_iter().filter(|(name, _)| *name == "resolve").collect();
        let model = BOOKED.replace("upload_insert = \"insert\", upload_update = \"book\", ", "");
        let world = scripted(kind, STOCK, &model, &["ann"], &scripts)?;
        world.central.execute("INSERT INTO stock VALUES (3, 5, 'x')")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        // 9 and 10: by number, and not by text.
        world.edit(
            "one",
            "UPDATE stock SET count = 10, note = 'r' WHERE id = 2; UPDATE stock SET count = 6 WHERE id = 3;
            INSERT INTO stock VALUES (4, 1, 'r')",
        )?;
        world.central.execute(
            "UPDATE stock SET note = 'c' WHERE id = 2; UPDATE stock SET count = 1, note = 'fixed' WHERE id = 3;
            INSERT INTO stock VALUES (4, 2, 'c')",
        )?;
        let report = world.sync(&mut remote)?;
        ensure!(report.conflicts == 3 && report.refused == 0, "{kind:?}: {report:?}");
        let expected = [["2", "10", "r+c"], ["3", "1", "fixed"], ["4", "2", "r+c"]];
        let stored = rows(&world, "SELECT id, count, note FROM stock WHERE id > 1 ORDER BY id")?;
        ensure!(stored == expected, "{kind:?}: {stored:?}");
        let held = texts(world.rows("one", "SELECT id, count, note FROM stock WHERE id > 1 ORDER BY id")?);
        ensure!(held == expected, "{kind:?}: {held:?}");
        let table = if kind == Kind::Sqlite { "headwater_conflict" } else { "headwater.conflict" };
        let ends = rows(&world, &format!("SELECT outcome FROM {table} ORDER BY row_key"))?;
        ensure!(ends.concat() == ["merged", "consolidated", "merged"], "{kind:?}: {ends:?}");
    }
    Ok(())
}

const COUNTED: &str = "name = \"counted\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\n\
    columns = { id = \"int not null\", count = \"int\" }\n\
    scripts = { upload_fetch = \"fetch\", upload_insert = \"insert\", upload_update = \"update\", upload_delete = \"delete\", \
    resolve_conflict = \"resolve\" }\n";

/// Tables and scripts of [`COUNTED`]; `told` has the rows in the order in which they were inserted.
fn counted(kind: Kind) -> (String, [(&'static str, &'static str); 5]) {
    let number = if kind == Kind::Sqlite { "INTEGER PRIMARY KEY AUTOINCREMENT" } else { "bigserial PRIMARY KEY" };
    let schema = format!(
        "CREATE TABLE item (id bigint NOT NULL PRIMARY KEY, count bigint CHECK (count <> 13));
         CREATE TABLE told (number {number}, id bigint);
         CREATE TABLE gone (id bigint);"
    );
    let (insert, delete) = match kind {
        Kind::Sqlite => {
            ("INSERT INTO item VALUES (:r.id, :r.count) RETURNING id", "DELETE FROM item WHERE id = :o.id RETURNING id")
        }
        Kind::Postgres => (
            "WITH told AS (INSERT INTO told (id) VALUES (:r.id)) INSERT INTO item VALUES (:r.id, :r.count) RETURNING id",
            "WITH gone AS (DELETE FROM item WHERE id = :o.id RETURNING id) INSERT INTO gone SELECT id FROM gone",
        ),
    };
    let scripts = [
        ("fetch", "SELECT id, count FROM item WHERE id = :r.id"),
        ("insert", insert),
        ("update", "UPDATE item SET count = :r.count WHERE id = :r.id"),
        ("delete", delete),
        ("resolve", "SELECT :c.id, :r.count + :c.count"),
    ];
    (schema, scripts)
}

fn series(first: i32, last: i32) -> String {
    format!("WITH RECURSIVE s(n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM s WHERE n < {last})")
}

/// Through a proxy that holds back what the database says, so that each wait for it shows: some dozens are enough for 500 rows that are
/// fetched, resolved, written and fetched again.
#[test]
fn rows_of_a_script_do_not_wait_for_one_another() -> Result<()> {
    let url = headwater_testkit::Postgres::shared()?.create_database()?;
    let (schema, scripts) = counted(Kind::Postgres);
    let central = Central::Postgres(url.clone());
    central.execute(&schema)?;
    let mut world = World::over(central, tempfile::tempdir()?, with_scripts(COUNTED, &scripts)?, &["ann"])?;
    let (before, rest) = url.split_once('@').context("a user")?;
    let (address, name) = rest.split_once('/').context("a database's name")?;
    let proxy = FaultProxy::start(address)?;
    proxy.script(|_| Faults::clean().delay(Direction::Down, Duration::from_millis(40)));
    world.start_server_over(&Central::Postgres(format!("{before}@{}/{name}", proxy.address())).backend()?)?;
    let mut remote = world.remote("one", "ann")?;
    let mut sync = |what: &str| {
        let turns = || proxy.connections().iter().map(|traffic| traffic.turns).sum::<u64>();
        let before = turns();
        let report = world.sync(&mut remote)?;
        let waits = turns() - before;
        ensure!((1..200).contains(&waits), "{what}: waited {waits} times");
        ensure!(report.refused == 0, "{what}: {report:?}");
        Ok(report)
    };
    sync("nothing")?;
    world.edit("one", &format!("{} INSERT INTO item SELECT n, n + 20 FROM s", series(1, 500)))?;
    ensure!(sync("inserts")?.changes_up == 500);
    ensure!(rows(&world, "SELECT count(*) FROM item WHERE count = id + 20")? == [["500"]]);
    world.central.execute("UPDATE item SET count = 1000 * id")?;
    world.edit("one", "UPDATE item SET count = id + 30")?;
    ensure!(sync("conflicts")?.conflicts == 500);
    ensure!(rows(&world, "SELECT count(*) FROM item WHERE count = 1001 * id + 30")? == [["500"]]);
    ensure!(world.diff("one")?.is_equal(false));
    world.edit("one", "DELETE FROM item")?;
    ensure!(sync("deletions")?.changes_up == 500);
    ensure!(
        rows(&world, "SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM item) FROM gone")?
            == [["500", "500", "0"]]
    );
    Ok(())
}

/// Some of those behind it are on their way already when the first is refused.
#[test]
fn a_refused_row_is_found_among_those_on_their_way() -> Result<()> {
    for kind in KINDS {
        let (schema, scripts) = counted(kind);
        let world = scripted(kind, &schema, COUNTED, &["ann"], &scripts)?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        let count = "CASE WHEN n IN (3, 130, 131, 400) THEN 13 ELSE n + 20 END";
        world.edit("one", &format!("{} INSERT INTO item SELECT n, {count} FROM s", series(1, 400)))?;
        let report = world.sync(&mut remote)?;
        ensure!(report.refused == 4, "{kind:?}: {report:?}");
        let mut aside: Vec<_> = remote.set_aside(10)?.into_iter().map(|aside| (aside.key, aside.reason)).collect();
        aside.sort();
        let expected = ["{\"id\":130}", "{\"id\":131}", "{\"id\":3}", "{\"id\":400}"];
        ensure!(aside == expected.map(|key| (key.to_owned(), "check".to_owned())), "{kind:?}: {aside:?}");
        ensure!(rows(&world, "SELECT count(*) FROM item WHERE count = id + 20")? == [["396"]], "{kind:?}");
        if kind == Kind::Postgres {
            let told = rows(&world, "SELECT id FROM told ORDER BY number")?.concat();
            let expected = (1..400).filter(|id| ![3, 130, 131].contains(id)).map(|id| id.to_string());
            ensure!(told == expected.collect::<Vec<_>>(), "in another order: {told:?}");
        }
    }
    Ok(())
}

const PRICED: &str = r#"
name = "prices"
version = 1
[values]
shop = "SELECT shop FROM clerk WHERE login = :s.user -- the clerk's"
"the factor" = "SELECT factor FROM currency"
[tables.offer]
key = ["id"]
columns = { id = "int not null", price = "int" }
scripts = { upload_insert = "insert", upload_fetch = "fetch" }
"#;

#[test]
fn values_of_the_users_own_are_read_where_a_script_asks_for_them() -> Result<()> {
    let scripts = [
        ("insert", "INSERT INTO offer (id, price, shop) VALUES (:r.id, :r.price * :u.\"the factor\", :u.shop);"),
        ("fetch", "SELECT id, price FROM offer WHERE id = :r.id AND shop = :u.shop"),
    ];
    let schema = "CREATE TABLE offer (id int NOT NULL PRIMARY KEY, price int, shop int NOT NULL);
        CREATE TABLE clerk (login text, shop int); CREATE TABLE currency (factor int);
        INSERT INTO clerk VALUES ('ann', 7), ('bob', 8); INSERT INTO currency VALUES (3)";
    for kind in KINDS {
        let world = scripted(kind, schema, PRICED, &["ann", "bob", "eve"], &scripts)?;
        for (place, (user, refused)) in [("ann", 0), ("bob", 0), ("eve", 1)].into_iter().enumerate() {
            let mut remote = world.remote(user, user)?;
            world.sync(&mut remote)?;
            world.edit(user, &format!("INSERT INTO offer VALUES ({place}, 100)"))?;
            let report = world.sync(&mut remote)?;
            // Nobody has said which shop is eve's: her value is NULL, and the column takes none.
            ensure!(report.refused == refused, "{kind:?} {user}: {report:?}");
        }
        let offers = rows(&world, "SELECT id, price, shop FROM offer ORDER BY id")?;
        ensure!(offers == [["0", "300", "7"], ["1", "300", "8"]], "{kind:?}: {offers:?}");
        let mut connection = world.central.backend()?.connect()?;
        let mut found = |model: &str, fetch: &str| -> Result<Vec<String>> {
            let scripts = [scripts[0], ("fetch", fetch)];
            let findings = check(&mut *connection, &Plan::new(with_scripts(model, &scripts)?))?;
            let errors = findings.into_iter().filter(|finding| finding.code.starts_with("script"));
            Ok(errors.map(|finding| finding.message).collect())
        };
        ensure!(found(PRICED, scripts[1].1)?.is_empty(), "{kind:?}");
        let unknown = found(PRICED, "SELECT id, price FROM offer WHERE id = :r.id AND shop = :u.shpo")?;
        ensure!(matches!(&unknown[..], [fault] if fault.contains(":u.shpo")), "{kind:?}: {unknown:?}");
        let broken = found(&PRICED.replace("FROM clerk", "FROM clark"), scripts[1].1)?;
        ensure!(broken.iter().any(|fault| fault.contains("clark")), "{kind:?}: {broken:?}");
    }
    Ok(())
}

#[test]
fn check_names_what_is_wrong_with_scripts() -> Result<()> {
    for kind in KINDS {
        let (schema, sound) = stamped(kind);
        let world = scripted(kind, schema, STAMPED, &["ann"], &sound)?;
        let mut connection = world.central.backend()?.connect()?;
        let mut found = |changed: &[(&str, &str)]| -> Result<Vec<(&'static str, String)>> {
            let replaced = |(name, text): &(&'static str, &'static str)| {
                (*name, changed.iter().find(|(other, _)| other == name).map_or(*text, |(_, text)| *text))
            };
            let scripts: Vec<_> = sound.iter().map(replaced).collect();
            let findings = check(&mut *connection, &Plan::new(with_scripts(STAMPED, &scripts)?))?;
            let errors = findings.into_iter().filter(|finding| finding.code.starts_with("script"));
            Ok(errors.map(|finding| (finding.code, finding.message)).collect())
        };
        ensure!(found(&[])?.is_empty(), "{kind:?}: {:?}", found(&[])?);
        for (script, text, code, words) in [
            ("cursor", "SELECT id, name FROM item WHERE name = :r.name", "script_parameters", ":r.name"),
            ("update", "UPDATE item SET name = :r.nmae WHERE id = :r.id", "script_parameters", "\"nmae\""),
            ("fetch", "SELECT id, name FROM item WHERE name = :r.name", "script_parameters", "of the key"),
            ("delete", "DELETE FROM item WHERE id = $1", "script_parameters", "$1"),
            ("delete", "DELETE FROM item WHERE id = :o.id; SELECT 1", "script_parameters", "several statements"),
            ("insert", " -- nothing", "script_parameters", "is empty"),
            ("insert", "-- all of it\nCOMMIT", "script_parameters", "begins with COMMIT"),
            ("update", "rollback", "script_parameters", "begins with rollback"),
            ("delete", "PRAGMA user_version = 1", "script_parameters", "begins with PRAGMA"),
            ("fetch", "DELETE FROM item WHERE id = :r.id RETURNING *", "script_parameters", "expected SELECT"),
            (
                "cursor",
                "WITH x AS (DELETE FROM item RETURNING *) SELECT * FROM x",
                "script_parameters",
                "may only read",
            ),
            ("cursor", "SELECT id, name FROM itme", "script_unprepared", "itme"),
            ("cursor", "SELECT id FROM item", "script_columns", "expected id, name"),
            ("cursor", "SELECT name, id FROM item", "script_columns", "expected id, name"),
            ("deletes", "SELECT id, name FROM item", "script_columns", "expected id"),
        ] {
            let findings = found(&[(script, text)])?;
            let is_told = matches!(findings.as_slice(), [(one, message)] if *one == code && message.contains(words));
            ensure!(is_told, "{kind:?} {text}: {findings:?}");
        }
    }
    Ok(())
}

#[test]
fn times_are_not_relied_on_where_transactions_are_hidden() -> Result<()> {
    let (schema, scripts) = stamped(Kind::Postgres);
    let admin = headwater_testkit::Postgres::shared()?.create_database()?;
    let (role, central) = owned_by_a_role(&admin)?;
    central.execute(schema)?;
    let mut world = World::over(central, tempfile::tempdir()?, with_scripts(STAMPED, &scripts)?, &["ann"])?;
    world.start_server()?;
    let codes = |world: &World| -> Result<Vec<(&'static str, String)>> {
        let findings = check(&mut *world.central.backend()?.connect()?, &world.plan)?;
        let hidden = findings.into_iter().filter(|finding| finding.code == "transactions_hidden");
        Ok(hidden.map(|finding| (finding.code, finding.mend)).collect())
    };
    let expected = ("transactions_hidden", format!("GRANT pg_read_all_stats TO \"{role}\""));
    ensure!(codes(&world)? == [expected], "{:?}", codes(&world)?);
    let mut remote = world.remote("one", "ann")?;
    // Somebody else is there, and what he does can't be seen.
    let mut other = Central::Postgres(admin.clone()).backend()?.connect()?;
    other.query("SELECT 1", &[])?;
    ensure!(world.sync(&mut remote).is_err(), "a time was relied on that can't be known");
    headwater_testkit::sql(&admin, &format!("GRANT pg_read_all_stats TO \"{role}\""))?;
    ensure!(codes(&world)?.is_empty());
    world.sync(&mut remote)?;
    Ok(())
}

#[test]
fn no_time_is_taken_beside_an_open_writer() -> Result<()> {
    let (schema, scripts) = stamped(Kind::Sqlite);
    let world = scripted(Kind::Sqlite, schema, STAMPED, &["ann"], &scripts)?;
    let Central::Sqlite(path) = &world.central else { return Ok(()) };
    let mut reader = Sqlite::new(path).busy_timeout(Duration::ZERO).connect()?;
    let writer = rusqlite::Connection::open(path)?;
    writer.execute_batch("BEGIN IMMEDIATE; INSERT INTO item (id, name) VALUES (10, 'late')")?;
    let beside = reader.earliest_start();
    ensure!(matches!(beside, Err(Error::Retry { broken: false, .. })), "{beside:?}");
    writer.execute_batch("COMMIT")?;
    ensure!(reader.earliest_start()?.is_some_and(|time| time > 0));
    Ok(())
}
