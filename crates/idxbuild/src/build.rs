//! A rebuild from its beginning to its end: one transaction, under an exclusive lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use crate::by_sqlite::BySqlite;
use crate::error::{Error, Halt, sqlite};
use crate::file::{MainFile, ReadPages};
use crate::group::{Batch, Group, Part};
use crate::header::{Header, Layout};
use crate::job::{TableJob, spread};
use crate::open::{open, roll_back};
use crate::options::{Knobs, Options, Progress, Step};
use crate::pager::{Pager, PagerPages};
use crate::plan::{Plan, plan};
use crate::report::{Builder, Built, Report};
use crate::scan::{Scan, Sums};
use crate::space::Space;
use crate::store::Store;
use crate::temporary::Places;
use crate::usage::{Phase, Recorder};
use crate::verify::{Expected, verify};
use crate::walk::{Claims, Tree, free_pages, walk};
use crate::{catalog, old};

/// Batches of pages that may wait for the pager.
const BATCHES: usize = 16;

/// Rebuilds indexes of a SQLite database, or creates some.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use headwater_idxbuild::{Options, build};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("shop.db");
/// let shop = rusqlite::Connection::open(&path)?;
/// shop.execute_batch("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item(name) VALUES ('b'), ('a')")?;
/// drop(shop);
///
/// let mut options = Options::default();
/// options.create.push("CREATE INDEX item_name ON item(name)".to_owned());
/// let report = build(&path, &options)?;
/// assert_eq!(report.indexes[0].index, "item_name");
/// # Ok(()) }
/// ```
///
/// No connection of this process may have the database open. On success all indexes named are new and have been verified; after an
/// error, and after a crash at any point, the file is as it was (SQLite's own journal sees to that when it is opened next).
pub fn build(path: &Path, options: &Options) -> Result<Report, Error> {
    let built = rebuild(path, options);
    if matches!(built, Err(Error::DiskFull { .. } | Error::Unwritable { .. } | Error::Sqlite { .. })) {
        roll_back(path);
    }
    built.map_err(|error| error.judged(path))
}

fn rebuild(path: &Path, options: &Options) -> Result<Report, Error> {
    let mut doubts = BTreeMap::new();
    loop {
        let usage = Recorder::new();
        Knobs::of(options, 1)?;
        let pager = Pager::new(open(path)?);
        let report = match attempt(&pager, options, &doubts, &usage) {
            Ok(report) => report,
            Err(Halt::Error(error)) => return Err(error),
            // From the beginning: SQLite must have built it before pages are written here.
            Err(Halt::Doubt { index, why }) => {
                note_doubt(&mut doubts, index, why);
                continue;
            }
        };
        {
            let _span = usage.span(0, None, Phase::Commit);
            pager.connection().execute_batch("COMMIT").map_err(sqlite("ending the transaction"))?;
            drop(pager);
        }
        return Ok(report.with(usage));
    }
}

