//! Ways to track the changes of a table in PostgreSQL, one beside the other: what each takes of the application's writes, of a download's
//! look for what is new, and of the disk.
//!
//! | layout | what it is |
//! |---|---|
//! | none | the table alone |
//! | side | Headwater's: a side table with one row for each key, by the triggers that `headwater track` makes |
//! | log | statements append keys and their transaction to a log with one index |
//! | version | a column of the table itself has the transaction, with an index; deletions go to a table of tombstones |
//!
//! All four are tables of one database without fsync and autovacuum; they take turns, each first once. Counted is the processor time of
//! the one session (`/proc/PID/schedstat`, nanoseconds) and the write-ahead log that it makes, so others on the machine matter little.
#![allow(clippy::print_stdout)]

use anyhow::{Context, Result, ensure};
use headwater_consolidated::postgres::{Postgres as Backend, Settings};
use headwater_consolidated::{Backend as _, Plan, track};
use headwater_testkit::Postgres;
use headwater_tests::read_model;
use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use crate::bare::Raw;
use crate::purchase;
use crate::speed::bare::arrays;
use crate::speed::median;

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct LayoutsArguments {
    /// Partitions of ten thousand rows that the tables hold.
    #[arg(long, default_value_t = 20)]
    partitions: i32,
    /// Batches of a thousand rows of each kind of statement in a turn.
    #[arg(long, default_value_t = 20)]
    batches: i32,
    /// Statements of one row of each kind in a turn.
    #[arg(long, default_value_t = 1_000)]
    singles: i32,
    /// How often each layout takes its turn.
    #[arg(long, default_value_t = 7)]
    repetitions: usize,
    /// How often the rows of one partition that are read were changed since.
    #[arg(long, default_value_t = 20)]
    changes: i32,
}

struct Layout {
    name: &'static str,
    table: &'static str,
    /// Makes it, around a table that is there; that of `side` is made by Headwater.
    setup: &'static str,
    /// Its relations beside the table.
    beside: &'static [&'static str],
    /// The rows of partition `$1` that changed since transaction `$2`, and the keys that are gone.
    read: &'static str,
}

const SUM: &str = "count(*), count(cost), coalesce(sum(length(notes)), 0)";

