//! How far a replica is behind: heartbeats written at the target, and looked for at its replica.
//!
//! ```text
//! writer -- each tenth of a second: one more row --> target ~~ replication ~~> replica <-- while one is missing: the newest? -- reader
//!    |  when it was acknowledged                                                                     |  when it was seen
//!    +-----------------------------------------------> lags <---------------------------------------+
//! ```
//!
//! Replication is in the order of commits: when a heartbeat shows, all that was committed before it does too. *Lag* counts from the target's
//! acknowledgement to the answer that has the row. The writer does not wait for the reader, so a replica that stands still for a second has ten
//! lags of up to a second, not one. After the clients have ended a last heartbeat is written, and the run goes on until it shows: the time
//! until the replica has *drained*.
//!
//! *Caveats.* A lag is known to a millisecond or a fiftieth of it, and a round trip. The writer's ten rows a second are part of the load.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::harness::{Class, Failure, Histogram};
use crate::target::{Session, Target};

/// The table of heartbeats, beside those of the scenario.
pub(crate) const TABLE: &str = "lab_heartbeat";

/// What makes it.
pub(crate) const MAKE: &str = "CREATE TABLE lab_heartbeat (beat bigint PRIMARY KEY)";

const WRITE_EVERY: Duration = Duration::from_millis(100);
/// How often the replica is asked for a heartbeat that is missing: after this part of the time that it is late, within these bounds.
const PART: u32 = 50;
const READ_EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// How long what the preparation made may take to show at the replica.
const APPEAR: Duration = Duration::from_mins(1);
/// How long a statement of ours may take: a replica that replays holds readers up.
const STATEMENT: Duration = Duration::from_mins(1);
/// Without a newer heartbeat for so long a replica will not drain.
const STUCK: Duration = Duration::from_mins(2);

/// Heartbeats of a run, on a thread of their own: the lab's may be at work.
#[derive(Debug)]
pub(crate) struct Heart {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<Instant, Failure>>,
}

/// What became of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lag {
    /// When the target acknowledged it.
    pub(crate) written: Instant,
    /// Until it showed; none: it has not yet.
    pub(crate) after: Option<Duration>,
}

/// Of each heartbeat, in their order.
pub(crate) type Lags = Mutex<Vec<Lag>>;

/// How far a replica was behind while a run was measured.
#[derive(Clone, Debug, Default)]
pub struct Behind {
    /// Of each heartbeat: from the target's acknowledgement until it showed at the replica.
    pub lags: Histogram,
    /// From the end of the clients until all that they had done showed; none: that was not seen.
    pub drained: Option<Duration>,
}

impl Behind {
    /// Of the heartbeats that were written in this time. One that never showed has been behind until now.
    pub(crate) fn during(lags: &Lags, from: Instant, elapsed: Duration, drained: Option<Duration>) -> Behind {
        let mut behind = Behind { lags: Histogram::default(), drained };
        for lag in all(lags).iter().filter(|lag| (from..=from + elapsed).contains(&lag.written)) {
            behind.lags.record(lag.after.unwrap_or_else(|| lag.written.elapsed()));
        }
        behind
    }
}

