//! What limited a run, with the evidence.
//!
//! An operation's time is spent in one place at a time: running in the database, waiting there for a lock or for the disk, or outside of
//! it, in the lab or under way. How many sessions were seen in each place on average is how many clients were there (Little's law holds
//! for parts as for the whole), so the place where most were is what to mend first.
//!
//! *Caveats.* A statement that runs or is ready to looks the same to PostgreSQL; both are counted as processor time of the database. What
//! is none of the places named here (a timer, another process of the database, a standby) is *unknown*, with the wait's name. Without the
//! database's own word (SQLite) only the lab's processor time is known.

mod requests;
mod syncs;

use std::fmt;
use std::time::Duration;

use crate::experiment::{Arrival, Load};
use crate::harness::{AgentsUse, Measured};
use crate::sampling::{DATABASE, LAB, ProcessUse, SERVER, Sampled, Wait, Waits};
pub(crate) use requests::verdict_of_requests;
pub(crate) use syncs::{KnownSyncs, shares, verdict_of_syncs};

/// A place that has at least this part of the clients is named.
const MOST: f64 = 0.5;
/// Threads that are busy, or ready to be, for this part of their time have no more to give.
const SATURATED: f64 = 0.8;
/// An open load that is done to this part, with nothing dropped, was all done.
const ALL: f64 = 0.98;

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// The load that was asked for, or the lab itself.
    Client,
    /// The way between the lab and the database, or the server of syncs.
    Link,
    /// The processors of the server of syncs.
    Server,
    /// That it has no more workers, or uploaders.
    Workers,
    /// The processors of the database.
    DatabaseCpu,
    /// Locks in the database.
    Locks,
    /// The database's disk.
    Disk,
    /// What was seen does not tell.
    Unknown,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bottleneck::Client => "client",
            Bottleneck::Link => "link",
            Bottleneck::Server => "server",
            Bottleneck::Workers => "workers",
            Bottleneck::DatabaseCpu => "database CPU",
            Bottleneck::Locks => "locks",
            Bottleneck::Disk => "disk",
            Bottleneck::Unknown => "unknown",
        })
    }
}

/// What limited a run, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What.
    pub bottleneck: Bottleneck,
    /// A sentence with the figures.
    pub evidence: String,
}

/// What is known of a run.
pub(crate) struct Known<'k> {
    pub(crate) load: &'k Load,
    /// That the clients share.
    pub(crate) threads: usize,
    /// Whether the database works on the clients' own threads.
    pub(crate) is_embedded: bool,
    pub(crate) measured: &'k Measured,
    pub(crate) sampled: &'k Sampled,
}

/// Sessions by where they were, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Places {
    database_cpu: f64,
    locks: f64,
    disk: f64,
    other: f64,
    outside: f64,
}

/// Of a run that is shorter there is a sample or two, which tell of a moment.
pub(super) const SAMPLED_MIN: Duration = Duration::from_secs(1);

/// Names what limited the run.
pub(crate) fn verdict(known: &Known<'_>) -> Verdict {
    let by_the_load = asked_for(known).or_else(|| thought(known)).or_else(|| of_agents(known.measured));
    if let Some(evidence) = by_the_load {
        return Verdict { bottleneck: Bottleneck::Client, evidence };
    }
    if known.measured.elapsed < SAMPLED_MIN {
        return Verdict { bottleneck: Bottleneck::Unknown, evidence: "the run was too short to be sampled".to_owned() };
    }
    let (bottleneck, evidence) = if known.is_embedded { embedded(known) } else { by_places(known) };
    Verdict { bottleneck, evidence }
}

/// An open load that was done as it came.
fn asked_for(known: &Known<'_>) -> Option<String> {
    let Arrival::Open { rate, .. } = known.load.arrival else { return None };
    let done = known.measured.throughput();
    (known.measured.dropped == 0 && done >= ALL * rate)
        .then(|| format!("{done:.0} operations a second of the {rate:.0} that were asked for, none dropped"))
}

