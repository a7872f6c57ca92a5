//! A rebuild's phases in numbers, and drawn over time by thread.

use std::time::Duration;

use crate::report::Report;
use crate::usage::{Phase, Span};

/// What a phase took.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PhaseUsage {
    /// The phase.
    pub phase: Phase,
    /// How long any thread was in it.
    pub elapsed: Duration,
    /// Processor time of all its threads.
    pub cpu: Duration,
    /// Bytes read from the database and from temporary files.
    pub read: u64,
    /// Bytes written to them.
    pub written: u64,
}

impl Phase {
    const ALL: [Phase; 10] = [
        Phase::Sqlite,
        Phase::IndexScan,
        Phase::DataScan,
        Phase::Spill,
        Phase::Merge,
        Phase::Insert,
        Phase::Write,
        Phase::Verify,
        Phase::IntegrityCheck,
        Phase::Commit,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Sqlite => "built by SQLite",
            Phase::IndexScan => "index scan",
            Phase::DataScan => "data scan, key build",
            Phase::Spill => "spill",
            Phase::Merge => "merge",
            Phase::Insert => "key insertion",
            Phase::Write => "page writing",
            Phase::Verify => "verify",
            Phase::IntegrityCheck => "integrity check",
            Phase::Commit => "commit",
        }
    }

    /// Its letter in a drawing.
    pub fn letter(self) -> char {
        match self {
            Phase::Sqlite => 'Q',
            Phase::IndexScan => 'x',
            Phase::DataScan => 's',
            Phase::Spill => 'p',
            Phase::Merge => 'm',
            Phase::Insert => 'i',
            Phase::Write => 'w',
            Phase::Verify => 'v',
            Phase::IntegrityCheck => 'I',
            Phase::Commit => 'c',
        }
    }
}

impl Report {
    /// What each phase took, in their order; those that there were.
    pub fn phases(&self) -> Vec<PhaseUsage> {
        let usage = |phase| {
            let spans: Vec<&Span> = self.spans.iter().filter(|span| span.phase == phase).collect();
            (!spans.is_empty()).then(|| PhaseUsage {
                phase,
                elapsed: covered(&spans),
                cpu: spans.iter().map(|span| span.cpu).sum(),
                read: spans.iter().map(|span| span.read).sum(),
                written: spans.iter().map(|span| span.written).sum(),
            })
        };
        Phase::ALL.into_iter().filter_map(usage).collect()
    }

    /// The phases over time: a line of so many letters for each thread, and below it one with the sort group that it worked for.
    pub fn drawing(&self, width: usize) -> Vec<String> {
        let threads = self.spans.iter().map(|span| span.thread + 1).max().unwrap_or(0);
        let mut lines = Vec::new();
        for thread in 0..threads {
            let spans: Vec<&Span> = self.spans.iter().filter(|span| span.thread == thread).collect();
            let cells: Vec<Option<&Span>> = (0..width).map(|cell| self.longest(&spans, cell, width)).collect();
            let phases: String = cells.iter().map(|cell| cell.map_or('.', |span| span.phase.letter())).collect();
            lines.push(format!("thread {thread:>2}  {phases}"));
            let groups: String = cells.iter().map(|cell| cell.and_then(|span| span.group).map_or(' ', digit)).collect();
            if groups.trim() != "" {
                lines.push(format!("   group   {}", groups.trim_end()));
            }
        }
        lines
    }

    /// What a thread did for the longest part of one cell; inner phases before those around them.
    fn longest<'s>(&self, spans: &[&'s Span], cell: usize, width: usize) -> Option<&'s Span> {
        let edge = |cell: usize| self.elapsed.mul_f64(cell as f64 / width as f64);
        let (from, to) = (edge(cell), edge(cell + 1));
        let within = |span: &&&Span| span.end.min(to).saturating_sub(span.start.max(from));
        let whole = |span: &&&Span| std::cmp::Reverse(span.end.saturating_sub(span.start));
        spans
            .iter()
            .filter(|span| !within(span).is_zero())
            .max_by_key(|span| (within(span).as_micros(), whole(span)))
            .copied()
    }
}

/// How long at least one of the spans lasted.
fn covered(spans: &[&Span]) -> Duration {
    let mut times: Vec<(Duration, Duration)> = spans.iter().map(|span| (span.start, span.end)).collect();
    times.sort_unstable();
    let mut covered = Duration::ZERO;
    let mut until = Duration::ZERO;
    for (start, end) in times {
        covered += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    covered
}

fn digit(group: usize) -> char {
    u32::try_from(group % 36).ok().and_then(|digit| char::from_digit(digit, 36)).unwrap_or('*')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::covered;
    use crate::options::Knobs;
    use crate::report::Report;
    use crate::usage::{Phase, Span};

    fn span(thread: usize, phase: Phase, group: Option<usize>, start: u64, end: u64) -> Span {
        let (start, end) = (Duration::from_secs(start), Duration::from_secs(end));
        Span { thread, group, phase, start, end, cpu: end.saturating_sub(start), read: 1, written: 2 }
    }

    fn report() -> Report {
        Report {
            indexes: Vec::new(),
            tables: Vec::<(String, Knobs)>::new(),
            spans: vec![
                span(0, Phase::DataScan, None, 0, 4),
                span(1, Phase::DataScan, None, 0, 3),
                span(1, Phase::Insert, Some(1), 4, 10),
                span(0, Phase::Write, None, 5, 10),
            ],
            elapsed: Duration::from_secs(10),
            integrity_checked: false,
        }
    }

    #[test]
    fn time_that_two_threads_share_counts_once() {
        let [a, b] = [span(0, Phase::Merge, None, 1, 4), span(1, Phase::Merge, None, 2, 6)];
        assert_eq!(covered(&[&a, &b]), Duration::from_secs(5));
        let phases = report().phases();
        let scan = phases.iter().find(|usage| usage.phase == Phase::DataScan).expect("a scan");
        assert_eq!((scan.elapsed.as_secs(), scan.cpu.as_secs(), scan.read, scan.written), (4, 7, 2, 4));
    }

    #[test]
    fn each_thread_has_its_line_and_its_groups_below() {
        let drawn = report().drawing(10);
        assert_eq!(drawn, ["thread  0  ssss.wwwww", "thread  1  sss.iiiiii", "   group       111111"]);
    }
}
