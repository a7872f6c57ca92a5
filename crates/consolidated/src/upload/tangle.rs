//! Which changes depend on which: an order in which net changes, which have none, can be made.
//!
//! | a change | needs |
//! |---|---|
//! | that makes a row refer to another | the change that makes that other row |
//! | that deletes a row | the changes that make rows refer to it no more |
//! | that takes a unique value | the change that gives it up |
//!
//! Changes that need one another in a circle are one *unit*: all of them can be made, or none. Units stand behind the units they need.
//! Units that have to do with one another, directly or not, are a *component*; components can be made in any order. Components that
//! refer to the same rows, or change them, are a *family*: a rule of the application's over several rows, looked at when the transaction
//! ends, may hold for them together and not for each.
//!
//! ```text
//! two values change places:       a needs b, b needs a    one component, one unit
//! a value that a deletion frees:  the insert needs it     one component, two units, the deletion first
//! ```
//!
//! Rows are taken as they are stored, and as they will be once conflicts are judged.
//!
//! *Caveats.* Only the model's constraints are seen.

mod graph;

use std::collections::HashMap;
use std::ops::Range;

use headwater_protocol::{Row, Type};

use super::park::Steps;
use super::source::Item;
use crate::Plan;
use crate::keys::value_bytes;

/// Changes, and what they need of one another.
pub(super) struct Tangle<'i> {
    items: &'i [Item],
    /// By place: the places of what it needs, and why.
    needs: Vec<Vec<(usize, Why)>>,
    /// Places, unit by unit.
    units: Vec<Vec<usize>>,
    /// By place: its unit.
    unit_of: Vec<usize>,
    /// The units of each family, of each component, and each unit: stretches of units, one in the other.
    levels: [Vec<Range<usize>>; 3],
}

/// What is tried together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Components that have to do with the same rows.
    Family,
    /// Units that have to do with one another.
    Component,
    /// Changes that need one another.
    Unit,
}

/// Why a change needs another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It makes its row refer to the other's.
    Refers,
    /// It deletes the row that the other's no longer refers to.
    Left,
    /// It takes a unique value that the other gives up.
    Unique,
}

/// What a change makes of the row that is stored.
#[derive(Clone, Debug)]
pub(super) struct Images {
    pub(super) before: Option<Row>,
    pub(super) after: Option<Row>,
}

