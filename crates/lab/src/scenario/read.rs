//! A scenario's file, read and checked.

use toml::de::DeValue;

use super::formula::Formula;
use super::generator::Generator;
use super::step::{Send, Sending, Step};
use super::{ByDatabase, Check, DONE, Drives, FAILED, READ, Scenario, Transaction, sql};
use crate::reading::{self, Entry, Reader, SpecError};
use crate::value::Value;

const KEYS: [&str; 8] = ["name", "about", "tables", "parameters", "constants", "prepare", "transaction", "verify"];
const GENERATORS: [&str; 7] = ["uniform", "zipf", "sequence", "real", "text", "blob", "pick"];
const TRANSACTION: [&str; 4] = ["name", "weight", "begin", "values"];
const STEP: [&str; 8] = ["name", "values", "sql", "file", "repeat", "send", "batch", "pause_ms"];

/// Gives a file's text by its name.
type Files<'f> = &'f dyn Fn(&str) -> Result<String, String>;

impl Scenario {
    /// Reads a scenario; `file` is for the errors, `files` gives the SQL files that it names.
    pub fn parse(file: &str, text: &str, files: Files<'_>) -> Result<Scenario, Vec<SpecError>> {
        reading::read(file, text, |reader, tree| {
            let entries = reading::entries(tree);
            reader.allow(&entries, "the scenario", &KEYS);
            let find = |key: &str| entries.iter().find(|entry| entry.name == key).copied();
            let name = find("name").and_then(|entry| reader.string(&entry));
            if name.is_none() && find("name").is_none() {
                reader.error(&(0..0), "the scenario has no name", "name = \"...\"");
            }
            if let Some(about) = find("about") {
                reader.string(&about);
            }
            let tables = find("tables").map(|entry| tables(reader, &entry)).unwrap_or_default();
            let parameters = find("parameters").map(|entry| parameters(reader, &entry)).unwrap_or_default();
            let known: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
            let constants = find("constants").map(|entry| values(reader, &entry, &known)).unwrap_or_default();
            let known: Vec<&str> = known.into_iter().chain(constants.iter().map(|(name, _)| name.as_str())).collect();
            let mut look = Look { reader, files, parameters: &parameters, known: &known };
            let prepare = find("prepare").and_then(|entry| {
                let keys = look.reader.table(&entry)?;
                look.reader.allow(&keys, "prepare", &["sql", "file"]);
                look.sql(&entry, &keys, &[])
            });
            if let (Some(entry), None) = (find("tables"), find("prepare")) {
                look.reader.error(
                    &entry.key_span(),
                    "there are tables and no prepare",
                    "[prepare], which creates them",
                );
            }
            let transactions = find("transaction").map(|entry| look.transactions(&entry)).unwrap_or_default();
            if transactions.is_empty() && look.reader.is_clean() {
                look.reader.error(&(0..0), "the scenario has no transaction", "[[transaction]] with sql or file");
            }
            let steps: Vec<&str> = transactions.iter().flat_map(|t| &t.steps).map(|step| step.name.as_str()).collect();
            let checks = find("verify").map(|entry| look.checks(&entry, &steps)).unwrap_or_default();
            let (name, drives) = (name?, Drives::Transactions);
            Some(Scenario { name, drives, tables, parameters, constants, prepare, transactions, checks })
        })
    }
}

/// Names of tables go into SQL unquoted or quoted alike: plain ones alone.
fn tables(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Vec<String> {
    let mut tables: Vec<String> = Vec::new();
    for item in reader.array(entry).unwrap_or_default() {
        let Some(name) = reader.string(&item) else { continue };
        let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_plain || tables.contains(&name) {
            let expected = "each table once, of small letters, digits and _, in the order in which they are created";
            reader.error(&item.span(), format!("the table {name:?}"), expected);
        }
        tables.push(name);
    }
    tables
}

fn parameters(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Vec<(String, Value)> {
    let mut parameters = Vec::new();
    for entry in reader.table(entry).unwrap_or_default() {
        check_name(reader, &entry, &[]);
        if ["name", "file"].contains(&entry.name) {
            let found = format!("a parameter has the name {:?}", entry.name);
            reader.error(&entry.key_span(), found, "another, for this one chooses the scenario in an experiment");
        }
        let value = scalar(entry.value.get_ref());
        let value = value.or_else(|| reader.mismatch(&entry, "a number or a string, which is what holds unless set"));
        parameters.extend(value.map(|value| (entry.name.to_owned(), value)));
    }
    parameters
}

/// A number or a string.
pub(crate) fn scalar(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::Text(text.clone().into_owned())),
        DeValue::Float(_) => reading::number(value).map(Value::Real),
        value => reading::integer(value).map(Value::Integer),
    }
}

