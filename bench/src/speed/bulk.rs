//! Downloads and uploads of a thousand rows each by many clients.
#![allow(clippy::print_stdout)]

use anyhow::{Result, ensure};
use headwater_lab::sync::memory::{MemoryRemote, Synced, Upload};
use headwater_protocol::message::ChangeOp;

use super::bare::{self, Loop, Piece};
use super::world::{Cpu, Which, World};
use super::{Turns, median};

/// Runs the bare loop twice with each number of connections and gives the best of them, with what it took.
fn best(world: &World, bare: &Loop, pieces: impl Fn(usize) -> Result<Vec<Piece>>) -> Result<(f64, usize)> {
    let (mut best, mut turn) = ((f64::INFINITY, 1), 0);
    for connections in &world.arguments.connections {
        let mut seconds = Vec::new();
        for _ in 0..2 {
            seconds.push(bare.run(*connections, pieces(turn)?)?.0);
            turn += 1;
        }
        eprintln!("bare, {connections} connections: {seconds:.3?}");
        let least = seconds.into_iter().fold(f64::INFINITY, f64::min);
        if least < best.0 {
            best = (least, *connections);
        }
    }
    Ok(best)
}

fn most(world: &World) -> usize {
    world.arguments.connections.iter().copied().max().unwrap_or(1)
}

fn all_rows(world: &World) -> f64 {
    world.arguments.clients as f64 * world.arguments.rows as f64
}

/// Rates of both sides, and who worked.
fn rates(world: &World, name: &str, turns: &Turns, cpus: &[Cpu], connections: usize) {
    println!("rate speed.{name}_rows_per_s {:.0}", all_rows(world) / turns.median(0));
    println!("rate speed.{name}_bare_rows_per_s {:.0}", all_rows(world) / turns.median(1));
    println!("rate speed.{name}_bare_connections {connections}");
    processor_times(world, name, cpus);
}

fn processor_times(world: &World, name: &str, cpus: &[Cpu]) {
    let of = |one: fn(&Cpu) -> f64| median(&cpus.iter().map(one).collect::<Vec<_>>()) * 1e6 / all_rows(world);
    println!("rate speed.{name}_server_cpu_us_a_row {:.3}", of(|cpu| cpu.server));
    println!("rate speed.{name}_database_cpu_us_a_row {:.3}", of(|cpu| cpu.database));
    println!("rate speed.{name}_generator_cpu_us_a_row {:.3}", of(|cpu| cpu.generator));
}

/// The server's processor time against the database's.
fn share(kind: &str, cpus: &[Cpu]) {
    let shares: Vec<f64> = cpus.iter().map(|cpu| cpu.server / cpu.database).collect();
    super::tell(&format!("speed.server_cpu_share_{kind}"), &shares);
}

fn expect(all: &[Synced], upserts: i64, deletes: i64, changes: i64) -> Result<()> {
    for synced in all {
        let has = (synced.upserts as i64, synced.deletes as i64, synced.changes as i64, synced.contested);
        ensure!(
            has == (upserts, deletes, changes, 0),
            "a sync brought {synced:?}, expected {upserts} rows, {deletes} deletions, {changes} changes"
        );
    }
    Ok(())
}

/// New remotes of all clients, against COPY of their partitions.
pub(crate) fn first_downloads(world: &mut World) -> Result<()> {
    let query = |number: usize| {
        Piece::Copy(format!(
            "SELECT b.emp_id, b.purch_id, b.cust_id, b.cost, b.order_date, b.notes FROM public.purchase AS b \
             WHERE b.emp_id = ANY('{{{}}}'::int4[])",
            number + 1
        ))
    };
    let clients = world.arguments.clients;
    let pieces = |_| Ok((0..clients).map(query).collect());
    let bare = Loop::open(&world.runtime, &world.url, most(world), "", &[])?;
    let (_, connections) = best(world, &bare, pieces)?;
    let rows = world.sent;
    let mut warm = world.remotes(Which::Detecting)?;
    world.sync_all(&mut warm, false)?;
    let (mut turns, mut cpus) = (Turns::default(), Vec::new());
    for turn in 0..world.arguments.repetitions {
        let mut remotes = world.remotes(Which::Detecting)?;
        let ours = || {
            let ((seconds, all), cpu) = world.metered(|| world.sync_all(&mut remotes, false))?;
            expect(&all, rows, 0, 0)?;
            cpus.push(cpu);
            Ok(seconds)
        };
        turns.take(turn, ours, || Ok(bare.run(connections, pieces(0)?)?.0))?;
        eprintln!("first {turn}: {:.3?}", turns.0[turn]);
    }
    rates(world, "download_first", &turns, &cpus, connections);
    turns.tell("speed.download_first_vs_copy", |[ours, bare]| bare / ours);
    Ok(())
}

