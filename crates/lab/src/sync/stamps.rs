//! When each sync began and ended, at the client and at the server, and what the server did meanwhile: joined by the sync's ID.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::Instant;

/// More of a run are not kept.
const SYNCS_MAX: usize = 100_000;
/// Whose lines the server's log has them in.
const TARGET: &str = "headwater::stamps";

/// What the server does to a sync, in its order.
pub(crate) const PHASES: [&str; 6] = ["receive", "wait", "greet", "upload", "download", "send"];

/// A sync as its client saw it.
#[derive(Clone, Debug)]
struct Told {
    client: usize,
    id: String,
    began: Instant,
    ended: Instant,
    refusals: u64,
}

/// A sync, with what the server says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamped {
    /// Which client's, from 0.
    pub(crate) client: usize,
    /// When the client began it, and when it was done there.
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// How often it was told to come back before.
    pub(crate) refusals: u64,
    /// The request that succeeded; none: the server has said nothing of it.
    pub(crate) served: Option<Served>,
}

/// A request, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// How long each of [`PHASES`] took.
    pub(crate) phases: [Duration; PHASES.len()],
}

/// The syncs of a run.
#[derive(Debug)]
pub(crate) struct Stamps {
    /// The same moment by the clock of syncs and by the wall's.
    moment: (Instant, SystemTime),
    told: Vec<Told>,
    stamped: Vec<Stamped>,
}

impl Stamps {
    pub(crate) fn new() -> Stamps {
        Stamps { moment: (Instant::now(), SystemTime::now()), told: Vec::new(), stamped: Vec::new() }
    }

    /// A client has done a sync, for which it was told to come back so many times.
    pub(crate) fn tell(&mut self, client: usize, id: String, began: Instant, refusals: u64) {
        if self.told.len() < SYNCS_MAX {
            self.told.push(Told { client, id, began, ended: Instant::now(), refusals });
        }
    }

    /// What [`Stamps::take_report`] takes elsewhere; `own` gives a moment as a number.
    pub(crate) fn report(&mut self, own: &dyn Fn(Instant) -> u64) -> Value {
        let told = std::mem::take(&mut self.told).into_iter();
        told.map(|Told { client, id, began, ended, refusals }| json!([client, id, own(began), own(ended), refusals]))
            .collect()
    }

    /// The syncs of clients elsewhere.
    pub(crate) fn take_report(&mut self, report: &Value, moment: &dyn Fn(u64) -> Instant) {
        let told = |sync: &Value| {
            let (began, ended) = (moment(sync[2].as_u64()?), moment(sync[3].as_u64()?));
            let (client, refusals) = (sync[0].as_u64()? as usize, sync[4].as_u64()?);
            Some(Told { client, id: sync[1].as_str()?.to_owned(), began, ended, refusals })
        };
        let room = SYNCS_MAX.saturating_sub(self.told.len());
        self.told.extend(report.as_array().into_iter().flatten().filter_map(told).take(room));
    }

    /// Reads what the server has said of them, its log in JSON.
    pub(crate) fn join(&mut self, log: &Path) {
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let mut served: HashMap<String, Served> = log.lines().filter_map(|line| self.served(line)).collect();
        let stamped = |told: Told| {
            let Told { client, id, began, ended, refusals } = told;
            Stamped { client, began, ended, refusals, served: served.remove(&id) }
        };
        self.stamped = std::mem::take(&mut self.told).into_iter().map(stamped).collect();
    }

    /// Those that are joined.
    pub(crate) fn take(&mut self) -> Vec<Stamped> {
        std::mem::take(&mut self.stamped)
    }

    /// A line of the log, if it is of a sync that succeeded.
    fn served(&self, line: &str) -> Option<(String, Served)> {
        if !line.contains(TARGET) {
            return None;
        }
        let line: Value = serde_json::from_str(line).ok()?;
        let time = |name: &str| Some(Duration::from_micros(line[name].as_u64()?));
        let is_done = line["target"] == TARGET && line["outcome"] == "ok";
        let id = line["id"].as_str().filter(|_| is_done)?.to_owned();
        let mut phases = [Duration::ZERO; PHASES.len()];
        for (phase, name) in phases.iter_mut().zip(PHASES) {
            *phase = time(&format!("{name}_us"))?;
        }
        Some((id, Served { began: self.moment(time("begun_us")?), ended: self.moment(time("ended_us")?), phases }))
    }

    fn moment(&self, since_1970: Duration) -> Instant {
        let (instant, wall) = self.moment;
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        match since_1970.checked_sub(wall) {
            Some(later) => instant + later,
            None => instant.checked_sub(wall.saturating_sub(since_1970)).unwrap_or(instant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_are_joined_by_their_id() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut stamps = Stamps::new();
        let (begin, ms) = stamps.moment;
        let ms =
            |count: u64| (ms.duration_since(UNIX_EPOCH).expect("later") + Duration::from_millis(count)).as_micros();
        let line = |id: &str, outcome: &str, begun: u64| {
            format!(
                r#"{{"level":"DEBUG","target":"headwater::stamps","id":"{id}","outcome":"{outcome}","begun_us":{},"ended_us":{},"receive_us":1,"wait_us":2,"greet_us":3,"upload_us":4,"download_us":5,"send_us":6}}"#,
                ms(begun),
                ms(begun + 10)
            )
        };
        let lines = [
            line("2-1", "ok", 40),
            line("1-1", "ok", 20),
            "no JSON headwater::stamps".to_owned(),
            line("1-1", "overloaded", 5),
            line("9-9", "ok", 1),
        ];
        std::fs::write(folder.path().join("log"), lines.join("\n")).expect("written");
        for (client, id) in [(0, "1-1"), (1, "2-1"), (2, "3-1")] {
            stamps.tell(client, id.to_owned(), begin, client as u64 + 1);
        }
        // They come from elsewhere, by another clock.
        let report = stamps.report(&|moment| moment.saturating_duration_since(begin).as_nanos() as u64 + 7);
        stamps.take_report(&report, &|at| begin + Duration::from_nanos(at - 7));
        stamps.take_report(&json!([[1, "x"], "no sync", null]), &|_| begin);
        stamps.join(&folder.path().join("log"));
        let all = stamps.take();
        let after = |place: usize| {
            all[place].served.map(|served| served.began.duration_since(begin).as_micros().div_ceil(1000))
        };
        assert_eq!([after(0), after(1), after(2)], [Some(20), Some(40), None]);
        let phases = [1, 2, 3, 4, 5, 6].map(Duration::from_micros);
        assert_eq!(all[0].served.map(|served| served.phases), Some(phases));
        assert_eq!((all.len(), all[2].began, all[2].client, all[2].refusals), (3, begin, 2, 3));
        assert!(stamps.take().is_empty());
    }
}
