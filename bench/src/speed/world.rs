//! The database, the server's process, the remotes, and whose processor time is whose.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use headwater_access::Tokens;
use headwater_consolidated::postgres::{Postgres as Backend, Settings};
use headwater_consolidated::{Backend as _, Mode, Plan, system, track};
use headwater_lab::peer::Peer;
use headwater_lab::sync::memory::{Identity, MemoryRemote, Pace, Synced};
use headwater_lab::sync::purchase::{self as stock, Purchases};
use headwater_protocol::ValueRef;
use headwater_protocol::message::RowOp;
use headwater_testkit::Postgres;
use headwater_tests::read_model;
use procfs::process::Process;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::SpeedArguments;
use crate::purchase;
use crate::tpcb::headwater;

/// Tables of the model of small syncs, and partitions of each of its users.
const SMALL_TABLES: usize = 5;
const SMALL_PARTITIONS: i32 = 10;

/// Which model a remote has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Purchases, with conflicts detected.
    Detecting,
    /// Purchases, without; of other users.
    Off,
    /// Five tables of few rows.
    Small,
}

/// Everything that runs.
pub(crate) struct World {
    pub(crate) arguments: SpeedArguments,
    _postgres: Postgres,
    pub(crate) url: String,
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    plans: [Plan; 3],
    pub(crate) purchases: Purchases,
    tokens: Tokens,
    server: Child,
    /// Its address.
    pub(crate) place: String,
    peer: Peer,
    _folder: TempDir,
    postmaster: i32,
    next_remote: u64,
    /// Rows of purchases that each client has sent, from number 1 on.
    pub(crate) sent: i64,
}

/// Processor seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) server: f64,
    pub(crate) database: f64,
    pub(crate) generator: f64,
}

