//! System calls of a process, counted by `perf stat` at the tracepoints that each of them passes: all of them, those of sockets too, which `/proc/PID/io`
//! leaves out, at a cost that does not show. What perf needs: to be there, and to be let (root, or kernel.perf_event_paranoid = -1).

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::NamedTempFile;

/// What is counted: all calls, and those that these programs make most of.
const EVENTS: [(&str, &str); 7] = [
    ("in all", "raw_syscalls:sys_enter"),
    ("sendto", "syscalls:sys_enter_sendto"),
    ("recvfrom", "syscalls:sys_enter_recvfrom"),
    ("epoll_wait", "syscalls:sys_enter_epoll_wait"),
    ("futex", "syscalls:sys_enter_futex"),
    ("write", "syscalls:sys_enter_write"),
    ("pread64", "syscalls:sys_enter_pread64"),
];
/// Said once it counts; it ends when its input does.
const HELD: &str = "echo counting; cat >/dev/null";

/// Calls by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Calls([f64; EVENTS.len()]);

/// A process whose calls are counted, its threads to come among them.
pub(super) struct Counting {
    perf: Child,
    held: ChildStdin,
    out: NamedTempFile,
}

/// Whether calls can be counted here; why not, is told.
pub(super) fn are_counted() -> bool {
    let counted = Counting::start(std::process::id()).and_then(Counting::stop);
    if let Err(error) = &counted {
        eprintln!("readprobe: no system calls are counted: {error:#}");
    }
    counted.is_ok()
}

impl Counting {
    pub(super) fn start(process: u32) -> Result<Counting> {
        let out = NamedTempFile::new()?;
        let events = EVENTS.map(|(_, event)| event).join(",");
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", &events, "-p", &process.to_string(), "-o"]).arg(out.path());
        command.args(["--", "sh", "-c", HELD]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut perf = command.spawn().context("perf could not be run")?;
        let held = perf.stdin.take().context("its input")?;
        let mut line = String::new();
        BufReader::new(perf.stdout.take().context("its output")?).read_line(&mut line)?;
        if line.trim() != "counting" {
            drop(held);
            perf.wait()?;
            let mut said = line;
            perf.stderr.take().context("its errors")?.read_to_string(&mut said)?;
            anyhow::bail!("perf stat does not count: {}", said.trim());
        }
        Ok(Counting { perf, held, out })
    }

    pub(super) fn stop(mut self) -> Result<Calls> {
        drop(self.held);
        let status = self.perf.wait()?;
        ensure!(status.success(), "perf stat has ended with {status}");
        parse(&std::fs::read_to_string(self.out.path())?)
    }
}

/// Lines of `NUMBER,UNIT,EVENT,...`.
fn parse(text: &str) -> Result<Calls> {
    let count = |event: &str| {
        let line =
            text.lines().map(|line| line.split(',').collect::<Vec<_>>()).find(|line| line.get(2) == Some(&event));
        let number = line.and_then(|line| line.first()?.parse::<f64>().ok());
        number.with_context(|| format!("perf stat has not counted {event}: {text}"))
    };
    let mut calls = Calls::default();
    for ((_, event), place) in EVENTS.into_iter().zip(&mut calls.0) {
        *place = count(event)?;
    }
    Ok(calls)
}

impl Calls {
    /// By so many: `0.031 (sendto 0.016, futex 0.010)`, without those that hardly are.
    pub(super) fn of_each(&self, many: f64) -> String {
        let [all, parts @ ..] = self.0.map(|count| count / many);
        let parts = EVENTS[1..].iter().zip(parts).filter(|(_, count)| *count >= all / 100.0 && *count > 0.0);
        let parts: Vec<String> = parts.map(|((name, _), count)| format!("{name} {}", short(count))).collect();
        if parts.is_empty() { short(all) } else { format!("{} ({})", short(all), parts.join(", ")) }
    }
}

/// With three digits.
fn short(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let digits = (2.0 - number.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{number:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_writes_is_read() {
        let lines: Vec<String> = EVENTS
            .iter()
            .enumerate()
            .map(|(place, (_, event))| format!("{},,{event},1000,100.00,,", [4_000, 2_000, 1_000, 0, 500, 0, 1][place]))
            .collect();
        let text = format!("# started on Thu\n\n{}\n", lines.join("\n"));
        let calls = parse(&text).expect("counts");
        assert_eq!(calls.of_each(1_000.0), "4.00 (sendto 2.00, recvfrom 1.00, futex 0.500)");
        assert_eq!(calls.of_each(1e6), "0.00400 (sendto 0.00200, recvfrom 0.00100, futex 0.000500)");
        assert_eq!(Calls::default().of_each(1.0), "0");
        let error = parse(&text.replace("500,,", "<not counted>,,")).expect_err("it has not counted");
        assert!(error.to_string().contains("sys_enter_futex"), "{error}");
    }
}
