use proptest::prelude::*;

use super::*;

/// The records of each message, for records of so many bytes; the last is what was left at the end.
fn messages(knobs: &Knobs, records: impl IntoIterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut packer = Packer::new(knobs);
    let (mut messages, mut message) = (Vec::new(), Vec::new());
    for record in records {
        message.push(record);
        if packer.add(message.iter().sum()) {
            messages.push(std::mem::take(&mut message));
        }
    }
    if !message.is_empty() {
        messages.push(message);
    }
    messages
}

/// How many records each message has: `1 2 4`.
fn trace(packing: Packing, records: usize, bytes: usize) -> String {
    let all = messages(&Knobs::new(packing), std::iter::repeat_n(bytes, records));
    all.iter().map(|message| message.len().to_string()).collect::<Vec<_>>().join(" ")
}

/// OpenEdge's own defaults, old and new.
const OLD: Packing = Packing { message_size: 1_024, records: Records::Exactly(16), fill: 0, ..Packing::AUTOMATIC };
const NEW: Packing =
    Packing { message_size: 8_192, records: Records::Exactly(64), fill: 100, delay_first: true, ..Packing::AUTOMATIC };

#[test]
fn golden_messages() {
    let automatic = Packing::AUTOMATIC;
    let one = Packing { records: Records::Exactly(1), ..automatic };
    for (what, packing, records, bytes, expected) in [
        ("automatic: soon, then full", automatic, 2_000, 100, "1 2 4 8 16 32 64 128 256 512 656 321"),
        ("automatic, large records", automatic, 6, 40_000, "1 2 2 1"),
        ("automatic, records as large as a message", automatic, 3, 65_536, "1 1 1"),
        ("full from the first", Packing::FULL, 1_500, 100, "656 656 188"),
        ("a record a message", one, 4, 100, "1 1 1 1"),
        ("OpenEdge's old defaults: the first alone, then by number", OLD, 40, 50, "1 16 16 7"),
        ("fill 0 does not let a message grow beyond its size", OLD, 30, 200, "1 6 6 6 6 5"),
        ("OpenEdge's new defaults: whatever comes first, number", NEW, 130, 50, "64 64 2"),
        ("or size", NEW, 100, 200, "41 41 18"),
        ("half full", Packing { fill: 50, ..NEW }, 60, 200, "21 21 18"),
        ("the first alone", Packing { delay_first: false, ..NEW }, 130, 50, "1 64 64 1"),
    ] {
        assert_eq!(trace(packing, records, bytes), expected, "{what}");
    }
}

#[test]
fn automatic_messages_are_half_of_the_window() {
    let sizes = |packing, window, records| {
        let knobs = Knobs::new(packing);
        let mut packer = Packer::new(&knobs).for_window(window);
        let (mut sizes, mut bytes) = (Vec::new(), 0);
        for record in 0..records {
            if record == records / 2 {
                // Set anew, they keep to the window still.
                knobs.set(packing).expect("within the ranges");
            }
            bytes += 100;
            if packer.add(bytes) {
                sizes.push(std::mem::take(&mut bytes));
            }
        }
        sizes
    };
    assert_eq!(sizes(Packing::AUTOMATIC, 2_000, 40), [100, 200, 400, 800, 1_000, 1_000]);
    assert_eq!(
        sizes(Packing::AUTOMATIC, 0, 13),
        [100, 200, 400, 400],
        "as large as a message may be set to be, at least"
    );
    assert_eq!(sizes(Packing::AUTOMATIC, u64::MAX, 1_700).last(), Some(&65_600));
    assert_eq!(sizes(Packing { fill: 50, ..OLD }, 2_000, 20), [100, 600, 600, 600], "what is set stays as it is");
}

#[test]
fn what_had_to_go_early_lets_the_next_begin_small() {
    let mut packer = Packer::new(&Knobs::default());
    assert!(packer.add(100));
    assert!(!packer.add(100));
    packer.sent();
    // One went: two go next, whatever had been reached before.
    assert!(!packer.add(100) && packer.add(200));
    assert!(!packer.add(100) && !packer.add(200) && !packer.add(300) && packer.add(400));
}

