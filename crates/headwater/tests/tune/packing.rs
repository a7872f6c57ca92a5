//! How full messages get, changed while the server runs: cursors, answers, downloads.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use headwater_protocol::cursor::{Client, Event, Question};
use serde_json::{Value, json};

use super::{CONFIG, PATIENCE, Serving, Stage};

const MANY: &str = "-- public = true\nWITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
                    SELECT i, 'a text' AS t FROM n";

fn stage() -> Stage {
    let stage = Stage::new();
    stage.write("queries/many.sql", MANY);
    stage.write(
        "headwater.toml",
        &CONFIG.replace("# The end.", "# The end.\n[gateway.cursor] # prefetched\nidle_s = 30"),
    );
    stage
}

/// Rows of each message of a cursor.
fn messages(server: &Serving) -> Vec<u64> {
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let head = "GET /cursor HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: headwater-cursor/1\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut byte = [0];
    let mut came = Vec::new();
    while !came.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        came.push(byte[0]);
    }
    assert!(came.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&came));
    let mut client = Client::new(1 << 22);
    client.open(Question::Named("many".to_owned(), Vec::new()), 1 << 20).expect("small");
    stream.write_all(&client.take_out()).expect("sent");
    let (mut rows, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        match client.poll().expect("a sound server") {
            Some(Event::Rows(_, batch)) => rows.push(batch.len()),
            Some(Event::End(_, all)) => {
                assert_eq!(rows.iter().sum::<u64>(), all);
                return rows;
            }
            Some(Event::Welcome(_) | Event::Columns(..)) => {}
            Some(other) => panic!("{other:?}"),
            None => {
                let count = stream.read(&mut buffer).expect("more");
                assert!(count > 0, "it broke off");
                client.push(&buffer[..count]);
            }
        }
    }
}

#[test]
fn messages_of_a_cursor_get_smaller_and_stay_so_when_it_is_saved() {
    let stage = stage();
    let server = stage.serve(&[]);
    let automatic = messages(&server);
    assert!(automatic[0] == 1 && automatic.len() < 100, "{automatic:?}");
    assert_eq!(stage.ok(&["tune", "gateway.cursor.records=1"]), "gateway.cursor.records: automatic -> 1\n");
    assert!(messages(&server).iter().all(|rows| *rows == 1));
    stage.ok(&["tune", "gateway.cursor.records=100", "gateway.cursor.delay_first=true"]);
    assert_eq!(messages(&server), [100; 30]);
    for (wanted, words) in [
        ("gateway.cursor.records=0", "gateway.cursor.records is \"0\", expected automatic, or 1 to 32766"),
        ("gateway.cursor.idle_wait_ms=0", "expected 1 to 255000"),
        ("gateway.packing.priority=1", "there is no knob \"gateway.packing.priority\""),
    ] {
        stage.refused(&["tune", "gateway.cursor.fill=7", wanted], 2, words);
    }
    assert_eq!(messages(&server), [100; 30]);

    // Into sections that are there, and into those that are not.
    stage.ok(&[
        "tune",
        "server.packing.records=50",
        "gateway.packing.fill=50",
        "gateway.cursor.message_size=4000",
        "--save",
    ]);
    let before = stage.read("headwater.toml");
    assert!(before.contains("idle_s = 30\nmessage_size = 4000\n"), "{before}");
    stage.ok(&["tune", "--save"]);
    let text = stage.read("headwater.toml");
    let expected = CONFIG
        .replace("# The answers:\n[gateway]", "\n[server.packing]\nrecords = 50\n# The answers:\n[gateway]")
        .replace(
            "# The end.",
            "# The end.\n[gateway.cursor] # prefetched\nidle_s = 30\nmessage_size = 4000\nrecords = 100\ndelay_first = true\n\n[gateway.packing]\nfill = 50",
        );
    assert_eq!(text, expected);
    server.stop();

    let server = stage.serve(&[]);
    assert_eq!(messages(&server), [100; 30]);
    let told: Value = serde_json::from_str(&stage.ok(&["tune", "--json"])).expect("JSON");
    let value = |name: &str| {
        let knobs = told["knobs"].as_array().expect("a list");
        knobs.iter().find(|knob| knob["name"] == name).map(|knob| knob["value"].clone()).expect(name)
    };
    assert_eq!((value("server.packing.records"), value("gateway.packing.fill")), (json!(50), json!(50)));
    server.stop();
    // The environment goes before the file, and an argument before both.
    let variables = [("HEADWATER_GATEWAY_CURSOR_RECORDS", "60"), ("HEADWATER_SERVER_PACKING_RECORDS", "9")];
    let server = stage.serve_with(&[], &variables);
    assert_eq!(messages(&server), [60; 50]);
    assert!(stage.ok(&["tune", "server.packing.records"]).contains("  9 "));
    server.stop();
    let server = stage.serve(&["--set", "gateway.cursor.records=30", "--set", "packing.records=8"]);
    assert_eq!(messages(&server), [30; 100]);
    assert!(stage.ok(&["tune", "server.packing.records"]).contains("  8 "));
    server.stop();
}
