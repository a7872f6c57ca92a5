//! One event of a history: which, where, and how it is counted.

use anyhow::{Result, bail};
use headwater_remote::{Choice, Error, Remote};

use crate::deeds::{DDL, Draw, told};
use crate::events::{self, Event};
use crate::history::{History, REMOTES};
use crate::schema::Side;
use crate::window::Window;
use crate::writes;

/// Gives up all that is set aside; `None`: a row that waits to be sent refers to some of it.
pub(crate) fn give_up(remote: &mut Remote) -> Result<Option<u64>> {
    match remote.drop_set_aside(&Choice::All) {
        Ok(dropped) => Ok(Some(dropped)),
        Err(error) if error.to_string().contains("drop that first") => Ok(None),
        Err(error) => listed(&error, remote),
    }
}

/// An error of a choice, with what there was to choose from.
fn listed<T>(error: &Error, remote: &Remote) -> Result<T> {
    bail!("{error}; set aside: {:?}; pending: {:?}", remote.set_aside(100)?, remote.pending(100)?)
}

/// Those that are no deeds.
const OTHERS: [Event; 9] = [
    Event::Members,
    Event::Members,
    Event::Aside,
    Event::Writers,
    Event::Restore,
    Event::RestoreInSync,
    Event::Session,
    Event::Raise,
    Event::Migration,
];
const WRITES_IN_A_WINDOW: u64 = 6;

impl History {
    pub(crate) fn happen(&mut self, place: usize) -> Result<()> {
        let (deeds, others) = (self.events.of(&DDL), self.events.of(&OTHERS));
        let twelve = self.events.of(&[Event::TwelveSteps]);
        let deeds: Vec<Event> = deeds.into_iter().chain(twelve).collect();
        let is_deed = !deeds.is_empty() && (others.is_empty() || self.random.chance(65));
        let Some(event) = self.random.pick(if is_deed { &deeds } else { &others }).copied() else { return Ok(()) };
        if is_deed { self.do_deed(event, place) } else { self.other(event, place) }
    }

    /// A deed, now, or in the midst of a sync.
    fn do_deed(&mut self, event: Event, place: usize) -> Result<()> {
        let windows = self.events.of(&[Event::Open, Event::Held]);
        let window = if self.random.chance(60) { self.random.pick(&windows).copied() } else { None };
        self.number += 1;
        let mut draw = Draw {
            schema: &self.schema,
            central: &self.world.central,
            random: &mut self.random,
            is_neutral: window.is_some(),
            number: self.number,
        };
        let Some(deed) = draw.deed(event)? else { return Ok(()) };
        self.count(events::name(event), 1);
        let window = match window {
            Some(Event::Open) if deed.is_transactional => {
                self.count("open", 1);
                Window::Open(deed.clone())
            }
            Some(Event::Held) => {
                self.count("held", 1);
                Window::Held(deed.clone())
            }
            _ => {
                let begun =
                    if deed.is_transactional { format!("BEGIN; {}; COMMIT", deed.sql) } else { deed.sql.clone() };
                let statements: Vec<&str> =
                    if deed.is_transactional { vec![&begun] } else { begun.split("; ").collect() };
                let done = if deed.sql.starts_with("PRAGMA") {
                    self.world.central.execute(&deed.sql)
                } else {
                    statements.iter().try_for_each(|sql| self.world.central.execute(sql))
                };
                let failed = done.err().map(|error| format!(" -- not done: {error:#}")).unwrap_or_default();
                self.tell(format!("the administrator: {}{failed}", told(&deed)));
                if self.random.chance(20) {
                    self.track()?;
                }
                return Ok(());
            }
        };
        self.tell(format!("in the next sync: {}", told(&deed)));
        self.sync(place, false, window)
    }

    fn other(&mut self, event: Event, place: usize) -> Result<()> {
        match event {
            Event::Members => {
                let sql = self.schema.member(&mut self.random, REMOTES as u64);
                self.count("members", 1);
                self.at_the_head(&sql)
            }
            Event::Aside => {
                let is_dropped = self.random.chance(50);
                let site = &mut self.sites[place];
                let (name, aside) = (site.name.clone(), site.remote.status()?.set_aside);
                if aside == 0 {
                    return Ok(());
                }
                if is_dropped {
                    self.ledger.close_if_set_aside(&site.remote)?;
                    if give_up(&mut site.remote)?.is_none() {
                        return Ok(());
                    }
                } else {
                    let retried = site.remote.retry(&Choice::All);
                    retried.or_else(|error| listed(&error, &site.remote))?;
                }
                self.count("aside", aside);
                self.tell(format!("{name} {} {aside} changes", if is_dropped { "drops" } else { "retries" }));
                Ok(())
            }
            Event::Writers => {
                let write = |_| self.schema.write_other(&mut self.random, Side::Remote);
                let writes: Vec<String> = (0..WRITES_IN_A_WINDOW).map(write).collect();
                self.count("writers", 1);
                self.tell(format!("meanwhile at {}: {}", self.sites[place].name, writes.join("; ")));
                self.sync(place, false, Window::Writers(writes))
            }
            Event::Restore | Event::RestoreInSync => self.put_back(event, place),
            Event::Migration => self.migrate(place),
            Event::Session | Event::Raise => {
                let is_raise = event == Event::Raise;
                let sql = if is_raise { writes::raise(&mut self.random) } else { writes::act(&mut self.random) };
                let name = self.sites[place].name.clone();
                if self.world.edit(&name, &sql).is_ok() {
                    self.count(events::name(event), 1);
                    self.tell(format!("{name} writes {sql}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes a copy of the database, or puts one back.
    fn put_back(&mut self, event: Event, place: usize) -> Result<()> {
        let Some(mut copies) = self.copies.take() else { return Ok(()) };
        let done = if !copies.has_one() {
            self.tell("the database is copied".to_owned());
            copies.copy(&self.world.central)
        } else if event == Event::RestoreInSync {
            self.count("restored_in_sync", 1);
            self.tell("in the next sync the database is put back as it was".to_owned());
            self.sync(place, false, Window::Restored(&mut copies))
        } else {
            self.count("restored", 1);
            self.tell("the database is put back as it was".to_owned());
            let done = copies.put_back(&self.world.central).map(drop);
            self.is_put_back();
            done
        };
        self.copies = Some(copies);
        done
    }
}
