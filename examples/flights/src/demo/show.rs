//! What the demo writes: headings, lines and tables. Colours only on a terminal, and never with `NO_COLOR` (no-color.org).

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A line below the heads, and no more.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction(' '));

/// Standard output.
pub(super) struct Screen {
    is_colourful: bool,
    steps: Cell<u32>,
}

#[expect(clippy::print_stdout, reason = "the demo's result")]
#[expect(clippy::unused_self, reason = "whoever writes has the screen, coloured or not")]
impl Screen {
    pub(super) fn new() -> Screen {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen { is_colourful: std::io::stdout().is_terminal() && !no_colour, steps: Cell::new(0) }
    }

    fn coloured(&self, code: &str, text: &str) -> String {
        if self.is_colourful { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn title(&self, text: &str) {
        println!("{}", self.coloured("1;34", text));
    }

    pub(super) fn step(&self, text: &str) {
        self.steps.set(self.steps.get() + 1);
        println!("\n{}", self.coloured("1", &format!("{}. {text}", self.steps.get())));
    }

    pub(super) fn line(&self, text: &str) {
        println!("   {text}");
    }

    pub(super) fn good(&self, text: &str) {
        println!("   {}", self.coloured("1;32", text));
    }

    /// A table; a column that has nothing but numbers goes to the right.
    pub(super) fn table(&self, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        let rows: Vec<Vec<String>> = rows.into_iter().collect();
        let is_number = |cell: &String| cell.bytes().all(|byte| byte.is_ascii_digit() || b",.-".contains(&byte));
        let right: Vec<bool> =
            (0..head.len()).map(|place| rows.iter().all(|row| row.get(place).is_some_and(is_number))).collect();
        let mut table = Table::new();
        table.load_style(STYLE).set_header(head.to_vec()).add_rows(rows);
        for (column, _) in table.column_iter_mut().zip(right).filter(|(_, is_right)| *is_right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in table.lines() {
            println!("  {}", line.trim_end());
        }
    }

    /// How to go on by hand.
    pub(super) fn go_on(&self, folder: &Path, programs: &Path, password: &str) {
        self.step("Go on by hand, on the same databases");
        for line in commands(folder, programs, password) {
            println!("   {line}");
        }
    }
}

fn commands(folder: &Path, programs: &Path, password: &str) -> Vec<String> {
    vec![
        format!("cd {}; PATH={}:$PATH", quoted(folder), quoted(programs)),
        format!("export HEADWATER_PASSWORD={password}"),
        "headwater serve 2>>server.log &".to_owned(),
        r#"flights sql ann.db "UPDATE flights SET dep_delay = 99 WHERE carrier = 'UA' AND flight = 9001""#.to_owned(),
        "headwater remote log ann.db --pending".to_owned(),
        "headwater remote sync ann.db".to_owned(),
        r#"flights sql central.db "SELECT carrier, flight, dep_delay FROM flights WHERE flight = 9001""#.to_owned(),
        "headwater diff ann.db".to_owned(),
        "headwater conflicts --limit 1".to_owned(),
        "kill $!".to_owned(),
    ]
}

/// A path as a shell reads it back.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// A number with its thousands apart.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let apart = |(place, digit): (usize, char)| {
        let is_start = place > 0 && (digits.len() - place).is_multiple_of(3);
        is_start.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(apart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 27_004, 1_000_000].map(thousands), ["0", "999", "1,000", "27,004", "1,000,000"]);
    }

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/tmp/demo")), "/tmp/demo");
        assert_eq!(quoted(Path::new("/tmp/it's a demo")), r"'/tmp/it'\''s a demo'");
    }
}
