//! Isolation: whatever a user tries, no byte that marks another's data is ever in what he is sent, and nothing of another's changes.
//!
//! The victim's data carry a marker in every column, key and partition value. The attacker speaks the protocol as he likes, by a
//! table of attacks. What the server sends is searched as it travels and frame by frame uncompressed; the search is shown to find the
//! marker where it is.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::system;
use headwater_protocol::message::{Change, Hello, Outcome, Receipt, UploadEnd, WatermarkEntry, Watermarks, Welcome};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Decimal, Decoder, Frame, Kind as FrameKind, Row, Value};
use headwater_testkit::Random;
use headwater_tests::{KINDS, Kind, World};

const MODEL: &str = r#"
name = "shop"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.customer]
conflict = "merge(remote)"
key = ["id"]
partition = "region"
unique = [["code"], ["id", "region"]]
[tables.customer.columns]
id = "text not null"
region = "text not null"
code = "text"
name = "text"
photo = "bytes"
credit = "decimal"
[tables.purchase]
conflict = "remote_wins"
key = ["id"]
partition = "region"
references = [{ columns = ["customer"], table = "customer", target = ["id"] }]
[tables.purchase.columns]
id = "text not null"
region = "text not null"
customer = "text"
note = "text"
"#;

fn schema(kind: Kind) -> String {
    let (bytes, decimal) = match kind {
        Kind::Sqlite => ("BLOB", "DECIMAL_TEXT"),
        Kind::Postgres => ("bytea", "numeric"),
    };
    format!(
        "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
         CREATE TABLE customer (id text NOT NULL PRIMARY KEY, region text NOT NULL, code text UNIQUE,
             name text CHECK (name <> 'bad'), photo {bytes}, credit {decimal}, UNIQUE (id, region));
         CREATE TABLE purchase (id text NOT NULL PRIMARY KEY, region text NOT NULL,
             customer text REFERENCES customer (id), note text);"
    )
}

/// What marks the victim's data.
struct Marker {
    text: String,
    bytes: [u8; 16],
    digits: String,
}

impl Marker {
    fn new(random: &mut Random) -> Marker {
        let text = format!("{:016x}", random.bits());
        let bytes = (u128::from(random.bits()) << 64 | u128::from(random.bits())).to_be_bytes();
        let digits: String = (0..20).map(|_| char::from(b'1' + (random.below(9)) as u8)).collect();
        Marker { text, bytes, digits }
    }

    fn region(&self) -> String {
        format!("region {}", self.text)
    }

    /// The places of the marker in what was sent: as it travelled, and in each frame's payload.
    fn found_in(&self, sent: &[u8]) -> Vec<String> {
        let mut found = self.places("as it travels", sent);
        for frame in frames_in(sent) {
            if let Ok(payload) = frame.payload(64 << 20) {
                found.extend(self.places(&format!("{:?}", frame.kind), &payload));
            }
        }
        found
    }

    fn places(&self, place: &str, bytes: &[u8]) -> Vec<String> {
        let packed: Vec<u8> =
            self.digits.as_bytes().chunks(2).map(|two| (two[0] - b'0') << 4 | (two[1] - b'0')).collect();
        let needles: [(&str, &[u8]); 4] = [
            ("text", self.text.as_bytes()),
            ("bytes", &self.bytes),
            ("digits", self.digits.as_bytes()),
            ("packed digits", &packed),
        ];
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        needles.iter().filter(|(_, needle)| has(needle)).map(|(what, _)| format!("{what} {place}")).collect()
    }
}

/// Every frame in a stream, whatever stands between them.
fn frames_in(sent: &[u8]) -> Vec<Frame> {
    let (mut frames, mut place) = (Vec::new(), 0);
    while place + 12 <= sent.len() {
        let mut decoder = Decoder::new(64 << 20);
        decoder.push(&sent[place..]);
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                place += frame.wire_bytes();
                frames.push(frame);
            }
            _ => place += 1,
        }
    }
    frames
}

struct Stage {
    world: World,
    marker: Marker,
    eve_token: String,
}

