//! `[gateway.cursor]` of `headwater.toml`: what remote cursors may take, and how full their messages get.

use std::time::Duration;

use anyhow::Result;
use headwater_gateway::{CursorSettings, PIECE_BYTES_MAX};
use headwater_knobs::packing;
use headwater_protocol::packer::{Packing, Records};
use serde::Deserialize;

use crate::exit::usage;

/// The most cursors at a time, all or of one connection.
const CURSORS_MAX: usize = 400;
/// The longest that anything may be waited for.
const TIME_S_MAX: f64 = 30.0 * 24.0 * 3_600.0;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CursorSection {
    cursors_max: usize,
    connection_cursors_max: usize,
    time_out_s: f64,
    idle_s: f64,
    sql: bool,
    message_size: usize,
    #[serde(deserialize_with = "packing::records")]
    records: Records,
    fill: u8,
    delay_first: bool,
    priority: u16,
    idle_wait_ms: u64,
}

impl Default for CursorSection {
    fn default() -> CursorSection {
        let (usual, packing) = (CursorSettings::default(), Packing::default());
        CursorSection {
            cursors_max: usual.cursors_max,
            connection_cursors_max: usual.connection_cursors_max,
            time_out_s: usual.time_out.as_secs_f64(),
            idle_s: usual.idle.as_secs_f64(),
            sql: usual.sql,
            message_size: packing.message_size,
            records: packing.records,
            fill: packing.fill,
            delay_first: packing.delay_first,
            priority: packing.priority,
            idle_wait_ms: packing.idle_wait.as_millis() as u64,
        }
    }
}

impl CursorSection {
    /// As the gateway takes it. `serves_sql`: the Frontier protocol is served, which says whose SQL is run.
    pub(super) fn settings(&self, serves_sql: bool) -> Result<CursorSettings> {
        for (option, value) in
            [("cursors_max", self.cursors_max), ("connection_cursors_max", self.connection_cursors_max)]
        {
            if !(1..=CURSORS_MAX).contains(&value) {
                return Err(usage(format!("[gateway.cursor] {option} is {value}, expected 1 to {CURSORS_MAX}")));
            }
        }
        let time = |option, seconds: f64| {
            if seconds > 0.0 && seconds <= TIME_S_MAX {
                return Ok(Duration::from_secs_f64(seconds));
            }
            let expected = format!("expected more than 0, and at most {TIME_S_MAX}");
            Err(usage(format!("[gateway.cursor] {option} is {seconds}, {expected}")))
        };
        if self.sql && !serves_sql {
            let mend = "add [gateway.frontier], which says whose SQL is run, and by which role";
            return Err(usage(format!("[gateway.cursor] sql is true, and nobody's SQL is run here: {mend}")));
        }
        Ok(CursorSettings {
            cursors_max: self.cursors_max,
            connection_cursors_max: self.connection_cursors_max,
            time_out: time("time_out_s", self.time_out_s)?,
            idle: time("idle_s", self.idle_s)?,
            sql: self.sql,
            packing: self.packing()?,
        })
    }

    fn packing(&self) -> Result<Packing> {
        let CursorSection { message_size, records, fill, delay_first, priority, .. } = *self;
        let idle_wait = Duration::from_millis(self.idle_wait_ms);
        let packing = Packing { message_size, records, fill, delay_first, priority, idle_wait };
        packing.check().map_err(|error| usage(format!("[gateway.cursor] {error}")))?;
        Ok(packing)
    }
}

/// `[gateway.packing]`: how full the pieces of answers get that are sent as they come.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PackingSection {
    message_size: usize,
    #[serde(deserialize_with = "packing::records")]
    records: Records,
    fill: u8,
    delay_first: bool,
}

impl Default for PackingSection {
    fn default() -> PackingSection {
        let Packing { message_size, records, fill, delay_first, .. } = Packing::FULL;
        PackingSection { message_size, records, fill, delay_first }
    }
}

impl PackingSection {
    pub(super) fn packing(self) -> Result<Packing> {
        let PackingSection { message_size, records, fill, delay_first } = self;
        let packing = Packing { message_size, records, fill, delay_first, ..Packing::FULL };
        packing.check_within(PIECE_BYTES_MAX).map_err(|error| usage(format!("[gateway.packing] {error}")))?;
        Ok(packing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &str) -> Result<CursorSettings, String> {
        let section: CursorSection = toml::from_str(options).map_err(|error| error.to_string())?;
        section.settings(false).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        assert_eq!(settings(""), Ok(CursorSettings::default()));
        let set = settings("records = 64\nmessage_size = 8192\nidle_wait_ms = 2000\ntime_out_s = 0.5").expect("sound");
        assert_eq!((set.packing.records, set.packing.message_size), (Records::Exactly(64), 8_192));
        assert_eq!((set.packing.idle_wait, set.time_out), (Duration::from_secs(2), Duration::from_millis(500)));
        assert_eq!(settings("records = \"automatic\""), Ok(CursorSettings::default()));
    }

    #[test]
    fn what_is_out_of_range_is_told_by_its_name() {
        for (options, words) in [
            ("cursors_max = 0", "cursors_max is 0, expected 1 to 400"),
            ("connection_cursors_max = 401", "connection_cursors_max is 401"),
            ("idle_s = 0", "idle_s is 0, expected more than 0"),
            ("time_out_s = nan", "time_out_s is NaN"),
            ("sql = true", "sql is true, and nobody's SQL is run here: add [gateway.frontier]"),
            ("records = \"many\"", "records is \"many\", expected 1 to 32766, or \"automatic\""),
            ("records = 0", "records is 0, expected 1 to 32766, or \"automatic\""),
            ("message_size = 2000000", "message_size is 2000000, expected 350 to 1048576"),
            ("fill = 101", "fill is 101"),
            ("idle_wait_ms = 0", "idle_wait is 0ns"),
            ("mesage_size = 1", "unknown field `mesage_size`"),
        ] {
            let said = settings(options).expect_err(options);
            assert!(said.contains(words), "{said}");
        }
    }
}
