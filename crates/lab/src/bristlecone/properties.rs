//! A Benchmark's file: `key = value`, of which `a|b|c` is a list. The cross product of all lists is run, as with us.

use super::{Faults, JDBC, Translation, address, list, plain, quoted};
use crate::reading::SpecError;

/// Their scenarios, and ours.
const SCENARIOS: [(&str, &str); 11] = [
    ("ReadSimple", "read_simple"),
    ("ReadSimpleLarge", "read_simple_large"),
    ("ReadScalingAggregates", "read_scaling_aggregates"),
    ("ReadScalingInvertedKeys", "read_scaling_inverted_keys"),
    ("WriteSimple", "write_simple"),
    ("WriteComplex", "write_complex"),
    ("ReadWrite", "read_write"),
    ("Deadlock", "deadlock"),
    ("PreparedStatementWrite", "prepared_write"),
    ("StatementBatching", "statement_batching"),
    ("TPCB", "tpcb"),
];

/// Their keys that hold numbers, and ours.
const NUMBERS: [(&str, &str); 14] = [
    ("threads", "load.clients"),
    ("iterations", "stop.iterations"),
    ("datarows", "scenario.rows"),
    ("selectrows", "scenario.selectrows"),
    ("step", "scenario.step"),
    ("operations", "scenario.operations"),
    ("delaymillis", "scenario.delay_ms"),
    ("writesPerXact", "scenario.writes"),
    ("insertsPerXact", "scenario.inserts"),
    ("batchSize", "scenario.batch"),
    ("branches", "scenario.branches"),
    ("tellers", "scenario.tellers"),
    ("accounts", "scenario.accounts"),
    ("queryPCT", "scenario.query_percent"),
];

/// Keys that are read beside these.
const OTHERS: [&str; 10] =
    ["scenario", "include", "url", "user", "password", "replicaUrl", "bound", "duration", "datawidth", "datatype"];

/// Keys that change nothing here: the database is always analyzed, each scenario commits in its own way and reads as it comes.
const LEFT_OUT: [&str; 6] = ["autocommit", "analyzeCmd", "fetchsize", "batchType", "reusedata", "tables"];

#[derive(Clone, Debug)]
struct Property {
    key: String,
    values: Vec<String>,
    line: usize,
}

/// The keys of a database.
const DATABASE: [&str; 3] = ["url", "user", "password"];

pub(super) fn translate(
    name: &str,
    text: &str,
    files: &dyn Fn(&str) -> Result<String, String>,
    mut faults: Faults<'_>,
) -> Result<Translation, Vec<SpecError>> {
    let mut all = properties(text, &mut faults);
    let included = include(&mut all, files, &mut faults);
    let known: Vec<&str> = NUMBERS.iter().map(|(key, _)| *key).chain(OTHERS).chain(LEFT_OUT).collect();
    for property in all.iter().filter(|property| !known.contains(&property.key.as_str())) {
        faults.add(property.line, format!("unknown key {:?}", property.key), known.join(", "));
    }
    let find = |key: &str| all.iter().find(|property| property.key == key);
    let mut translation = Translation::default();
    translation.line(1, "name", &quoted(&plain(name)));
    let left_out: Vec<&str> = LEFT_OUT.into_iter().filter(|key| find(key).is_some()).collect();
    if !left_out.is_empty() {
        let about = format!("Bristlecone's {name}.properties; without its {}", left_out.join(", "));
        translation.line(1, "about", &quoted(&about));
    }
    scenarios(find("scenario"), &mut translation, &mut faults);
    addresses(&all, &included, &mut translation, &mut faults);
    let is_by_time = find("bound").map_or(find("iterations").is_none(), |bound| bound.values == ["duration"]);
    if let Some(bound) = find("bound").filter(|bound| !is_by_time && bound.values != ["iterations"]) {
        faults.add(bound.line, format!("bound is {:?}", bound.values.join("|")), "iterations or duration");
    }
    for (key, ours) in NUMBERS.into_iter().filter(|(key, _)| *key != "iterations" || !is_by_time) {
        let Some(property) = find(key) else { continue };
        numbers(property, &mut faults);
        translation.line(property.line, ours, &list(&property.values));
    }
    if let Some(duration) = find("duration").filter(|_| is_by_time) {
        let seconds: Vec<String> = duration.values.iter().map(|value| quoted(&format!("{value}s"))).collect();
        translation.line(duration.line, "stop.duration", &list(&seconds));
    }
    if let Some(width) = find("datawidth") {
        numbers(width, &mut faults);
        let kinds = find("datatype").map(|kind| &kind.values[..]).unwrap_or_default();
        let are_bytes = kinds.iter().map(|kind| ["blob", "longblob", "bytea"].contains(&kind.as_str()));
        let key = if are_bytes.clone().any(|is| is) { "scenario.bytes" } else { "scenario.width" };
        if key == "scenario.bytes" && !are_bytes.clone().all(|is| is) {
            faults.add(width.line, "datatype is of text and of bytes", "one of them, since datawidth is of either");
        }
        translation.line(width.line, key, &list(&width.values));
    }
    faults.end(translation)
}

