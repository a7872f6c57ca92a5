//! A ready file that is taken, with a crash at each step.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use headwater_model::Model;
use headwater_protocol::message::{
    Download, PartitionAction, PartitionMark, ReadyFile, RowOp, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::put_row;
use headwater_protocol::{Frame, Kind, Type, Value};
use sha2::{Digest as _, Sha256};

use super::build;
use crate::database::crash;
use crate::http::{Credentials, Server};
use crate::plan::Plan;
use crate::state::read_watermarks;
use crate::tests::support::{model, table};
use crate::{CreateOptions, Error, Remote};

const ROWS: i64 = 2_000;

fn doc() -> Model {
    model(vec![table("doc", &[("id", Type::Int), ("body", Type::Text)])])
}

fn seen(mark: &[u8]) -> Watermarks {
    let entries = vec![WatermarkEntry { table: 0, partition: Vec::new(), mark: 0 }];
    Watermarks { marks: vec![mark.to_vec()], entries }
}

/// The frames of a first download, as a server hands them to [`build`].
fn frames() -> Vec<Frame> {
    let plan = Plan::new(doc());
    let mut rows = Vec::new();
    for id in 0..ROWS {
        rows.push(RowOp::Upsert as u8);
        put_row(&mut rows, &plan.tables[0].types, &[Value::Int(id), Value::text(format!("body {id}"))]);
    }
    let welcome = Welcome::default();
    vec![
        welcome.to_frame(),
        Download { id: [0; 16], resumable_s: 0, rows: 0, bytes: 0 }.to_frame(),
        PartitionMark { table: 0, action: PartitionAction::Whole, partition: Vec::new() }.to_frame(),
        plan.tables[0].header.to_frame(),
        Frame::packed(Kind::Rows, rows),
        seen(&[]).to_frame(),
    ]
}

fn made(folder: &Path) -> Vec<u8> {
    let path = folder.join("made");
    let mut frames = frames().into_iter();
    build(&path, &doc(), 1 << 30, &mut || Ok(frames.next())).expect("a file");
    std::fs::read(path).expect("the file")
}

/// A server that has this file for everybody; gives its address.
fn serve(file: Vec<u8>, digest: [u8; 32]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    let file = Arc::new(file);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let file = Arc::clone(&file);
            std::thread::spawn(move || answer(&stream, &file, digest));
        }
    });
    format!("http://{address}")
}

fn answer(mut stream: &TcpStream, file: &[u8], digest: [u8; 32]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap_or(0);
        }
        head += &line;
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    let (kind, body) = if head.starts_with("POST /v1/file") {
        let welcome = Welcome { incarnation: [1; 16], note: [2; 16], ..Welcome::default() };
        let ready = ReadyFile { id: [3; 16], digest, bytes: file.len() as u64, rows: ROWS as u64, kept_s: 60 };
        let end = Frame::new(Kind::End, Vec::new());
        let frames = [welcome.to_frame(), ready.to_frame(), seen(b"sealed").to_frame(), end];
        ("application/vnd.headwater.sync", frames.iter().flat_map(Frame::to_bytes).collect())
    } else {
        let offset = head.split("offset=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0);
        ("application/octet-stream", file.get(offset..).unwrap_or_default().to_vec())
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&body)
}

fn create(path: &Path, url: &str) -> Result<(Remote, Option<super::Taken>), Error> {
    let server = Server { url: url.to_owned(), credentials: Credentials::Token("t".to_owned()), ca_file: None };
    Remote::create_from(path, &doc(), &CreateOptions::new(url, "ann"), &server)
}

fn is_whole(remote: &Remote) {
    let connection = &remote.database.connection;
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    assert_eq!(count("SELECT count(*) FROM doc WHERE body = 'body ' || id"), ROWS);
    let state = remote.state().expect("a state");
    assert_eq!((state.incarnation, state.note, state.user.as_str()), ([1; 16], [2; 16], "ann"));
    assert!(state.remote_id != [0; 16] && state.secret != [0; 32] && state.last_sync.is_none());
    assert_eq!(read_watermarks(connection).expect("watermarks"), seen(b"sealed"));
    assert_eq!(remote.status().expect("a status").pending, 0);
    connection.execute("UPDATE doc SET body = 'mine' WHERE id = 1", []).expect("written");
    assert_eq!(remote.status().expect("a status").pending, 1, "it is tracked");
}

