//! A victim, an attacker, a server between them; and the attacker's own client, which says what it likes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use headwater_access::{Secret, Tokens, hash_password};
use headwater_consolidated::system;
use headwater_protocol::message::{Change, Hello, UploadEnd, Watermarks, Welcome};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Decimal, Frame, Kind as FrameKind, Row, Value};
use headwater_testkit::Random;
use headwater_tests::{Kind, World};

use super::marker::{Marker, body_of, frames_in, hex};

pub(crate) const CUSTOMER: usize = 0;
pub(crate) const PURCHASE: usize = 1;
/// Of a customer.
pub(crate) const PARCEL: usize = 2;
/// Of a parcel.
pub(crate) const SCAN: usize = 3;

/// Of the victim's password.
static HASH: LazyLock<String> =
    LazyLock::new(|| hash_password(&Secret::new("not to be guessed".to_owned())).expect("the password was hashed"));

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
[tables.parcel]
conflict = "merge(remote)"
key = ["id"]
partition = { through = "customer" }
references = [{ columns = ["customer"], table = "customer", target = ["id"] }]
columns = { id = "text not null", customer = "text", note = "text" }
[tables.scan]
conflict = "consolidated_wins"
key = ["id"]
partition = { through = "parcel" }
references = [{ columns = ["parcel"], table = "parcel", target = ["id"] }]
columns = { id = "text not null", parcel = "text", note = "text" }
"#;

fn schema(kind: Kind) -> String {
    let (bytes, decimal) = match kind {
        Kind::Sqlite => ("BLOB", "DECIMAL_TEXT"),
        Kind::Postgres => ("bytea", "numeric"),
    };
    // A trigger of the application's that says too much.
    let trigger = match kind {
        Kind::Sqlite => {
            "CREATE TRIGGER nosy BEFORE INSERT ON customer WHEN new.name = 'nosy' BEGIN \
             SELECT RAISE(ABORT, (SELECT name FROM customer WHERE id = 'a0')); END"
        }
        Kind::Postgres => {
            "CREATE FUNCTION nosy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             RAISE EXCEPTION '%', (SELECT name FROM customer WHERE id = 'a0'); END $$; \
             CREATE TRIGGER nosy BEFORE INSERT ON customer FOR EACH ROW WHEN (new.name = 'nosy') EXECUTE FUNCTION nosy()"
        }
    };
    format!(
        "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
         CREATE TABLE customer (id text NOT NULL PRIMARY KEY, region text NOT NULL, code text UNIQUE,
             name text CHECK (name <> 'bad'), photo {bytes}, credit {decimal}, UNIQUE (id, region));
         CREATE TABLE purchase (id text NOT NULL PRIMARY KEY, region text NOT NULL,
             customer text REFERENCES customer (id), note text);
         CREATE TABLE parcel (id text NOT NULL PRIMARY KEY, customer text REFERENCES customer (id), note text);
         CREATE TABLE scan (id text NOT NULL PRIMARY KEY, parcel text REFERENCES parcel (id), note text);
         {trigger};"
    )
}

/// `ann` is the victim, `eve` the attacker with data of her own, `off` was a colleague of ann's and is disabled.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) marker: Marker,
    pub(crate) eve: String,
    pub(crate) ann: String,
}

impl Stage {
    pub(crate) fn new(kind: Kind, victims_rows: u32) -> Result<Stage> {
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
        let marker = Marker::new(&mut Random::seeded(seed));
        let world = World::new(kind, &schema(kind), MODEL, &["eve", "off"])?;
        let photo = match kind {
            Kind::Sqlite => format!("X'{}'", hex(&marker.bytes)),
            Kind::Postgres => format!("'\\x{}'", hex(&marker.bytes)),
        };
        let (region, secret, digits) = (marker.region(), &marker.secret, &marker.digits);
        world.central.execute(&format!(
            "INSERT INTO member VALUES ('ann', '{region}'), ('eve', 'south'), ('off', '{region}');
             INSERT INTO customer VALUES ('e1', 'south', 'e-code', 'Eve''s own', NULL, '1.5');
             INSERT INTO purchase VALUES ('ep1', 'south', 'e1', 'hers');
             INSERT INTO parcel VALUES ('ek1', 'e1', 'hers'); INSERT INTO scan VALUES ('es1', 'ek1', 'hers');"
        ))?;
        for number in 0..victims_rows {
            world.central.execute(&format!(
                "INSERT INTO customer VALUES ('a{number}', '{region}', 'code{number}', 'name {secret}', {photo}, '{digits}');
                 INSERT INTO customer VALUES ('{secret}{number}', '{region}', '{secret}{number}', 'name {secret}', {photo}, '{digits}');
                 INSERT INTO purchase VALUES ('ap{number}', '{region}', 'a{number}', 'note {secret}');
                 INSERT INTO parcel VALUES ('ak{number}', 'a{number}', 'note {secret}');
                 INSERT INTO parcel VALUES ('{secret}k{number}', '{secret}{number}', 'note {secret}');
                 INSERT INTO scan VALUES ('as{number}', 'ak{number}', 'note {secret}');
                 INSERT INTO scan VALUES ('{secret}s{number}', '{secret}k{number}', 'note {secret}');"
            ))?;
        }
        let mut connection = world.central.backend()?.connect()?;
        system::set_account_disabled(&mut *connection, "off", true)?;
        system::add_account(&mut *connection, "ann", &HASH)?;
        let (eve, ann) = (world.token("eve")?, world.token("ann")?);
        Ok(Stage { world, marker, eve, ann })
    }

