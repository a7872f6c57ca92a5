use proptest::prelude::*;

use super::*;
use crate::frame::{Frame, Kind};
use crate::packer::{Knobs, Packer, Packing, Records};
use crate::row::put_row;
use crate::value::{Type, Value};
use crate::wire::DecodeError;

fn columns() -> Vec<Column> {
    let column = |name: &str, kind| Column { name: name.to_owned(), kind, declared: String::new() };
    vec![column("id", Some(Type::Int)), column("any", None)]
}

/// A message of rows numbered from here.
fn message(cursor: u64, first: i64, count: i64) -> Vec<u8> {
    let mut rows = Vec::new();
    for number in first..first + count {
        put_row(&mut rows, &[Type::Int, Type::Text], &[Value::Int(number), Value::Real(0.5)]);
    }
    Rows { cursor, rows: count.cast_unsigned() }.to_frame(&rows).to_bytes()
}

fn bytes_of(cursor: u64, first: i64, count: i64) -> usize {
    let mut client = welcome_client();
    let opened = client.open(named("x"), 1 << 20).expect("small");
    assert_eq!(opened, cursor);
    client.push(&Columns { cursor, columns: columns() }.to_frame().to_bytes());
    client.push(&message(cursor, first, count));
    loop {
        if let Event::Rows(_, batch) = client.poll().expect("sound").expect("whole") {
            return batch.bytes();
        }
    }
}

fn named(name: &str) -> Question {
    Question::Named(name.to_owned(), vec![("a".to_owned(), "1".to_owned())])
}

fn welcome_client() -> Client {
    let mut client = Client::new(1 << 20);
    client.push(&Welcome { cursors_max: 8, idle_ms: 1_000 }.to_frame().to_bytes());
    assert!(matches!(client.poll(), Ok(Some(Event::Welcome(_)))));
    client
}

fn numbers(batch: &Batch) -> Vec<i64> {
    let (mut rows, mut values, mut numbers) = (batch.rows(), Vec::new(), Vec::new());
    while rows.next_row(&mut values).expect("sound") {
        let [crate::ValueRef::Int(number), crate::ValueRef::Real(0.5)] = values[..] else { panic!("{values:?}") };
        numbers.push(number);
    }
    numbers
}

/// All that a server is asked by these bytes.
fn asked(server: &mut Server, bytes: &[u8]) -> Result<Vec<Asked>, DecodeError> {
    server.push(bytes);
    let mut all = Vec::new();
    while let Some(asked) = server.poll()? {
        all.push(asked);
    }
    Ok(all)
}

