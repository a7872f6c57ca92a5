//! The corpus: for each target a file of inputs worth keeping, one a line, with `\n`, `\x00` and the like for what can't be shown.
//!
//! libFuzzer wants a folder with a file for each input. Thousands of small files would bury the repository, so they are unpacked for a
//! search and packed again.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::{fmt::Write as _, fs};

fn path(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).with_extension("txt")
}

/// A target's inputs; none if nothing was kept for it yet.
pub fn read(target: &str) -> io::Result<Vec<Vec<u8>>> {
    match fs::read_to_string(path(target)) {
        Ok(text) => text.lines().map(|line| unescaped(line).ok_or_else(|| damaged(target, line))).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn damaged(target: &str, line: &str) -> io::Error {
    io::Error::other(format!("{}: no input: {line:?}", path(target).display()))
}

/// Writes each input to a file in this folder.
pub fn unpack(target: &str, folder: &Path) -> io::Result<()> {
    read(target)?.iter().enumerate().try_for_each(|(number, input)| fs::write(folder.join(number.to_string()), input))
}

/// Makes the inputs in this folder the target's.
pub fn pack(target: &str, folder: &Path) -> io::Result<()> {
    let inputs: io::Result<Vec<_>> = fs::read_dir(folder)?.map(|entry| fs::read(entry?.path())).collect();
    write(target, inputs?)
}

/// Adds one input.
pub fn add(target: &str, file: &Path) -> io::Result<()> {
    let mut inputs = read(target)?;
    inputs.push(fs::read(file)?);
    write(target, inputs)
}

fn write(target: &str, inputs: Vec<Vec<u8>>) -> io::Result<()> {
    let mut text = String::new();
    for input in inputs.into_iter().collect::<BTreeSet<_>>() {
        writeln!(text, "{}", input.escape_ascii()).map_err(io::Error::other)?;
    }
    fs::write(path(target), text)
}

/// What [`slice::escape_ascii`] has written.
fn unescaped(line: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            },
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(unescaped(&all.escape_ascii().to_string()), Some(all));
        assert_eq!(unescaped("\\x4"), None);
        assert_eq!(unescaped("\\"), None);
    }
}
