//! What limited a run of requests, as far as that is told: the load, the lab, or its links. What servers and caches do is not known.

use super::{Bottleneck, Known, SATURATED, Verdict, asked_for, processors, thought};
use crate::harness::Measured;
use crate::link::Link;
use crate::sampling::LAB;

/// Names what limited the run. `link`: what each client has before it; `is_own`: the server is the lab's own, and works in its process.
pub(crate) fn verdict_of_requests(known: &Known<'_>, link: Link, is_own: bool) -> Verdict {
    let of_the_load = asked_for(known).or_else(|| thought(known)).map(|evidence| (Bottleneck::Client, evidence));
    let found = of_the_load.or_else(|| of_the_links(known, link)).or_else(|| of_the_lab(known, is_own));
    let (bottleneck, evidence) = found.unwrap_or_else(|| {
        let evidence = "neither the load, the links nor the lab; what servers and caches wait for is not told yet";
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
