//! An Evaluator's file: a group of tables, and a group of threads that read and write them.

use std::collections::HashMap;

use roxmltree::{Document, Node};

use super::{Faults, JDBC, Translation, address, plain, quoted};
use crate::reading::SpecError;

/// What each element may have. Those that say where output goes and how often change nothing here, where all is kept.
const ATTRIBUTES: [(&str, &[&str]); 4] = [
    (
        "EvaluatorConfiguration",
        &["name", "testDuration", "autoCommit", "statusInterval", "xmlFile", "htmlFile", "csvFile"],
    ),
    ("Database", &["driver", "url", "user", "password"]),
    ("TableGroup", &["name", "size"]),
    (
        "ThreadGroup",
        &[
            "name",
            "threadCount",
            "thinkTime",
            "updates",
            "deletes",
            "inserts",
            "readSize",
            "rampUpInterval",
            "rampUpIncrement",
            "reconnectInterval",
            "queryWeight",
        ],
    ),
];

/// An element with its attributes.
struct Element {
    line: usize,
    attributes: HashMap<String, String>,
}

impl Element {
    fn text(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    fn number(&self, name: &str, otherwise: u64, faults: &mut Faults<'_>) -> u64 {
        let Some(text) = self.text(name) else { return otherwise };
        text.parse().unwrap_or_else(|_| {
            faults.add(self.line, format!("{name} is {text:?}"), "a whole number");
            otherwise
        })
    }
}

pub(super) fn translate(name: &str, text: &str, mut faults: Faults<'_>) -> Result<Translation, Vec<SpecError>> {
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            faults.add(error.pos().row as usize, format!("the file is not XML: {error}"), "an EvaluatorConfiguration");
            return faults.end(Translation::default());
        }
    };
    let mut found: HashMap<&str, Vec<Element>> = HashMap::new();
    for node in document.root().descendants().filter(Node::is_element) {
        let line = document.text_pos_at(node.range().start).row as usize;
        let Some((element, known)) = ATTRIBUTES.iter().find(|(known, _)| *known == node.tag_name().name()) else {
            let expected = ATTRIBUTES.map(|(known, _)| known).join(", ");
            faults.add(line, format!("unknown element {:?}", node.tag_name().name()), expected);
            continue;
        };
        for attribute in node.attributes().filter(|attribute| !known.contains(&attribute.name())) {
            faults.add(line, format!("unknown attribute {:?} of {element}", attribute.name()), known.join(", "));
        }
        let attributes = node.attributes().map(|it| (it.name().to_owned(), it.value().to_owned())).collect();
        found.entry(element).or_default().push(Element { line, attributes });
    }
    let mut only = |name: &str| match found.remove(name).unwrap_or_default() {
        elements if elements.len() == 1 => elements.into_iter().next(),
        elements => {
            let line = elements.get(1).map_or(1, |second| second.line);
            faults.add(line, format!("{} elements {name}", elements.len()), "one");
            None
        }
    };
    let all = ["EvaluatorConfiguration", "Database", "TableGroup", "ThreadGroup"].map(&mut only);
    let [Some(configuration), Some(database), Some(tables), Some(threads)] = all else {
        return faults.end(Translation::default());
    };
    let mut translation = Translation::default();
    let title = configuration.text("name").unwrap_or(name);
    translation.line(configuration.line, "name", &quoted(&plain(title)));
    translation.line(1, "scenario.name", &quoted("mixed"));
    database_of(&database, &mut translation, &mut faults);
    translation.line(tables.line, "scenario.size", &tables.number("size", 200, &mut faults).to_string());
    load(&configuration, &threads, &mut translation, &mut faults);
    faults.end(translation)
}

fn database_of(database: &Element, translation: &mut Translation, faults: &mut Faults<'_>) {
    let url = database.text("url").unwrap_or_default();
    match address(url, database.text("user"), database.text("password")) {
        Some(ours) => translation.line(database.line, "target.url", &quoted(&ours)),
        None => faults.add(database.line, format!("url is {url:?}"), JDBC),
    }
}

