//! What limited a run of requests, as far as that is told: the load, the lab, its links, or the processors of a server or cache that is sampled.

use super::{Bottleneck, Known, SAMPLED_MIN, SATURATED, Verdict, asked_for, of_agents, processors, thought};
use crate::harness::Measured;
use crate::link::Link;
use crate::sampling::LAB;

/// Processors in use, and waited for, by one thread that never rests.
const ONE_THREAD: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// Names what limited the run. `link`: what each client has before it; `is_own`: the server is the lab's own, and works in its process.
pub(crate) fn verdict_of_requests(known: &Known<'_>, link: Link, is_own: bool) -> Verdict {
    let of_the_load = asked_for(known).or_else(|| thought(known)).or_else(|| of_agents(known.measured));
    let of_the_load = of_the_load.map(|evidence| (Bottleneck::Client, evidence));
    let found = of_the_load.or_else(|| of_the_links(known, link));
    let is_sampled = known.measured.elapsed >= SAMPLED_MIN;
    let of_samples = || of_the_lab(known, is_own).or_else(|| of_a_server(known));
    let found = found.or_else(|| if is_sampled { of_samples() } else { None });
    let (bottleneck, evidence) = found.unwrap_or_else(|| {
        let evidence = if is_sampled {
            "neither the load, the links, the lab, nor the processors of what is sampled"
        } else {
            "the run was too short to be sampled"
        };
        (Bottleneck::Unknown, evidence.to_owned())
    });
    Verdict { bottleneck, evidence }
}

/// Links that are full.
fn of_the_links(known: &Known<'_>, link: Link) -> Option<(Bottleneck, String)> {
    let Measured { elapsed, attempts, .. } = known.measured;
    let may = link.bits_per_s as f64 / 8.0 * known.load.clients as f64 * elapsed.as_secs_f64();
    let part = attempts.traffic.received_bytes as f64 / may;
    (link.bits_per_s > 0 && may > 0.0 && part >= SATURATED)
        .then(|| (Bottleneck::Link, format!("the clients' links were full for {:.0} % of the time", part * 100.0)))
}

/// Threads of the lab that have no more to give; those of its own server are among them.
fn of_the_lab(known: &Known<'_>, is_own: bool) -> Option<(Bottleneck, String)> {
    let (used, ready) = processors(known.sampled.process(LAB))?;
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if is_own { all } else { known.threads.min(all) };
    let what = if is_own { "the lab and its own server have" } else { "the lab's threads have" };
    (used + ready >= SATURATED * threads as f64).then(|| {
        (
            Bottleneck::Client,
            format!("{what} {used:.2} processors and wait for {ready:.2} more, with {threads} to be had"),
        )
    })
}

/// A process of `[sample]` that has as much as one busy thread, or most of what a machine with nothing to spare has. A cache has one thread that does the work.
fn of_a_server(known: &Known<'_>) -> Option<(Bottleneck, String)> {
    let others = known.sampled.processes.iter().filter(|(name, _)| name != LAB);
    let used = others.filter_map(|(name, series)| Some((name, processors(series)?)));
    let (name, (used, ready)) = used.max_by(|(_, one), (_, other)| one.0.total_cmp(&other.0))?;
    let machine: f64 = known.sampled.machine.iter().map(|sample| (sample.busy + sample.idle).as_secs_f64()).sum();
    let busy: f64 = known.sampled.machine.iter().map(|sample| sample.busy.as_secs_f64()).sum();
    let is_full = machine > 0.0 && busy >= SATURATED * machine;
    let is_one_thread = ONE_THREAD.contains(&(used + ready));
    (is_one_thread || is_full && used + ready >= SATURATED).then(|| {
        let why = if is_one_thread { "as one thread that is always busy" } else { "and the machine has none to spare" };
        (Bottleneck::Server, format!("{name} has {used:.2} processors and waits for {ready:.2} more, {why}"))
    })
}
