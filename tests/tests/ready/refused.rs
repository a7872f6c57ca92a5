//! Who is given none.

use anyhow::{Result, ensure};
use headwater_protocol::client::ReadyAnswer;
use headwater_protocol::message::{AppliedUpload, ErrorCode, Hello, WatermarkEntry, Watermarks};
use headwater_tests::{Central, KINDS, Kind, World, read_model};

use super::{ANN, BOB, CAT, EVE, USERS, ask_file, create, get, hello, promised, warm, world};

/// Memberships that change between the making, the promise and the bytes.
#[test]
fn memberships_are_asked_at_every_request() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 600)?;
        warm(&world, ANN, BOB)?;
        let (file, _) = promised(&world, CAT, 7)?;
        ensure!(get(&world, CAT, 7, &file, 0)?.0 == 200, "{kind:?}: who may");
        world.central.execute("UPDATE member SET region = 'south' WHERE user_name = 'cat-of-the-woods'")?;
        for offset in [0, 4096] {
            let (status, bytes) = get(&world, CAT, 7, &file, offset)?;
            ensure!(status == 410 && bytes.len() < 500, "{kind:?}: a member no more: {status}, {} bytes", bytes.len());
        }
        ensure!(ask_file(&world, CAT, &hello(&world, 9))? == ReadyAnswer::None, "{kind:?}: of another partition now");
        world.central.execute("DELETE FROM member WHERE user_name = 'cat-of-the-woods'")?;
        ensure!(ask_file(&world, CAT, &hello(&world, 10))? == ReadyAnswer::None, "{kind:?}: of none");
        world.central.execute("INSERT INTO member VALUES ('cat-of-the-woods', 'north')")?;
        ensure!(get(&world, CAT, 7, &file, 0)?.0 == 200, "{kind:?}: a member again");
    }
    Ok(())
}

/// An ID is good for the user and the remote that it was promised to.
#[test]
fn a_promise_is_nobody_elses() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    let (file, _) = promised(&world, CAT, 7)?;
    for (user, remote) in [(ANN, 7), (EVE, 7), (CAT, 8), (ANN, 8)] {
        ensure!(get(&world, user, remote, &file, 0)?.0 == 410, "{user} as {remote}");
    }
    ensure!(get(&world, CAT, 7, &file, file.bytes + 1)?.0 == 410, "beyond its end");
    let (status, rest) = get(&world, CAT, 7, &file, file.bytes - 3)?;
    ensure!((status, rest.len()) == (200, 3), "its end: {status}, {} bytes", rest.len());
    ensure!(get(&world, CAT, 7, &file, file.bytes)?.1.is_empty(), "nothing of it");
    Ok(())
}

/// Whoever has seen or sent anything syncs.
#[test]
fn a_remote_that_is_not_new_is_given_none() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    let new = hello(&world, 7);
    let entries = vec![WatermarkEntry { table: 0, partition: Vec::new(), mark: 0 }];
    let seen = Watermarks { marks: vec![vec![1, 2, 3]], entries };
    let not_new = [
        Hello { incarnation: [1; 16], ..new.clone() },
        Hello { upload_sequence: 1, ..new.clone() },
        Hello { download_applied: [1; 16], ..new.clone() },
        Hello { uploads: vec![AppliedUpload { sequence: 1, digest: [1; 8] }], ..new.clone() },
        Hello { watermarks: seen, ..new.clone() },
    ];
    for hello in not_new {
        let answer = ask_file(&world, CAT, &hello)?;
        ensure!(matches!(&answer, ReadyAnswer::ServerError(error) if error.code == ErrorCode::Malformed), "{answer:?}");
    }
    let answer = ask_file(&world, CAT, &Hello { has_upload: true, ..new.clone() })?;
    ensure!(matches!(answer, ReadyAnswer::ServerError(_)), "{answer:?}");
    // One that the database knows better than it says.
    let mut known = world.remote("known", CAT)?;
    world.sync(&mut known)?;
    world.edit("known", "UPDATE item SET body = 'mine' WHERE id = 2")?;
    world.sync(&mut known)?;
    let sql = "SELECT remote_id, secret FROM hw_state";
    let connection = rusqlite::Connection::open(world.path("known"))?;
    let (remote_id, secret) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    ensure!(ask_file(&world, CAT, &Hello { remote_id, secret, ..new.clone() })? == ReadyAnswer::None, "it has sent");
    let answer = ask_file(&world, CAT, &Hello { remote_id, secret: [1; 32], ..new })?;
    ensure!(matches!(&answer, ReadyAnswer::ServerError(error) if error.code == ErrorCode::WrongSecret), "{answer:?}");
    Ok(())
}