#[test]
fn credit_is_taken_by_messages_and_given_back_in_halves() {
    let (mut client, mut server) = (welcome_client(), Server::new(8));
    let size = bytes_of(1, 0, 10);
    let cursor = client.open(named("q"), 4 * size as u64).expect("small");
    assert!(matches!(asked(&mut server, &client.take_out()).as_deref(), Ok([Asked::Open(_)])));
    client.push(&Columns { cursor, columns: columns() }.to_frame().to_bytes());
    let mut sent = 0;
    while server.may_send(cursor) {
        server.sent(cursor, size);
        client.push(&message(cursor, 10 * sent, 10));
        sent += 1;
    }
    assert_eq!(sent, 4, "no more than the credit");
    assert!(matches!(client.poll(), Ok(Some(Event::Columns(1, _)))));
    let mut batches = Vec::new();
    while let Some(Event::Rows(1, batch)) = client.poll().expect("sound") {
        batches.push(batch);
    }
    assert_eq!(batches.iter().flat_map(numbers).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    client.consumed(cursor, batches[0].bytes());
    assert!(client.take_out().is_empty(), "less than half is not worth a message");
    client.consumed(cursor, batches[1].bytes());
    assert_eq!(asked(&mut server, &client.take_out()), Ok(vec![Asked::MaySend(cursor)]));
    server.sent(cursor, 2 * size);
    assert!(!server.may_send(cursor));
}

#[test]
fn a_message_larger_than_the_credit_goes_and_takes_it_below_nothing() {
    let mut server = Server::new(1);
    let open = Open { cursor: 7, question: named("q"), credit: 10 };
    assert_eq!(asked(&mut server, &open.to_frame().to_bytes()), Ok(vec![Asked::Open(open.clone())]));
    server.sent(7, 1_000);
    let credit = |bytes| Credit { cursor: 7, bytes }.to_frame().to_bytes();
    assert_eq!(asked(&mut server, &credit(990)), Ok(vec![]), "none is left yet");
    assert!(!server.may_send(7));
    assert_eq!(asked(&mut server, &credit(1)), Ok(vec![Asked::MaySend(7)]));
    server.ended(7);
    assert_eq!(asked(&mut server, &credit(5)), Ok(vec![]), "the client did not know yet");
}

#[test]
fn what_a_client_must_not_send() {
    let open = |cursor| Open { cursor, question: named("q"), credit: 1 }.to_frame();
    let too_large = Frame::new(Kind::CursorOpen, vec![0; REQUEST_BYTES_MAX + 1]);
    for (what, frames) in [
        ("a number twice", vec![open(1), open(1)]),
        ("a number that has gone by", vec![open(2), open(1)]),
        ("the number 0", vec![open(0)]),
        ("credit for a cursor that never was", vec![Credit { cursor: 1, bytes: 1 }.to_frame()]),
        ("a cancel of one", vec![Cancel { cursor: 3 }.to_frame()]),
        ("more credit than there may be", vec![open(1), Credit { cursor: 1, bytes: CREDIT_MAX }.to_frame()]),
        ("a server's frame", vec![End { cursor: 1, rows: 1 }.to_frame()]),
        ("a frame of a sync", vec![Frame::new(Kind::End, vec![])]),
        ("more bytes than a question has", vec![too_large]),
        ("bytes behind a message", vec![Frame::new(Kind::CursorCancel, vec![1, 1])]),
    ] {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
        assert!(asked(&mut Server::new(8), &bytes).is_err(), "{what}");
    }
    let named = [1, 1, 1, 2, b'a', 0xff, 0];
    let said =
        asked(&mut Server::new(8), &Frame::new(Kind::CursorOpen, named.to_vec()).to_bytes()).expect_err("no text");
    assert_eq!(said.to_string(), "name of a query is no UTF-8 from its byte 1 on");
    let mut flipped = open(1).to_bytes();
    *flipped.last_mut().expect("bytes") ^= 1;
    assert!(matches!(asked(&mut Server::new(8), &flipped), Err(DecodeError::Checksum { .. })));
}

#[test]
fn cursors_beyond_the_limit_are_told_and_the_rest_goes_on() {
    let mut server = Server::new(2);
    let open = |cursor| Open { cursor, question: named("q"), credit: 1 }.to_frame().to_bytes();
    let all = asked(&mut server, &[open(1), open(2), open(3)].concat()).expect("sound");
    assert!(matches!(all[..], [Asked::Open(_), Asked::Open(_), Asked::TooMany(3)]));
    server.ended(1);
    assert!(matches!(asked(&mut server, &open(4)).as_deref(), Ok([Asked::Open(_)])));
    assert_eq!(server.open_cursors(), 2);
}

#[test]
fn what_a_server_must_not_send() {
    let columns = |cursor| Columns { cursor, columns: columns() }.to_frame().to_bytes();
    let end = |cursor, rows| End { cursor, rows }.to_frame().to_bytes();
    let none = Columns { cursor: 1, columns: vec![] }.to_frame().to_bytes();
    let many = Rows { cursor: 1, rows: u64::MAX }.to_frame(&[]).to_bytes();
    for (what, all) in [
        ("rows of a cursor that is not open", vec![columns(1), message(2, 0, 1)]),
        ("rows before columns", vec![message(1, 0, 1)]),
        ("columns twice", vec![columns(1), columns(1)]),
        ("an end that says more rows than came", vec![columns(1), message(1, 0, 1), end(1, 2)]),
        ("an end without columns", vec![end(1, 0)]),
        ("an end twice", vec![columns(1), end(1, 0), end(1, 0)]),
        ("rows beyond the credit", vec![columns(1), message(1, 0, 50), message(1, 50, 1)]),
        ("more rows than bytes", vec![none, many]),
        ("a message without rows", vec![columns(1), Rows { cursor: 1, rows: 0 }.to_frame(&[]).to_bytes()]),
        ("another welcome", vec![Welcome { cursors_max: 1, idle_ms: 1 }.to_frame().to_bytes()]),
        ("a client's frame", vec![Cancel { cursor: 1 }.to_frame().to_bytes()]),
    ] {
        let mut client = welcome_client();
        client.open(named("q"), 100).expect("small");
        client.push(&all.concat());
        let error = loop {
            match client.poll() {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(error.is_err(), "{what}: {error:?}");
    }
    let mut client = Client::new(1 << 20);
    client.open(named("q"), 100).expect("small");
    client.push(&columns(1));
    assert!(client.poll().is_err(), "something before WELCOME");
}

#[test]
fn rows_that_are_none_are_noticed_when_they_are_read() {
    let mut client = welcome_client();
    client.open(named("q"), 100).expect("small");
    client.push(&Columns { cursor: 1, columns: columns() }.to_frame().to_bytes());
    client.push(&Rows { cursor: 1, rows: 1 }.to_frame(&[0x05, 2]).to_bytes());
    client.push(&Rows { cursor: 1, rows: 1 }.to_frame(&[0x00, 2]).to_bytes());
    client.push(&Rows { cursor: 1, rows: 1 }.to_frame(&[0x03]).to_bytes());
    client.poll().expect("columns");
    for what in ["cut", "left over", "the same as nothing"] {
        let Ok(Some(Event::Rows(_, batch))) = client.poll() else { panic!("{what}") };
        let (mut rows, mut values) = (batch.rows(), Vec::new());
        let read = rows.next_row(&mut values).and_then(|_| rows.next_row(&mut values));
        assert!(read.is_err(), "{what}");
    }
}

#[test]
fn a_cancelled_cursor_tells_nothing_more_but_its_end() {
    let mut client = welcome_client();
    let cursor = client.open(named("q"), 100).expect("small");
    client.take_out();
    client.cancel(cursor);
    client.cancel(cursor);
    assert_eq!(client.take_out(), Cancel { cursor }.to_frame().to_bytes(), "once");
    client.push(&Columns { cursor, columns: columns() }.to_frame().to_bytes());
    client.push(&message(cursor, 0, 3));
    assert!(!client.is_done());
    let failed = Failed { cursor, code: "cancelled".into(), message: String::new(), retry_after_ms: 0 };
    client.push(&failed.to_frame().to_bytes());
    assert_eq!(client.poll(), Ok(Some(Event::Failed(failed))));
    assert!(client.is_done());
}

#[test]
fn a_question_that_no_server_takes_is_not_sent() {
    let mut client = welcome_client();
    let long = Question::Sql("x".repeat(REQUEST_BYTES_MAX), vec![]);
    assert!(client.open(long, 100).is_err());
    assert!(client.open(Question::Sql("SELECT 1".into(), vec![String::new(); ARGUMENTS_MAX + 1]), 100).is_err());
    assert!(client.take_out().is_empty());
    assert_eq!(client.open(named("q"), 100), Ok(1));
}

/// A cursor on the server's side of the property below: rows that a packer packs.
struct Sending {
    cursor: u64,
    rows: i64,
    next: i64,
    packer: Packer,
    has_columns: bool,
}

impl Sending {
    /// The next frame, if one may go.
    fn frame(&mut self, server: &mut Server) -> Option<Vec<u8>> {
        let cursor = self.cursor;
        if !std::mem::replace(&mut self.has_columns, true) {
            return Some(Columns { cursor, columns: columns() }.to_frame().to_bytes());
        }
        if self.next == self.rows {
            server.ended(cursor);
            self.next += 1;
            return Some(End { cursor, rows: self.rows.cast_unsigned() }.to_frame().to_bytes());
        }
        if self.next > self.rows || !server.may_send(cursor) {
            return None;
        }
        let first = self.next;
        let mut rows = Vec::new();
        while self.next < self.rows {
            put_row(&mut rows, &[Type::Int, Type::Text], &[Value::Int(self.next), Value::Real(0.5)]);
            self.next += 1;
            if self.packer.add(rows.len()) {
                break;
            }
        }
        server.sent(cursor, rows.len());
        Some(Rows { cursor, rows: (self.next - first).cast_unsigned() }.to_frame(&rows).to_bytes())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Several cursors over one connection, cut into pieces anyhow, consumed at any pace: all rows come in order, and a client never has more
    /// than it gave credit for, and one message.
    #[test]
    fn all_rows_come_in_order_and_no_more_than_there_is_credit_for(
        sizes in prop::collection::vec(0..400i64, 1..5),
        window in 1..2_000u64,
        records in 0..100u16,
        piece in 1..300usize,
        steps in prop::collection::vec(0..4usize, 0..3_000),
    ) {
        let packing = Packing { records: if records == 0 { Records::Automatic } else { Records::Exactly(records) }, ..Packing::default() };
        let (mut client, mut server) = (welcome_client(), Server::new(8));
        let mut sending: Vec<Sending> = Vec::new();
        let mut came: Vec<Vec<i64>> = vec![Vec::new(); sizes.len()];
        let mut held: Vec<(u64, Batch)> = Vec::new();
        let mut ended = 0;
        for rows in &sizes {
            let cursor = client.open(named("q"), window).expect("small");
            sending.push(Sending { cursor, rows: *rows, next: 0, packer: Packer::new(&Knobs::new(packing)), has_columns: false });
        }
        prop_assert_eq!(asked(&mut server, &client.take_out()).expect("sound").len(), sizes.len());
        // After the given order everything that can be done is done until all is over.
        let rounds = (0..).map(|round| round % 4);
        for step in steps.into_iter().chain(rounds) {
            match step {
                0 => drop(asked(&mut server, &client.take_out()).expect("sound")),
                1 | 2 => for one in &mut sending {
                    let Some(frame) = one.frame(&mut server) else { continue };
                    for piece in frame.chunks(piece) {
                        client.push(piece);
                        while let Some(event) = client.poll().expect("sound") {
                            match event {
                                Event::Rows(cursor, batch) => held.push((cursor, batch)),
                                Event::End(..) => ended += 1,
                                Event::Columns(..) => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                },
                _ => if !held.is_empty() {
                    let (cursor, batch) = held.remove(0);
                    came[cursor as usize - 1].extend(numbers(&batch));
                    client.consumed(cursor, batch.bytes());
                },
            }
            for one in &sending {
                let bytes: Vec<usize> = held.iter().filter(|(cursor, _)| *cursor == one.cursor).map(|(_, batch)| batch.bytes()).collect();
                let without_last: usize = bytes.iter().rev().skip(1).sum();
                prop_assert!((without_last as u64) < window, "{bytes:?}");
            }
            if ended == sizes.len() && held.is_empty() {
                break;
            }
        }
        for (rows, came) in sizes.iter().zip(&came) {
            prop_assert_eq!(came, &(0..*rows).collect::<Vec<_>>());
        }
        prop_assert!(client.is_done() && server.open_cursors() == 0);
    }

    /// Where the reading of a message was left it goes on.
    #[test]
    fn a_message_is_read_on_from_where_it_was_left(count in 1..50i64, left in 0..50i64) {
        let mut client = welcome_client();
        client.open(named("q"), 1 << 20).expect("small");
        client.push(&Columns { cursor: 1, columns: columns() }.to_frame().to_bytes());
        client.push(&message(1, 0, count));
        client.poll().expect("columns");
        let Ok(Some(Event::Rows(_, batch))) = client.poll() else { panic!("rows") };
        let (mut rows, mut values) = (batch.rows(), Vec::new());
        for _ in 0..left.min(count) {
            prop_assert!(rows.next_row(&mut values).expect("a row"));
        }
        let place = rows.place(&batch);
        let mut rest = BatchRows::at(&batch, place);
        let mut again = Vec::new();
        for _ in left.min(count)..count {
            prop_assert!(rows.next_row(&mut values).expect("a row") && rest.next_row(&mut again).expect("a row"));
            prop_assert_eq!(&values, &again);
        }
        prop_assert!(!rest.next_row(&mut again).expect("the end"));
    }
}
