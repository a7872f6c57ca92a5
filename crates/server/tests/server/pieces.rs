//! Uploads that come in pieces: what is taken, what is refused, and that nothing of it is lost, doubled or another's.

use headwater_access::{Credentials, Secret, hash_password};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend as _, system};
use headwater_protocol::message::{Change, ErrorCode, Hello, Receipt, ServerError, Ticket, UploadEnd};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Frame, Kind, Type, Value};
use headwater_server::Config;

use crate::support::{Answer, Client, Stand, anna, bytes, config, end};

/// An upload of some rows by one remote: its frames, and what asks for its ticket.
struct Upload {
    remote: u8,
    end: UploadEnd,
    bytes: Vec<u8>,
}

impl Upload {
    fn of(stand: &Stand, remote: u8, rows: i64) -> Upload {
        let mut payload = Vec::new();
        for id in 0..rows {
            let row = vec![Value::Int(id), Value::text(format!("row {id}"))];
            Change { old: None, new: Some(row) }.write(&mut payload, &[Type::Int, Type::Text]);
        }
        let frames = [stand.plan.tables[0].header.to_frame(), Frame::new(Kind::Changes, payload)];
        let mut digest = Digest::new();
        for frame in &frames {
            digest.add(frame.kind, &frame.payload(1 << 30).expect("a payload"));
        }
        let end = UploadEnd { sequence: 1, changes: rows as u64, digest: digest.finish() };
        Upload { remote, end, bytes: bytes(&frames) }
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let remote = u128::from_be_bytes([self.remote; 16]);
        let digest: Vec<String> = self.end.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        vec![
            ("Headwater-Remote-Id", format!("{remote:032x}")),
            ("Headwater-Bytes", self.bytes.len().to_string()),
            ("Headwater-Digest", digest.concat()),
        ]
    }

    fn ask(&self, stand: &Stand) -> (String, u64) {
        let answer = send(stand, "POST", "/v1/upload", &anna(), &self.headers(), &[]);
        assert_eq!(answer.status, 200, "{:?}", String::from_utf8_lossy(&answer.body));
        let given = answer.json();
        let ticket = given["ticket"].as_str().expect("a ticket");
        (ticket.to_owned(), given["offset"].as_u64().expect("an offset"))
    }

    fn put(&self, stand: &Stand, ticket: &str, from: usize, until: usize) -> Answer {
        put(stand, &anna(), ticket, &from.to_string(), &self.bytes[from..until])
    }

    fn sync(&self, stand: &Stand, ticket: &str, bytes: u64) -> Answer {
        self.sync_as(stand, &anna(), self.remote, ticket, bytes)
    }

    fn sync_as(&self, stand: &Stand, who: &Credentials, remote: u8, ticket: &str, bytes: u64) -> Answer {
        let hello = Hello { has_upload: true, ..stand.hello(remote) };
        let ticket = u128::from_str_radix(ticket, 16).expect("hex").to_be_bytes();
        let request = [hello.to_frame(), Ticket { ticket, bytes }.to_frame(), self.end.to_frame(), end()];
        send(stand, "POST", "/v1/sync", who, &[], &crate::support::bytes(&request))
    }

    fn whole(&self, stand: &Stand, ticket: &str) -> Answer {
        self.sync(stand, ticket, self.bytes.len() as u64)
    }
}

fn send(stand: &Stand, method: &str, path: &str, who: &Credentials, headers: &[(&str, String)], body: &[u8]) -> Answer {
    let mut client = Client::connect(stand.address);
    let (authorization, length) = (who.to_header().expose().to_owned(), body.len().to_string());
    let mut lines = vec![format!("{method} {path} HTTP/1.1"), "Host: headwater".to_owned()];
    let own = [("Authorization", authorization), ("Content-Length", length)];
    lines.extend(headers.iter().chain(&own).map(|(name, value)| format!("{name}: {value}")));
    client.send(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes());
    client.send(body);
    if method == "PUT" { client.answer_or_empty() } else { client.answer() }
}

fn put(stand: &Stand, who: &Credentials, ticket: &str, offset: &str, body: &[u8]) -> Answer {
    send(stand, "PUT", &format!("/v1/upload/{ticket}?offset={offset}"), who, &[], body)
}

