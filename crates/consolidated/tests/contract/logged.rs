//! What the server's log says of something.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `WARN name=value name=value`
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {}={value}", field.name());
    }
}

/// The lines that this thread logs while `run` runs, and what it gives.
pub(crate) fn logged<T>(run: impl FnOnce() -> T) -> (Vec<String>, T) {
    let log = Log::default();
    let done = tracing::subscriber::with_default(log.clone(), run);
    let lines = std::mem::take(&mut *log.0.lock().expect("no panic"));
    (lines, done)
}

/// The one line that has all of these words.
pub(crate) fn only<'l>(lines: &'l [String], words: &[&str]) -> &'l str {
    let found: Vec<&String> = lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).collect();
    assert_eq!(found.len(), 1, "{words:?} in {lines:#?}");
    found[0]
}
