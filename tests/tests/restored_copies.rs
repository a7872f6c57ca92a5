//! A backup of the consolidated database is put back, and a copy of a remote's file syncs before the remote does. The copy's uploads have the
//! numbers of those that the remote lost: the remote finds out all the same, lists what it lost and nothing else, and whoever wants that
//! back has it back.

use anyhow::{Context, Result, ensure};
use headwater_remote::{Choice, Remote};
use headwater_tests::backup::{Site, copy_file};
use headwater_tests::{KINDS, Kind, World, read_model};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT); \
                      INSERT INTO note VALUES ('one', 'old'), ('two', 'old'), ('three', 'old')";
const MODEL: &str = r#"
name = "notes"
version = 1
[tables.note]
conflict = "consolidated_wins"
key = ["id"]
columns = { id = "text not null", text = "text" }
"#;

/// How often the remote uploads before the backup is put back, how often its copy does afterwards, and whether the remote then has something
/// pending.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    lost: u64,
    copied: u64,
    is_pending: bool,
}

struct Stage {
    world: World,
    first: Remote,
    copy: Remote,
}

/// The remote's uploads are lost: the first changes two rows and deletes one, each further one makes a row, and changes one again.
fn set_up(site: &Site, mut world: World, case: Case) -> Result<Stage> {
    world.start_server()?;
    let mut first = world.remote("first", "anna")?;
    world.sync(&mut first)?;
    // What the database has of earlier uploads, as it was sent and changed since, is not lost.
    world.edit("first", "INSERT INTO note VALUES ('early', 'x'), ('early 2', 'x')")?;
    world.sync(&mut first)?;
    world.central.execute("UPDATE note SET text = 'from the head' WHERE id = 'early'")?;
    world.sync(&mut first)?;
    let backup = site.back_up()?;
    copy_file(&world.path("first"), &world.path("copy"))?;
    world.edit(
        "first",
        "UPDATE note SET text = 'new' WHERE id IN ('one', 'two'); DELETE FROM note WHERE id = 'three'",
    )?;
    world.sync(&mut first)?;
    for number in 1..case.lost {
        let row = format!("INSERT INTO note VALUES ('lost {number}', 'x')");
        world.edit("first", &format!("{row}; UPDATE note SET text = 'new {number}' WHERE id = 'one'"))?;
        world.sync(&mut first)?;
    }
    site.put_back(&backup)?;
    let mut copy = Remote::open(world.path("copy"))?;
    for number in 0..case.copied {
        world.edit("copy", &format!("INSERT INTO note VALUES ('copy {number}', 'x')"))?;
        let report = world.sync(&mut copy)?;
        ensure!(!report.new_remote_id && report.lost.is_none(), "the copy is as the database knows it: {report:?}");
    }
    if case.is_pending {
        world.edit("first", "INSERT INTO note VALUES ('pending', 'x')")?;
    }
    Ok(Stage { world, first, copy })
}