const LAYOUTS: [Layout; 4] = [
    Layout { name: "none", table: "p_none", setup: "", beside: &[], read: "" },
    Layout {
        name: "side",
        table: "p_side",
        setup: "",
        beside: &["headwater.\"side_p_side@emp_id\""],
        read: "(SELECT key_emp_id AS emp_id, key_purch_id AS purch_id FROM headwater.\"side_p_side@emp_id\"
            WHERE key_emp_id = $1 AND version >= $2) AS s LEFT JOIN p_side USING (emp_id, purch_id)",
    },
    Layout {
        name: "log",
        table: "p_log",
        setup: "CREATE TABLE log (emp_id int NOT NULL, version xid8 NOT NULL, purch_id int NOT NULL);
            CREATE INDEX ON log (emp_id, version);
            CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
                IF TG_OP = 'INSERT' THEN
                    INSERT INTO public.log SELECT emp_id, pg_current_xact_id(), purch_id FROM hw_new;
                ELSIF TG_OP = 'DELETE' THEN
                    INSERT INTO public.log SELECT emp_id, pg_current_xact_id(), purch_id FROM hw_old;
                ELSE
                    INSERT INTO public.log SELECT emp_id, pg_current_xact_id(), purch_id
                    FROM (SELECT emp_id, purch_id FROM hw_new UNION SELECT emp_id, purch_id FROM hw_old) AS t;
                END IF;
                RETURN NULL; END $$;
            CREATE TRIGGER i AFTER INSERT ON p_log REFERENCING NEW TABLE AS hw_new FOR EACH STATEMENT EXECUTE FUNCTION log();
            CREATE TRIGGER u AFTER UPDATE ON p_log REFERENCING OLD TABLE AS hw_old NEW TABLE AS hw_new
                FOR EACH STATEMENT EXECUTE FUNCTION log();
            CREATE TRIGGER d AFTER DELETE ON p_log REFERENCING OLD TABLE AS hw_old FOR EACH STATEMENT EXECUTE FUNCTION log()",
        beside: &["log"],
        read: "(SELECT DISTINCT emp_id, purch_id FROM log WHERE emp_id = $1 AND version >= $2) AS s
            LEFT JOIN p_log USING (emp_id, purch_id)",
    },
    Layout {
        name: "version",
        table: "p_version",
        setup: "ALTER TABLE p_version ADD COLUMN version xid8;
            CREATE INDEX ON p_version (emp_id, version);
            CREATE TABLE gone (emp_id int NOT NULL, purch_id int NOT NULL, version xid8 NOT NULL, PRIMARY KEY (emp_id, purch_id));
            CREATE INDEX ON gone (emp_id, version);
            CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                NEW.version := pg_current_xact_id(); RETURN NEW; END $$;
            CREATE FUNCTION bury() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
                INSERT INTO public.gone SELECT emp_id, purch_id, pg_current_xact_id() FROM hw_old
                ON CONFLICT (emp_id, purch_id) DO UPDATE SET version = excluded.version;
                RETURN NULL; END $$;
            CREATE FUNCTION bury_one() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
                INSERT INTO public.gone VALUES (OLD.emp_id, OLD.purch_id, pg_current_xact_id())
                ON CONFLICT (emp_id, purch_id) DO UPDATE SET version = excluded.version;
                RETURN NULL; END $$;
            CREATE TRIGGER s BEFORE INSERT OR UPDATE ON p_version FOR EACH ROW EXECUTE FUNCTION stamp();
            CREATE TRIGGER k AFTER UPDATE OF emp_id, purch_id ON p_version FOR EACH ROW EXECUTE FUNCTION bury_one();
            CREATE TRIGGER d AFTER DELETE ON p_version REFERENCING OLD TABLE AS hw_old FOR EACH STATEMENT EXECUTE FUNCTION bury()",
        beside: &["gone"],
        read: "(SELECT cost, notes FROM p_version WHERE emp_id = $1 AND version >= $2
            UNION ALL SELECT NULL, NULL FROM gone AS g WHERE emp_id = $1 AND version >= $2
            AND NOT EXISTS (SELECT FROM p_version AS b WHERE b.emp_id = g.emp_id AND b.purch_id = g.purch_id)) AS s",
    },
];

/// The kinds of statements: their name, and what each of a layout's table is.
const WRITES: [(&str, &str); 6] = [
    (
        "insert 1,000",
        "INSERT INTO TABLE (emp_id, purch_id, cust_id, cost, order_date, notes)
         SELECT * FROM unnest($1::int4[], $2::int4[], $3::int4[], $4::numeric[], $5::timestamp[], $6::text[])",
    ),
    (
        "update 1,000",
        "UPDATE TABLE AS b SET cost = b.cost + 1 FROM unnest($1::int4[], $2::int4[]) AS u(e, p) WHERE b.emp_id = e AND b.purch_id = p",
    ),
    ("delete 1,000", "DELETE FROM TABLE AS b USING unnest($1::int4[], $2::int4[]) AS u(e, p) WHERE b.emp_id = e AND b.purch_id = p"),
    (
        "insert 1",
        "INSERT INTO TABLE (emp_id, purch_id, cust_id, cost, order_date, notes)
         VALUES ($1, $2, 7, 123456789.12, '2005-01-01', 'some sixty characters, as many as the others of the rows have')",
    ),
    ("update 1", "UPDATE TABLE SET cost = cost + 1 WHERE emp_id = $1 AND purch_id = $2"),
    ("delete 1", "DELETE FROM TABLE WHERE emp_id = $1 AND purch_id = $2"),
];

/// What a row takes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    cpu_us: f64,
    wal_bytes: f64,
}

struct Bench {
    _postgres: Postgres,
    runtime: Runtime,
    client: Client,
    session: i32,
    statements: Vec<[Statement; 6]>,
}