impl Stage {
    fn new(kind: Kind, victims_rows: u32) -> Result<Stage> {
        let marker = Marker::new(&mut Random::seeded(
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64,
        ));
        let world = World::new(kind, &schema(kind), MODEL, &["ann", "eve", "off"])?;
        let photo = match kind {
            Kind::Sqlite => format!("X'{}'", hex(&marker.bytes)),
            Kind::Postgres => format!("'\\x{}'", hex(&marker.bytes)),
        };
        let (region, text, digits) = (marker.region(), &marker.text, &marker.digits);
        world.central.execute(&format!(
            "INSERT INTO member VALUES ('ann', '{region}'), ('eve', 'south'), ('off', '{region}');
             INSERT INTO customer VALUES ('e1', 'south', 'e-code', 'Eve''s own', NULL, '1.5');
             INSERT INTO purchase VALUES ('ep1', 'south', 'e1', 'hers');"
        ))?;
        for number in 0..victims_rows {
            world.central.execute(&format!(
                "INSERT INTO customer VALUES ('a{number}', '{region}', 'code{number}', 'name {text}', {photo}, '{digits}');
                 INSERT INTO customer VALUES ('{text}{number}', '{region}', '{text}{number}', 'name {text}', {photo}, '{digits}');
                 INSERT INTO purchase VALUES ('ap{number}', '{region}', 'a{number}', 'note {text}');"
            ))?;
        }
        let eve_token = world.token("eve")?;
        Ok(Stage { world, marker, eve_token })
    }

    /// The victim's rows, as the database has them.
    fn victims_rows(&self) -> Result<Vec<Vec<Option<String>>>> {
        let region = self.marker.region();
        let mut rows = self.world.central.rows(&format!(
            "SELECT id, region, code, name, credit FROM customer WHERE region = '{region}' ORDER BY id"
        ))?;
        rows.extend(
            self.world.central.rows(&format!(
                "SELECT id, region, customer, note FROM purchase WHERE region = '{region}' ORDER BY id"
            ))?,
        );
        Ok(rows)
    }

