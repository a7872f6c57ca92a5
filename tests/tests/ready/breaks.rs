//! Lines that break, bytes that are damaged, and what is left behind.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use headwater_protocol::message::READY_BLOCK_BYTES;
use headwater_remote::http::{Credentials, Server};
use headwater_remote::{CreateOptions, Remote};
use headwater_testkit::Plan;
use headwater_testkit::proxy::{Cut, Direction, FaultProxy};
use headwater_tests::apart::is_apart;
use headwater_tests::disk::SmallDisk;
use headwater_tests::{Kind, World};

use super::{ANN, BOB, CAT, content, create, create_at, warm, world};

/// Files beside a remote's.
pub(super) fn beside(world: &World, name: &str) -> Result<Vec<String>> {
    let prefix = format!("{name}.db-ready-");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(world.folder.path())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(&prefix) {
            found.push(name);
        }
    }
    Ok(found)
}

fn same_as_ordinary(world: &World, name: &str) -> Result<()> {
    let mut ordinary = world.remote(&format!("{name} ordinary"), BOB)?;
    world.sync(&mut ordinary)?;
    ensure!(content(&world.path(name))? == content(&world.path(&format!("{name} ordinary")))?, "{name} is another");
    Ok(())
}

/// Each transfer breaks after a piece: it is taken up at the block in which it stopped, within one attempt.
#[test]
fn a_transfer_that_breaks_goes_on_where_it_stopped() -> Result<()> {
    let world = world(Kind::Sqlite, 60_000)?;
    let whole = warm(&world, ANN, BOB)?.bytes_down;
    ensure!(whole > 500_000, "{whole} bytes are too few to be worth a test");
    let proxy = FaultProxy::start(world.address()?)?;
    let url = format!("http://{}", proxy.address());
    proxy.script(|number| {
        let cut = if number % 2 == 0 { Cut::Reset } else { Cut::Fin };
        Plan::clean().cut(Direction::Down, 150_000, cut)
    });
    let before = proxy.counters().down;
    let (mut remote, taken) = create_at(&world, "broken", CAT, &url)?;
    let came = proxy.counters().down - before;
    let taken = taken.context("it came")?;
    // Of each piece the block comes again in which it broke.
    ensure!((whole + 1..2 * whole).contains(&taken.bytes_down), "{taken:?}, the file has {whole}");
    ensure!(came < taken.bytes_down + whole / 10, "{came} bytes came for {taken:?}");
    ensure!(beside(&world, "broken")?.is_empty());
    proxy.go_clean();
    world.sync(&mut remote)?;
    same_as_ordinary(&world, "broken")
}

/// Makes a remote by a line that dies after so many bytes: without rows, and without what has come of the file. Puts it back, as an attempt
/// that was killed leaves it, with no remote; gives its path.
fn killed_after(world: &World, name: &str, bytes: u64) -> Result<PathBuf> {
    let proxy = FaultProxy::start(world.address()?)?;
    let url = format!("http://{}", proxy.address());
    proxy.script(move |number| Plan::clean().cut(Direction::Down, if number == 0 { bytes } else { 0 }, Cut::Reset));
    let kept = world.folder.path().join("kept");
    let coming = std::thread::scope(|scope| {
        let created = scope.spawn(|| create_at(world, name, CAT, &url));
        let coming = loop {
            ensure!(!created.is_finished(), "no file came");
            if let Some(coming) = beside(world, name)?.pop() {
                break world.folder.path().join(coming);
            }
            std::thread::yield_now();
        };
        // By another name it outlasts the attempt.
        std::fs::hard_link(&coming, &kept)?;
        let (_, taken) = created.join().expect("an attempt that ends")?;
        ensure!(taken.is_none(), "the line is dead: {taken:?}");
        Ok(coming)
    })?;
    ensure!(beside(world, name)?.is_empty(), "nobody goes on with it");
    ensure!(world.rows(name, "SELECT count(*) FROM item")? == [[Some("0".to_owned())]], "a remote without rows");
    std::fs::remove_file(world.path(name))?;
    std::fs::rename(kept, &coming)?;
    Ok(coming)
}

