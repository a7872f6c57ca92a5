//! What every knob does: the test of all of them, whichever part of the program they belong to.

use crate::knobs::Knobs;

/// Sets every knob to its bounds and reads them back, and sees what is beyond them refused; afterwards they are as before. `before`: what has to be
/// set before a knob can have all of its values, by its name.
///
/// The error says which knob does not do what it says: one whose default or present value is out of its range, that refuses a bound, that is another
/// value after it was set (a setter that does nothing, a reader of something else), or that takes what is beyond.
pub fn check(knobs: &Knobs, before: impl Fn(&str) -> Vec<(&'static str, &'static str)>) -> Result<(), String> {
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let all = || knobs.shown().into_iter().map(|shown| (shown.name, shown.value.to_string())).collect::<Vec<_>>();
    let at_first = all();
    for (name, range, default) in knobs.ranges() {
        let value =
            |name| all().into_iter().find(|(other, _)| *other == name).map(|(_, value)| value).unwrap_or_default();
        if !range.has(default) {
            return Err(format!("{name}: its default is {default}, out of its range: {range}"));
        }
        if range.read(&value(name)).is_none() {
            return Err(format!("{name} is {}, out of its range: {range}", value(name)));
        }
        knobs.change(&owned(&before(name))).map_err(|fault| format!("{name}: what comes before it: {fault}"))?;
        for bound in range.bounds() {
            knobs.change(&owned(&[(name, &bound)])).map_err(|fault| format!("{name} can't be {bound}: {fault}"))?;
            if value(name) != bound {
                return Err(format!("{name} was set to {bound} and is {}", value(name)));
            }
        }
        let last = value(name);
        for beyond in range.beyond() {
            if knobs.change(&owned(&[(name, &beyond)])).is_ok() || value(name) != last {
                return Err(format!("{name} takes {beyond:?}, beyond its range: {range}"));
            }
        }
        let back: Vec<(&str, &str)> = at_first.iter().map(|(name, value)| (*name, value.as_str())).collect();
        knobs.restore(&owned(&back));
        if all() != at_first {
            return Err(format!("{name}: not all is as before"));
        }
    }
    Ok(())
}
