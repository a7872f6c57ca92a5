//! Student's t. For whole degrees of freedom its distribution is a finite sum (Abramowitz and Stegun, *Handbook of Mathematical Functions*,
//! 26.7.3 and 26.7.4).

/// The value that |t| exceeds with this chance.
pub(crate) fn two_sided(chance: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while 1.0 - within(high, freedom) > chance && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if 1.0 - within(middle, freedom) > chance {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The chance that |t| is at most so much.
fn within(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let (mut sum, mut term) = (0.0, if is_odd { cos } else { 1.0 });
    let first = if is_odd { 3 } else { 2 };
    for number in (first..=freedom).step_by(2) {
        sum += term;
        term *= cos * cos * (number - 1) as f64 / number as f64;
    }
    if is_odd { (angle + sin * sum) * std::f64::consts::FRAC_2_PI } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the tables of the same book (26.10).
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (chance, freedom, expected) in [
            (0.05, 1, 12.706),
            (0.05, 2, 4.303),
            (0.05, 3, 3.182),
            (0.05, 8, 2.306),
            (0.05, 30, 2.042),
            (0.01, 4, 4.604),
            (0.01, 5, 4.032),
            (0.001, 6, 5.959),
            (0.05, 1000, 1.962),
        ] {
            let found = two_sided(chance, freedom);
            assert!((found - expected).abs() < 6e-4, "{chance} {freedom}: {found}, not {expected}");
        }
    }
}
