//! Temporary.
use std::time::Instant;

use headwater_protocol::Value;

use crate::support::{Database, changes, plan};
use headwater_consolidated::{Mode, RowsWriter};

const MODEL: &str = r#"
[partitions.employee]
columns = { emp_id = "int" }
members = "SELECT 1"
[tables.purchase]
key = ["emp_id", "purch_id"]
partition = "employee"
[tables.purchase.columns]
emp_id = "int not null"
purch_id = "int not null"
cust_id = "int not null"
cost = "decimal(30,6) not null"
order_date = "timestamp not null"
notes = "text not null"
"#;
const TABLE: &str = "CREATE TABLE purchase (
    emp_id integer NOT NULL, purch_id integer NOT NULL, cust_id integer NOT NULL, cost numeric(30,6) NOT NULL,
    order_date timestamp NOT NULL, notes varchar(64) NOT NULL, PRIMARY KEY (emp_id, purch_id))";

fn rows_sql(employee: &str, first: u64, last: u64) -> String {
    format!(
        "SELECT {employee}, n::int, (n % 1000)::int, 123456789.12 + n, \
         timestamp '2005-01-01' + n * interval '1.000001 second', md5(n::text) || md5((n + 1)::text) \
         FROM generate_series({first}, {last}) AS n"
    )
}

fn space(database: &Database, what: &str) {
    let rows = database.sql(
        "SELECT pg_table_size('headwater.side_purchase'), pg_indexes_size('headwater.side_purchase'), \
         pg_relation_size('headwater.side_key_purchase'), pg_relation_size('headwater.side_version_purchase'), \
         pg_table_size('purchase'), pg_indexes_size('purchase'), count(*) FROM purchase",
    );
    let n: Vec<f64> = rows[0].iter().map(|v| v.parse().unwrap()).collect();
    eprintln!(
        "{what}: ratio {:.3}; side heap {:.1}, key {:.1}, version {:.1}; base heap {:.1}, pk {:.1} bytes a row",
        (n[0] + n[1]) / (n[4] + n[5]),
        n[0] / n[6],
        n[2] / n[6],
        n[3] / n[6],
        n[4] / n[6],
        n[5] / n[6]
    );
}

#[test]
#[ignore = "measures"]
fn tracking_space() {
    for (what, statements) in [
        ("one statement, one employee", vec![format!("INSERT INTO purchase {}", rows_sql("1", 1, 1_000_000))]),
        (
            "one statement, 100 employees mixed",
            vec![format!("INSERT INTO purchase {}", rows_sql("(n % 100)::int", 1, 1_000_000))],
        ),
        (
            "1000 x 1000, one employee",
            (0..1000)
                .map(|b| format!("INSERT INTO purchase {}", rows_sql("1", b * 1000 + 1, b * 1000 + 1000)))
                .collect(),
        ),
        (
            "1000 x 1000, employee by batch",
            (0..1000)
                .map(|b| {
                    format!("INSERT INTO purchase {}", rows_sql(&(b % 100).to_string(), b * 1000 + 1, b * 1000 + 1000))
                })
                .collect(),
        ),
        (
            "100 x 100 x 100",
            (0..1000)
                .map(|b| format!("INSERT INTO purchase {}", rows_sql("(n % 100)::int", b * 1000 + 1, b * 1000 + 1000)))
                .collect(),
        ),
    ] {
        let database = Database::with(TABLE);
        let plan = plan(MODEL);
        database.track(&plan);
        let begin = Instant::now();
        database.sql("SELECT 1");
        let mut connection = database.connect();
        for statement in &statements {
            connection.batch(statement).unwrap();
        }
        let tracked = begin.elapsed();
        space(&database, what);
        let begin = Instant::now();
        let database = Database::with(TABLE);
        let mut connection = database.connect();
        for statement in &statements {
            connection.batch(statement).unwrap();
        }
        eprintln!("   tracked {tracked:?}, untracked {:?}", begin.elapsed());
    }
}

#[test]
#[ignore = "measures"]
fn reading() {
    let database = Database::with(TABLE);
    let plan = plan(MODEL);
    let since = {
        database.track(&plan);
        database.watermark()
    };
    database.sql(&format!("INSERT INTO purchase {}", rows_sql("1", 1, 1_000_000)));
    database.sql("VACUUM ANALYZE");
    let table = &plan.tables[0];
    let mut connection = database.connect();
    let partitions = [vec![Value::Int(1)]];
    for _ in 0..3 {
        let begin = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bytes = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&database.url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let copy = client.copy_out("COPY purchase TO STDOUT (FORMAT binary)").await.unwrap();
            let mut copy = std::pin::pin!(copy);
            let mut bytes = 0;
            while let Some(chunk) = futures_util::StreamExt::next(&mut copy).await {
                bytes += chunk.unwrap().len();
            }
            bytes
        });
        eprintln!("COPY binary alone: {:?}, {} bytes a row", begin.elapsed(), bytes / 1_000_000);
        let begin = Instant::now();
        connection.begin(Mode::Download).unwrap();
        let echo = headwater_consolidated::rows::Echo::default();
        let mut size = 0;
        let mut sink = |frame: headwater_protocol::Frame| {
            size += frame.wire_bytes();
            Ok(())
        };
        let mut out = RowsWriter::new(table, &echo, &mut sink);
        connection.read_whole(table, &partitions, &mut out).unwrap();
        let rows = out.finish().unwrap();
        connection.commit().unwrap();
        eprintln!("read_whole: {:?} {rows} rows, {} bytes a row", begin.elapsed(), size / 1_000_000);
        let begin = Instant::now();
        let (read, _) = changes(&mut *connection, table, &partitions, &partitions, &since);
        eprintln!("read_changes (with decoding): {:?} {}", begin.elapsed(), read.upserts.len());
    }
    for _ in 0..2 {
        let keys = |b: i64| (0..1000).map(|n| vec![Value::Int(1), Value::Int(b * 1000 + n)]).collect::<Vec<_>>();
        let begin = Instant::now();
        let (mut fetch, mut update, mut delete, mut insert) = (0.0, 0.0, 0.0, 0.0);
        for b in 0..100 {
            connection.begin(Mode::Upload).unwrap();
            let t = Instant::now();
            let rows = connection.fetch(table, &keys(b), true).unwrap();
            fetch += t.elapsed().as_secs_f64();
            let refs: Vec<_> = rows.iter().collect();
            let t = Instant::now();
            connection.update(table, &refs).unwrap();
            update += t.elapsed().as_secs_f64();
            let t = Instant::now();
            let keys = keys(b);
            connection.delete(table, &keys.iter().collect::<Vec<_>>()).unwrap();
            delete += t.elapsed().as_secs_f64();
            let t = Instant::now();
            connection.insert(table, &refs).unwrap();
            insert += t.elapsed().as_secs_f64();
            connection.commit().unwrap();
        }
        eprintln!(
            "100 x 1000 rows: fetch {fetch:.2}, update {update:.2}, delete {delete:.2}, insert {insert:.2}, all {:?}",
            begin.elapsed()
        );
    }
    let begin = Instant::now();
    for _ in 0..1000 {
        connection.query("SELECT 1", &[]).unwrap();
    }
    eprintln!("a round trip: {:?}", begin.elapsed() / 1000);
}
