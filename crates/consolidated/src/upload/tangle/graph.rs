//! Circles and components of a graph whose edges say what each place needs.

/// Edges, by the place they go out from; what they mean does not matter here.
type Edges<E> = [Vec<(usize, E)>];

/// The strongly connected places (Tarjan 1972, without recursion), each behind those that it needs.
pub(super) fn circles<E>(edges: &Edges<E>) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut seen_at = vec![UNSEEN; edges.len()];
    let mut lowest = vec![UNSEEN; edges.len()];
    let mut is_open = vec![false; edges.len()];
    let (mut open, mut path, mut circles, mut clock) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for root in 0..edges.len() {
        if seen_at[root] == UNSEEN {
            path.push((root, 0));
        }
        while let Some((place, edge)) = path.pop() {
            if edge == 0 {
                (seen_at[place], lowest[place]) = (clock, clock);
                clock += 1;
                open.push(place);
                is_open[place] = true;
            } else if let Some((needed, _)) = edges[place].get(edge - 1) {
                // Back from it, or it had been seen.
                if is_open[*needed] {
                    lowest[place] = lowest[place].min(lowest[*needed]);
                }
            }
            if let Some((needed, _)) = edges[place].get(edge) {
                path.push((place, edge + 1));
                if seen_at[*needed] == UNSEEN {
                    path.push((*needed, 0));
                }
            } else if lowest[place] == seen_at[place] {
                let start = open.iter().rposition(|other| *other == place).unwrap_or(0);
                let circle = open.split_off(start);
                for member in &circle {
                    is_open[*member] = false;
                }
                circles.push(circle);
            }
        }
    }
    circles
}

/// By place, of so many: the first place of its component, whichever way the edges go.
pub(super) fn components(places: usize, edges: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); places];
    for (place, other) in edges {
        neighbours[place].push(other);
        neighbours[other].push(place);
    }
    let mut component = vec![usize::MAX; places];
    let mut next = Vec::new();
    for first in 0..places {
        if component[first] != usize::MAX {
            continue;
        }
        next.push(first);
        while let Some(place) = next.pop() {
            if component[place] == usize::MAX {
                component[place] = first;
                next.extend(&neighbours[place]);
            }
        }
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(of: &[&[usize]]) -> Vec<Vec<(usize, ())>> {
        of.iter().map(|out| out.iter().map(|to| (*to, ())).collect()).collect()
    }

    #[test]
    fn circles_stand_behind_what_they_need() {
        let found = circles(&edges(&[&[1], &[2], &[1, 3], &[], &[0, 4]]));
        let sorted: Vec<Vec<usize>> = found
            .into_iter()
            .map(|mut circle| {
                circle.sort_unstable();
                circle
            })
            .collect();
        assert_eq!(sorted, [vec![3], vec![1, 2], vec![0], vec![4]]);
    }

    #[test]
    fn a_long_chain_needs_no_deep_stack() {
        let length = 300_000;
        let chain: Vec<Vec<(usize, ())>> =
            (0..length).map(|place| if place + 1 < length { vec![(place + 1, ())] } else { vec![] }).collect();
        assert_eq!(circles(&chain), (0..length).rev().map(|place| vec![place]).collect::<Vec<_>>());
        assert_eq!(components(length, (1..length).map(|place| (place - 1, place))), vec![0; length]);
    }

    #[test]
    fn components_ignore_the_direction() {
        assert_eq!(components(5, [(0, 2), (3, 2), (3, 4)].into_iter()), [0, 1, 0, 0, 0]);
    }
}
