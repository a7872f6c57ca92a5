//! SQL of the Frontier protocol is run by a role of its own, which can't read the accounts.

use std::time::Duration;

use headwater_lab::frontier::Request;
use headwater_testkit::{MariaDb, wait_until};

use super::{FRONTIER, Stage, get, postgres};

const ID: &str = "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n";
const PATIENCE: Duration = Duration::from_mins(1);

/// A role that may read what lies in the schema `public`, now and later, and nothing else; the database's address with it.
pub(super) fn role(url: &str) -> String {
    let name = format!("client_{}", url.rsplit('/').next().expect("a database"));
    let made = format!(
        "CREATE ROLE {name} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name};
         ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {name}"
    );
    headwater_testkit::sql(url, &made).expect("made");
    url.replace("postgres://postgres@", &format!("postgres://{name}@"))
}

/// A server's configuration, with the Frontier protocol for this machine.
fn stage(url: &str, more: &str) -> Stage {
    let stage = if url.starts_with("mariadb:") { Stage::alone(url) } else { Stage::new(url) };
    stage.configure(&format!("{FRONTIER}{more}\n"));
    stage
}

/// What the server says that does not start.
fn refused(stage: &Stage, arguments: &[&str]) -> String {
    // One that starts all the same ends at once.
    let (code, _, said) = stage.run(&[&["serve", "--listen", "127.0.0.1:0", "--until-input-ends"], arguments].concat());
    assert_eq!(code, Some(2), "{said}");
    said
}

fn ask(address: &str, sql: &str) -> String {
    get(address, &format!("/X/Frontier/{}", Request::new(sql).target()), ID).1
}