fn numbers(property: &Property, faults: &mut Faults<'_>) {
    if property.values.iter().any(|value| value.parse::<u64>().is_err()) {
        faults.add(property.line, format!("{} is {:?}", property.key, property.values.join("|")), "whole numbers");
    }
}

fn scenarios(property: Option<&Property>, translation: &mut Translation, faults: &mut Faults<'_>) {
    let Some(Property { values, line, .. }) = property else {
        faults.add(1, "there is no scenario", "scenario = the class of one");
        return;
    };
    let mut ours = Vec::new();
    for class in values {
        let name = class.rsplit('.').next().unwrap_or(class).trim_end_matches("Scenario");
        match SCENARIOS.iter().find(|(theirs, _)| *theirs == name) {
            Some((_, known)) => ours.push(quoted(known)),
            None => faults.add(
                *line,
                format!("unknown scenario {class:?}"),
                SCENARIOS.map(|(theirs, _)| theirs).join(", ") + ", each with Scenario at its end",
            ),
        }
    }
    translation.line(*line, "scenario.name", &list(&ours));
}

/// The databases: that of the file, and those of the files that it includes.
fn addresses(all: &[Property], included: &[Vec<Property>], translation: &mut Translation, faults: &mut Faults<'_>) {
    let of = |file: &[Property], key: &str| file.iter().find(|property| property.key == key).cloned();
    let (mut found, mut first) = (Vec::new(), 1);
    for file in std::iter::once(all).chain(included.iter().map(Vec::as_slice)) {
        let Some(url) = of(file, "url") else { continue };
        let own = |key| of(file, key).or_else(|| of(all, key)).and_then(|property| property.values.first().cloned());
        first = url.line;
        for jdbc in &url.values {
            match address(jdbc, own("user").as_deref(), own("password").as_deref()) {
                Some(ours) => found.push(quoted(&ours)),
                None => faults.add(url.line, format!("url is {jdbc:?}"), JDBC),
            }
        }
    }
    if !found.is_empty() {
        translation.line(first, "target.url", &list(&found));
    }
    let Some(replica) = of(all, "replicaUrl") else { return };
    let own = |key| of(all, key).and_then(|property| property.values.first().cloned());
    let ours = |jdbc: &String| address(jdbc, own("user").as_deref(), own("password").as_deref());
    match replica.values.iter().map(ours).collect::<Option<Vec<_>>>() {
        Some(all) => {
            let all: Vec<_> = all.iter().map(|address| quoted(address)).collect();
            translation.line(replica.line, "target.replica_url", &list(&all));
        }
        None => faults.add(replica.line, format!("replicaUrl is {:?}", replica.values.join("|")), JDBC),
    }
}

/// Takes in the files that are named: databases side by side, everything else as if it stood here.
fn include(
    all: &mut Vec<Property>,
    files: &dyn Fn(&str) -> Result<String, String>,
    faults: &mut Faults<'_>,
) -> Vec<Vec<Property>> {
    let Some(include) = all.iter().find(|property| property.key == "include").cloned() else { return Vec::new() };
    let mut databases = Vec::new();
    for name in &include.values {
        let text = files(name).unwrap_or_else(|why| {
            faults.add(include.line, format!("{name} can't be read: {why}"), "a file beside this one");
            String::new()
        });
        let mut file = properties(&text, &mut Faults { file: name, all: Vec::new() });
        // Errors of its own lines are told where it is named.
        for property in &mut file {
            property.line = include.line;
        }
        let (database, others): (Vec<_>, Vec<_>) =
            file.into_iter().partition(|property| DATABASE.contains(&property.key.as_str()));
        databases.push(database);
        for property in others {
            match all.iter().find(|known| known.key == property.key) {
                Some(known) if include.values.len() > 1 && known.values != property.values => {
                    let found = format!("{name} has another {} than what stands here", property.key);
                    faults.add(include.line, found, "files that differ in url, user and password alone");
                }
                Some(_) => {}
                None => all.push(property),
            }
        }
    }
    databases
}

