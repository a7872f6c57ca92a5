//! Properties of every decoder, over arbitrary content: encode after decode is the identity, truncation and damage are refused, and
//! arbitrary bytes are read or refused but never panic.

use headwater_protocol::chunk::{CHUNK_BYTES_MAX, Key};
use headwater_protocol::cursor;
use headwater_protocol::message::{
    AppliedUpload, Change, ChunkRef, ConflictEnd, Download, ErrorCode, FrozenFate, FrozenUpload, Hello, KeyRange,
    KeyRanges, Outcome, PartitionAction, PartitionMark, ReadyFile, Receipt, Refusal, RefusalCode, RowOp, RowsReader,
    ServerError, Snapshot, TableHeader, Ticket, UploadEnd, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::wire::{Reader, Write};
use headwater_protocol::{Decimal, DecodeError, Decoder, Frame, Kind, Row, Type, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const LIMIT: usize = 1 << 20;

fn a_type() -> impl Strategy<Value = Type> {
    select(Type::ALL.to_vec())
}

fn an_integer() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -200..200i64, select(vec![i64::MIN, i64::MAX, 0, -1, 1 << 53, 253_402_300_799_999_999])]
}

fn a_decimal() -> impl Strategy<Value = Decimal> {
    let number =
        ("-?", "(0|[1-9][0-9]{0,60})", "(\\.[0-9]{1,60})?").prop_map(|(sign, whole, rest)| sign + &whole + &rest);
    prop_oneof![
        number,
        select(vec!["NaN".to_owned(), "Infinity".to_owned(), "-Infinity".to_owned(), "-0.00".to_owned()])
    ]
    .prop_map(|text| Decimal::parse(&text).expect("canonical text"))
}

fn a_real() -> impl Strategy<Value = f64> {
    let special = vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE / 2.0, f64::MAX];
    prop_oneof![any::<u64>().prop_map(f64::from_bits), select(special)]
}

fn a_value_of(kind: Type) -> BoxedStrategy<Value> {
    let some_bytes =
        || prop_oneof![vec(any::<u8>(), 0..40), Just(vec![0]), Just(vec![0xff, 0xfe]), vec(b'a'..=b'z', 100..300)];
    match kind {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int => an_integer().prop_map(Value::Int).boxed(),
        Type::Real => a_real().prop_map(Value::Real).boxed(),
        Type::Decimal => a_decimal().prop_map(Value::Decimal).boxed(),
        Type::Text => some_bytes().prop_map(Value::Text).boxed(),
        Type::Bytes => some_bytes().prop_map(Value::Bytes).boxed(),
        Type::Date => an_integer().prop_map(Value::Date).boxed(),
        Type::Time => an_integer().prop_map(Value::Time).boxed(),
        Type::Timestamp => an_integer().prop_map(Value::Timestamp).boxed(),
        Type::Timestamptz => an_integer().prop_map(Value::Timestamptz).boxed(),
        Type::Uuid => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
        Type::Json => some_bytes().prop_map(Value::Json).boxed(),
    }
}

/// Mostly of the column's type, sometimes NULL or of another type.
fn a_value_for(column: Type) -> impl Strategy<Value = Value> {
    prop_oneof![8 => a_value_of(column), 1 => Just(Value::Null), 1 => a_type().prop_flat_map(a_value_of)]
}

fn a_row_for(types: Vec<Type>) -> impl Strategy<Value = Row> {
    types.into_iter().map(a_value_for).collect::<Vec<_>>()
}

fn types() -> impl Strategy<Value = Vec<Type>> {
    vec(a_type(), 0..14)
}

fn types_and_row() -> impl Strategy<Value = (Vec<Type>, Row)> {
    types().prop_flat_map(|types| (Just(types.clone()), a_row_for(types)))
}

