//! What limited sets of syncs.
//!
//! A sync waits for a worker until one is free, so where clients are says little: what limits is what the workers do. Whose processors
//! are at their end is asked first, then what workers wait for in the database, then whether there are workers enough.

use std::time::Duration;

use super::{Bottleneck, MOST, Places, SATURATED, Verdict, detail_of, of_agents, percent, processors};
use crate::harness::{Measured, SetTimes};
use crate::sampling::{DATABASE, LAB, MachineUse, SERVER, Sampled, ServerLoad};
use crate::sync::{SyncSettings, Way};

/// What is known of a run of syncs. Samples are those of its sets alone.
pub(crate) struct KnownSyncs<'k> {
    pub(crate) settings: &'k SyncSettings,
    /// That the clients share.
    pub(crate) threads: usize,
    /// Whether the database works in the server's process.
    pub(crate) is_embedded: bool,
    pub(crate) measured: &'k Measured,
    pub(crate) sets: &'k SetTimes,
    pub(crate) sampled: &'k Sampled,
}

/// Names what limited the run.
pub(crate) fn verdict_of_syncs(known: &KnownSyncs<'_>) -> Verdict {
    let by_agents = of_agents(known.measured).map(|evidence| (Bottleneck::Client, evidence));
    let found =
        by_agents.or_else(|| by_processors(known)).or_else(|| by_workers(known)).unwrap_or_else(|| outside(known));
    Verdict { bottleneck: found.0, evidence: found.1 }
}

type Found = (Bottleneck, String);

/// Someone whose processors have no more to give.
fn by_processors(known: &KnownSyncs<'_>) -> Option<Found> {
    let machine = processors_of(&known.sampled.machine)?;
    let all = [(Bottleneck::Client, LAB), (Bottleneck::Server, SERVER), (Bottleneck::DatabaseCpu, DATABASE)];
    let used = all.map(|(bottleneck, name)| {
        let (used, ready) = processors(known.sampled.process(name)).unwrap_or_default();
        (bottleneck, used, ready)
    });
    let figures = used.map(|(_, used, ready)| format!("{used:.2} (and wait for {ready:.2} more)"));
    let [lab, server, database] = &figures;
    let figures = if known.is_embedded {
        format!("the server, where SQLite works, has {server}, the lab {lab}")
    } else {
        format!("the server has {server}, the database {database}, the lab {lab}")
    };
    let SyncSettings { server_cpus, database_cpus, .. } = *known.settings;
    let may_use = |cpus: Option<usize>| cpus.map_or(machine, |cpus| machine.min(cpus as f64));
    let limits = [machine.min(known.threads as f64), may_use(server_cpus), may_use(database_cpus)];
    for ((bottleneck, used, ready), limit) in used.into_iter().zip(limits) {
        let is_own = limit < machine && used >= MOST * limit && used + ready >= SATURATED * limit;
        if is_own {
            return Some((bottleneck, format!("of {limit:.0} processors that it may use, {figures}")));
        }
    }
    // Threads wait for processors that others have, too: those must be busy, half of them with what is measured.
    let demand: f64 = used.iter().map(|(_, used, ready)| used + ready).sum();
    let ours: f64 = used.iter().map(|(_, used, _)| used).sum();
    let is_full = ours >= MOST * machine && in_use(&known.sampled.machine) >= SATURATED * machine;
    let (most, ..) = used.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    (is_full && demand >= SATURATED * machine).then(|| (most, format!("of {machine:.0} processors, {figures}")))
}