#[test]
fn a_server_whose_role_can_read_the_accounts_runs_no_sql_of_clients() {
    let url = postgres();
    let mut stage = stage(&url, "");
    for arguments in [&[][..], &["--no-check"]] {
        let said = refused(&stage, arguments);
        for words in [
            "which can read headwater.account, headwater.identity, headwater.remote",
            "url under [gateway.frontier]",
            "CREATE ROLE frontier LOGIN PASSWORD '...'; GRANT SELECT ON ",
            "reads_accounts = true",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
    }
    let wanted = stage.serve_with(&["--set", "gateway.frontier.reads_accounts=true"], &[]);
    assert!(ask(&wanted, "select count(*) from headwater.account").contains("records=\"1\""));
    stage.stop();
    let said = refused(&stage, &["--set", &format!("gateway.frontier.url={url}")]);
    assert!(said.contains("the role of [gateway.frontier] url"), "{said}");
}

/// The tables of accounts may be made while it runs, by the same role; and a superuser reads those of other databases from their files.
#[test]
fn the_servers_own_role_runs_no_sql_of_clients_even_where_there_are_no_accounts_yet() {
    let alone = |url: &str, more: &str| {
        let stage = Stage::alone(url);
        stage.configure(&format!("{FRONTIER}{more}"));
        stage
    };
    let url = postgres();
    headwater_testkit::sql(&url, &super::TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables");
    let owner = role(&url);
    let said = refused(&alone(&owner, ""), &[]);
    assert!(said.contains("the role of [database] url") && said.contains("as soon as it has made them"), "{said}");
    let elsewhere = postgres();
    let said = refused(&alone(&owner, &format!("url = {elsewhere:?}\n")), &[]);
    assert!(said.contains("which can read the files of the server, those of other databases too"), "{said}");
}

/// Named by the file, by the environment, and by an argument.
#[test]
fn sql_of_clients_is_run_by_a_role_of_its_own() {
    let url = postgres();
    let role = role(&url);
    let named = format!("gateway.frontier.url={role}");
    let file = format!("url = {role:?}");
    headwater_testkit::sql(&url, "CREATE TABLE own (a int)").expect("made");
    for (more, arguments, variables) in [
        (&*file, &[][..], &[][..]),
        ("", &["--set", &named], &[]),
        ("", &[], &[("HEADWATER_GATEWAY_FRONTIER_URL", role.as_str())]),
    ] {
        // The server's own database is another.
        let mut stage = stage(&postgres(), more);
        let address = stage.serve_with(arguments, variables);
        let who = role.rsplit('/').next().map(|name| format!("client_{name}")).expect("a name");
        let said = ask(&address, &format!("select count(*) from own where current_user = '{who}'"));
        assert!(said.contains("records=\"1\""), "{said}");
    }
}

#[test]
fn a_role_that_is_granted_too_much_later_runs_no_more_sql() {
    let url = postgres();
    let mut stage = stage(&url, &format!("url = {:?}", role(&url)));
    let address = stage.serve();
    for sql in [
        "select password_hash from headwater.account",
        "select query_to_xml('select * from headwater.account', true, true, '')::text as x",
        "select set_config('role', 'postgres', false)",
        "select id from flight) as q; create table made (a int); commit; select from (select 1",
    ] {
        for _ in 0..3 {
            let said = ask(&address, sql);
            assert!(said.contains("quality error=\"1\""), "{sql}: {said}");
        }
    }
    assert!(headwater_testkit::sql(&url, "SELECT FROM made").is_err());
    let good = || ask(&address, "select id from flight");
    assert!(good().contains("records=\"3\""));
    let name = format!("client_{}", url.rsplit('/').next().expect("a database"));
    headwater_testkit::sql(&url, &format!("GRANT SELECT ON headwater.account TO {name}")).expect("granted");
    assert!(wait_until(PATIENCE, || good().contains("quality error=\"1\"")), "it is run all the same");
}

/// Whether a table has changed is told by the server's own role.
#[test]
fn what_tracked_tables_gave_is_given_again_until_they_change() {
    let url = postgres();
    let mut stage = stage(&url, &format!("url = {:?}", role(&url)));
    let address = stage.serve();
    let has = |records: u32| ask(&address, "select id from flight").contains(&format!("records=\"{records}\""));
    // It is looked into once it is asked again, and known of what is made from then on.
    assert!(has(3) && has(3));
    let insert = |id: u32| format!("INSERT INTO flight VALUES ({id}, 'JFK', 1, 1)");
    // Nothing is on record of it.
    headwater_testkit::sql(&url, &format!("{}; DELETE FROM headwater.table_change", insert(4))).expect("inserted");
    assert!(has(3), "the statement is not run");
    headwater_testkit::sql(&url, &insert(5)).expect("inserted");
    assert!(has(5));
}

/// It is the caller's to mend, so it is told what: the log has nothing of it.
#[test]
fn a_statement_that_no_database_takes_is_told_as_that() {
    let url = postgres();
    for (url, more) in [(url.as_str(), format!("url = {:?}", role(&url))), ("sqlite:HERE/central.db", String::new())] {
        let mut stage = stage(url, &more);
        let address = stage.serve();
        let nul = "has a character that no database takes (NUL)";
        assert!(ask(&address, "select id from flight -- a\0b").contains(&format!("the SQL {nul}")));
        assert!(ask(&address, "select id from flight where origin = ?:a\0b").contains(&format!("value 1 {nul}")));
        if url.starts_with("postgres") {
            let said = ask(&address, "select pg_sleep(0)");
            assert!(said.contains("has the type void, which has no form here: cast it, as pg_sleep::text"), "{said}");
        }
        assert!(!stage.log().contains("ERROR"), "{}", stage.log());
    }
}

/// A day that is said by a word is another one tomorrow, whatever the tables say.
#[test]
fn what_depends_on_the_day_is_run_each_time() {
    let url = postgres();
    let mut stage = stage(&url, &format!("url = {:?}", role(&url)));
    let address = stage.serve();
    let mut id = 3;
    for (condition, is_run) in [
        ("date '2020-01-01' < ?:3000-01-01", false),
        ("date '2020-01-01' < ?:tomorrow", true),
        ("date '2020-01-01' < ?:, TODAY", true),
        ("date '2020-01-01' < 'today'", true),
        ("date '2020-01-01' < $$ NOW $$", true),
        ("'nowhere' = ?:nowhere", false),
    ] {
        let has = |records: u32| {
            let said = ask(&address, &format!("select id from flight where {condition}"));
            said.contains(&format!("records=\"{records}\""))
        };
        assert!(has(id) && has(id), "{condition}");
        let insert = format!("INSERT INTO flight VALUES ({}, 'JFK', 1, 1)", id + 1);
        headwater_testkit::sql(&url, &format!("{insert}; DELETE FROM headwater.table_change")).expect("inserted");
        id += 1;
        assert!(has(if is_run { id } else { id - 1 }), "{condition}");
    }
}

#[test]
fn a_user_of_mariadb_that_can_read_accounts_runs_no_sql_of_clients() {
    // Of its own: a table of accounts in any database counts.
    let server = MariaDb::start().expect("a server");
    let (url, name) = super::mariadb::fresh(&server);
    // The tests' own may do anything.
    let mut alone = stage(&url, "");
    let said = refused(&alone, &[]);
    assert!(said.contains("which can read the files of the server, by the privilege FILE"), "{said}");
    let reader = super::mariadb::client(&server, &name);
    alone.serve_with(&["--set", &format!("gateway.frontier.url={reader}")], &[]);
    alone.stop();
    server.sql(&name, "CREATE TABLE headwater_account (user_name text, password_hash text)").expect("made");
    let said = refused(&alone, &["--set", &format!("gateway.frontier.url={reader}")]);
    assert!(said.contains(&format!("{name}.headwater_account")) && said.contains("CREATE USER frontier"), "{said}");
    let user = format!("granted_{name}");
    let grants = format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT SELECT ON flight TO {user}");
    server.sql(&name, &grants).expect("granted");
    let own = format!("gateway.frontier.url=mariadb://{user}:secret@127.0.0.1:{}/{name}", server.port());
    let address = alone.serve_with(&["--set", &own], &[]);
    assert!(ask(&address, "select id from flight").contains("records=\"3\""));
    assert!(ask(&address, "select password_hash from headwater_account").contains("quality error=\"1\""));
}
