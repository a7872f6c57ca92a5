//! `headwater diff`: a remote against its part of the consolidated database.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use headwater_consolidated::Plan;
use headwater_model::Model;

use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::database::{Address, never_synced, postgres};
use crate::diff::{
    Difference, Kind, LeftOut, Options, Pending, Postgres, RemoteFile, Report, Source, SqliteDatabase, TableReport,
    compare,
};
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::{Output, counted, printable, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater diff anna.db
  headwater diff anna.db --table flights --limit 5
  headwater diff anna.db --ignore-pending --json | jq '.tables[].missing'

Every row of the remote is held against its part of the consolidated database, as both are now, by \
their own drivers and with none of sync's code. Of a table with a download_cursor that is what the cursor gives to a first download. A membership \
that downloads leave out (its value is above 4 KiB or not UTF-8) is left out by the same rule, and named. Exit code 1 where they differ. A row that was changed here and not uploaded yet, \
or whose change was set aside, differs too: it is marked, and counted in the last column. With --ignore-pending all is shown as \
without, and only the other rows decide about the exit code: those that a download has still to bring, those that came down and \
are held because the file does not take them, and those that nothing explains.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// The remote's SQLite file.
    remote: PathBuf,
    /// The user whose part is compared; usually the one the remote syncs as.
    #[arg(long)]
    user: Option<String>,
    /// Only this table; may be given several times.
    #[arg(long = "table", value_name = "TABLE")]
    tables: Vec<String>,
    /// How many differences of each table to show; all are counted.
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    limit: usize,
    /// Leave rows with a local change (not uploaded yet, or set aside) out of the exit code.
    #[arg(long)]
    ignore_pending: bool,
}

/// Compares, and tells what was found.
pub fn run(args: &DiffArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plans = config.plans()?;
    let mut remote = RemoteFile::open(&args.remote).or_usage(|| "the remote can't be compared".into())?;
    let model = model_of(plans, &remote.model, remote.fingerprint)?;
    if let Some(unknown) = args.tables.iter().find(|name| model.table(name).is_none()) {
        return Err(usage(format!("the model has no table {unknown:?}")));
    }
    let user = args.user.clone().unwrap_or_else(|| remote.user.clone());
    let mut consolidated = open(&config.database, &model, &user, &remote.remote_id)?;
    let progress = output.progress("comparing");
    let options = Options { tables: args.tables.clone(), details_max: args.limit };
    let report = compare(&model, &mut remote, &mut *consolidated, &options, &mut |table, rows| {
        progress.set_message(format!("comparing {table}"));
        progress.set_position(rows);
    });
    progress.finish_and_clear();
    let report = report?;
    let is_equal = report.is_equal(args.ignore_pending);
    output.answer(&report, |output| show(&report, args.ignore_pending, output))?;
    Ok(if is_equal { Exit::Done } else { Exit::Found })
}

/// The configuration's model that the remote was made from.
fn model_of(plans: Vec<Plan>, remotes: &Model, fingerprint: u64) -> Result<Model> {
    let title = |model: &Model| format!("{:?} version {}", model.name, model.version);
    let ours: Vec<String> = plans.iter().map(|plan| title(&plan.model)).collect();
    let found = plans.into_iter().find(|plan| plan.fingerprint == fingerprint);
    found.map(|plan| plan.model).ok_or_else(|| {
        usage(format!(
            "the remote was made from model {}, and the configuration has {}, or has changed it; use the --config with its model",
            title(remotes),
            ours.join(", ")
        ))
    })
}

fn open(address: &Address, model: &Model, user: &str, remote_id: &str) -> Result<Box<dyn Source>> {
    Ok(match address {
        Address::Sqlite(path) => Box::new(SqliteDatabase::open(path, model, user, remote_id)?),
        Address::Postgres(text) => {
            let (config, tls) = postgres(text)?.driver();
            Box::new(Postgres::connect(&config, tls, model, user, remote_id)?)
        }
        Address::MariaDb(_) => return Err(never_synced()),
    })
}

fn show(report: &Report, ignore_pending: bool, output: &Output) -> Result<()> {
    let cells = |t: &TableReport| {
        let counts = [t.remote_rows, t.consolidated_rows, t.missing, t.extra, t.different, t.pending].map(thousands);
        let [remote, consolidated, missing, extra, different, pending] = counts;
        vec![t.table.clone(), remote, consolidated, missing, extra, different, pending]
    };
    output.table(
        &["table", "rows here", "rows there", "missing", "extra", "different", "of them changed here"],
        report.tables.iter().map(cells),
    )?;
    for table in report.tables.iter().filter(|table| !table.differences.is_empty()) {
        output.line(format!("\n{}", printable(&table.table)))?;
        table.differences.iter().try_for_each(|difference| show_difference(difference, output))?;
        let rest = table.differences() - table.differences.len() as u64;
        if rest > 0 {
            output.line(format!("  and {} more; --limit shows them", thousands(rest)))?;
        }
    }
    for LeftOut { partition, values, bytes, why } in &report.left_out {
        let line = format!(
            "a membership in partition {partition:?} is left out, as downloads do: {why} ({bytes} bytes: {values})"
        );
        output.line(printable(&line))?;
    }
    output.line(outcome(report, ignore_pending))
}

/// What all the counts come to.
fn outcome(report: &Report, ignore_pending: bool) -> String {
    let sum = |count: fn(&TableReport) -> u64| report.tables.iter().map(count).sum::<u64>();
    let (differences, pending) = (sum(TableReport::differences), sum(|table| table.pending));
    let changed = "in rows changed here (not uploaded yet or set aside)";
    let counted = |number: u64| counted(number as usize, "difference");
    match (differences - pending, pending) {
        (0, 0) => "the remote equals its part of the consolidated database".to_owned(),
        (0, _) if ignore_pending => format!(
            "but for {} {changed}, left out, the remote equals its part of the consolidated database",
            counted(pending)
        ),
        (others, _) if ignore_pending => format!("{}; left out: {} {changed}", counted(others), thousands(pending)),
        (others, _) => {
            format!("{}: {} {changed}, {} in others", counted(differences), thousands(pending), thousands(others))
        }
    }
}

fn show_difference(difference: &Difference, output: &Output) -> Result<()> {
    let word = match difference.kind {
        Kind::Missing => "missing  ",
        Kind::Extra => "extra    ",
        Kind::Different => "different",
    };
    let pending = match difference.pending {
        None => "",
        Some(Pending::Waiting) => "   (local change not uploaded yet)",
        Some(Pending::SetAside) => "   (local change set aside)",
    };
    let key: Vec<_> = difference.key.iter().map(|(name, value)| format!("{name}={value}")).collect();
    output.line(printable(&format!("  {word}  {}{pending}", key.join(" "))))?;
    for column in &difference.columns {
        let line = format!("             {}: {} here, {} there", column.column, column.remote, column.consolidated);
        output.line(printable(&line))?;
    }
    Ok(())
}
