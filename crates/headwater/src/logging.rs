//! What is logged, which can be changed while a server runs.

use std::sync::{Arc, Mutex, PoisonError};

use headwater_knobs::{Knob, Range, Value};
use headwater_server::TUNING_LOG;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use crate::cli::{Cli, LogFilter, log_filter};
use crate::output;

/// The log of this process.
#[derive(Clone)]
pub struct Logging {
    now: Arc<Mutex<String>>,
    change: Arc<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>,
}

/// Logs go to stderr; a server says more than a command.
pub(crate) fn start(cli: &Cli) -> Logging {
    let asked = cli.global.log.as_ref().map(LogFilter::text).filter(|text| says_something(text));
    let filter = asked.unwrap_or(cli.command.usual_log()).to_owned();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(with_tuning(&filter))
        .with_writer(std::io::stderr)
        .with_ansi(output::is_colourful(&std::io::stderr()));
    let now = Arc::new(Mutex::new(filter));
    if cli.global.log_json {
        let logs = logs.json().flatten_event(true).with_filter_reloading();
        let change = changer(logs.reload_handle());
        logs.init();
        return Logging { now, change };
    }
    let logs = logs.with_filter_reloading();
    let change = changer(logs.reload_handle());
    logs.init();
    Logging { now, change }
}

/// What is logged, and whatever that is, who has changed a knob.
fn with_tuning(filter: &str) -> EnvFilter {
    EnvFilter::new(format!("{filter},{TUNING_LOG}=info"))
}

/// An empty filter would log errors alone, by no rule that anybody has read.
fn says_something(filter: &str) -> bool {
    filter.split(',').any(|part| !part.trim().is_empty())
}

fn changer<S: 'static>(handle: Handle<EnvFilter, S>) -> Arc<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync> {
    Arc::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
}

impl Logging {
    /// What is logged, as a knob.
    pub(crate) fn knob(&self) -> Knob {
        let (to_read, to_change) = (self.clone(), self.clone());
        Knob {
            name: "log",
            effect: "what is logged, for as long as the server runs",
            default: Value::Word("info".to_owned()),
            range: Range::Text {
                check: |text| if says_something(text) { log_filter(text).map(drop) } else { Err("empty".to_owned()) },
                what: "a level, or parts with one",
                examples: &["off", "trace", "headwater_server=debug,info"],
                wrong: &["wran", "info,wran", " ", ", ,"],
            },
            is_option: false,
            read: Box::new(move || Value::Word(to_read.now.lock().unwrap_or_else(PoisonError::into_inner).clone())),
            set: Box::new(move |value| to_change.set(&value.to_string())),
        }
    }

    fn set(&self, text: &str) -> Result<(), String> {
        log_filter(text)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (self.change)(with_tuning(text))?;
        text.clone_into(&mut now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Lines;

        fn make_writer(&self) -> Lines {
            self.clone()
        }
    }

    #[test]
    fn changes_of_knobs_are_logged_whatever_the_filter_says() {
        for (filter, is_other_logged) in [
            ("info", true),
            ("warn", false),
            ("off", false),
            ("headwater=off", false),
            ("headwater::tune=off", false),
            ("headwater_server=debug,error", false),
            ("trace,headwater::tune=error", true),
        ] {
            let lines = Lines::default();
            let logs = tracing_subscriber::fmt().with_env_filter(with_tuning(filter)).with_writer(lines.clone());
            tracing::subscriber::with_default(logs.finish(), || {
                tracing::info!(target: TUNING_LOG, "a knob was changed");
                tracing::info!(target: "elsewhere", "something else");
            });
            let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
            assert!(text.contains("a knob was changed"), "{filter}: {text}");
            assert_eq!(text.contains("something else"), is_other_logged, "{filter}: {text}");
        }
    }
}