/// Measures.
pub(crate) fn measure(arguments: &LayoutsArguments) -> Result<()> {
    let bench = Bench::start()?;
    bench.fill(arguments.partitions)?;
    let filled = bench.bytes()?;
    let mut costs = vec![[const { Vec::new() }; WRITES.len()]; LAYOUTS.len()];
    for turn in 0..=arguments.repetitions {
        for place in (0..LAYOUTS.len()).map(|place| (place + turn) % LAYOUTS.len()) {
            let of_turn = bench.turn(place, arguments, 1_000 + turn as i32)?;
            eprintln!("{turn} {}: {of_turn:.1?}", LAYOUTS[place].name);
            // The first warms caches and plans.
            if turn > 0 {
                costs[place].iter_mut().zip(of_turn).for_each(|(costs, cost)| costs.push(cost));
            }
        }
        bench.run("VACUUM")?;
    }
    tell_writes(&costs);
    println!("\n| layout | changed once, ms | changed {} times, ms | MB filled | MB later |", arguments.changes);
    println!("|---|---|---|---|---|");
    let once = bench.read(1, 1)?;
    let often = bench.read(2, arguments.changes)?;
    bench.run("VACUUM")?;
    for (place, (layout, later)) in LAYOUTS.iter().zip(bench.bytes()?).enumerate() {
        let megabytes = |bytes: i64| bytes as f64 / 1e6;
        let read = |times: &[Option<f64>]| times[place].map_or("none".to_owned(), |time| format!("{time:.2}"));
        let (once, often, filled) = (read(&once), read(&often), megabytes(filled[place]));
        println!("| {} | {once} | {often} | {filled:.1} | {:.1} |", layout.name, megabytes(later));
    }
    Ok(())
}

/// Medians of microseconds and bytes a row, and of the turns' ratios to the table alone.
fn tell_writes(costs: &[[Vec<Cost>; WRITES.len()]]) {
    println!("| layout | {} |", WRITES.map(|(name, _)| name).join(" | "));
    println!("|---|{}", "---|".repeat(WRITES.len()));
    for (layout, of_layout) in LAYOUTS.iter().zip(costs) {
        let cell = |(costs, alone): (&Vec<Cost>, &Vec<Cost>)| {
            let of = |one: fn(&Cost) -> f64| median(&costs.iter().map(one).collect::<Vec<_>>());
            let ratios: Vec<f64> = costs.iter().zip(alone).map(|(cost, alone)| cost.cpu_us / alone.cpu_us).collect();
            let (cpu, wal) = (of(|cost| cost.cpu_us), of(|cost| cost.wal_bytes));
            format!("{cpu:.1} us, {:.2}, {wal:.0} B", median(&ratios))
        };
        let cells: Vec<String> = of_layout.iter().zip(&costs[0]).map(cell).collect();
        println!("| {} | {} |", layout.name, cells.join(" | "));
    }
}

impl Bench {
    fn start() -> Result<Bench> {
        let postgres = Postgres::builder()
            .fsync(false)
            .set("autovacuum", "off")
            .set("shared_buffers", "512MB")
            .set("max_wal_size", "8GB")
            .start()?;
        let url = postgres.create_database()?;
        let runtime = Runtime::new()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        runtime.block_on(client.batch_execute(purchase::TABLES))?;
        for layout in &LAYOUTS {
            let sql = format!("CREATE TABLE {} (LIKE purchase INCLUDING ALL); {}", layout.table, layout.setup);
            runtime.block_on(client.batch_execute(&sql))?;
        }
        let model = read_model(&purchase::MODEL.replace("[tables.purchase", "[tables.p_side"))?;
        track::track(&mut *Backend::new(&url, Settings::default())?.connect()?, &Plan::new(model))?;
        let mut statements = Vec::new();
        for layout in &LAYOUTS {
            let prepare =
                |place: usize| runtime.block_on(client.prepare(&WRITES[place].1.replace("TABLE", layout.table)));
            statements.push([prepare(0)?, prepare(1)?, prepare(2)?, prepare(3)?, prepare(4)?, prepare(5)?]);
        }
        let session = runtime.block_on(client.query_one("SELECT pg_backend_pid()", &[]))?.get(0);
        Ok(Bench { _postgres: postgres, runtime, client, session, statements })
    }

