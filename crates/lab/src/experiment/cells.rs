//! The cross product of the axes, without what is excluded; each cell checked as a whole.

use std::path::Path;
use std::time::Duration;

use super::axes::{ADDRESSES, Axis, Draft, Exclusion};
use super::{Arrival, CELLS_MAX, Cell, Load, SETUPS, Stop, StopRule, TargetSettings};
use crate::http::{HttpSettings, HttpTarget};
use crate::reading::{Reader, Span};
use crate::scenario::{ByDatabase, Drives, Scenario};
use crate::sync::kind::Remotes;
use crate::sync::{FILES_MAX, NO_MARIADB, SyncSettings};
use crate::target::Target;
use crate::value::Value;

/// How many operations wait for a client before one is dropped, unless the experiment says so.
const QUEUE_MAX: i64 = 1_000_000;
/// How long an operation may take, unless the experiment says so.
const TIMEOUT: Duration = Duration::from_secs(30);
/// When a run ends whose interval does not become narrow, unless the experiment says so.
const AT_MOST: Duration = Duration::from_mins(10);
/// In less, what is looked at to find a steady state does not happen.
const STEADY_WITHIN_MIN: Duration = Duration::from_secs(15);

pub(super) fn cells(reader: &mut Reader<'_>, draft: &Draft) -> Vec<Cell> {
    let mut groups: Vec<usize> = draft.axes.iter().map(|axis| axis.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let length = |group: &usize| draft.axes[*group].values.len();
    let count = groups.iter().try_fold(1usize, |product, group| product.checked_mul(length(group)));
    let Some(count) = count.filter(|count| *count <= CELLS_MAX) else {
        let found = "the lists make too many cells";
        let longest = draft.axes.iter().max_by_key(|axis| axis.values.len()).map_or(0..0, |axis| axis.span.clone());
        reader.error(&longest, found, format!("at most {CELLS_MAX}: shorter lists, or zip"));
        return Vec::new();
    };
    let mut is_used = vec![false; draft.exclusions.len()];
    let mut cells = Vec::new();
    for number in 0..count {
        // The last group changes fastest.
        let mut rest = number;
        let mut places = vec![0; draft.axes.len()];
        for group in groups.iter().rev() {
            places[*group] = rest % length(group);
            rest /= length(group);
        }
        let choice = Choice { draft, places: &places };
        if choice.is_excluded(&mut is_used) {
            continue;
        }
        let before = reader.is_clean();
        cells.extend(choice.cell(reader));
        if before && !reader.is_clean() {
            break; // the next cells most likely have the same to complain of
        }
    }
    let unused = draft.exclusions.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    if reader.is_clean() {
        unused.for_each(|(e, _)| reader.error(&e.span, "exclude leaves no cell out", "a combination that there is"));
        if cells.is_empty() {
            reader.error(&(0..0), "every cell is excluded", "at least one to run");
        }
    }
    cells
}

/// A value for each axis.
struct Choice<'d> {
    draft: &'d Draft,
    /// By group, the place of the value.
    places: &'d [usize],
}

impl<'d> Choice<'d> {
    fn value_of(&self, axis: &'d Axis) -> &'d Value {
        &axis.values[self.places[axis.group]].0
    }

    fn axis(&self, key: &str) -> Option<&'d Axis> {
        self.draft.axes.iter().find(|axis| axis.key == key)
    }

