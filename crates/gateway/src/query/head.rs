//! Reading a query's file.

mod places;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use headwater_model::parse::{closest, in_plain_words};
use headwater_model::sql::{Syntax, parameters_in};
use headwater_protocol::{Type, Value};
use serde::Deserialize;

pub(super) use self::places::Places;
use self::places::line_of;
use super::{Freshness, Page, Parameter, Query, QueryError, QueryLimits, USER, Who, values};

/// The most characters of a text whose file does not say.
const LENGTH_MAX: usize = 1_000;
/// Rows of a page, where the file does not say.
const PAGE_ROWS: u64 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Head {
    title: String,
    public: bool,
    users: Option<Vec<String>>,
    max_age_s: u32,
    stale_while_revalidate_s: u32,
    stale_if_error_s: u32,
    freshness: Option<String>,
    rows_max: u64,
    bytes_max: u64,
    time_out_s: f64,
    page_by: Option<toml::Table>,
    page_rows: Option<u64>,
    parameters: toml::Table,
    types: BTreeMap<String, String>,
}

impl Default for Head {
    fn default() -> Head {
        let QueryLimits { rows_max, bytes_max, time_out, .. } = QueryLimits::default();
        Head {
            title: String::new(),
            public: false,
            users: None,
            max_age_s: 0,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            freshness: None,
            rows_max,
            bytes_max,
            time_out_s: time_out.as_secs_f64(),
            page_by: None,
            page_rows: None,
            parameters: toml::Table::new(),
            types: BTreeMap::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParameterHead {
    r#type: String,
    default: Option<toml::Value>,
    min: Option<toml::Value>,
    max: Option<toml::Value>,
    length_max: Option<usize>,
    values: Option<Vec<toml::Value>>,
}

/// A file that is being read, and what was found wrong with it.
struct Reading<'f> {
    file: &'f str,
    text: &'f str,
    syntax: Syntax,
    errors: Vec<QueryError>,
}

pub(super) fn parse(syntax: Syntax, file: &str, text: &str) -> Result<Query, Vec<QueryError>> {
    // Some editors begin a file with a mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = Reading { file, text, syntax, errors: Vec::new() };
    let query = reading.query();
    match query {
        Some(query) if reading.errors.is_empty() => Ok(query),
        _ => Err(reading.errors),
    }
}

impl Reading<'_> {
    fn fault(&mut self, line: usize, text: impl Into<String>) {
        self.errors.push(QueryError { file: self.file.to_owned(), line, text: text.into() });
    }

    fn query(&mut self) -> Option<Query> {
        let name = Path::new(self.file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if name.is_empty() || !name.chars().all(is_name) {
            self.fault(
                1,
                format!("a query can't be called {name:?}: letters, digits, _ and - go into a URL as they are"),
            );
        }
        let is_head = |line: &&str| line.trim_start().starts_with("--") || line.trim().is_empty();
        let lines: Vec<&str> = self.text.lines().take_while(is_head).map(str::trim_start).collect();
        // Line for line, so that a place in it is one in the file.
        let toml = lines.iter().map(|line| line.trim_start_matches('-')).collect::<Vec<_>>().join("\n");
        let head: Head = match toml::from_str(&toml) {
            Ok(head) => head,
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(&toml, span.start));
                self.fault(line, in_plain_words(error.message()));
                return None;
            }
        };
        let places = Places::of(&toml);
        let body = self.text.split_inclusive('\n').skip(lines.len()).collect::<String>();
        let parameters = head.parameters.iter();
        let parameters: Vec<Parameter> =
            parameters.filter_map(|(name, value)| self.parameter(name, value, &places)).collect();
        let declared: Vec<&str> = head.parameters.keys().map(String::as_str).collect();
        self.body(&body, lines.len(), &declared, &places);
        let syntax = self.syntax;
        for parameter in head.freshness.as_deref().map(|sql| parameters_in(sql, syntax)).unwrap_or_default() {
            let is_known = parameter.name.strip_prefix(':').is_some_and(|name| declared.contains(&name));
            if !is_known && parameter.name != USER {
                self.fault(
                    places.line("freshness"),
                    format!("freshness has {}, which is not among [parameters]", parameter.name),
                );
            }
        }
        let types = self.types(&head.types, &places);
        let page = self.page(head.page_by.as_ref(), head.page_rows, head.rows_max, &places);
        let who = self.who(head.public, head.users, &places)?;
        let Ok(time_out) = Duration::try_from_secs_f64(head.time_out_s) else {
            self.fault(places.line("time_out_s"), "time_out_s is below zero, expected seconds");
            return None;
        };
        for (option, value) in [("rows_max", head.rows_max), ("bytes_max", head.bytes_max)] {
            if value == 0 {
                self.fault(places.line(option), format!("{option} is 0, expected 1 or more"));
            }
        }
        if time_out.is_zero() {
            self.fault(places.line("time_out_s"), "time_out_s is 0, expected more");
        }
        let query = Query {
            name,
            title: head.title,
            who,
            freshness: Freshness {
                max_age_s: head.max_age_s,
                stale_while_revalidate_s: head.stale_while_revalidate_s,
                stale_if_error_s: head.stale_if_error_s,
                sql: head.freshness,
            },
            limits: QueryLimits {
                rows_max: head.rows_max,
                bytes_max: head.bytes_max,
                time_out,
                ..QueryLimits::default()
            },
            parameters,
            page,
            types,
            sql: body.trim().trim_end_matches(';').trim_end().to_owned(),
            line: lines.len() + line_of(&body, body.len() - body.trim_start().len()),
            places,
            syntax,
        };
        if query.is_personal() && query.who == Who::Public {
            let what = "public = true, and the query asks for :s.user, whom nobody knows then: leave one of them out";
            self.fault(query.line_of("public"), what);
        }
        Some(query)
    }