/// What the remote lost is on its list, and nothing else is.
fn is_listed(stage: &Stage, case: Case, beside: Option<&str>) -> Result<()> {
    let aside = stage.first.set_aside(100)?;
    let mut listed: Vec<_> = aside.iter().map(|change| (change.key.clone(), change.reason.as_str())).collect();
    listed.sort_unstable();
    let mut expected: Vec<_> = ["one", "two", "three"].map(str::to_owned).into();
    expected.extend(beside.map(str::to_owned));
    expected.extend((1..case.lost).map(|number| format!("lost {number}")));
    let mut expected: Vec<_> = expected.iter().map(|id| (format!(r#"{{"id":"{id}"}}"#), "lost")).collect();
    expected.sort_unstable();
    ensure!(listed == expected, "listed: {listed:?}");
    Ok(())
}

fn has(world: &World, id: &str, text: Option<&str>) -> Result<()> {
    let rows = world.central.rows(&format!("SELECT text FROM note WHERE id = '{id}'"))?;
    let expected: Vec<Vec<_>> = text.iter().map(|text| vec![Some((*text).to_owned())]).collect();
    ensure!(rows == expected, "{id:?} is {rows:?} at the head, expected {text:?}");
    Ok(())
}

/// All that was ever written is there once what is listed is sent again.
fn comes_back(stage: &mut Stage, case: Case) -> Result<()> {
    let Stage { world, first, copy } = stage;
    first.retry(&Choice::All)?;
    for _ in 0..2 {
        world.sync(first)?;
        world.sync(copy)?;
    }
    let last = case.lost - 1;
    has(world, "one", Some(&if last == 0 { "new".to_owned() } else { format!("new {last}") }))?;
    has(world, "two", Some("new"))?;
    has(world, "three", None)?;
    has(world, "early", Some("from the head"))?;
    has(world, "pending", case.is_pending.then_some("x"))?;
    (1..case.lost).try_for_each(|number| has(world, &format!("lost {number}"), Some("x")))?;
    (0..case.copied).try_for_each(|number| has(world, &format!("copy {number}"), Some("x")))?;
    for (name, remote) in [("first", first), ("copy", copy)] {
        let quiet = world.sync(remote)?;
        ensure!((quiet.changes_up, quiet.rows_down, quiet.new_remote_id) == (0, 0, false), "{name}: {quiet:?}");
        ensure!(remote.set_aside(10)?.is_empty(), "{name} has sent all");
        let report = world.diff(name)?;
        ensure!(report.is_equal(false), "{name} differs: {}", serde_json::to_string(&report)?);
    }
    Ok(())
}

fn on_both(cases: &[(u64, u64, bool)], test: impl Fn(&mut Stage, Case) -> Result<()>) -> Result<()> {
    for kind in KINDS {
        for &(lost, copied, is_pending) in cases {
            let case = Case { kind, lost, copied, is_pending };
            let (site, central) = Site::new(case.kind)?;
            let run = || -> Result<()> {
                central.execute(SCHEMA)?;
                let world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &["anna"])?;
                test(&mut set_up(&site, world, case)?, case)
            };
            run().with_context(|| format!("{case:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn what_a_remote_lost_is_listed_though_a_copy_has_used_its_numbers() -> Result<()> {
    on_both(&[(1, 1, true), (1, 1, false), (1, 2, true), (1, 2, false), (3, 1, true), (2, 4, false)], |stage, case| {
        let report = stage.world.sync(&mut stage.first)?;
        ensure!(report.new_remote_id && report.restarted, "{report:?}");
        ensure!((report.lost, report.lost_changes) == (Some((2, 1 + case.lost)), 2 + case.lost), "{report:?}");
        is_listed(stage, case, None)?;
        ensure!(stage.first.set_aside(100)?.iter().all(|change| change.is_in_place), "the rows stand as they were");
        comes_back(stage, case)
    })
}

/// More is lost than a remote names: what the copy has not replaced is found first, and then the rest.
#[test]
fn more_lost_uploads_than_are_named_are_listed_too() -> Result<()> {
    on_both(&[(12, 1, true), (12, 1, false)], |stage, case| {
        let mut reports = vec![stage.world.sync(&mut stage.first)?];
        if !case.is_pending {
            reports.push(stage.world.sync(&mut stage.first)?);
        }
        ensure!(reports.iter().map(|report| report.lost_changes).sum::<u64>() == 3 + case.lost, "{reports:?}");
        is_listed(stage, case, None)?;
        let one = stage
            .first
            .set_aside(100)?
            .into_iter()
            .find(|change| change.key.contains("one"))
            .context("it is listed")?;
        ensure!(one.old.as_deref() == Some(r#"{"id":"one","text":"old"}"#), "as the database has it: {one:?}");
        comes_back(stage, case)
    })
}

/// Nothing that the remote names is there: of what was sent before, only what others have changed since is listed too.
#[test]
fn what_came_down_as_it_was_sent_is_not_listed() -> Result<()> {
    on_both(&[(12, 14, false)], |stage, case| {
        let report = stage.world.sync(&mut stage.first)?;
        ensure!((report.new_remote_id, report.lost) == (true, Some((1, 13))), "{report:?}");
        is_listed(stage, case, Some("early"))?;
        let early = stage.first.set_aside(100)?.into_iter().find(|change| change.key.contains("early"));
        let early = early.context("it is listed")?;
        ensure!(!early.is_in_place, "the row is as it came: {early:?}");
        stage.first.drop_set_aside(&Choice::Numbers(vec![early.number]))?;
        comes_back(stage, case)
    })
}

/// The copy was made after the backup, so it has lost uploads of its own, and their numbers are left out: what it sends is the first that
/// the database has of this remote, or the first after a gap.
#[test]
fn the_copy_has_lost_uploads_too() -> Result<()> {
    for (kind, has_uploaded) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (site, central) = Site::new(kind)?;
        central.execute(SCHEMA)?;
        let mut world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &["anna"])?;
        world.start_server()?;
        let mut first = world.remote("first", "anna")?;
        let insert = |name: &str, id: &str| world.edit(name, &format!("INSERT INTO note VALUES ('{id}', 'x')"));
        if has_uploaded {
            insert("first", "before")?;
        }
        world.sync(&mut first)?;
        let backup = site.back_up()?;
        insert("first", "both")?;
        world.sync(&mut first)?;
        copy_file(&world.path("first"), &world.path("copy"))?;
        insert("first", "alone")?;
        world.sync(&mut first)?;
        site.put_back(&backup)?;
        let mut copy = Remote::open(world.path("copy"))?;
        insert("copy", "copied")?;
        world.sync(&mut copy)?;

        let report = world.sync(&mut first)?;
        ensure!((report.new_remote_id, report.lost_changes) == (true, 2), "{kind:?} {has_uploaded}: {report:?}");
        let listed: Vec<_> = first.set_aside(9)?.into_iter().map(|change| (change.key, change.is_in_place)).collect();
        let expected = ["alone", "both"].map(|id| (format!(r#"{{"id":"{id}"}}"#), true));
        ensure!(listed == expected, "{kind:?} {has_uploaded}: {listed:?}");
        first.retry(&Choice::All)?;
        world.sync(&mut first)?;
        ["both", "alone", "copied"].iter().try_for_each(|id| has(&world, id, Some("x")))?;
    }
    Ok(())
}