impl<'i> Tangle<'i> {
    /// Looks at changes and what each makes of the stored row.
    pub(super) fn new(plan: &Plan, items: &'i [Item], images: &[Images]) -> Tangle<'i> {
        let needs = needs(plan, items, images);
        let edges = || needs.iter().enumerate().flat_map(|(place, out)| out.iter().map(move |(to, _)| (place, *to)));
        let component_of = graph::components(items.len(), edges());
        let family_of = graph::components(items.len(), edges().chain(relatives(plan, items, images)));
        let mut units = graph::circles(&needs);
        // The sort is stable: behind what they need they stay.
        units.sort_by_key(|unit| (family_of[unit[0]], component_of[unit[0]]));
        let mut unit_of = vec![0; items.len()];
        for (number, unit) in units.iter_mut().enumerate() {
            unit.sort_unstable();
            for place in unit.iter() {
                unit_of[*place] = number;
            }
        }
        let levels = [
            stretches(&units, |unit| family_of[unit[0]]),
            stretches(&units, |unit| component_of[unit[0]]),
            (0..units.len()).map(|unit| unit..unit + 1).collect(),
        ];
        Tangle { items, needs, units, unit_of, levels }
    }

    /// The stretches of a level that have a change of which this is so.
    pub(super) fn stretches_with(&self, level: Level, is_wanted: impl Fn(&Item) -> bool) -> Vec<Range<usize>> {
        let wanted = |units: &&Range<usize>| self.places(units).any(|place| is_wanted(&self.items[place]));
        self.levels[level as usize].iter().filter(wanted).cloned().collect()
    }

    /// What a stretch of a level consists of, and its level; `None`: it is a unit.
    pub(super) fn parts(&self, level: Level, stretch: &Range<usize>) -> Option<(Level, Vec<Range<usize>>)> {
        let below = match level {
            Level::Family => Level::Component,
            Level::Component => Level::Unit,
            Level::Unit => return None,
        };
        let parts = &self.levels[below as usize];
        let first = parts.partition_point(|part| part.start < stretch.start);
        Some((below, parts[first..].iter().take_while(|part| part.end <= stretch.end).cloned().collect()))
    }

    /// How many changes these units have.
    pub(super) fn len(&self, units: &Range<usize>) -> usize {
        self.units[units.clone()].iter().map(Vec::len).sum()
    }

    /// The changes of these stretches of one level (of units, those of one component) in their order; for each, in how many steps it
    /// has to be made, so that all can be made together.
    pub(super) fn changes(&self, stretches: &[Range<usize>]) -> Vec<(&'i Item, Steps)> {
        let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return Vec::new() };
        // Nothing in between two components is needed by either.
        let together = first.start..last.end;
        let places: Vec<usize> = stretches.iter().flat_map(|units| self.places(units)).collect();
        let mut steps: HashMap<usize, Steps> = HashMap::new();
        let mut at_least = |place: usize, least: Steps| {
            let steps = steps.entry(place).or_insert(least);
            *steps = least.max(*steps);
        };
        for place in &places {
            if self.units[self.unit_of[*place]].len() > 1 {
                at_least(*place, Steps::Two);
            }
            for (needed, why) in
                self.needs[*place].iter().filter(|(needed, _)| together.contains(&self.unit_of[*needed]))
            {
                let (this, other) = (&self.items[*place], &self.items[*needed]);
                match why {
                    Why::Unique => [*place, *needed].iter().for_each(|place| at_least(*place, Steps::TwoFree)),
                    // Rows are made tables forwards, deletions backwards.
                    Why::Refers if this.table < other.table => at_least(*place, Steps::Two),
                    Why::Left if other.is_delete() && other.table < this.table => at_least(*needed, Steps::Two),
                    Why::Refers | Why::Left => {}
                }
            }
        }
        let steps = |place: usize| steps.get(&place).copied().unwrap_or(Steps::One);
        places.into_iter().map(|place| (&self.items[place], steps(place))).collect()
    }

    fn places(&self, units: &Range<usize>) -> impl Iterator<Item = usize> {
        self.units[units.clone()].iter().flatten().copied()
    }
}

/// Stretches of units of which this is the same.
fn stretches(units: &[Vec<usize>], of: impl Fn(&Vec<usize>) -> usize) -> Vec<Range<usize>> {
    let mut stretches = Vec::new();
    let mut start = 0;
    for chunk in units.chunk_by(|one, next| of(one) == of(next)) {
        stretches.push(start..start + chunk.len());
        start += chunk.len();
    }
    stretches
}

/// A value that rows of a table have in some columns.
type Spot = (usize, Vec<usize>, Vec<u8>);

/// By place, what each change needs.
fn needs(plan: &Plan, items: &[Item], images: &[Images]) -> Vec<Vec<(usize, Why)>> {
    let (made, gone, freed) = changed_spots(plan, items, images);
    let mut needs: Vec<Vec<(usize, Why)>> = vec![Vec::new(); items.len()];
    for (place, (item, images)) in items.iter().zip(images).enumerate() {
        let table = &plan.tables[item.table];
        let (old, new) = (images.before.as_ref(), images.after.as_ref());
        for reference in &table.table.references {
            let parent_types = &plan.tables[reference.table].types;
            let types: Vec<Type> = reference.target.iter().map(|target| parent_types[*target]).collect();
            let spot = |row: Option<&Row>| -> Option<Spot> {
                Some((reference.table, reference.target.clone(), value_bytes(&types, row?, &reference.columns)?))
            };
            let (before, after) = (spot(old), spot(new));
            if let Some(parent) = after.as_ref().and_then(|spot| made.get(spot)).filter(|parent| **parent != place) {
                needs[place].push((*parent, Why::Refers));
            }
            let parent = before.as_ref().filter(|_| before != after).and_then(|spot| gone.get(spot));
            if let Some(parent) = parent.filter(|parent| **parent != place) {
                needs[*parent].push((place, Why::Left));
            }
        }
        for columns in &table.table.unique {
            let taken = changed(&table.types, columns, new, old).map(|bytes| (item.table, columns.clone(), bytes));
            if let Some(holder) = taken.and_then(|spot| freed.get(&spot)) {
                needs[place].push((*holder, Why::Unique));
            }
        }
    }
    needs
}