/// Builds indexes within a transaction of the caller's, which goes on afterwards: what the transaction has written so far is seen.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use headwater_idxbuild::{Options, build_within};
///
/// let shop = rusqlite::Connection::open_in_memory()?;
/// shop.execute_batch("BEGIN; CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item(name) VALUES ('b'), ('a')")?;
/// let mut options = Options::default();
/// options.create.push("CREATE INDEX item_name ON item(name)".to_owned());
/// build_within(&shop, &options)?;
/// shop.execute_batch("COMMIT")?;
/// # Ok(()) }
/// ```
///
/// Indexes are only created: SQLite has the pages of old ones in its hands. One thread at a time reads pages, through SQLite's pager; keys
/// are made, sorted and merged by several. No statement of the connection's may be half read. After an error the transaction is as it was before the call, and goes on,
/// unless SQLite itself has given it up ([`Connection::is_autocommit`] says so), as it may where a disk is full.
pub fn build_within(connection: &Connection, options: &Options) -> Result<Report, Error> {
    let failed = sqlite("building indexes within a transaction");
    if connection.is_autocommit() {
        return Err(Error::NoTransaction);
    }
    if let Some(index) = options.indexes.first() {
        let expected = "within a transaction indexes are only created";
        return Err(Error::Option { option: "--index", actual: index.clone(), expected });
    }
    if options.create.is_empty() {
        return Ok(Report::default());
    }
    let set = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(&failed);
    let (cache, threads) = (set("cache_size")?, set("threads")?);
    let mut doubts = BTreeMap::new();
    let built = loop {
        connection.execute_batch("SAVEPOINT headwater_indexes; PRAGMA writable_schema = ON").map_err(&failed)?;
        let usage = Recorder::new();
        let built = attempt(&Pager::lent(connection), options, &doubts, &usage);
        // Where a disk is full SQLite may give the whole transaction up: then there is none to go back in.
        let is_gone = connection.is_autocommit();
        if built.is_err() && !is_gone {
            connection.execute_batch("ROLLBACK TO headwater_indexes").map_err(&failed)?;
        }
        // New indexes are in the file's schema, not yet in the connection's.
        let release = if is_gone { "" } else { "RELEASE headwater_indexes;" };
        connection.execute_batch(&format!("{release} PRAGMA writable_schema = RESET")).map_err(&failed)?;
        match built {
            Ok(report) => break Ok(report.with(usage)),
            Err(Halt::Error(error)) => break Err(error),
            Err(Halt::Doubt { index, why }) => note_doubt(&mut doubts, index, why),
        }
    };
    let as_before = format!("PRAGMA cache_size = {cache}; PRAGMA threads = {threads}");
    connection.execute_batch(&as_before).map_err(&failed)?;
    built
}

fn note_doubt(doubts: &mut BTreeMap<String, String>, index: String, why: String) {
    let is_new = doubts.insert(index, why).is_none();
    assert!(is_new, "an index that is left to SQLite can't be in doubt again");
}

fn attempt(
    pager: &Pager<'_>,
    options: &Options,
    doubts: &BTreeMap<String, String>,
    usage: &Recorder,
) -> Result<Report, Halt> {
    Knobs::of(options, 1)?;
    let header = header(pager)?;
    let plan = plan(pager, &header, options, doubts)?;
    let mut report = Report { integrity_checked: options.integrity_check, ..Report::default() };
    for index in &plan.by_sqlite {
        let _span = usage.span(0, None, Phase::Sqlite);
        report.indexes.push(by_sqlite(pager, index, options)?);
    }
    let sums = build_here(pager, &plan, options, usage, &mut report)?;
    check(pager, &plan, &sums, options, usage)?;
    for (table, sums) in plan.tables.iter().zip(sums) {
        for (index, sum) in table.indexes.iter().zip(sums) {
            let by = Builder::Headwater { keys: sum.keys };
            report.indexes.push(Built { index: index.name.clone(), table: table.name.clone(), by });
        }
    }
    Ok(report)
}

/// The header as the pager has it.
pub(crate) fn header(pager: &Pager<'_>) -> Result<Header, Error> {
    let (page_size, pages) = {
        let connection = pager.connection();
        let number = |pragma| {
            connection
                .pragma_query_value(None, pragma, |row| row.get(0))
                .map_err(sqlite("reading the sizes of the database"))
        };
        (number("page_size")?, number("page_count")?)
    };
    let mut first = vec![0; page_size as usize];
    if pager.has_pages() {
        pager.read(1, &mut first, page_size as usize)?;
    } else {
        // Only for what says that SQLite does it all.
        let layout = Layout { page_size: page_size as usize, usable: page_size as usize, pages };
        crate::file::ReadPages::read(&MainFile::of(pager, layout)?, 1, &mut first)?;
    }
    Header::read(&first, pages)
}

