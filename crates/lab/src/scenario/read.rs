//! A scenario's file, read and checked.

use toml::de::DeValue;

use super::formula::Formula;
use super::generator::Generator;
use super::{Check, DONE, FAILED, Scenario, Transaction, sql};
use crate::reading::{self, Entry, Reader, SpecError};
use crate::value::Value;

const KEYS: [&str; 8] = ["name", "about", "tables", "parameters", "constants", "prepare", "transaction", "verify"];
const GENERATORS: [&str; 6] = ["uniform", "zipf", "sequence", "real", "text", "pick"];

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
            let mut look = Look { reader, files, known: &known };
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
            let checks = find("verify").map(|entry| look.checks(&entry)).unwrap_or_default();
            Some(Scenario { name: name?, tables, parameters, constants, prepare, transactions, checks })
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
    if taken.contains(&entry.name) || [DONE, FAILED].contains(&entry.name) {
        reader.error(&entry.key_span(), format!("the name {:?} is taken", entry.name), "another name");
    }
}

fn values(reader: &mut Reader<'_>, entry: &Entry<'_>, known: &[&str]) -> Vec<(String, Generator)> {
    let mut values = Vec::new();
    for entry in reader.table(entry).unwrap_or_default() {
        check_name(reader, &entry, known);
        let generator = generator(reader, &entry);
        for formula in generator.iter().flat_map(Generator::formulas) {
            for name in formula.parameters().filter(|name| !known.contains(name)) {
                let found = format!("{} has the unknown parameter {name:?}", entry.name);
                reader.unknown(&entry.span(), found, name, known.iter().copied());
            }
        }
        values.extend(generator.map(|generator| (entry.name.to_owned(), generator)));
    }
    values
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

/// Reads SQL and holds its parameters against what there is.
struct Look<'l, 't> {
    reader: &'l mut Reader<'t>,
    files: Files<'l>,
    known: &'l [&'l str],
}

impl Look<'_, '_> {
    /// The text of `sql` or of the file that `file` names.
    fn sql(&mut self, of: &Entry<'_>, keys: &[Entry<'_>], more: &[&str]) -> Option<String> {
        let find = |key: &str| keys.iter().find(|entry| entry.name == key).copied();
        let (entry, text) = match (find("sql"), find("file")) {
            (Some(sql), None) => (sql, self.reader.string(&sql)?),
            (None, Some(file)) => {
                let name = self.reader.string(&file)?;
                match (self.files)(&name) {
                    Ok(text) => (file, text),
                    Err(error) => {
                        let found = format!("the file {name:?} could not be read: {error}");
                        self.reader.error(&file.span(), found, "a file beside the scenario's");
                        return None;
                    }
                }
            }
            _ => {
                let found = format!("{} has not one of sql and file", of.name);
                self.reader.error(&of.key_span(), found, "sql = \"...\" or file = \"NAME.sql\"");
                return None;
            }
        };
        match sql::names(&text) {
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
        Some(text)
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
        self.reader.allow(&keys, "the transaction", &["name", "weight", "begin", "values", "sql", "file"]);
        let find = |key: &str| keys.iter().find(|entry| entry.name == key).copied();
        let name = find("name").map_or(Some("transaction".to_owned()), |entry| self.reader.string(&entry))?;
        let weight = find("weight").map_or(Some(1), |entry| self.reader.integer(&entry, 1..1_000_001))?;
        let values = find("values").map(|entry| values(self.reader, &entry, self.known)).unwrap_or_default();
        let more: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
        let text = self.sql(item, &keys, &more)?;
        let statements = sql::statements(&text);
        if statements.is_empty() {
            self.reader.error(&item.span(), format!("transaction {name:?} has no statement"), "at least one");
        }
        for unused in more.iter().filter(|name| !sql::names(&text).is_ok_and(|names| names.contains(name))) {
            let found = format!("the value {unused} is in no statement of transaction {name:?}");
            self.reader.error(&find("values").unwrap_or(*item).span(), found, format!(":{unused} in one"));
        }
        let begin = match find("begin") {
            Some(entry) => Some(self.reader.string(&entry)?).filter(|begin| !begin.trim().is_empty()),
            None => (statements.len() > 1).then(|| "BEGIN".to_owned()),
        };
        Some(Transaction { name, weight: weight as u32, begin, statements, values })
    }

    fn checks(&mut self, entry: &Entry<'_>) -> Vec<Check> {
        let items = self.reader.array(entry).unwrap_or_default();
        items.iter().flat_map(|item| self.check(item).unwrap_or_default()).collect()
    }

    fn check(&mut self, item: &Entry<'_>) -> Option<Vec<Check>> {
        let keys = self.reader.table(item)?;
        self.reader.allow(&keys, "verify", &["what", "sql", "file"]);
        let text = self.sql(item, &keys, &[DONE, FAILED])?;
        let Some(what) = keys.iter().find(|key| key.name == "what") else {
            self.reader.error(&item.span(), "verify has no what", "what = \"...\", which says what holds");
            return None;
        };
        let what = self.reader.string(what)?;
        Some(sql::statements(&text).into_iter().map(|sql| Check { what: what.clone(), sql }).collect())
    }
}