/// A file that is there, with tables of the application's or rows that wait to be sent, is never replaced.
#[test]
fn a_file_that_is_there_stays() -> Result<()> {
    let world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    world.edit("there", "CREATE TABLE own (id INTEGER); INSERT INTO own VALUES (1)")?;
    let (mut remote, taken) = create(&world, "there", CAT)?;
    ensure!(taken.is_none(), "{taken:?}");
    world.edit("there", "INSERT INTO item VALUES (8000, 'north', 'c8000', NULL, 'mine')")?;
    let refused = create(&world, "there", CAT).map(|_| ()).expect_err("it is a remote already");
    ensure!(refused.to_string().contains("a remote already"), "{refused}");
    let report = world.sync(&mut remote)?;
    ensure!((report.changes_up, report.rows_down) == (1, 603), "{report:?}");
    ensure!(world.rows("there", "SELECT id FROM own")?.len() == 1 && world.diff("there")?.is_equal(false));
    Ok(())
}

const NOTES: &str = "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, owner TEXT NOT NULL);
    INSERT INTO note VALUES (1, 'ann-of-the-coast'), (2, 'bob-of-the-hills');";
const NOTES_MODEL: &str = "name = \"notes\"\nversion = 1\n[tables.note]\nkey = [\"id\"]\ndirection = \"download\"\n\
    columns = { id = \"int not null\", owner = \"text not null\" }\n";

/// A script that chooses rows by who asks.
#[test]
fn what_a_script_brings_is_made_for_nobody() -> Result<()> {
    for kind in KINDS {
        let text = format!("{NOTES_MODEL}scripts = {{ download_cursor = \"cursor\" }}\n");
        let mut model = read_model(&text)?;
        model.load_scripts(|_| {
            Ok::<_, anyhow::Error>(
                "SELECT id, owner FROM note WHERE owner = :s.user AND :s.last_download IS NOT NULL".to_owned(),
            )
        })?;
        let folder = tempfile::tempdir()?;
        let central = match kind {
            Kind::Sqlite => Central::Sqlite(folder.path().join("central.db")),
            Kind::Postgres => Central::Postgres(headwater_testkit::Postgres::shared()?.create_database()?),
        };
        central.execute(NOTES)?;
        each_has_his_own(World::over(central, folder, model, &USERS)?)?;
    }
    Ok(())
}

/// Row security shows each user other rows.
#[test]
fn what_row_security_shows_is_made_for_nobody() -> Result<()> {
    let admin = headwater_testkit::Postgres::shared()?.create_database()?;
    let name = admin.rsplit('/').next().unwrap_or_default().to_owned();
    let role = format!("server_{name}");
    let sql =
        format!("CREATE ROLE {role} LOGIN; ALTER DATABASE {name} OWNER TO {role}; ALTER SCHEMA public OWNER TO {role}");
    headwater_testkit::sql(&admin, &sql)?;
    let (scheme, rest) = admin.split_once("://").unwrap_or_default();
    let (_, address) = rest.split_once('@').unwrap_or_default();
    let central = Central::Postgres(format!("{scheme}://{role}@{address}"));
    let policies = "ALTER TABLE note ENABLE ROW LEVEL SECURITY; ALTER TABLE note FORCE ROW LEVEL SECURITY;
        CREATE POLICY own ON note USING (owner = current_setting('headwater.user', true))";
    central.execute(&format!("{NOTES}{policies}"))?;
    each_has_his_own(World::over(central, tempfile::tempdir()?, read_model(NOTES_MODEL)?, &USERS)?)
}

/// Whoever comes, and however many have come before: nothing is given, and each gets his own rows.
fn each_has_his_own(mut world: World) -> Result<()> {
    world.config.ready_bytes_min = 0;
    world.start_server()?;
    for (name, user, held) in [("one", ANN, "1"), ("two", BOB, "2"), ("three", BOB, "2"), ("four", ANN, "1")] {
        let (mut remote, taken) = create(&world, name, user)?;
        ensure!(taken.is_none(), "{name}: {taken:?}");
        world.sync(&mut remote)?;
        let rows = world.rows(name, "SELECT id FROM note")?;
        ensure!(rows == [[Some(held.to_owned())]], "{name} holds {rows:?}");
    }
    Ok(())
}
