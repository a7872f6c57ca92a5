//! How long a query waits for a place to execute, by file, environment and flag.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use headwater_testkit::wait_until;

use super::{Stage, TABLES, get};

/// Goes through more pairs than anybody waits for.
const ENDLESS: &str = "-- public = true\n-- time_out_s = 600\nWITH RECURSIVE n(i) AS \
    (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) \
    SELECT count(*) AS n FROM n AS a, n AS b WHERE a.i + b.i = -1";

/// Asks for what has no end, so that the one place is taken.
fn take_the_place(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET /q/endless.csv HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    stream
}

#[test]
fn a_query_waits_as_long_as_the_flag_then_the_environment_then_the_file_says() {
    let mut stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(TABLES);
    stage.query("endless.sql", ENDLESS);
    stage.configure("executions_max = 1\nwaiting_s_max = 0.1\n");
    let (flag, variable) = (["--set", "gateway.waiting_s_max=0.3"], [("HEADWATER_GATEWAY_WAITING_S_MAX", "0.2")]);
    for (arguments, variables, waited) in
        [(&[][..], &[][..], "100ms"), (&[], &variable, "200ms"), (&flag, &variable, "300ms")]
    {
        let address = stage.serve_with(arguments, variables);
        let busy = take_the_place(&address);
        let mut answer = (String::new(), String::new());
        assert!(wait_until(Duration::from_mins(1), || {
            answer = get(&address, "/q/flights.csv?origin=JFK", "");
            answer.0.starts_with("http/1.1 503")
        }));
        let (head, body) = answer;
        assert!(head.contains("retry-after: ") && head.contains("cache-control: no-store"), "{head}");
        assert!(body.contains(&format!("no query ended for {waited}")), "{body}");
        drop(busy);
        let is_served = || get(&address, "/q/flights.csv?origin=JFK", "").0.starts_with("http/1.1 200");
        assert!(wait_until(Duration::from_mins(1), is_served), "the place is free again");
        stage.stop();
    }
    let (code, _, said) = stage.run(&["serve", "--listen", "127.0.0.1:0", "--set", "gateway.waiting_s_max=0"]);
    assert!(code == Some(2) && said.contains("waiting_s_max is 0, expected more than 0"), "{said}");
}