/// Clients that mostly think.
fn thought(known: &Known<'_>) -> Option<String> {
    let Arrival::Closed { think } = known.load.arrival else { return None };
    let part = 1.0 - in_operations(known) / known.load.clients as f64;
    (!think.is_zero() && known.measured.errors.is_empty() && part >= MOST)
        .then(|| format!("clients think for {} of their time", percent(part)))
}

/// Clients that were in an operation, on average.
fn in_operations(known: &Known<'_>) -> f64 {
    let Measured { elapsed, service, .. } = known.measured;
    if elapsed.is_zero() { 0.0 } else { service.mean().as_secs_f64() * service.len() as f64 / elapsed.as_secs_f64() }
}

/// Agents whose threads have no more to give.
fn of_agents(measured: &Measured) -> Option<String> {
    let AgentsUse { cpu, span, threads } = measured.agents?;
    let used = if span.is_zero() { 0.0 } else { cpu.as_secs_f64() / span.as_secs_f64() };
    (threads > 0 && used >= SATURATED * threads as f64).then(|| {
        format!(
            "the {threads} threads of the agents have {used:.2} processors; take more agents, or raise load.threads"
        )
    })
}

/// Clients that had nothing to do, on average.
fn idle(known: &Known<'_>) -> f64 {
    let is_busy = matches!(known.load.arrival, Arrival::Closed { think } if think.is_zero());
    if is_busy { 0.0 } else { (known.load.clients as f64 - in_operations(known)).max(0.0) }
}

/// The database works on the clients' threads, and does not tell what it waits for.
fn embedded(known: &Known<'_>) -> (Bottleneck, String) {
    let Some((used, ready)) = processors(known.sampled.process(LAB)) else {
        return (Bottleneck::Unknown, "the run was too short to be sampled".to_owned());
    };
    let part = (used + ready) / in_operations(known).max(f64::MIN_POSITIVE);
    let evidence = format!(
        "{used:.2} processors in use by the clients' threads, where SQLite works, {ready:.2} threads waiting for one"
    );
    if part >= MOST {
        (Bottleneck::DatabaseCpu, evidence)
    } else {
        (Bottleneck::Unknown, format!("{evidence}; SQLite does not tell what else it waits for"))
    }
}

fn by_places(known: &Known<'_>) -> (Bottleneck, String) {
    let lab = processors(known.sampled.process(LAB));
    if let Some((used, ready)) = lab
        && used + ready >= SATURATED * known.threads as f64
    {
        let evidence = format!(
            "the lab's {} threads have {used:.2} processors and wait for {ready:.2} more; raise load.threads or use another machine",
            known.threads
        );
        return (Bottleneck::Client, evidence);
    }
    let waits = match &known.sampled.waits {
        Ok(waits) => waits,
        Err(why) => return (Bottleneck::Unknown, format!("what the database's sessions did is not known: {why}")),
    };
    let places = Places::of(waits, known);
    let all = places.sum();
    let (bottleneck, most) = places.most(lab);
    let part = if all > 0.0 { most / all } else { 0.0 };
    let figures = places.to_string();
    if part < MOST {
        return (Bottleneck::Unknown, format!("no place has half of the clients: {figures}"));
    }
    (bottleneck, format!("{} of the clients: {figures}{}", percent(part), detail_of(bottleneck, waits, known.sampled)))
}

impl Places {
    fn of(waits: &Waits, known: &Known<'_>) -> Places {
        let mut places = Places::of_sessions(waits);
        // A session that has a statement before it but no processor yet still looks idle.
        if let Some((used, ready)) = processors(known.sampled.process(DATABASE)) {
            let unseen = (used + ready - places.database_cpu).clamp(0.0, places.outside);
            places.database_cpu += unseen;
            places.outside -= unseen;
        }
        places.outside = (places.outside - idle(known)).max(0.0);
        places
    }

    fn of_sessions(waits: &Waits) -> Places {
        let mut places = Places::default();
        for wait in &waits.waits {
            *places.of_wait(wait) += wait.seen as f64 / waits.looks as f64;
        }
        places
    }

