//! The throw-away MariaDB does what tests rely on: real databases, a server that can be killed, and nothing left behind.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use headwater_testkit::mariadb::USER;
use headwater_testkit::{MariaDb, wait_until};

#[test]
fn databases_are_apart_and_passwords_are_asked_for() -> Result<()> {
    let server = MariaDb::shared()?;
    let (one, other) = (server.create_database()?, server.create_database()?);
    server
        .sql(&one, "CREATE TABLE t (id bigint PRIMARY KEY, note text); INSERT INTO t VALUES (1, NULL), (2, 'two')")?;
    assert_eq!(server.sql(&one, "SELECT id, note FROM t ORDER BY id")?, ["1\tNULL", "2\ttwo"]);
    assert!(server.sql(&other, "SELECT * FROM t").is_err(), "the other database has no such table");
    for (password, is_right) in [(USER.1, true), ("wrong", false)] {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--host=127.0.0.1", "--execute", "SELECT 1"]).arg(format!("--user={}", USER.0));
        client.arg(format!("--port={}", server.port())).arg(format!("--password={password}"));
        assert_eq!(client.output()?.status.success(), is_right, "{password}");
    }
    Ok(())
}

#[test]
fn a_killed_server_is_gone_and_so_are_its_files() -> Result<()> {
    let server = MariaDb::start()?;
    let folder = server.sql("", "SELECT @@datadir")?.remove(0);
    server.kill()?;
    assert!(server.sql("", "SELECT 1").is_err());
    drop(server);
    assert!(wait_until(Duration::from_secs(10), || !std::path::Path::new(&folder).exists()), "{folder} is left");
    Ok(())
}