    fn value(&self, key: &str) -> Option<&'d Value> {
        self.axis(key).map(|axis| self.value_of(axis))
    }

    /// Where the value stands in the file.
    fn span(&self, key: &str) -> Span {
        self.axis(key).map_or(0..0, |axis| axis.values[self.places[axis.group]].1.clone())
    }

    fn text(&self, key: &str) -> Option<String> {
        self.value(key).map(ToString::to_string)
    }

    fn count(&self, key: &str) -> Option<i64> {
        self.value(key).and_then(|value| if let Value::Integer(number) = value { Some(*number) } else { None })
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.value(key).and_then(|value| if let Value::Real(number) = value { Some(*number) } else { None })
    }

    fn time(&self, key: &str) -> Option<Duration> {
        self.value(key).and_then(|value| if let Value::Time(time) = value { Some(*time) } else { None })
    }

    fn is_excluded(&self, is_used: &mut [bool]) -> bool {
        let meets = |exclusion: &Exclusion| {
            let holds =
                |(key, values): &(String, Vec<Value>)| self.value(key).is_some_and(|value| values.contains(value));
            exclusion.conditions.iter().all(holds)
        };
        let mut is_excluded = false;
        for (exclusion, is_used) in self.draft.exclusions.iter().zip(is_used) {
            if meets(exclusion) {
                (is_excluded, *is_used) = (true, true);
            }
        }
        is_excluded
    }

    fn cell(&self, reader: &mut Reader<'_>) -> Option<Cell> {
        let varied = self.draft.axes.iter().filter(|axis| axis.values.len() > 1);
        let varied = varied.map(|axis| (axis.key.clone(), self.shown(axis))).collect();
        let load = self.load(reader);
        let stop = self.stop(reader);
        let setup_of = SETUPS.map(|key| self.text(key));
        let target = TargetSettings {
            url: self.text("target.url"),
            setup: self.text("target.setup"),
            setup_of: ByDatabase {
                postgresql: setup_of[0].clone(),
                mariadb: setup_of[1].clone(),
                sqlite: setup_of[2].clone(),
            },
            proxy: self.text("target.proxy"),
            replica_url: self.text("target.replica_url"),
        };
        let scenario = self.axis("scenario.name").or_else(|| self.axis("scenario.file"))?;
        let scenario = self.places[scenario.group];
        let parameters = self.parameters(reader, scenario, load.as_ref().map_or(1, |load| load.clients))?;
        Some(Cell { varied, scenario, parameters, target, load: load?, stop: stop? })
    }

    /// A value as tables show it; addresses without what may be a password.
    fn shown(&self, axis: &Axis) -> String {
        let value = self.value_of(axis).to_string();
        if ADDRESSES.contains(&axis.key.as_str()) { crate::address::shown(&value) } else { value }
    }

    fn load(&self, reader: &mut Reader<'_>) -> Option<Load> {
        let arrival = self.text("load.arrival").unwrap_or_else(|| "closed".to_owned());
        let is_open = arrival != "closed";
        let misplaced: &[&str] = if is_open { &["load.think", "load.ramp"] } else { &["load.rate", "load.queue_max"] };
        for key in misplaced.iter().filter(|key| self.axis(key).is_some()) {
            let found = format!("{key} with arrival = {arrival:?}");
            let expected = if is_open {
                "arrival = \"closed\", or no think and no ramp"
            } else {
                "arrival = \"constant\" or \"poisson\" with a rate"
            };
            reader.error(&self.axis(key).map_or(0..0, |axis| axis.span.clone()), found, expected);
        }
        let arrival = if is_open {
            let Some(rate) = self.number("load.rate") else {
                let found = format!("arrival = {arrival:?} without a rate");
                reader.error(&self.span("load.arrival"), found, "rate = operations a second");
                return None;
            };
            let queue_max = self.count("load.queue_max").unwrap_or(QUEUE_MAX) as usize;
            Arrival::Open { rate, is_poisson: arrival == "poisson", queue_max }
        } else {
            Arrival::Closed { think: self.time("load.think").unwrap_or_default() }
        };
        let clients = self.count("load.clients").unwrap_or(1) as usize;
        let threads = self.count("load.threads").map(|threads| threads as usize);
        if threads.is_some_and(|threads| threads > clients) {
            let found = format!("load.threads is {}, load.clients is {clients}", threads.unwrap_or(0));
            reader.error(&self.span("load.threads"), found, "at most as many threads as clients");
        }
        let timeout = self.time("load.timeout").unwrap_or(TIMEOUT);
        if timeout.is_zero() {
            reader.error(&self.span("load.timeout"), "a timeout of nothing", "a time above 0");
        }
        let ramp = self.time("load.ramp").unwrap_or_default();
        if ramp > self.time("stop.warmup").unwrap_or_default() {
            let found = "load.ramp is longer than stop.warmup";
            reader.error(&self.span("load.ramp"), found, "a warm-up in which all clients can begin");
        }
        Some(Load { clients, arrival, ramp, timeout, threads })
    }

    fn stop(&self, reader: &mut Reader<'_>) -> Option<Stop> {
        let rules = ["stop.iterations", "stop.duration", "stop.interval"];
        let mut given: Vec<_> = rules.into_iter().filter_map(|key| self.axis(key)).collect();
        given.sort_by_key(|axis| axis.span.start);
        let [rule] = given[..] else {
            let span = given.get(1).map_or(0..0, |axis| axis.span.clone());
            let found = match given.len() {
                0 => "no stop rule".to_owned(),
                _ => format!("{} beside {}", given[1].key, given[0].key),
            };
            reader.error(&span, found, "one of stop.iterations, stop.duration and stop.interval");
            return None;
        };
        if rule.key != "stop.interval"
            && let Some(at_most) = self.axis("stop.at_most")
        {
            reader.error(&at_most.span, format!("stop.at_most with {}", rule.key), "stop.interval, which it bounds");
        }
        let at_most = self.time("stop.at_most").unwrap_or(AT_MOST);
        for (key, time) in [("stop.duration", self.time("stop.duration")), ("stop.at_most", Some(at_most))] {
            if time.is_some_and(|time| time < Duration::from_millis(1)) {
                reader.error(&self.span(key), format!("{key} is nothing"), "at least 1ms");
            }
        }
        let rule = match (self.count("stop.iterations"), self.time("stop.duration"), self.number("stop.interval")) {
            (Some(iterations), ..) => StopRule::Iterations(iterations as u64),
            (_, Some(duration), _) => StopRule::Duration(duration),
            (.., Some(percent)) => StopRule::Interval { percent, at_most },
            _ => return None,
        };
        let warmup = self.time("stop.warmup").unwrap_or_default();
        let steady_within = self.time("stop.steady_within");
        if steady_within.is_some_and(|time| time < warmup.max(STEADY_WITHIN_MIN)) {
            let expected = format!("at least {STEADY_WITHIN_MIN:?}, and the warm-up's time");
            reader.error(&self.span("stop.steady_within"), "too little time to become steady", &expected);
        }
        Some(Stop { warmup, steady_within, rule })
    }

    /// All parameters of the scenario, and whether its generators are possible with them.
    fn parameters(&self, reader: &mut Reader<'_>, scenario: usize, clients: usize) -> Option<Vec<(String, Value)>> {
        let scenario = self.draft.scenarios.get(scenario)?;
        let with = |(name, default): &(String, Value)| {
            let value = self.value(&format!("scenario.{name}")).unwrap_or(default);
            (name.clone(), value.clone())
        };
        let parameters: Vec<_> = scenario.parameters.iter().map(with).collect();
        let drives = scenario.drives;
        let is_possible = self.address(reader, drives);
        let is_possible = is_possible
            & match scenario.drives {
                Drives::Syncs => self.syncs(reader, &scenario.name, SyncSettings::of(&parameters)),
                Drives::Own => self.syncs(reader, &scenario.name, SyncSettings::of_own(&parameters)),
                Drives::Requests => self.requests(reader, &parameters),
                Drives::Transactions => self.transactions(reader, scenario, &parameters, clients),
            };
        is_possible.then_some(parameters)
    }

    /// Whether the target's address is one of what the scenario measures. A campaign may have another; nothing connects.
    fn address(&self, reader: &mut Reader<'_>, drives: Drives) -> bool {
        let Some(address) = self.text("target.url") else { return true };
        let parsed = if drives == Drives::Requests {
            HttpTarget::parse(&address, self.text("target.proxy").as_deref()).map(|_| None)
        } else {
            Target::parse(&address, Path::new("")).map(Some)
        };
        let why = match parsed {
            Ok(Some(Target::MariaDb(_))) if drives == Drives::Syncs => NO_MARIADB.to_owned(),
            Ok(_) => return true,
            Err(error) => error.to_string(),
        };
        let (found, expected) =
            why.split_once(", expected ").unwrap_or((&why, "an address of what the scenario measures"));
        reader.error(&self.span("target.url"), found, expected);
        false
    }

    /// Whether its generators are possible with these parameters.
    fn transactions(
        &self,
        reader: &mut Reader<'_>,
        scenario: &Scenario,
        parameters: &[(String, Value)],
        clients: usize,
    ) -> bool {
        if self.axis("target.proxy").is_some() {
            reader.error(
                &self.span("target.proxy"),
                "target.proxy with a database",
                "none: it is for requests of HTTP",
            );
            return false;
        }
        if let Err(error) = scenario.check(parameters, clients) {
            // Whoever set a parameter is told there, else where the scenario is named.
            let set = scenario.parameters.iter().map(|(name, _)| format!("scenario.{name}"));
            let key = set.into_iter().find(|key| self.axis(key).is_some());
            let key = key.unwrap_or_else(|| "scenario.name".to_owned());
            let found = format!("scenario {:?} can't {error}", scenario.name);
            reader.error(&self.span(&key), found, "parameters with which it can");
            return false;
        }
        true
    }

    /// Whether requests are possible with these parameters.
    fn requests(&self, reader: &mut Reader<'_>, parameters: &[(String, Value)]) -> bool {
        let impossible = HttpSettings::of(parameters).err();
        if let Some((name, why)) = &impossible {
            let found = format!("scenario \"http\" can't {why}");
            reader.error(&self.span(&self.set(name)), found, "parameters with which it can");
        }
        let mut setups = ["target.setup", "target.replica_url"].into_iter().chain(SETUPS);
        let setup = setups.find(|key| self.axis(key).is_some());
        if let Some(key) = setup {
            let found = format!("{key} with scenario \"http\"");
            reader.error(&self.span(key), found, "none: there is no database");
        }
        impossible.is_none() && setup.is_none()
    }

    /// Where a parameter is set, or else where the scenario is named.
    fn set(&self, parameter: &str) -> String {
        let key = format!("scenario.{parameter}");
        if self.axis(&key).is_some() { key } else { "scenario.name".to_owned() }
    }

    /// Whether syncs are possible so: sets of them, each with these settings.
    fn syncs(
        &self,
        reader: &mut Reader<'_>,
        name: &str,
        settings: Result<SyncSettings, (&'static str, String)>,
    ) -> bool {
        let mut is_possible = true;
        let mut refuse = |key: &str, found: String, expected: &str| {
            let key = if self.axis(key).is_some() { key } else { "scenario.name" };
            reader.error(&self.span(key), found, expected);
            is_possible = false;
        };
        let clients = self.count("load.clients").unwrap_or(1);
        if settings.as_ref().is_ok_and(|settings| settings.remotes == Remotes::Files) && clients > FILES_MAX as i64 {
            let found = format!("{clients} clients with remotes = \"files\"");
            refuse("load.clients", found, &format!("at most {FILES_MAX}: each takes a thread"));
        }
        if let Err((parameter, why)) = settings {
            refuse(
                &format!("scenario.{parameter}"),
                format!("scenario {name:?} can't {why}"),
                "parameters with which it can",
            );
        }
        for key in [
            "load.arrival",
            "load.think",
            "load.ramp",
            "target.setup",
            "target.proxy",
            "target.replica_url",
            "stop.interval",
            "stop.steady_within",
        ]
        .into_iter()
        .chain(SETUPS)
        {
            let is_closed = key == "load.arrival" && self.text(key).is_none_or(|arrival| arrival == "closed");
            if self.axis(key).is_some() && !is_closed {
                refuse(key, format!("{key} with scenario {name:?}"), "none: its clients sync in sets, all at once");
            }
        }
        is_possible
    }
}