    fn of_wait(&mut self, wait: &Wait) -> &mut f64 {
        match (wait.state.as_str(), wait.kind.as_str(), wait.event.as_str()) {
            ("active", "", _) => &mut self.database_cpu,
            // Sessions that wait for another's write of the log wait for the disk.
            ("active", "IO", _) | ("active", "LWLock", "WALWrite" | "WALBufMapping") => &mut self.disk,
            ("active", "Lock" | "LWLock" | "BufferPin", _) => &mut self.locks,
            ("active", "Client", _) => &mut self.outside,
            ("active", ..) => &mut self.other,
            _ => &mut self.outside,
        }
    }

    fn sum(&self) -> f64 {
        self.database_cpu + self.locks + self.disk + self.other + self.outside
    }

    /// The place with most clients. Those outside of the database are in the lab as far as its threads were busy, or ready to be.
    fn most(&self, lab: Option<(f64, f64)>) -> (Bottleneck, f64) {
        let is_in_lab = lab.is_some_and(|(used, ready)| used + ready >= MOST * self.outside);
        let outside = if is_in_lab { Bottleneck::Client } else { Bottleneck::Link };
        let all = [
            (Bottleneck::DatabaseCpu, self.database_cpu),
            (Bottleneck::Locks, self.locks),
            (Bottleneck::Disk, self.disk),
            (Bottleneck::Unknown, self.other),
            (outside, self.outside),
        ];
        all.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other)).unwrap_or((Bottleneck::Unknown, 0.0))
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Places { database_cpu, locks, disk, other, outside } = self;
        write!(f, "{database_cpu:.2} run in the database, {locks:.2} wait for locks, {disk:.2} for the disk, ")?;
        write!(f, "{other:.2} for something else, {outside:.2} are outside of it")
    }
}

/// What most of those in the place were at.
fn detail_of(bottleneck: Bottleneck, waits: &Waits, sampled: &Sampled) -> String {
    let mut scratch = Places::default();
    let mut is_there = |wait: &&Wait| {
        scratch = Places::default();
        *scratch.of_wait(wait) += 1.0;
        scratch.most(None).0 == bottleneck
    };
    let used = |name| processors(sampled.process(name)).map_or("?".to_owned(), |(used, _)| format!("{used:.2}"));
    match bottleneck {
        Bottleneck::Client | Bottleneck::Link | Bottleneck::Server | Bottleneck::Workers => {
            format!("; the lab uses {} processors", used(LAB))
        }
        Bottleneck::DatabaseCpu => {
            let statement = waits.waits.iter().find(&mut is_there).map_or("", |wait| wait.statement.as_str());
            format!("; the database uses {} processors, most in: {}", used(DATABASE), one_line(statement))
        }
        Bottleneck::Locks | Bottleneck::Disk | Bottleneck::Unknown => {
            let Some(most) = waits.waits.iter().find(&mut is_there) else { return String::new() };
            let behind = waits.blocked.iter().find(|blocked| blocked.statement == most.statement);
            let behind = behind.map_or(String::new(), |blocked| format!(", behind: {}", one_line(&blocked.behind)));
            format!("; most at {} {} in: {}{behind}", most.kind, most.event, one_line(&most.statement))
        }
    }
}

/// Processors that the lab, the database and the server of syncs had in use, on average; none: not all of it is known.
pub(crate) fn processors_in_use(sampled: &Sampled, is_embedded: bool, has_server: bool) -> Option<f64> {
    let used = |name| processors(sampled.process(name)).map(|(used, _)| used);
    let database = if is_embedded { 0.0 } else { used(DATABASE)? };
    let server = if has_server { used(SERVER)? } else { 0.0 };
    Some(used(LAB)? + database + server)
}

