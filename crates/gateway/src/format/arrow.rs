//! Rows as an Arrow IPC stream (arrow.apache.org/docs/format/Columnar.html, "IPC Streaming Format"), in batches.
//!
//! | type | Arrow | in its place, what there is no room for |
//! |---|---|---|
//! | bool, int, real | Boolean, Int64, Float64 | |
//! | decimal | Decimal128 where the database says how many digits (`numeric(10,2)`, 38 at most), otherwise Utf8, digit for digit | NaN, more digits |
//! | text | Utf8 | what is no UTF-8 |
//! | bytes | Binary | |
//! | date | Date32 | infinity |
//! | time | Time64, microseconds | 24:00:00 |
//! | timestamp, timestamptz | Timestamp, microseconds, without a zone and in UTC | infinity |
//! | uuid | `FixedSizeBinary(16)`, extension `arrow.uuid` | |
//! | json | Utf8, extension `arrow.json` | what is no UTF-8 |
//!
//! What SQLite has in another spelling (`2024-02-29T12:30:00`) is the same value. Every field may be NULL, and says its type in the metadata `headwater.type`. A value that there is no room for ends the answer, and none is
//! changed: such a column is to be text (`[types]` of the query's head, a cast).
//!
//! What SQLite can't tell the type of (`any`) has that of the values of the first batch: one type, or whole numbers and others, which are
//! Float64 then; Null where there is no value. What comes later must fit.
//!
//! A batch has [`BATCH_ROWS`] rows or [`BATCH_BYTES`] at most, and a row; no more is in memory.

use std::str::from_utf8;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, FixedSizeBinaryBuilder, Float64Builder,
    Int64Builder, NullBuilder, StringBuilder, Time64MicrosecondBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, Metadata, Schema, TimeUnit};
use headwater_protocol::decimal::{DecimalRef, Parts};
use headwater_protocol::stored::Scratch;
use headwater_protocol::text::{coerce, i64_to_real};
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};
use headwater_protocol::{Type, Value, ValueRef};

use super::text::{is_json, json_value, plain};
use super::{Column, Unfit, texts_fit};

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;
/// Bytes of a batch's values, about.
const BATCH_BYTES: usize = 128 << 10;
/// The most bytes of one value: offsets have 31 bits.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// The most digits of a `Decimal128`.
const DIGITS_MAX: u8 = 38;
/// A day in microseconds.
const DAY: i64 = 86_400_000_000;

/// An answer as an Arrow IPC stream.
#[derive(Debug)]
pub(super) struct ArrowWriter {
    columns: Vec<Column>,
    /// The rows of the first batch, for as long as some column has no type.
    first: Vec<Vec<Value>>,
    stream: Option<Stream>,
    /// Bytes of the batch's values, and its rows.
    bytes: usize,
    batched: usize,
    /// Rows until now.
    rows: u64,
    value_bytes_max: usize,
    out: Vec<u8>,
}

/// What there is once every column has a type.
struct Stream {
    schema: Arc<Schema>,
    encoder: StreamEncoder,
    builders: Vec<Builder>,
    scratch: Scratch,
    text: Vec<u8>,
    value_bytes_max: usize,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// What the values of a column become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// NULL alone.
    Null,
    Of(Type),
    /// A decimal with so many digits, of which so many behind the point.
    Decimal(u8, u8),
}

impl ArrowWriter {
    pub(super) fn begin(columns: Vec<Column>) -> ArrowWriter {
        ArrowWriter::with(columns, VALUE_BYTES_MAX)
    }

    fn with(columns: Vec<Column>, value_bytes_max: usize) -> ArrowWriter {
        let (first, out) = (Vec::new(), Vec::new());
        let mut writer =
            ArrowWriter { columns, first, stream: None, bytes: 0, batched: 0, rows: 0, value_bytes_max, out };
        if let Some(kinds) = writer.columns.iter().map(known_kind).collect::<Option<Vec<Kind>>>() {
            writer.stream = Some(Stream::new(&writer.columns, &kinds, value_bytes_max));
        }
        writer
    }