fn check_name(reader: &mut Reader<'_>, entry: &Entry<'_>, taken: &[&str]) {
    let is_name = entry.name.starts_with(|c: char| c.is_ascii_alphabetic())
        && entry.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        reader.error(&entry.key_span(), format!("the name {:?}", entry.name), "letters, digits and _, a letter first");
    }
    if taken.contains(&entry.name) || [DONE, FAILED, READ].contains(&entry.name) {
        reader.error(&entry.key_span(), format!("the name {:?} is taken", entry.name), "another name");
    }
}

fn values(reader: &mut Reader<'_>, entry: &Entry<'_>, known: &[&str]) -> Vec<(String, Generator)> {
    let mut values = Vec::new();
    for entry in reader.table(entry).unwrap_or_default() {
        check_name(reader, &entry, known);
        let generator = generator(reader, &entry);
        for formula in generator.iter().flat_map(Generator::formulas) {
            check_formula(reader, &entry, formula, known);
        }
        values.extend(generator.map(|generator| (entry.name.to_owned(), generator)));
    }
    values
}

fn check_formula(reader: &mut Reader<'_>, entry: &Entry<'_>, formula: &Formula, known: &[&str]) {
    for name in formula.parameters().filter(|name| !known.contains(name)) {
        let found = format!("{} has the unknown parameter {name:?}", entry.name);
        reader.unknown(&entry.span(), found, name, known.iter().copied());
    }
}

fn generator(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Generator> {
    let keys = reader.table(entry)?;
    let Some(kind) = keys.iter().find(|key| GENERATORS.contains(&key.name)).copied() else {
        let found = format!("{} has no generator", entry.name);
        let word = keys.first().map_or("", |key| key.name);
        reader.unknown(&entry.span(), found, word, GENERATORS);
        return None;
    };
    let allowed: &[&str] = if kind.name == "zipf" { &["zipf", "exponent"] } else { &[kind.name] };
    reader.allow(&keys, entry.name, allowed);
    match kind.name {
        "sequence" => formula(reader, &kind).map(Generator::Sequence),
        "text" => formula(reader, &kind).map(Generator::Text),
        "blob" => formula(reader, &kind).map(Generator::Blob),
        "pick" => {
            let items = reader.array(&kind)?;
            let values: Option<Vec<_>> = items.iter().map(|item| scalar(item.value.get_ref())).collect();
            let values = values.filter(|values| !values.is_empty());
            values.map(Generator::Pick).or_else(|| reader.mismatch(&kind, "an array of numbers or strings, not empty"))
        }
        _ => {
            let Some([low, high]) =
                reader.array(&kind)?.first_chunk::<2>().copied().filter(|_| kind.items().len() == 2)
            else {
                return reader.mismatch(&kind, "an array of the lowest and the highest");
            };
            if kind.name == "real" {
                let low = reader.number(&low, f64::NEG_INFINITY, f64::INFINITY)?;
                return Some(Generator::Real(low, reader.number(&high, low, f64::INFINITY)?));
            }
            let (low, high) = (formula(reader, &low)?, formula(reader, &high)?);
            if kind.name == "uniform" {
                return Some(Generator::Uniform(low, high));
            }
            let exponent = keys.iter().find(|key| key.name == "exponent").copied();
            let exponent = exponent.map_or(Some(1.0), |exponent| reader.number(&exponent, 0.0, 100.0));
            Some(Generator::Zipf(low, high, exponent?))
        }
    }
}

fn formula(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Formula> {
    let formula = match entry.value.get_ref() {
        DeValue::String(text) => Formula::parse(text),
        value => reading::integer(value).map(Formula::number),
    };
    formula.or_else(|| reader.mismatch(entry, "a whole number, or parameters as \"rows * 2 - 1\""))
}

/// The entry of this name.
fn find<'e>(keys: &[Entry<'e>], name: &str) -> Option<Entry<'e>> {
    keys.iter().find(|entry| entry.name == name).copied()
}

/// Reads SQL and holds its parameters against what there is.
struct Look<'l, 't> {
    reader: &'l mut Reader<'t>,
    files: Files<'l>,
    parameters: &'l [(String, Value)],
    /// Parameters and constants.
    known: &'l [&'l str],
}

