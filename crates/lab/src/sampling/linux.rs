//! What Linux tells of itself in `/proc`.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process as Entry, Stat};
use procfs::{Current as _, CurrentSI as _, KernelStats};

use super::Find;
use super::counters::{Disk, Machine, Process, Spent};

/// A sector of `/proc/diskstats`, on every machine.
const SECTOR: u64 = 512;
/// How far two clocks may tell the start of one process differently, in seconds.
const SAME_START: f64 = 2.0;

/// Every process there is, with its `stat`.
pub(super) type All = Vec<(Entry, Stat)>;

/// The processes that there are now.
pub(super) fn processes() -> All {
    let all = procfs::process::all_processes().into_iter().flatten();
    all.filter_map(|process| process.ok().and_then(|process| process.stat().ok().map(|stat| (process, stat)))).collect()
}

/// This process alone: what it has started, a database perhaps, is not the lab.
pub(super) fn own(all: &All) -> Option<Process> {
    let (entry, stat) = all.iter().find(|(_, stat)| stat.pid == std::process::id() as i32)?;
    let mut own = Process::default();
    let mut alone = stat.clone();
    (alone.cutime, alone.cstime) = (0, 0);
    add(&mut own, entry, &alone);
    Some(own)
}

/// The processes of these roots and all below them; none: there is none of them.
pub(super) fn of_tree(all: &All, roots: &[i32]) -> Option<Process> {
    let mut sum = None;
    for place in places(all, roots) {
        let (entry, stat) = &all[place];
        add(sum.get_or_insert_with(Process::default), entry, stat);
    }
    sum
}

/// The IDs of a process and all below it.
pub(crate) fn tree(root: i32) -> Vec<i32> {
    let all = processes();
    places(&all, &[root]).into_iter().map(|place| all[place].1.pid).collect()
}

/// Where these roots and all below them are.
fn places(all: &All, roots: &[i32]) -> Vec<usize> {
    let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
    for (place, (_, stat)) in all.iter().enumerate() {
        children.entry(stat.ppid).or_default().push(place);
    }
    let mut todo: Vec<usize> = (0..all.len()).filter(|place| roots.contains(&all[*place].1.pid)).collect();
    let mut places = Vec::new();
    while let Some(place) = todo.pop() {
        places.push(place);
        let below = children.get(&all[place].1.pid).into_iter().flatten();
        todo.extend(below.filter(|below| !roots.contains(&all[**below].1.pid)));
    }
    places
}

fn add(sum: &mut Process, entry: &Entry, stat: &Stat) {
    // With the time of children that have ended and were waited for: a server's sessions come and go.
    let ticks = stat.utime + stat.stime + (stat.cutime + stat.cstime).max(0) as u64;
    sum.cpu += Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64);
    sum.rss += stat.rss * procfs::page_size();
    sum.threads += stat.num_threads.max(0) as u64;
    for task in entry.tasks().into_iter().flatten().flatten() {
        sum.ready += Duration::from_nanos(task.schedstat().map_or(0, |times| times.run_delay));
        if let Ok(status) = task.status() {
            sum.voluntary_switches += status.voluntary_ctxt_switches.unwrap_or(0);
            sum.involuntary_switches += status.nonvoluntary_ctxt_switches.unwrap_or(0);
        }
    }
    if let Ok(io) = entry.io() {
        sum.read_calls += io.syscr;
        sum.write_calls += io.syscw;
        sum.read_bytes += io.read_bytes;
        sum.written_bytes += io.write_bytes;
    }
}

/// The machine; none where `/proc` does not tell.
pub(super) fn machine() -> Option<Machine> {
    let total = KernelStats::current().ok()?.total;
    let of = |time: Option<Duration>| time.unwrap_or_default();
    let networks = procfs::net::dev_status().unwrap_or_default();
    let disks = procfs::diskstats().unwrap_or_default();
    Some(Machine {
        busy: total.user_duration()
            + total.nice_duration()
            + total.system_duration()
            + of(total.irq_duration())
            + of(total.softirq_duration())
            + of(total.steal_duration()),
        idle: total.idle_duration() + of(total.iowait_duration()),
        waiting: of(total.iowait_duration()),
        stolen: of(total.steal_duration()),
        received_bytes: networks.values().map(|device| device.recv_bytes).sum(),
        sent_bytes: networks.values().map(|device| device.sent_bytes).sum(),
        disks: disks.into_iter().map(|disk| (disk.name.clone(), of_disk(&disk))).collect(),
        load: procfs::LoadAverage::current().map_or(0.0, |load| f64::from(load.one)),
    })
}

