//! better-sqlite3 and Node's own SQLite (`node:sqlite`): transactions, savepoints, `RETURNING` and `REPLACE`, while syncs run.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{Shop, run, scripts};

/// A program of `scripts/node`, by the Node that npm has put there: Debian's may be too old for `node:sqlite`.
pub(crate) fn node(program: &str) -> Command {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let folder = scripts().join("node");
    let mut command = Command::new(folder.join(format!("node_modules/node-linux-{architecture}/bin/node")));
    command.arg("--disable-warning=ExperimentalWarning").arg(folder.join(program));
    command
}

fn writer(shop: &Shop, driver: &str, step: &str) -> Command {
    let mut command = node("writer.mjs");
    command.arg(driver).arg(shop.file()).arg(step);
    command
}

fn an_application_of(driver: &str) -> Result<()> {
    let mut shop = Shop::new()?;
    run(&mut writer(&shop, driver, "begin"), "scripts/setup")?;
    let mut remote = shop.adopt()?;
    shop.arrives(&mut remote, "what there was")?;
    let writes = shop.syncs_beside(&mut remote, writer(&shop, driver, "write"), "scripts/setup")?;
    ensure!(writes.trim() == "270 keys", "{writes}");
    shop.arrives(&mut remote, "what it wrote")?;
    let titles = shop.titles()?;
    let of = |title: &str| titles.iter().filter(|one| *one == title).count();
    ensure!((titles.len(), of("replaced"), of("upserted"), of("never")) == (272, 30, 30, 0), "{titles:?}");
    Ok(())
}

#[test]
fn an_application_of_better_sqlite3() -> Result<()> {
    an_application_of("better-sqlite3")
}

#[test]
fn an_application_of_nodes_own_sqlite() -> Result<()> {
    an_application_of("node:sqlite")
}