/// All workers are busy: with what the database waits for, or they are too few.
fn by_workers(known: &KnownSyncs<'_>) -> Option<Found> {
    let load = known.sampled.server?;
    let machine = processors_of(&known.sampled.machine)?;
    let SyncSettings { workers, uploaders, way, .. } = *known.settings;
    let (busy, all, key) = match way {
        Way::Up if uploaders < workers => (load.uploaders_busy, uploaders, "uploaders"),
        _ => (load.workers_busy, workers, "workers"),
    };
    // Where the server finds their number (0), all of them are busy when somebody waits.
    let is_found = all == 0;
    if busy < SATURATED * all as f64 || is_found && load.waiting < 1.0 {
        return None;
    }
    if let Ok(waits) = &known.sampled.waits {
        let places = Places::of_sessions(waits);
        let waiting =
            [(Bottleneck::Locks, places.locks), (Bottleneck::Disk, places.disk), (Bottleneck::Unknown, places.other)];
        if let Some((bottleneck, sessions)) = waiting.into_iter().find(|(_, sessions)| *sessions >= MOST * busy) {
            let what = detail_of(bottleneck, waits, known.sampled);
            return Some((
                bottleneck,
                format!("{} of the {key} wait for it: {places}{what}", percent(sessions / busy)),
            ));
        }
    }
    if is_found {
        return None;
    }
    let waiting = load.waiting;
    Some((
        Bottleneck::Workers,
        format!(
            "{busy:.2} of {all} {key} are busy while {waiting:.2} syncs wait for one; {}",
            room(known.sampled, machine, key)
        ),
    ))
}

/// Of all processors' time in the sets, what the server and the database had, in per cent.
pub(crate) fn shares(sampled: &Sampled) -> [Option<f64>; 2] {
    let machine = processors_of(&sampled.machine);
    let share = |name| Some(100.0 * processors(sampled.process(name))?.0 / machine?);
    [share(SERVER), share(DATABASE)]
}

/// Whether the machine has processors for more workers.
fn room(sampled: &Sampled, machine: f64, key: &str) -> String {
    let used = [LAB, SERVER, DATABASE].map(|name| processors(sampled.process(name)).unwrap_or_default().0);
    let (ours, all) = (used.iter().sum::<f64>(), in_use(&sampled.machine));
    if all < SATURATED * machine {
        format!("of {machine:.0} processors {:.2} are free: raise scenario.{key}", machine - all)
    } else {
        format!(
            "of {machine:.0} processors {ours:.2} are in use by them, the lab and the database, {:.2} by others",
            all - ours
        )
    }
}

/// Workers are free: syncs are at the clients, or on their way.
fn outside(known: &KnownSyncs<'_>) -> Found {
    let Some(load) = known.sampled.server.filter(|_| !known.sampled.machine.is_empty()) else {
        return (Bottleneck::Unknown, "the sets were too short to be sampled; raise scenario.rows".to_owned());
    };
    let ServerLoad { receiving, waiting, workers_busy, sending, .. } = load;
    let time = known.sets.time().as_secs_f64();
    let mean = known.measured.service.mean();
    let active = if time > 0.0 { mean.as_secs_f64() * known.measured.service.len() as f64 / time } else { 0.0 };
    let figures = format!(
        "of {active:.2} syncs at a time, {workers_busy:.2} have a worker, {waiting:.2} wait for one, {receiving:.2} come in, \
         {sending:.2} go out"
    );
    if waiting + workers_busy >= MOST * active {
        return (Bottleneck::Unknown, format!("no place has half of the syncs: {figures}"));
    }
    let SyncSettings { pace, rows, .. } = *known.settings;
    let own = pace.row.saturating_mul(rows as u32);
    if own.as_secs_f64() >= MOST * mean.as_secs_f64() && own > Duration::ZERO {
        return (Bottleneck::Client, format!("clients take {own:.2?} of a sync's {mean:.2?} for its rows; {figures}"));
    }
    if !pace.link.is_plain() {
        return (Bottleneck::Link, format!("the clients' links are slow; {figures}"));
    }
    (Bottleneck::Unknown, format!("workers are free; {figures}"))
}

/// How many processors the machine has; none: it was not sampled.
fn processors_of(machine: &[MachineUse]) -> Option<f64> {
    let sum = |of: fn(&MachineUse) -> Duration| machine.iter().map(of).sum::<Duration>().as_secs_f64();
    let span = sum(|one| one.span);
    (span > 0.0).then(|| (sum(|one| one.busy + one.idle) / span).round())
}

