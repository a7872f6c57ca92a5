//! Knobs written into the configuration file, its comments and order kept.
//!
//! The new text is read as the server would read it before it takes the old one's place: a temporary file beside it, flushed, with the same owner and
//! mode, renamed. A file that somebody changes meanwhile is left as it is.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::client::Shown;
use crate::cli::Global;
use crate::commands::serve::check_held;
use crate::config::Config;
use crate::exit::{OrUsage as _, unreachable, usage};

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
        let is_readonly = std::fs::metadata(&path).is_ok_and(|metadata| metadata.permissions().readonly());
        if is_readonly {
            // A rename would not ask.
            return Err(usage(format!(
                "{} is read-only: it can't be saved; set it without --save, or make it writable",
                path.display()
            )));
        }
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
        let text = ended_like(&self.before, self.document.to_string());
        let not_saved =
            || format!("it is set, but not saved: {} would not start a server any more", self.path.display());
        check(&self.global, &text).or_usage(not_saved)?;
        let file = self.path.display();
        match self.replace(&text) {
            Ok(true) => Ok(file.to_string()),
            Ok(false) => Err(usage(format!(
                "it is set, but not saved: {file} was changed meanwhile; `headwater tune --save` tries again"
            ))),
            Err(error) => Err(unreachable(format!(
                "it is set, but not saved: {file} could not be written ({error}); `headwater tune --save` tries again"
            ))),
        }
    }

    /// Puts the text in the file's place; not where it is no more what was read.
    fn replace(&self, text: &str) -> io::Result<bool> {
        let folder = folder(&self.path);
        let metadata = std::fs::metadata(&self.path)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        let made = file.as_file().metadata()?;
        if (made.uid(), made.gid()) != (metadata.uid(), metadata.gid()) {
            let kept = chown(file.path(), Some(metadata.uid()), Some(metadata.gid()));
            kept.map_err(|error| io::Error::new(error.kind(), format!("its owner could not be kept: {error}")))?;
        }
        file.as_file().set_permissions(metadata.permissions())?;
        file.as_file().sync_all()?;
        // Whoever else saves waits here, and sees then that it was changed.
        let alone = File::open(folder)?;
        alone.lock()?;
        if std::fs::read_to_string(&self.path)? != self.before {
            return Ok(false);
        }
        file.persist(&self.path)?;
        alone.sync_all()?;
        Ok(true)
    }
}

/// The text with the line ends of this one, if it has CRLF throughout.
fn ended_like(before: &str, text: String) -> String {
    let all = before.matches('\n').count();
    if all > 0 && before.matches("\r\n").count() == all {
        return text.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    text
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

/// Sets `section.option`, or an option of a section within one; whatever stands around it stays.
fn put(document: &mut DocumentMut, name: &str, value: &Value) -> Result<()> {
    let (sections, option) = name.rsplit_once('.').with_context(|| format!("{name} is in no section"))?;
    let value = written(value).with_context(|| format!("{name} is {value}, which can't be written"))?;
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for section in sections.split('.') {
        table = within(table, section).with_context(|| format!("{section} of [{sections}] is no section"))?;
    }
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

/// The section of this name, made where there is none, as the one around it is written.
fn within<'a>(table: &'a mut dyn TableLike, section: &str) -> Option<&'a mut dyn TableLike> {
    if !table.contains_key(section) {
        let mut new = Table::new();
        new.set_dotted(table.is_dotted());
        new.decor_mut().set_prefix("\n");
        table.insert(section, Item::Table(new));
    }
    table.get_mut(section)?.as_table_like_mut()
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
        for name in ["pool.skips", "pool.inner.skips", "log"] {
            let mut document: DocumentMut = "pool = 3\n".parse().expect("TOML");
            assert!(put(&mut document, name, &json!(2)).is_err(), "{name}");
        }
    }

    #[test]
    fn sections_within_sections_are_written_where_they_belong() {
        let records = [("gateway.cursor.records", json!(1)), ("gateway.packing.fill", json!(50))];
        let text = "[gateway]\nqueries = \"q\"\n\n[gateway.cursor] # prefetched\nsql = true\n\n[admin]\n# The end.\n";
        assert_eq!(
            after(text, &records),
            text.replace("sql = true\n", "sql = true\nrecords = 1\n\n[gateway.packing]\nfill = 50\n")
        );
        // However they are written before, they are read the same.
        for text in [
            "",
            "[gateway]\n",
            "[gateway.cursor]\n",
            "[gateway.cursor]\nrecords = \"automatic\"\n[gateway.packing]\nfill = 100\n",
            "[gateway]\ncursor = {}\n",
            "[gateway]\ncursor.sql = false\n",
            "[gateway]\ncursor.sql = false\npacking.fill = 1\n[admin]\n",
            "gateway.queries = \"q\"\n[admin]\n",
            "gateway.cursor.sql = false\n[admin]\n",
            "gateway = { queries = \"q\" }\n[admin]\n",
            "gateway = { cursor = { sql = false } }\n",
            "[admin]\n[gateway.frontier]\n[pool]\n[gateway]\nqueries = \"q\"\n",
        ] {
            let new = after(text, &records);
            let told =
                |text: &str| toml::from_str::<toml::Table>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let (mut before, now) = (told(text), told(&new));
            let mut put = |section: &str, option: &str, value: i64| {
                let table = |item: &mut toml::Table, name: &str| {
                    let inner = item.remove(name).unwrap_or_else(|| toml::Value::Table(toml::Table::new()));
                    inner.as_table().expect("a section").clone()
                };
                let mut gateway = table(&mut before, "gateway");
                let mut inner = table(&mut gateway, section);
                inner.insert(option.into(), value.into());
                gateway.insert(section.into(), inner.into());
                before.insert("gateway".into(), gateway.into());
            };
            put("cursor", "records", 1);
            put("packing", "fill", 50);
            assert_eq!(now, before, "{text}\nbecame\n{new}");
            let stays =
                |line: &str| ["{", "records", "fill"].iter().any(|set| line.contains(set)) || new.contains(line);
            assert!(text.lines().all(stays), "{text}\nbecame\n{new}");
        }
    }
}
