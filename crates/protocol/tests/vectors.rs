//! The vectors of docs/vectors: read, compared with what they are to mean, and written again.

use std::collections::BTreeMap;
use std::path::Path;

use headwater_protocol::chunk::{self, Key};
use headwater_protocol::cursor::{self, Question};
use headwater_protocol::message::{
    AppliedUpload, Change, ChunkRef, ConflictEnd, Download, ErrorCode, FrozenFate, FrozenUpload, Hello, KeyRange,
    KeyRanges, Outcome, PartitionAction, PartitionMark, ReadyFile, Receipt, Refusal, RefusalCode, RowOp, RowsReader,
    ServerError, Snapshot, TableHeader, Ticket, UploadEnd, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::upload::Digest;
use headwater_protocol::value::POSITIVE_INFINITY;
use headwater_protocol::wire::Reader;
use headwater_protocol::{Decimal, DecodeError, Decoder, Frame, Kind, Type, Value};

const LIMIT: usize = 1 << 20;

/// The bytes by the words after the first, of a file of vectors.
fn vectors(file: &str, word: &str) -> BTreeMap<String, Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut name = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix(word) {
            name = Some(rest.trim().to_owned());
        } else if let Some(name) = name.as_ref().filter(|_| !line.is_empty()) {
            let digits: String = line.split(';').next().unwrap_or_default().split_whitespace().collect();
            found.entry(name.clone()).or_default().extend(hex::decode(&digits).expect("hexadecimal digits"));
        }
    }
    found
}

fn run(first: u8) -> [u8; 16] {
    std::array::from_fn(|place| first + place as u8)
}

fn secret() -> [u8; 32] {
    std::array::from_fn(|place| 0x20 + place as u8)
}

