//! Counters, and what was used between two readings of them.

use std::collections::HashMap;
use std::time::Duration;

/// What a process and all that it has started have used since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) cpu: Duration,
    /// Ready to run, and no processor was free.
    pub(super) ready: Duration,
    pub(super) rss: u64,
    pub(super) threads: u64,
    pub(super) voluntary_switches: u64,
    pub(super) involuntary_switches: u64,
    pub(super) read_calls: u64,
    pub(super) write_calls: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

/// What a process and all that it has started used since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// When the sample was taken, from the beginning of measuring.
    pub at: Duration,
    /// Since the sample before.
    pub span: Duration,
    /// Processor time.
    pub cpu: Duration,
    /// Time in which threads were ready to run and no processor was free, added up over the threads.
    pub ready: Duration,
    /// Bytes in memory at that moment; what processes share is counted in each.
    pub rss: u64,
    /// Threads at that moment.
    pub threads: u64,
    /// Times that a thread gave its processor away.
    pub voluntary_switches: u64,
    /// Times that it was taken from one.
    pub involuntary_switches: u64,
    /// System calls that read; 0 where the kernel does not tell (another user's process).
    pub read_calls: u64,
    /// System calls that wrote.
    pub write_calls: u64,
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks.
    pub written_bytes: u64,
}

/// Processor time since the beginning of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    /// By this process.
    pub(crate) own: Duration,
    /// Of the machine, by its host for others.
    pub(crate) stolen: Duration,
    /// Of the machine: busy, idle and stolen.
    pub(crate) all: Duration,
}

/// What the machine has done since it began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Machine {
    pub(super) busy: Duration,
    pub(super) idle: Duration,
    pub(super) waiting: Duration,
    /// The part of `busy` that the machine's host kept for others.
    pub(super) stolen: Duration,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    /// By name.
    pub(super) disks: HashMap<String, Disk>,
    pub(super) load: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Disk {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) busy: Duration,
}

/// What the machine did since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineUse {
    /// When the sample was taken, from the beginning of measuring.
    pub at: Duration,
    /// Since the sample before.
    pub span: Duration,
    /// Processor time in use, over all processors.
    pub busy: Duration,
    /// Processor time not in use, over all processors.
    pub idle: Duration,
    /// The part of it in which something waited for a disk.
    pub waiting: Duration,
    /// Over all of its network devices, the one to itself too.
    pub received_bytes: u64,
    /// The same.
    pub sent_bytes: u64,
    /// From the busiest disk.
    pub read_bytes: u64,
    /// To the busiest disk.
    pub written_bytes: u64,
    /// The time in which the busiest disk had something to do.
    pub disk: Duration,
    /// The load average of a minute, at that moment.
    pub load: f64,
}

impl Process {
    /// Counters go back where a process ends: then nothing is known of it for that span.
    pub(super) fn since(&self, before: &Process, at: Duration, span: Duration) -> ProcessUse {
        ProcessUse {
            at,
            span,
            cpu: self.cpu.saturating_sub(before.cpu),
            ready: self.ready.saturating_sub(before.ready),
            rss: self.rss,
            threads: self.threads,
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            write_calls: self.write_calls.saturating_sub(before.write_calls),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

impl Disk {
    fn since(&self, before: Option<&Disk>) -> Disk {
        let before = before.copied().unwrap_or(*self);
        Disk {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

impl Machine {
    pub(super) fn since(&self, before: &Machine, at: Duration, span: Duration) -> MachineUse {
        // A disk and its partitions are counted each by itself: adding them up would count twice.
        let disks = self.disks.iter().map(|(name, disk)| disk.since(before.disks.get(name)));
        let disk = disks.max_by_key(|disk| disk.busy).unwrap_or_default();
        MachineUse {
            at,
            span,
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            waiting: self.waiting.saturating_sub(before.waiting),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            read_bytes: disk.read_bytes,
            written_bytes: disk.written_bytes,
            disk: disk.busy,
            load: self.load,
        }
    }
}
