//! Knobs written into the configuration file, its comments and order kept.
//!
//! The new text is read as the server would read it before it takes the old one's place: a temporary file beside it, flushed, with the same owner and
//! mode, renamed. A file that somebody changes meanwhile is left as it is.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, TableLike};

use super::client::Shown;
use crate::cli::Global;
use crate::commands::serve::check_held;
use crate::config::Config;
use crate::exit::{OrUsage as _, usage};

/// A file that is to be written.
pub(super) struct Saving {
    /// Behind all links.
    path: PathBuf,
    before: String,
    document: DocumentMut,
    global: Global,
}

impl Saving {
    /// Looks whether it could be.
    pub(super) fn begin(config: &Config, global: &Global) -> Result<Saving> {
        let file = config.file();
        let path = file.canonicalize().or_usage(|| format!("{} could not be found", file.display()))?;
        let document = config.text().parse::<DocumentMut>().or_usage(|| format!("{} can't be used", file.display()))?;
        // Where this goes wrong the rename would too.
        tempfile::tempfile_in(folder(&path)).or_usage(|| {
            format!("nothing can be written beside {}: it can't be saved; set it without --save", path.display())
        })?;
        Ok(Saving { path, before: config.text().to_owned(), document, global: global.clone() })
    }

    /// Writes these; gives the file's name.
    pub(super) fn write<'a>(mut self, knobs: impl Iterator<Item = &'a Shown>) -> Result<String> {
        for knob in knobs {
            put(&mut self.document, &knob.name, &knob.value)?;
        }
        let text = self.document.to_string();
        let not_saved =
            || format!("it is set, but not saved: {} would not start a server any more", self.path.display());
        check(&self.global, &text).or_usage(not_saved)?;
        self.replace(&text).with_context(|| format!("it is set, but not saved in {}", self.path.display()))?;
        Ok(self.path.display().to_string())
    }

    fn replace(&self, text: &str) -> Result<()> {
        let folder = folder(&self.path);
        let metadata = std::fs::metadata(&self.path)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        let made = file.as_file().metadata()?;
        if (made.uid(), made.gid()) != (metadata.uid(), metadata.gid()) {
            chown(file.path(), Some(metadata.uid()), Some(metadata.gid())).context("its owner could not be kept")?;
        }
        file.as_file().set_permissions(metadata.permissions())?;
        file.as_file().sync_all()?;
        if std::fs::read_to_string(&self.path)? != self.before {
            return Err(usage("it was changed meanwhile; `headwater tune --save` tries again"));
        }
        file.persist(&self.path)?;
        File::open(folder)?.sync_all()?;
        Ok(())
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Whether a server would start by it, as far as its options go.
fn check(global: &Global, text: &str) -> Result<()> {
    let config = Config::of(global, text.to_owned())?;
    let server = config.server(&[])?;
    let pools = config.pools(&[], &server, None)?;
    if let Some(gateway) = config.gateway(&[])? {
        check_held(&gateway.settings, pools.main())?;
    }
    Ok(())
}

/// Sets `section.option`; whatever stands around it stays.
fn put(document: &mut DocumentMut, name: &str, value: &Value) -> Result<()> {
    let (section, option) = name.split_once('.').with_context(|| format!("{name} is in no section"))?;
    let value = written(value).with_context(|| format!("{name} is {value}, which can't be written"))?;
    let is_new = !document.contains_key(section);
    let item = document.entry(section).or_insert_with(toml_edit::table);
    if let (true, Some(table)) = (is_new, item.as_table_mut()) {
        table.decor_mut().set_prefix("\n");
    }
    let table: &mut dyn TableLike = item.as_table_like_mut().with_context(|| format!("[{section}] is no section"))?;
    match table.get_mut(option).and_then(Item::as_value_mut) {
        Some(there) => {
            let decor = there.decor().clone();
            *there = value;
            *there.decor_mut() = decor;
        }
        None => drop(table.insert(option, Item::Value(value))),
    }
    Ok(())
}

fn written(value: &Value) -> Option<toml_edit::Value> {
    match value {
        Value::Bool(truth) => Some((*truth).into()),
        Value::String(word) => Some(word.into()),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Some(whole.into()),
            None => number.as_f64().filter(|_| !number.is_u64()).map(Into::into),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn after(text: &str, all: &[(&str, Value)]) -> String {
        let mut document: DocumentMut = text.parse().expect("TOML");
        for (name, value) in all {
            put(&mut document, name, value).expect(name);
        }
        document.to_string()
    }

    #[test]
    fn comments_and_order_stay() {
        let text = "# A shop.\nmodels = [] # none yet\n\n[server]   # the server\n# Measured in May.\nworkers = 3   # three\nbacklog = 9\n\n\
                    [database]\nurl = \"sqlite:a.db\"\n# The end.\n";
        assert_eq!(
            after(text, &[("server.workers", json!(8)), ("server.retries", json!(2))]),
            text.replace("workers = 3 ", "workers = 8 ").replace("backlog = 9\n", "backlog = 9\nretries = 2\n")
        );
        let new = after(text, &[("pool.policy", json!("lru")), ("pool.skips", json!(100))]);
        assert_eq!(new.replace("\n[pool]\npolicy = \"lru\"\nskips = 100\n", ""), text);
        let many = [
            ("gateway.cache", json!(false)),
            ("gateway.waiting_s_max", json!(0.5)),
            ("gateway.compression", json!("auto")),
        ];
        let new = after("[gateway]\ncache = true\n", &many);
        assert_eq!(new, "[gateway]\ncache = false\nwaiting_s_max = 0.5\ncompression = \"auto\"\n");
    }

    #[test]
    fn sections_are_found_however_they_are_written() {
        assert_eq!(after("pool = { skips = 1 }\n", &[("pool.skips", json!(2))]), "pool = { skips = 2 }\n");
        assert_eq!(after("pool.skips = 1\n", &[("pool.skips", json!(2))]), "pool.skips = 2\n");
        assert_eq!(after("\"pool\".'skips' = 1\n", &[("pool.skips", json!(2))]), "\"pool\".'skips' = 2\n");
        let mut document: DocumentMut = "pool = 3\n".parse().expect("TOML");
        assert!(
            put(&mut document, "pool.skips", &json!(2)).is_err() && put(&mut document, "log", &json!("info")).is_err()
        );
    }
}
