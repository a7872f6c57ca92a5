//! Net changes have no order: whatever leads from one state that holds all constraints to another is applied whole, and a change at
//! fault is refused with what depends on it, and nothing else.
//!
//! `HEADWATER_UPLOAD_SEED` repeats a run, `HEADWATER_UPLOAD_SCHEMAS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};

use headwater_consolidated::{Plan, track};
use headwater_protocol::Row;
use headwater_protocol::message::Change;
use headwater_testkit::Random;

use super::database::{Database, plan};
use super::replica::{Replica, find};
use super::values::int;
use super::world::{Schema, State, Table, checked, outside, spelled};

const UPLOADS: usize = 8;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs something for some schemas, each of a seed of its own, which is named where it fails.
fn for_schemas(database: &dyn Fn() -> Database, what: impl Fn(&Database, &mut Random) + std::panic::RefUnwindSafe) {
    let seeds = match setting("HEADWATER_UPLOAD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("HEADWATER_UPLOAD_SCHEMAS").unwrap_or(8),
    };
    for seed in seeds {
        let database = database();
        let done =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(&database, &mut Random::seeded(seed))));
        if let Err(panic) = done {
            eprintln!("again with HEADWATER_UPLOAD_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

pub(crate) fn a_valid_upload_is_applied_whole(database: &dyn Fn() -> Database) {
    for_schemas(database, |database, random| {
        let schema = Schema::random(random, false);
        let plan = made(database, &schema);
        let mut state: State = schema.tables.iter().map(|_| BTreeMap::new()).collect();
        for upload in 0..UPLOADS {
            let next = schema.state(random, &state);
            let changes = shuffled(random, difference(&state, &next));
            let mut remote = uploading(database, &plan, &schema, &changes);
            remote.batch_rows = batch_rows(random);
            let synced = remote.sync(database, &plan);
            let told = || format!("upload {upload}: {}", story(database, &plan, &schema, &changes));
            assert!(synced.outcomes().is_empty(), "{:?}\n{}", synced.outcomes(), told());
            assert_eq!(stored(database, &plan, &schema), rows(&next), "upload {upload}");
            state = next;
        }
    });
}

pub(crate) fn exactly_what_is_at_fault_is_refused(database: &dyn Fn() -> Database) {
    for_schemas(database, |database, random| {
        let schema = Schema::random(random, true);
        let plan = made(database, &schema);
        let mut state: State = schema.tables.iter().map(|_| BTreeMap::new()).collect();
        for upload in 0..UPLOADS {
            let next = schema.state(random, &state);
            let mut changes = shuffled(random, difference(&state, &next));
            let bad = spoilt(database, &schema, random, &mut changes);
            let refused = closure(&schema, &state, &changes, bad);
            let mut remote = uploading(database, &plan, &schema, &changes);
            remote.batch_rows = batch_rows(random);
            let synced = remote.sync(database, &plan);
            let found: BTreeSet<usize> = synced.refusals().iter().map(|(ordinal, _)| *ordinal as usize).collect();
            let by_ordinal = in_model_order(&plan, &schema, &changes);
            let expected: BTreeSet<usize> =
                (0..changes.len()).filter(|ordinal| refused.contains(&by_ordinal[*ordinal])).collect();
            let told = || format!("upload {upload}: {}", story(database, &plan, &schema, &changes));
            assert_eq!(found, expected, "{:?}\n{}", synced.refusals(), told());
            state = applied(&state, &changes, &refused);
            assert_eq!(stored(database, &plan, &schema), rows(&state), "upload {upload}");
            for table in schema.tables.iter().filter(|table| table.key == 1) {
                database.application(&format!("DELETE FROM holds_{}", table.name));
            }
        }
    });
}

/// A change: its table, key and images.
type Step = (usize, Vec<i64>, Change);

fn made(database: &Database, schema: &Schema) -> Plan {
    database.application(&schema.sql(database.dialect()));
    let plan = plan(&schema.model());
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

fn batch_rows(random: &mut Random) -> usize {
    random.pick(&[1, 2, 3, 7, 2_000]).copied().unwrap_or(1)
}

fn difference(before: &State, after: &State) -> Vec<Step> {
    let mut steps = Vec::new();
    for (table, (before, after)) in before.iter().zip(after).enumerate() {
        let keys: BTreeSet<&Vec<i64>> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let (old, new) = (before.get(key).cloned(), after.get(key).cloned());
            if old != new {
                steps.push((table, key.clone(), Change { old, new }));
            }
        }
    }
    steps
}

fn shuffled(random: &mut Random, mut steps: Vec<Step>) -> Vec<Step> {
    for place in (1..steps.len()).rev() {
        steps.swap(place, random.below(place as u64 + 1) as usize);
    }
    steps
}

/// A remote that has synced and has these changes pending.
fn uploading(database: &Database, plan: &Plan, schema: &Schema, changes: &[Step]) -> Replica {
    let mut remote = Replica::synced(database, plan, "anna");
    for (table, _, change) in changes {
        remote.pending.push((find(plan, &schema.tables[*table].name).number, change.clone()));
    }
    remote
}

/// By ordinal in the upload: the place among the changes. The tables of an upload stand in the model's order.
fn in_model_order(plan: &Plan, schema: &Schema, changes: &[Step]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..changes.len()).collect();
    places.sort_by_key(|place| find(plan, &schema.tables[changes[*place].0].name).number);
    places
}

/// All that is needed to see what went wrong.
fn story(database: &Database, plan: &Plan, schema: &Schema, changes: &[Step]) -> String {
    let images = |change: &Change| format!("{:?} -> {:?}", change.old, change.new).replace("Some", "");
    let line = |(ordinal, place): (usize, &usize)| {
        let (table, _, change) = &changes[*place];
        format!("{ordinal}: t{table} {}\n", images(change))
    };
    let lines: String = in_model_order(plan, schema, changes).iter().enumerate().map(line).collect();
    format!("{}\n{lines}", schema.sql(database.dialect()))
}

fn rows(state: &State) -> Vec<Vec<Row>> {
    state.iter().map(|table| table.values().cloned().collect()).collect()
}

/// What the database has, as a remote gets it that syncs for the first time.
fn stored(database: &Database, plan: &Plan, schema: &Schema) -> Vec<Vec<Row>> {
    let remote = Replica::synced(database, plan, "anna");
    schema.tables.iter().map(|table| remote.table(plan, &table.name)).collect()
}

/// Spoils some changes; gives their places.
fn spoilt(database: &Database, schema: &Schema, random: &mut Random, changes: &mut [Step]) -> BTreeSet<usize> {
    let mut bad = BTreeSet::new();
    let percent = *random.pick(&[0, 10, 30, 100]).expect("one of four");
    for (place, (table, key, change)) in
        changes.iter_mut().enumerate().filter(|_| random.chance(percent)).collect::<Vec<_>>()
    {
        let table = &schema.tables[*table];
        match &mut change.new {
            Some(row) if random.chance(50) => row[checked(table)] = int(-1),
            Some(row) => row[outside(table)] = int(77),
            None if table.key == 1 => {
                database.application(&format!("INSERT INTO holds_{} VALUES ({})", table.name, key[0]));
            }
            None => continue,
        }
        bad.insert(place);
    }
    bad
}

fn applied(state: &State, changes: &[Step], refused: &BTreeSet<usize>) -> State {
    let mut after = state.clone();
    for (_, (table, key, change)) in changes.iter().enumerate().filter(|(place, _)| !refused.contains(place)) {
        match &change.new {
            Some(row) => after[*table].insert(key.clone(), row.clone()),
            None => after[*table].remove(key),
        };
    }
    after
}

/// The changes at fault and all that can't be made without them: the least set whose absence leaves every constraint whole.
fn closure(schema: &Schema, state: &State, changes: &[Step], bad: BTreeSet<usize>) -> BTreeSet<usize> {
    let place_of: BTreeMap<(usize, &Vec<i64>), usize> =
        changes.iter().enumerate().map(|(place, (table, key, _))| ((*table, key), place)).collect();
    let mut refused = bad;
    loop {
        let after = applied(state, changes, &refused);
        let mut more = BTreeSet::new();
        let mut blame = |table: usize, key: &Vec<i64>| {
            let place = place_of.get(&(table, key)).filter(|place| !refused.contains(place));
            place.is_some_and(|place| {
                more.insert(*place);
                true
            })
        };
        for (number, table) in schema.tables.iter().enumerate() {
            for (key, row) in &after[number] {
                for (parent, target) in parents(table, row).filter(|(parent, key)| !after[*parent].contains_key(key)) {
                    assert!(blame(number, key) || blame(parent, &target), "nobody is to blame");
                }
            }
            for unique in &table.unique {
                let mut holders: BTreeMap<Vec<String>, &Vec<i64>> = BTreeMap::new();
                for (key, row) in &after[number] {
                    let values: Row = unique.columns.iter().map(|place| row[*place].clone()).collect();
                    if values.iter().any(headwater_protocol::Value::is_null) {
                        continue;
                    }
                    if let Some(holder) = holders.insert(spelled(&values), key) {
                        assert!(blame(number, key) | blame(number, holder), "nobody is to blame");
                    }
                }
            }
        }
        if more.is_empty() {
            return refused;
        }
        refused.extend(more);
    }
}

/// The rows that a row refers to.
fn parents<'a>(table: &'a Table, row: &'a Row) -> impl Iterator<Item = (usize, Vec<i64>)> + 'a {
    table.references.iter().filter_map(|reference| {
        let key = reference.columns.iter().map(|place| match row[*place] {
            headwater_protocol::Value::Int(number) => Some(number),
            _ => None,
        });
        Some((reference.table, key.collect::<Option<Vec<i64>>>()?))
    })
}
