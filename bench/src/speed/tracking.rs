//! What change tracking takes of the application's own writes: the same bare statements into a tracked table and its untracked twin.

use anyhow::Result;

use super::Turns;
use super::bare::{self, Loop, Piece};
use super::world::World;

/// Inserts and updates of a thousand rows a transaction, one connection.
pub(crate) fn tracked_writes(world: &mut World) -> Result<()> {
    world.sql("DROP TABLE IF EXISTS untracked; CREATE TABLE untracked (LIKE purchase INCLUDING ALL); INSERT INTO untracked SELECT * FROM purchase")?;
    world.vacuum()?;
    let insert = |table: &str| {
        format!(
            "INSERT INTO {table} SELECT * FROM unnest($1::int4[], $2::int4[], $3::int4[], $4::numeric[], $5::timestamp[], $6::text[])"
        )
    };
    let update = |table: &str| {
        format!(
            "UPDATE {table} AS b SET cost = b.cost + 1 FROM unnest($1::int4[], $2::int4[], $3::int4[], $4::numeric[], $5::timestamp[], $6::text[]) \
             AS u(c0, c1) WHERE b.emp_id = u.c0 AND b.purch_id = u.c1"
        )
    };
    let statements = [insert("purchase"), insert("untracked"), update("purchase"), update("untracked")];
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    let bare = Loop::open(&world.runtime, &world.url, 1, "", &statements)?;
    let (clients, rows) = (world.arguments.clients, world.arguments.rows);
    let mut employees = 100 * clients;
    let (mut inserts, mut updates) = (Turns::default(), Turns::default());
    for turn in 0..=world.arguments.repetitions {
        let range = employees..employees + clients.min(100);
        employees = range.end;
        let pieces = |statement: usize| -> Result<Vec<Piece>> {
            let arrays = |employee| bare::arrays(&world.runtime, &world.client, employee, 1, rows);
            range.clone().map(|employee| Ok(Piece::Arrays(statement, arrays(employee)?))).collect()
        };
        let (tracked, free) = (pieces(0)?, pieces(1)?);
        inserts.take(turn, || Ok(bare.run(1, tracked)?.0), || Ok(bare.run(1, free)?.0))?;
        let (tracked, free) = (pieces(2)?, pieces(3)?);
        updates.take(turn, || Ok(bare.run(1, tracked)?.0), || Ok(bare.run(1, free)?.0))?;
        eprintln!("tracking {turn}: inserts {:.3?}, updates {:.3?}", inserts.0[turn], updates.0[turn]);
    }
    // The first warms caches and plans.
    inserts.0.remove(0);
    updates.0.remove(0);
    inserts.tell("speed.tracked_inserts", |[tracked, free]| free / tracked);
    updates.tell("speed.tracked_updates", |[tracked, free]| free / tracked);
    world.sql(&format!("DROP TABLE untracked; DELETE FROM purchase WHERE emp_id > {}", 2 * clients))?;
    world.vacuum()
}