    pub(super) fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Unfit> {
        self.rows += 1;
        self.batched += 1;
        match &mut self.stream {
            Some(stream) => self.bytes += stream.row(&self.columns, values, self.rows)?,
            None => {
                self.bytes += values.iter().map(size).sum::<usize>();
                self.first.push(values.iter().map(ValueRef::to_value).collect());
            }
        }
        if self.batched == BATCH_ROWS || self.bytes >= BATCH_BYTES { self.batch() } else { Ok(()) }
    }

    pub(super) fn end(&mut self) -> Result<(), Unfit> {
        self.batch()?;
        if let Some(stream) = self.stream.take() {
            let last = stream.encoder.finish().expect("the schema has types that streams have");
            append(&mut self.out, &last);
        }
        Ok(())
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Writes the rows that have come since the batch before.
    fn batch(&mut self) -> Result<(), Unfit> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let kinds = found_kinds(&self.columns, &self.first)?;
                let stream = self.stream.insert(Stream::new(&self.columns, &kinds, self.value_bytes_max));
                for (place, row) in std::mem::take(&mut self.first).iter().enumerate() {
                    let values: Vec<ValueRef<'_>> = row.iter().map(Value::as_ref).collect();
                    stream.row(&self.columns, &values, place as u64 + 1)?;
                }
                stream
            }
        };
        if self.batched > 0 {
            stream.batch(&mut self.out);
        }
        (self.bytes, self.batched) = (0, 0);
        Ok(())
    }
}

impl Stream {
    fn new(columns: &[Column], kinds: &[Kind], value_bytes_max: usize) -> Stream {
        let fields: Vec<Field> = columns.iter().zip(kinds).map(|(column, kind)| field(column, *kind)).collect();
        let builders = fields.iter().zip(kinds).map(|(field, kind)| Builder::new(*kind, field.data_type())).collect();
        let schema = Arc::new(Schema::new(fields));
        let encoder = StreamEncoder::try_new(&schema).expect("the schema has types that streams have");
        Stream { schema, encoder, builders, scratch: Scratch::default(), text: Vec::new(), value_bytes_max }
    }