/// Pairs of changes that have to do with the same row: they refer to it, did, or are changes of it.
fn relatives(plan: &Plan, items: &[Item], images: &[Images]) -> Vec<(usize, usize)> {
    let targets = targets(plan);
    let mut first: Spots = Spots::new();
    let mut pairs = Vec::new();
    for (place, (item, images)) in items.iter().zip(images).enumerate() {
        let table = &plan.tables[item.table];
        for row in [&images.before, &images.after].into_iter().flatten() {
            let own = targets[item.table].iter().map(|columns| (item.table, columns, columns));
            let others = table.table.references.iter();
            let others = others.map(|reference| (reference.table, &reference.target, &reference.columns));
            for (of, target, columns) in own.chain(others) {
                let types: Vec<Type> = target.iter().map(|target| plan.tables[of].types[*target]).collect();
                if let Some(bytes) = value_bytes(&types, row, columns) {
                    pairs.push((*first.entry((of, target.clone(), bytes)).or_insert(place), place));
                }
            }
        }
    }
    pairs
}

type Spots = HashMap<Spot, usize>;

/// Which changes make values that rows refer to, which take them away, and which give up unique values.
fn changed_spots(plan: &Plan, items: &[Item], images: &[Images]) -> (Spots, Spots, Spots) {
    let (mut made, mut gone, mut freed) = (Spots::new(), Spots::new(), Spots::new());
    let targets = targets(plan);
    for (place, (item, images)) in items.iter().zip(images).enumerate() {
        let table = &plan.tables[item.table];
        let (old, new) = (images.before.as_ref(), images.after.as_ref());
        let spot = |columns: &Vec<usize>, one, other| {
            changed(&table.types, columns, one, other).map(|bytes| (item.table, columns.clone(), bytes))
        };
        for columns in &targets[item.table] {
            made.extend(spot(columns, new, old).map(|spot| (spot, place)));
            gone.extend(spot(columns, old, new).map(|spot| (spot, place)));
        }
        for columns in &table.table.unique {
            freed.extend(spot(columns, old, new).map(|spot| (spot, place)));
        }
    }
    (made, gone, freed)
}

/// The bytes that these columns have in `one`, unless they have the same in `other`, or a NULL.
fn changed(types: &[Type], columns: &[usize], one: Option<&Row>, other: Option<&Row>) -> Option<Vec<u8>> {
    let types: Vec<Type> = columns.iter().map(|column| types[*column]).collect();
    let bytes = |row: Option<&Row>| row.and_then(|row| value_bytes(&types, row, columns));
    let one = bytes(one)?;
    (bytes(other).as_ref() != Some(&one)).then_some(one)
}

/// By table: the columns by which rows of other tables refer to its rows.
fn targets(plan: &Plan) -> Vec<Vec<Vec<usize>>> {
    let mut targets: Vec<Vec<Vec<usize>>> = vec![Vec::new(); plan.tables.len()];
    for reference in plan.tables.iter().flat_map(|table| &table.table.references) {
        if let Some(known) = targets.get_mut(reference.table)
            && !known.contains(&reference.target)
        {
            known.push(reference.target.clone());
        }
    }
    targets
}
