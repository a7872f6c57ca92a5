//! `flights demo`: three remotes and a consolidated database, from the first download to a row that was set aside and mended.
//!
//! What a user would do by hand is done here by the same means: the program `headwater` that lies beside this one, and SQL on
//! the databases. Each step's numbers come from its JSON; nothing is shown that was not asked for.
//!
//! ```text
//! demo/  central.db  headwater.toml  models/flights-1.toml  server.log      the consolidated database, served
//!        ann.db  ben.db  cal.db                                             remotes: EWR, JFK, LGA
//! ```
//!
//! *Caveats.* The folder is made anew at each run. One that has no mark of this demo is left alone, and the demo refuses.

mod edits;
mod program;
mod show;
mod tables;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use flights::{MODEL, Selection, load_sqlite};
use serde_json::Value;

use program::{Headwater, PASSWORD, Server};
use show::Screen;

/// Tells a folder of this demo from any other.
const MARK: &str = ".headwater-demo";

/// A user, the remote's file, and the origin of which the user is a member.
pub(crate) struct Person {
    name: &'static str,
    origin: &'static str,
}

const PEOPLE: [Person; 3] = [
    Person { name: "ann", origin: "EWR" },
    Person { name: "ben", origin: "JFK" },
    Person { name: "cal", origin: "LGA" },
];

impl Person {
    fn file(&self) -> String {
        format!("{}.db", self.name)
    }
}

/// Plays the whole story in this folder; stops before the next step once `is_interrupted` is set.
pub(crate) fn run(folder: &Path, port: u16, is_interrupted: Arc<AtomicBool>) -> Result<()> {
    let folder = fresh_folder(folder)?;
    let screen = Screen::new();
    let headwater = Headwater::beside_this_program(&folder, is_interrupted)?;
    screen.title("Headwater: one database at the head, three SQLite copies downstream");

    prepare(&headwater, &screen, port)?;
    let server = headwater.serve()?;
    screen.line(&format!("headwater serve   {}", server.url));
    first_syncs(&headwater, &server, &screen)?;
    edits::make(&folder)?;
    edits::tell(&screen);
    second_syncs(&headwater, &screen)?;
    how_it_ended(&headwater, &screen)?;
    compare_and_mend(&headwater, &screen)?;
    server.stop()?;
    screen.go_on(&folder, &headwater.folder_of_programs()?, PASSWORD);
    Ok(())
}

/// The folder, empty but for the mark. One that this demo did not make is not touched.
fn fresh_folder(folder: &Path) -> Result<PathBuf> {
    let folder = std::path::absolute(folder)?;
    match std::fs::read_dir(&folder) {
        Ok(mut entries) => {
            ensure!(
                entries.next().is_none() || folder.join(MARK).exists(),
                "{} is there and was not made by this demo (it has no {MARK}); move it away, or name another by --folder",
                folder.display()
            );
            std::fs::remove_dir_all(&folder).with_context(|| format!("emptying {}", folder.display()))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("looking into {}", folder.display())),
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    std::fs::write(folder.join(MARK), "Made by `flights demo`, which makes this folder anew at each run.\n")?;
    Ok(folder)
}

/// The consolidated database with its data, tracked and checked; the users.
fn prepare(headwater: &Headwater, screen: &Screen, port: u16) -> Result<()> {
    let folder = headwater.folder();
    screen.step("The consolidated database: every flight that left New York City in January 2013");
    let counts = load_sqlite(folder.join("central.db"), Selection { month: Some(1) })?;
    ensure!(
        counts.of("flights") >= 20_000,
        "only {} flights were loaded, expected 20,000 or more",
        counts.of("flights")
    );
    let rows =
        counts.iter().filter(|(_, rows)| *rows > 0).map(|(table, rows)| format!("{table} {}", show::thousands(rows)));
    screen.line(&format!("central.db        {}", rows.collect::<Vec<_>>().join(", ")));
    for person in &PEOPLE {
        let sql = format!("INSERT INTO member (user_name, origin) VALUES ('{}', '{}')", person.name, person.origin);
        edits::execute(&folder.join("central.db"), &sql)?;
    }
    std::fs::create_dir_all(folder.join("models"))?;
    std::fs::write(folder.join("models/flights-1.toml"), MODEL)?;
    std::fs::write(folder.join("headwater.toml"), configuration(free_port(port)?))?;

    screen.line(&format!("headwater track   {}", headwater.answer(&["track"])?));
    screen.line(&format!("headwater check   {}", headwater.answer(&["check"])?));
    for person in &PEOPLE {
        headwater.add_user(person.name)?;
    }
    let members: Vec<_> = PEOPLE.iter().map(|person| format!("{} sees {}", person.name, person.origin)).collect();
    screen.line(&format!("headwater user    {}", members.join(", ")));
    Ok(())
}

fn configuration(port: u16) -> String {
    format!(
        "models = [\"models/flights-1.toml\"]\n\n[database]\nurl = \"sqlite:central.db\"\n\n\
         [server]\nlisten = \"127.0.0.1:{port}\"\n"
    )
}

/// The port, if nobody listens there; else any that is free.
fn free_port(port: u16) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", port)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)));
    Ok(listener.and_then(|listener| listener.local_addr()).context("looking for a free port")?.port())
}