impl Heart {
    /// Waits until the replica has the table, and begins.
    pub(crate) async fn start(
        target: &Target,
        replica: &Target,
        lags: Arc<Lags>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Heart, Failure> {
        let (stop, stopped) = oneshot::channel();
        let (opened, open) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (target, replica, interrupt) = (target.clone(), replica.clone(), interrupt.clone());
        let broken =
            |error: std::io::Error| Failure::new(Class::Other, format!("the heartbeat could not be started: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
        let beat = async move {
            match Sessions::open(&target, &replica, &interrupt).await {
                Err(failure) => drop(opened.send(Err(failure))),
                Ok(sessions) => {
                    let _ = opened.send(Ok(()));
                    let done = sessions.beat(&lags, stopped).await;
                    let of = |failure: Failure| Failure {
                        detail: format!("{} (target.replica_url): {}", replica.address(), failure.detail),
                        ..failure
                    };
                    // Whoever does not ask any more need not know.
                    let _ = end.send(done.map_err(of));
                }
            }
        };
        let thread = std::thread::Builder::new().name("lab-heartbeat".to_owned());
        thread.spawn(move || runtime.block_on(beat)).map_err(broken)?;
        open.await.unwrap_or_else(|_| Err(ended_early()))?;
        Ok(Heart { stop, ended })
    }

    /// Writes a last heartbeat, and waits until it shows; gives how long that took. An error: it never did, or the heartbeat has failed before.
    pub(crate) async fn drain(self) -> Result<Duration, Failure> {
        let from = Instant::now();
        // One that has failed before does not listen.
        let _ = self.stop.send(());
        let end = self.ended.await.unwrap_or_else(|_| Err(ended_early()))?;
        Ok(end.saturating_duration_since(from))
    }
}

fn ended_early() -> Failure {
    Failure::new(Class::Other, "the heartbeat ended before its time; this is a defect")
}

/// Waits until the replica has the table of heartbeats.
async fn appear(reader: &mut Session, replica: &Target) -> Result<(), Failure> {
    let begin = Instant::now();
    while reader.existing(&[TABLE.to_owned()]).await?.is_empty() {
        if begin.elapsed() > APPEAR {
            return Err(Failure::usage(format!(
                "{} (target.replica_url) has not got what was made at the target within {APPEAR:?}: is it a replica of it, and does it replay?",
                replica.address()
            )));
        }
        tokio::time::sleep(READ_EVERY.1).await;
    }
    Ok(())
}

/// One on the target, one on the replica.
struct Sessions {
    writer: Session,
    reader: Session,
}

impl Sessions {
    /// Once the replica has the table.
    async fn open(target: &Target, replica: &Target, interrupt: &watch::Receiver<bool>) -> Result<Sessions, Failure> {
        let writer = target.connect(STATEMENT, interrupt).await?;
        let of_replica =
            |failure: Failure| Failure { detail: format!("target.replica_url: {}", failure.detail), ..failure };
        let mut reader = replica.connect(STATEMENT, interrupt).await.map_err(of_replica)?;
        appear(&mut reader, replica).await?;
        Ok(Sessions { writer, reader })
    }

    /// Writes and reads until it is told to stop, and the last one shows; gives when that was. Without anybody who may tell it, it ends at once.
    async fn beat(self, lags: &Lags, stopped: oneshot::Receiver<()>) -> Result<Instant, Failure> {
        let Sessions { mut writer, mut reader } = self;
        let (told, known) = watch::channel(Written::default());
        let ((), end) = tokio::try_join!(write(&mut writer, lags, stopped, &told), read(&mut reader, lags, known))?;
        Ok(end)
    }
}

/// How far the writer is.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    beats: usize,
    /// Until which one is to be waited; none: more are to come.
    last: Option<usize>,
}

/// Writes a heartbeat each tenth of a second, and a last one when that is to be waited for.
async fn write(
    writer: &mut Session,
    lags: &Lags,
    mut stopped: oneshot::Receiver<()>,
    told: &watch::Sender<Written>,
) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(WRITE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for beat in 1.. {
        let stop = tokio::select! {
            biased;
            stop = &mut stopped => Some(stop),
            _ = ticks.tick() => None,
        };
        if let Some(Err(_)) = stop {
            told.send_modify(|written| written.last = Some(0));
            break;
        }
        writer.script(&format!("INSERT INTO {TABLE} VALUES ({beat})")).await?;
        all(lags).push(Lag { written: Instant::now(), after: None });
        told.send_replace(Written { beats: beat, last: stop.is_some().then_some(beat) });
        if stop.is_some() {
            break;
        }
    }
    Ok(())
}

/// Looks for heartbeats until the last one is there. Gives when it showed.
async fn read(reader: &mut Session, lags: &Lags, mut told: watch::Receiver<Written>) -> Result<Instant, Failure> {
    let query = format!("SELECT coalesce(max(beat), 0) FROM {TABLE}");
    let (mut seen, mut progress) = (0, Instant::now());
    loop {
        let Written { beats, last } = *told.borrow_and_update();
        if last.is_some_and(|last| seen >= last) {
            return Ok(progress);
        }
        if seen == beats {
            // A writer that has failed has told why elsewhere.
            if told.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            continue;
        }
        let newest = match reader.rows(&query, 1).await {
            Ok(rows) => rows.first().and_then(|row| row.first()?.1.parse().ok()).unwrap_or(0),
            // What a replica replays may be in a reader's way.
            Err(failure) if !failure.is_broken => seen,
            Err(failure) => return Err(failure),
        };
        let now = Instant::now();
        // One that shows before the target has acknowledged it is taken up at the next look.
        let known = beats.min(newest);
        let oldest = {
            let mut lags = all(lags);
            for lag in lags.iter_mut().take(known).skip(seen) {
                lag.after = Some(now.saturating_duration_since(lag.written));
            }
            lags.get(known).map_or(now, |lag| lag.written)
        };
        if known > seen {
            (seen, progress) = (known, now);
        }
        if last.is_some() && now.saturating_duration_since(progress) > STUCK {
            let detail =
                format!("{} heartbeats are missing, and none has come for {STUCK:?}: does it replay?", beats - seen);
            return Err(Failure::new(Class::TimeOut, detail));
        }
        if seen < beats {
            let late = now.saturating_duration_since(oldest);
            tokio::time::sleep((late / PART).clamp(READ_EVERY.0, READ_EVERY.1)).await;
        }
    }
}

fn all(lags: &Lags) -> MutexGuard<'_, Vec<Lag>> {
    lags.lock().unwrap_or_else(PoisonError::into_inner)
}