fn refusal(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"].as_str().expect("an error").to_owned())
}

fn stands_at(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("headwater-offset"))
}

fn bert(stand: &Stand) -> Credentials {
    let hash = hash_password(&Secret::new("secret")).expect("a hash");
    let mut connection = Sqlite::new(stand.file()).connect().expect("a connection");
    assert!(system::add_account(&mut *connection, "bert", &hash).expect("an account"));
    Credentials::Password { user: "bert".into(), password: Secret::new("secret") }
}

#[test]
fn an_upload_in_pieces_is_applied_once() {
    let stand = Stand::start(Config { kept_ms: 60_000, ..config() });
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, offset) = upload.ask(&stand);
    assert_eq!(offset, 0);
    assert_eq!(upload.put(&stand, &ticket, 0, 1000).status, 204);
    assert_eq!(upload.ask(&stand), (ticket.clone(), 1000), "whoever asks again goes on where it stands");
    assert_eq!(upload.put(&stand, &ticket, 1000, upload.bytes.len()).status, 204);
    let answer = upload.whole(&stand, &ticket);
    assert!(answer.is_complete());
    let receipt = Receipt::from_payload(&answer.payload(Kind::Receipt)).expect("a receipt");
    assert_eq!(receipt, Receipt { sequence: 1, changes: 500, outcomes: Vec::new() });
    assert_eq!(stand.items(), 500);
    let ready = stand.wait_until("the upload over", |ready| ready["syncs"] == 0);
    assert_eq!([&ready["uploads_in_pieces"], &ready["uploads_kept"]], [0, 1], "none is on its way");
    // The receipt was lost: the ticket still is good for another.
    let again = upload.whole(&stand, &ticket);
    assert_eq!(again.payload(Kind::Receipt), answer.payload(Kind::Receipt));
    assert_eq!(stand.items(), 500);
    // The next sync of the remote shows that it has come.
    assert!(stand.sync(&stand.download(1)).is_complete());
    stand.wait_until_idle();
    let ready = stand.ready();
    assert_eq!([&ready["uploads_in_pieces"], &ready["uploads_kept"]], [0, 0]);
}

/// What was applied is held for a lost receipt, and in nobody's way.
#[test]
fn an_upload_that_was_applied_goes_for_whoever_finds_no_room() {
    let stand = Stand::start_small(Config { kept_ms: 60_000, ..config() }, 40_000, 40_960);
    let [first, second] = [1, 2].map(|remote| Upload::of(&stand, remote, 4_000));
    let all = first.bytes.len();
    assert!((45_000..70_000).contains(&all), "{all} bytes: one finds room, and two don't");
    let applied = |upload: &Upload| {
        let (ticket, offset) = upload.ask(&stand);
        assert_eq!(offset, 0);
        assert_eq!(upload.put(&stand, &ticket, 0, all).status, 204);
        let answer = upload.whole(&stand, &ticket);
        assert!(answer.is_complete());
        (ticket, answer.payload(Kind::Receipt))
    };
    let (ticket, receipt) = applied(&first);
    assert_eq!(first.ask(&stand), (ticket.clone(), all as u64), "it is held");
    applied(&second);
    // The first remote never got its receipt: it sends its upload again, for the same.
    assert_eq!(first.whole(&stand, &ticket).error().code, ErrorCode::TicketUnknown);
    assert_eq!(applied(&first), (ticket, receipt));
    assert_eq!(stand.items(), 4_000);
    // What is on its way goes for nobody.
    let third = Upload::of(&stand, 3, 4_000);
    let (ticket, _) = third.ask(&stand);
    assert_eq!(third.put(&stand, &ticket, 0, all).status, 204, "the second goes for it, and the first");
    let fourth = Upload::of(&stand, 4, 4_000);
    let (other, _) = fourth.ask(&stand);
    assert_eq!(refusal(&fourth.put(&stand, &other, 0, all)), (503, "overloaded".into()));
    assert!(third.whole(&stand, &ticket).is_complete());
    // A download finds its room there too.
    assert_eq!(stand.ready()["uploads_kept"], 1);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 10400) INSERT INTO item SELECT i, hex(randomblob(100)) FROM n";
    assert_eq!(stand.database().execute(sql, []).expect("rows"), 401);
    let answer = stand.sync(&stand.download(5));
    assert!(answer.is_complete() && answer.rows() == 4_401);
    assert_eq!(stand.ready()["uploads_kept"], 0);
}

