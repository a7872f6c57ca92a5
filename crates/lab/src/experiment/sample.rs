//! `[sample]`: what is looked at beside the runs.

use toml::de::DeValue;

use crate::reading::{Entry, Reader};
use crate::sampling::{DATABASE, Find, LAB, Sample};

/// `[sample]`, with `waits` and the processes by name.
pub(super) fn sample(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Sample {
    let mut sample = Sample::default();
    let entries = reader.table(entry).unwrap_or_default();
    reader.allow(&entries, "[sample]", &["waits", "process"]);
    for entry in &entries {
        match (entry.name, entry.value.get_ref()) {
            ("waits", DeValue::Boolean(has_waits)) => sample.has_waits = *has_waits,
            ("waits", _) => _ = reader.mismatch::<()>(entry, "true or false"),
            ("process", _) => {
                for process in reader.table(entry).unwrap_or_default() {
                    sample.processes.extend(find(reader, &process).map(|find| (process.name.to_owned(), find)));
                }
            }
            _ => {}
        }
    }
    sample
}

fn find(reader: &mut Reader<'_>, process: &Entry<'_>) -> Option<Find> {
    const KEYS: [&str; 3] = ["port", "pid_file", "command"];
    if process.name == LAB {
        return reader.mismatch(process, "another name: the lab itself is always sampled");
    }
    let entries = reader.table(process)?;
    reader.allow(&entries, &format!("[sample.process.{}]", process.name), &KEYS);
    let known: Vec<_> = entries.iter().filter(|entry| KEYS.contains(&entry.name)).collect();
    let [how] = known[..] else {
        if known.is_empty() && !entries.is_empty() {
            return None;
        }
        let example = if process.name == DATABASE { "{ port = 5432 }" } else { "{ port = 3128 }" };
        return reader.mismatch(process, &format!("one of port, pid_file and command, as {example}"));
    };
    match how.name {
        "port" => reader.integer(how, 1..0x1_0000).map(|port| Find::Port(port as u16)),
        "pid_file" => reader.string(how).map(Find::PidFile),
        _ => reader.string(how).map(Find::Command),
    }
}
