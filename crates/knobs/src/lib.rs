//! Knobs: values of a running program that can be changed while it runs.
//!
//! Each part of the program gives its own [`Knob`]s: what it is called (the same as in the configuration file), what it does, its default, its
//! range, how it is read and how it is set. [`Knobs`] has them all, checks what is asked for, changes it, and says what has changed.
//!
//! ```
//! use headwater_knobs::{Fault, Knob, Knobs, Live, Range, Value};
//!
//! let live = Live::new(200_u64);
//! let (read, set) = (live.clone(), live.clone());
//! let backlog = Knob {
//!     name: "server.backlog",
//!     effect: "syncs that may wait for a worker",
//!     default: Value::Whole(200),
//!     range: Range::Whole { least: 0, most: 1_000 },
//!     is_option: true,
//!     read: Box::new(move || Value::Whole(*read.now())),
//!     set: Box::new(move |value| Ok(set.put(value.whole()))),
//! };
//! let knobs = Knobs::new(vec![backlog]);
//! let changes = knobs.change(&[("server.backlog".into(), "50".into())]).unwrap();
//! assert_eq!((changes[0].to.to_string(), *live.now()), ("50".into(), 50));
//! assert!(matches!(knobs.change(&[("server.backlog".into(), "2000".into())]), Err(Fault::OutOfRange { .. })));
//! assert_eq!(*live.now(), 50, "what is refused changes nothing");
//! ```
//!
//! # A knob more
//!
//! Keep the value in a [`Live`] (or in an atomic number), read it where it is used, at each use, and give a [`Knob`] of it: there is nothing else to
//! be done, `headwater tune` shows it. Its test is [`contract`], which sets it to its bounds and reads it back; `docs/tuning.md` has a row for it.
//!
//! # Caveats
//!
//! - A change is one call: all that it names is set, or nothing. Others see one after the other.
//! - What a knob's reader gives is what was set. That somebody heeds it is for tests of those who do.

pub mod contract;
mod knobs;
mod live;
mod near;
pub mod packing;
mod value;

pub use knobs::{Change, Fault, Knob, Knobs, Read, Rule, Set, Shown};
pub use live::Live;
pub use near::nearest;
pub use value::{Range, Value};
