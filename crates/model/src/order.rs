//! The order of tables: parents before the tables that refer to them.
//!
//! Ties keep the order that is there, and so do tables that refer to each other in a circle, which stay together; but a table always
//! comes after the one from which it takes its partition. A table's references to itself count for nothing. Sorting what is sorted
//! changes nothing.

use crate::Table;

/// Sorts tables, and lets their references follow.
pub(crate) fn sort(tables: &mut Vec<Table>) {
    let parents: Vec<Vec<usize>> = tables
        .iter()
        .enumerate()
        .map(|(place, table)| {
            table
                .references
                .iter()
                .map(|r| r.table)
                .filter(|parent| *parent != place && *parent < tables.len())
                .collect()
        })
        .collect();
    let through: Vec<Option<usize>> = tables.iter().map(|table| table.through().map(|r| r.table)).collect();
    let order = parents_first(&parents, &through);
    let mut new_places = vec![0; tables.len()];
    for (new, &old) in order.iter().enumerate() {
        new_places[old] = new;
    }
    let mut unsorted: Vec<Option<Table>> = std::mem::take(tables).into_iter().map(Some).collect();
    tables.extend(order.iter().filter_map(|&old| unsorted[old].take()));
    for reference in tables.iter_mut().flat_map(|table| &mut table.references) {
        reference.table = new_places.get(reference.table).copied().unwrap_or(reference.table);
    }
}

/// The places in their new order. `through`: whose partition a table takes.
fn parents_first(parents: &[Vec<usize>], through: &[Option<usize>]) -> Vec<usize> {
    let circles = circles(parents);
    let mut order = Vec::with_capacity(parents.len());
    let mut placed = vec![false; parents.len()];
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    for (place, &circle) in circles.iter().enumerate() {
        needs[circle].extend(parents[place].iter().filter(|&&parent| circles[parent] != circle));
    }
    let is_ready = |circle: usize, placed: &[bool]| needs[circle].iter().all(|&parent| placed[parent]);
    // A circle stands at its first member's place; the others go with it.
    while let Some(next) = (0..parents.len()).find(|&p| !placed[p] && circles[p] == p && is_ready(p, &placed)) {
        let mut members: Vec<usize> = (next..parents.len()).filter(|&member| circles[member] == next).collect();
        members.sort_by_key(|&member| levels(through, member));
        for member in members {
            placed[member] = true;
            order.push(member);
        }
    }
    order
}

/// How many tables stand above one from which it takes its partition.
fn levels(through: &[Option<usize>], place: usize) -> usize {
    let above = std::iter::successors(through[place], |&parent| through.get(parent).copied().flatten());
    above.take(through.len()).count()
}

/// For each table the first of those that it refers to, directly or not, and that refer to it; itself where there are none.
fn circles(parents: &[Vec<usize>]) -> Vec<usize> {
    let ancestors: Vec<Vec<bool>> = (0..parents.len()).map(|place| reachable(parents, place)).collect();
    (0..parents.len()).map(|a| (0..a).find(|&b| ancestors[a][b] && ancestors[b][a]).unwrap_or(a)).collect()
}

fn reachable(parents: &[Vec<usize>], from: usize) -> Vec<bool> {
    let mut seen = vec![false; parents.len()];
    let mut open = vec![from];
    while let Some(place) = open.pop() {
        for &parent in &parents[place] {
            if !seen[parent] {
                seen[parent] = true;
                open.push(parent);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::parents_first;

    fn order(parents: &[&[usize]]) -> Vec<usize> {
        let parents: Vec<_> = parents.iter().map(|parents| parents.to_vec()).collect();
        parents_first(&parents, &vec![None; parents.len()])
    }

    #[test]
    fn whoever_takes_a_partition_comes_after_its_giver_in_a_circle_too() {
        let parents = [vec![1], vec![2], vec![0]];
        assert_eq!(parents_first(&parents, &[Some(1), Some(2), None]), [2, 1, 0]);
        assert_eq!(parents_first(&parents, &[Some(1), Some(0), None]), [2, 0, 1], "a circle, refused elsewhere, ends");
    }

    #[test]
    fn parents_come_first_and_ties_keep_their_order() {
        assert_eq!(order(&[&[], &[], &[]]), [0, 1, 2]);
        assert_eq!(order(&[&[2], &[], &[1]]), [1, 2, 0]);
        assert_eq!(order(&[&[1], &[2], &[3], &[]]), [3, 2, 1, 0]);
    }

    #[test]
    fn circles_stay_together_in_their_order_after_their_parents() {
        assert_eq!(order(&[&[1], &[2], &[0]]), [0, 1, 2]);
        assert_eq!(order(&[&[1], &[2], &[1]]), [1, 2, 0], "a child of a circle comes after it");
        assert_eq!(order(&[&[2, 3], &[], &[0], &[]]), [1, 3, 0, 2], "a circle's parent comes before it");
    }

    #[test]
    fn a_thousand_tables_in_the_worst_order_are_sorted() {
        let chain: Vec<Vec<usize>> =
            (0..1000).map(|place| if place < 999 { vec![place + 1] } else { vec![] }).collect();
        assert_eq!(parents_first(&chain, &vec![None; 1000]), (0..1000).rev().collect::<Vec<_>>());
    }
}
