//! The file's tree as axes: each key with its values.

use toml::de::DeTable;

use super::keys::SECTIONS;
use super::sample::sample;
use super::{Order, REPETITIONS_MAX};
use crate::reading::{self, Entry, Reader, Span};
use crate::sampling::Sample;
use crate::scenario::{self, Scenario};
use crate::value::Value;

const KEYS: [&str; 12] =
    ["name", "about", "seed", "repetitions", "scenario", "target", "load", "stop", "zip", "exclude", "sample", "order"];

/// The keys whose values may have passwords in them.
pub(super) const ADDRESSES: [&str; 3] = ["target.url", "target.proxy", "target.replica_url"];

/// A key with its values.
pub(super) struct Axis {
    /// With its section: `load.clients`.
    pub(super) key: String,
    /// Where it stands.
    pub(super) span: Span,
    pub(super) values: Vec<(Value, Span)>,
    /// The group of those whose values go together; each one alone is a group too.
    pub(super) group: usize,
}

/// Cells that are left out: those that have one of the values for each of the keys.
pub(super) struct Exclusion {
    pub(super) span: Span,
    pub(super) conditions: Vec<(String, Vec<Value>)>,
}

/// An experiment before its cells.
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) seed: Option<u64>,
    pub(super) repetitions: usize,
    pub(super) order: Order,
    pub(super) scenarios: Vec<Scenario>,
    pub(super) axes: Vec<Axis>,
    pub(super) exclusions: Vec<Exclusion>,
    pub(super) sample: Sample,
}

impl Draft {
    pub(super) fn read(
        reader: &mut Reader<'_>,
        tree: &DeTable<'_>,
        files: &dyn Fn(&str) -> Result<String, String>,
    ) -> Option<Draft> {
        let entries = reading::entries(tree);
        reader.allow(&entries, "the experiment", &KEYS);
        let find = |key: &str| entries.iter().find(|entry| entry.name == key).copied();
        let name = find("name").and_then(|entry| name(reader, &entry));
        let about = find("about").and_then(|entry| reader.string(&entry)).unwrap_or_default();
        let seed = find("seed").and_then(|entry| reader.integer(&entry, 0..i64::MAX)).map(|seed| seed as u64);
        let repetitions = find("repetitions").map_or(Some(1), |e| reader.integer(&e, 1..REPETITIONS_MAX + 1));
        let order = find("order").and_then(|entry| order(reader, &entry)).unwrap_or_default();
        let mut axes = Vec::new();
        for (section, keys) in SECTIONS {
            for entry in find(section).and_then(|entry| reader.table(&entry)).unwrap_or_default() {
                let known = keys.iter().find(|(key, _)| *key == entry.name);
                let Some((_, kind)) = known else {
                    let found = format!("unknown key {:?} in [{section}]", entry.name);
                    reader.unknown(&entry.key_span(), found, entry.name, keys.iter().map(|(key, _)| *key));
                    continue;
                };
                axes.extend(axis(reader, section, &entry, |reader, item| kind.read(reader, item)));
            }
        }
        let scenarios = find("scenario").map(|entry| scenarios(reader, &entry, files, &mut axes)).unwrap_or_default();
        for (key, is_missing, expected) in [
            ("name", find("name").is_none(), "name = \"...\""),
            ("scenario", find("scenario").is_none(), "[scenario] with name = \"...\" or file = \"...\""),
            ("stop", find("stop").is_none(), "[stop] with duration, iterations or interval"),
        ] {
            if is_missing {
                reader.error(&(0..0), format!("the experiment has no {key}"), expected);
            }
        }
        // In the order of the file; then groups are numbered by it.
        axes.sort_by_key(|axis: &Axis| axis.span.start);
        axes.iter_mut().enumerate().for_each(|(place, axis)| axis.group = place);
        if let Some(entry) = find("zip") {
            zip(reader, &entry, &mut axes);
        }
        let exclusions = find("exclude").map(|entry| exclusions(reader, &entry, &axes)).unwrap_or_default();
        let sample = find("sample").map(|entry| sample(reader, &entry)).unwrap_or_default();
        let (name, repetitions) = (name?, repetitions? as usize);
        Some(Draft { name, about, seed, repetitions, order, scenarios, axes, exclusions, sample })
    }
}

