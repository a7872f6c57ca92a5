//! What commands say: tables and lines for people, JSON for programs, progress for whoever sits at a terminal.
//!
//! Answers go to stdout, everything else to stderr. Colours only on a terminal, and never with `NO_COLOR` (no-color.org).

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;

/// A line under the head, and none elsewhere: as many rows on a screen as there can be.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction(' '));

/// What a progress bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Rows.
    Rows,
    /// Bytes.
    Bytes,
    /// Parts of a whole, of which only the share is told.
    Share,
    /// Nothing: it only shows that there is work.
    None,
}

/// Says things in the way that was asked for.
#[derive(Debug)]
pub struct Output {
    is_json: bool,
}

impl Output {
    /// In JSON, or for people.
    pub fn new(is_json: bool) -> Output {
        Output { is_json }
    }

    /// Whether a program is to read the answer.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// Answers with the value as JSON, or by what `people` writes.
    pub fn answer(&self, value: &impl Serialize, people: impl FnOnce(&Output) -> Result<()>) -> Result<()> {
        if !self.is_json {
            return people(self);
        }
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
        writeln!(out)?;
        Ok(())
    }

    /// Writes a line.
    pub fn line(&self, text: impl std::fmt::Display) -> Result<()> {
        writeln!(std::io::stdout().lock(), "{text}")?;
        Ok(())
    }

    /// Says something beside the answer, to whoever is watching; programs don't get it.
    pub fn note(&self, text: impl std::fmt::Display) {
        if !self.is_json {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }

    /// The same where programs are to know it too, before the answer; they get it with what it is about.
    pub fn announce(&self, text: &str, about: &serde_json::Value) {
        self.note(text);
        self.event("note", text, about);
    }

    /// The same where it is about something that will go wrong.
    pub fn warn(&self, text: &str, about: &serde_json::Value) {
        let (on, off) = if is_colourful(&std::io::stderr()) { ("\x1b[1;33m", "\x1b[0m") } else { ("", "") };
        self.note(format!("{on}warning{off}: {text}"));
        self.event("warning", text, about);
    }

    fn event(&self, name: &str, text: &str, about: &serde_json::Value) {
        if self.is_json {
            let _ = writeln!(std::io::stderr().lock(), "{}", serde_json::json!({ name: text, "about": about }));
        }
    }

    /// Writes a table, columns of numbers to the right; nothing where there are no rows.
    pub fn table(&self, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        let printable = |row: Vec<String>| row.iter().map(|cell| printable(cell)).collect::<Vec<_>>();
        let rows: Vec<Vec<String>> = rows.into_iter().map(printable).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let is_number = |cell: &String| cell.bytes().all(|b| b.is_ascii_digit() || b == b',');
        let is_numeric = |place: usize| rows.iter().all(|row| row.get(place).is_some_and(is_number));
        let right: Vec<bool> = (0..head.len()).map(is_numeric).collect();
        let mut table = Table::new();
        table.load_style(STYLE).set_header(head.to_vec()).add_rows(rows);
        for (column, _) in table.column_iter_mut().zip(right).filter(|(_, is_right)| *is_right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.lines().try_for_each(|line| self.line(line.trim_end()))
    }

    /// A progress bar on a terminal, otherwise something that shows nothing.
    pub fn progress(&self, doing: impl Into<String>) -> ProgressBar {
        if self.is_json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        self.restart(&bar, doing.into(), Unit::Rows, None);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// Begins another part of the work on the same progress bar, counted in another unit. `total`: how much there is, if it is known.
    pub fn restart(&self, bar: &ProgressBar, doing: impl Into<String>, unit: Unit, total: Option<u64>) {
        let counts = match (unit, total.is_some()) {
            (Unit::None, _) => "",
            (Unit::Share, _) => "{wide_bar} {percent} %  {eta}  ",
            (Unit::Rows, false) => "{human_pos} rows  {rate}  ",
            (Unit::Rows, true) => "{wide_bar} {percent} %  {human_pos} of {human_len} rows  {eta}  ",
            (Unit::Bytes, false) => "{bytes}  {bytes_per_sec}  ",
            (Unit::Bytes, true) => "{wide_bar} {percent} %  {bytes} of {total_bytes}  {eta}  ",
        };
        if let Ok(style) = ProgressStyle::with_template(&format!("{{spinner}} {{msg}}  {counts}{{elapsed}}")) {
            let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                // A rate that can't be written is not worth an error.
                let _ = write!(out, "{}/s", thousands(state.per_sec() as u64));
            };
            bar.set_style(style.with_key("rate", rate));
        }
        bar.reset_eta();
        bar.set_position(0);
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_message(doing.into());
    }

    /// Tells an error: its texts from the outside in.
    pub fn error(&self, texts: &[String], exit: Exit) {
        let mut err = std::io::stderr().lock();
        let written = if self.is_json {
            let value = serde_json::json!({ "error": texts.first(), "causes": texts.get(1..), "exit": exit as u8 });
            writeln!(err, "{value}")
        } else {
            let (on, off) = if is_colourful(&err) { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
            // They may have names and values of a database in them.
            let texts: Vec<String> = texts.iter().map(|text| printable(text)).collect();
            let (first, causes) = texts.split_first().map_or(("", [].as_slice()), |(f, c)| (f.as_str(), c));
            writeln!(err, "{on}error{off}: {first}")
                .and_then(|()| causes.iter().try_for_each(|cause| writeln!(err, "  because: {cause}")))
        };
        // There is nobody left to tell.
        let _ = written;
    }
}

/// Whether colours may be written there.
pub fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text from a database as a terminal may get it: without control characters, which could move its cursor or worse.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// A number of things: `1 table`, `2 tables`.
pub fn counted(number: usize, thing: &str) -> String {
    format!("{} {thing}{}", thousands(number as u64), if number == 1 { "" } else { "s" })
}

/// A number of bytes, about: `61 MB`, `1.2 GB`.
pub fn about_bytes(bytes: u64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    let thousands = (bytes.max(1).ilog10() / 3) as usize;
    let number = bytes as f64 / 1000_f64.powi(thousands as i32);
    let digits = usize::from(number < 10.0 && thousands > 0);
    format!("{number:.digits$} {}", units[thousands])
}

/// A number with its thousands apart.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 336_776, 1_000_000].map(thousands), ["0", "999", "1,000", "336,776", "1,000,000"]);
    }

    #[test]
    fn bytes_are_told_about() {
        let told = [0, 999, 1_000, 61_400_000, 1_250_000_000, u64::MAX].map(about_bytes);
        assert_eq!(told, ["0 bytes", "999 bytes", "1.0 kB", "61 MB", "1.2 GB", "18 EB"]);
    }

    #[test]
    fn a_terminal_gets_no_escapes_from_a_database() {
        assert_eq!(printable("a\x1b[2Jb\tc"), "a\u{fffd}[2Jb\tc");
    }
}
