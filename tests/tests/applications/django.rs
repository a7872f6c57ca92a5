//! Django: its migrations make most tables anew (`new__shop_task`, copied, renamed), and leave triggers behind.

use anyhow::{Context as _, Result, ensure};

use super::{Shop, python};

fn django(shop: &Shop, step: &str) -> Result<String> {
    python("django_shop.py", &shop.file(), step, "python3-django")
}

#[test]
fn an_application_of_django() -> Result<()> {
    let mut shop = Shop::new()?;
    django(&shop, "begin")?;
    let mut remote = shop.adopt()?;
    shop.arrives(&mut remote, "what there was")?;

    // A field of its own, an index, and a longer text.
    django(&shop, "migrate 2")?;
    shop.arrives(&mut remote, "a migration")?;
    django(&shop, "write")?;
    shop.arrives(&mut remote, "what the ORM writes")?;
    ensure!(shop.titles()? == ["pending", "renamed", "made", "given"], "{:?}", shop.titles()?);
    shop.world.central.execute("UPDATE shop_task SET title = 'from the centre' WHERE id = 3")?;
    shop.arrives(&mut remote, "a change from elsewhere")?;
    let own = shop.world.rows("app", "SELECT title, color FROM shop_task WHERE id = 3")?;
    ensure!(
        own == [["from the centre", "blue"].map(|text| Some(text.to_owned()))],
        "the field keeps its value: {own:?}"
    );

    // A field that may not be NULL and has no default in the database: what comes down would not fit.
    django(&shop, "migrate 3")?;
    let refused = shop.world.sync(&mut remote).err().context("such a table can't be synchronized")?.to_string();
    ensure!(refused.contains("column \"stars\" is not in the model, may not be NULL, and has no default"), "{refused}");
    django(&shop, "write more")?;
    django(&shop, "migrate 4")?;
    let report = shop.world.sync(&mut remote)?;
    ensure!(report.untracked == 1, "what was written meanwhile is on the list: {report:?}");
    shop.retry(&mut remote, "what was written meanwhile")?;
    ensure!(shop.titles()?.contains(&"meanwhile".to_owned()), "{:?}", shop.titles()?);
    Ok(())
}