/// What changed in the partitions of all clients, against COPY of the joined read.
pub(crate) fn later_downloads(world: &mut World) -> Result<()> {
    let clients = world.arguments.clients;
    // By index, as the server reads it, and as the planner likes.
    let open = |first: &str| Loop::open(&world.runtime, &world.url, most(world), first, &[]);
    let by_index = open("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")?;
    let planned = open("")?;
    let mut remotes = world.remotes(Which::Detecting)?;
    world.sync_all(&mut remotes, false)?;
    let mut is_updated = true;
    let change = |is_updated: bool| {
        let now = world
            .runtime
            .block_on(world.client.query_one("SELECT pg_snapshot_xmax(pg_current_snapshot())::text", &[]))?;
        let cost = if is_updated { "123456790.12" } else { "123456789.12" };
        world.sql(&format!("UPDATE purchase SET cost = {cost} WHERE emp_id <= {clients}"))?;
        world.vacuum()?;
        Ok::<_, anyhow::Error>(now.get::<_, String>(0))
    };
    let pieces = |end: &str| (0..clients).map(|number| Piece::Copy(joined_sql(number + 1, end))).collect::<Vec<_>>();
    let end = change(true)?;
    let (by_index_seconds, by_index_connections) = best(world, &by_index, |_| Ok(pieces(&end)))?;
    let (planned_seconds, planned_connections) = best(world, &planned, |_| Ok(pieces(&end)))?;
    let is_planned = planned_seconds < by_index_seconds;
    let (bare, connections) =
        if is_planned { (planned, planned_connections) } else { (by_index, by_index_connections) };
    let rows = world.sent;
    expect(&world.sync_all(&mut remotes, true)?.1, rows, 0, 0)?;
    let (mut turns, mut cpus) = (Turns::default(), Vec::new());
    for turn in 0..world.arguments.repetitions {
        is_updated = !is_updated;
        let end = change(is_updated)?;
        let ours = || {
            let ((seconds, all), cpu) = world.metered(|| world.sync_all(&mut remotes, is_updated))?;
            expect(&all, rows, 0, 0)?;
            cpus.push(cpu);
            Ok(seconds)
        };
        turns.take(turn, ours, || Ok(bare.run(connections, pieces(&end))?.0))?;
        eprintln!("later {turn}: {:.3?}", turns.0[turn]);
    }
    if is_updated {
        change(false)?;
    }
    rates(world, "download_later", &turns, &cpus, connections);
    println!("rate speed.download_later_bare_is_planned {}", u8::from(is_planned));
    turns.tell("speed.download_later_vs_copy", |[ours, bare]| bare / ours);
    share("download", &cpus);
    Ok(())
}

/// What the server reads of a partition, as it reads it.
fn joined_sql(employee: usize, end: &str) -> String {
    let noted = |version: &str| {
        format!(
            "SELECT t.* FROM unnest('{{{employee}}}'::int4[]) AS u(c0) JOIN headwater.\"side_purchase@emp_id\" AS t \
             ON t.key_emp_id = u.c0 AND t.version {version}"
        )
    };
    format!(
        "SELECT s.version = NULL::xid8, (b.emp_id = s.key_emp_id) IS TRUE, coalesce(b.emp_id, s.key_emp_id), \
         coalesce(b.purch_id, s.key_purch_id), b.cust_id, b.cost, b.order_date, b.notes \
         FROM ({} UNION ALL {}) AS s LEFT JOIN public.purchase AS b ON b.emp_id = s.key_emp_id AND b.purch_id = s.key_purch_id \
         WHERE (b.emp_id = s.key_emp_id) IS TRUE \
         OR ((b.emp_id) IN (SELECT w.c0 FROM unnest('{{{employee}}}'::int4[]) AS w(c0))) IS NOT TRUE",
        noted(&format!(">= '{end}'::xid8")),
        noted("= ANY('{}'::xid8[])"),
    )
}

/// Has each client send this change of some of its rows.
pub(super) fn put(
    world: &World,
    which: Which,
    remotes: &mut [MemoryRemote],
    op: ChangeOp,
    (first, is_updated): (i64, bool),
) {
    let offset = if which == Which::Off { world.arguments.clients } else { 0 };
    for (number, remote) in remotes.iter_mut().enumerate() {
        let employee = (number + offset) as i64 + 1;
        let numbers = first..first + world.arguments.rows;
        let changes = numbers.map(|number| world.purchases.change(op, employee, number, is_updated));
        remote.put(Upload::of(&world.purchases.header, changes));
    }
}

/// Uploads by all clients at once.
fn upload(
    world: &World,
    which: Which,
    remotes: &mut [MemoryRemote],
    op: ChangeOp,
    at: (i64, bool),
) -> Result<(f64, Cpu)> {
    put(world, which, remotes, op, at);
    let ((seconds, all), cpu) = world.metered(|| world.sync_all(remotes, at.1))?;
    expect(&all, 0, 0, world.arguments.rows)?;
    Ok((seconds, cpu))
}

