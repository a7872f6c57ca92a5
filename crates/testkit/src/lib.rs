//! What tests need around the program: a throw-away PostgreSQL and MariaDB, a network that breaks on demand, a disk that is full, a browser, and
//! the built binary.
//!
//! Tests run against the real thing (a real cluster, a real TCP connection, the real process), and this crate makes that
//! cheap and leaves nothing behind: no process and no file survives the test binary, even one that is killed.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use headwater_testkit::{FaultProxy, Plan, Postgres, proxy::{Cut, Direction}};
//!
//! let cluster = Postgres::shared()?; // one for the whole test binary
//! let url = cluster.create_database()?; // one for this test
//! headwater_testkit::sql(&url, "CREATE TABLE t (id bigint PRIMARY KEY)")?;
//!
//! let proxy = FaultProxy::start(("127.0.0.1", cluster.port()))?;
//! proxy.next([Plan::clean().cut(Direction::Down, 100, Cut::Reset)]); // the next connection breaks, later ones don't
//! # Ok(())
//! # }
//! ```
//!
//! # Caveats
//! - Everything here blocks, also in async tests: starting a cluster takes about half a second, a database a few hundredths.
//! - Processes are looked up in `/proc`: Linux only.

pub mod apart;
pub mod browser;
pub mod deployment;
pub mod disk;
pub mod front;
pub mod mariadb;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod random;
pub mod squid;

pub use browser::Browser;
pub use deployment::Deployment;
pub use front::{FRONTS, Front, Proxied};
pub use mariadb::MariaDb;
pub use pgbouncer::PgBouncer;
pub use ports::free_port;
pub use postgres::{DataCopy, Postgres, Rows, keep_connections, results, sql};
pub use process::{Child, headwater_binary, wait_until};
pub use proxy::{FaultProxy, Plan};
pub use random::Random;
pub use squid::Squid;