fn types_and_change() -> impl Strategy<Value = (Vec<Type>, Change)> {
    types().prop_flat_map(|types| {
        let row = || a_row_for(types.clone());
        let update = (row(), row(), vec(any::<bool>(), types.len())).prop_map(|(old, other, keep)| {
            let new = old.iter().zip(other).zip(keep).map(|((a, b), keep)| if keep { a.clone() } else { b }).collect();
            Change { old: Some(old), new: Some(new) }
        });
        let change = prop_oneof![
            update,
            row().prop_map(|new| Change { old: None, new: Some(new) }),
            row().prop_map(|old| Change { old: Some(old), new: None }),
        ];
        (Just(types.clone()), change)
    })
}

/// Equal to the bit: `NaN` is itself, and `-0.0` is not `0.0`.
fn identical(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a, b) {
            (Value::Real(a), Value::Real(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        })
}

fn whole_row(bytes: &[u8], types: &[Type]) -> Result<Row, DecodeError> {
    let mut reader = Reader::new(bytes);
    let row = read_row(&mut reader, types, LIMIT, None)?;
    reader.finish("row")?;
    Ok(row)
}

fn whole_change(bytes: &[u8], types: &[Type]) -> Result<Change, DecodeError> {
    let mut reader = Reader::new(bytes);
    let change = Change::read(&mut reader, types, LIMIT)?;
    reader.finish("change")?;
    Ok(change)
}

fn a_name() -> impl Strategy<Value = String> {
    "[a-zé\\PC]{0,20}"
}