impl Draft {
    /// The file's text with addresses as people may see them.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        let urls = self.axes.iter().filter(|axis| ADDRESSES.contains(&axis.key.as_str())).flat_map(|axis| &axis.values);
        let mut places: Vec<_> = urls.map(|(url, span)| (span, crate::address::shown(&url.to_string()))).collect();
        places.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        let mut text = text.to_owned();
        for (span, shown) in places {
            text.replace_range(span.clone(), &format!("{shown:?}"));
        }
        text
    }
}

/// Files are named by it.
fn name(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<String> {
    let name = reader.string(entry)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 100 || !name.chars().all(is_plain) {
        return reader.mismatch(entry, "letters, digits, - and _, at most 100 of them");
    }
    Some(name)
}

fn order(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Order> {
    match reader.string(entry)?.as_str() {
        "shuffled" => Some(Order::Shuffled),
        "abba" => Some(Order::Abba),
        _ => reader.mismatch(entry, "\"shuffled\" or \"abba\""),
    }
}

fn axis(
    reader: &mut Reader<'_>,
    section: &str,
    entry: &Entry<'_>,
    read: impl Fn(&mut Reader<'_>, &Entry<'_>) -> Option<Value>,
) -> Option<Axis> {
    let items = entry.items();
    if items.is_empty() {
        return reader.mismatch(entry, "a value, or an array of at least one");
    }
    let mut values: Vec<(Value, Span)> = Vec::new();
    for item in items {
        let Some(value) = read(reader, &item) else { continue };
        values.push((value, item.span()));
    }
    Some(Axis { key: format!("{section}.{}", entry.name), span: entry.key_span(), values, group: 0 })
}

/// The scenarios by `name`, or by `file`, and their parameters as axes.
fn scenarios(
    reader: &mut Reader<'_>,
    entry: &Entry<'_>,
    files: &dyn Fn(&str) -> Result<String, String>,
    axes: &mut Vec<Axis>,
) -> Vec<Scenario> {
    let entries = reader.table(entry).unwrap_or_default();
    let choice: Vec<_> = entries.iter().filter(|entry| ["name", "file"].contains(&entry.name)).collect();
    let [choice] = choice[..] else {
        reader.error(&entry.key_span(), "[scenario] has not one of name and file", "name = \"...\" or file = \"...\"");
        return Vec::new();
    };
    let mut scenarios = Vec::new();
    for item in choice.items() {
        let Some(word) = reader.string(&item) else { continue };
        let scenario =
            if choice.name == "name" { built_in(reader, &item, &word) } else { own(reader, &item, &word, files) };
        scenarios.extend(scenario);
    }
    // The axis holds places: whatever the scenario is called.
    axes.extend(axis(reader, "scenario", choice, |reader, item| reader.string(item).map(Value::Text)));
    if !reader.is_clean() {
        return scenarios;
    }
    for entry in entries.iter().filter(|entry| !["name", "file"].contains(&entry.name)) {
        for scenario in &scenarios {
            let known = scenario.parameters.iter().map(|(name, _)| name.as_str());
            if !known.clone().any(|name| name == entry.name) {
                let found = format!("unknown parameter {:?} of scenario {:?}", entry.name, scenario.name);
                reader.unknown(&entry.key_span(), found, entry.name, known);
            }
        }
        axes.extend(axis(reader, "scenario", entry, |reader, item| parameter(reader, item, &scenarios)));
    }
    scenarios
}

fn built_in(reader: &mut Reader<'_>, item: &Entry<'_>, name: &str) -> Option<Scenario> {
    let scenario = Scenario::built_in(name);
    if scenario.is_none() {
        let found = format!("unknown scenario {name:?}");
        reader.unknown(&item.span(), found, name, scenario::built_in_names());
    }
    scenario
}

fn own(
    reader: &mut Reader<'_>,
    item: &Entry<'_>,
    path: &str,
    files: &dyn Fn(&str) -> Result<String, String>,
) -> Option<Scenario> {
    let text = match files(path) {
        Ok(text) => text,
        Err(error) => {
            reader.error(&item.span(), format!("{path:?} could not be read: {error}"), "a scenario's file");
            return None;
        }
    };
    let folder = path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let beside = |name: &str| files(&format!("{folder}{name}"));
    match Scenario::parse(path, &text, &beside) {
        Ok(scenario) => Some(scenario),
        Err(errors) => {
            reader.foreign(&item.span(), errors);
            None
        }
    }
}

/// A parameter's value, of the type that its default has.
fn parameter(reader: &mut Reader<'_>, item: &Entry<'_>, scenarios: &[Scenario]) -> Option<Value> {
    let defaults = scenarios.iter().flat_map(|scenario| &scenario.parameters).filter(|(name, _)| name == item.name);
    let mut value = scenario::scalar(item.value.get_ref());
    for (_, default) in defaults {
        value = match (value, default) {
            (Some(Value::Integer(number)), Value::Real(_)) => Some(Value::Real(number as f64)),
            (Some(value), default) if std::mem::discriminant(&value) == std::mem::discriminant(default) => Some(value),
            _ => return reader.mismatch(item, default.kind()),
        };
    }
    value
}

/// `zip = [["load.clients", "load.rate"], ...]`: the n-th values of these go together.
fn zip(reader: &mut Reader<'_>, entry: &Entry<'_>, axes: &mut [Axis]) {
    let mut zipped: Vec<usize> = Vec::new();
    for group in reader.array(entry).unwrap_or_default() {
        let mut members: Vec<usize> = Vec::new();
        for item in reader.array(&group).unwrap_or_default() {
            let Some(key) = reader.string(&item) else { continue };
            let Some(place) = axes.iter().position(|axis| axis.key == key) else {
                let found = format!("zip names {key:?}, which has no value here");
                reader.unknown(&item.span(), found, &key, axes.iter().map(|axis| axis.key.as_str()));
                continue;
            };
            if zipped.contains(&place) {
                reader.error(&item.span(), format!("zip names {key:?} twice"), "each key in one group");
            }
            zipped.push(place);
            if let Some(first) = members.first().map(|first| &axes[*first])
                && first.values.len() != axes[place].values.len()
            {
                let found =
                    format!("{key} has {} values, {} has {}", axes[place].values.len(), first.key, first.values.len());
                reader.error(&item.span(), found, "as many in each key of a group");
            }
            members.push(place);
        }
        if members.len() < 2 && reader.is_clean() {
            reader.error(&group.span(), "a group of zip has fewer than two keys", "[\"load.clients\", \"load.rate\"]");
        }
        for &member in &members {
            axes[member].group = members[0];
        }
    }
}

/// `exclude = [{ load.clients = [8, 16], load.rate = 10 }, ...]`.
fn exclusions(reader: &mut Reader<'_>, entry: &Entry<'_>, axes: &[Axis]) -> Vec<Exclusion> {
    let mut exclusions = Vec::new();
    for item in reader.array(entry).unwrap_or_default() {
        let mut conditions = Vec::new();
        for section in reader.table(&item).unwrap_or_default() {
            for entry in reader.table(&section).unwrap_or_default() {
                conditions.extend(condition(reader, section.name, &entry, axes));
            }
        }
        if conditions.is_empty() && reader.is_clean() {
            reader.error(&item.span(), "exclude has an entry without a key", "{ load.clients = 8 }");
        }
        exclusions.push(Exclusion { span: item.span(), conditions });
    }
    exclusions
}

fn condition(reader: &mut Reader<'_>, section: &str, entry: &Entry<'_>, axes: &[Axis]) -> Option<(String, Vec<Value>)> {
    let key = format!("{section}.{}", entry.name);
    let Some(Axis { values: known, .. }) = axes.iter().find(|axis| axis.key == key) else {
        let found = format!("exclude names {key:?}, which has no value here");
        reader.unknown(&entry.key_span(), found, &key, axes.iter().map(|axis| axis.key.as_str()));
        return None;
    };
    let kind = SECTIONS.iter().find(|(name, _)| *name == section);
    let kind = kind.and_then(|(_, keys)| keys.iter().find(|(key, _)| *key == entry.name)).map(|(_, kind)| kind);
    let mut values = Vec::new();
    for item in entry.items() {
        let value = match kind {
            Some(kind) => kind.read(reader, &item)?,
            None => scenario::scalar(item.value.get_ref())?,
        };
        // A parameter that is no whole number may be written like one.
        match known.iter().find(|(known, _)| known.to_string() == value.to_string()) {
            Some((known, _)) => values.push(known.clone()),
            None => {
                let all: Vec<_> = known.iter().map(|(value, _)| value.to_string()).collect();
                let found = format!("exclude has {key} = {value}");
                reader.error(&item.span(), found, format!("one of its values: {}", all.join(", ")));
            }
        }
    }
    Some((key, values))
}
