//! What to do with a pilot's numbers, in sentences.

use super::predict::{Prediction, Predictions, Taken};

/// Fewer workers that are so much slower than the best at most are better: they leave the database in peace.
const AS_GOOD: f64 = 0.05;
/// From this share of the processors on the lab's own clients change what is measured.
const CLIENTS_SHARE: f64 = 0.1;

/// How to run the server for what was predicted: a sentence or two for each thing that can be chosen.
pub fn advice(predictions: &Predictions) -> Vec<String> {
    let all = || predictions.all.iter();
    let mut said = Vec::new();
    let Some(workers) = fewest(all()) else { return said };
    said.push(of_workers(predictions, workers));
    let uploads = || all().filter(|prediction| prediction.kind.starts_with("upload"));
    if let Some(uploaders) = fewest(uploads()).filter(|uploaders| *uploaders < workers) {
        said.push(format!(
            "Uploaders: {uploaders} of the {workers} (--uploaders {uploaders}). Uploads by themselves are as fast with so many."
        ));
    }
    said.push(format!(
        "Database connections: the server opens one for each worker and one more; allow it {} for each version of a model that remotes still have.",
        workers + 1
    ));
    said.push(format!(
        "Places: {} at once all wait for a worker, so give backlog and receiving_max {} and connections_max more; with less, some are told to come back, \
         and come later.",
        predictions.expected, predictions.expected
    ));
    said.extend(of_processors(&predictions.taken));
    said.extend(of_memory(predictions));
    said.extend(of_limits(predictions));
    said
}

/// The fewest workers that do one sync of each of these kinds about as fast as any number that was tried.
fn fewest<'p>(predictions: impl Iterator<Item = &'p Prediction>) -> Option<u64> {
    let mut times: Vec<(u64, f64)> = Vec::new();
    for Prediction { workers, rate, .. } in predictions {
        match times.iter_mut().find(|(known, _)| known == workers) {
            Some((_, time)) => *time += 1.0 / rate,
            None => times.push((*workers, 1.0 / rate)),
        }
    }
    let best = times.iter().map(|(_, time)| *time).min_by(f64::total_cmp)?;
    times.iter().filter(|(_, time)| *time <= best * (1.0 + AS_GOOD)).map(|(workers, _)| *workers).min()
}

fn of_workers(predictions: &Predictions, workers: u64) -> String {
    let mut tried: Vec<u64> = predictions.all.iter().map(|prediction| prediction.workers).collect();
    tried.sort_unstable();
    tried.dedup();
    let (least, most) = (tried[0], tried[tried.len() - 1]);
    let list: Vec<String> = tried.iter().map(ToString::to_string).collect();
    let mut said = format!(
        "Workers: {workers} (--workers {workers}). Of {} these are the fewest that are as fast as any, within {:.0} %, over all kinds.",
        list.join(", "),
        AS_GOOD * 100.0
    );
    if workers == most && tried.len() > 1 {
        said.push_str(" More may be faster still: try some.");
    } else if workers == least && least > 1 {
        said.push_str(" Fewer may be as fast: try some.");
    }
    said
}

fn of_processors(taken: &[Taken]) -> Option<String> {
    let share = |name: &str| taken.iter().find(|taken| taken.process == name).map(|taken| taken.share);
    let (server, lab) = (share("server")?, share("lab").unwrap_or(0.0));
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let mut said = match share("database") {
        Some(database) if server > 0.0 => format!(
            "Processors: of the time of both the server took {}, the database {}. A server on a machine of its own wants one processor for \
             {:.1} of the database's.",
            percent(server / (server + database)),
            percent(database / (server + database)),
            database / server
        ),
        _ => "Processors: the database runs elsewhere or in the server, so what it took is not known by itself."
            .to_owned(),
    };
    if lab > CLIENTS_SHARE {
        said.push_str(" On this machine the clients took ");
        said.push_str(&percent(lab));
        said.push_str(" of all; on machines of their own they leave that to the server.");
    }
    Some(said)
}

fn of_memory(predictions: &Predictions) -> Option<String> {
    let server = predictions.taken.iter().find(|taken| taken.process == "server")?;
    Some(format!(
        "Memory: the server took {:.0} MB with {} clients. Requests that wait are kept in memory up to spool_memory_bytes_total, then in files.",
        server.memory_bytes / 1e6,
        predictions.clients
    ))
}

fn of_limits(predictions: &Predictions) -> Option<String> {
    let all: u64 = predictions.limits.iter().map(|(_, runs)| runs).sum();
    let (limit, runs) = predictions.limits.iter().find(|(limit, _)| limit != "unknown")?;
    let why = match limit.as_str() {
        "client" => {
            "The clients were at their end before the server was: run the lab on more processors, or the prediction is too slow"
        }
        "server" => "More processors for the server would help first",
        "database CPU" => "More processors for the database, or scripts that ask less of it, would help first",
        "workers" => "More workers would help first",
        "locks" => "Look for what the scripts contend for: no setting helps against locks",
        "disk" => "A faster disk for the database's log would help first",
        _ => "See `headwater lab show` for the evidence",
    };
    Some(format!("Limit: {limit}, in {runs} of {all} runs. {why}."))
}

#[cfg(test)]
mod tests {
    use super::super::predict::Between;
    use super::*;

    fn prediction(kind: &str, workers: u64, rate: f64) -> Prediction {
        Prediction {
            kind: kind.to_owned(),
            workers,
            rate,
            single_ms: workers as f64 / rate * 1e3,
            all_ended_s: Between { low: 1.0, middle: 1.0, high: 1.0 },
            average_s: 0.5,
            by_curve_s: None,
            actual: None,
        }
    }

    fn predictions(all: Vec<Prediction>) -> Predictions {
        let taken = |process: &str, share| Taken { process: process.to_owned(), share, memory_bytes: 50e6 };
        Predictions {
            clients: 20,
            expected: 1_000,
            all,
            curves: Vec::new(),
            taken: vec![taken("server", 0.2), taken("database", 0.6), taken("lab", 0.2)],
            limits: vec![("unknown".to_owned(), 3), ("database CPU".to_owned(), 2)],
        }
    }

    #[test]
    fn the_fewest_workers_that_are_as_fast_are_advised() {
        let said = advice(&predictions(vec![
            prediction("download-inserts", 2, 300.0),
            prediction("download-inserts", 4, 500.0),
            prediction("download-inserts", 6, 520.0),
            prediction("upload-updates", 2, 100.0),
            prediction("upload-updates", 4, 99.0),
            prediction("upload-updates", 6, 98.5),
        ]));
        let all = said.join("\n");
        assert!(all.contains("--workers 4") && all.contains("--uploaders 2"), "{all}");
        assert!(all.contains("allow it 5") && all.contains("server took 25 %"), "{all}");
        assert!(all.contains("3.0 of the database's") && all.contains("clients took 20 % of all"), "{all}");
        assert!(all.contains("Limit: database CPU, in 2 of 5 runs"), "{all}");
    }

    #[test]
    fn an_end_of_what_was_tried_is_told() {
        let more =
            advice(&predictions(vec![prediction("upload-inserts", 2, 100.0), prediction("upload-inserts", 4, 200.0)]));
        assert!(more[0].contains("More may be faster"), "{more:?}");
        let fewer =
            advice(&predictions(vec![prediction("upload-inserts", 2, 200.0), prediction("upload-inserts", 4, 100.0)]));
        assert!(fewer[0].contains("Fewer may be as fast"), "{fewer:?}");
        assert!(advice(&predictions(Vec::new())).is_empty());
    }
}