/// An attempt that was killed leaves its bytes to the next.
#[test]
fn what_came_before_does_not_come_again() -> Result<()> {
    let world = world(Kind::Sqlite, 60_000)?;
    let whole = warm(&world, ANN, BOB)?.bytes_down;
    let came = std::fs::metadata(killed_after(&world, "again", whole * 3 / 4)?)?.len();
    ensure!(came > 2 * READY_BLOCK_BYTES, "{came} bytes of the file, which is sent as {whole}");
    let (mut remote, taken) = create(&world, "again", CAT)?;
    let taken = taken.context("it comes now")?;
    ensure!(taken.bytes_down > 0 && taken.bytes_down < whole / 2, "{taken:?}: {came} bytes had come, {whole} are sent");
    ensure!(beside(&world, "again")?.is_empty());
    world.sync(&mut remote)?;
    same_as_ordinary(&world, "again")
}

/// A bit that the way has turned, and bytes of before that are not those: nothing of it becomes a remote.
#[test]
fn what_is_damaged_is_not_taken() -> Result<()> {
    let world = world(Kind::Sqlite, 40_000)?;
    let whole = warm(&world, ANN, BOB)?.bytes_down;
    let proxy = FaultProxy::start(world.address()?)?;
    let url = format!("http://{}", proxy.address());
    for (name, at) in [("early", 3_000), ("middle", whole / 2), ("late", whole)] {
        proxy.script(move |_| Plan::clean().flip(Direction::Down, at));
        let (mut remote, taken) = create_at(&world, name, CAT, &url)?;
        ensure!(beside(&world, name)?.is_empty());
        // Where the damage is found before the end, what came before it is right, and the rest may come undamaged.
        ensure!(taken.is_none() || name != "early", "{name}: {taken:?}");
        proxy.go_clean();
        world.sync(&mut remote)?;
        same_as_ordinary(&world, name)?;
    }
    // What a killed attempt left behind, and somebody wrote to.
    let (_, taken) = create(&world, "sound", CAT)?;
    ensure!(taken.is_some());
    overwrite(&killed_after(&world, "left", whole / 2)?)?;
    let (_, taken) = create(&world, "left", CAT)?;
    ensure!(taken.is_none() && beside(&world, "left")?.is_empty(), "{taken:?}");
    std::fs::remove_file(world.path("left"))?;
    let (mut remote, taken) = create(&world, "left", CAT)?;
    ensure!(taken.is_some(), "then it comes anew");
    world.sync(&mut remote)?;
    same_as_ordinary(&world, "left")
}

fn overwrite(path: &Path) -> Result<()> {
    let mut bytes = std::fs::read(path)?;
    ensure!(bytes.len() as u64 > READY_BLOCK_BYTES, "what came of its first block would come again");
    bytes[5_000] ^= 1;
    Ok(std::fs::write(path, bytes)?)
}

/// A server that stops, or knows nothing of files, leaves a remote that syncs.
#[test]
fn without_a_file_the_remote_is_made_all_the_same() -> Result<()> {
    let mut world = world(Kind::Sqlite, 600)?;
    warm(&world, ANN, BOB)?;
    let url = world.server_url()?;
    world.stop_server();
    let (remote, taken) = create_at(&world, "alone", CAT, &url)?;
    ensure!(taken.is_none() && remote.status()?.pending == 0);
    Ok(())
}