/// The lines of a file of Java's properties.
fn properties(text: &str, faults: &mut Faults<'_>) -> Vec<Property> {
    let mut all: Vec<Property> = Vec::new();
    let (mut whole, mut begun) = (String::new(), 1);
    for (line, part) in text.lines().enumerate().map(|(place, part)| (place + 1, part.trim())) {
        if whole.is_empty() {
            begun = line;
            if part.is_empty() || part.starts_with(['#', '!']) {
                continue;
            }
        }
        if let Some(part) = part.strip_suffix('\\') {
            whole.push_str(part);
            continue;
        }
        whole.push_str(part);
        let entry = std::mem::take(&mut whole);
        let Some((key, value)) = entry.split_once(['=', ':']) else {
            faults.add(begun, format!("{entry:?} has no value"), "key = value");
            continue;
        };
        let (key, values) = (key.trim().to_owned(), value.split('|').map(|value| value.trim().to_owned()).collect());
        all.retain(|before| before.key != key); // the last of a key counts
        all.push(Property { key, values, line: begun });
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::experiment::Experiment;

    const SAMPLE: &str = include_str!("../../tests/bristlecone/read-scaling.properties");

    fn files(name: &str) -> Result<String, String> {
        match name {
            "one.properties" => Ok("url=jdbc:postgresql://one/db\nuser=me\npassword=s@cret\n".to_owned()),
            "two.properties" => Ok("url: jdbc:postgresql://two:5433/db\nuser: you\n".to_owned()),
            "odd.properties" => Ok("url=jdbc:postgresql://odd/db\nthreads=99\n".to_owned()),
            _ => Err("there is none".to_owned()),
        }
    }

    #[test]
    fn a_benchmark_is_an_experiment() {
        let experiment = Experiment::parse("read-scaling.properties", SAMPLE, &files).expect("it is valid");
        assert_eq!((experiment.name.as_str(), experiment.cells.len()), ("read-scaling", 2 * 2 * 4));
        assert!(experiment.about.contains("without its autocommit, analyzeCmd"), "{}", experiment.about);
        let cell = &experiment.cells[0];
        let value = |key: &str| cell.settings().into_iter().find(|(known, _)| known == key).map(|(_, value)| value);
        assert_eq!(value("stop.duration").as_deref(), Some("60s"));
        assert_eq!(cell.target.url.as_deref(), Some("postgres://me:s%40cret@one/db"));
        let varied: Vec<&str> = cell.varied.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(varied, ["target.url", "load.clients", "scenario.selectrows"]);
        assert!(!experiment.text.contains("cret"), "no password is kept: {}", experiment.text);
    }

    #[test]
    fn what_is_wrong_is_told_at_its_line() {
        let told = |from: &str, to: &str| {
            assert!(SAMPLE.contains(from), "{from}");
            let errors = Experiment::parse("x.properties", &SAMPLE.replacen(from, to, 1), &files).expect_err("wrong");
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        for (from, to, expected) in [
            ("threads=", "thread=", "x.properties:7:1: unknown key \"thread\", expected threads"),
            ("threads=1|2|4|8", "threads=1|many", "x.properties:7:1: threads is \"1|many\", expected whole numbers"),
            ("threads=1|2|4|8", "threads=0", "x.properties:7:1: clients is"),
            ("ReadScalingAggregates", "ReadEverything", "unknown scenario"),
            ("two.properties", "odd.properties", "odd.properties has another threads than what stands here"),
            ("two.properties", "three.properties", "three.properties can't be read: there is none"),
            ("bound=duration", "bound=both", "bound is \"both\", expected iterations or duration"),
            ("selectrows=", "replicaURL=", "unknown key \"replicaURL\""),
            ("selectrows=", "replicaUrl=", "replicaUrl is \"200|50\", expected jdbc:postgresql://..."),
            ("include=one.properties|two.properties", "url=jdbc:oracle://db", "expected jdbc:postgresql://..."),
            ("selectrows=200|50", "branches=3", "branches"),
        ] {
            let told = told(from, to);
            assert!(told.contains(expected), "{to}: {told}");
        }
    }
}
