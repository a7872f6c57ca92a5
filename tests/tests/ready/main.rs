//! Ready files: what a new remote is given in the place of its first download, and who is not.

mod breaks;
mod during;
mod refused;
mod same;
mod valid;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use headwater_protocol::client::{ReadyAnswer, ReadyReader};
use headwater_protocol::message::{Hello, ReadyFile, Watermarks};
use headwater_protocol::{Frame, Kind as FrameKind, Limits};
use headwater_remote::http::{Credentials, Server};
use headwater_remote::ready::Taken;
use headwater_remote::{CreateOptions, Remote};
use headwater_tests::{Kind, World, sqlite_rows};

/// Items with a unique code lie in a region, lines take theirs from their item, areas are the same for all, and notes only go up.
const SCHEMA: &str = "
CREATE TABLE member (user_name TEXT NOT NULL, region TEXT NOT NULL, PRIMARY KEY (user_name, region));
CREATE TABLE area (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL, code TEXT NOT NULL UNIQUE, area INTEGER REFERENCES area (id),
                   body TEXT);
CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, item INTEGER NOT NULL REFERENCES item (id) ON DELETE CASCADE, amount REAL);
CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT);
INSERT INTO area VALUES (1, 'coast'), (2, 'hills');
INSERT INTO member VALUES ('ann-of-the-coast', 'north'), ('bob-of-the-hills', 'north'), ('cat-of-the-woods', 'north'),
                          ('eve-of-the-moor', 'south'), ('two-of-both', 'north'), ('two-of-both', 'south'), ('twin-of-both', 'south'),
                          ('twin-of-both', 'north');
";
const MODEL: &str = r#"
name = "shop"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.area]
key = ["id"]
direction = "download"
columns = { id = "int not null", name = "text not null" }
[tables.item]
key = ["id"]
unique = [["code"]]
partition = "region"
references = [{ columns = ["area"], table = "area", target = ["id"] }]
columns = { id = "int not null", region = "text not null", code = "text not null", area = "int", body = "text" }
[tables.line]
key = ["id"]
partition = { through = "item" }
references = [{ columns = ["item"], table = "item", target = ["id"], on_delete = "cascade" }]
columns = { id = "int not null", item = "int not null", amount = "real" }
[tables.note]
key = ["id"]
direction = "upload"
columns = { id = "text not null", text = "text" }
"#;
const USERS: [&str; 6] =
    ["ann-of-the-coast", "bob-of-the-hills", "cat-of-the-woods", "eve-of-the-moor", "two-of-both", "twin-of-both"];
const ANN: &str = USERS[0];
const BOB: &str = USERS[1];
const CAT: &str = USERS[2];
const EVE: &str = USERS[3];

/// A world with so many items, half of them in each region, whose server makes files of any size.
fn world(kind: Kind, items: u32) -> Result<World> {
    let mut world = World::unserved(kind, SCHEMA, MODEL, &USERS)?;
    fill(&world, items)?;
    world.config.ready_bytes_min = 0;
    world.start_server()?;
    Ok(world)
}

fn fill(world: &World, items: u32) -> Result<()> {
    for first in (1..=items).step_by(500) {
        let values =
            |row: &dyn Fn(u32) -> String| (first..(first + 500).min(items + 1)).map(row).collect::<Vec<_>>().join(", ");
        let region = |id: u32| if id.is_multiple_of(2) { "north" } else { "south" };
        let item = |id: u32| format!("({id}, '{}', 'c{id}', {}, 'body {id}')", region(id), 1 + id % 2);
        let line = |id: u32| format!("({id}, {id}, {id}.5)");
        world.central.execute(&format!("INSERT INTO item VALUES {}", values(&item)))?;
        world.central.execute(&format!("INSERT INTO line VALUES {}", values(&line)))?;
    }
    Ok(())
}

/// Makes a remote of this user as `headwater remote create` does.
fn create(world: &World, name: &str, user: &str) -> Result<(Remote, Option<Taken>)> {
    create_at(world, name, user, &world.server_url()?)
}

fn create_at(world: &World, name: &str, user: &str, url: &str) -> Result<(Remote, Option<Taken>)> {
    let server = Server { url: url.to_owned(), credentials: Credentials::Token(world.token(user)?), ca_file: None };
    let options = CreateOptions::new(url.to_owned(), user);
    Ok(Remote::create_from(world.path(name), &world.plan.model.public(), &options, &server)?)
}

/// Has a file made: two remotes of these users ask for one, and the second is given it.
fn warm(world: &World, one: &str, other: &str) -> Result<Taken> {
    let (_, taken) = create(world, &format!("warm {one}"), one)?;
    ensure!(taken.is_none(), "the first that asks is given nothing: {taken:?}");
    let (_, taken) = create(world, &format!("warm {other}"), other)?;
    taken.context("the second that asks is given a file")
}

/// All that is in a remote's file, but for who it is: the schema, then the rows of each table in their order.
fn content(path: &Path) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name";
    all.extend(sqlite_rows(path, schema)?.into_iter().map(|row| format!("{row:?}")));
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    for name in sqlite_rows(path, tables)?.into_iter().flatten().flatten() {
        let columns = match name.as_str() {
            "hw_state" => {
                "format, model, fingerprint, hex(incarnation), hex(note), upload_sequence, upload_used, frozen, frozen_changes, \
                 frozen_digest, cut_bytes_max, adopted, staged, upload_refused, last_sync IS NULL"
            }
            // Sealed for each remote.
            "hw_mark" => "id",
            _ => "*",
        };
        let rows = sqlite_rows(path, &format!("SELECT {columns} FROM \"{name}\""))?;
        all.extend(rows.into_iter().map(|row| format!("{name}: {row:?}")));
    }
    Ok(all)
}

/// What a new remote says.
fn hello(world: &World, number: u8) -> Hello {
    Hello {
        remote_id: [number; 16],
        secret: [number ^ 0x55; 32],
        model: world.plan.model.name.clone(),
        model_version: world.plan.model.version,
        fingerprint: world.plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        takes_chunks: false,
        knows_leaving: false,
        wants_download: true,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    }
}

/// One request; the status and the body.
fn ask(world: &World, user: &str, remote: u8, head: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(world.address()?)?;
    let (token, id) = (world.token(user)?, hex::encode([remote; 16]));
    let head = format!(
        "{head} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nHeadwater-Remote-Id: {id}\r\n\
         Content-Type: application/vnd.headwater.sync\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("a head")?;
    let status = std::str::from_utf8(&answer[9..12])?.parse()?;
    Ok((status, answer[end + 4..].to_vec()))
}

/// Asks for a file by hand.
fn ask_file(world: &World, user: &str, hello: &Hello) -> Result<ReadyAnswer> {
    let mut body = hello.to_frame().to_bytes();
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    let (_, answer) = ask(world, user, hello.remote_id[0], "POST /v1/file", &body)?;
    let mut reader = ReadyReader::new(Limits::ANSWER);
    reader.push(&answer)?;
    Ok(reader.finish()?)
}

/// The file that is promised, which there must be.
fn promised(world: &World, user: &str, number: u8) -> Result<(ReadyFile, Watermarks)> {
    match ask_file(world, user, &hello(world, number))? {
        ReadyAnswer::File(_, file, seen) => Ok((file, seen)),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Its bytes from an offset on, by hand.
fn get(world: &World, user: &str, remote: u8, file: &ReadyFile, offset: u64) -> Result<(u16, Vec<u8>)> {
    ask(world, user, remote, &format!("GET /v1/file/{}?offset={offset}", hex::encode(file.id)), &[])
}