/// Processors in use on average, and threads that were ready and had none.
fn processors(series: &[ProcessUse]) -> Option<(f64, f64)> {
    let span: f64 = series.iter().map(|sample| sample.span.as_secs_f64()).sum();
    let sum = |of: fn(&ProcessUse) -> f64| series.iter().map(of).sum::<f64>() / span;
    (span > 0.0).then(|| (sum(|sample| sample.cpu.as_secs_f64()), sum(|sample| sample.ready.as_secs_f64())))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// A statement's beginning, in one line.
fn one_line(sql: &str) -> String {
    let words: Vec<&str> = sql.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() > 80 { line.chars().take(79).chain(['…']).collect() } else { line }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::Instant;

    use super::*;
    use crate::harness::{Attempts, Ended, Histogram, Tally};
    use crate::link::Link;
    use crate::sampling::MachineUse;

    const SECOND: Duration = Duration::from_secs(1);

    /// Four clients, of which each was in an operation all the time.
    fn measured() -> Measured {
        let mut service = Histogram::default();
        service.record_many(10_000_000, 4_000);
        Measured {
            ended: Ended::Duration,
            from: Instant::now(),
            warmup: Duration::ZERO,
            is_steady: None,
            elapsed: 10 * SECOND,
            sets: None,
            operations: 4_000,
            response: service.clone(),
            service,
            errors: BTreeMap::new(),
            attempts: Attempts::default(),
            late: 0,
            dropped: 0,
            longest_queue: 0,
            series: Vec::new(),
            tally: Tally::default(),
            agents: None,
        }
    }

    fn load(arrival: Arrival) -> Load {
        Load { clients: 4, arrival, ramp: Duration::ZERO, timeout: SECOND, threads: None }
    }

    fn process(name: &str, cpu: f64, ready: f64) -> (String, Vec<ProcessUse>) {
        let [cpu, ready] = [cpu, ready].map(|processors| Duration::from_secs_f64(processors * 10.0));
        (name.to_owned(), vec![ProcessUse { at: 10 * SECOND, span: 10 * SECOND, cpu, ready, ..ProcessUse::default() }])
    }

    /// Sessions, with hundred looks: state, kind, event, how many on average.
    fn waits(all: &[(&str, &str, &str, f64)]) -> Waits {
        let wait = |(state, kind, event, sessions): &(&str, &str, &str, f64)| Wait {
            state: (*state).to_owned(),
            kind: (*kind).to_owned(),
            event: (*event).to_owned(),
            statement: format!("S {event}"),
            seen: (sessions * 100.0) as u64,
        };
        Waits { looks: 100, waits: all.iter().map(wait).collect(), looks_at_blockers: 10, blocked: Vec::new() }
    }

    fn named(lab: (f64, f64), database: (f64, f64), sessions: &[(&str, &str, &str, f64)]) -> Bottleneck {
        let processes = vec![process(LAB, lab.0, lab.1), process(DATABASE, database.0, database.1)];
        named_of(&load(Arrival::Closed { think: Duration::ZERO }), &measured(), processes, Ok(waits(sessions)))
    }

    fn named_of(
        load: &Load,
        measured: &Measured,
        processes: Vec<(String, Vec<ProcessUse>)>,
        waits: Result<Waits, String>,
    ) -> Bottleneck {
        let sampled = Sampled { machine: Vec::new(), processes, waits, server: None };
        verdict(&Known { load, threads: 2, is_embedded: false, measured, sampled: &sampled }).bottleneck
    }

    #[test]
    fn the_place_with_most_clients_is_named() {
        let little = (0.1, 0.0);
        let idle = ("idle", "Client", "ClientRead", 0.5);
        for (state, kind, event, expected) in [
            ("active", "", "", Bottleneck::DatabaseCpu),
            ("active", "Lock", "transactionid", Bottleneck::Locks),
            ("active", "LWLock", "WALInsert", Bottleneck::Locks),
            ("active", "LWLock", "WALWrite", Bottleneck::Disk),
            ("active", "IO", "WALSync", Bottleneck::Disk),
            ("active", "Client", "ClientWrite", Bottleneck::Link),
            ("idle in transaction", "Client", "ClientRead", Bottleneck::Link),
            ("active", "IPC", "SyncRep", Bottleneck::Unknown),
        ] {
            assert_eq!(named(little, little, &[(state, kind, event, 3.5), idle]), expected, "{state} {kind} {event}");
        }
        let even = [("active", "", "", 1.4), ("active", "Lock", "tuple", 1.3), ("active", "IO", "WALSync", 1.3)];
        assert_eq!(named(little, (1.4, 0.0), &even), Bottleneck::Unknown, "no place has half");
    }

    #[test]
    fn a_run_of_less_than_a_second_is_unknown() {
        let all = [("idle", "Client", "ClientRead", 4.0)];
        let load = load(Arrival::Closed { think: Duration::ZERO });
        for (elapsed, expected) in [(SECOND / 10, Bottleneck::Unknown), (SECOND, Bottleneck::Link)] {
            let short = Measured { elapsed, ..measured() };
            let processes = vec![process(LAB, 0.1, 0.0), process(DATABASE, 0.1, 0.0)];
            assert_eq!(named_of(&load, &short, processes, Ok(waits(&all))), expected, "{elapsed:?}");
        }
    }

    #[test]
    fn clients_outside_are_in_the_lab_if_it_is_busy() {
        let outside = [("idle", "Client", "ClientRead", 1.9), ("active", "", "", 0.1)];
        assert_eq!(named((0.2, 0.0), (0.1, 0.0), &outside), Bottleneck::Link);
        assert_eq!(named((1.1, 0.0), (0.1, 0.0), &outside), Bottleneck::Client);
        assert_eq!(named((0.3, 0.8), (0.1, 0.0), &outside), Bottleneck::Client, "ready to run is as good as busy");
        assert_eq!(
            named((0.2, 0.0), (0.9, 0.9), &outside),
            Bottleneck::DatabaseCpu,
            "sessions that wait for a processor look idle"
        );
        let active = [("active", "", "", 3.9), ("idle", "Client", "ClientRead", 0.1)];
        assert_eq!(named((1.2, 0.5), (1.0, 0.0), &active), Bottleneck::Client, "its threads have no more to give");
    }

    #[test]
    fn a_load_that_is_done_as_it_came_limits_itself() {
        let open = |rate| load(Arrival::Open { rate, is_poisson: true, queue_max: 10 });
        let busy = || Ok(waits(&[("active", "", "", 4.0)]));
        let of = |load: &Load, measured: &Measured| named_of(load, measured, vec![process(LAB, 0.1, 0.0)], busy());
        assert_eq!(of(&open(400.0), &measured()), Bottleneck::Client);
        assert_eq!(of(&open(500.0), &measured()), Bottleneck::DatabaseCpu, "400 of 500 a second is not all");
        assert_eq!(of(&open(400.0), &Measured { dropped: 1, ..measured() }), Bottleneck::DatabaseCpu);
        let thinking = load(Arrival::Closed { think: SECOND });
        assert_eq!(of(&thinking, &measured()), Bottleneck::DatabaseCpu, "they are in operations all the time");
        assert_eq!(of(&thinking, &Measured { elapsed: 30 * SECOND, ..measured() }), Bottleneck::Client);
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let closed = load(Arrival::Closed { think: Duration::ZERO });
        let of = |processes, waits| named_of(&closed, &measured(), processes, waits);
        assert_eq!(of(Vec::new(), Err("no".to_owned())), Bottleneck::Unknown);
        assert_eq!(
            of(Vec::new(), Ok(waits(&[("active", "Lock", "tuple", 4.0)]))),
            Bottleneck::Locks,
            "another machine's"
        );
        assert_eq!(of(vec![process(LAB, 1.7, 0.0)], Err("no".to_owned())), Bottleneck::Client);
    }

    #[test]
    fn sqlite_works_on_the_clients_threads() {
        let closed = load(Arrival::Closed { think: Duration::ZERO });
        let of = |cpu, ready| {
            let sampled = Sampled {
                machine: Vec::new(),
                processes: vec![process(LAB, cpu, ready)],
                waits: Err(String::new()),
                server: None,
            };
            let measured = measured();
            verdict(&Known { load: &closed, threads: 4, is_embedded: true, measured: &measured, sampled: &sampled })
                .bottleneck
        };
        assert_eq!(of(1.5, 1.0), Bottleneck::DatabaseCpu);
        assert_eq!(of(0.5, 0.1), Bottleneck::Unknown, "four clients wait, nobody says for what");
    }

    #[test]
    fn agents_have_threads_that_can_be_at_their_end() {
        let closed = load(Arrival::Closed { think: Duration::ZERO });
        let of = |cpu, threads| {
            let agents = Some(AgentsUse { cpu, span: 10 * SECOND, threads });
            let busy = Ok(waits(&[("active", "", "", 4.0)]));
            named_of(&closed, &Measured { agents, ..measured() }, vec![process(LAB, 0.1, 0.0)], busy)
        };
        assert_eq!(of(35 * SECOND, 4), Bottleneck::Client);
        assert_eq!(of(35 * SECOND, 8), Bottleneck::DatabaseCpu);
        let one = AgentsUse { cpu: SECOND, span: 3 * SECOND, threads: 2 };
        let sum = one + AgentsUse { cpu: SECOND, span: SECOND, threads: 1 };
        assert_eq!(sum, AgentsUse { cpu: 2 * SECOND, span: 3 * SECOND, threads: 3 });
    }

    #[test]
    fn requests_are_limited_by_a_server_without_processors() {
        let named = |cache: (f64, f64), machine_busy: f64| {
            let (load, measured) = (load(Arrival::Closed { think: Duration::ZERO }), measured());
            let of = |part: f64| (10 * SECOND).mul_f64(part);
            let machine = MachineUse {
                busy: of(4.0 * machine_busy),
                idle: of(4.0 * (1.0 - machine_busy)),
                ..MachineUse::default()
            };
            let processes =
                vec![process(LAB, 0.3, 0.0), process("squid", cache.0, cache.1), process("other", 0.1, 0.0)];
            let sampled = Sampled { machine: vec![machine], processes, waits: Err(String::new()), server: None };
            let known = Known { load: &load, threads: 4, is_embedded: false, measured: &measured, sampled: &sampled };
            verdict_of_requests(&known, Link::default(), false)
        };
        let one_thread = named((0.95, 0.05), 0.4);
        assert_eq!(one_thread.bottleneck, Bottleneck::Server);
        assert!(one_thread.evidence.starts_with("squid has 0.95 processors"), "{}", one_thread.evidence);
        assert_eq!(named((0.5, 0.1), 0.4).bottleneck, Bottleneck::Unknown);
        assert_eq!(named((2.4, 1.5), 0.4).bottleneck, Bottleneck::Unknown, "the machine has room");
        assert_eq!(named((2.4, 1.5), 0.9).bottleneck, Bottleneck::Server);
    }

    #[test]
    fn requests_are_limited_by_full_links_or_by_the_lab() {
        let named = |link_bits: u64, received_bytes: u64, busy: f64| {
            let mut measured = measured();
            measured.attempts.traffic.received_bytes = received_bytes;
            let processes = vec![process(LAB, busy, 0.0)];
            let waits = Err("there is no database".to_owned());
            let sampled = Sampled { machine: Vec::new(), processes, waits, server: None };
            let load = load(Arrival::Closed { think: Duration::ZERO });
            let known = Known { load: &load, threads: 1, is_embedded: false, measured: &measured, sampled: &sampled };
            let link = Link { bits_per_s: link_bits, ..Link::default() };
            verdict_of_requests(&known, link, false).bottleneck
        };
        // Four clients in ten seconds: 5,000,000 bytes at 1 Mbit/s each.
        assert_eq!(named(1_000_000, 4_100_000, 0.1), Bottleneck::Link);
        assert_eq!(named(1_000_000, 3_900_000, 0.1), Bottleneck::Unknown);
        assert_eq!(named(0, 4_100_000, 0.1), Bottleneck::Unknown, "there is no link");
        assert_eq!(named(0, 4_100_000, 0.9), Bottleneck::Client, "its one thread is busy");
    }
}