/// On a full disk nothing is made, and what has come stays for the next attempt: with a little more room each time.
#[test]
fn a_full_disk_leaves_what_came() -> Result<()> {
    if !is_apart("breaks::a_full_disk_leaves_what_came", "--mount")? {
        return Ok(());
    }
    let world = world(Kind::Sqlite, 20_000)?;
    let whole = warm(&world, ANN, BOB)?.bytes_down;
    let disk = SmallDisk::new(16)?;
    let url = world.server_url()?;
    let server = Server { url: url.clone(), credentials: Credentials::Token(world.token(CAT)?), ca_file: None };
    let model = world.plan.model.public();
    let create = |path: &Path| Remote::create_from(path, &model, &CreateOptions::new(&url, CAT), &server);
    let there = || -> Result<Vec<(String, u64)>> {
        let entries = std::fs::read_dir(disk.path())?.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()))
        });
        entries.collect()
    };
    let (mut failures, mut with_bytes) = (0, 0);
    for step in 0.. {
        ensure!(step < 100, "no end of it");
        let path = disk.path().join("new.db");
        disk.leave(step * 100_000)?;
        let made = create(&path);
        disk.clear()?;
        let came = match made {
            Ok((_, taken)) => {
                ensure!(taken.is_some(), "with {step} steps of room it came some other way");
                break;
            }
            Err(error) => {
                failures += 1;
                ensure!(error.code() == "disk_full", "{error:?}");
                let left = there()?;
                ensure!(left.iter().all(|(name, _)| name.starts_with("new.db-ready-")), "{left:?}");
                left.iter().map(|(_, bytes)| bytes).sum::<u64>()
            }
        };
        let (_, taken) = create(&path)?;
        let taken = taken.context("there is room now")?;
        let has_block = came >= READY_BLOCK_BYTES;
        ensure!((taken.bytes_down < whole) == has_block, "{taken:?}: {came} bytes had come, {whole} are sent");
        with_bytes += u64::from(has_block);
        ensure!(there()?.iter().all(|(name, _)| !name.contains("ready")), "{:?}", there()?);
        for (name, _) in there()? {
            std::fs::remove_file(disk.path().join(name))?;
        }
    }
    ensure!(failures > 3 && with_bytes > 2, "{failures} failures, {with_bytes} with bytes to go on with");

    // The ordinary way: no file is left that would be in the way of a ready one.
    let mut failures = 0;
    for step in 0.. {
        ensure!(step < 100, "no end of it");
        let path = disk.path().join("other.db");
        disk.leave(step * 8_192)?;
        let made = Remote::create(&path, &model, &CreateOptions::new(&url, CAT));
        let left = there()?;
        disk.clear()?;
        match made {
            Ok(_) => break,
            Err(error) => ensure!(error.code() == "disk_full", "{error:?}"),
        }
        ensure!(!left.iter().any(|(name, _)| name.starts_with("other")), "{left:?}");
        failures += 1;
    }
    ensure!(failures > 3, "{failures} failures");
    Ok(())
}

/// A server whose disk has no room for one more file makes none, and does once there is room.
#[test]
fn no_room_for_a_file_at_the_server() -> Result<()> {
    if !is_apart("breaks::no_room_for_a_file_at_the_server", "--mount")? {
        return Ok(());
    }
    let mut world = world(Kind::Sqlite, 600)?;
    let disk = SmallDisk::with_inodes(96, 32)?;
    world.config.spool_folder = Some(disk.path().to_owned());
    for room in 0.. {
        ensure!(room < 20, "no end of it");
        // It has none when it starts.
        world.start_server()?;
        disk.leave_inodes(room)?;
        let (_, first) = create(&world, &format!("first {room}"), ANN)?;
        let (mut second, taken) = create(&world, &format!("second {room}"), BOB)?;
        disk.clear_inodes()?;
        ensure!(first.is_none(), "the first that asks is given none");
        world.sync(&mut second)?;
        ensure!(world.diff(&format!("second {room}"))?.is_equal(false), "room for {room} files");
        if taken.is_some() {
            ensure!(room > 0, "it took no room");
            return Ok(());
        }
        create(&world, &format!("third {room}"), CAT)?;
        let (_, taken) = create(&world, &format!("fourth {room}"), ANN)?;
        ensure!(taken.is_some(), "with room for {room} files none was made, and none after it");
    }
    Ok(())
}
