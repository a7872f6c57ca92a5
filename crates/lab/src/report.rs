//! Campaigns as one HTML file that needs no other: tables, and plots as SVG.
//!
//! ```text
//! Campaign -> View -> sweep, percentile, timeline -> Figure (chart, numbers, words) -> SVG (chart, axis, palette)
//!                                                                                   -> HTML (html, page)
//! ```
//!
//! Up to figures there is no markup, and from there on no database. The same campaigns give the same bytes.
//!
//! *Caveats.* All cells and runs are on the page, so that one of a thousand cells is large. A plot has eight lines at most, and says what it
//! leaves to its table.

mod axis;
mod chart;
mod html;
mod page;
mod palette;
mod percentile;
mod published;
mod sweep;
#[cfg(test)]
mod tests;
mod timeline;
mod units;
mod view;

pub use published::Published;

use crate::error::Error;
use crate::results::Campaign;
use view::View;

/// The report of these campaigns, a section each, with a published curve beside the throughput of each.
pub fn html(campaigns: &[Campaign], published: Option<&Published>) -> Result<String, Error> {
    let views = campaigns.iter().map(View::of).collect::<Result<Vec<_>, _>>()?;
    Ok(page::page(&views, published))
}