    fn who(&mut self, is_public: bool, users: Option<Vec<String>>, places: &Places) -> Option<Who> {
        let what = match (is_public, users) {
            (true, None) => return Some(Who::Public),
            (false, None) => return Some(Who::Known),
            (true, Some(_)) => "public = true, and users: expected one of them",
            (false, Some(users)) if users.is_empty() => {
                "users is empty, so that nobody may ask: name some, or leave it out for whoever the server knows"
            }
            (false, Some(users)) if users.iter().any(String::is_empty) => "users has an empty name: leave it out",
            (false, Some(users)) => return Some(Who::Users(users)),
        };
        self.fault(places.line("users"), what);
        None
    }

    fn parameter(&mut self, name: &str, value: &toml::Value, places: &Places) -> Option<Parameter> {
        let line = places.line(&format!("parameters.{name}"));
        let head: ParameterHead = match value.clone().try_into() {
            Ok(head) => head,
            Err(error) => {
                self.fault(line, format!("parameter {name}: {}", in_plain_words(&error.to_string())));
                return None;
            }
        };
        let Some(kind) = type_named(&head.r#type) else {
            self.fault(line, unknown_type(&format!("parameter {name}"), &head.r#type, |kind| kind != Type::Bytes));
            return None;
        };
        if kind == Type::Bytes {
            self.fault(line, format!("parameter {name} has the type bytes, which no URL holds: expected another"));
            return None;
        }
        let is_known = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_known {
            self.fault(line, format!("a parameter can't be called {name:?}, expected letters, digits and _"));
        }
        let mut read = |what: &str, value: &toml::Value| {
            let read = value_of(value, kind);
            if read.is_none() {
                self.fault(
                    line,
                    format!("parameter {name}: {what} is {value}, expected a value of type {}", kind.name()),
                );
            }
            read
        };
        let default = head.default.as_ref().and_then(|value| read("default", value));
        let min = head.min.as_ref().and_then(|value| read("min", value));
        let max = head.max.as_ref().and_then(|value| read("max", value));
        let given = head.values.iter().flatten();
        let values = given.filter_map(|value| read("one of values", value)).collect();
        let length_max = head.length_max.unwrap_or(LENGTH_MAX);
        let parameter = Parameter { name: name.to_owned(), kind, default: None, range: [min, max], length_max, values };
        if head.values.as_ref().is_some_and(Vec::is_empty) {
            let what = "takes no value: values is empty, expected some, or leave it out for all";
            self.fault(line, format!("parameter {name} {what}"));
        }
        if head.length_max.is_some() && !matches!(kind, Type::Text | Type::Json) {
            self.fault(line, format!("parameter {name} has length_max, which is for texts: leave it out"));
        }
        if parameter.range.iter().any(Option::is_some) && !has_bounds(kind) {
            let what = "min or max, which are for numbers, dates and times: leave them out";
            self.fault(line, format!("parameter {name} has {what}"));
        }
        if let [Some(least), Some(_)] = &parameter.range
            && let Err(why) = parameter.accepts(least)
        {
            self.fault(line, format!("parameter {name} takes no value: min {why}"));
        }
        if let Some(Err(why)) = default.as_ref().map(|default| parameter.accepts(default)) {
            self.fault(line, format!("parameter {name}: the default {why}"));
        }
        Some(Parameter { default, ..parameter })
    }

    fn page(&mut self, by: Option<&toml::Table>, rows: Option<u64>, rows_max: u64, places: &Places) -> Option<Page> {
        let Some(by) = by else {
            if rows.is_some() {
                let what = "page_rows, and no page_by: say by which columns pages are told apart, or leave it out";
                self.fault(places.line("page_rows"), what);
            }
            return None;
        };
        if by.is_empty() {
            self.fault(places.line("page_by"), "page_by is empty, expected columns of the result and their types");
            return None;
        }
        let mut columns = Vec::new();
        let is_ordered = |kind: Type| !matches!(kind, Type::Bytes | Type::Json);
        for (name, kind) in by {
            let kind = kind.as_str().map_or_else(|| kind.to_string(), ToOwned::to_owned);
            match type_named(&kind).filter(|kind| is_ordered(*kind)) {
                Some(kind) => columns.push((name.clone(), kind)),
                None => {
                    let what = unknown_type(&format!("page_by {name}"), &kind, is_ordered);
                    self.fault(places.line(&format!("page_by.{name}")), what);
                }
            }
        }
        let (rows, place) = (rows.unwrap_or(PAGE_ROWS), if rows.is_some() { "page_rows" } else { "page_by" });
        if !(1..=100_000).contains(&rows) {
            self.fault(places.line(place), format!("page_rows is {rows}, expected 1 to 100000"));
        } else if rows > rows_max && rows_max > 0 {
            let what = format!("page_rows is {rows}, and rows_max {rows_max}: a whole page would be an error");
            self.fault(places.line(place), what);
        }
        Some(Page { by: columns, rows })
    }

    /// One statement, whose parameters are those of the head.
    fn body(&mut self, body: &str, before: usize, declared: &[&str], places: &Places) {
        if body.trim().trim_end_matches(';').is_empty() {
            self.fault(before.max(1), "there is no query below the head");
            return;
        }
        let mut used = Vec::new();
        for parameter in parameters_in(body, self.syntax) {
            let line = before + line_of(body, parameter.place.start);
            match parameter.name.strip_prefix(':') {
                _ if parameter.name == USER => {}
                Some(name) if declared.contains(&name) => used.push(name),
                Some(name) => {
                    let near = closest(name, declared.iter().copied());
                    let hint = near.map_or_else(String::new, |near| format!("; did you mean :{near}?"));
                    self.fault(line, format!(":{name} is not among [parameters] of the head{hint}"));
                }
                None => self.fault(line, format!("{} has no name, expected :name", parameter.name)),
            }
        }
        for name in declared.iter().filter(|name| !used.contains(name)) {
            self.fault(places.line(&format!("parameters.{name}")), format!("parameter {name} is not in the query"));
        }
    }

    fn types(&mut self, types: &BTreeMap<String, String>, places: &Places) -> BTreeMap<String, Type> {
        let mut known = BTreeMap::new();
        for (column, kind) in types {
            match type_named(kind) {
                Some(found) => {
                    known.insert(column.clone(), found);
                }
                None => {
                    let what = unknown_type(&format!("column {column}"), kind, |_| true);
                    self.fault(places.line(&format!("types.{column}")), what);
                }
            }
        }
        known
    }
}

fn type_named(name: &str) -> Option<Type> {
    Type::ALL.into_iter().find(|kind| kind.name() == name)
}

/// Whether its values have one order, in every database.
fn has_bounds(kind: Type) -> bool {
    !matches!(kind, Type::Bool | Type::Text | Type::Json | Type::Uuid | Type::Bytes)
}

fn unknown_type(what: &str, name: &str, is_possible: impl Fn(Type) -> bool) -> String {
    let known: Vec<&str> = Type::ALL.into_iter().filter(|kind| is_possible(*kind)).map(Type::name).collect();
    let hint = closest(name, known.iter().copied()).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("{what} has the type {name:?}, expected one of {}{hint}", known.join(", "))
}

/// A value of a head, in a parameter's type.
fn value_of(value: &toml::Value, kind: Type) -> Option<Value> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(real) => real.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
        toml::Value::Array(_) | toml::Value::Table(_) => return None,
    };
    values::read(&text, kind)
}
