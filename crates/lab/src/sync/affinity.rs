//! On which processors a process may run. Linux alone has this; elsewhere asking for it is an error.

#[cfg(target_os = "linux")]
mod system {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// What `start` starts may run on the first so many processors of those that this thread has.
    pub(in super::super) fn confined<T>(processors: usize, start: impl FnOnce() -> T) -> Result<T, String> {
        let own = sched_getaffinity(None).map_err(|error| error.to_string())?;
        sched_setaffinity(None, &first(processors, &own)?).map_err(|error| error.to_string())?;
        let started = start();
        sched_setaffinity(None, &own).map_err(|error| error.to_string())?;
        Ok(started)
    }

    /// Processes that are confined until this is dropped; what they start meanwhile is too.
    pub(in super::super) struct Confined {
        root: i32,
        before: CpuSet,
    }

    impl Confined {
        /// This process and all below it may run on the first so many processors of those that it has.
        pub(in super::super) fn tree(root: i32, processors: usize) -> Result<Confined, String> {
            let failed = |error: rustix::io::Errno| format!("the processors of process {root}: {error}");
            let before = sched_getaffinity(Pid::from_raw(root)).map_err(failed)?;
            let first = first(processors, &before)?;
            let confined = Confined { root, before };
            set(root, &first).map_err(failed)?;
            Ok(confined)
        }
    }

    impl Drop for Confined {
        fn drop(&mut self) {
            // Nobody is left who could be told; a process that has ended needs nothing.
            let _ = set(self.root, &self.before);
        }
    }

    /// The root first: what it starts from then on has the set already.
    fn set(root: i32, processors: &CpuSet) -> rustix::io::Result<()> {
        sched_setaffinity(Pid::from_raw(root), processors)?;
        for process in crate::sampling::tree(root) {
            match sched_setaffinity(Pid::from_raw(process), processors) {
                Err(rustix::io::Errno::SRCH) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn first(count: usize, of: &CpuSet) -> Result<CpuSet, String> {
        let mut first = CpuSet::new();
        let all = (0..CpuSet::MAX_CPU).filter(|place| of.is_set(*place));
        all.take(count).for_each(|place| first.set(place));
        if (first.count() as usize) < count {
            return Err(format!("there are {} processors, not {count}", of.count()));
        }
        Ok(first)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    const WHY: &str = "only Linux can have a process run on some processors";

    pub(in super::super) fn confined<T>(_: usize, _: impl FnOnce() -> T) -> Result<T, String> {
        Err(WHY.to_owned())
    }

    pub(in super::super) struct Confined;

    impl Confined {
        pub(in super::super) fn tree(_: i32, _: usize) -> Result<Confined, String> {
            Err(WHY.to_owned())
        }
    }
}

pub(super) use system::{Confined, confined};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::process::Pid;
    use rustix::thread::sched_getaffinity;

    use super::*;

    fn processors(process: Option<u32>) -> usize {
        let process = process.and_then(|process| Pid::from_raw(process as i32));
        sched_getaffinity(process).expect("it runs").count() as usize
    }

    fn sleeper(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("sh starts")
    }

    #[test]
    fn what_is_started_confined_stays_so_and_nothing_else_does() {
        let all = processors(None);
        let mut started = confined(1, || sleeper("exec sleep 100")).expect("one processor");
        assert_eq!((processors(Some(started.id())), processors(None)), (1, all));
        let mut free = sleeper("exec sleep 100");
        assert_eq!(processors(Some(free.id())), all);
        let too_many = confined(all + 1, || ()).expect_err("there are not so many");
        assert_eq!((too_many, processors(None)), (format!("there are {all} processors, not {}", all + 1), all));
        for process in [&mut started, &mut free] {
            process.kill().and_then(|()| process.wait()).expect("it ends");
        }
    }

    #[test]
    fn a_process_is_confined_with_what_it_has_started_and_set_free_again() {
        use std::io::{BufRead as _, BufReader};

        let mut parent = sleeper("sleep 100 & echo $!; wait");
        let mut line = String::new();
        BufReader::new(parent.stdout.take().expect("piped")).read_line(&mut line).expect("the child's ID");
        let child = line.trim().parse().expect("a number");
        let before = (processors(Some(parent.id())), processors(Some(child)));
        let confined = Confined::tree(parent.id() as i32, 1).expect("its own process");
        assert_eq!((processors(Some(parent.id())), processors(Some(child))), (1, 1));
        drop(confined);
        assert_eq!((processors(Some(parent.id())), processors(Some(child))), before);
        let _ = Command::new("kill").arg(child.to_string()).status();
        parent.kill().and_then(|()| parent.wait()).expect("it ends");
    }
}