fn first_syncs(headwater: &Headwater, server: &Server, screen: &Screen) -> Result<()> {
    screen.step("Three remotes: each gets its part, and the tables that are everybody's");
    let mut rows = Vec::new();
    for person in &PEOPLE {
        let file = person.file();
        headwater.answer(&["remote", "create", &file, "--server", &server.url, "--user", person.name])?;
        let report = headwater.json(&["remote", "sync", &file])?;
        rows.push(tables::first_sync(person, &report, &headwater.json(&["remote", "status", &file])?));
    }
    screen.table(&tables::FIRST_SYNC, rows);
    Ok(())
}

fn second_syncs(headwater: &Headwater, screen: &Screen) -> Result<()> {
    screen.step("All sync again: what moved");
    let (mut rows, mut conflicts, mut refused) = (Vec::new(), 0, 0);
    for person in &PEOPLE {
        let report = headwater.json(&["remote", "sync", &person.file()])?;
        conflicts += tables::number(&report, "conflicts");
        refused += tables::number(&report, "refused");
        rows.push(tables::later_sync(person, &report));
    }
    screen.table(&tables::LATER_SYNC, rows);
    ensure!(conflicts == 3, "{conflicts} conflicts, expected the 3 that were made; {}", headwater.where_to_look());
    ensure!(refused == 1, "{refused} changes refused, expected the 1 that was made; {}", headwater.where_to_look());
    let at = |file: &str| edits::holds_moved_flight(&headwater.folder().join(file));
    ensure!(!at("ben.db")? && at("cal.db")?, "the flight that moved to LGA should be at cal and not at ben");
    screen.line("The flight that moved from JFK to LGA has left ben's file and is in cal's.");
    Ok(())
}

fn how_it_ended(headwater: &Headwater, screen: &Screen) -> Result<()> {
    screen.step("What conflicted, and how it ended (headwater conflicts)");
    let conflicts = headwater.json(&["conflicts"])?;
    let conflicts = conflicts.as_array().context("headwater conflicts --json gave no list")?;
    screen.table(&tables::CONFLICTS, conflicts.iter().rev().flat_map(tables::conflict));
    screen.line("Old: what the remote changed. Stored: what stood there by then. Rules are in models/flights-1.toml.");

    screen.step("What was set aside, and why (headwater remote log cal.db --set-aside)");
    let log = headwater.json(&["remote", "log", "cal.db", "--set-aside"])?;
    let aside = log.get("set_aside").and_then(Value::as_array).context("headwater remote log --json gave no list")?;
    ensure!(aside.len() == 1, "{} changes set aside at cal, expected 1", aside.len());
    screen.table(&tables::SET_ASIDE, aside.iter().map(tables::set_aside));
    screen.line("It stays in cal's file and is not sent again by itself; everything else went on.");
    Ok(())
}

fn compare_and_mend(headwater: &Headwater, screen: &Screen) -> Result<()> {
    screen
        .step("Is each remote its part of the consolidated database? (headwater diff, which shares no code with sync)");
    let equal = compare(headwater, screen)?;
    ensure!(equal == [true, true, false], "cal's row that was set aside should be the one difference; {equal:?}");

    screen.step("cal mends the row (it was meant to leave from LGA), and syncs");
    edits::mend(&headwater.folder().join("cal.db"))?;
    let report = headwater.json(&["remote", "sync", "cal.db"])?;
    let refused = tables::number(&report, "refused");
    ensure!(refused == 0, "{refused} changes refused, expected none now; {}", headwater.where_to_look());
    let equal = compare(headwater, screen)?;
    ensure!(equal == [true; 3], "not every remote equals its part; {}", headwater.where_to_look());
    screen.good("Every remote equals its part of the consolidated database.");
    Ok(())
}

/// A table of the differences; whether each remote has none.
fn compare(headwater: &Headwater, screen: &Screen) -> Result<Vec<bool>> {
    let reports = PEOPLE.iter().map(|person| headwater.json_and_whether(&["diff", &person.file()]));
    let reports = reports.collect::<Result<Vec<_>>>()?;
    screen.table(&tables::DIFF, PEOPLE.iter().zip(&reports).map(|(person, (report, _))| tables::diff(person, report)));
    Ok(reports.into_iter().map(|(_, is_equal)| is_equal).collect())
}