    /// Adds a row; gives its bytes.
    fn row(&mut self, columns: &[Column], values: &[ValueRef<'_>], number: u64) -> Result<usize, Unfit> {
        let mut bytes = 0;
        for (place, (builder, value)) in self.builders.iter_mut().zip(values).enumerate() {
            let column = &columns[place];
            let most = self.value_bytes_max;
            let taken = builder.add(*value, most, &mut self.scratch, &mut self.text).or_else(|| {
                let other = spelled_otherwise(column, *value)?;
                builder.add(other.as_ref(), most, &mut self.scratch, &mut self.text)
            });
            let taken = taken.ok_or_else(|| unfit(column, *value, self.schema.field(place).data_type(), number))?;
            bytes += taken;
        }
        Ok(bytes)
    }

    fn batch(&mut self, out: &mut Vec<u8>) {
        let arrays = self.builders.iter_mut().map(Builder::finish).collect();
        let batch =
            RecordBatch::try_new(Arc::clone(&self.schema), arrays).expect("columns of one length, as the schema says");
        let buffers = self.encoder.encode(&batch).expect("the schema has types that streams have");
        append(out, &buffers);
    }
}

/// In a column whose type is known: the same value, which SQLite has in another spelling or as another type (`12:30`, `7.0`).
fn spelled_otherwise(column: &Column, value: ValueRef<'_>) -> Option<Value> {
    let kind = column.kind?;
    // A number may have more digits than a double holds.
    let is_rounded = kind == Type::Real && matches!(value, ValueRef::Text(_));
    if is_rounded { None } else { coerce(&value.to_value(), kind) }
}

fn append(out: &mut Vec<u8>, buffers: &[Buffer]) {
    for buffer in buffers {
        out.extend(buffer.as_slice());
    }
}

/// What a column becomes; `None`: its values say.
fn known_kind(column: &Column) -> Option<Kind> {
    Some(match (column.kind?, column.digits) {
        (Type::Decimal, Some((digits @ 1..=DIGITS_MAX, scale))) if scale <= digits => Kind::Decimal(digits, scale),
        (kind, _) => Kind::Of(kind),
    })
}

/// The same of all columns, by the rows of the first batch.
fn found_kinds(columns: &[Column], rows: &[Vec<Value>]) -> Result<Vec<Kind>, Unfit> {
    let found = |(place, column): (usize, &Column)| {
        if let Some(kind) = known_kind(column) {
            return Ok(kind);
        }
        let mut kinds: Vec<Type> = rows.iter().filter_map(|row| row[place].as_ref().kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        match *kinds {
            [] => Ok(Kind::Null),
            [one] => Ok(Kind::Of(one)),
            [Type::Int, Type::Real] => Ok(Kind::Of(Type::Real)),
            _ => {
                let names = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" and ");
                let Column { name, .. } = column;
                Err(Unfit(format!("column {name:?} has {names}, and Arrow one type for each column: {}", mend(name))))
            }
        }
    };
    columns.iter().enumerate().map(found).collect()
}

fn field(column: &Column, kind: Kind) -> Field {
    let kind_of = match kind {
        Kind::Null => DataType::Null,
        Kind::Decimal(digits, scale) => DataType::Decimal128(digits, scale as i8),
        Kind::Of(Type::Bool) => DataType::Boolean,
        Kind::Of(Type::Int) => DataType::Int64,
        Kind::Of(Type::Real) => DataType::Float64,
        Kind::Of(Type::Decimal | Type::Text | Type::Json) => DataType::Utf8,
        Kind::Of(Type::Bytes) => DataType::Binary,
        Kind::Of(Type::Date) => DataType::Date32,
        Kind::Of(Type::Time) => DataType::Time64(TimeUnit::Microsecond),
        Kind::Of(Type::Timestamp) => DataType::Timestamp(TimeUnit::Microsecond, None),
        Kind::Of(Type::Timestamptz) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Kind::Of(Type::Uuid) => DataType::FixedSizeBinary(16),
    };
    let mut metadata = Metadata::new();
    metadata.insert("headwater.type", column.kind.map_or("any", Type::name));
    let extension = match kind {
        Kind::Of(Type::Uuid) => Some("arrow.uuid"),
        Kind::Of(Type::Json) => Some("arrow.json"),
        _ => None,
    };
    if let Some(extension) = extension {
        metadata.insert(EXTENSION_TYPE_NAME_KEY, extension);
        metadata.insert(EXTENSION_TYPE_METADATA_KEY, "");
    }
    Field::new(&column.name, kind_of, true).with_metadata(metadata)
}

/// Values of a column.
enum Builder {
    Null(NullBuilder),
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Real(Float64Builder),
    Decimal(Decimal128Builder, u8, u8),
    /// Decimals among them.
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Timestamptz(TimestampMicrosecondBuilder),
    Uuid(FixedSizeBinaryBuilder),
    Json(StringBuilder),
}

impl Builder {
    fn new(kind: Kind, data: &DataType) -> Builder {
        match kind {
            Kind::Null => Builder::Null(NullBuilder::new()),
            Kind::Decimal(digits, scale) => {
                Builder::Decimal(Decimal128Builder::new().with_data_type(data.clone()), digits, scale)
            }
            Kind::Of(Type::Bool) => Builder::Bool(BooleanBuilder::new()),
            Kind::Of(Type::Int) => Builder::Int(Int64Builder::new()),
            Kind::Of(Type::Real) => Builder::Real(Float64Builder::new()),
            Kind::Of(Type::Decimal | Type::Text) => Builder::Text(StringBuilder::new()),
            Kind::Of(Type::Bytes) => Builder::Bytes(BinaryBuilder::new()),
            Kind::Of(Type::Date) => Builder::Date(Date32Builder::new()),
            Kind::Of(Type::Time) => Builder::Time(Time64MicrosecondBuilder::new()),
            Kind::Of(Type::Timestamp) => Builder::Timestamp(TimestampMicrosecondBuilder::new()),
            Kind::Of(Type::Timestamptz) => {
                Builder::Timestamptz(TimestampMicrosecondBuilder::new().with_data_type(data.clone()))
            }
            Kind::Of(Type::Uuid) => Builder::Uuid(FixedSizeBinaryBuilder::new(16)),
            Kind::Of(Type::Json) => Builder::Json(StringBuilder::new()),
        }
    }

