//! What lies beside a remote's file that an interrupted command left there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder_of;

/// A file beside a remote's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The file.
    pub path: PathBuf,
    /// How large it is.
    pub bytes: u64,
    /// What it is, and what to do.
    pub advice: String,
}

/// The files beside this one that interrupted commands have left, by name:
///
/// | name | what it is |
/// |---|---|
/// | `FILE-ready-DIGEST` | as much of a ready file as has come to `remote create` |
/// | `FILE-journal` | the journal of a transaction that did not end; SQLite rolls it back when the file is opened |
/// | `FILE-wal`, `FILE-shm` without `FILE` | the log of a file that was moved or deleted without it |
///
/// A log beside its file is part of it and no leftover. Looks at names and sizes alone.
pub fn leftovers(path: &Path) -> Vec<Leftover> {
    let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Vec::new() };
    let is_there = path.symlink_metadata().is_ok();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder_of(path)).into_iter().flatten().flatten() {
        let other = entry.file_name().to_string_lossy().into_owned();
        let Some(advice) = other.strip_prefix(&name).and_then(|suffix| advice(suffix, path, is_there)) else {
            continue;
        };
        let bytes = entry.metadata().map_or(0, |there| there.len());
        // SQLite keeps an empty journal where it is told to.
        if bytes > 0 {
            found.push(Leftover { path: path.with_file_name(entry.file_name()), bytes, advice });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn advice(suffix: &str, path: &Path, is_there: bool) -> Option<String> {
    let path = path.display();
    match suffix {
        "-journal" if is_there => Some(format!(
            "the journal of a transaction that did not end: leave it, opening {path} rolls it back (`headwater remote status {path}`)"
        )),
        "-journal" | "-wal" | "-shm" if !is_there => Some(format!(
            "it belongs to {path}, which is not there: put the two together again; if {path} was deleted on purpose, delete it too"
        )),
        _ if !suffix.starts_with("-ready-") => None,
        _ if is_there => Some(format!("part of a ready file, which {path} does not need any more: delete it")),
        _ => Some(format!(
            "part of a ready file: `headwater remote create {path}` goes on with it; delete it to begin anew"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_named_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.db");
        let names = || -> Vec<(String, String)> {
            let name = |left: &Leftover| left.path.file_name().expect("a name").to_string_lossy().into_owned();
            leftovers(&path).into_iter().map(|left| (name(&left), left.advice)).collect()
        };
        for name in ["x.db-ready-00ff", "x.db-wal", "y.db-journal", "x.db2-journal", "x.db-other"] {
            fs::write(folder.path().join(name), "x").expect("written");
        }
        fs::write(folder.path().join("x.db-shm"), "").expect("written");
        let found = names();
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x.db-ready-00ff", "x.db-wal"]);
        assert!(found[0].1.contains("goes on with it") && found[1].1.contains("put the two together"), "{found:?}");
        for name in ["x.db", "x.db-journal"] {
            fs::write(folder.path().join(name), "x").expect("written");
        }
        let found = names();
        assert_eq!(
            found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["x.db-journal", "x.db-ready-00ff"]
        );
        assert!(found[0].1.contains("rolls it back") && found[1].1.contains("delete it"), "{found:?}");
    }
}
