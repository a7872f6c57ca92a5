//! The same gateway as a client of others reads it, where `HEADWATER_FRONTIER_CLIENT` names one.
//!
//! It is called as the deployed client's `fn-req` is: the server's URL is in `FRONTIER_SERVER`, SQL comes on standard input, and each row goes to
//! standard output as a line, `'1' 'alpha'`; NULL is `NULL`. What else it says there begins with no quote. An error is an exit code.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use headwater_lab::frontier::{Answer, Request};

use super::{Gateway, SQL, rows};

const PROGRAM: &str = "HEADWATER_FRONTIER_CLIENT";

/// What the client prints of an answer's rows.
fn lines(answer: &Answer) -> Vec<String> {
    let field = |field: &Option<String>| field.as_ref().map_or("NULL".to_owned(), |text| format!("'{text}'"));
    rows(answer).iter().map(|row| row.iter().map(field).collect::<Vec<_>>().join(" ")).collect()
}

/// What a client of others does with some SQL.
fn run(program: &OsStr, gateway: &Gateway, sql: &str) -> Output {
    let mut command = Command::new(program);
    command.env("FRONTIER_SERVER", format!("(serverurl=http://{}/X)", gateway.address));
    for proxy in ["FRONTIER_PROXY", "http_proxy", "HTTP_PROXY"] {
        command.env_remove(proxy);
    }
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap_or_else(|error| panic!("{PROGRAM} is {}: {error}", program.display()));
    child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn rows_are_the_same_by_the_own_client_and_by_one_of_others() {
    let program = std::env::var_os(PROGRAM);
    if program.is_none() {
        // Not by the macro, whose words are seen of tests alone that fail.
        let _ =
            writeln!(std::io::stderr(), "{PROGRAM} names no client of others: the lab's own reads the gateway alone");
    }
    let numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) select i from n";
    let slow = "select id from t, (select pg_sleep(5.5)) as s where id = 1";
    for gateway in Gateway::both() {
        gateway.sql("CREATE TABLE letters (word text); INSERT INTO letters VALUES ('gr\u{f6}\u{df}e \u{1f30a} <&>')");
        for (sql, expected) in [
            (SQL, vec!["'1' 'alpha'".to_owned(), "'2' NULL".to_owned(), "'3' ''".to_owned()]),
            ("select word from letters", vec!["'gr\u{f6}\u{df}e \u{1f30a} <&>'".to_owned()]),
            ("select id from t where id = 9", Vec::new()),
            (numbers, (1..=5000).map(|number| format!("'{number}'")).collect()),
            (slow, vec!["'1'".to_owned()]),
        ] {
            // The own client has a test of its own for what lasts longer, and SQLite does not sleep.
            if sql == slow && (program.is_none() || gateway.url.starts_with("sqlite:")) {
                continue;
            }
            assert!(lines(&gateway.ask(&Request::new(sql)).expect(sql)) == expected, "{sql}");
            let Some(program) = &program else { continue };
            let done = run(program, &gateway, sql);
            assert!(done.status.success(), "{sql}: {done:?}");
            let printed = String::from_utf8(done.stdout).expect("UTF-8");
            let printed: Vec<&str> = printed.lines().filter(|line| line.starts_with('\'')).collect();
            assert_eq!(printed, expected, "{sql}");
        }
        let wrong = "select absent from t";
        assert!(gateway.ask(&Request::new(wrong)).is_err());
        if let Some(program) = &program {
            assert!(!run(program, &gateway, wrong).status.success(), "{wrong} is an error");
        }
    }
}
