//! Both sides of a connection of cursors. As in [`crate::stream`] the input describes frames; its first byte says how they are cut.

use headwater_protocol::cursor::{Asked, Client, Event, Misled, Question, Server};
use headwater_protocol::wire::DecodeError;

use crate::stream::{described, pieces};
use crate::wire::LIMIT;

/// What a client is sent: how it is cut changes nothing, rows are read or refused, and no more comes than there was credit for.
pub fn client(data: &[u8]) {
    let Some((length, description)) = data.split_first() else { return };
    let bytes = described(description);
    let found = told(&bytes, *length);
    assert_eq!(found, told(&bytes, u8::MAX), "pieces change nothing");
    for event in found.0 {
        let Event::Rows(_, batch) = event else { continue };
        let (mut rows, mut values, mut count) = (batch.rows(), Vec::new(), 0);
        while let Ok(true) = rows.next_row(&mut values) {
            assert_eq!(values.len(), batch.columns().len(), "a row has a value for each column");
            count += 1;
        }
        assert!(count <= batch.len() && batch.len() <= batch.bytes() as u64, "each row has a byte");
    }
}

fn told(bytes: &[u8], length: u8) -> (Vec<Event>, Option<Misled>) {
    let mut client = Client::new(LIMIT);
    for _ in 0..3 {
        client.open(Question::Named("a".to_owned(), Vec::new()), 1_000).expect("a small question");
    }
    client.cancel(2);
    let mut events = Vec::new();
    for piece in pieces(bytes, length) {
        client.push(piece);
        loop {
            match client.poll() {
                Ok(Some(event)) => {
                    if let Event::Rows(cursor, batch) = &event {
                        client.consumed(*cursor, batch.bytes() / 2);
                    }
                    events.push(event);
                }
                Ok(None) => break,
                Err(misled) => return (events, Some(misled)),
            }
        }
    }
    (events, None)
}

/// What a server is asked: how it is cut changes nothing, and no more cursors are open than may be.
pub fn server(data: &[u8]) {
    let Some((length, description)) = data.split_first() else { return };
    let bytes = described(description);
    assert_eq!(asked(&bytes, *length), asked(&bytes, u8::MAX), "pieces change nothing");
}

fn asked(bytes: &[u8], length: u8) -> (Vec<Asked>, Option<DecodeError>) {
    let mut server = Server::new(3);
    let mut all = Vec::new();
    for piece in pieces(bytes, length) {
        server.push(piece);
        loop {
            match server.poll() {
                Ok(Some(asked)) => {
                    match &asked {
                        Asked::Open(open) => server.sent(open.cursor, 10),
                        Asked::Cancel(cursor) => server.ended(*cursor),
                        Asked::TooMany(_) | Asked::MaySend(_) => {}
                    }
                    assert!(server.open_cursors() <= 3, "no more than may be");
                    all.push(asked);
                }
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}
