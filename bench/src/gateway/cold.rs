//! A crowd that asks for one query which is not kept yet.
#![allow(clippy::print_stdout)]

use anyhow::{Result, ensure};

use super::GatewayArguments;
use super::load;
use super::stage::{Central, Served, metered};
use crate::figures::{figure, measured};

/// Counts its executions by reading a table, as PostgreSQL counts that: nothing can be written in a transaction that only reads.
const QUERY: &str = "-- public = true\n-- max_age_s = 86400\n-- [parameters]\n-- turn = { type = \"int\" }\n\
                     SELECT CAST(:turn AS bigint) AS turn, pg_sleep(1)::text AS slept, (SELECT count(*) FROM counted) AS rows";

/// How often it is executed for all of them, and how long it takes until all are answered.
pub(super) fn together(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    central.sql("DROP TABLE IF EXISTS counted; CREATE TABLE counted (id integer)")?;
    let served = Served::start(&central.url, &[("cold", QUERY)], "")?;
    let mut seconds = Vec::new();
    for turn in 0..arguments.repetitions {
        let requests = vec![load::request(&format!("/q/cold.csv?turn={turn}"), ""); arguments.cold_clients];
        let clients = arguments.cold_clients;
        let load = metered("cold", served.id(), || load::once(served.place, requests, clients, |_| true))?;
        ensure!(load.failed == 0, "{} of {clients} clients were not answered", load.failed);
        seconds.push(load.seconds);
    }
    // Whoever is connected tells the statistics in his own time, and at his end at the latest.
    drop(served);
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let is_alone = headwater_testkit::wait_until(std::time::Duration::from_secs(10), || {
        central.number(sessions).is_ok_and(|count| count == 0)
    });
    ensure!(is_alone, "the server's connections stay");
    let scans = central.number("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'counted'")?;
    figure("gateway.cold_executions", scans as f64 / arguments.repetitions as f64);
    figure("gateway.cold_answered_s", measured(&seconds));
    Ok(())
}
