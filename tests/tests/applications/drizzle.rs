//! Drizzle on libSQL: its migrations make tables anew (`__new_shop_project`).

use anyhow::{Result, ensure};

use super::node::node;
use super::{Shop, run};

fn drizzle(shop: &Shop, step: &str) -> Result<String> {
    let mut command = node("drizzle.mjs");
    command.arg(shop.file()).arg(step);
    run(&mut command, "scripts/setup")
}

#[test]
fn an_application_of_drizzle() -> Result<()> {
    let mut shop = Shop::new()?;
    drizzle(&shop, "begin")?;
    let mut remote = shop.adopt()?;
    shop.arrives(&mut remote, "what there was")?;
    drizzle(&shop, "migrate")?;
    shop.arrives(&mut remote, "a migration")?;
    drizzle(&shop, "write")?;
    shop.arrives(&mut remote, "what the ORM writes")?;
    ensure!(shop.titles()? == ["updated", "upserted", "made"], "{:?}", shop.titles()?);
    let own = shop.world.rows("app", "SELECT color FROM shop_task ORDER BY id")?;
    ensure!(own == [Some("red"), None, Some("blue")].map(|text| [text.map(str::to_owned)]), "{own:?}");
    Ok(())
}