fn watermarks() -> impl Strategy<Value = Watermarks> {
    (vec(vec(any::<u8>(), 0..20), 1..4), vec((any::<u32>(), vec(any::<u8>(), 0..9), any::<u32>()), 0..6)).prop_map(
        |(marks, entries)| {
            let entry = |(table, partition, mark)| WatermarkEntry { table, partition, mark: mark % marks.len() as u32 };
            let entries = entries.into_iter().map(entry).collect();
            Watermarks { marks, entries }
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let chunk = (any::<[u8; 16]>(), 0..=CHUNK_BYTES_MAX as u32, any::<[u8; 32]>());
    let chunks = vec(chunk.prop_map(|(id, bytes, digest)| ChunkRef { id, bytes, digest }), 0..5);
    let place = (any::<u32>(), vec(any::<u8>(), 0..30), a_name());
    (place, any::<[u8; 32]>(), any::<u64>(), chunks).prop_map(|((table, partition, url), key, rows, chunks)| Snapshot {
        table,
        partition,
        url,
        key: Key::new(key),
        rows,
        chunks,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    let identity = (any::<[u8; 16]>(), any::<[u8; 32]>(), a_name(), any::<u32>(), any::<u64>());
    let state = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u64>(), any::<[u8; 16]>(), any::<(bool, bool, bool)>());
    let upload = (0..1u64 << 62, any::<[u8; 8]>()).prop_map(|(sequence, digest)| AppliedUpload { sequence, digest });
    let frozen = (0..1u64 << 62, any::<[u8; 8]>(), any::<bool>())
        .prop_map(|(sequence, cut, is_given_up)| FrozenUpload { sequence, cut, is_given_up });
    let uploads = (vec(upload, 0..=7), proptest::option::of(frozen));
    (identity, state, uploads, watermarks()).prop_map(|(identity, state, (uploads, frozen), watermarks)| Hello {
        remote_id: identity.0,
        secret: identity.1,
        model: identity.2,
        model_version: identity.3,
        fingerprint: identity.4,
        incarnation: state.0,
        note: state.1,
        upload_sequence: state.2,
        download_applied: state.3,
        has_upload: state.4.0,
        wants_download: state.4.1,
        takes_chunks: state.4.2,
        knows_leaving: state.4.0,
        uploads,
        frozen,
        watermarks,
    })
}

fn table() -> impl Strategy<Value = TableHeader> {
    (any::<u32>(), a_name(), vec((a_name(), a_type()), 1..9), vec(any::<usize>(), 0..3)).prop_map(
        |(table, name, columns, key)| {
            let key = key.into_iter().take(columns.len()).map(|place| place % columns.len()).collect();
            TableHeader { table, name, columns, key }
        },
    )
}

fn receipt() -> impl Strategy<Value = Receipt> {
    let ends = vec![ConflictEnd::Consolidated, ConflictEnd::Remote, ConflictEnd::Merged];
    let outcome = prop_oneof![
        select(ends).prop_map(Outcome::Conflict),
        (select(RefusalCode::ALL.to_vec()), a_name())
            .prop_map(|(code, message)| Outcome::Refused(Refusal { code, message })),
    ];
    (any::<u64>(), vec((0..1000u64, outcome), 0..20)).prop_map(|(sequence, outcomes)| {
        let mut next = 0;
        let mut place = |(skip, outcome)| {
            let ordinal: u64 = next + skip;
            next = ordinal + 1;
            (ordinal, outcome)
        };
        let outcomes: Vec<_> = outcomes.into_iter().map(&mut place).collect();
        Receipt { sequence, changes: next + 3, outcomes }
    })
}

fn key_ranges() -> impl Strategy<Value = KeyRanges> {
    let range = |(table, a, b): (u32, i64, i64)| KeyRange { table, first: a.min(b), last: a.max(b) };
    vec(any::<(u32, i64, i64)>().prop_map(range), 0..5).prop_map(|ranges| KeyRanges { ranges })
}

/// A frame of a connection of cursors.
fn a_cursors_frame() -> impl Strategy<Value = Frame> {
    let cursor = || prop_oneof![1..300_u64, select(vec![1, u64::MAX])];
    let credit = || prop_oneof![0..300_u64, Just(cursor::CREDIT_MAX)];
    let question = prop_oneof![
        (a_name(), vec((a_name(), a_name()), 0..4)).prop_map(|(name, given)| cursor::Question::Named(name, given)),
        (a_name(), vec(a_name(), 0..4)).prop_map(|(sql, values)| cursor::Question::Sql(sql, values)),
    ];
    let column = (a_name(), proptest::option::of(a_type()), a_name())
        .prop_map(|(name, kind, declared)| cursor::Column { name, kind, declared });
    prop_oneof![
        (0..=cursor::CURSORS_MAX, any::<u64>()).prop_map(|(cursors_max, idle_ms)| cursor::Welcome {
            cursors_max,
            idle_ms
        }
        .to_frame()),
        (cursor(), question, credit())
            .prop_map(|(cursor, question, credit)| cursor::Open { cursor, question, credit }.to_frame()),
        (cursor(), credit()).prop_map(|(cursor, bytes)| cursor::Credit { cursor, bytes }.to_frame()),
        cursor().prop_map(|cursor| cursor::Cancel { cursor }.to_frame()),
        (cursor(), vec(column, 0..5)).prop_map(|(cursor, columns)| cursor::Columns { cursor, columns }.to_frame()),
        (cursor(), any::<u64>(), vec(any::<u8>(), 0..40)).prop_map(|(cursor, rows, bytes)| cursor::Rows {
            cursor,
            rows
        }
        .to_frame(&bytes)),
        (cursor(), any::<u64>()).prop_map(|(cursor, rows)| cursor::End { cursor, rows }.to_frame()),
        (any::<u64>(), a_name(), a_name(), any::<u64>()).prop_map(|(cursor, code, message, retry_after_ms)| {
            cursor::Failed { cursor, code, message, retry_after_ms }.to_frame()
        }),
    ]
}

/// A frame of any kind with content that its kind allows.
fn a_frame() -> impl Strategy<Value = Frame> {
    let rows = types_and_row().prop_map(|(types, row)| {
        let mut payload = vec![RowOp::Upsert as u8];
        put_row(&mut payload, &types, &row);
        Frame::packed(Kind::Rows, payload)
    });
    let changes = types_and_change().prop_map(|(types, change)| {
        let mut payload = Vec::new();
        change.write(&mut payload, &types);
        Frame::packed(Kind::Changes, payload)
    });
    let actions = vec![PartitionAction::Whole, PartitionAction::Left];
    let of_a_sync = prop_oneof![
        hello().prop_map(|m| m.to_frame()),
        table().prop_map(|m| m.to_frame()),
        changes,
        any::<(u64, u64, [u8; 32])>()
            .prop_map(|(sequence, changes, digest)| UploadEnd { sequence, changes, digest }.to_frame()),
        any::<([u8; 16], u64)>().prop_map(|(ticket, bytes)| Ticket { ticket, bytes }.to_frame()),
        any::<([u8; 16], [u8; 16], bool, bool, u64, u8)>().prop_map(
            |(incarnation, note, restart, whole, upload_sequence, frozen)| {
                let frozen = [FrozenFate::Unknown, FrozenFate::Applied, FrozenFate::GivenUp, FrozenFate::Another]
                    [usize::from(frozen % 4)];
                Welcome { incarnation, note, restart, whole, upload_sequence, frozen }.to_frame()
            }
        ),
        receipt().prop_map(|m| m.to_frame()),
        any::<([u8; 16], u32, u64, u64)>().prop_map(|(id, resumable_s, rows, bytes)| Download {
            id,
            resumable_s,
            rows,
            bytes
        }
        .to_frame()),
        (any::<u32>(), select(actions), vec(any::<u8>(), 0..30)).prop_map(|(table, action, partition)| PartitionMark {
            table,
            action,
            partition
        }
        .to_frame()),
        rows,
        watermarks().prop_map(|m| m.to_frame()),
        key_ranges().prop_map(|m| m.to_frame()),
        (select(ErrorCode::ALL.to_vec()), any::<u32>(), a_name())
            .prop_map(|(code, retry_after_ms, message)| ServerError { code, retry_after_ms, message }.to_frame()),
        snapshot().prop_map(|m| m.to_frame()),
        any::<([u8; 16], [u8; 32], u64, u64, u32)>()
            .prop_map(|(id, digest, bytes, rows, kept_s)| { ReadyFile { id, digest, bytes, rows, kept_s }.to_frame() }),
        Just(Frame::new(Kind::Heartbeat, Vec::new())),
        Just(Frame::new(Kind::End, Vec::new())),
    ];
    prop_oneof![2 => of_a_sync, 1 => a_cursors_frame()]
}

/// A payload of this kind, read and written again; `None` for kinds whose content needs a table.
fn again(kind: Kind, payload: &[u8]) -> Result<Option<Vec<u8>>, DecodeError> {
    let frame = headwater_protocol::fuzzing::again(kind, payload)?;
    frame.map(|frame| Ok(frame.payload(LIMIT)?.into_owned())).transpose()
}

fn decode(bytes: &[u8]) -> Result<Option<Frame>, DecodeError> {
    let mut decoder = Decoder::new(LIMIT);
    decoder.push(bytes);
    decoder.next_frame()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rows_round_trip_to_the_bit((types, row) in types_and_row()) {
        let mut bytes = Vec::new();
        put_row(&mut bytes, &types, &row);
        let read = whole_row(&bytes, &types).expect("our own row");
        prop_assert!(identical(&read, &row));
        let mut written = Vec::new();
        put_row(&mut written, &types, &read);
        prop_assert_eq!(&written, &bytes);
        for length in 0..bytes.len() {
            prop_assert!(whole_row(&bytes[..length], &types).is_err());
        }
        bytes.push(0);
        prop_assert!(whole_row(&bytes, &types).is_err());
    }

    #[test]
    fn changes_round_trip_to_the_bit((types, change) in types_and_change()) {
        let mut bytes = Vec::new();
        change.write(&mut bytes, &types);
        let read = whole_change(&bytes, &types).expect("our own change");
        prop_assert_eq!(read.op(), change.op());
        for (a, b) in [(&read.old, &change.old), (&read.new, &change.new)] {
            prop_assert!(identical(a.as_deref().unwrap_or_default(), b.as_deref().unwrap_or_default()));
        }
        let mut written = Vec::new();
        read.write(&mut written, &types);
        prop_assert_eq!(&written, &bytes);
        for length in 0..bytes.len() {
            prop_assert!(whole_change(&bytes[..length], &types).is_err());
        }
    }

    #[test]
    fn frames_round_trip_and_messages_too(frame in a_frame()) {
        let bytes = frame.to_bytes();
        let read = decode(&bytes).expect("our own frame").expect("a whole frame");
        prop_assert_eq!(&read, &frame);
        prop_assert_eq!(read.to_bytes(), bytes.clone());
        let payload = read.payload(LIMIT).expect("our own payload");
        if let Some(written) = again(frame.kind, &payload).expect("our own message") {
            prop_assert_eq!(&written[..], &payload[..]);
            // A cursor's rows go to the payload's end; whether they are whole is seen when they are read.
            let ends = frame.kind != Kind::CursorRows;
            for length in 0..if ends { payload.len() } else { 0 } {
                prop_assert!(again(frame.kind, &payload[..length]).is_err(), "cut at {}", length);
            }
            let longer = [&payload[..], &[0]].concat();
            prop_assert!(!ends || again(frame.kind, &longer).is_err(), "one byte more");
        }
        for length in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..length]), Ok(None), "cut at {}", length);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_noticed(frame in a_frame()) {
        let bytes = frame.to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A greater length only makes the decoder wait for more.
            prop_assert!(!matches!(decode(&damaged), Ok(Some(_))), "bit {}", bit);
        }
    }

    #[test]
    fn damaged_messages_are_read_or_refused_and_what_is_read_is_written_alike(
        frame in a_frame(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        table in types(),
    ) {
        let mut payload = frame.payload(LIMIT).expect("our own payload").into_owned();
        for (place, byte) in damage {
            if !payload.is_empty() {
                let place = place.index(payload.len());
                payload[place] = byte;
            }
        }
        if let Ok(Some(written)) = again(frame.kind, &payload) {
            prop_assert_eq!(written, payload.clone());
        }
        let _ = whole_row(&payload, &table);
        let _ = whole_change(&payload, &table);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), table in types()) {
        for number in 0..=u8::MAX {
            if let Some(kind) = Kind::from_wire(number) {
                let _ = again(kind, &bytes);
            }
        }
        if let Ok(row) = whole_row(&bytes, &table) {
            let mut written = Vec::new();
            put_row(&mut written, &table, &row);
            prop_assert_eq!(&written, &bytes, "a row has one encoding");
        }
        let _ = whole_change(&bytes, &table);
        let _ = decode(&bytes);
        let mut rows = RowsReader::new(&bytes);
        while let Ok(Some(_)) = rows.next_op() {
            if read_row(rows.row(), &table, LIMIT, None).is_err() {
                break;
            }
        }
    }

    #[test]
    fn integers_have_one_encoding(value in any::<u64>(), signed in an_integer(), bytes in vec(any::<u8>(), 0..12)) {
        let mut out = Vec::new();
        out.put_varint(value);
        out.put_signed(signed);
        let mut reader = Reader::new(&out);
        prop_assert_eq!((reader.varint("v"), reader.signed("s")), (Ok(value), Ok(signed)));
        let mut reader = Reader::new(&bytes);
        if let Ok(value) = reader.varint("v") {
            let mut out = Vec::new();
            out.put_varint(value);
            prop_assert_eq!(&out[..], &bytes[..bytes.len() - reader.rest().len()]);
        }
    }

    #[test]
    fn decimals_of_any_length_keep_every_digit(decimal in a_decimal(), zeros in 0..200usize) {
        let text = decimal.to_string();
        prop_assert_eq!(Decimal::parse(&text), Some(decimal.clone()));
        if !text.contains(['N', 'I']) {
            let point = if text.contains('.') { "" } else { "." };
            if point.is_empty() || zeros > 0 {
                let longer = Decimal::parse(&(text.clone() + point + &"0".repeat(zeros))).expect("canonical text");
                prop_assert!(longer.as_ref().same(&decimal.as_ref()), "{} with {} zeros", text, zeros);
            }
        }
    }
}