#[test]
fn a_knob_that_is_turned_counts_from_the_next_message_on() {
    let knobs = Knobs::new(Packing { records: Records::Exactly(3), delay_first: true, ..Packing::AUTOMATIC });
    let mut packer = Packer::new(&knobs);
    assert!(!packer.add(10));
    let two = Packing { records: Records::Exactly(2), idle_wait: Duration::from_millis(5), ..knobs.packing() };
    knobs.clone().set(two).expect("within the ranges");
    assert!(!packer.add(20), "the message that has begun goes as it was to");
    assert!(packer.add(30));
    assert!(!packer.add(10) && packer.add(20), "and the next by the knobs as they stand now");
    assert_eq!(packer.idle_wait(), Duration::from_millis(5));
    assert!(Packer::new(&knobs).goes_after == 2, "others too");
}

#[test]
fn other_work_is_looked_for_after_as_many_records_as_the_priority_says() {
    let looks = |priority| {
        let mut packer = Packer::new(&Knobs::new(Packing { priority, ..Packing::AUTOMATIC }));
        (0..7).map(|_| u8::from(packer.looks()).to_string()).collect::<String>()
    };
    assert_eq!((looks(0), looks(1), looks(3)), ("1111111".into(), "0101010".into(), "0001000".into()));
}

#[test]
fn knobs_stay_within_their_ranges() {
    let knobs = Knobs::within(Packing::AUTOMATIC, 65_536);
    let usual = Packing::AUTOMATIC;
    for (packing, words) in [
        (Packing { message_size: 349, ..usual }, "message_size is 349, expected 350 to 65536"),
        (Packing { message_size: 65_537, ..usual }, "message_size is 65537, expected 350 to 65536"),
        (Packing { records: Records::Exactly(0), ..usual }, "records is 0, expected 1 to 32766, or automatic"),
        (Packing { records: Records::Exactly(32_767), ..usual }, "records is 32767"),
        (Packing { fill: 101, ..usual }, "fill is 101, expected 0 to 100"),
        (Packing { priority: 32_767, ..usual }, "priority is 32767, expected 0 to 32766"),
        (Packing { idle_wait: Duration::ZERO, ..usual }, "idle_wait is 0ns, expected 1ms to 255s"),
        (Packing { idle_wait: Duration::from_secs(256), ..usual }, "idle_wait is 256s"),
    ] {
        let refused = knobs.set(packing).expect_err(words).to_string();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(knobs.packing(), usual, "they stand as before");
    }
    for packing in [OLD, NEW, Packing::FULL, Packing { message_size: 1 << 20, priority: 0, ..usual }] {
        assert_eq!(packing.check(), Ok(()));
    }
}

fn packings() -> impl Strategy<Value = Packing> {
    let records = prop_oneof![Just(Records::Automatic), (1..200u16).prop_map(Records::Exactly)];
    (350..20_000usize, records, 0..=100u8, any::<bool>()).prop_map(|(message_size, records, fill, delay_first)| {
        Packing { message_size, records, fill, delay_first, ..Packing::AUTOMATIC }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the meaning of each knob, told of whole messages.
    #[test]
    fn messages_are_as_full_as_the_knobs_say(packing in packings(), records in prop::collection::vec(1..3_000usize, 1..600)) {
        let all = messages(&Knobs::new(packing), records.iter().copied());
        prop_assert_eq!(all.concat(), records, "every record goes once, in its order");
        let size = |message: &[usize]| message.iter().sum::<usize>();
        let full = packing.threshold();
        prop_assert!(full <= packing.message_size);
        let mut most = None;
        for (place, message) in all.iter().enumerate() {
            let before = &message[..message.len() - 1];
            prop_assert!(size(before) < full, "what was full has gone");
            let is_last = place + 1 == all.len();
            let number = match (packing.records, most) {
                _ if place == 0 && !packing.delay_first => Some(1),
                (Records::Exactly(records), _) => Some(usize::from(records)),
                (Records::Automatic, Some(before)) if !packing.delay_first => Some(2 * before),
                (Records::Automatic, _) => None,
            };
            let count = message.len();
            prop_assert!(number.is_none_or(|number| count <= number), "{count} records, {number:?} at the most");
            prop_assert!(is_last || size(message) >= full || number == Some(count), "neither full nor of so many records");
            most = Some(count);
        }
    }

    /// What automatic costs: few more messages than as full as they may be.
    #[test]
    fn automatic_messages_are_soon_full(bytes in 1..2_000usize, records in 1..20_000usize) {
        let count = |packing| messages(&Knobs::new(packing), std::iter::repeat_n(bytes, records)).len();
        prop_assert!(count(Packing::AUTOMATIC) <= count(Packing::FULL) + 18);
    }
}
