use super::*;
use crate::{Live, contract};

const RANGE: Range = Range::Whole { least: 1, most: 100 };

fn knob(name: &'static str, live: &Live<u64>) -> Knob {
    let (read, write) = (live.clone(), live.clone());
    let set: Set = Box::new(move |value| {
        write.put(value.whole());
        Ok(())
    });
    let read: Read = Box::new(move || Value::Whole(*read.now()));
    Knob { name, effect: "", default: Value::Whole(5), range: RANGE, is_option: true, read, set }
}

fn wanted(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// `a.low` is never above `a.high`.
fn two() -> (Knobs, Live<u64>, Live<u64>) {
    let (low, high) = (Live::new(5), Live::new(50));
    let (l, h) = (low.clone(), high.clone());
    let rule = move || if *l.now() <= *h.now() { Ok(()) } else { Err("a.low is above a.high".to_owned()) };
    (Knobs::new(vec![knob("a.low", &low), knob("a.high", &high)]).with_rule(Box::new(rule)), low, high)
}

#[test]
fn all_that_is_named_is_set_or_nothing() {
    let (knobs, low, high) = two();
    let both = |low: &Live<u64>, high: &Live<u64>| (*low.now(), *high.now());
    let changes = knobs.change(&wanted(&[("a.low", "60"), ("a.high", "70")])).expect("they go together");
    assert_eq!(
        changes.iter().map(|change| (change.name, change.to.whole())).collect::<Vec<_>>(),
        [("a.low", 60), ("a.high", 70)]
    );
    for (pairs, words) in [
        (&[("a.low", "10"), ("a.high", "101")][..], "a.high is \"101\", expected 1 to 100"),
        (&[("a.low", "10"), ("a.high", "9")], "a.low is above a.high"),
        (&[("a.high", "1M")], "a.high is \"1M\", expected 1 to 100, in digits alone"),
        (&[("a.low", "10"), ("a.hihg", "9")], "there is no knob \"a.hihg\": did you mean a.high?"),
        (&[("high", "10")], "there is no knob \"high\": did you mean a.high?"),
        (&[("weather", "10")], "there is no knob \"weather\"; `headwater tune` lists them"),
        (&[("a.low", "10"), ("a.low", "11")], "a.low is set twice"),
    ] {
        let said = knobs.change(&wanted(pairs)).expect_err("refused").to_string();
        assert!(said.contains(words), "{said}");
        assert_eq!(both(&low, &high), (60, 70), "{said}");
    }
    assert_eq!(knobs.change(&wanted(&[("a.low", "60")])).expect("as it is"), []);
    assert_eq!(knobs.shown()[0].at_start, Value::Whole(5));
}

#[test]
fn a_number_with_a_unit_is_told_which_one_is_meant() {
    let live = Live::new(5);
    for (name, text, words) in [
        ("pool.memory_bytes", "1M", "\"1M\", expected 1 to 100 bytes, in digits alone, without a unit"),
        ("server.idle_ms_max", "5s", "\"5s\", expected 1 to 100 milliseconds, in digits alone, without a unit"),
        ("gateway.cursor.idle_s", "1_0", "\"1_0\", expected 1 to 100 seconds, in digits alone, without a unit"),
        ("gateway.reader_bytes_per_s_min", "1k", "expected 1 to 100 bytes, in digits alone, without a unit"),
        ("pool.skips", "-1", "\"-1\", expected 1 to 100, in digits alone"),
        ("pool.memory_bytes", "101", "\"101\", expected 1 to 100"),
        ("pool.memory_bytes", "99999999999999999999", "expected 1 to 100"),
        ("pool.memory_bytes", "many", "\"many\", expected 1 to 100"),
    ] {
        let said =
            Knobs::new(vec![knob(name, &live)]).change(&wanted(&[(name, text)])).expect_err("refused").to_string();
        assert!(said.ends_with(words), "{said}");
    }
}

#[test]
fn a_setter_that_refuses_puts_back_what_was_set_before_it() {
    let (low, high) = (Live::new(5), Live::new(50));
    let stubborn = Knob { set: Box::new(|_| Err("it is held".to_owned())), ..knob("a.high", &high) };
    let knobs = Knobs::new(vec![knob("a.low", &low), stubborn]);
    let fault = knobs.change(&wanted(&[("a.low", "7"), ("a.high", "8")])).expect_err("refused");
    assert_eq!((fault.to_string().as_str(), *low.now()), ("a.high can't be 8 now: it is held", 5));
}

#[test]
fn what_can_not_be_put_back_is_told() {
    let (low, high) = (Live::new(5), Live::new(50));
    let grown = low.clone();
    // As a pool that has been filled meanwhile.
    let only_up: Set = Box::new(move |value| {
        if value.whole() < *grown.now() {
            return Err("it is in use".to_owned());
        }
        grown.put(value.whole());
        Ok(())
    });
    let stubborn = Knob { set: Box::new(|_| Err("it is held".to_owned())), ..knob("a.high", &high) };
    let knobs = Knobs::new(vec![Knob { set: only_up, ..knob("a.low", &low) }, stubborn]);
    let fault = knobs.change(&wanted(&[("a.low", "7"), ("a.high", "8")])).expect_err("refused");
    assert_eq!(
        fault.to_string(),
        "a.high can't be 8 now: it is held; what was set before it could not be put back: a.low is 7"
    );
}

#[test]
fn the_contract_finds_a_knob_that_does_not_do_what_it_says() {
    let (knobs, ..) = two();
    contract::check(&knobs, |name| if name == "a.low" { vec![("a.high", "100")] } else { vec![("a.low", "1")] })
        .expect("sound");
    let live = Live::new(5);
    let sound = || knob("a.b", &live);
    let deaf = Knob { set: Box::new(|_| Ok(())), ..sound() };
    let elsewhere = Knob { read: Box::new(|| Value::Whole(5)), ..sound() };
    let narrow = Knob { set: Box::new(|_| Err("no".to_owned())), ..sound() };
    let astray = Knob { default: Value::Whole(101), ..sound() };
    for (knob, words) in [
        (deaf, "a.b was set to 1 and is 5"),
        (elsewhere, "a.b was set to 1 and is 5"),
        (narrow, "a.b can't be 1"),
        (astray, "its default is 101"),
    ] {
        let said = contract::check(&Knobs::new(vec![knob]), |_| Vec::new()).expect_err(words);
        assert!(said.contains(words), "{said}");
        live.put(5);
    }
}

#[test]
fn knobs_are_told_to_programs() {
    let shown = serde_json::to_value(two().0.shown()).expect("JSON");
    assert_eq!(shown[0]["name"], "a.low");
    assert_eq!((&shown[1]["value"], &shown[1]["range"]), (&serde_json::json!(50), &serde_json::json!("1 to 100")));
}
