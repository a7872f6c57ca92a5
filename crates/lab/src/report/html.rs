//! Text of HTML. Whatever comes from elsewhere goes through [`escape`]; nothing else may end or begin an element.

use super::chart::{self, Chart, Look};
use super::units::printable;
use super::view::{Figure, Table};

/// Text that holds no markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in printable(text).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// An element with text.
pub(super) fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>\n", escape(text))
}

/// A table; nothing where it has no rows.
pub(super) fn table(table: &Table) -> String {
    if table.rows.is_empty() {
        return String::new();
    }
    let cells = |row: &[String], name: &str, attribute: &str| -> String {
        let cell = |(place, text): (usize, &String)| {
            let class = if place < table.names { "" } else { " class=\"number\"" };
            format!("<{name}{attribute}{class}>{}</{name}>", escape(text))
        };
        row.iter().enumerate().map(cell).collect()
    };
    let row = |row: &Vec<String>| format!("<tr>{}</tr>\n", cells(row, "td", ""));
    let rows: Vec<String> = table.rows.iter().map(row).collect();
    let head = cells(&table.head, "th", " scope=\"col\"");
    let rows = rows.concat();
    format!("<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n")
}

/// A chart with its title, its legend, how to read it, and its numbers.
pub(super) fn figure(figure: &Figure) -> String {
    let Figure { id, title, notes, chart, .. } = figure;
    let (svg, view_box) = chart.svg();
    let notes: Vec<String> = notes.iter().map(|note| escape(note)).collect();
    format!(
        "<figure id=\"{id}\">\n<figcaption>{}</figcaption>\n\
         <svg class=\"plot\" viewBox=\"{view_box}\" role=\"img\" aria-labelledby=\"{id}-title {id}-about\">\n\
         <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-about\">{}</desc>\n{svg}\n</svg>\n{}\
         <p class=\"note\">{}</p>\n<details><summary>Numbers</summary>\n{}</details>\n</figure>\n",
        escape(title),
        escape(title),
        escape(&figure.described()),
        legend(chart),
        notes.join(" "),
        table(&figure.table),
    )
}

fn legend(chart: &Chart) -> String {
    let entry = |swatch: String, name: &str| {
        format!("<li><svg viewBox=\"0 0 120 40\" aria-hidden=\"true\">{swatch}</svg> {}</li>\n", escape(name))
    };
    let swatch = |look: Look| look.swatch();
    let lines = chart.lines.iter().map(|line| entry(swatch(line.look), &line.name));
    let failed = (!chart.failed.is_empty()).then(|| entry(chart::swatch_of_failures(), "operations failed"));
    format!("<ul class=\"legend\">\n{}</ul>\n", lines.chain(failed).collect::<String>())
}
