//! Streams read back by the crate's own reader.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use headwater_protocol::Decimal;
use proptest::prelude::*;

use super::*;
use crate::format::tests::tables;
use crate::format::{Encoder, Format};

fn column(name: &str, kind: Option<Type>) -> Column {
    Column { name: name.to_owned(), kind, digits: None }
}

fn decimal(text: &str) -> Value {
    Value::Decimal(Decimal::parse(text).expect("a decimal"))
}

fn written(columns: &[Column], rows: &[Vec<Value>]) -> Result<Vec<u8>, Unfit> {
    let mut encoder = Encoder::begin(Format::Arrow, columns.to_vec());
    for row in rows {
        encoder.row(&row.iter().map(Value::as_ref).collect::<Vec<_>>())?;
    }
    encoder.end(None)?;
    Ok(encoder.take())
}

fn batches(bytes: &[u8]) -> (Arc<Schema>, Vec<RecordBatch>) {
    let reader = StreamReader::try_new(bytes, None).expect("a schema");
    (reader.schema(), reader.collect::<Result<_, _>>().expect("batches"))
}

/// What is in an array, as the type of its field says.
fn value(array: &dyn Array, place: usize, field: &Field) -> Value {
    if array.is_null(place) || *field.data_type() == DataType::Null {
        return Value::Null;
    }
    let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str);
    match field.data_type() {
        DataType::Boolean => Value::Bool(array.as_boolean().value(place)),
        DataType::Int64 => Value::Int(array.as_primitive::<Int64Type>().value(place)),
        DataType::Float64 => Value::Real(array.as_primitive::<Float64Type>().value(place)),
        DataType::Decimal128(..) => decimal(&array.as_primitive::<Decimal128Type>().value_as_string(place)),
        DataType::Utf8 if extension == Some("arrow.json") => {
            Value::Json(array.as_string::<i32>().value(place).as_bytes().to_vec())
        }
        DataType::Utf8 if field.metadata().get("headwater.type").is_some_and(|kind| kind == "decimal") => {
            decimal(array.as_string::<i32>().value(place))
        }
        DataType::Utf8 => Value::text(array.as_string::<i32>().value(place)),
        DataType::Binary => Value::Bytes(array.as_binary::<i32>().value(place).to_vec()),
        DataType::Date32 => Value::Date(array.as_primitive::<Date32Type>().value(place).into()),
        DataType::Time64(_) => Value::Time(array.as_primitive::<Time64MicrosecondType>().value(place)),
        DataType::Timestamp(_, zone) => {
            let time = array.as_primitive::<TimestampMicrosecondType>().value(place);
            if zone.as_deref() == Some("UTC") { Value::Timestamptz(time) } else { Value::Timestamp(time) }
        }
        DataType::FixedSizeBinary(16) if extension == Some("arrow.uuid") => {
            Value::Uuid(array.as_fixed_size_binary().value(place).try_into().expect("16 bytes"))
        }
        other => panic!("{other} is not written"),
    }
}

fn rows_of(bytes: &[u8]) -> Vec<Vec<Value>> {
    let (schema, batches) = batches(bytes);
    let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| (batch, row)));
    let fields = || schema.fields().iter().enumerate();
    rows.map(|(batch, row)| fields().map(|(place, field)| value(batch.column(place), row, field)).collect()).collect()
}

fn same(one: &[Vec<Value>], other: &[Vec<Value>]) -> bool {
    let alike = |one: &Vec<Value>, other: &Vec<Value>| {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.same(other))
    };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
}

#[test]
fn every_type_keeps_its_own() {
    let mut columns = Type::ALL.map(|kind| column(kind.name(), Some(kind))).to_vec();
    columns[3].digits = Some((10, 2));
    columns.push(column("long", Some(Type::Decimal)));
    let row = vec![
        Value::Bool(true),
        Value::Int(i64::MIN),
        Value::Real(f64::NAN),
        decimal("-12345678.5"),
        Value::text("a \"b\",\nZürich"),
        Value::Bytes(vec![0, 255]),
        Value::Date(-1),
        Value::Time(DAY - 1),
        Value::Timestamp(-1),
        Value::Timestamptz(1),
        Value::Uuid([0x11; 16]),
        Value::Json(b"{\"a\":\n[12345678901234567890]}".to_vec()),
        decimal("123456789012345678901234567890123456789012.50"),
    ];
    let rows = vec![row, vec![Value::Null; 13]];
    let bytes = written(&columns, &rows).expect("there is room for all");
    let (schema, _) = batches(&bytes);
    let types: Vec<String> = schema.fields().iter().map(|field| field.data_type().to_string()).collect();
    let expected = "Boolean Int64 Float64 Decimal128(10,2) Utf8 Binary Date32 Time64(µs) Timestamp(µs) Timestamp(µs,\"UTC\") \
                    FixedSizeBinary(16) Utf8 Utf8";
    assert_eq!(types.iter().map(|kind| kind.replace(", ", ",")).collect::<Vec<_>>().join(" "), expected);
    let read = rows_of(&bytes);
    assert!(same(&read, &rows), "{read:?}");
    let Value::Decimal(short) = &read[0][3] else { panic!("{read:?}") };
    assert_eq!(short.to_string(), "-12345678.50", "as many digits as the column has");
    assert_eq!(written(&columns, &rows).expect("again"), bytes, "the same rows are the same bytes");
    // Whoever knows no rows knows the columns.
    let (schema, batches) = batches(&written(&columns, &[]).expect("nothing"));
    assert_eq!((schema.fields().len(), batches.len()), (13, 0));
}

