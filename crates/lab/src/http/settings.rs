//! The parameters of the scenario `http`.

use std::sync::Arc;

use super::asks::{Asks, EXPONENT_MAX};
use super::payload::{self, Column, Payload};
use crate::link::Link;
use crate::scenario::{Drives, Scenario};
use crate::value::{Value, integer};

/// The scenario's name.
pub const NAME: &str = "http";

/// The levels of compression that there are; 0 is none.
const LEVEL_MAX: i64 = 9;

/// When the lab's own server compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressed {
    /// Before the run: an answer costs what it takes to send it.
    Once,
    /// For each answer.
    Each,
}

/// What a run's requests are.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpSettings {
    /// The share of requests that ask for what was asked for before; the others ask for what never was.
    pub hit_ratio: f64,
    /// Whether each request has a connection of its own.
    pub is_connection_new: bool,
    /// What clients ask for by turns; none: one and the same.
    pub asks: Option<Arc<Asks>>,
    /// What is between each client and the server.
    pub link: Link,
    /// What the lab's own server answers.
    pub payload: Payload,
    /// Whether answers may be, and by the lab's own server are, compressed: the level, 0 for not at all.
    pub level: u32,
    /// When they are.
    pub compressed: Compressed,
    /// How many bytes a body has once it is decoded, and their CRC-32, as far as anybody has said so.
    pub expected: (Option<u64>, Option<u32>),
}

/// The scenario, as experiments choose it.
pub fn scenario() -> Scenario {
    let number = |name: &str, number| (name.to_owned(), Value::Integer(number));
    let word = |name: &str, word: &str| (name.to_owned(), Value::Text(word.to_owned()));
    Scenario {
        name: NAME.to_owned(),
        drives: Drives::Requests,
        tables: Vec::new(),
        parameters: vec![
            ("hit_ratio".to_owned(), Value::Real(1.0)),
            word("asks", ""),
            ("zipf".to_owned(), Value::Real(0.0)),
            word("connection", "kept"),
            number("compression", 0),
            number("payload_bytes", 30_000),
            word("column", "int"),
            word("compressed", "once"),
            number("expect_bytes", 0),
            word("expect_crc32", ""),
            number("link_bits_per_s", 0),
            number("link_delay_ms", 0),
            number("link_loss_permille", 0),
        ],
        constants: Vec::new(),
        prepare: None,
        transactions: Vec::new(),
        checks: Vec::new(),
    }
}

impl HttpSettings {
    /// From the scenario's parameters; an error has the name of the one that is not possible, and why.
    pub fn of(parameters: &[(String, Value)]) -> Result<HttpSettings, (&'static str, String)> {
        let value = |name: &str| parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let word = |name: &str| value(name).map(ToString::to_string).unwrap_or_default();
        let real = |name: &'static str, most: f64| match value(name) {
            Some(Value::Real(number)) if (0.0..=most).contains(number) => Ok(*number),
            other => {
                let found = other.map_or("nothing".to_owned(), ToString::to_string);
                Err((name, format!("have {name} = {found}, only 0 to {most}")))
            }
        };
        let (hit_ratio, exponent) = (real("hit_ratio", 1.0)?, real("zipf", EXPONENT_MAX)?);
        let asks = match word("asks").as_str() {
            "" if exponent > 0.0 => return Err(("zipf", "draw by Zipf's law where asks has nothing".to_owned())),
            "" => None,
            templates => Some(Arc::new(Asks::parse(templates, exponent).map_err(|why| ("asks", why))?)),
        };
        let is_connection_new = match word("connection").as_str() {
            "kept" => false,
            "new" => true,
            other => return Err(("connection", format!("have connection = {other:?}, only kept, new"))),
        };
        let compressed = match word("compressed").as_str() {
            "once" => Compressed::Once,
            "each" => Compressed::Each,
            other => return Err(("compressed", format!("have compressed = {other:?}, only once, each"))),
        };
        let column = Column::named(&word("column")).map_err(|why| ("column", why))?;
        let bytes = integer(parameters, "payload_bytes", payload::BYTES_MIN..=payload::BYTES_MAX)? as usize;
        let level = integer(parameters, "compression", 0..=LEVEL_MAX)? as u32;
        let expected_bytes = integer(parameters, "expect_bytes", 0..=i64::MAX)? as u64;
        let expected_crc = match word("expect_crc32").as_str() {
            "" => None,
            digits => match u32::from_str_radix(digits, 16) {
                Ok(crc) if digits.len() == 8 => Some(crc),
                _ => return Err(("expect_crc32", format!("have expect_crc32 = {digits:?}, only eight hex digits"))),
            },
        };
        Ok(HttpSettings {
            hit_ratio,
            asks,
            is_connection_new,
            link: Link::of(parameters)?,
            payload: Payload { column, bytes },
            level,
            compressed,
            expected: ((expected_bytes > 0).then_some(expected_bytes), expected_crc),
        })
    }
}