fn by_sqlite(pager: &Pager<'_>, index: &BySqlite, options: &Options) -> Result<Built, Error> {
    let by = index.build(&pager.connection(), &Knobs::of(options, 1)?)?;
    Ok(Built { index: index.name.clone(), table: index.table.clone(), by })
}

/// Builds the indexes that are built here, table by table; gives the sums of their keys.
fn build_here(
    pager: &Pager<'_>,
    plan: &Plan,
    options: &Options,
    usage: &Recorder,
    report: &mut Report,
) -> Result<Vec<Sums>, Halt> {
    if plan.tables.is_empty() {
        return Ok(Vec::new());
    }
    let header = header(pager)?;
    if pager.is_lent() {
        pager.forget(&plan.new_roots, header.layout.page_size)?;
    }
    let mut work = Work::new(pager, plan, &header, options, usage)?;
    let mut sums = Vec::new();
    for table in &plan.tables {
        let knobs = Knobs::of(options, table.indexes.len())?;
        sums.push(work.table(table, &knobs)?);
        report.tables.push((table.name.clone(), knobs));
    }
    let space = work.space.into_inner().unwrap_or_else(PoisonError::into_inner);
    space.write(pager)?;
    pager.note_size()?;
    Ok(sums)
}

/// Where pages are read that nothing here has written: several threads at once in the file, unless the transaction had begun before.
fn unwritten<'w>(pager: &'w Pager<'_>, layout: &Layout) -> Result<Box<dyn ReadPages + 'w>, Error> {
    if pager.is_lent() {
        return Ok(Box::new(PagerPages { pager, layout: layout.clone() }));
    }
    Ok(Box::new(MainFile::of(pager, layout.clone())?))
}

/// What all tables share.
struct Work<'w, 'c> {
    pager: &'w Pager<'c>,
    file: Box<dyn ReadPages + 'w>,
    layout: Layout,
    space: Mutex<Space>,
    claims: Claims,
    trees: BTreeMap<u32, Tree>,
    options: &'w Options,
    usage: &'w Recorder,
}

impl<'w, 'c> Work<'w, 'c> {
    fn new(
        pager: &'w Pager<'c>,
        plan: &Plan,
        header: &Header,
        options: &'w Options,
        usage: &'w Recorder,
    ) -> Result<Work<'w, 'c>, Halt> {
        let _span = usage.span(0, None, Phase::IndexScan);
        let pages = PagerPages { pager, layout: header.layout.clone() };
        let mut claims = Claims::new(header);
        let mut trees = BTreeMap::new();
        walk(&pages, 1, false, &mut claims)?;
        let roots = catalog::roots(&pager.connection())?;
        for (root, is_index) in roots {
            if plan.new_roots.contains(&root) {
                claims.claim(root)?;
            } else {
                trees.insert(root, walk(&pages, root, is_index, &mut claims)?);
            }
        }
        let free = free_pages(&pages, header, &mut claims)?;
        Ok(Work {
            pager,
            file: unwritten(pager, &header.layout)?,
            layout: header.layout.clone(),
            space: Mutex::new(Space::new(free, &header.layout)),
            claims,
            trees,
            options,
            usage,
        })
    }

    fn table(&mut self, table: &TableJob, knobs: &Knobs) -> Result<Sums, Halt> {
        let mut old_pages = Vec::new();
        for index in &table.indexes {
            // One that is new has no tree yet.
            old_pages.push(match self.trees.get(&index.root) {
                Some(tree) => old::pages(&*self.file, tree, index.root, &mut self.claims, knobs.threads, self.usage)?,
                None => Vec::new(),
            });
        }
        let groups = spread(table.indexes.len(), knobs.groups);
        let places = Places::new(&knobs.temp_dirs);
        let store = Store::new(knobs, &places);
        let nothing = Tree::default();
        let scan = Scan {
            table,
            pages: &*self.file,
            leaves: &self.trees.get(&table.root).unwrap_or(&nothing).leaves,
            groups: &groups,
            store: &store,
            sort_block: knobs.sort_block as usize,
            usage: self.usage,
            progress: self.options.progress.as_deref(),
        };
        let (sums, witnesses) = scan.run(knobs.threads)?;
        witnesses.check(&self.pager.connection(), table)?;
        self.merge(table, knobs, &groups, &store, old_pages)?;
        Ok(sums)
    }

