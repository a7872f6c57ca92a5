//! The page: a section for each campaign.

use super::html::{element, escape, figure, table};
use super::percentile::plural;
use super::published::Published;
use super::view::{Figure, Table, View};
use super::{palette, percentile, phases, sweep, timeline};

/// The whole document.
pub(super) fn page(views: &[View<'_>], published: Option<&Published>) -> String {
    let names: Vec<&str> = views.iter().map(|view| view.campaign.name.as_str()).collect();
    let title = escape(&names.join(", "));
    let sections: String = views.iter().enumerate().map(|(place, view)| section(view, place + 1, published)).collect();
    // Nothing is to come from elsewhere, and browsers are told so.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n{}<main>\n{sections}{}</main>\n\
         <footer>headwater lab {}</footer>\n</body>\n</html>\n",
        include_str!("report.css"),
        palette::rules(),
        contents(views),
        published.map_or_else(String::new, published_table),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Links to the sections, where there are several.
fn contents(views: &[View<'_>]) -> String {
    if views.len() < 2 {
        return String::new();
    }
    let link = |(place, view): (usize, &View<'_>)| {
        let file = view.campaign.path().display().to_string();
        format!("<li><a href=\"#c{}\">{}</a> ({})</li>\n", place + 1, escape(&view.campaign.name), escape(&file))
    };
    format!("<nav><ul>\n{}</ul></nav>\n", views.iter().enumerate().map(link).collect::<String>())
}

fn section(view: &View<'_>, number: usize, published: Option<&Published>) -> String {
    let id = format!("c{number}");
    let parts = [
        headline(view),
        part("Summary", &summary(view)),
        part("What limited each cell", &table(&view.limits())),
        part("Not steady", &table(&view.unsteady())),
        part("What a sync takes, as a line of its rows", &table(&view.lines())),
        plots(view, &id, published).iter().map(|(title, all)| figures(title, all)).collect(),
        part("Errors", &errors(view)),
        part("Runs that are not counted", &table(&view.not_counted())),
        part("Environment", &environment(view)),
        part("Experiment", &format!("<pre>{}</pre>\n", escape(&view.campaign.specification))),
    ];
    format!("<section id=\"{id}\">\n{}</section>\n", parts.concat())
}

/// A heading with what is below it; nothing where that is empty.
fn part(title: &str, content: &str) -> String {
    if content.is_empty() { String::new() } else { format!("<h2>{}</h2>\n{content}", escape(title)) }
}

fn figures(title: &str, all: &[Figure]) -> String {
    let all: String = all.iter().map(figure).collect();
    let all = if all.is_empty() { all } else { format!("<div class=\"figures\">\n{all}</div>\n") };
    part(title, &all)
}

fn headline(view: &View<'_>) -> String {
    let campaign = view.campaign;
    let about = if campaign.about.is_empty() { String::new() } else { element("p", &campaign.about) };
    let made = view.runs.len() as u64;
    let never = campaign.runs_planned.saturating_sub(made);
    let [done, failed, interrupted] = ["done", "failed", "interrupted"].map(|state| view.count(state));
    let ended = match &campaign.ended {
        Some(ended) => format!("{} ({ended})", campaign.state),
        None => "still running, or killed".to_owned(),
    };
    let facts = [
        ("file", campaign.path().display().to_string()),
        ("experiment", campaign.file.clone()),
        ("started", campaign.started.clone()),
        ("state", ended),
        ("seed", campaign.seed.to_string()),
        (
            "runs",
            format!(
                "{} planned ({} cell{}, {} time{} each): {done} done, {failed} failed, {interrupted} interrupted, {never} never begun",
                campaign.runs_planned,
                view.cells.len(),
                plural(view.cells.len()),
                campaign.repetitions,
                plural(campaign.repetitions as usize),
            ),
        ),
    ];
    let facts = facts.iter().map(|(key, value)| format!("<dt>{key}</dt><dd>{}</dd>\n", escape(value)));
    format!("{}{about}<dl>\n{}</dl>\n", element("h1", &campaign.name), facts.collect::<String>())
}

fn summary(view: &View<'_>) -> String {
    let note = "Rates are means over the runs of a cell that are done, with half of their 95 % interval; times are of all these runs \
                together, from when an operation should have begun.";
    format!("{}<p class=\"note\">{note}</p>\n", table(&view.summary()))
}

/// All plots of a campaign, under their headings.
pub(super) fn plots(view: &View<'_>, id: &str, published: Option<&Published>) -> Vec<(String, Vec<Figure>)> {
    let mut all = sweeps(view, id, published);
    all.push(("Percentiles".to_owned(), percentile::figures(view, &format!("{id}-percentiles"))));
    all.push(("Timelines".to_owned(), timeline::figures(view, &format!("{id}-run"))));
    all.push(("Syncs by phase".to_owned(), phases::figures(view, &format!("{id}-phases"))));
    all
}

fn sweeps(view: &View<'_>, id: &str, published: Option<&Published>) -> Vec<(String, Vec<Figure>)> {
    let sweeps = sweep::sweeps(&view.cells, &view.varied);
    let about = published.and_then(|table| sweeps.iter().position(|sweep| sweep::is_about(sweep, table.along())));
    let with = about.unwrap_or(0);
    let one = |(place, sweep): (usize, &sweep::Sweep)| {
        let published = published.filter(|_| place == with);
        (format!("Against {}", sweep.key), sweep::figures(view, sweep, &format!("{id}-{place}"), published))
    };
    sweeps.iter().enumerate().map(one).collect()
}

fn errors(view: &View<'_>) -> String {
    let row = |(cell, class, count, example): &(u64, String, u64, String)| {
        vec![cell.to_string(), class.clone(), example.clone(), count.to_string()]
    };
    let head = ["cell", "class", "what the first said", "count"].map(str::to_owned).to_vec();
    table(&Table { head, rows: view.errors.iter().map(row).collect(), names: 3 })
}

fn environment(view: &View<'_>) -> String {
    let rows = view.environment.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    table(&Table { head: vec!["fact".to_owned(), "value".to_owned()], rows, names: 2 })
}

fn published_table(published: &Published) -> String {
    let content = part(&format!("Published: {}", published.name), &table(&published.table()));
    format!("<section id=\"published\">\n{content}</section>\n")
}
