//! `headwater lab report`: results as one HTML file.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_lab::report::{self, Published};
use headwater_lab::results::Campaign;
use serde_json::json;

use crate::Done;
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater lab report tpcb.lab                                       # makes tpcb.html
  headwater lab report before.lab after.lab --out both.html --force
  headwater lab report clients.lab --plots pictures                   # clients-0-rate.svg and so on, for a page of yours
  headwater lab report clients.lab --published whitepaper.csv         # their curve beside ours
  headwater lab report tpcb.lab --out - | ssh me@host 'cat > tpcb.html'

The file needs no other: tables, and plots of throughput and response times against each number
that varies, of percentiles, and of each run second by second. The first column of a published table
is the swept value, the others are curves; lines that begin with # are left out.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ReportArgs {
    /// The results; several make one report with a section each.
    #[arg(value_name = "FILE", required = true)]
    results: Vec<PathBuf>,
    /// The file to make, or - for standard output [default: the first FILE with .html].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    /// Make each plot an SVG file in this folder too; files of these names are replaced.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// A table (CSV) of published curves, drawn beside the throughput.
    #[arg(long, value_name = "FILE")]
    published: Option<PathBuf>,
}

/// Reports.
pub(super) fn run(args: &ReportArgs, output: &Output) -> Done {
    let first = args.results.first().ok_or_else(|| usage("no results are named"))?;
    let out = args.out.clone().unwrap_or_else(|| first.with_extension("html"));
    let is_stdout = out.as_os_str() == "-";
    if !is_stdout {
        refuse(&out, args)?;
    }
    let campaigns = args.results.iter().map(|path| Campaign::open(path)).collect::<Result<Vec<_>, _>>()?;
    let published = args.published.as_deref().map(Published::read).transpose()?;
    let html = report::html(&campaigns, published.as_ref())?;
    if let Some(folder) = &args.plots {
        let name = first.file_stem().unwrap_or_default().to_string_lossy();
        draw(folder, &report::plots(&campaigns, published.as_ref(), &name)?)?;
    }
    if is_stdout {
        std::io::stdout().lock().write_all(html.as_bytes())?;
        return Ok(Exit::Done);
    }
    write(&out, &html, args.force)?;
    output.answer(&json!({ "report": out }), |output| output.line(out.display()))?;
    Ok(Exit::Done)
}

fn draw(folder: &Path, plots: &[(String, String)]) -> Result<()> {
    std::fs::create_dir_all(folder).or_usage(|| format!("the folder {} can't be made", folder.display()))?;
    for (name, svg) in plots {
        let file = folder.join(format!("{name}.svg"));
        std::fs::write(&file, svg).with_context(|| format!("{} could not be written", file.display()))?;
    }
    Ok(())
}

/// What would be overwritten is told before the work is done.
fn refuse(out: &Path, args: &ReportArgs) -> Result<()> {
    let same = |path: &PathBuf| path.canonicalize().ok().zip(out.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if args.results.iter().chain(&args.published).any(same) {
        return Err(usage(format!(
            "{} is to be reported, and can't be the report; name another by --out",
            out.display()
        )));
    }
    if out.exists() && !args.force {
        return Err(usage(format!("{} exists; --force replaces it, --out names another", out.display())));
    }
    Ok(())
}

/// A report that can't be written leaves nothing, and what was there before as it was.
fn write(out: &Path, html: &str, force: bool) -> Result<()> {
    let mut options = std::fs::File::options();
    options.write(true);
    if !force || !out.exists() {
        let file = options.create_new(true).open(out);
        return fill(file.or_usage(|| format!("{} can't be made", out.display()))?, out, html);
    }
    if !out.is_file() {
        let mut file = options.open(out).or_usage(|| format!("{} can't be opened", out.display()))?;
        return file.write_all(html.as_bytes()).with_context(|| format!("{} could not be written", out.display()));
    }
    let mut aside = out.as_os_str().to_owned();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let file = options.create(true).truncate(true).open(&aside);
    fill(file.or_usage(|| format!("{} can't be made", aside.display()))?, &aside, html)?;
    std::fs::rename(&aside, out).with_context(|| format!("{} could not be replaced", out.display()))
}

/// Writes a file that was made for it; where that fails it is removed.
fn fill(mut file: std::fs::File, path: &Path, html: &str) -> Result<()> {
    let written = file.write_all(html.as_bytes()).and_then(|()| file.sync_all());
    written.with_context(|| format!("{} could not be written", path.display())).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}