    /// Sends a request and gives all that comes back, to the last byte.
    fn send(&self, head: &str, body: &[u8]) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.world.address()?)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let head = format!("{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        // The server may refuse by the head and close.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok(answer)
    }

    fn sync(&self, token: &str, body: &[u8]) -> Result<Vec<u8>> {
        self.send(&format!("POST /v1/sync HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/vnd.headwater.sync"), body)
    }

    fn hello(&self, id: u8) -> Hello {
        Hello {
            remote_id: [id; 16],
            secret: [id; 32],
            model: "shop".to_owned(),
            model_version: 1,
            fingerprint: self.world.plan.fingerprint,
            incarnation: [0; 16],
            note: [0; 16],
            upload_sequence: 0,
            download_applied: [0; 16],
            has_upload: false,
            wants_download: true,
            watermarks: Watermarks::default(),
        }
    }

    /// A request that uploads these changes.
    fn upload(&self, hello: Hello, changes: &[(usize, Change)]) -> Vec<u8> {
        let mut frames = Vec::new();
        for (table, change) in changes {
            let table = &self.world.plan.tables[*table];
            let mut payload = Vec::new();
            change.write(&mut payload, &table.types);
            frames.extend([table.header.to_frame(), Frame::packed(FrameKind::Changes, payload)]);
        }
        let mut digest = Digest::new();
        for frame in &frames {
            digest.add(frame.kind, &frame.payload(1 << 20).expect("our own frame"));
        }
        let end =
            UploadEnd { sequence: hello.upload_sequence + 1, changes: changes.len() as u64, digest: digest.finish() };
        let mut body = Hello { has_upload: true, ..hello }.to_frame().to_bytes();
        for frame in &frames {
            frame.write(&mut body);
        }
        end.to_frame().write(&mut body);
        Frame::new(FrameKind::End, Vec::new()).write(&mut body);
        body
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn request(hello: &Hello) -> Vec<u8> {
    let mut body = hello.to_frame().to_bytes();
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    body
}

fn customer(id: &str, region: &str, code: &str, name: &str) -> Row {
    let credit = Decimal::parse("1").map_or(Value::Null, Value::Decimal);
    vec![Value::text(id), Value::text(region), Value::text(code), Value::text(name), Value::Null, credit]
}

fn purchase(id: &str, region: &str, customer: &str) -> Row {
    vec![Value::text(id), Value::text(region), Value::text(customer), Value::text("bought")]
}

fn insert(row: Row) -> Change {
    Change { old: None, new: Some(row) }
}

fn update(old: Row, new: Row) -> Change {
    Change { old: Some(old), new: Some(new) }
}

fn delete(row: Row) -> Change {
    Change { old: Some(row), new: None }
}

/// An upload that must be refused, each of its changes with this code.
type Uploading = (&'static str, fn(&Marker) -> Vec<(usize, Change)>, &'static str);

const CUSTOMER: usize = 0;
const PURCHASE: usize = 1;

/// Attacks by changes. Of the marker only what an attacker may know is used: nothing of it comes back by his own words.
const UPLOADS: [Uploading; 12] = [
    ("inserts a row where another's is", |_| vec![(CUSTOMER, insert(customer("a0", "south", "x", "x")))], "partition"),
    (
        "inserts a row into another's partition",
        |m| vec![(CUSTOMER, insert(customer("new", &m.region(), "x", "x")))],
        "partition",
    ),
    (
        "moves another's row to himself",
        |_| vec![(CUSTOMER, update(customer("a0", "south", "a", "a"), customer("a0", "south", "mine", "mine")))],
        "partition",
    ),
    (
        "changes another's row in its place",
        |m| vec![(CUSTOMER, update(customer("a0", &m.region(), "a", "a"), customer("a0", &m.region(), "a", "x")))],
        "partition",
    ),
    (
        "moves his own row into another's partition",
        |m| {
            vec![(
                CUSTOMER,
                update(customer("e1", "south", "e-code", "Eve's own"), customer("e1", &m.region(), "e", "x")),
            )]
        },
        "partition",
    ),
    ("deletes another's row", |_| vec![(CUSTOMER, delete(customer("a0", "south", "a", "a")))], "partition"),
    ("deletes it by its partition", |m| vec![(PURCHASE, delete(purchase("ap0", &m.region(), "a0")))], "partition"),
    ("asks by a unique value", |_| vec![(CUSTOMER, insert(customer("mine", "south", "code0", "x")))], "unique"),
    (
        "takes a unique value by an update",
        |_| {
            vec![(
                CUSTOMER,
                update(customer("e1", "south", "e-code", "Eve's own"), customer("e1", "south", "code0", "x")),
            )]
        },
        "unique",
    ),
    ("refers to what is not there", |_| vec![(PURCHASE, insert(purchase("mine", "south", "nobody")))], "foreign_key"),
    ("breaks a check", |_| vec![(CUSTOMER, insert(customer("mine", "south", "y", "bad")))], "check"),
    (
        "hides a key in a row of another type",
        |_| {
            vec![(
                CUSTOMER,
                insert(vec![Value::text("a0"), Value::Int(7), Value::Null, Value::Null, Value::Null, Value::Null]),
            )]
        },
        "partition",
    ),
];

fn names(receipt: &Receipt) -> Vec<&'static str> {
    let name = |(_, outcome): &(u64, Outcome)| match outcome {
        Outcome::Refused(refusal) => refusal.code.name(),
        Outcome::Conflict(_) => "conflict",
    };
    receipt.outcomes.iter().map(name).collect()
}

#[test]
fn uploads_that_reach_for_anothers_rows_are_refused_and_told_nothing() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let before = stage.victims_rows()?;
        for (number, (name, changes, code)) in UPLOADS.iter().enumerate() {
            let context = || format!("{kind:?}: {name}");
            let body = stage.upload(stage.hello(number as u8 + 1), &changes(&stage.marker));
            let answer = stage.sync(&stage.eve_token, &body)?;
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{}: {found:?}", context());
            let receipt = frames_in(&answer).into_iter().find(|frame| frame.kind == FrameKind::Receipt);
            let receipt = receipt.with_context(|| format!("{}: no receipt", context()))?;
            let receipt = Receipt::from_payload(&receipt.payload(1 << 20)?)?;
            ensure!(names(&receipt) == [*code], "{}: {:?}", context(), receipt.outcomes);
            ensure!(stage.victims_rows()? == before, "{}: the victim's rows were changed", context());
        }
    }
    Ok(())
}