    /// Merges the groups, some at a time, and writes the pages that they finish.
    fn merge(
        &self,
        table: &TableJob,
        knobs: &Knobs,
        groups: &[Vec<usize>],
        store: &Store<'_>,
        mut old_pages: Vec<Vec<u32>>,
    ) -> Result<(), Halt> {
        let (finished, batches) = sync_channel(BATCHES);
        let expected = store.bytes() / self.layout.page_size as u64;
        let mut waiting = Vec::new();
        // The largest first, so that no long one is left alone at the end.
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|&group| store.bytes_of(group));
        for (number, indexes) in order.into_iter().map(|group| (group, &groups[group])) {
            let part =
                |&index: &usize| Part { job: &table.indexes[index], pages: std::mem::take(&mut old_pages[index]) };
            waiting.push((number, indexes.iter().map(part).collect::<Vec<_>>()));
        }
        let waiting = Mutex::new(waiting);
        std::thread::scope(|scope| {
            let waiting = &waiting;
            let builders: Vec<_> = (0..knobs.groups_at_once)
                .map(|slot| {
                    let finished = finished.clone();
                    let thread = 1 + slot * knobs.merge_threads;
                    scope.spawn(move || -> Result<(), Halt> {
                        loop {
                            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
                            let Some((number, parts)) = next else { return Ok(()) };
                            let runs = store.take(number, thread, self.usage)?;
                            let group = Group {
                                number,
                                thread,
                                parts,
                                layout: &self.layout,
                                space: &self.space,
                                finished: finished.clone(),
                                knobs,
                                usage: self.usage,
                            };
                            group.build(runs)?;
                        }
                    })
                })
                .collect();
            drop(finished);
            let written = self.write(batches, expected);
            let mut built = Ok(());
            for builder in builders {
                let one = builder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                built = built.and(one);
            }
            // Where writing failed, builders only say that nobody takes their pages.
            written.map_err(Halt::from).and(built)
        })
    }

    /// Writes pages until all groups have ended: about as many as are expected.
    fn write(&self, batches: Receiver<Batch>, expected: u64) -> Result<(), Error> {
        let mut span = self.usage.span(0, None, Phase::Write);
        let mut done = 0;
        for batch in batches {
            self.pager.write(&batch.pages, &batch.bytes, self.layout.page_size)?;
            span.wrote(batch.bytes.len() as u64);
            done += batch.pages.len() as u64;
            if let Some(progress) = &self.options.progress {
                progress(Progress { step: Step::Build, done, of: expected.max(done) });
            }
        }
        Ok(())
    }
}

/// Reads what was built once more, and lets SQLite check everything where that is asked for.
fn check(pager: &Pager<'_>, plan: &Plan, sums: &[Sums], options: &Options, usage: &Recorder) -> Result<(), Error> {
    let expected: Vec<Expected<'_>> = plan
        .tables
        .iter()
        .zip(sums)
        .flat_map(|(table, sums)| table.indexes.iter().zip(sums).map(|(job, &sum)| Expected { job, sum }))
        .collect();
    if !expected.is_empty() {
        let header = header(pager)?;
        let mut claims = Claims::new(&header);
        let pages = PagerPages { pager, layout: header.layout.clone() };
        free_pages(&pages, &header, &mut claims)?;
        let threads = Knobs::of(options, 1)?.threads;
        verify(&pages, &expected, &mut claims, threads, usage, options.progress.as_deref())?;
    }
    if options.integrity_check {
        let _span = usage.span(0, None, Phase::IntegrityCheck);
        crate::by_sqlite::integrity_check(&pager.connection())?;
    }
    Ok(())
}