#[test]
fn uploads_that_were_applied_take_nobodys_ticket() {
    let stand = Stand::start(Config {
        tickets_max: 2,
        tickets_per_user_max: 1,
        tickets_bytes_max: 9_000,
        kept_ms: 60_000,
        ..config()
    });
    for remote in 1..4 {
        let upload = Upload::of(&stand, remote, 500);
        let (ticket, _) = upload.ask(&stand);
        assert_eq!(upload.put(&stand, &ticket, 0, upload.bytes.len()).status, 204);
        assert!(upload.whole(&stand, &ticket).is_complete());
    }
    let upload = Upload::of(&stand, 4, 500);
    upload.ask(&stand);
    let answer = send(&stand, "POST", "/v1/upload", &anna(), &Upload::of(&stand, 5, 500).headers(), &[]);
    assert_eq!(refusal(&answer), (503, "overloaded".into()), "one that is on its way has its own");
    // Those that nobody asks for are forgotten as downloads are.
    let stand = Stand::start(Config { kept_ms: 1, ..config() });
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    assert_eq!(upload.put(&stand, &ticket, 0, upload.bytes.len()).status, 204);
    assert!(upload.whole(&stand, &ticket).is_complete());
    stand.wait_until("it forgotten", |ready| ready["uploads_kept"] == 0);
    stand.wait_until_idle();
}

#[test]
fn a_piece_has_its_place_and_no_other() {
    let stand = Stand::start(config());
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    assert_eq!(upload.put(&stand, &ticket, 0, 2000).status, 204);
    for (from, until) in [(0, 2000), (1000, 3000), (2500, 3000), (1999, 2000), (2001, 2001)] {
        assert_eq!(stands_at(&upload.put(&stand, &ticket, from, until)), (409, Some("2000")), "{from} to {until}");
    }
    assert_eq!(upload.put(&stand, &ticket, 2000, 2000).status, 204, "nothing at its place");
    // A piece that breaks leaves what has come of it.
    let mut client = Client::connect(stand.address);
    let authorization = anna().to_header().expose().to_owned();
    let head = format!(
        "PUT /v1/upload/{ticket}?offset=2000 HTTP/1.1\r\nHost: headwater\r\nAuthorization: {authorization}\r\nContent-Length: 1000\r\n\r\n"
    );
    client.send(head.as_bytes());
    client.send(&upload.bytes[2000..2100]);
    stand.wait_until("a part of the piece", |_| upload.ask(&stand).1 == 2100);
    drop(client);
    assert_eq!(upload.put(&stand, &ticket, 2100, upload.bytes.len()).status, 204);
    let answer = put(&stand, &anna(), &ticket, &upload.bytes.len().to_string(), b"x");
    assert_eq!(refusal(&answer), (413, "too_large".into()), "more than was announced");
    assert!(upload.whole(&stand, &ticket).is_complete(), "it is whole all the same");
    assert_eq!(stand.items(), 500);
}

