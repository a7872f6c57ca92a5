//! Figures with targets: one TOML file lists what is measured, how, and what it should come to.
//!
//! A measure is an experiment, whose results are asked by SQL, or a command that prints lines `figure NAME VALUE [LOW HIGH]`. Several figures
//! may come from one; it is run once. What was measured several times is a median with its interval, and holds where that reaches the target.
//!
//! ```
//! use headwater_lab::figures::Figures;
//!
//! let text = r#"
//!     [measure.load]
//!     experiment = "tpcb.toml"
//!
//!     [[figure]]
//!     name = "own.rate"
//!     measure = "load"
//!     value = "SELECT avg(operations * 1e9 / elapsed_ns) FROM run WHERE state = 'done'"
//!     target = ">= 500"
//! "#;
//! let figures = Figures::parse("figures.toml", text).expect("a valid list");
//! let figure = &figures.figures[0];
//! assert_eq!((figure.group(), figure.target.to_string().as_str()), ("own", ">= 500"));
//! assert!(figure.target.holds(&500.0.into()) && !figure.target.holds(&499.9.into()));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use toml::de::DeTable;

use crate::error::Error;
use crate::reading::{self, Entry, Reader, SpecError, entries};

/// What a file lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// What is run.
    pub measures: Vec<Measure>,
    /// What comes of it, in the order of the file.
    pub figures: Vec<Figure>,
}

/// Something that is run once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name in the file.
    pub name: String,
    /// What.
    pub how: How,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// An experiment's file, beside the list.
    Experiment(String),
    /// A program and its arguments, in the folder of the list. It prints a line `figure NAME VALUE [LOW HIGH]` for each figure.
    Command(Vec<String>),
}

/// A number that should be large enough, or small enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// `GROUP.NAME`.
    pub name: String,
    /// The group that it is measured with, if that is not the one of its name.
    pub with: Option<String>,
    /// What it says.
    pub about: String,
    /// Where it comes from: a place in [`Figures::measures`].
    pub measure: usize,
    /// SQL over an experiment's results: one number, or one of each repetition; with a second column, of several groups.
    pub value: Option<String>,
    /// What it should come to.
    pub target: Target,
}

impl Figure {
    /// The group that it is measured with: what its name begins with, unless it says another.
    pub fn group(&self) -> &str {
        if let Some(with) = &self.with {
            return with;
        }
        self.name.split_once('.').map_or(&self.name, |(group, _)| group)
    }
}

/// `>= NUMBER` or `<= NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    is_least: bool,
    number: f64,
}

/// What was measured: the median of some values, and what it lies between with 95 % confidence, or their least and greatest where they are
/// too few for that (five: 94 %; three: 75 %).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The median, the upper one of an even number.
    pub value: f64,
    /// Not above the value.
    pub low: f64,
    /// Not below it.
    pub high: f64,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Measured {
        Measured { value, low: value, high: value }
    }
}

impl Measured {
    /// Of values that were measured one after the other; none where there are none, or one is no finite number.
    ///
    /// The interval is that of the sign test: as many values lie below the median as coins fall heads.
    pub fn of(values: &[f64]) -> Option<Measured> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = *sorted.get(sorted.len() / 2).filter(|_| sorted.iter().all(|value| value.is_finite()))?;
        let out = outside(sorted.len());
        Some(Measured { value: median, low: sorted[out], high: sorted[sorted.len() - 1 - out] })
    }

    fn is_interval(&self) -> bool {
        self.low < self.high
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if self.is_interval() { write!(f, " ({} to {})", self.low, self.high) } else { Ok(()) }
    }
}

/// How many of so many values may be left out at either end, for the median to lie between the others in 95 of 100 cases.
fn outside(values: usize) -> usize {
    let mut tail = 0.5_f64.powi(values as i32);
    let mut chance = tail;
    let mut out = 0;
    loop {
        chance *= (values - out) as f64 / (out + 1) as f64;
        tail += chance;
        if 2.0 * tail > 0.05 {
            return out;
        }
        out += 1;
    }
}

impl Target {
    /// Whether what was measured is as it should be, as far as its interval tells.
    pub fn holds(&self, measured: &Measured) -> bool {
        if self.is_least { measured.high >= self.number } else { measured.low <= self.number }
    }

    /// Of several that should all be as it says, the one that is furthest from it.
    pub fn worst(&self, all: impl IntoIterator<Item = Measured>) -> Option<Measured> {
        let far = |one: &Measured| if self.is_least { one.value } else { -one.value };
        all.into_iter().min_by(|a, b| far(a).total_cmp(&far(b)))
    }

    fn parse(text: &str) -> Option<Target> {
        let (is_least, number) = match text.split_at_checked(2)? {
            (">=", number) => (true, number),
            ("<=", number) => (false, number),
            _ => return None,
        };
        let number = number.trim().parse().ok().filter(|number: &f64| number.is_finite())?;
        Some(Target { is_least, number })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.is_least { ">=" } else { "<=" }, self.number)
    }
}

