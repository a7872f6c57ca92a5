//! The runs of the sort groups: in memory up to the budget, then in temporary files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::merge::{Cursor, Merge, Run};
use crate::options::Knobs;
use crate::temporary::{DiskRun, Places};
use crate::usage::{Phase, Recorder};

/// Bytes that are written to a temporary file at a time.
const PIECE: usize = 256 << 10;

/// Files that runs may have open where the system sets no lower limit.
const FILES_MAX: usize = 4096;

/// A quarter of the files that this process may have open: others are the database's, and of whoever else is in the process.
fn files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(FILES_MAX, |limit| usize::try_from(limit / 4).unwrap_or(FILES_MAX).clamp(2, FILES_MAX))
}

/// The runs of all groups of a table.
pub(crate) struct Store<'k> {
    groups: Mutex<Vec<Vec<Run>>>,
    /// Bytes of runs in memory, those that are being written included.
    used: AtomicU64,
    knobs: &'k Knobs,
    places: Arc<Places>,
    /// Files that may be open before runs are merged to have fewer.
    files_max: usize,
}

impl<'k> Store<'k> {
    /// Without a run.
    pub(crate) fn new(knobs: &'k Knobs, places: &Arc<Places>) -> Store<'k> {
        let groups = (0..knobs.groups).map(|_| Vec::new()).collect();
        Store {
            groups: Mutex::new(groups),
            used: AtomicU64::new(0),
            knobs,
            places: Arc::clone(places),
            files_max: files_max(),
        }
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Vec<Run>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes all runs have.
    pub(crate) fn bytes(&self) -> u64 {
        self.groups().iter().flatten().map(Run::length).sum()
    }

    /// How many bytes the runs of a group have.
    pub(crate) fn bytes_of(&self, group: usize) -> u64 {
        self.groups()[group].iter().map(Run::length).sum()
    }

    /// Adds a sorted block to a group, and makes room where the budget is overdrawn.
    pub(crate) fn add(&self, group: usize, run: Vec<u8>, thread: usize, usage: &Recorder) -> Result<(), Error> {
        let length = run.len() as u64;
        self.groups()[group].push(Run::Memory(run));
        let used = self.used.fetch_add(length, Ordering::Relaxed) + length;
        if used > self.knobs.for_runs()
            && let Some((group, runs)) = self.take_largest()
        {
            let mut span = usage.span(thread, Some(group), Phase::Spill);
            let run = self.to_disk(runs)?;
            span.wrote(run.length());
            self.groups()[group].push(Run::Disk(run));
            drop(span);
            self.close_files(thread, usage)?;
        }
        Ok(())
    }

    /// Merges runs on disk while they have too many files open, the smallest of the group that has most of them.
    fn close_files(&self, thread: usize, usage: &Recorder) -> Result<(), Error> {
        while self.places.files() > self.files_max
            && let Some((group, runs)) = self.take_smallest()
        {
            let mut span = usage.span(thread, Some(group), Phase::Merge);
            span.read(runs.iter().map(Run::length).sum());
            let run = self.to_disk(runs)?;
            span.wrote(run.length());
            self.groups()[group].push(Run::Disk(run));
        }
        Ok(())
    }

    /// Takes the smaller half of the runs on disk out of the group that has most of them, as many as are merged at a time at the most. Those that
    /// other threads merge just now are in no group.
    fn take_smallest(&self) -> Option<(usize, Vec<Run>)> {
        let mut groups = self.groups();
        let on_disk = |runs: &Vec<Run>| runs.iter().filter(|run| run.is_on_disk()).count();
        let group = (0..groups.len()).max_by_key(|&group| on_disk(&groups[group]))?;
        let count = on_disk(&groups[group]);
        if count < 2 {
            return None;
        }
        let (mut disk, memory): (Vec<Run>, Vec<Run>) = groups[group].drain(..).partition(Run::is_on_disk);
        disk.sort_by_key(|run| std::cmp::Reverse(run.length()));
        let taken = disk.split_off(count - (count / 2).clamp(2, self.knobs.merge_width));
        groups[group] = memory;
        groups[group].extend(disk);
        Some((group, taken))
    }

    /// Takes runs in memory out of the group that has most of them, a merge block of them at the most.
    fn take_largest(&self) -> Option<(usize, Vec<Run>)> {
        let mut groups = self.groups();
        let weight = |runs: &Vec<Run>| runs.iter().map(Run::in_memory).sum::<usize>();
        let group = (0..groups.len()).max_by_key(|&group| weight(&groups[group]))?;
        let mut taken = Vec::new();
        let mut amount = 0;
        let mut kept = Vec::new();
        for run in groups[group].drain(..) {
            let fits = amount == 0 || amount + run.length() <= self.knobs.merge_block;
            if run.in_memory() > 0 && fits {
                amount += run.length();
                taken.push(run);
            } else {
                kept.push(run);
            }
        }
        groups[group] = kept;
        (!taken.is_empty()).then_some((group, taken))
    }

    /// Merges runs into one on disk.
    fn to_disk(&self, runs: Vec<Run>) -> Result<DiskRun, Error> {
        let in_memory: u64 = runs.iter().map(|run| run.in_memory() as u64).sum();
        let mut merged = DiskRun::new(&self.places);
        let buffer = self.knobs.buffer(runs.len());
        let mut merge = Merge::new(runs.into_iter().map(|run| Cursor::new(run, buffer)).collect());
        merge.pieces(PIECE, |piece| merged.append(&piece))?;
        self.used.fetch_sub(in_memory, Ordering::Relaxed);
        Ok(merged)
    }

    /// The runs of a group, merged until there are no more of them than are merged at a time.
    pub(crate) fn take(&self, group: usize, thread: usize, usage: &Recorder) -> Result<Vec<Run>, Error> {
        let mut runs = std::mem::take(&mut self.groups()[group]);
        while runs.len() > self.knobs.merge_width {
            let mut span = usage.span(thread, Some(group), Phase::Merge);
            // The smallest ones cost least.
            runs.sort_by_key(|run| std::cmp::Reverse(run.length()));
            let excess = runs.len() - self.knobs.merge_width + 1;
            let share = runs.split_off(runs.len() - excess.min(self.knobs.merge_width));
            span.read(share.iter().filter(|run| run.in_memory() == 0).map(Run::length).sum());
            let run = self.merged(share)?;
            span.wrote(if run.is_on_disk() { run.length() } else { 0 });
            runs.push(run);
        }
        Ok(runs)
    }

    /// Merges runs into one: on disk, or in memory where all of them are and too many files are open.
    fn merged(&self, runs: Vec<Run>) -> Result<Run, Error> {
        if runs.iter().any(Run::is_on_disk) || self.places.files() < self.files_max {
            return self.to_disk(runs).map(Run::Disk);
        }
        let mut merged = Vec::with_capacity(runs.iter().map(Run::in_memory).sum());
        let mut merge = Merge::new(runs.into_iter().map(|run| Cursor::new(run, 0)).collect());
        merge.pieces(PIECE, |piece| {
            merged.extend_from_slice(&piece);
            Ok(())
        })?;
        Ok(Run::Memory(merged))
    }
}