    /// Adds a value; gives its bytes, about, or `None` where there is no room for it: nothing has more than `most` bytes, as it was or as it is
    /// written. `text`: to write in.
    fn add(&mut self, value: ValueRef<'_>, most: usize, scratch: &mut Scratch, text: &mut Vec<u8>) -> Option<usize> {
        let is_finite = |time: i64| time != POSITIVE_INFINITY && time != NEGATIVE_INFINITY;
        if size(&value) > most {
            return None;
        }
        text.clear();
        let mut written = 0;
        // In JSON bytes take a third more, and a text its escapes.
        let mut append = |builder: &mut StringBuilder, text: &[u8]| {
            written = text.len();
            let text = from_utf8(text).ok()?;
            (written <= most).then(|| builder.append_value(text))
        };
        match (self, value) {
            (builder, ValueRef::Null) => builder.add_null(),
            (Builder::Bool(builder), ValueRef::Bool(truth)) => builder.append_value(truth),
            (Builder::Int(builder), ValueRef::Int(number)) => builder.append_value(number),
            (Builder::Real(builder), ValueRef::Real(real)) => builder.append_value(real),
            (Builder::Real(builder), ValueRef::Int(number)) => builder.append_value(i64_to_real(number)?),
            (Builder::Decimal(builder, digits, scale), ValueRef::Decimal(decimal)) => {
                builder.append_value(unscaled(decimal, *digits, *scale)?);
            }
            (Builder::Text(builder), ValueRef::Text(bytes) | ValueRef::Json(bytes)) => {
                append(builder, bytes)?;
            }
            (Builder::Bytes(builder), ValueRef::Bytes(bytes)) => builder.append_value(bytes),
            (Builder::Text(_), ValueRef::Bytes(_)) => return None,
            (Builder::Text(builder), other) => {
                plain(text, other, scratch);
                append(builder, text)?;
            }
            (Builder::Json(builder), other) => append(builder, json(other, scratch, text)?)?,
            (Builder::Date(builder), ValueRef::Date(day)) => builder.append_value(i32::try_from(day).ok()?),
            (Builder::Time(builder), ValueRef::Time(time)) if (0..DAY).contains(&time) => builder.append_value(time),
            (Builder::Timestamp(builder), ValueRef::Timestamp(time))
            | (Builder::Timestamptz(builder), ValueRef::Timestamptz(time))
                if is_finite(time) =>
            {
                builder.append_value(time);
            }
            (Builder::Uuid(builder), ValueRef::Uuid(bytes)) => builder.append_value(bytes).ok()?,
            _ => return None,
        }
        Some(size(&value).max(written))
    }