impl Figures {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Figures, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Figures::parse(&path.display().to_string(), &text).map_err(Error::Spec)
    }

    /// Reads a text; all that is wrong, in its order.
    pub fn parse(file: &str, text: &str) -> Result<Figures, Vec<SpecError>> {
        reading::read(file, text, |reader, tree| Some(figures(reader, tree)))
    }

    /// The groups, in the order of the file.
    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<_> = self.figures.iter().map(Figure::group).collect();
        let mut seen = std::collections::HashSet::new();
        groups.retain(|group| seen.insert(*group));
        groups
    }
}

/// The figures that a command has printed; lines that are none are left out.
pub fn printed(output: &str) -> BTreeMap<String, Measured> {
    let number = |text: &str| text.parse().ok().filter(|value: &f64| value.is_finite());
    let line = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["figure", name, value] => Some((name.to_owned(), number(value)?.into())),
        ["figure", name, value, low, high] => {
            let measured = Measured { value: number(value)?, low: number(low)?, high: number(high)? };
            Some((name.to_owned(), measured)).filter(|_| (measured.low..=measured.high).contains(&measured.value))
        }
        _ => None,
    };
    output.lines().filter_map(line).collect()
}

fn figures(reader: &mut Reader<'_>, tree: &DeTable<'_>) -> Figures {
    let all = entries(tree);
    reader.allow(&all, "the file", &["measure", "figure"]);
    let tables = |name| all.iter().filter(move |entry| entry.name == name);
    let mut measures = Vec::new();
    for entry in tables("measure").flat_map(|entry| reader.table(entry).unwrap_or_default()).collect::<Vec<_>>() {
        measures.extend(measure(reader, &entry));
    }
    let mut found: Vec<Figure> = Vec::new();
    for entry in tables("figure").flat_map(Entry::items).collect::<Vec<_>>() {
        let Some(figure) = figure(reader, &entry, &measures) else { continue };
        if found.iter().any(|other| other.name == figure.name) {
            reader.error(&entry.span(), format!("two figures have the name {:?}", figure.name), "one of each");
        }
        found.push(figure);
    }
    Figures { measures, figures: found }
}