    fn run(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    fn fill(&self, partitions: i32) -> Result<()> {
        for partition in 1..=partitions {
            let rows = arrays(&self.runtime, &self.client, partition as usize, 1, 10_000)?;
            for statements in &self.statements {
                self.execute(&statements[0], &rows)?;
            }
        }
        self.run("VACUUM ANALYZE")
    }

    fn execute(&self, statement: &Statement, parameters: &[Raw]) -> Result<()> {
        let all = parameters.iter().map(|raw| raw as &(dyn ToSql + Sync)).take(statement.params().len());
        self.runtime.block_on(self.client.execute(statement, &all.collect::<Vec<_>>()))?;
        Ok(())
    }

    /// What rows take in a partition of their own, which is empty again afterwards; by kind of statement.
    fn turn(&self, place: usize, arguments: &LayoutsArguments, partition: i32) -> Result<[Cost; WRITES.len()]> {
        let batch = |n: i32| arrays(&self.runtime, &self.client, partition as usize, i64::from(n) * 1_000 + 1, 1_000);
        let batches = (0..arguments.batches).map(batch).collect::<Result<Vec<_>>>()?;
        let mut costs = [Cost::default(); WRITES.len()];
        for (kind, statement) in self.statements[place].iter().enumerate() {
            costs[kind] = if kind < 3 {
                self.cost(arguments.batches * 1_000, || {
                    batches.iter().try_for_each(|rows| self.execute(statement, rows))
                })?
            } else {
                self.cost(arguments.singles, || {
                    (1..=arguments.singles).try_for_each(|number| {
                        self.runtime.block_on(self.client.execute(statement, &[&partition, &number]))?;
                        Ok(())
                    })
                })?
            };
        }
        Ok(costs)
    }

    fn cost(&self, rows: i32, work: impl FnOnce() -> Result<()>) -> Result<Cost> {
        let (log, time) = (self.log_bytes()?, self.cpu_ns()?);
        work()?;
        let (time, log) = (self.cpu_ns()? - time, self.log_bytes()? - log);
        Ok(Cost { cpu_us: time as f64 / 1e3 / f64::from(rows), wal_bytes: log as f64 / f64::from(rows) })
    }

    /// Processor time of the session so far.
    fn cpu_ns(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.session))?;
        Ok(text.split(' ').next().context("an empty schedstat")?.parse()?)
    }

    fn log_bytes(&self) -> Result<i64> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8";
        Ok(self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0))
    }

    /// Changes a tenth of a partition so many times, and deletes ten rows; milliseconds of processor time that it takes to find and read
    /// those rows, by layout.
    fn read(&self, partition: i32, times: i32) -> Result<Vec<Option<f64>>> {
        let mut found = Vec::new();
        for layout in &LAYOUTS {
            let since: String =
                self.runtime.block_on(self.client.query_one("SELECT pg_current_xact_id()::text", &[]))?.get(0);
            let table = layout.table;
            for _ in 0..times {
                let sql =
                    format!("UPDATE {table} SET cost = cost + 1 WHERE emp_id = {partition} AND purch_id % 10 = 0");
                self.run(&sql)?;
            }
            self.run(&format!("DELETE FROM {table} WHERE emp_id = {partition} AND purch_id % 1000 = 0"))?;
            self.run("ANALYZE")?;
            if layout.read.is_empty() {
                found.push(None);
                continue;
            }
            let sql = layout.read.replace("$1", &partition.to_string()).replace("$2", &format!("'{since}'::xid8"));
            let statement = self.runtime.block_on(self.client.prepare(&format!("SELECT {SUM} FROM {sql}")))?;
            let mut costs = Vec::new();
            for _ in 0..21 {
                let look = || {
                    let row = self.runtime.block_on(self.client.query_one(&statement, &[]))?;
                    let (rows, live): (i64, i64) = (row.get(0), row.get(1));
                    ensure!((rows, live) == (1_000, 990), "{}: found {rows} rows, {live} of them live", layout.name);
                    Ok(())
                };
                costs.push(self.cost(1, look)?.cpu_us / 1e3);
            }
            found.push(Some(median(&costs)));
        }
        Ok(found)
    }

    /// Of each layout: the table, its indexes, and what is beside it.
    fn bytes(&self) -> Result<Vec<i64>> {
        let bytes = |layout: &Layout| {
            let all = std::iter::once(&layout.table).chain(layout.beside);
            let sizes: Vec<String> = all.map(|name| format!("pg_total_relation_size('{name}')")).collect();
            let row = self.runtime.block_on(self.client.query_one(&format!("SELECT {}", sizes.join(" + ")), &[]))?;
            Ok(row.get(0))
        };
        LAYOUTS.iter().map(bytes).collect()
    }
}
