//! What is logged, which can be changed while a server runs.

use std::sync::{Arc, Mutex, PoisonError};

use headwater_knobs::{Knob, Range, Value};
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
    let filter = cli.global.log.as_ref().map_or(cli.command.usual_log(), LogFilter::text).to_owned();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&filter))
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
                check: |text| log_filter(text).map(drop),
                what: "a level, or parts with one",
                examples: &["off", "trace", "headwater_server=debug,info"],
                wrong: &["wran", "info,wran"],
            },
            is_option: false,
            read: Box::new(move || Value::Word(to_read.now.lock().unwrap_or_else(PoisonError::into_inner).clone())),
            set: Box::new(move |value| to_change.set(&value.to_string())),
        }
    }

    fn set(&self, text: &str) -> Result<(), String> {
        log_filter(text)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        // Afterwards nobody may hear of it.
        tracing::info!(target: "headwater::tune", from = *now, to = text, "what is logged changes");
        (self.change)(EnvFilter::new(text))?;
        text.clone_into(&mut now);
        Ok(())
    }
}