/// How many of them were in use, by whomever.
fn in_use(machine: &[MachineUse]) -> f64 {
    let sum = |of: fn(&MachineUse) -> Duration| machine.iter().map(of).sum::<Duration>().as_secs_f64();
    sum(|one| one.busy) / sum(|one| one.span).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::Instant;

    use super::*;
    use crate::harness::{Attempts, Ended, Histogram, Tally};
    use crate::sampling::{ProcessUse, Wait, Waits};
    use crate::value::Value;

    const SECOND: Duration = Duration::from_secs(1);

    /// Twenty syncs at a time over ten seconds, of a second each.
    fn measured() -> (Measured, SetTimes) {
        let mut service = Histogram::default();
        service.record_many(1_000_000_000, 200);
        let from = Instant::now();
        let sets = SetTimes { spans: vec![(from, from + 10 * SECOND)], ..SetTimes::default() };
        let measured = Measured {
            ended: Ended::Iterations,
            from,
            warmup: Duration::ZERO,
            is_steady: None,
            elapsed: 10 * SECOND,
            sets: Some(sets.clone()),
            operations: 200,
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
        };
        (measured, sets)
    }

    /// Processors in use by the lab, the server and the database, of four; a full load of the server's; a session's wait.
    struct Seen {
        cpu: [(f64, f64); 3],
        workers_busy: f64,
        uploaders_busy: f64,
        waiting: f64,
        session: (&'static str, &'static str, &'static str),
    }

    const IDLE: Seen = Seen {
        cpu: [(0.1, 0.0); 3],
        workers_busy: 0.5,
        uploaders_busy: 0.0,
        waiting: 0.0,
        session: ("idle in transaction", "Client", "ClientRead"),
    };
    const BUSY: Seen = Seen { workers_busy: 4.9, waiting: 14.0, ..IDLE };

    fn sampled(seen: &Seen) -> Sampled {
        let process = |(name, (cpu, ready)): (&str, (f64, f64))| {
            let [cpu, ready] = [cpu, ready].map(|processors| Duration::from_secs_f64(processors * 10.0));
            let one = ProcessUse { at: 10 * SECOND, span: 10 * SECOND, cpu, ready, ..ProcessUse::default() };
            (name.to_owned(), vec![one])
        };
        let busy = seen.cpu.iter().map(|(used, _)| used).sum::<f64>().min(4.0) * 10.0;
        let [busy, idle] = [busy, 40.0 - busy].map(Duration::from_secs_f64);
        let (state, kind, event) = seen.session;
        let wait = Wait {
            state: state.to_owned(),
            kind: kind.to_owned(),
            event: event.to_owned(),
            statement: "S".to_owned(),
            seen: (seen.workers_busy * 100.0) as u64,
        };
        Sampled {
            machine: vec![MachineUse { at: 10 * SECOND, span: 10 * SECOND, busy, idle, ..MachineUse::default() }],
            processes: [LAB, SERVER, DATABASE].into_iter().zip(seen.cpu).map(process).collect(),
            waits: Ok(Waits { looks: 100, waits: vec![wait], looks_at_blockers: 10, blocked: Vec::new() }),
            server: Some(ServerLoad {
                waiting: seen.waiting,
                workers_busy: seen.workers_busy,
                uploaders_busy: seen.uploaders_busy,
                ..ServerLoad::default()
            }),
        }
    }

    fn named(seen: &Seen, parameters: &[(&str, i64)]) -> Bottleneck {
        let mut all = crate::sync::kind::scenario().parameters;
        for (name, number) in parameters {
            all.retain(|(known, _)| known != name);
            all.push(((*name).to_owned(), Value::Integer(*number)));
        }
        if seen.uploaders_busy > 0.0 {
            all.retain(|(known, _)| known != "kind");
            all.push(("kind".to_owned(), Value::Text("upload-updates".to_owned())));
        }
        let settings = SyncSettings::of(&all).expect("possible");
        let ((measured, sets), sampled) = (measured(), sampled(seen));
        let (settings, sampled) = (&settings, &sampled);
        let known = KnownSyncs { settings, threads: 4, is_embedded: false, measured: &measured, sets: &sets, sampled };
        verdict_of_syncs(&known).bottleneck
    }

    #[test]
    fn busy_workers_with_processors_left_are_too_few() {
        assert_eq!(named(&BUSY, &[]), Bottleneck::Workers);
        assert_eq!(named(&BUSY, &[("workers", 10)]), Bottleneck::Unknown, "half of them are free");
        let uploads = Seen { uploaders_busy: 2.0, workers_busy: 2.0, ..BUSY };
        assert_eq!(named(&uploads, &[("uploaders", 2)]), Bottleneck::Workers);
        for (kind, event, expected) in [
            ("Lock", "transactionid", Bottleneck::Locks),
            ("IO", "WALSync", Bottleneck::Disk),
            ("IPC", "SyncRep", Bottleneck::Unknown),
            ("", "", Bottleneck::Workers),
        ] {
            assert_eq!(named(&Seen { session: ("active", kind, event), ..BUSY }, &[]), expected, "{kind} {event}");
        }
    }

    #[test]
    fn who_has_most_of_the_processors_is_named_where_they_are_at_their_end() {
        let full = |lab, server, database| Seen { cpu: [(lab, 0.0), (server, 0.3), (database, 0.3)], ..BUSY };
        assert_eq!(named(&full(0.6, 1.8, 0.9), &[]), Bottleneck::Server);
        assert_eq!(named(&full(0.6, 0.9, 1.8), &[]), Bottleneck::DatabaseCpu);
        assert_eq!(named(&full(1.8, 0.6, 0.9), &[]), Bottleneck::Client);
        let waiting = Seen { cpu: [(0.2, 2.0), (0.4, 2.0), (0.4, 2.0)], ..BUSY };
        assert_eq!(named(&waiting, &[]), Bottleneck::Workers, "for processors that others have");
        assert_eq!(named(&full(0.2, 0.9, 0.2), &[]), Bottleneck::Workers, "not half of the four are in use");
        assert_eq!(named(&full(0.2, 0.9, 0.2), &[("server_cpus", 1)]), Bottleneck::Server);
        assert_eq!(named(&full(0.2, 0.2, 0.9), &[("database_cpus", 1)]), Bottleneck::DatabaseCpu);
        assert_eq!(named(&full(0.2, 0.3, 0.2), &[("server_cpus", 1)]), Bottleneck::Workers);
    }

    #[test]
    fn free_workers_leave_the_clients_and_their_links() {
        assert_eq!(named(&IDLE, &[]), Bottleneck::Unknown);
        assert_eq!(named(&IDLE, &[("link_bits_per_s", 10_000)]), Bottleneck::Link);
        assert_eq!(named(&IDLE, &[("link_delay_ms", 100)]), Bottleneck::Link);
        assert_eq!(named(&IDLE, &[("row_us", 6_000)]), Bottleneck::Client, "0.6 s of a second");
        assert_eq!(named(&IDLE, &[("row_us", 4_000)]), Bottleneck::Unknown);
        assert_eq!(named(&IDLE, &[("row_us", 4_000), ("link_delay_ms", 100)]), Bottleneck::Link);
    }

    #[test]
    fn short_sets_tell_nothing() {
        let named = |sampled: &Sampled| {
            let settings = SyncSettings::of(&crate::sync::kind::scenario().parameters).expect("possible");
            let (measured, sets) = measured();
            let (settings, measured, sets) = (&settings, &measured, &sets);
            verdict_of_syncs(&KnownSyncs { settings, threads: 4, is_embedded: false, measured, sets, sampled })
        };
        let short = Sampled { machine: Vec::new(), processes: Vec::new(), ..sampled(&BUSY) };
        let verdict = named(&short);
        assert_eq!(verdict.bottleneck, Bottleneck::Unknown);
        assert!(verdict.evidence.contains("too short"), "{}", verdict.evidence);
        assert_eq!(named(&Sampled { server: None, ..sampled(&BUSY) }).bottleneck, Bottleneck::Unknown);
    }

    #[test]
    fn only_samples_of_the_sets_count() {
        let (_, sets) = measured();
        let (from, _) = sets.spans[0];
        let sets = SetTimes { spans: vec![(from + SECOND, from + 2 * SECOND)], ..sets };
        let one = |at: f64| ProcessUse { at: Duration::from_secs_f64(at), span: SECOND / 2, ..ProcessUse::default() };
        let series = [0.9, 1.2, 1.3, 1.7, 2.2, 2.3].map(one).to_vec();
        let sampled = Sampled { processes: vec![(SERVER.to_owned(), series)], ..sampled(&IDLE) };
        let kept = sampled.of_sets(&sets, from);
        let at: Vec<f64> = kept.process(SERVER).iter().map(|one| one.at.as_secs_f64()).collect();
        assert_eq!(at, [1.3, 1.7, 2.2], "half or more of each lies between 1 s and 2 s");
    }
}
