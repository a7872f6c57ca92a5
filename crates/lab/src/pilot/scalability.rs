//! The universal scalability law (Gunther, *Guerrilla Capacity Planning*, 2007): throughput against workers, where a part of the work is
//! done by one at a time, and each worker costs all others a little.
//!
//! ```text
//! X(w) = a w / (1 + s (w - 1) + k w (w - 1))
//! ```
//!
//! `w / X(w)` is a sum of three terms in which the unknowns stand alone, so it is fitted by linear least squares; each point weighs as one that
//! is wrong by the same part of itself. Neither `s` nor `k` may be negative: a term that would be is left out.

/// The terms of `w / X(w)` by their unknowns: alone, contention, coherence.
const TERMS: usize = 3;

/// A curve through throughputs of several numbers of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalability {
    /// Operations a second of one worker.
    pub alone: f64,
    /// The part that is done by one at a time.
    pub contention: f64,
    /// What each pair of workers costs.
    pub coherence: f64,
}

impl Scalability {
    /// Through points (workers, operations a second); none where they all have the same number of workers.
    pub fn fit(points: &[(f64, f64)]) -> Option<Scalability> {
        let points: Vec<_> = points.iter().copied().filter(|(workers, rate)| *workers >= 1.0 && *rate > 0.0).collect();
        let mut counts: Vec<f64> = points.iter().map(|(workers, _)| *workers).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        if counts.len() < 2 {
            return None;
        }
        let subsets = [vec![0, 1, 2], vec![0, 1], vec![0, 2], vec![0]];
        let possible = subsets.into_iter().filter(|terms| terms.len() <= counts.len());
        let fits = possible.filter_map(|terms| Self::with(&terms, &points));
        fits.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(fit, _)| fit)
    }

    /// With these terms alone, and how far it is off; none where one would be negative.
    fn with(terms: &[usize], points: &[(f64, f64)]) -> Option<(Scalability, f64)> {
        let unknowns = terms.len();
        let mut sums = vec![vec![0.0; unknowns + 1]; unknowns];
        for &(workers, rate) in points {
            let weight = (rate / workers).powi(2);
            for (row, &of_row) in terms.iter().enumerate() {
                let left = weight * parts(workers)[of_row];
                for (column, &of_column) in terms.iter().enumerate() {
                    sums[row][column] += left * parts(workers)[of_column];
                }
                sums[row][unknowns] += left * workers / rate;
            }
        }
        let solved = solution(sums)?;
        let mut all = [0.0; TERMS];
        terms.iter().zip(solved).for_each(|(&term, value)| all[term] = value);
        let [inverse, contention, coherence] = all;
        if inverse <= 0.0 || contention < 0.0 || coherence < 0.0 {
            return None;
        }
        let fit =
            Scalability { alone: 1.0 / inverse, contention: contention / inverse, coherence: coherence / inverse };
        let off = points.iter().map(|&(workers, rate)| (rate / fit.rate(workers) - 1.0).powi(2)).sum();
        Some((fit, off))
    }

    /// Operations a second with so many workers.
    pub fn rate(&self, workers: f64) -> f64 {
        let Scalability { alone, contention, coherence } = self;
        alone * workers / (1.0 + contention * (workers - 1.0) + coherence * workers * (workers - 1.0))
    }

    /// The number of workers with the most operations a second; none: more are always better.
    pub fn peak(&self) -> Option<f64> {
        (self.coherence > 0.0).then(|| ((1.0 - self.contention).max(0.0) / self.coherence).sqrt().max(1.0))
    }
}

fn parts(workers: f64) -> [f64; TERMS] {
    [1.0, workers - 1.0, workers * (workers - 1.0)]
}

/// Of linear equations, a row each with its right side last: Gauss's elimination, the largest pivot first; none: there are many solutions.
fn solution(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let count = rows.len();
    for column in 0..count {
        let pivot = (column..count).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let lead = rows[column].clone();
        if lead[column].abs() < 1e-12 {
            return None;
        }
        for row in (0..count).filter(|&row| row != column) {
            let factor = rows[row][column] / lead[column];
            rows[row].iter_mut().zip(&lead).for_each(|(value, above)| *value -= factor * above);
        }
    }
    Some(rows.iter().enumerate().map(|(place, row)| row[count] / row[place]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-6 * expected.abs().max(1.0)
    }

    #[test]
    fn what_follows_the_law_is_found_again() {
        let law = Scalability { alone: 260.0, contention: 0.1, coherence: 0.02 };
        let points: Vec<_> = [1.0, 2.0, 4.0, 8.0, 16.0].map(|workers| (workers, law.rate(workers))).to_vec();
        let found = Scalability::fit(&points).expect("a fit");
        assert!(near(found.alone, 260.0) && near(found.contention, 0.1) && near(found.coherence, 0.02), "{found:?}");
        assert!(near(found.peak().expect("a peak"), (0.9f64 / 0.02).sqrt()));
        assert!(near(found.rate(32.0), law.rate(32.0)), "beyond what was measured too");
    }

    #[test]
    fn no_part_is_negative() {
        // More than twice as much with two: no contention explains that.
        let found = Scalability::fit(&[(1.0, 100.0), (2.0, 210.0), (4.0, 390.0)]).expect("a fit");
        assert!(found.contention >= 0.0 && found.coherence >= 0.0, "{found:?}");
        let straight = Scalability::fit(&[(2.0, 200.0), (4.0, 410.0)]).expect("a fit");
        assert!(straight.peak().is_none_or(|peak| peak > 4.0), "{straight:?}");
    }

    #[test]
    fn one_number_of_workers_is_no_curve() {
        assert_eq!(Scalability::fit(&[(4.0, 100.0), (4.0, 101.0)]), None);
        assert_eq!(Scalability::fit(&[]), None);
    }

    #[test]
    fn two_numbers_have_a_curve_with_one_kind_of_loss() {
        let found = Scalability::fit(&[(2.0, 350.0), (8.0, 300.0)]).expect("a fit");
        assert!(near(found.rate(2.0), 350.0) && near(found.rate(8.0), 300.0), "{found:?}");
    }
}