#[test]
fn what_has_no_type_has_that_of_its_values() {
    let columns = ["a", "b", "c", "d"].map(|name| column(name, None));
    let row = |a, b, c, d| vec![a, b, c, d];
    let rows = [
        row(Value::Int(1), Value::Null, Value::Null, Value::text("x")),
        row(Value::Null, Value::Real(0.5), Value::Null, Value::Null),
        row(Value::Int(-2), Value::Int(3), Value::Null, Value::text("")),
    ];
    let bytes = written(&columns, &rows).expect("one type each");
    let types: Vec<DataType> = batches(&bytes).0.fields().iter().map(|field| field.data_type().clone()).collect();
    assert_eq!(types, [DataType::Int64, DataType::Float64, DataType::Null, DataType::Utf8]);
    let read = rows_of(&bytes);
    assert!(
        read[2][1].same(&Value::Real(3.0)) && read[1][0] == Value::Null && read[2][3] == Value::text(""),
        "{read:?}"
    );
    let mixed = written(&columns[..1], &[vec![Value::Int(1)], vec![Value::text("x")]]).expect_err("two types");
    assert_eq!(
        mixed.to_string(),
        "column \"a\" has int and text, and Arrow one type for each column: give its type in the head of the query \
         ([types] a = \"text\"), cast it, or ask for another format"
    );
    // As that says.
    let mended = written(
        &[column("a", Some(Type::Text))],
        &[vec![Value::Int(1)], vec![Value::text("x")], vec![Value::Real(0.5)]],
    );
    assert_eq!(rows_of(&mended.expect("text")), [[Value::text("1")], [Value::text("x")], [Value::text("0.5")]]);
    // Behind the first batch the type is a promise.
    let mut rows = vec![vec![Value::Int(7)]; BATCH_ROWS];
    rows.push(vec![Value::text("late")]);
    let late = written(&columns[..1], &rows).expect_err("another type").to_string();
    assert!(
        late.starts_with("column \"a\" has in row 8193 the text \"late\", which Arrow's Int64 has no room for: give"),
        "{late}"
    );
}

#[test]
fn what_there_is_no_room_for_ends_the_answer() {
    let ten = Column { digits: Some((10, 2)), ..column("c", Some(Type::Decimal)) };
    let of = |kind| column("c", Some(kind));
    for (column, value, shown) in [
        (of(Type::Date), Value::Date(POSITIVE_INFINITY), "infinity"),
        (of(Type::Timestamp), Value::Timestamp(NEGATIVE_INFINITY), "-infinity"),
        (of(Type::Timestamptz), Value::Timestamptz(POSITIVE_INFINITY), "infinity"),
        (of(Type::Time), Value::Time(DAY), "24:00:00"),
        (of(Type::Int), Value::Real(0.5), "0.5"),
        (of(Type::Real), Value::Int(i64::MAX), "9223372036854775807"),
        (of(Type::Text), Value::Bytes(vec![1]), "1 bytes"),
        (of(Type::Date), Value::text("someday"), "someday"),
        (ten.clone(), decimal("NaN"), "NaN"),
        (ten.clone(), decimal("0.001"), "0.001"),
        (ten.clone(), decimal("100000000"), "100000000"),
        (ten.clone(), decimal(&"9".repeat(60)), "9999"),
    ] {
        let said = written(std::slice::from_ref(&column), &[vec![value]]).expect_err(shown).to_string();
        assert!(said.contains(shown) && said.contains("in row 1") && said.contains("[types] c = \"text\""), "{said}");
    }
    // Zeros behind the last digit are no digits.
    let rows = rows_of(&written(&[ten], &[vec![decimal("1.25000")], vec![decimal("-99999999.99")]]).expect("room"));
    assert_eq!(rows, [[decimal("1.25")], [decimal("-99999999.99")]]);
    // SQLite's files have values in many spellings.
    for (kind, given, read) in [
        (Type::Time, Value::text("00:00:00.5"), Value::Time(500_000)),
        (Type::Timestamptz, Value::text("1970-01-01T00:00:01Z"), Value::Timestamptz(1_000_000)),
        (Type::Int, Value::Real(7.0), Value::Int(7)),
        (Type::Bool, Value::text("true"), Value::Bool(true)),
    ] {
        assert_eq!(rows_of(&written(&[of(kind)], &[vec![given]]).expect("room")), [[read]]);
    }
    written(&[of(Type::Real)], &[vec![Value::text("0.1000000000000000000001")]]).expect_err("digits would be lost");
    // What is no JSON is a text of JSON, as it is in the other forms.
    let rows = rows_of(
        &written(&[of(Type::Json)], &[vec![Value::text("no")], vec![Value::Json(b"{".to_vec())]]).expect("room"),
    );
    assert_eq!(rows, [[Value::Json(b"\"no\"".to_vec())], [Value::Json(b"\"{\"".to_vec())]]);
}