/// Attacks by whole requests: what is sent, and with which token.
type Asking = (&'static str, fn(&Stage) -> Result<Vec<u8>>);

const REQUESTS: [Asking; 19] = [
    ("syncs as usual", |s| s.sync(&s.eve_token, &request(&s.hello(100)))),
    ("takes the victim's remote ID", |s| s.sync(&s.eve_token, &request(&Hello { secret: [9; 32], ..s.hello(200) }))),
    ("knows its secret too", |s| s.sync(&s.eve_token, &request(&s.hello(200)))),
    ("claims to hold the victim's partition", |s| {
        let welcomed = frames_in(&s.sync(&s.eve_token, &request(&s.hello(101)))?);
        let payload = |kind| welcomed.iter().find(|frame| frame.kind == kind).map(|frame| frame.payload(1 << 20));
        let welcome = Welcome::from_payload(&payload(FrameKind::Welcome).context("no WELCOME")??)?;
        let mut seen = Watermarks::from_payload(&payload(FrameKind::Watermarks).context("no WATERMARKS")??)?;
        // Nearly: the right one would be in the answer because it was in the question.
        let mut partition = Vec::new();
        headwater_protocol::row::put_row(
            &mut partition,
            &s.world.plan.tables[0].partition_types,
            &[Value::text("region")],
        );
        seen.entries.push(WatermarkEntry { table: 0, partition, mark: 0 });
        let hello = Hello { incarnation: welcome.incarnation, note: welcome.note, watermarks: seen, ..s.hello(101) };
        s.sync(&s.eve_token, &request(&hello))
    }),
    ("forges a watermark", |s| {
        let entries =
            (0..2).map(|table| WatermarkEntry { table, partition: vec![1, 5, b's', b'o', b'u', b't', b'h'], mark: 0 });
        let watermarks = Watermarks { marks: vec![vec![1, 0, 0]], entries: entries.collect() };
        s.sync(&s.eve_token, &request(&Hello { watermarks, ..s.hello(102) }))
    }),
    ("sends a watermark of nonsense", |s| {
        let watermarks = Watermarks { marks: vec![vec![0xff; 1000]], entries: Vec::new() };
        s.sync(&s.eve_token, &request(&Hello { watermarks, ..s.hello(103) }))
    }),
    ("asks for another model", |s| {
        s.sync(&s.eve_token, &request(&Hello { model: "customer".to_owned(), ..s.hello(104) }))
    }),
    ("asks with another fingerprint", |s| s.sync(&s.eve_token, &request(&Hello { fingerprint: 1, ..s.hello(105) }))),
    ("uses SQL as a name", |s| {
        s.sync(&s.eve_token, &request(&Hello { model: "shop' OR '1' = '1".to_owned(), ..s.hello(106) }))
    }),
    ("uploads SQL as values", |s| {
        let row = customer("'; UPDATE customer SET region = 'south'; --", "south", "\"; DROP TABLE customer; --", "$1");
        s.sync(&s.eve_token, &s.upload(s.hello(107), &[(CUSTOMER, insert(row))]))
    }),
    ("names another table's header", |s| {
        let mut header = s.world.plan.tables[CUSTOMER].header.clone();
        "member".clone_into(&mut header.name);
        let mut body = Hello { has_upload: true, ..s.hello(108) }.to_frame().to_bytes();
        header.to_frame().write(&mut body);
        s.sync(&s.eve_token, &body)
    }),
    ("breaks off in the midst of a frame", |s| {
        let body = s.upload(s.hello(109), &[(CUSTOMER, insert(customer("t", "south", "t", "t")))]);
        s.sync(&s.eve_token, &body[..body.len() / 2])
    }),
    ("shows no token", |s| s.sync("", &request(&s.hello(110)))),
    ("shows a token without a signature", |s| {
        let part = s.eve_token.split('.').nth(1).unwrap_or_default();
        // {"alg":"none","typ":"JWT"}
        s.sync(&format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{part}."), &request(&s.hello(111)))
    }),
    ("changes a token's user", |s| {
        let ann = s.world.token("ann")?;
        let parts: Vec<&str> = s.eve_token.split('.').collect();
        let theirs = ann.split('.').nth(1).unwrap_or_default();
        s.sync(&format!("{}.{theirs}.{}", parts[0], parts[2]), &request(&s.hello(112)))
    }),
    ("uses a disabled user's token", |s| s.sync(&s.world.token("off")?, &request(&s.hello(113)))),
    ("reads the model", |s| s.send(&format!("GET /v1/model HTTP/1.1\r\nAuthorization: Bearer {}", s.eve_token), &[])),
    ("asks for a download that is not his", |s| {
        s.send(&format!("GET /v1/download/{} HTTP/1.1\r\nAuthorization: Bearer {}", "0".repeat(32), s.eve_token), &[])
    }),
    ("looks around", |s| s.send("GET /../../central.db HTTP/1.1", &[])),
];

#[test]
fn requests_of_every_kind_are_told_nothing_of_another() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 2)?;
        let backend = stage.world.central.backend()?;
        system::set_account_disabled(&mut *backend.connect()?, "off", true)?;
        // The victim's remote is known to the server, and an answer of it was sent.
        stage.sync(&stage.world.token("ann")?, &request(&stage.hello(200)))?;
        let before = stage.victims_rows()?;
        for (name, ask) in REQUESTS {
            let answer = ask(&stage).with_context(|| format!("{kind:?}: {name}"))?;
            ensure!(!answer.is_empty(), "{kind:?}: {name}: no answer at all");
            let found = stage.marker.found_in(&answer);
            ensure!(found.is_empty(), "{kind:?}: {name}: {found:?}");
            ensure!(stage.victims_rows()? == before, "{kind:?}: {name}: the victim's rows were changed");
        }
    }
    Ok(())
}

