//! Net changes have no order: whatever leads from one state that holds all constraints to another is applied whole, and a change at
//! fault is refused with what depends on it, and nothing else.
//!
//! `HEADWATER_UPLOAD_SEED` repeats a run, `HEADWATER_UPLOAD_SCHEMAS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};

use headwater_consolidated::{Plan, track};
use headwater_protocol::message::Change;
use headwater_protocol::{Row, Value};
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
fn for_schemas(database: &dyn Fn() -> Database, mut what: impl FnMut(&Database, &mut Random)) {
    let seeds = match setting("HEADWATER_UPLOAD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("HEADWATER_UPLOAD_SCHEMAS").unwrap_or(5),
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
        let plan = made(database, &schema, "consolidated_wins");
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
        let plan = made(database, &schema, "consolidated_wins");
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

/// Two remotes change the same rows, and the later wins: what comes of both, if it is valid, is applied whole, though what the later
/// knew of the rows was no longer so.
pub(crate) fn a_valid_outcome_of_conflicts_is_applied_whole(database: &dyn Fn() -> Database) {
    let (mut valid, mut invalid) = (0, 0);
    for_schemas(database, |database, random| {
        let schema = Schema::random(random, true);
        let plan = made(database, &schema, "remote_wins");
        let mut state: State = schema.tables.iter().map(|_| BTreeMap::new()).collect();
        for upload in 0..UPLOADS {
            let mut later = Replica::synced(database, &plan, "anna");
            later.batch_rows = batch_rows(random);
            let between = schema.state(random, &state);
            let mut first = uploading(database, &plan, &schema, &difference(&state, &between));
            assert!(first.sync(database, &plan).outcomes().is_empty(), "upload {upload}");
            let unaware = schema.state(random, &state);
            let changes = shuffled(random, difference(&state, &unaware));
            for (table, _, change) in &changes {
                later.pending.push((find(&plan, &schema.tables[*table].name).number, change.clone()));
            }
            let next = applied(&between, &changes, &BTreeSet::new());
            let synced = later.sync(database, &plan);
            if broken(&schema, &next).is_empty() {
                valid += 1;
                let told =
                    || format!("upload {upload}, from {between:?}: {}", story(database, &plan, &schema, &changes));
                assert!(synced.refusals().is_empty(), "{:?}\n{}", synced.refusals(), told());
                assert_eq!(stored(database, &plan, &schema), rows(&next), "upload {upload}");
            } else {
                invalid += 1;
            }
            state = keyed(&schema, stored(database, &plan, &schema));
        }
    });
    assert!(setting("HEADWATER_UPLOAD_SEED").is_some() || valid > 5, "{valid} outcomes were valid, {invalid} not");
}

fn keyed(schema: &Schema, rows: Vec<Vec<Row>>) -> State {
    let key =
        |table: &Table, row: &Row| row[..table.key].iter().map(number).collect::<Option<Vec<i64>>>().expect("a key");
    let tables = schema.tables.iter().zip(rows);
    tables.map(|(table, rows)| rows.into_iter().map(|row| (key(table, &row), row)).collect()).collect()
}

/// A change: its table, key and images.
type Step = (usize, Vec<i64>, Change);

fn made(database: &Database, schema: &Schema, conflict: &str) -> Plan {
    database.application(&schema.sql(database.dialect()));
    let plan = plan(&schema.model(conflict));
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
        let mut more = BTreeSet::new();
        for rows in broken(schema, &applied(state, changes, &refused)) {
            let places = rows.iter().filter_map(|(table, key)| place_of.get(&(*table, key)));
            let blamed = places.copied().find(|place| !refused.contains(place));
            more.insert(blamed.expect("somebody is to blame"));
        }
        if more.is_empty() {
            return refused;
        }
        refused.extend(more);
    }
}

/// The violations of references and unique constraints, each by the rows that have to do with it: one that refers to what is not there
/// and what it refers to, or two that have the same value.
fn broken(schema: &Schema, state: &State) -> Vec<[(usize, Vec<i64>); 2]> {
    let mut found = Vec::new();
    for (number, table) in schema.tables.iter().enumerate() {
        for (key, row) in &state[number] {
            for parent in parents(table, row).filter(|(parent, key)| !state[*parent].contains_key(key)) {
                found.push([(number, key.clone()), parent]);
            }
        }
        for unique in &table.unique {
            let mut holders: BTreeMap<Vec<String>, &Vec<i64>> = BTreeMap::new();
            for (key, row) in &state[number] {
                let values: Row = unique.columns.iter().map(|place| row[*place].clone()).collect();
                if values.iter().any(Value::is_null) {
                    continue;
                }
                if let Some(holder) = holders.insert(spelled(&values), key) {
                    found.push([(number, key.clone()), (number, holder.clone())]);
                }
            }
        }
    }
    found
}

/// The rows that a row refers to.
fn parents<'a>(table: &'a Table, row: &'a Row) -> impl Iterator<Item = (usize, Vec<i64>)> + 'a {
    table.references.iter().filter_map(|reference| {
        let key = reference.columns.iter().map(|place| number(&row[*place]));
        Some((reference.table, key.collect::<Option<Vec<i64>>>()?))
    })
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}