fn measure(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Measure> {
    let keys = reader.table(entry)?;
    reader.allow(&keys, &format!("[measure.{}]", entry.name), &["experiment", "command"]);
    let how = match keys[..] {
        [key] if key.name == "experiment" => How::Experiment(reader.string(&key)?),
        [key] if key.name == "command" => {
            let words: Option<Vec<_>> = reader.array(&key)?.iter().map(|word| reader.string(word)).collect();
            How::Command(words.filter(|words| !words.is_empty()).or_else(|| reader.mismatch(&key, "a program first"))?)
        }
        _ => return reader.mismatch(entry, "either experiment or command"),
    };
    Some(Measure { name: entry.name.to_owned(), how })
}

fn figure(reader: &mut Reader<'_>, entry: &Entry<'_>, measures: &[Measure]) -> Option<Figure> {
    const KEYS: [&str; 6] = ["name", "about", "group", "measure", "value", "target"];
    let keys = reader.table(entry)?;
    reader.allow(&keys, "[[figure]]", &KEYS);
    let key = |name| keys.iter().find(|key| key.name == name).copied();
    let text = |reader: &mut Reader<'_>, name| key(name).map(|key| reader.string(&key));
    let [Some(name), Some(measure_key), Some(target_key)] = ["name", "measure", "target"].map(key) else {
        return reader.mismatch(entry, "name, measure and target");
    };
    let about = text(reader, "about").unwrap_or(Some(String::new()))?;
    let with = match text(reader, "group") {
        Some(with) => Some(with?),
        None => None,
    };
    let value = match text(reader, "value") {
        Some(value) => Some(value?),
        None => None,
    };
    let measure_name = reader.string(&measure_key)?;
    let Some(measure) = measures.iter().position(|measure| measure.name == measure_name) else {
        if reader.is_clean() {
            let known = measures.iter().map(|measure| measure.name.as_str());
            let found = format!("there is no [measure.{measure_name}]");
            reader.unknown(&measure_key.span(), found, &measure_name, known);
        }
        return None;
    };
    match (&measures[measure].how, &value) {
        (How::Experiment(_), None) => return reader.mismatch(entry, "value: SQL over the experiment's results"),
        (How::Command(_), Some(_)) => return reader.mismatch(entry, "no value: the command prints it"),
        _ => {}
    }
    let target = Target::parse(&reader.string(&target_key)?);
    let target = target.or_else(|| reader.mismatch(&target_key, "\">= NUMBER\" or \"<= NUMBER\""))?;
    let text = reader.string(&name)?;
    let is_name = text.split_once('.').is_some_and(|(group, rest)| !group.is_empty() && !rest.is_empty());
    if !is_name || text.contains(char::is_whitespace) {
        return reader.mismatch(&name, "GROUP.NAME");
    }
    Some(Figure { name: text, with, about, measure, value, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[measure.a]\nexperiment = \"a.toml\"\n[measure.b]\ncommand = [\"b\", \"c\"]\n\
                        [[figure]]\nname = \"x.one\"\nmeasure = \"a\"\nvalue = \"SELECT 1\"\ntarget = \">= 1.5\"\n\
                        [[figure]]\nname = \"y.two\"\nabout = \"a word\"\nmeasure = \"b\"\ntarget = \"<=97\"\n";

    #[test]
    fn a_list_is_read() {
        let list = Figures::parse("f.toml", LIST).expect("a valid list");
        assert_eq!(list.groups(), ["x", "y"]);
        let with = LIST.replace("name = \"y.two\"\n", "name = \"y.two\"\ngroup = \"x\"\n");
        assert_eq!(Figures::parse("f.toml", &with).expect("a valid list").groups(), ["x"]);
        assert_eq!(list.measures[1].how, How::Command(vec!["b".to_owned(), "c".to_owned()]));
        let two = &list.figures[1];
        assert_eq!((two.name.as_str(), two.measure, two.target.to_string().as_str()), ("y.two", 1, "<= 97"));
        assert!(two.target.holds(&97.0.into()) && !two.target.holds(&97.1.into()));
    }

    #[test]
    fn an_interval_that_reaches_the_target_holds() {
        let least = Target::parse(">= 2").expect("a target");
        let most = Target::parse("<= 2").expect("a target");
        let between = |low, value, high| Measured { value, low, high };
        assert!(least.holds(&between(1.0, 1.5, 2.0)) && !least.holds(&between(1.0, 1.5, 1.9)));
        assert!(most.holds(&between(2.0, 2.5, 3.0)) && !most.holds(&between(2.1, 2.5, 3.0)));
        let two = [between(1.0, 1.5, 2.5), between(1.4, 1.8, 1.9)];
        assert_eq!((least.worst(two), most.worst(two)), (Some(two[0]), Some(two[1])));
    }

    #[test]
    fn a_median_lies_between_what_the_sign_test_says() {
        assert_eq!(Measured::of(&[3.0, 1.0, 2.0]), Some(Measured { value: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(Measured::of(&[4.0]), Some(4.0.into()));
        assert_eq!((Measured::of(&[]), Measured::of(&[1.0, f64::NAN])), (None, None));
        // The table of the sign test: values, and how many are left out at either end.
        for (values, out) in [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)] {
            assert_eq!(outside(values), out, "{values}");
        }
        assert_eq!(Measured { value: 2.0, low: 1.0, high: 3.5 }.to_string(), "2 (1 to 3.5)");
        assert_eq!(Measured::from(2.0).to_string(), "2");
    }

    #[test]
    fn what_is_wrong_is_told_at_its_place() {
        let wrong = |from: &str, to: &str| {
            let errors = Figures::parse("f.toml", &LIST.replacen(from, to, 1)).expect_err("it is wrong");
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        for (from, to, told) in [
            ("measure = \"a\"", "measure = \"aa\"", "f.toml:7:11: there is no [measure.aa], expected a or b"),
            ("value = \"SELECT 1\"\n", "", "expected value: SQL over the experiment's results"),
            (">= 1.5", "> 1.5", "f.toml:9:10: target is the string \"> 1.5\", expected \">= NUMBER\" or \"<= NUMBER\""),
            (">= 1.5", ">= many", "expected \">= NUMBER\" or \"<= NUMBER\""),
            ("x.one", "one", "f.toml:6:8: name is the string \"one\", expected GROUP.NAME"),
            ("x.one", "y.two", "two figures have the name \"y.two\""),
            ("[\"b\", \"c\"]", "[]", "expected a program first"),
            ("experiment = \"a.toml\"", "", "expected either experiment or command"),
            ("about", "abuot", "did you mean \"about\"?"),
            ("measure = \"b\"\n", "measure = \"b\"\nvalue = \"SELECT 1\"\n", "expected no value"),
        ] {
            assert!(wrong(from, to).contains(told), "{to}: {}", wrong(from, to));
        }
    }

    #[test]
    fn what_a_command_prints_is_found() {
        let output = "rate a 1\nfigure x.one 0.75 0.5 1\nfigure y 1e3\nfigure z NaN\nfigure w\nsome figure v 1\nfigure u 1 more\n\
                      figure t 3 1 2\n";
        let one = Measured { value: 0.75, low: 0.5, high: 1.0 };
        assert_eq!(printed(output), BTreeMap::from([("x.one".to_owned(), one), ("y".to_owned(), 1000.0.into())]));
    }
}