impl Look<'_, '_> {
    /// The text of `sql` or of the file that `file` names.
    fn sql(&mut self, of: &Entry<'_>, keys: &[Entry<'_>], more: &[&str]) -> Option<ByDatabase<String>> {
        match (find(keys, "sql"), find(keys, "file")) {
            (Some(sql), None) => self.by_database(&sql, &mut |look, entry| {
                let text = look.reader.string(entry)?;
                look.check_names(entry, &text, more);
                Some(text)
            }),
            (None, Some(file)) => self.by_database(&file, &mut |look, entry| {
                let name = look.reader.string(entry)?;
                match (look.files)(&name) {
                    Ok(text) => {
                        look.check_names(entry, &text, more);
                        Some(text)
                    }
                    Err(error) => {
                        let found = format!("the file {name:?} could not be read: {error}");
                        look.reader.error(&entry.span(), found, "a file beside the scenario's");
                        None
                    }
                }
            }),
            _ => {
                let found = format!("{} has not one of sql and file", of.name);
                self.reader.error(&of.key_span(), found, "sql = \"...\" or file = \"NAME.sql\"");
                None
            }
        }
    }

    /// One value for all databases, or a table of one for each.
    fn by_database<T: Clone>(
        &mut self,
        entry: &Entry<'_>,
        read: &mut dyn FnMut(&mut Self, &Entry<'_>) -> Option<T>,
    ) -> Option<ByDatabase<T>> {
        let DeValue::Table(table) = entry.value.get_ref() else { return read(self, entry).map(ByDatabase::same) };
        let keys = reading::entries(table);
        self.reader.allow(&keys, entry.name, &["postgresql", "mariadb", "sqlite"]);
        let (Some(postgresql), Some(sqlite)) = (find(&keys, "postgresql"), find(&keys, "sqlite")) else {
            return self
                .reader
                .mismatch(entry, "a string, or { postgresql = \"...\", sqlite = \"...\" }, perhaps with mariadb");
        };
        // MariaDB has PostgreSQL's unless it has its own.
        let mariadb = find(&keys, "mariadb").unwrap_or(postgresql);
        Some(ByDatabase {
            postgresql: read(self, &postgresql)?,
            mariadb: read(self, &mariadb)?,
            sqlite: read(self, &sqlite)?,
        })
    }

    fn check_names(&mut self, entry: &Entry<'_>, text: &str, more: &[&str]) {
        match sql::names(text) {
            Ok(names) => {
                let known: Vec<&str> = self.known.iter().chain(more).copied().collect();
                for name in names.into_iter().filter(|name| !known.contains(name)) {
                    let found = format!("the SQL has the unknown parameter :{name}");
                    self.reader.unknown(&entry.span(), found, name, known.iter().copied());
                }
            }
            Err(other) => {
                let found = format!("the SQL has the parameter {other}");
                self.reader.error(&entry.span(), found, "parameters by name, as :name");
            }
        }
    }

    fn transactions(&mut self, entry: &Entry<'_>) -> Vec<Transaction> {
        let mut transactions: Vec<Transaction> = Vec::new();
        for item in self.reader.array(entry).unwrap_or_default() {
            let Some(transaction) = self.transaction(&item) else { continue };
            if transactions.iter().any(|known| known.name == transaction.name) {
                let found = format!("two transactions have the name {:?}", transaction.name);
                self.reader.error(&item.span(), found, "names that differ");
            }
            transactions.push(transaction);
        }
        transactions
    }

    fn transaction(&mut self, item: &Entry<'_>) -> Option<Transaction> {
        let keys = self.reader.table(item)?;
        let steps = find(&keys, "step");
        let of_step: &[&str] = if steps.is_some() { &["step"] } else { &STEP };
        self.reader.allow(&keys, "the transaction", &[&TRANSACTION, of_step].concat());
        let name = find(&keys, "name").map_or(Some("transaction".to_owned()), |entry| self.reader.string(&entry))?;
        let weight = self.number(&keys, "weight", 1)?;
        let (values, steps) = match steps {
            // The transaction is its only step.
            None => (Vec::new(), vec![self.step(item, &keys, name.clone(), &[])?]),
            Some(steps) => {
                let values = find(&keys, "values").map(|entry| values(self.reader, &entry, self.known));
                let values = values.unwrap_or_default();
                let steps = self.steps(&steps, &values);
                self.check_used(item, &keys, &values, &steps);
                (values, steps)
            }
        };
        let is_several = |statements: &Vec<String>| statements.len() > 1;
        let may_be_several = steps.len() > 1
            || find(&keys, "repeat").is_some()
            || steps.iter().any(|step| step.statements.all().into_iter().any(is_several));
        let begin = match find(&keys, "begin") {
            Some(entry) => self.by_database(&entry, &mut |look, entry| look.reader.string(entry))?,
            None => ByDatabase::same(if may_be_several { "BEGIN" } else { "" }.to_owned()),
        };
        let begin = begin.map(|begin| Some(begin).filter(|begin| !begin.trim().is_empty()));
        Some(Transaction { name, weight, begin, values, steps })
    }

    fn steps(&mut self, entry: &Entry<'_>, values: &[(String, Generator)]) -> Vec<Step> {
        let mut steps = Vec::new();
        for item in self.reader.array(entry).unwrap_or_default() {
            let Some(keys) = self.reader.table(&item) else { continue };
            self.reader.allow(&keys, "the step", &[&STEP[..], &["chance"]].concat());
            let name = find(&keys, "name").map_or(Some("step".to_owned()), |entry| self.reader.string(&entry));
            let of_transaction: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
            steps.extend(name.and_then(|name| self.step(&item, &keys, name, &of_transaction)));
        }
        steps
    }

    fn step(&mut self, item: &Entry<'_>, keys: &[Entry<'_>], name: String, more: &[&str]) -> Option<Step> {
        let known: Vec<&str> = self.known.iter().chain(more).copied().collect();
        let values = find(keys, "values").map(|entry| values(self.reader, &entry, &known)).unwrap_or_default();
        let more: Vec<&str> = more.iter().copied().chain(values.iter().map(|(name, _)| name.as_str())).collect();
        let statements = self.sql(item, keys, &more)?.map(|text| sql::statements(&text));
        if statements.all().into_iter().any(Vec::is_empty) {
            self.reader.error(&item.span(), format!("{name:?} has no statement"), "at least one");
        }
        let send =
            find(keys, "send").map_or(Some(Send::Fixed(Sending::One)), |entry| self.send(&entry, &statements))?;
        let batch = match find(keys, "batch") {
            Some(_) => Some(self.number(keys, "batch", 1)?),
            None => None,
        };
        let (chance, repeat) = (self.number(keys, "chance", 100)?, self.number(keys, "repeat", 1)?);
        let pause_ms = self.number(keys, "pause_ms", 0)?;
        let step = Step { name, statements, values, chance, repeat, send, batch, pause_ms };
        self.check_used(item, keys, &step.values, std::slice::from_ref(&step));
        Some(step)
    }

    /// A whole number or a formula.
    fn number(&mut self, keys: &[Entry<'_>], name: &str, otherwise: i64) -> Option<Formula> {
        let Some(entry) = find(keys, name) else { return Some(Formula::number(otherwise)) };
        let formula = formula(self.reader, &entry)?;
        check_formula(self.reader, &entry, &formula, self.known);
        Some(formula)
    }

    /// How repetitions are sent; if it may be as rows, there must be one that can be repeated.
    fn send(&mut self, entry: &Entry<'_>, statements: &ByDatabase<Vec<String>>) -> Option<Send> {
        let word = self.reader.string(entry)?;
        let send = match word.strip_prefix(':') {
            None => Sending::parse(&word).map(Send::Fixed),
            Some(name) => {
                let is_text = |(known, value): &(String, Value)| known == name && matches!(value, Value::Text(_));
                self.parameters.iter().any(is_text).then(|| Send::Parameter(name.to_owned()))
            }
        };
        let Some(send) = send else {
            let known = Sending::WORDS.into_iter().chain([":NAME of a parameter that is a string"]);
            self.reader.unknown(&entry.span(), format!("send is {word:?}"), &word, known);
            return None;
        };
        let has_one_row = |statements: &Vec<String>| matches!(&statements[..], [one] if sql::has_row(one));
        if !matches!(send, Send::Fixed(Sending::One | Sending::Joined))
            && !statements.all().into_iter().all(has_one_row)
        {
            self.reader.error(&entry.span(), "send by rows", "one statement, with VALUES (...)");
        }
        Some(send)
    }

    /// Complains of values that are in no statement.
    fn check_used(&mut self, item: &Entry<'_>, keys: &[Entry<'_>], values: &[(String, Generator)], steps: &[Step]) {
        let is_in = |name: &str, sql: &String| sql::names(sql).is_ok_and(|names| names.contains(&name));
        for (name, _) in values {
            let mut statements = steps.iter().flat_map(|step| step.statements.all()).flatten();
            if !statements.any(|sql| is_in(name, sql)) {
                let found = format!("the value {name} is in no statement");
                self.reader.error(&find(keys, "values").unwrap_or(*item).span(), found, format!(":{name} in one"));
            }
        }
    }

    fn checks(&mut self, entry: &Entry<'_>, steps: &[&str]) -> Vec<Check> {
        let items = self.reader.array(entry).unwrap_or_default();
        items.iter().filter_map(|item| self.check(item, steps)).collect()
    }

    fn check(&mut self, item: &Entry<'_>, steps: &[&str]) -> Option<Check> {
        let keys = self.reader.table(item)?;
        self.reader.allow(&keys, "verify", &["what", "sql", "file"]);
        let more = [&[DONE, FAILED, READ], steps].concat();
        let queries = self.sql(item, &keys, &more)?.map(|text| sql::statements(&text));
        let Some(what) = find(&keys, "what") else {
            self.reader.error(&item.span(), "verify has no what", "what = \"...\", which says what holds");
            return None;
        };
        Some(Check { what: self.reader.string(&what)?, queries })
    }
}