/// Wherever it stops, there is a whole remote or none, and the next attempt makes one.
#[test]
fn a_crash_at_each_step_leaves_a_whole_remote_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = made(folder.path());
    let url = serve(file.clone(), Sha256::digest(&file).into());
    let (mut crashes, mut named) = (0, 0);
    for steps in 0..100 {
        let path = folder.path().join(format!("{steps}.db"));
        crash::after(Some(steps));
        let first = create(&path, &url);
        crash::after(None);
        match first {
            Ok((remote, taken)) => {
                assert!(taken.is_some());
                is_whole(&remote);
                break;
            }
            Err(Error::Crash(_)) => crashes += 1,
            Err(error) => panic!("{error}"),
        }
        if path.exists() {
            named += 1;
            is_whole(&Remote::open(&path).expect("a whole remote"));
            continue;
        }
        // What was left behind is another file by now, or all of it: it comes again, or is gone on with.
        let (remote, taken) = create(&path, &url).expect("made");
        let (remote, taken) = match taken {
            Some(taken) => (remote, taken),
            None => {
                drop(remote);
                std::fs::remove_file(&path).expect("removed");
                let (remote, taken) = create(&path, &url).expect("made");
                (remote, taken.expect("the file is taken"))
            }
        };
        assert!(taken.bytes_down == 0 || taken.bytes_down == file.len() as u64, "{taken:?}");
        is_whole(&remote);
    }
    assert!(crashes >= 5 && named == 1, "{crashes} crashes, {named} of them after the file had its name");
}

/// What a server promises that is none of ours, or not that: the remote is made without rows.
#[test]
fn what_is_no_file_of_the_model_is_not_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = made(folder.path());
    let more = |sql: &str| {
        let path = folder.path().join("other");
        std::fs::write(&path, &file).expect("written");
        let connection = rusqlite::Connection::open(&path).expect("a file");
        connection.execute_batch(sql).expect("changed");
        drop(connection);
        std::fs::read(path).expect("the file")
    };
    let others = [
        more("CREATE TRIGGER t AFTER INSERT ON doc BEGIN DELETE FROM doc; END"),
        more("DROP TRIGGER hw_delete_doc"),
        more("CREATE VIEW v AS SELECT 1"),
        more("ALTER TABLE doc ADD COLUMN more"),
        more("UPDATE hw_state SET format = 999"),
        more("DELETE FROM hw_state"),
        b"no SQLite file at all".to_vec(),
        Vec::new(),
        file[..file.len() / 2].to_vec(),
    ];
    for (number, other) in others.into_iter().enumerate() {
        let path = folder.path().join(format!("{number}.db"));
        let url = serve(other.clone(), Sha256::digest(&other).into());
        let (remote, taken) = create(&path, &url).expect("a remote");
        assert_eq!(taken, None, "{number}");
        assert_eq!(remote.state().expect("a state").incarnation, [0; 16], "{number}");
        let rows = "SELECT count(*) FROM doc";
        assert_eq!(remote.database.connection.query_row(rows, [], |row| row.get::<_, i64>(0)), Ok(0), "{number}");
    }
    let (remote, taken) = create(&folder.path().join("wrong.db"), &serve(file, [9; 32])).expect("a remote");
    assert!(taken.is_none() && remote.state().expect("a state").incarnation == [0; 16], "another digest");
}

/// It gets no larger than it may.
#[test]
fn a_file_that_gets_too_large_is_not_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut frames = frames().into_iter();
    let built = build(&folder.path().join("made"), &doc(), 20 * 4096, &mut || Ok(frames.next()));
    assert!(matches!(built, Err(Error::DiskFull { .. })), "{built:?}");
}
