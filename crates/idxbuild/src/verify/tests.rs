//! What a rebuild could do wrong, done on purpose: none of it is verified.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Expected, verify};
use crate::collation::Collation;
use crate::error::{Error, Halt};
use crate::file::ReadPages;
use crate::header::{Encoding, Header, Layout};
use crate::job::IndexJob;
use crate::key::{Affinity, KeyColumn, Source};
use crate::record::{Value, Writer};
use crate::sum::{KeyHash, Sum};
use crate::tree::{Sink, TreeWriter};
use crate::usage::Recorder;
use crate::walk::Claims;

const ROOT: u32 = 2;

/// Pages in memory.
struct Pages {
    layout: Layout,
    bytes: Mutex<BTreeMap<u32, Vec<u8>>>,
    last: u32,
}

impl Sink for Pages {
    fn allocate(&mut self) -> Result<u32, Halt> {
        self.last += 1;
        self.layout.pages = self.last;
        Ok(self.last)
    }

    fn write(&mut self, page: u32, bytes: &[u8]) -> Result<(), Halt> {
        self.bytes.lock().expect("no panic").insert(page, bytes.to_vec());
        Ok(())
    }
}

impl ReadPages for Pages {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error> {
        let pages = self.bytes.lock().expect("no panic");
        for (page, into) in (first..).zip(into.chunks_mut(self.layout.page_size)) {
            into.copy_from_slice(&pages[&page]);
        }
        Ok(())
    }
}

fn job(is_unique: bool) -> IndexJob {
    let column = KeyColumn {
        name: "a".to_owned(),
        source: Source::Stored { place: 0, missing: None },
        affinity: Affinity::Blob,
        collation: Collation::Binary,
        descending: false,
    };
    IndexJob { name: "i".to_owned(), root: ROOT, is_unique, columns: vec![column], encoding: Encoding::Utf8 }
}

/// Writes these keys as they come, and verifies them against the sum of those expected.
fn verified(written: &[(i64, i64)], expected: &[(i64, i64)], is_unique: bool) -> Result<(), Error> {
    let layout = Layout { page_size: 512, usable: 512, pages: ROOT };
    let mut pages = Pages { layout: layout.clone(), bytes: Mutex::default(), last: ROOT };
    let mut tree = TreeWriter::new(&layout, &mut pages);
    for &(value, rowid) in written {
        let (mut writer, mut record) = (Writer::default(), Vec::new());
        writer.integer(value);
        writer.integer(rowid);
        writer.finish(&mut record);
        tree.push(&record).expect("room");
    }
    tree.finish(ROOT).expect("room");
    let mut sum = Sum::default();
    for &(value, rowid) in expected {
        let mut hash = KeyHash::new();
        hash.value(Value::Integer(value));
        hash.value(Value::Integer(rowid));
        sum.add(hash);
    }
    let mut first = vec![0; 512];
    first[..16].copy_from_slice(b"SQLite format 3\0");
    let header = Header::read(&first, pages.last).expect("a header");
    let job = job(is_unique);
    verify(&pages, &[Expected { job: &job, sum }], &mut Claims::new(&header), 2, &Recorder::new(), None)
}

fn keys(count: i64) -> Vec<(i64, i64)> {
    (0..count).map(|key| (key * 1000, count - key)).collect()
}

/// Every number of keys, so that the last page is full, empty or has one at every level.
#[test]
fn trees_of_any_size_are_verified() {
    for count in (0..600).chain([5000, 20_000]) {
        verified(&keys(count), &keys(count), true).unwrap_or_else(|error| panic!("{count} keys: {error}"));
    }
}

#[test]
fn what_is_out_of_order_is_noticed_wherever_it_is() {
    // A piece that a thread takes ends somewhere in the second range.
    for place in (1..5000).step_by(37).chain(2500..3100) {
        let mut wrong = keys(5000);
        wrong.swap(place - 1, place);
        let error = verified(&wrong, &keys(5000), false).expect_err("out of order");
        assert!(error.to_string().contains("out of order"), "{place}: {error}");
    }
}

#[test]
fn a_key_too_few_too_many_or_of_another_row_is_noticed() {
    let sound = keys(3000);
    let mut other = sound.clone();
    let said = |keys: &[(i64, i64)]| verified(keys, &sound, false).expect_err("it differs").to_string();
    other.remove(1234);
    assert!(said(&other).contains("2999 keys for 3000 rows"));
    other.insert(1234, sound[1234]);
    other.insert(1234, (sound[1234].0, 0));
    assert!(said(&other).contains("3001 keys for 3000 rows"));
    other.remove(1234);
    other[1234].1 += 1;
    assert!(said(&other).contains("not those of the rows"));
}

#[test]
fn the_same_key_twice_is_noticed_where_it_is_unique() {
    let mut keys = keys(3000);
    keys[100].0 = keys[99].0;
    keys[100].1 = keys[99].1 + 5;
    assert!(verified(&keys, &keys, false).is_ok());
    assert!(verified(&keys, &keys, true).is_err());
}
