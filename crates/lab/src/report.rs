//! Campaigns as one HTML file that needs no other: tables, and plots as SVG.
//!
//! ```text
//! Campaign -> View -> sweep, percentile, timeline, phases -> Figure (chart, numbers, words) -> SVG (chart, axis, palette)
//!                                                                                   -> HTML (html, page), files (picture)
//! ```
//!
//! Up to figures there is no markup, and from there on no database. The same campaigns give the same bytes.
//!
//! *Caveats.* All cells and runs are on the page, so that one of a thousand cells is large. A plot has eight lines at most, and says what it
//! leaves to its table.

mod axis;
mod bars;
mod chart;
mod html;
mod page;
mod palette;
mod percentile;
mod phases;
mod picture;
mod plot;
mod published;
mod sweep;
#[cfg(test)]
mod tests;
mod timeline;
mod units;
mod view;

pub use bars::Bars;
pub use plot::{Curve, Plot};
pub use published::Published;

use crate::error::Error;
use crate::results::Campaign;
use view::View;

/// The report of these campaigns, a section each, with a published curve beside the throughput of each.
pub fn html(campaigns: &[Campaign], published: Option<&Published>) -> Result<String, Error> {
    let views = campaigns.iter().map(View::of).collect::<Result<Vec<_>, _>>()?;
    Ok(page::page(&views, published))
}

/// The plots of the report, each as an SVG file that needs no page: its name without an ending, and its text. `name` begins the names;
/// those of a campaign after the first have its number in them.
pub fn plots(
    campaigns: &[Campaign],
    published: Option<&Published>,
    name: &str,
) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for (place, campaign) in campaigns.iter().enumerate() {
        let view = View::of(campaign)?;
        let id = if place == 0 { name.to_owned() } else { format!("{name}-{}", place + 1) };
        let figures = page::plots(&view, &id, published).into_iter().flat_map(|(_, figures)| figures);
        all.extend(figures.map(|figure| (figure.id.clone(), picture::picture(&figure))));
    }
    Ok(all)
}