#[test]
fn what_is_malformed_or_too_large_is_refused_by_name() {
    let stand = Stand::start(Config { piece_bytes: 2000, upload_bytes_max: 100_000, ..config() });
    let upload = Upload::of(&stand, 1, 500);
    let with = |name: &str, value: &str| {
        let headers: Vec<_> =
            upload.headers().into_iter().map(|(n, v)| if n == name { (n, value.to_owned()) } else { (n, v) }).collect();
        send(&stand, "POST", "/v1/upload", &anna(), &headers, &[])
    };
    for (name, value) in [
        ("Headwater-Remote-Id", "12"),
        ("Headwater-Bytes", "many"),
        ("Headwater-Bytes", "-1"),
        ("Headwater-Digest", ""),
        ("Headwater-Digest", "zz"),
    ] {
        let answer = with(name, value);
        assert_eq!(refusal(&answer), (400, "malformed".into()), "{name}: {value}");
        let message = answer.json()["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(name) && message.contains("expected"), "{message}");
    }
    assert_eq!(refusal(&with("Headwater-Bytes", "100001")), (413, "too_large".into()));
    let (ticket, _) = upload.ask(&stand);
    for (ticket, offset) in [("12", "0"), (ticket.as_str(), "x"), (ticket.as_str(), "")] {
        assert_eq!(
            refusal(&put(&stand, &anna(), ticket, offset, b"x")),
            (400, "malformed".into()),
            "{ticket} {offset}"
        );
    }
    let far = put(&stand, &anna(), &ticket, &u64::MAX.to_string(), b"x");
    assert_eq!(stands_at(&far), (409, Some("0")));
    assert_eq!(refusal(&upload.put(&stand, &ticket, 0, 2001)), (413, "too_large".into()));
    assert_eq!(upload.put(&stand, &ticket, 0, 2000).status, 204);
    let nobody = Credentials::Password { user: "anna".into(), password: Secret::new("guess") };
    let answer = send(&stand, "POST", "/v1/upload", &nobody, &upload.headers(), &[]);
    assert_eq!(refusal(&answer), (401, "unauthenticated".into()));
    assert_eq!(refusal(&put(&stand, &nobody, &ticket, "2000", b"x")), (401, "unauthenticated".into()));
}

#[test]
fn a_ticket_is_of_no_use_to_anybody_else() {
    let stand = Stand::start(config());
    let bert = bert(&stand);
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    assert_eq!(upload.put(&stand, &ticket, 0, 1000).status, 204);
    assert_eq!(refusal(&put(&stand, &bert, &ticket, "1000", b"x")), (404, "ticket_unknown".into()));
    let own = send(&stand, "POST", "/v1/upload", &bert, &upload.headers(), &[]).json();
    assert_ne!(
        own["ticket"].as_str(),
        Some(ticket.as_str()),
        "the same upload of another user has a ticket of its own"
    );
    assert_eq!(own["offset"], 0);
    assert_eq!(upload.put(&stand, &ticket, 1000, upload.bytes.len()).status, 204);
    let bytes = upload.bytes.len() as u64;
    let unknown = |answer: &Answer| answer.error().code == ErrorCode::TicketUnknown && stand.items() == 0;
    assert!(unknown(&upload.sync_as(&stand, &bert, 1, &ticket, bytes)), "another user");
    assert!(unknown(&upload.sync_as(&stand, &anna(), 2, &ticket, bytes)), "another remote");
    assert!(unknown(&upload.sync(&stand, &"ab".repeat(16), bytes)), "another ticket");
    assert!(unknown(&upload.sync(&stand, &ticket, bytes - 1)), "not all of it");
    let other = Upload { end: UploadEnd { digest: [7; 32], ..upload.end }, ..Upload::of(&stand, 1, 500) };
    assert!(unknown(&other.sync(&stand, &ticket, bytes)), "another upload");
    let text = |error: ServerError| error.message;
    assert!(text(upload.sync_as(&stand, &bert, 1, &ticket, bytes).error()).contains("ask for one"));
    assert!(upload.whole(&stand, &ticket).is_complete());
    assert_eq!(stand.items(), 500);
}

/// A byte that was damaged on its way: what was before it stays.
#[test]
fn what_came_damaged_comes_again() {
    let stand = Stand::start(config());
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    let mut damaged = upload.bytes.clone();
    let place = damaged.len() - 10;
    damaged[place] ^= 1;
    assert_eq!(put(&stand, &anna(), &ticket, "0", &damaged).status, 204);
    assert_eq!(upload.whole(&stand, &ticket).error().code, ErrorCode::Damaged);
    let (same, offset) = upload.ask(&stand);
    assert!(same == ticket && offset > 0 && offset < upload.bytes.len() as u64, "{offset}: TABLE is there");
    assert_eq!(upload.put(&stand, &ticket, offset as usize, upload.bytes.len()).status, 204);
    assert!(upload.whole(&stand, &ticket).is_complete());
    // Frames that are sound, but not those of the digest.
    let other = Upload { remote: 2, end: UploadEnd { digest: [7; 32], ..upload.end }, bytes: upload.bytes.clone() };
    let (ticket, _) = other.ask(&stand);
    assert_eq!(other.put(&stand, &ticket, 0, other.bytes.len()).status, 204);
    assert_eq!(other.whole(&stand, &ticket).error().code, ErrorCode::Malformed);
    assert_eq!((stand.items(), other.ask(&stand).1), (500, 0), "it starts again");
}

#[test]
fn tickets_are_bounded_and_forgotten_in_time() {
    let stand = Stand::start(Config { tickets_max: 3, tickets_per_user_max: 2, tickets_bytes_max: 9_000, ..config() });
    let (anna, bert) = (anna(), bert(&stand));
    let [first, second, third] = [1, 2, 3].map(|remote| Upload::of(&stand, remote, 500));
    let (ticket, _) = first.ask(&stand);
    second.ask(&stand);
    let ask = |who, upload: &Upload| send(&stand, "POST", "/v1/upload", who, &upload.headers(), &[]);
    assert_eq!(refusal(&ask(&anna, &third)), (503, "overloaded".into()), "two of one user");
    assert_eq!(ask(&bert, &third).status, 200);
    assert_eq!(refusal(&ask(&bert, &Upload::of(&stand, 4, 500))), (503, "overloaded".into()), "three in all");
    assert!(ask(&anna, &third).header("retry-after").is_some());
    assert_eq!(ask(&anna, &Upload::of(&stand, 2, 400)).status, 200, "another upload in the place of its own");
    assert_eq!(first.put(&stand, &ticket, 0, 5_000).status, 204);
    let (other, _) = Upload::of(&stand, 2, 400).ask(&stand);
    assert_eq!(refusal(&put(&stand, &anna, &other, "0", &[0; 4_500])), (503, "overloaded".into()), "bytes of all");
    assert_eq!(upload_stands(&first, &stand), 5_000, "what has come stays");

    let stand = Stand::start(Config { ticket_ms: 1, ..config() });
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    stand.wait_until_idle();
    stand.wait_until("the ticket forgotten", |ready| ready["uploads_in_pieces"] == 0);
    assert_eq!(refusal(&upload.put(&stand, &ticket, 0, 10)), (404, "ticket_unknown".into()));
}

fn upload_stands(upload: &Upload, stand: &Stand) -> u64 {
    upload.ask(stand).1
}

/// A sync that finds no place, or no database in time, has its bytes again.
#[test]
fn a_sync_that_is_sent_away_sends_nothing_again() {
    let stand = Stand::start(Config { workers: 1, uploaders: 1, wait_ms_max: 100, ..config() });
    let upload = Upload::of(&stand, 1, 500);
    let (ticket, _) = upload.ask(&stand);
    assert_eq!(upload.put(&stand, &ticket, 0, upload.bytes.len()).status, 204);
    let lock = stand.hold();
    let mut first = stand.post(&stand.upload(2, &[(9_999, "holds the worker")]));
    stand.wait_until("the worker busy", |ready| ready["load"]["workers_busy"] == 1);
    assert_eq!(upload.whole(&stand, &ticket).error().code, ErrorCode::Overloaded);
    drop(lock);
    assert!(first.answer().is_complete());
    assert_eq!(upload.ask(&stand), (ticket.clone(), upload.bytes.len() as u64));
    assert!(upload.whole(&stand, &ticket).is_complete());
    assert_eq!(stand.items(), 501);
}

/// Through files as through memory; both are free afterwards.
#[test]
fn large_uploads_in_pieces_lie_in_a_file() {
    let stand = Stand::start(config());
    let upload = Upload::of(&stand, 1, 100_000);
    let (ticket, _) = upload.ask(&stand);
    let mut from = 0;
    while from < upload.bytes.len() {
        let until = upload.bytes.len().min(from + 1_000_000);
        assert_eq!(upload.put(&stand, &ticket, from, until).status, 204);
        from = until;
    }
    let ready = stand.ready();
    let held = ["spool_memory_bytes", "spool_file_bytes"].map(|held| ready[held].as_u64().expect("a number"));
    assert!(held[0] < 2 << 20 && held[1] > 0 && held[0] + held[1] >= upload.bytes.len() as u64, "{ready}");
    assert!(upload.whole(&stand, &ticket).is_complete());
    assert_eq!(stand.items(), 100_000);
    assert!(stand.sync(&stand.download(1)).is_complete());
    stand.wait_until_idle();
}
