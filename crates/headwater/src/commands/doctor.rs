//! `headwater doctor`: what is wrong with a deployment, and how to mend it. It changes nothing.

mod central;
mod files;
mod remote;
mod server;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::exit::Exit;
use crate::output::{Output, counted, printable};

const EXAMPLES: &str = "\
Examples:
  headwater doctor
  headwater doctor --url https://sync.shop.example      ask through the address that remotes use, proxies and all
  headwater doctor --not-running                        before the server is started for the first time
  headwater doctor --remote anna.db --json | jq '.findings[].code'

Nothing is changed. Exit code 1 where there is an error; warnings alone are 0.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Look at this remote's file instead of the server's side.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "not_running"])]
    remote: Option<PathBuf>,
    /// The address that remotes use: is it Headwater, and does whatever stands in between leave syncs alone?
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// PEM file with the certificates to trust at that address instead of the system's.
    #[arg(long, value_name = "FILE", env = "HEADWATER_CA")]
    ca: Option<PathBuf>,
    /// Leave out whether a server runs here.
    #[arg(long)]
    not_running: bool,
    /// How much space the disks should have left.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    free_mib: u64,
    /// How long a transaction may stay open at the database before it is told.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    open_seconds: u64,
}

/// One thing that is not as it should be.
#[derive(PartialEq, Eq)]
struct Finding {
    is_error: bool,
    /// A stable name for programs.
    code: &'static str,
    what: String,
    mend: String,
}

/// What was found so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    /// Something by which rows would be lost, or nothing goes.
    fn error(&mut self, code: &'static str, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Finding { is_error: true, code, what: what.into(), mend: mend.into() });
    }

    /// Something that works, but won't for long, or not well.
    fn warning(&mut self, code: &'static str, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Finding { is_error: false, code, what: what.into(), mend: mend.into() });
    }

    /// Several versions of a model may have the same finding.
    fn add(&mut self, finding: Finding) {
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }
}

/// Looks, and tells what was found.
pub fn run(args: &DoctorArgs, global: &Global, output: &Output) -> Done {
    let mut findings = Findings::default();
    match &args.remote {
        Some(file) => remote::look(file, args, &mut findings),
        None => server::look(args, global, &mut findings),
    }
    let mut findings = findings.0;
    findings.sort_by_key(|finding| !finding.is_error);
    let errors = findings.iter().filter(|finding| finding.is_error).count();
    let answer = json!({ "errors": errors, "findings": findings.iter().map(as_json).collect::<Vec<_>>() });
    output.answer(&answer, |output| {
        for finding in &findings {
            output.line(printable(&format!("{}: {}", word(finding), finding.what)))?;
            output.line(printable(&format!("    {}", finding.mend)))?;
        }
        output.line(match (errors, findings.len() - errors) {
            (0, 0) => "nothing is wrong".to_owned(),
            (errors, warnings) => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
        })
    })?;
    Ok(if errors == 0 { Exit::Done } else { Exit::Found })
}

fn word(finding: &Finding) -> &'static str {
    if finding.is_error { "error" } else { "warning" }
}

fn as_json(finding: &Finding) -> serde_json::Value {
    json!({ "severity": word(finding), "code": finding.code, "what": finding.what, "mend": finding.mend })
}
