//! Time: the machine's, kept to microseconds, or that of a test, which jumps from one event to the next.

#[cfg(target_os = "linux")]
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The machine's, with the clients on so many threads.
    Real {
        /// At least 1.
        threads: usize,
    },
    /// That of the runtime that calls, with all clients on its thread: `tokio::time::pause` makes it virtual.
    Runtime,
}

impl Time {
    /// That the clients share.
    pub(crate) fn threads(self) -> usize {
        match self {
            Time::Real { threads } => threads,
            Time::Runtime => 1,
        }
    }
}

/// Waits for a moment. The runtime's own timers are kept to a millisecond, which would be read as response time; one of the kernel's
/// wakes the client within some tens of microseconds.
pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: Option<AsyncFd<rustix::fd::OwnedFd>>,
}

impl Alarm {
    #[cfg(target_os = "linux")]
    pub(super) fn new(time: Time) -> Alarm {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let is_real = matches!(time, Time::Real { .. });
        // Without a file to spare for it, the runtime's timers must do.
        let timer = is_real.then(|| timerfd_create(TimerfdClockId::Monotonic, flags).ok()).flatten();
        // SAFETY: the descriptor is owned by what is registered, and stays open and the same until that is dropped.
        #[expect(unsafe_code, reason = "registering a descriptor of the kernel's has no safe form")]
        let timer = timer.and_then(|timer| unsafe { AsyncFd::register(timer) }.ok());
        Alarm { timer }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new(_: Time) -> Alarm {
        Alarm {}
    }

    /// Returns at that moment or a little later, at once if it has passed. May be dropped before.
    pub(super) async fn wait_until(&mut self, moment: Instant) {
        #[cfg(target_os = "linux")]
        if self.wait_precisely(moment).await.is_some() {
            return;
        }
        tokio::time::sleep_until(moment).await;
    }

    #[cfg(target_os = "linux")]
    async fn wait_precisely(&mut self, moment: Instant) -> Option<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let timer = self.timer.as_ref()?;
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(());
            }
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Timespec { tv_sec: left.as_secs().try_into().ok()?, tv_nsec: left.subsec_nanos().into() };
            // Setting it anew also takes back an expiration that a wait before has left.
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value: value })
                .ok()?;
            let mut ready = timer.readable().await.ok()?;
            let _ = rustix::io::read(timer, &mut [0; 8]);
            ready.clear_ready();
        }
    }
}