#[test]
fn a_batch_has_a_bound_and_is_taken_as_it_comes() {
    let columns = [column("a", Some(Type::Int)), column("b", Some(Type::Text))];
    let mut encoder = Encoder::begin(Format::Arrow, columns.to_vec());
    let (mut bytes, mut most) = (Vec::new(), 0);
    let long = "x".repeat(50);
    for number in 0..50_000 {
        encoder.row(&[ValueRef::Int(number), ValueRef::Text(long.as_bytes())]).expect("room");
        most = most.max(encoder.waiting());
        bytes.extend(encoder.take());
    }
    encoder.end(None).expect("room");
    bytes.extend(encoder.take());
    assert!(most > 0 && most < 2 * BATCH_BYTES, "{most}");
    let (_, batches) = batches(&bytes);
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert!(rows == 50_000 && batches.len() > 20 && batches.iter().all(|batch| batch.num_rows() <= BATCH_ROWS));
    let last = batches.last().expect("a batch");
    assert_eq!(last.column(0).as_primitive::<Int64Type>().value(last.num_rows() - 1), 49_999);
}

proptest! {
    /// Arbitrary rows of arbitrary types are read as what they were.
    #[test]
    fn rows_come_through_arrow((kinds, rows) in tables()) {
        let columns: Vec<Column> = kinds.iter().map(|kind| column(kind.name(), Some(*kind))).collect();
        let read = rows_of(&written(&columns, &rows).expect("there is room for all of these"));
        prop_assert!(same(&read, &rows), "{read:?}");
    }

    /// A decimal is one number exactly, or has no room.
    #[test]
    fn decimals_are_kept_or_refused(text in "-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,6})?", digits in 1_u8..=38, scale in 0_u8..=6) {
        prop_assume!(scale <= digits);
        let bound = Column { digits: Some((digits, scale)), ..column("a", Some(Type::Decimal)) };
        let value = decimal(&text);
        let (whole, fraction) = text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
        let fits = fraction.trim_end_matches('0').len() <= scale.into()
            && whole.trim_start_matches('0').len() <= usize::from(digits - scale);
        match written(&[bound], &[vec![value.clone()]]) {
            Ok(bytes) => prop_assert!(fits && same(&rows_of(&bytes), &[vec![value]])),
            Err(_) => prop_assert!(!fits),
        }
    }
}

/// Offsets have 31 bits: what is longer as it is written than a value may be is an error, and no panic.
#[test]
fn a_value_that_grows_too_long_is_told() {
    const MOST: usize = 100_000;
    let row = |kind: Type, value: &Value| {
        let mut writer = ArrowWriter::with(vec![column("x", Some(kind))], MOST);
        writer.row(&[value.as_ref()]).and_then(|()| writer.end()).map(|()| writer.take())
    };
    let most = MOST - 4;
    for (kind, value) in [
        (Type::Text, Value::Text(vec![b'a'; most])),
        (Type::Bytes, Value::Bytes(vec![7; most])),
        (Type::Json, Value::Json([b"\"".to_vec(), vec![b'a'; most - 2], b"\"".to_vec()].concat())),
    ] {
        let written = row(kind, &value).expect("there is room");
        assert!(same(&rows_of(&written), &[vec![value]]), "{kind:?}");
    }
    for (kind, value) in [
        (Type::Text, Value::Text(vec![b'a'; MOST])),
        (Type::Bytes, Value::Bytes(vec![7; MOST])),
        // Each line's end becomes two.
        (Type::Json, Value::Text(vec![b'\n'; MOST / 2 + 10])),
        (Type::Json, Value::Bytes(vec![7; most])),
    ] {
        let told = row(kind, &value).expect_err("no room").to_string();
        assert!(told.contains("column \"x\" has in row 1"), "{told}");
    }
}