impl Drop for World {
    fn drop(&mut self) {
        // One that has ended by itself is no longer there to be ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A client's name, whose purchases are those of the employee after its number.
pub(crate) fn user(number: usize) -> String {
    format!("client{}", number + 1)
}

fn small_model() -> (String, String) {
    let mut model = "name = \"small\"\nversion = 1\n[partitions.area]\ncolumns = { area_id = \"int\" }\n\
                     members = \"SELECT area_id FROM small_member WHERE user_name = :s.user\"\n"
        .to_owned();
    let mut tables =
        "CREATE TABLE small_member (user_name text NOT NULL, area_id integer NOT NULL, PRIMARY KEY (user_name, area_id));\n".to_owned();
    for table in 1..=SMALL_TABLES {
        let _ = write!(
            model,
            "[tables.small_{table}]\ndirection = \"both\"\nconflict = \"consolidated_wins\"\nkey = [\"area_id\", \"id\"]\npartition = \"area\"\n\
             [tables.small_{table}.columns]\narea_id = \"int not null\"\nid = \"int not null\"\nnote = \"text not null\"\n"
        );
        let _ = writeln!(
            tables,
            "CREATE TABLE small_{table} (area_id integer NOT NULL, id integer NOT NULL, note text NOT NULL, PRIMARY KEY (area_id, id));"
        );
    }
    (model, tables)
}

impl World {
    /// Starts all of it, with the stock of purchases in the tracked table.
    pub(crate) fn start(arguments: &SpeedArguments) -> Result<World> {
        let postgres = Postgres::builder()
            .fsync(true)
            .set("shared_buffers", "1GB")
            .set("max_wal_size", "8GB")
            .set("autovacuum", "off");
        let postgres = postgres.start()?;
        let url = postgres.create_database()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        let pid: i32 = runtime.block_on(client.query_one("SELECT pg_backend_pid()", &[]))?.get(0);
        let postmaster = Process::new(pid)?.stat()?.ppid;
        let (small, small_tables) = small_model();
        runtime.block_on(client.batch_execute(purchase::TABLES))?;
        runtime.block_on(client.batch_execute(&small_tables))?;
        let off = purchase::MODEL
            .replace("consolidated_wins", "off")
            .replace("\"purchase\"\nversion", "\"purchase_off\"\nversion");
        let texts = [purchase::MODEL.to_owned(), off, small];
        let plans = [read_plan(&texts[0])?, read_plan(&texts[1])?, read_plan(&texts[2])?];
        fill(&runtime, &client, arguments)?;

        let backend = Backend::new(&url, Settings::default())?;
        let mut connection = backend.connect()?;
        for plan in &plans {
            track::track(&mut *connection, plan)?;
        }
        connection.begin(Mode::Upload)?;
        for number in 0..2 * arguments.clients {
            system::add_account(&mut *connection, &user(number), "no password fits this")?;
        }
        connection.commit()?;
        let tokens = Tokens::new(&system::identity(&mut *connection)?.token_key)?;
        runtime.block_on(client.batch_execute("VACUUM ANALYZE"))?;
        let folder = tempfile::tempdir()?;
        for (place, text) in texts.iter().enumerate() {
            std::fs::write(folder.path().join(format!("{place}.toml")), text)?;
        }
        std::fs::write(folder.path().join("headwater.toml"), "models = [\"0.toml\", \"1.toml\", \"2.toml\"]\n")?;
        let (server, place) = serve(arguments, &url, &folder)?;
        let peer = match &arguments.certificate {
            Some(_) => Peer::of(&format!("https://localhost:{}", place.rsplit(':').next().unwrap_or_default()))
                .map_err(|failure| anyhow::anyhow!("{failure}"))?,
            None => Peer::at(place.clone()),
        };
        let purchases = Purchases::new(&plans[0], stock::NOTES_BYTES);
        Ok(World {
            arguments: arguments.clone(),
            _postgres: postgres,
            url,
            runtime,
            client,
            plans,
            purchases,
            tokens,
            server,
            place,
            peer,
            _folder: folder,
            postmaster,
            next_remote: 1,
            sent: arguments.rows,
        })
    }

    pub(crate) fn server_id(&self) -> i32 {
        self.server.id() as i32
    }

    pub(crate) fn certificate(&self) -> Option<&std::path::Path> {
        self.arguments.certificate.as_deref()
    }

    /// The processes, for whoever wants a profile of them.
    pub(crate) fn processes(&self) -> String {
        format!("server {}, postmaster {}", self.server.id(), self.postmaster)
    }

    /// Runs statements.
    pub(crate) fn sql(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    /// Removes what is dead, so that no side of a comparison pays for what was done before it.
    pub(crate) fn vacuum(&self) -> Result<()> {
        self.sql("VACUUM ANALYZE")
    }

    /// A remote that has nothing yet.
    pub(crate) fn remote(&mut self, which: Which, number: usize) -> Result<MemoryRemote> {
        self.next_remote += 1;
        let mut remote_id = [7; 16];
        remote_id[..8].copy_from_slice(&self.next_remote.to_le_bytes());
        let number = if which == Which::Off { self.arguments.clients + number } else { number };
        let plan = &self.plans[which as usize];
        let token = self.tokens.issue(&user(number), Duration::from_hours(24), SystemTime::now())?;
        Ok(MemoryRemote::new(Identity {
            server: self.peer.clone(),
            user: user(number),
            token: token.expose().to_owned(),
            model: (plan.model.name.clone(), plan.model.version, plan.fingerprint),
            remote_id,
            secret: [3; 32],
        }))
    }

    /// One of each client.
    pub(crate) fn remotes(&mut self, which: Which) -> Result<Vec<MemoryRemote>> {
        (0..self.arguments.clients).map(|number| self.remote(which, number)).collect()
    }

    /// All of them sync at once; gives the seconds from the first's start to the last one's end, and what each did. Rows are checked in every
    /// column.
    pub(crate) fn sync_all(&self, remotes: &mut [MemoryRemote], is_updated: bool) -> Result<(f64, Vec<Synced>)> {
        let local = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let begin = Instant::now();
        let all = local.block_on(async {
            let syncs: FuturesUnordered<_> = remotes.iter_mut().map(|remote| self.sync(remote, is_updated)).collect();
            syncs.collect::<Vec<_>>().await
        });
        let seconds = begin.elapsed().as_secs_f64();
        Ok((seconds, all.into_iter().collect::<Result<_>>()?))
    }

    /// One sync.
    pub(crate) async fn sync(&self, remote: &mut MemoryRemote, is_updated: bool) -> Result<Synced> {
        let purchases = &self.purchases;
        let mut check = |_, op, row: &[ValueRef<'_>]| match (op, row) {
            (RowOp::Delete, _) => Ok(1),
            _ => purchases.check(row, is_updated).map(|_| 1).ok_or_else(|| format!("{row:?}")),
        };
        remote.sync(Pace::default(), &mut check).await.map_err(|failure| anyhow::anyhow!("{failure}"))
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> Result<Cpu> {
        let ticks = procfs::ticks_per_second() as f64;
        let of = |pid: i32| -> Result<f64> {
            let stat = Process::new(pid)?.stat()?;
            Ok((stat.utime + stat.stime) as f64 / ticks)
        };
        let mut database = 0.0;
        for process in procfs::process::all_processes()?.flatten() {
            if let Ok(stat) = process.stat()
                && (stat.pid == self.postmaster || stat.ppid == self.postmaster)
            {
                database += (stat.utime + stat.stime) as f64 / ticks;
                if stat.pid == self.postmaster {
                    database += (stat.cutime + stat.cstime) as f64 / ticks;
                }
            }
        }
        Ok(Cpu { server: of(self.server.id() as i32)?, database, generator: of(std::process::id() as i32)? })
    }

    /// Processor time that something takes, beside what it gives.
    pub(crate) fn metered<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Cpu)> {
        let before = self.cpu()?;
        let done = work()?;
        let after = self.cpu()?;
        let cpu = Cpu {
            server: after.server - before.server,
            database: after.database - before.database,
            generator: after.generator - before.generator,
        };
        Ok((done, cpu))
    }
}

fn read_plan(text: &str) -> Result<Plan> {
    Ok(Plan::new(read_model(text)?))
}

/// Purchases of all clients, those of the rule `off` after the others, and who may see what.
fn fill(runtime: &Runtime, client: &Client, arguments: &SpeedArguments) -> Result<()> {
    let run = |sql: String| runtime.block_on(async { client.batch_execute(&sql).await });
    for number in 0..2 * arguments.clients {
        let (name, employee) = (user(number), number as i64 + 1);
        for first in (1..=arguments.rows).step_by(1_000) {
            let numbers = first..(first + 1_000).min(arguments.rows + 1);
            run(stock::stock_sql(employee, numbers, stock::NOTES_BYTES).replace("lab_stock", "purchase"))?;
        }
        run(format!("INSERT INTO member VALUES ('{name}', {employee})"))?;
        let first = number as i32 * SMALL_PARTITIONS;
        run(format!(
            "INSERT INTO small_member SELECT '{name}', n FROM generate_series({first}, {}) n",
            first + SMALL_PARTITIONS - 1
        ))?;
    }
    for table in 1..=SMALL_TABLES {
        let areas = 2 * arguments.clients as i32 * SMALL_PARTITIONS;
        run(format!(
            "INSERT INTO small_{table} SELECT a, i, 'a note' FROM generate_series(0, {areas}) a, generate_series(1, 10) i"
        ))?;
    }
    Ok(())
}

fn serve(arguments: &SpeedArguments, url: &str, folder: &TempDir) -> Result<(Child, String)> {
    let mut command = Command::new(headwater()?);
    command.arg("--config").arg(folder.path().join("headwater.toml")).args(["serve", "--listen", "127.0.0.1:0"]);
    let workers = arguments.workers.to_string();
    let crowd = 2 * arguments.clients + arguments.waiting + 200;
    command.args(["--workers", &workers, "--uploaders", &workers, "--backlog", &crowd.to_string()]);
    for (name, value) in [("receiving_max", crowd), ("connections_max", 2 * crowd)] {
        command.args(["--set", &format!("{name}={value}")]);
    }
    for option in &arguments.pool {
        command.args(["--set", &format!("pool.{option}")]);
    }
    if let Some(certificate) = &arguments.certificate {
        command.arg("--set").arg(format!("tls_certificate={}", certificate.display()));
        command.arg("--set").arg(format!("tls_key={}", certificate.with_file_name("key.pem").display()));
    }
    command.args(["--log", "warn", "--until-input-ends"]);
    command.env("HEADWATER_DATABASE", url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = command.spawn().context("the server could not be started")?;
    let mut line = String::new();
    if let Some(out) = server.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let scheme = if arguments.certificate.is_some() { "listening on https://" } else { "listening on http://" };
    let place = line.trim().strip_prefix(scheme);
    ensure!(place.is_some(), "the server says {line:?}");
    Ok((server, place.unwrap_or_default().to_owned()))
}
