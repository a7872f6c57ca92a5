//! What a set of syncs does, and with what: the parameters of the scenario `sync`.

use std::time::Duration;

use headwater_protocol::message::ChangeOp;

use super::memory::Pace;
use super::purchase;
use crate::link::Link;
use crate::scenario::{Drives, Scenario};
use crate::value::{Value, integer};

/// The scenario's name.
pub const NAME: &str = "sync";

/// The longest time for a row.
const ROW_US_MAX: i64 = 1_000_000;

/// The longest time that a client stays away of its own will, in milliseconds: what the whitepaper tried, and more.
const RETRY_DELAY_MAX: i64 = 300_000;

/// The most clients whose rows are there, and who don't sync.
const OTHERS_MAX: i64 = 1_000_000;

/// The most processors that the server or the database may be confined to.
const CPUS_MAX: i64 = 1_024;

/// The kinds by the names that experiments have for them.
const KINDS: [(&str, Way, ChangeOp); 6] = [
    ("download-inserts", Way::Down, ChangeOp::Insert),
    ("download-updates", Way::Down, ChangeOp::Update),
    ("download-deletes", Way::Down, ChangeOp::Delete),
    ("upload-updates", Way::Up, ChangeOp::Update),
    ("upload-deletes", Way::Up, ChangeOp::Delete),
    ("upload-inserts", Way::Up, ChangeOp::Insert),
];

/// The scenario of a system of one's own.
pub const OWN: &str = "own";

/// Its kinds, and those of Purchase that go the same way.
const OWN_KINDS: [(&str, &str); 2] = [("first-download", "download-inserts"), ("upload", "upload-updates")];

/// Its parameters that the other has too.
const OWN_PARAMETERS: [&str; 11] = [
    "rows",
    "workers",
    "uploaders",
    "backlog",
    "receiving_max",
    "connections_max",
    "retry_delay_ms",
    "link_bits_per_s",
    "link_delay_ms",
    "link_loss_permille",
    "row_us",
];

/// Which way changes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the remotes.
    Down,
    /// From them.
    Up,
}

/// How the purchases stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether they are there at all.
    pub are_there: bool,
    /// Whether they were updated.
    pub is_updated: bool,
}

/// What clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remotes {
    /// Remotes in memory, thousands of them in few threads.
    Memory,
    /// Real ones, each with a file, and a thread while it syncs.
    Files,
}

/// What a run's sets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSettings {
    /// Which way changes go.
    pub way: Way,
    /// What changes.
    pub op: ChangeOp,
    /// Changes of each sync.
    pub rows: i64,
    /// Of them, those of rows that all clients have in common.
    pub common: i64,
    /// Letters of a row's notes.
    pub notes_bytes: usize,
    /// Clients whose rows are there, and who don't sync.
    pub others: i64,
    /// Whether uploads are held against what is there.
    pub detects_conflicts: bool,
    /// Workers of the server.
    pub workers: i64,
    /// Of them, uploaders; 0: as many as the server finds.
    pub uploaders: i64,
    /// Syncs that may wait for a worker.
    pub backlog: i64,
    /// Syncs that the server receives at a time.
    pub receiving_max: i64,
    /// Connections that it keeps open.
    pub connections_max: i64,
    /// How fast and how patient clients are in what is measured.
    pub pace: Pace,
    /// What clients are.
    pub remotes: Remotes,
    /// How many processors the server may run on; none: all of them.
    pub server_cpus: Option<usize>,
    /// How many processors the database may run on.
    pub database_cpus: Option<usize>,
}