    /// The victim's rows, as the database has them.
    pub(crate) fn victims_rows(&self) -> Result<Vec<Vec<Option<String>>>> {
        let region = self.marker.region();
        let rows = |sql: String| self.world.central.rows(&format!("{sql} WHERE region = '{region}' ORDER BY id"));
        let mut all = rows("SELECT id, region, code, name, photo, credit FROM customer".to_owned())?;
        all.extend(rows("SELECT id, region, customer, note FROM purchase".to_owned())?);
        let theirs = format!("JOIN customer c ON c.id = p.customer WHERE c.region = '{region}' ORDER BY 1");
        let below = |sql: &str| self.world.central.rows(&format!("{sql} {theirs}"));
        all.extend(below("SELECT p.id, p.customer, p.note FROM parcel p")?);
        all.extend(below("SELECT s.id, s.parcel, s.note FROM scan s JOIN parcel p ON p.id = s.parcel")?);
        all.extend(self.world.central.rows("SELECT user_name, region FROM member ORDER BY 1, 2")?);
        Ok(all)
    }

    /// Sends a request and gives all that comes back, to the last byte.
    pub(crate) fn send(&self, head: &str, body: &[u8]) -> Result<Vec<u8>> {
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

    pub(crate) fn sync(&self, token: &str, body: &[u8]) -> Result<Vec<u8>> {
        self.sync_with("", &format!("Authorization: Bearer {token}"), body)
    }

    /// With a query, and headers of his own.
    pub(crate) fn sync_with(&self, query: &str, headers: &str, body: &[u8]) -> Result<Vec<u8>> {
        let head =
            format!("POST /v1/sync{query} HTTP/1.1\r\n{headers}\r\nContent-Type: application/vnd.headwater.sync");
        self.send(&head, body)
    }

    /// A token of the victim's that this key signed at this time.
    pub(crate) fn forged(&self, key: Option<[u8; 32]>, at: SystemTime) -> Result<String> {
        let real = system::identity(&mut *self.world.central.backend()?.connect()?)?.token_key;
        let tokens = key.map_or_else(|| Tokens::new(&real), |key| Tokens::new(&key))?;
        Ok(tokens.issue("ann", Duration::from_hours(1), at)?.expose().to_owned())
    }

    pub(crate) fn hello(&self, id: u8) -> Hello {
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
            takes_chunks: false,
            knows_leaving: false,
            uploads: Vec::new(),
            frozen: None,
            watermarks: Watermarks::default(),
        }
    }

    /// The HELLO of a remote that has synced, with what it has seen.
    pub(crate) fn synced(&self, token: &str, id: u8) -> Result<Hello> {
        let answer = frames_in(&body_of(&self.sync(token, &request(&self.hello(id)))?));
        let payload = |kind: FrameKind| -> Result<Vec<u8>> {
            let frame = answer.iter().find(|frame| frame.kind == kind).with_context(|| format!("no {kind:?}"))?;
            Ok(frame.payload(1 << 20)?.into_owned())
        };
        let welcome = Welcome::from_payload(&payload(FrameKind::Welcome)?)?;
        let watermarks = Watermarks::from_payload(&payload(FrameKind::Watermarks)?)?;
        Ok(Hello { incarnation: welcome.incarnation, note: welcome.note, watermarks, ..self.hello(id) })
    }

    /// A request that uploads these changes.
    pub(crate) fn upload(&self, hello: Hello, changes: &[(usize, Change)]) -> Vec<u8> {
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

pub(crate) fn request(hello: &Hello) -> Vec<u8> {
    let mut body = hello.to_frame().to_bytes();
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    body
}

pub(crate) fn customer(id: &str, region: &str, code: &str, name: &str) -> Row {
    let credit = Decimal::parse("1").map_or(Value::Null, Value::Decimal);
    vec![Value::text(id), Value::text(region), Value::text(code), Value::text(name), Value::Null, credit]
}

pub(crate) fn purchase(id: &str, region: &str, customer: &str) -> Row {
    vec![Value::text(id), Value::text(region), Value::text(customer), Value::text("bought")]
}

/// A row of a parcel or of a scan, whatever it is below.
pub(crate) fn below(id: &str, parent: &str, note: &str) -> Row {
    [id, parent, note].into_iter().map(Value::text).collect()
}

pub(crate) fn insert(row: Row) -> Change {
    Change { old: None, new: Some(row) }
}

pub(crate) fn update(old: Row, new: Row) -> Change {
    Change { old: Some(old), new: Some(new) }
}

pub(crate) fn delete(row: Row) -> Change {
    Change { old: Some(row), new: None }
}
