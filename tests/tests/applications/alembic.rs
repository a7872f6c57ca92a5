//! Alembic and SQLAlchemy: batch migrations make tables anew (`_alembic_tmp_shop_task`).

use anyhow::{Result, ensure};

use super::{Shop, python};

fn alembic(shop: &Shop, step: &str) -> Result<String> {
    python("alembic_shop.py", &shop.file(), step, "python3-alembic")
}

#[test]
fn an_application_of_sqlalchemy() -> Result<()> {
    let mut shop = Shop::new()?;
    alembic(&shop, "begin")?;
    let mut remote = shop.adopt()?;
    shop.arrives(&mut remote, "what there was")?;
    alembic(&shop, "migrate")?;
    shop.arrives(&mut remote, "a batch migration")?;
    alembic(&shop, "write")?;
    shop.arrives(&mut remote, "what the ORM writes")?;
    ensure!(shop.titles()? == ["merged", "upserted", "made"], "{:?}", shop.titles()?);
    let own = shop.world.rows("app", "SELECT color FROM shop_task ORDER BY id")?;
    ensure!(own == [["red"], ["green"], ["blue"]].map(|row| row.map(|text| Some(text.to_owned()))), "{own:?}");
    Ok(())
}
