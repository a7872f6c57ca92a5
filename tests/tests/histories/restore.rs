//! A consolidated database that is put back as it was: a copy made a while ago takes its place, and whatever was committed since is lost.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater_testkit::{DataCopy, Postgres, wait_until};
use headwater_tests::Central;
use headwater_tests::backup::{back_up, replace};

const COPIED_WITHIN: Duration = Duration::from_mins(1);

/// Where copies of the database are, and how it is put back.
pub(crate) enum Copies {
    /// A file.
    File(Option<PathBuf>),
    /// A database of the shared cluster: a copy of it is renamed into its place.
    Database { admin: String, has_copy: bool, number: u64 },
    /// A cluster of its own.
    Cluster(Box<Postgres>, Option<DataCopy>),
}

impl Copies {
    pub(crate) fn has_one(&self) -> bool {
        match self {
            Copies::File(copy) => copy.is_some(),
            Copies::Database { has_copy, .. } => *has_copy,
            Copies::Cluster(_, copy) => copy.is_some(),
        }
    }

    /// Makes a copy of the database as it is now.
    pub(crate) fn copy(&mut self, central: &Central) -> Result<()> {
        match (self, central) {
            (Copies::File(copy), Central::Sqlite(path)) => {
                let kept = path.with_extension("kept");
                let _ = std::fs::remove_file(path.with_extension("backup"));
                std::fs::rename(back_up(path)?, &kept)?;
                *copy = Some(kept);
            }
            (Copies::Database { admin, has_copy, .. }, Central::Postgres(url)) => {
                let name = database(url)?;
                let shut = format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false");
                headwater_testkit::sql(admin, &format!("DROP DATABASE IF EXISTS {name}_copy WITH (FORCE)"))?;
                headwater_testkit::sql(admin, &shut)?;
                let create = format!("CREATE DATABASE {name}_copy TEMPLATE {name} STRATEGY file_copy");
                let mut copied = Ok(());
                // A session that was just beginning is found the next time.
                wait_until(COPIED_WITHIN, || {
                    copied = end_sessions(admin, name).and_then(|()| headwater_testkit::sql(admin, &create).map(drop));
                    copied.is_ok()
                });
                headwater_testkit::sql(admin, &format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true"))?;
                copied?;
                *has_copy = true;
            }
            (Copies::Cluster(cluster, copy), _) => *copy = Some(cluster.copy_data()?),
            _ => bail!("copies of another kind of database"),
        }
        Ok(())
    }

    /// Puts the copy in the database's place. It is used up.
    pub(crate) fn put_back(&mut self, central: &Central) -> Result<String> {
        match (self, central) {
            (Copies::File(copy), Central::Sqlite(path)) => replace(path, &copy.take().context("no copy")?)?,
            (Copies::Database { admin, has_copy, number }, Central::Postgres(url)) => {
                let name = database(url)?;
                *number += 1;
                headwater_testkit::sql(admin, &format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false"))?;
                end_sessions(admin, name)?;
                headwater_testkit::sql(admin, &format!("ALTER DATABASE {name} RENAME TO {name}_old_{number}"))?;
                headwater_testkit::sql(admin, &format!("ALTER DATABASE {name}_copy RENAME TO {name}"))?;
                headwater_testkit::sql(admin, &format!("DROP DATABASE {name}_old_{number} WITH (FORCE)"))?;
                *has_copy = false;
            }
            (Copies::Cluster(cluster, copy), _) => cluster.put_back(&copy.take().context("no copy")?)?,
            _ => bail!("copies of another kind of database"),
        }
        Ok("put back".to_owned())
    }

    /// Nothing of a history is left in the cluster that histories share.
    pub(crate) fn remove(&self, central: &Central) -> Result<()> {
        if let (Copies::Database { admin, .. }, Central::Postgres(url)) = (self, central) {
            let name = database(url)?;
            headwater_testkit::sql(admin, &format!("DROP DATABASE IF EXISTS {name}_copy WITH (FORCE)"))?;
            headwater_testkit::sql(admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))?;
        }
        Ok(())
    }
}

fn database(url: &str) -> Result<&str> {
    url.rsplit('/').next().context("a URL without a database")
}

fn end_sessions(admin: &str, name: &str) -> Result<()> {
    let sql = format!("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE datname = '{name}'");
    headwater_testkit::sql(admin, &sql).map(drop)
}
