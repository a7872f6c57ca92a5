//! A run in the form in which Bristlecone's Evaluator writes its results: XML, an element `Stats` for each interval, here of a second.

use std::io::Write;

use super::ResultsError;
use super::read::{Campaign, RunRow};
use crate::error::Error;
use crate::harness::{Second, Work};
use crate::http::settings;
use crate::sync::kind;

/// No run is longer: a file that says so is not what the lab wrote.
const SECONDS_MAX: u64 = 7 * 24 * 3600;

impl Campaign {
    /// Writes a run out as the Evaluator would: `run` counts from 1 in the order in which runs were made, and is not needed where
    /// there is one alone. Seconds in which nothing ended are there, with zeros. An error: there is no such run, it did not come to
    /// measuring, or it is none of SQL.
    pub fn export_evaluator(&self, run: Option<usize>, out: &mut dyn Write) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::from(ResultsError::usage(&self.path, what, None)));
        let runs = self.runs()?;
        let number = match run {
            Some(number) => number,
            None if runs.len() == 1 => 1,
            None => {
                return refuse(format!("it has {} runs, and an Evaluator's file one: name it by --run", runs.len()));
            }
        };
        let Some(run) = number.checked_sub(1).and_then(|place| runs.get(place)) else {
            return refuse(format!("there is no run {number}, they are 1 to {}", runs.len()));
        };
        let cells = self.cells()?;
        let scenario = cells.iter().find(|(cell, _)| *cell == run.cell).map_or("", |(_, scenario)| scenario);
        if [settings::NAME, kind::NAME].contains(&scenario) {
            return refuse(format!("run {number} is of {scenario:?}, and an Evaluator's file tells of SQL"));
        }
        if run.elapsed_ns <= 0 {
            return refuse(format!("in run {number} nothing was measured"));
        }
        let values = self.values(run.cell)?;
        let users = values.iter().find(|(key, ..)| key == "load.clients").map_or("", |(_, value, _)| value);
        self.write_evaluator(run, users, &self.seconds(run.id)?, out).map_err(Error::Write)
    }

    fn write_evaluator(
        &self,
        run: &RunRow,
        users: &str,
        seconds: &[Second],
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        writeln!(
            out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<EvaluatorResults name=\"{}\">",
            escaped(&self.name)
        )?;
        // The last one that began before the end, or in which something ended after it.
        let last = (run.elapsed_ns as u64 - 1) / 1_000_000_000;
        let count = 1 + seconds.last().map_or(last, |second| second.second.max(last)).min(SECONDS_MAX);
        let mut rest = seconds.iter().peekable();
        for time in 0..count {
            let second = rest.next_if(|second| second.second == time);
            let Work { queries, rows_read, updates, deletes, inserts } =
                second.map_or(Work::default(), |second| second.work);
            let mean = second.map_or(0.0, |second| super::summary::millis(second.response_mean));
            writeln!(
                out,
                "  <Stats label=\"cell {}, repetition {}, second {time}\" time=\"{time}\" users=\"{}\" avgResponseTime=\"{mean:.3}\" \
                 queries=\"{queries}\" queriesPerSecond=\"{queries}\" rowsRead=\"{rows_read}\" updates=\"{updates}\" \
                 deletes=\"{deletes}\" inserts=\"{inserts}\" interval=\"1\"/>",
                run.cell,
                run.repetition,
                escaped(users),
            )?;
        }
        writeln!(out, "</EvaluatorResults>")
    }
}

/// Text as an attribute's value; what XML has no letter for is left out.
fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn names_are_text_whatever_is_in_them() {
        assert_eq!(escaped("a \"b\" <c> & \u{1}d\n"), "a &quot;b&quot; &lt;c> &amp; d");
    }
}