    fn add_null(&mut self) {
        match self {
            Builder::Null(builder) => builder.append_null(),
            Builder::Bool(builder) => builder.append_null(),
            Builder::Int(builder) => builder.append_null(),
            Builder::Real(builder) => builder.append_null(),
            Builder::Decimal(builder, ..) => builder.append_null(),
            Builder::Text(builder) | Builder::Json(builder) => builder.append_null(),
            Builder::Bytes(builder) => builder.append_null(),
            Builder::Date(builder) => builder.append_null(),
            Builder::Time(builder) => builder.append_null(),
            Builder::Timestamp(builder) | Builder::Timestamptz(builder) => builder.append_null(),
            Builder::Uuid(builder) => builder.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Builder::Null(builder) => Arc::new(builder.finish()),
            Builder::Bool(builder) => Arc::new(builder.finish()),
            Builder::Int(builder) => Arc::new(builder.finish()),
            Builder::Real(builder) => Arc::new(builder.finish()),
            Builder::Decimal(builder, ..) => Arc::new(builder.finish()),
            Builder::Text(builder) | Builder::Json(builder) => Arc::new(builder.finish()),
            Builder::Bytes(builder) => Arc::new(builder.finish()),
            Builder::Date(builder) => Arc::new(builder.finish()),
            Builder::Time(builder) => Arc::new(builder.finish()),
            Builder::Timestamp(builder) | Builder::Timestamptz(builder) => Arc::new(builder.finish()),
            Builder::Uuid(builder) => Arc::new(builder.finish()),
        }
    }
}

/// A value of a column of JSON, as JSON has it; `None`: it is a text that is none.
fn json<'v>(value: ValueRef<'v>, scratch: &mut Scratch, text: &'v mut Vec<u8>) -> Option<&'v [u8]> {
    if let ValueRef::Json(bytes) = value
        && is_json(from_utf8(bytes).ok()?)
    {
        return Some(bytes);
    }
    json_value(text, value, scratch)?;
    Some(text)
}

/// A decimal as a whole number of units of its last digit; `None` where it has more digits.
fn unscaled(decimal: DecimalRef<'_>, digits: u8, scale: u8) -> Option<i128> {
    let Parts::Number { negative, count, scale: own, packed } = decimal.parts() else { return None };
    let mut number: i128 = 0;
    for place in 0..count {
        let byte = packed.get(place / 2)?;
        let digit = if place % 2 == 0 { byte >> 4 } else { byte & 15 };
        // Zeros behind the last digit that there is room for say nothing.
        if count - place + usize::from(scale) <= own {
            if digit != 0 {
                return None;
            }
            continue;
        }
        number = number.checked_mul(10)?.checked_add(digit.into())?;
    }
    let missing = u32::try_from(usize::from(scale).saturating_sub(own)).ok()?;
    number = number.checked_mul(10_i128.checked_pow(missing)?)?;
    let is_small = number < 10_i128.pow(digits.into());
    is_small.then_some(if negative { -number } else { number })
}

/// A value's bytes, about.
fn size(value: &ValueRef<'_>) -> usize {
    match value {
        ValueRef::Null => 1,
        ValueRef::Text(bytes) | ValueRef::Bytes(bytes) | ValueRef::Json(bytes) => bytes.len() + 4,
        ValueRef::Decimal(decimal) => 2 * decimal.packed().len() + 4,
        ValueRef::Uuid(_) => 16,
        _ => 8,
    }
}

fn unfit(column: &Column, value: ValueRef<'_>, data: &DataType, row: u64) -> Unfit {
    if let Err(unfit) = texts_fit([column.name.as_str()], &[value], row) {
        return unfit;
    }
    let mut text = Vec::new();
    match value {
        ValueRef::Text(bytes) | ValueRef::Json(bytes) => text.extend(bytes.iter().take(100)),
        ValueRef::Bytes(bytes) => text.extend(format!("{} bytes", bytes.len()).into_bytes()),
        other => plain(&mut text, other, &mut Scratch::default()),
    }
    let shown: String = String::from_utf8_lossy(&text).chars().take(60).collect();
    let kind = value.kind().map_or("null", Type::name);
    let (name, mend) = (&column.name, mend(&column.name));
    Unfit(format!(
        "column {name:?} has in row {row} the {kind} {shown:?}, which Arrow's {data} has no room for: {mend}"
    ))
}

/// What mends a column that has values of several types.
fn mend(name: &str) -> String {
    format!("give its type in the head of the query ([types] {name} = \"text\"), cast it, or ask for another format")
}

#[cfg(test)]
mod tests;