/// Threads come one group after the other over a time that is not measured here: it is the warm-up.
fn load(configuration: &Element, threads: &Element, translation: &mut Translation, faults: &mut Faults<'_>) {
    let mut of = |name, otherwise| threads.number(name, otherwise, faults);
    let (count, think) = (of("threadCount", 5), of("thinkTime", 0));
    let ramp = count.div_ceil(of("rampUpIncrement", 5).max(1)) * of("rampUpInterval", 0);
    for (theirs, ours, otherwise) in
        [("updates", "updates", 0), ("deletes", "deletes", 0), ("inserts", "inserts", 0), ("readSize", "read_size", 2)]
    {
        let number = of(theirs, otherwise);
        translation.line(threads.line, &format!("scenario.{ours}"), &number.to_string());
    }
    let weight = threads.text("queryWeight").unwrap_or("heavy").to_lowercase();
    if !["heavy", "medium", "light"].contains(&weight.as_str()) {
        faults.add(threads.line, format!("queryWeight is {weight:?}"), "heavy, medium or light");
    }
    for known in ["heavy", "medium", "light"] {
        let part = if known == weight { 100 } else { 0 };
        translation.line(threads.line, &format!("scenario.{known}"), &part.to_string());
    }
    translation.line(threads.line, "load.clients", &count.to_string());
    for (key, time) in [("load.think", format!("{think}ms")), ("load.ramp", format!("{ramp}s"))] {
        translation.line(threads.line, key, &quoted(&time));
    }
    let whole = configuration.number("testDuration", 10, faults);
    if ramp >= whole {
        faults.add(threads.line, format!("threads come for {ramp} s of {whole}"), "a testDuration beyond the ramp");
    }
    translation.line(threads.line, "stop.warmup", &quoted(&format!("{ramp}s")));
    let measured = whole.saturating_sub(ramp);
    translation.line(configuration.line, "stop.duration", &quoted(&format!("{measured}s")));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::experiment::{Arrival, Experiment, StopRule};

    const SAMPLE: &str = include_str!("../../tests/bristlecone/mixed.xml");

    fn parse(text: &str) -> Result<Experiment, Vec<crate::reading::SpecError>> {
        Experiment::parse("mixed.xml", text, &|_| Err("there are no files".to_owned()))
    }

    #[test]
    fn an_evaluator_is_an_experiment() {
        let experiment = parse(SAMPLE).expect("it is valid");
        let [cell] = &experiment.cells[..] else { panic!("one cell") };
        let seconds = Duration::from_secs;
        assert_eq!((cell.load.clients, cell.load.ramp), (100, seconds(50)));
        assert_eq!(cell.load.arrival, Arrival::Closed { think: Duration::from_millis(500) });
        assert_eq!((cell.stop.warmup, cell.stop.rule), (seconds(50), StopRule::Duration(seconds(550))));
        assert_eq!(cell.target.url.as_deref(), Some("postgres://me:secret@localhost/lab"));
        let value = |name: &str| {
            let found = cell.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.to_string());
            found.unwrap_or_default()
        };
        let names = ["size", "updates", "deletes", "inserts", "read_size", "heavy", "light"];
        assert_eq!(names.map(value), ["200", "7", "1", "2", "10", "100", "0"]);
        assert!(!experiment.text.contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_told_at_its_line() {
        for (from, to, expected) in [
            ("size=\"200\"", "size=\"few\"", "mixed.xml:5:1: size is \"few\", expected a whole number"),
            (
                "size=\"200\"",
                "sizes=\"200\"",
                "mixed.xml:5:1: unknown attribute \"sizes\" of TableGroup, expected name, size",
            ),
            ("</TableGroup>", "</TableGroup><Graph/>", "mixed.xml:8:1: unknown element"),
            ("testDuration=\"600\"", "testDuration=\"50\"", "threads come for 50 s of 50"),
            ("jdbc:postgresql:", "jdbc:oracle:", "mixed.xml:4:1: url is"),
            ("threadCount=\"100\"", "threadCount=\"0\"", "mixed.xml:6:1: clients is"),
            ("readSize", "queryWeight=\"none\" readSize", "queryWeight is \"none\""),
            ("</TableGroup>", "", "the file is not XML"),
            ("<TableGroup", "<ThreadGroup/><TableGroup", "2 elements ThreadGroup"),
        ] {
            let errors = parse(&SAMPLE.replacen(from, to, 1)).expect_err("it is wrong");
            let told = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(told.contains(expected), "{to}: {told}");
        }
    }
}
