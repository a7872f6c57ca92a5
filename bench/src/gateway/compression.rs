//! The level of compression that the gateway finds, against the best fixed one: answers that nobody has asked for yet, by lines of three speeds.
#![allow(clippy::print_stdout)]

use anyhow::{Result, ensure};

use super::GatewayArguments;
use super::load::{self, Load};
use super::stage::{Central, Served, metered};
use crate::figures::{figure, measured};
use crate::purchase;
use crate::speed::median;

const QUERY: &str = "-- public = true\n-- max_age_s = 86400\n-- [parameters]\n-- n = { type = \"int\" }\n\
                     SELECT :n AS n, emp_id, purch_id, cust_id, cost, order_date, notes FROM purchase ORDER BY purch_id";
/// Rows of an answer: some megabyte of CSV, which is held and compressed whole.
const ROWS: u64 = 12_000;
const MEGABITS: [f64; 3] = [10.0, 100.0, 1_000.0];
const CODINGS: [&str; 2] = ["gzip", "zstd"];
/// What is found comes first.
const LEVELS: [&str; 5] = ["\"auto\"", "0", "1", "5", "9"];
/// Answers of a turn; the first turn of each shows the gateway what its line and its levels are worth, and is not counted.
const ANSWERS: usize = 4;

/// The worst of all lines and codings: the time by the best fixed level against that by the level that is found.
pub(super) fn found(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    central.sql("DROP TABLE IF EXISTS purchase, member")?;
    central.sql(purchase::TABLES)?;
    central.sql(&format!("INSERT INTO purchase {}", purchase::rows_sql(1, 1, ROWS)))?;
    let mut asked = 0;
    let mut worst: Option<Vec<f64>> = None;
    for coding in CODINGS {
        for megabits in MEGABITS {
            let serve =
                |level: &str| Served::start(&central.url, &[("many", QUERY)], &format!("compression = {level}\n"));
            let served = LEVELS.iter().map(|level| serve(level)).collect::<Result<Vec<_>>>()?;
            let mut seconds = vec![Vec::new(); LEVELS.len()];
            for turn in 0..=arguments.repetitions {
                for (place, served) in served.iter().enumerate() {
                    let took = turn_of(served, coding, megabits, &mut asked)?.seconds;
                    if turn > 0 {
                        seconds[place].push(took / ANSWERS as f64);
                    }
                }
            }
            let medians: Vec<f64> = seconds.iter().map(|of| median(of)).collect();
            for (level, seconds) in LEVELS.iter().zip(&medians) {
                let level = level.trim_matches('"');
                println!("rate gateway.{coding}_{megabits}_mbit_{level}_ms {:.1}", seconds * 1e3);
            }
            let best = (1..LEVELS.len()).min_by(|one, other| medians[*one].total_cmp(&medians[*other]));
            let best = &seconds[best.unwrap_or(1)];
            let ratios: Vec<f64> = best.iter().zip(&seconds[0]).map(|(best, found)| best / found).collect();
            if worst.as_ref().is_none_or(|worst| median(&ratios) < median(worst)) {
                worst = Some(ratios);
            }
        }
    }
    figure("gateway.automatic_compression", measured(&worst.unwrap_or_default()));
    Ok(())
}

fn turn_of(served: &Served, coding: &str, megabits: f64, asked: &mut u64) -> Result<Load> {
    let field = format!("Accept-Encoding: {coding}\r\n");
    let next = |_| {
        *asked += 1;
        load::request(&format!("/q/many.csv?n={asked}"), &field)
    };
    let requests: Vec<_> = (0..ANSWERS).map(next).collect();
    let name = format!("{coding}, {megabits} Mbit/s");
    let load = metered(&name, served.id(), || load::by_line(served.place, &requests, megabits * 1e6 / 8.0))?;
    ensure!(load.bytes > 0, "nothing came");
    Ok(load)
}
