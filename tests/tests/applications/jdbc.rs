//! JDBC (the driver of Xerial): batches, generated keys and `INSERT OR REPLACE`, while syncs run.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{Shop, run, scripts};

const INSTALLED_BY: &str = "apt-get install libxerial-sqlite-jdbc-java libxerial-sqlite-jdbc-jni default-jdk-headless";

/// Where Debian puts it.
const DRIVER: &str = "/usr/share/java/sqlite-jdbc.jar";

fn java(shop: &Shop, step: &str) -> Command {
    let mut command = Command::new("java");
    let libraries = format!("-Djava.library.path=/usr/lib/jni:/usr/lib/{}-linux-gnu/jni", std::env::consts::ARCH);
    command.args([&libraries, "-cp", DRIVER]).arg(scripts().join("JdbcShop.java")).arg(shop.file()).arg(step);
    command
}

#[test]
fn an_application_of_jdbc() -> Result<()> {
    let mut shop = Shop::new()?;
    run(&mut java(&shop, "begin"), INSTALLED_BY)?;
    let mut remote = shop.adopt()?;
    shop.arrives(&mut remote, "what there was")?;
    let writes = shop.syncs_beside(&mut remote, java(&shop, "write"), INSTALLED_BY)?;
    ensure!(writes.trim() == "300 keys", "{writes}");
    shop.arrives(&mut remote, "what it wrote")?;
    ensure!(shop.titles()?.len() == 302, "{}", shop.titles()?.len());
    Ok(())
}