/// Processor time, of this process and of the machine.
pub(crate) fn spent() -> Option<Spent> {
    let stat = Entry::myself().and_then(|process| process.stat()).ok()?;
    let own = Duration::from_secs_f64((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64);
    let Machine { busy, idle, stolen, .. } = machine()?;
    Some(Spent { own, stolen, all: busy + idle })
}

fn of_disk(disk: &procfs::DiskStat) -> Disk {
    Disk {
        read_bytes: disk.sectors_read * SECTOR,
        written_bytes: disk.sectors_written * SECTOR,
        busy: Duration::from_millis(disk.time_in_progress),
    }
}

/// The IDs of the uppermost processes that are meant; an error says what was looked for and not found.
pub(super) fn roots(find: &Find, folder: &Path) -> Result<Vec<i32>, String> {
    let all = processes();
    let meant: HashSet<i32> = match find {
        Find::Port(port) => listening(&all, *port)?,
        Find::PidFile(file) => {
            let text = std::fs::read_to_string(folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
            // PostgreSQL's has the ID in its first line.
            let pid = text.lines().next().unwrap_or_default().trim();
            let pid: i32 = pid.parse().map_err(|_| format!("{file} has no process ID in its first line"))?;
            all.iter().map(|(_, stat)| stat.pid).filter(|known| *known == pid).collect()
        }
        Find::Command(name) => all.iter().filter(|(_, stat)| stat.comm == *name).map(|(_, stat)| stat.pid).collect(),
    };
    let is_root = |stat: &&Stat| meant.contains(&stat.pid) && !meant.contains(&stat.ppid);
    let roots: Vec<i32> = all.iter().map(|(_, stat)| stat).filter(is_root).map(|stat| stat.pid).collect();
    if roots.is_empty() { Err(format!("there is not {find}")) } else { Ok(roots) }
}

fn listening(all: &All, port: u16) -> Result<HashSet<i32>, String> {
    let unread = |error: procfs::ProcError| format!("the sockets of this machine can't be read: {error}");
    let sockets = procfs::net::tcp().map_err(unread)?.into_iter().chain(procfs::net::tcp6().unwrap_or_default());
    let listening = sockets.filter(|socket| socket.state == TcpState::Listen && socket.local_address.port() == port);
    let inodes: HashSet<u64> = listening.map(|socket| socket.inode).collect();
    let has = |process: &Entry| {
        let mut files = process.fd().into_iter().flatten().flatten();
        files.any(|file| matches!(file.target, FDTarget::Socket(inode) if inodes.contains(&inode)))
    };
    Ok(all.iter().filter(|(process, _)| has(process)).map(|(_, stat)| stat.pid).collect())
}

/// The parent of the process that has this ID here and began at that second since 1970: another machine's ID may be in use here too.
pub(super) fn parent_of(pid: i32, start: f64) -> Option<i32> {
    began_at(pid, start).then(|| Some(Entry::new(pid).ok()?.stat().ok()?.ppid)).flatten()
}

/// Whether the process that has this ID here began at that second since 1970.
pub(super) fn began_at(pid: i32, start: f64) -> bool {
    began(pid).is_some_and(|began| (began - start).abs() < SAME_START)
}

fn began(pid: i32) -> Option<f64> {
    let process = Entry::new(pid).ok()?.stat().ok()?;
    let uptime = Duration::from_secs_f64(procfs::Uptime::current().ok()?.uptime);
    let booted = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.checked_sub(uptime)?.as_secs_f64();
    Some(booted + process.starttime as f64 / procfs::ticks_per_second() as f64)
}