/// Inserts against unnest, or COPY, into the same table; then what updates and deletes take of the server.
pub(crate) fn uploads(world: &mut World) -> Result<()> {
    const UNNEST: &str = "INSERT INTO purchase SELECT * FROM unnest($1::int4[], $2::int4[], $3::int4[], $4::numeric[], $5::timestamp[], $6::text[])";
    let (clients, rows) = (world.arguments.clients, world.arguments.rows);
    let mut remotes = world.remotes(Which::Detecting)?;
    world.sync_all(&mut remotes, false)?;
    let world = &*world;
    let bare = Loop::open(&world.runtime, &world.url, most(world), "", &[UNNEST])?;
    // Those of nobody who syncs.
    let mut others = 3 * clients;
    let mut employees = || {
        others += clients;
        others - clients + 1..others + 1
    };
    let unnest = |employees: std::ops::Range<usize>| -> Result<Vec<Piece>> {
        let arrays = |employee| bare::arrays(&world.runtime, &world.client, employee, 1, rows);
        employees.map(|employee| Ok(Piece::Arrays(0, arrays(employee)?))).collect()
    };
    let copy = |employees: std::ops::Range<usize>| -> Result<Vec<Piece>> {
        let copied = |employee| bare::copied(&world.runtime, &world.client, employee, 1, rows);
        employees.map(|employee| Ok(Piece::Into("purchase".to_owned(), copied(employee)?))).collect()
    };
    let mut most_rows = (0.0, 0, false);
    for by_copy in [false, true] {
        for connections in world.arguments.connections.clone() {
            let pieces = if by_copy { copy(employees())? } else { unnest(employees())? };
            let seconds = bare.run(connections, pieces)?.0;
            eprintln!("bare, {connections} connections, {}: {seconds:.3}", if by_copy { "COPY" } else { "unnest" });
            if 1.0 / seconds > most_rows.0 {
                most_rows = (1.0 / seconds, connections, by_copy);
            }
        }
    }
    let (_, connections, by_copy) = most_rows;
    let (mut turns, mut cpus) = (Turns::default(), [Vec::new(), Vec::new(), Vec::new()]);
    let mut first = world.sent + 1;
    upload(world, Which::Detecting, &mut remotes, ChangeOp::Insert, (first, false))?;
    for turn in 0..world.arguments.repetitions {
        first += rows;
        let pieces = if by_copy { copy(employees())? } else { unnest(employees())? };
        let ours = || {
            let (seconds, cpu) = upload(world, Which::Detecting, &mut remotes, ChangeOp::Insert, (first, false))?;
            cpus[0].push(cpu);
            Ok(seconds)
        };
        turns.take(turn, ours, || Ok(bare.run(connections, pieces)?.0))?;
        eprintln!("upload {turn}: {:.3?}", turns.0[turn]);
    }
    rates(world, "upload", &turns, &cpus[0], connections);
    println!("rate speed.upload_bare_is_copy {}", u8::from(by_copy));
    turns.tell("speed.upload_vs_bare", |[ours, bare]| bare / ours);
    for turn in 0..world.arguments.repetitions {
        let is_updated = turn.is_multiple_of(2);
        cpus[1].push(upload(world, Which::Detecting, &mut remotes, ChangeOp::Update, (first, is_updated))?.1);
    }
    if !world.arguments.repetitions.is_multiple_of(2) {
        upload(world, Which::Detecting, &mut remotes, ChangeOp::Update, (first, false))?;
    }
    for _ in 0..world.arguments.repetitions {
        cpus[2].push(upload(world, Which::Detecting, &mut remotes, ChangeOp::Delete, (first, false))?.1);
        first -= rows;
    }
    for (kind, cpus) in ["insert", "update", "delete"].into_iter().zip(&cpus) {
        share(kind, cpus);
        if kind != "insert" {
            processor_times(world, kind, cpus);
        }
    }
    world.sql(&format!("DELETE FROM purchase WHERE purch_id > {} OR emp_id > {}", world.sent, 2 * clients))?;
    world.vacuum()
}

/// Updates with conflicts detected against those without.
pub(crate) fn conflict_cost(world: &mut World) -> Result<()> {
    let mut with = world.remotes(Which::Detecting)?;
    let mut without = world.remotes(Which::Off)?;
    world.sync_all(&mut with, false)?;
    world.sync_all(&mut without, false)?;
    let mut turns = Turns::default();
    // The first two warm caches and prepare statements.
    for turn in 0..world.arguments.repetitions + 2 {
        let at = (1, turn.is_multiple_of(2));
        let ours = || Ok(upload(world, Which::Detecting, &mut with, ChangeOp::Update, at)?.0);
        let bare = || Ok(upload(world, Which::Off, &mut without, ChangeOp::Update, at)?.0);
        turns.take(turn, ours, bare)?;
        eprintln!("conflict {turn}: {:.3?}", turns.0[turn]);
    }
    turns.0.drain(..2);
    turns.tell("speed.conflict_cost", |[with, without]| with / without);
    let odd = !world.arguments.repetitions.is_multiple_of(2);
    if odd {
        world.sql("UPDATE purchase SET cost = 123456789.12")?;
    }
    Ok(())
}