/// Who is no member any more is sent no row that was changed since.
#[test]
fn a_membership_that_ended_gives_nothing_more() -> Result<()> {
    for kind in KINDS {
        let stage = Stage::new(kind, 1)?;
        stage.world.central.execute(
            "INSERT INTO member VALUES ('eve', 'once'); UPDATE customer SET region = 'once' WHERE id = 'e1'; \
             UPDATE purchase SET region = 'once' WHERE id = 'ep1'",
        )?;
        let mut remote = stage.world.remote("eve", "eve")?;
        stage.world.sync(&mut remote)?;
        stage.world.central.execute(
            "DELETE FROM member WHERE user_name = 'eve' AND region = 'once'; UPDATE customer SET name = 'secret' WHERE id = 'e1'",
        )?;
        stage.world.sync(&mut remote)?;
        let rows = stage.world.rows("eve", "SELECT id, name FROM customer")?;
        ensure!(rows.is_empty(), "{kind:?}: {rows:?}");
    }
    Ok(())
}

/// The search finds the marker where it is: in a small answer as it travels, in a large one only in the uncompressed frames.
#[test]
fn the_search_finds_what_it_looks_for() -> Result<()> {
    for (rows, kind) in [(1, Kind::Sqlite), (40, Kind::Postgres)] {
        let stage = Stage::new(kind, rows)?;
        let answer = stage.sync(&stage.world.token("ann")?, &request(&stage.hello(1)))?;
        let found = stage.marker.found_in(&answer);
        for place in ["text Rows", "bytes Rows", "packed digits Rows", "text Partition"] {
            ensure!(found.iter().any(|found| found == place), "{rows} rows: {place} was not found: {found:?}");
        }
        // And so would a membership that the attacker should not have.
        stage.world.central.execute(&format!("INSERT INTO member VALUES ('eve', '{}')", stage.marker.region()))?;
        let leak = stage.sync(&stage.eve_token, &request(&stage.hello(2)))?;
        ensure!(!stage.marker.found_in(&leak).is_empty(), "the leak was not noticed");
    }
    Ok(())
}