fn hello() -> Hello {
    Hello {
        remote_id: run(0x10),
        secret: secret(),
        model: "shop".to_owned(),
        model_version: 3,
        fingerprint: 0x1122_3344_5566_7788,
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

fn entry(table: u32, partition: &[u8], mark: u32) -> WatermarkEntry {
    WatermarkEntry { table, partition: partition.to_vec(), mark }
}

const NORTH: &[u8] = &[1, 1, b'n'];
const SOUTH: &[u8] = &[1, 1, b's'];

fn later_hello() -> Hello {
    let entries = vec![entry(0, &[], 0), entry(1, NORTH, 0), entry(1, SOUTH, 1)];
    Hello {
        incarnation: run(0x40),
        note: run(0x50),
        upload_sequence: 7,
        download_applied: run(0x60),
        has_upload: true,
        watermarks: Watermarks { marks: vec![vec![0xaa, 0xbb], vec![0xcc]], entries },
        ..hello()
    }
}

fn hello_with_uploads() -> Hello {
    let upload = |sequence, first| AppliedUpload { sequence, digest: std::array::from_fn(|place| first + place as u8) };
    Hello { uploads: vec![upload(7, 0x70), upload(5, 0x80)], ..later_hello() }
}

fn hello_with_frozen() -> Hello {
    let cut = std::array::from_fn(|place| 0x90 + place as u8);
    Hello { frozen: Some(FrozenUpload { sequence: 8, cut, is_given_up: true }), ..hello_with_uploads() }
}

fn table() -> TableHeader {
    let columns = [("region", Type::Text), ("item", Type::Int), ("cost", Type::Decimal), ("since", Type::Date)];
    let columns = columns.map(|(name, kind)| (name.to_owned(), kind)).to_vec();
    TableHeader { table: 1, name: "price".to_owned(), columns, key: vec![0, 1] }
}

fn decimal(text: &str) -> Value {
    Value::Decimal(Decimal::parse(text).expect("a decimal"))
}

fn changes() -> Vec<Change> {
    let old = vec![Value::text("s"), Value::Int(-1), decimal("-5"), Value::Null];
    let new = vec![Value::text("s"), Value::Int(-1), decimal("NaN"), Value::text("soon")];
    vec![
        Change { old: None, new: Some(vec![Value::text("n"), Value::Int(7), decimal("12.50"), Value::Date(11_356)]) },
        Change { old: Some(old), new: Some(new) },
        Change { old: Some(vec![Value::text("é"), Value::Int(300), Value::Null, Value::Null]), new: None },
    ]
}

fn changes_frame() -> Frame {
    let mut payload = Vec::new();
    for change in changes() {
        change.write(&mut payload, &table().types());
    }
    Frame::new(Kind::Changes, payload)
}

fn rows_frame() -> Frame {
    let mut payload = vec![RowOp::Upsert as u8];
    let row = [Value::text("n"), Value::Int(i64::MIN), Value::Null, Value::Date(POSITIVE_INFINITY)];
    put_row(&mut payload, &table().types(), &row);
    payload.push(RowOp::Delete as u8);
    put_row(&mut payload, &table().key_types(), &[Value::text("s"), Value::Int(-1)]);
    Frame::new(Kind::Rows, payload)
}

fn leaving_frame() -> Frame {
    let mut payload = vec![RowOp::Leave as u8];
    put_row(&mut payload, &table().key_types(), &[Value::text("w"), Value::Int(2)]);
    Frame::new(Kind::Rows, payload)
}

fn upload_end() -> UploadEnd {
    let mut digest = Digest::new();
    for frame in [table().to_frame(), changes_frame()] {
        digest.add(frame.kind, &frame.payload(LIMIT).expect("uncompressed"));
    }
    UploadEnd { sequence: 8, changes: 3, digest: digest.finish() }
}

fn receipt() -> Receipt {
    let refusal = Refusal { code: RefusalCode::Partition, message: "not yours".to_owned() };
    let outcomes = vec![
        (2, Outcome::Conflict(ConflictEnd::Merged)),
        (3, Outcome::Refused(refusal)),
        (200, Outcome::Conflict(ConflictEnd::Consolidated)),
    ];
    Receipt { sequence: 8, changes: 300, outcomes }
}

fn watermarks() -> Watermarks {
    Watermarks { marks: vec![vec![1, 2, 3]], entries: vec![entry(0, &[], 0), entry(1, NORTH, 0)] }
}

fn partition(table: u32, action: PartitionAction, partition: &[u8]) -> PartitionMark {
    PartitionMark { table, action, partition: partition.to_vec() }
}

fn snapshot() -> Snapshot {
    let digest = std::array::from_fn(|place| 0xe0 + place as u8);
    let chunks =
        vec![ChunkRef { id: run(0xb0), bytes: 300, digest }, ChunkRef { id: run(0xc0), bytes: 12, digest: [0xff; 32] }];
    let url = "http://cache:3128".to_owned();
    Snapshot { table: 1, partition: NORTH.to_vec(), url, key: Key::new(secret()), rows: 2, chunks }
}

fn busy() -> ServerError {
    ServerError { code: ErrorCode::RemoteBusy, retry_after_ms: 1_500, message: "busy".to_owned() }
}

/// What each vector means.
fn meanings() -> BTreeMap<&'static str, Frame> {
    let welcome =
        Welcome { incarnation: run(0x80), note: run(0x90), restart: true, upload_sequence: 7, ..Welcome::default() };
    BTreeMap::from([
        ("hello.first", hello().to_frame()),
        ("hello.later", later_hello().to_frame()),
        ("hello.uploads", hello_with_uploads().to_frame()),
        ("hello.frozen", hello_with_frozen().to_frame()),
        ("welcome.frozen", Welcome { restart: false, frozen: FrozenFate::GivenUp, ..welcome }.to_frame()),
        ("hello.chunks", Hello { takes_chunks: true, ..hello() }.to_frame()),
        ("hello.leaving", Hello { knows_leaving: true, ..hello() }.to_frame()),
        ("table", table().to_frame()),
        ("changes", changes_frame()),
        ("upload_end", upload_end().to_frame()),
        ("ticket", Ticket { ticket: run(0x70), bytes: 1 << 33 }.to_frame()),
        ("end", Frame::new(Kind::End, Vec::new())),
        ("welcome", welcome.to_frame()),
        ("receipt", receipt().to_frame()),
        ("download", Download { id: run(0xa0), resumable_s: 0, rows: 2, bytes: 0 }.to_frame()),
        ("partition.whole", partition(1, PartitionAction::Whole, NORTH).to_frame()),
        ("partition.left", partition(0, PartitionAction::Left, &[]).to_frame()),
        ("rows", rows_frame()),
        ("rows.leaving", leaving_frame()),
        ("watermarks", watermarks().to_frame()),
        ("key_ranges", KeyRanges { ranges: vec![KeyRange { table: 0, first: 1_000, last: 1_999 }] }.to_frame()),
        ("heartbeat", Frame::new(Kind::Heartbeat, Vec::new())),
        ("error", busy().to_frame()),
        ("snapshot", snapshot().to_frame()),
        (
            "ready_file",
            ReadyFile { id: run(0xb0), digest: secret(), bytes: 1 << 33, rows: 300, kept_s: 120 }.to_frame(),
        ),
        ("cursor.welcome", cursor::Welcome { cursors_max: 8, idle_ms: 60_000 }.to_frame()),
        ("cursor.open.named", open(1, Question::Named("flights".into(), vec![("origin".into(), "JFK".into())]))),
        ("cursor.open.sql", open(2, Question::Sql("SELECT ?".into(), vec!["7".into()]))),
        ("cursor.credit", cursor::Credit { cursor: 1, bytes: 524_288 }.to_frame()),
        ("cursor.cancel", cursor::Cancel { cursor: 2 }.to_frame()),
        ("cursor.columns", cursor::Columns { cursor: 1, columns: cursor_columns() }.to_frame()),
        ("cursor.rows", cursor_rows()),
        ("cursor.end", cursor::End { cursor: 1, rows: 300 }.to_frame()),
        ("cursor.failed", cursor_failed().to_frame()),
    ])
}

fn open(cursor: u64, question: Question) -> Frame {
    cursor::Open { cursor, question, credit: 1 << 20 }.to_frame()
}

fn cursor_columns() -> Vec<cursor::Column> {
    let column =
        |name: &str, kind, declared: &str| cursor::Column { name: name.into(), kind, declared: declared.into() };
    vec![column("id", Some(Type::Int), "int8"), column("delay", Some(Type::Real), "float8"), column("any", None, "")]
}

/// `(7, NULL, 'hi')`, and `(8, 0.5, 1)`.
fn cursor_rows() -> Frame {
    let mut rows = Vec::new();
    for row in [[Value::Int(7), Value::Null, Value::text("hi")], [Value::Int(8), Value::Real(0.5), Value::Int(1)]] {
        put_row(&mut rows, &[Type::Int, Type::Real, Type::Text], &row);
    }
    cursor::Rows { cursor: 1, rows: 2 }.to_frame(&rows)
}

fn cursor_failed() -> cursor::Failed {
    cursor::Failed { cursor: 2, code: "overloaded".into(), message: "later".into(), retry_after_ms: 1_000 }
}

/// Reads the only frame of some bytes and what is in it, and writes that again.
fn read(bytes: &[u8]) -> Result<Frame, DecodeError> {
    let mut decoder = Decoder::new(LIMIT);
    decoder.push(bytes);
    let frame = decoder.next_frame()?.expect("the vector is a whole frame");
    assert!(decoder.is_at_boundary());
    let payload = frame.payload(LIMIT)?;
    Ok(match frame.kind {
        Kind::Hello => Hello::from_payload(&payload)?.to_frame(),
        Kind::Table => TableHeader::from_payload(&payload)?.to_frame(),
        Kind::Changes => read_changes(&payload)?,
        Kind::UploadEnd => UploadEnd::from_payload(&payload)?.to_frame(),
        Kind::Ticket => Ticket::from_payload(&payload)?.to_frame(),
        Kind::Welcome => Welcome::from_payload(&payload)?.to_frame(),
        Kind::Receipt => Receipt::from_payload(&payload)?.to_frame(),
        Kind::Download => Download::from_payload(&payload)?.to_frame(),
        Kind::Partition => PartitionMark::from_payload(&payload)?.to_frame(),
        Kind::Rows => read_rows(&payload)?,
        Kind::Watermarks => Watermarks::from_payload(&payload)?.to_frame(),
        Kind::KeyRanges => KeyRanges::from_payload(&payload)?.to_frame(),
        Kind::Snapshot => Snapshot::from_payload(&payload)?.to_frame(),
        Kind::Error => ServerError::from_payload(&payload)?.to_frame(),
        Kind::ReadyFile => ReadyFile::from_payload(&payload)?.to_frame(),
        Kind::CursorWelcome => cursor::Welcome::from_payload(&payload)?.to_frame(),
        Kind::CursorOpen => cursor::Open::from_payload(&payload)?.to_frame(),
        Kind::CursorCredit => cursor::Credit::from_payload(&payload)?.to_frame(),
        Kind::CursorCancel => cursor::Cancel::from_payload(&payload)?.to_frame(),
        Kind::CursorColumns => cursor::Columns::from_payload(&payload)?.to_frame(),
        Kind::CursorRows => {
            let (rows, start) = cursor::Rows::from_payload(&payload)?;
            rows.to_frame(&payload[start..])
        }
        Kind::CursorEnd => cursor::End::from_payload(&payload)?.to_frame(),
        Kind::CursorFailed => cursor::Failed::from_payload(&payload)?.to_frame(),
        Kind::End | Kind::Heartbeat => {
            Reader::new(&payload).finish("an empty payload")?;
            Frame::new(frame.kind, Vec::new())
        }
    })
}

fn read_changes(payload: &[u8]) -> Result<Frame, DecodeError> {
    let (mut reader, mut out) = (Reader::new(payload), Vec::new());
    while !reader.is_empty() {
        Change::read(&mut reader, &table().types(), LIMIT)?.write(&mut out, &table().types());
    }
    Ok(Frame::new(Kind::Changes, out))
}

fn read_rows(payload: &[u8]) -> Result<Frame, DecodeError> {
    let (mut reader, mut out) = (RowsReader::new(payload), Vec::new());
    while let Some(op) = reader.next_op()? {
        let types = if op == RowOp::Upsert { table().types() } else { table().key_types() };
        out.push(op as u8);
        put_row(&mut out, &types, &read_row(reader.row(), &types, LIMIT, None)?);
    }
    Ok(Frame::new(Kind::Rows, out))
}

#[test]
fn every_vector_means_what_it_says_and_is_written_again() {
    let vectors = vectors("frames.txt", "vector ");
    let meanings = meanings();
    assert_eq!(vectors.keys().map(String::as_str).collect::<Vec<_>>(), meanings.keys().copied().collect::<Vec<_>>());
    for (name, bytes) in &vectors {
        assert_eq!(hex::encode(meanings[name.as_str()].to_bytes()), hex::encode(bytes), "{name} is written otherwise");
        let read = read(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(hex::encode(read.to_bytes()), hex::encode(bytes), "{name} is not what was read");
    }
}

#[test]
fn every_kind_of_frame_has_a_vector() {
    let kinds: Vec<u8> = vectors("frames.txt", "vector ").values().map(|bytes| bytes[4]).collect();
    let missing: Vec<u8> = (0..=255).filter(|kind| Kind::from_wire(*kind).is_some() && !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "{missing:02x?}");
}

#[test]
fn what_must_be_refused_is_refused() {
    let vectors = vectors("refused.txt", "refused ");
    assert!(vectors.len() >= 15);
    for (name, bytes) in vectors {
        let (name, code) = name.split_once(' ').expect("a name and a code");
        let error = read(&bytes).expect_err(name);
        let actual = match error {
            DecodeError::TooLarge { .. } => "too_large",
            DecodeError::Undefined { field: "protocol version", .. } => "unsupported_version",
            _ => "malformed",
        };
        assert_eq!(actual, code, "{name}: {error}");
    }
}

/// One bit changed anywhere in a vector is noticed.
#[test]
fn a_flipped_bit_is_refused() {
    for (name, bytes) in vectors("frames.txt", "vector ") {
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = Decoder::new(LIMIT);
            decoder.push(&damaged);
            // A greater length waits for bytes that never come.
            assert!(!matches!(decoder.next_frame(), Ok(Some(_))), "{name}, bit {bit}");
        }
    }
}

/// The chunk that holds the vectors `table` and `rows`, sealed as the first of the vector `snapshot`.
#[test]
fn the_chunk_is_sealed_as_it_says() {
    let chunks = vectors("chunks.txt", "chunk ");
    let plain = [table().to_frame().to_bytes(), rows_frame().to_bytes()].concat();
    let sealed = &chunks["first"];
    assert_eq!(hex::encode(chunk::seal(&snapshot().key, 0, plain.clone())), hex::encode(sealed));
    assert_eq!(chunk::open(&snapshot().key, 0, sealed.clone()), Some(plain.clone()));
    let second = &chunks["second"];
    assert_eq!(chunk::open(&snapshot().key, 1, second.clone()), Some(plain));
    assert_eq!(chunk::open(&snapshot().key, 0, second.clone()), None);
}