/// The scenario, as experiments choose it.
pub fn scenario() -> Scenario {
    let number = |name: &str, number| (name.to_owned(), Value::Integer(number));
    Scenario {
        name: NAME.to_owned(),
        drives: Drives::Syncs,
        tables: purchase::TABLES.map(str::to_owned).to_vec(),
        parameters: vec![
            ("kind".to_owned(), Value::Text(KINDS[0].0.to_owned())),
            number("rows", 100),
            number("notes_bytes", purchase::NOTES_BYTES as i64),
            ("remotes".to_owned(), Value::Text("memory".to_owned())),
            number("common_percent", 0),
            number("others", 0),
            ("conflicts".to_owned(), Value::Text("detected".to_owned())),
            number("workers", 5),
            number("uploaders", 0),
            number("backlog", 200),
            number("receiving_max", 200),
            number("connections_max", 2_000),
            number("retry_delay_ms", 0),
            number("link_bits_per_s", 0),
            number("link_delay_ms", 0),
            number("link_loss_permille", 0),
            number("row_us", 0),
            number("server_cpus", 0),
            number("database_cpus", 0),
        ],
        constants: Vec::new(),
        prepare: None,
        transactions: Vec::new(),
        checks: Vec::new(),
    }
}

/// The scenario of a system of one's own, as experiments choose it.
pub fn own() -> Scenario {
    let purchase = scenario();
    let shared = purchase.parameters.into_iter().filter(|(name, _)| OWN_PARAMETERS.contains(&name.as_str()));
    let of_server = |(name, value): (String, Value)| match name.as_str() {
        "workers" => (name, Value::Integer(0)),
        _ => (name, value),
    };
    let kind = ("kind".to_owned(), Value::Text(OWN_KINDS[0].0.to_owned()));
    Scenario {
        name: OWN.to_owned(),
        drives: Drives::Own,
        tables: Vec::new(),
        parameters: std::iter::once(kind).chain(shared.map(of_server)).collect(),
        ..scenario()
    }
}

impl SyncSettings {
    /// From the parameters of the scenario of one's own.
    pub fn of_own(parameters: &[(String, Value)]) -> Result<SyncSettings, (&'static str, String)> {
        let mut all = scenario().parameters;
        for (name, value) in parameters {
            let value = match (name.as_str(), OWN_KINDS.iter().find(|(own, _)| *own == value.to_string())) {
                ("kind", Some((_, same))) => Value::Text((*same).to_owned()),
                ("kind", None) => {
                    let names = OWN_KINDS.map(|(name, _)| name).join(", ");
                    return Err(("kind", format!("be of the kind {:?}, only {names}", value.to_string())));
                }
                // As many as a server that runs has, or those of the other scenario.
                ("workers", _) if *value == Value::Integer(0) => continue,
                _ => value.clone(),
            };
            all.iter_mut().filter(|(known, _)| known == name).for_each(|(_, known)| *known = value.clone());
        }
        SyncSettings::of(&all)
    }

    /// From the scenario's parameters; an error has the name of the one that is not possible, and why.
    pub fn of(parameters: &[(String, Value)]) -> Result<SyncSettings, (&'static str, String)> {
        let value = |name: &str| parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let number = |name, range| integer(parameters, name, range);
        let kind = value("kind").map(ToString::to_string).unwrap_or_default();
        let Some((_, way, op)) = KINDS.into_iter().find(|(name, ..)| *name == kind) else {
            let names = KINDS.map(|(name, ..)| name).join(", ");
            return Err(("kind", format!("be of the kind {kind:?}, only {names}")));
        };
        let rows = number("rows", 1..=purchase::ROWS_MAX)?;
        let percent = number("common_percent", 0..=100)?;
        let detects_conflicts = match value("conflicts").map(ToString::to_string).unwrap_or_default().as_str() {
            "detected" => true,
            "off" if way == Way::Down => {
                return Err(("conflicts", "have conflicts off in a download: nothing is uploaded".to_owned()));
            }
            "off" => false,
            other => return Err(("conflicts", format!("have conflicts = {other:?}, only detected, off"))),
        };
        let workers = number("workers", 0..=1_000)?;
        let uploaders = match number("uploaders", 0..=1_000)? {
            0 => workers,
            uploaders if workers == 0 => uploaders,
            uploaders if uploaders > workers => {
                return Err(("uploaders", format!("have {uploaders} uploaders among {workers} workers")));
            }
            uploaders => uploaders,
        };
        let link = Link::of(parameters)?;
        let row = Duration::from_micros(number("row_us", 0..=ROW_US_MAX)? as u64);
        let retry_delay = Duration::from_millis(number("retry_delay_ms", 0..=RETRY_DELAY_MAX)? as u64);
        let retry_delay = (!retry_delay.is_zero()).then_some(retry_delay);
        let backlog = number("backlog", 0..=1_000_000)?;
        let receiving_max = number("receiving_max", 1..=1_000_000)?;
        let connections_max = number("connections_max", 1..=1_000_000)?;
        let pace = Pace { link, row, retry_delay, patience: None };
        let remotes = remotes(&value("remotes").map(ToString::to_string).unwrap_or_default(), &pace)?;
        let common = rows * percent / 100;
        let notes_bytes = number("notes_bytes", 1..=purchase::NOTES_BYTES_MAX)? as usize;
        let others = number("others", 0..=OTHERS_MAX)?;
        let cpus = |name| Ok(Some(number(name, 0..=CPUS_MAX)? as usize).filter(|cpus| *cpus > 0));
        let (server_cpus, database_cpus) = (cpus("server_cpus")?, cpus("database_cpus")?);
        Ok(SyncSettings {
            way,
            op,
            rows,
            common,
            notes_bytes,
            others,
            detects_conflicts,
            workers,
            uploaders,
            backlog,
            receiving_max,
            connections_max,
            pace,
            remotes,
            server_cpus,
            database_cpus,
        })
    }

    /// With as many workers as the server turned out to have.
    #[must_use]
    pub fn with_workers(self, workers: i64) -> SyncSettings {
        SyncSettings { workers, uploaders: self.uploaders.min(workers), ..self }
    }

    /// A setting that only a server takes which the lab starts, if one is given, and why it is of no use otherwise.
    pub fn only_of_a_start(&self) -> Option<(&'static str, &'static str)> {
        let usual = SyncSettings::of(&scenario().parameters).ok()?;
        let given = [
            ("uploaders", self.uploaders != self.workers),
            ("backlog", self.backlog != usual.backlog),
            ("receiving_max", self.receiving_max != usual.receiving_max),
            ("connections_max", self.connections_max != usual.connections_max),
        ];
        let (name, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
        Some((name, "the server runs already, as somebody else has set it; leave it out"))
    }

    /// How purchases stand before a set.
    pub fn before(self) -> Standing {
        Standing { are_there: self.op != ChangeOp::Insert, is_updated: false }
    }

    /// And after it.
    pub fn after(self) -> Standing {
        Standing { are_there: self.op != ChangeOp::Delete, is_updated: self.op == ChangeOp::Update }
    }

    /// What takes a set back.
    pub fn back(self) -> ChangeOp {
        match self.op {
            ChangeOp::Insert => ChangeOp::Delete,
            ChangeOp::Update => ChangeOp::Update,
            ChangeOp::Delete => ChangeOp::Insert,
        }
    }
}

/// The workers that an experiment of one's own system says; none: as many as its server has.
pub(crate) fn workers_given(parameters: &[(String, Value)]) -> Option<u64> {
    let given = parameters.iter().find(|(name, _)| name == "workers").map(|(_, value)| value);
    match given {
        Some(Value::Integer(workers)) => u64::try_from(*workers).ok().filter(|workers| *workers > 0),
        _ => None,
    }
}

/// Complains of more processors than there are.
pub(crate) fn refuse_processors(settings: &SyncSettings) -> Result<(), String> {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (name, cpus) in [("server_cpus", settings.server_cpus), ("database_cpus", settings.database_cpus)] {
        if let Some(cpus) = cpus.filter(|cpus| *cpus > all) {
            return Err(format!("scenario.{name} = {cpus}: there are {all} processors, not {cpus}"));
        }
    }
    Ok(())
}

/// What clients are, by the name that experiments have for it.
fn remotes(name: &str, pace: &Pace) -> Result<Remotes, (&'static str, String)> {
    match name {
        "memory" => Ok(Remotes::Memory),
        "files" if *pace != Pace::default() => {
            let what =
                "have files with a link, row_us or retry_delay_ms: only remotes in memory are slowed down".to_owned();
            Err(("remotes", what))
        }
        "files" => Ok(Remotes::Files),
        other => Err(("remotes", format!("have remotes = {other:?}, only memory, files"))),
    }
}
