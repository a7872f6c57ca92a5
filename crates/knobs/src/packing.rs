//! The knobs of a [packer](headwater_protocol::packer): how full messages of records get.
//!
//! Whoever has such messages names the parts that mean something for them, each with its name and effect, and reads its options by
//! [`records`].

use std::fmt;
use std::time::Duration;

use headwater_protocol::packer::{IDLE_WAIT, Knobs, MESSAGE_SIZE, PRIORITY_MAX, Packing, RECORDS_MAX, Records};
use serde::Deserializer;
use serde::de::{Error, Visitor};

use crate::{Knob, Range, Value};

/// As many records as the packer finds.
pub const AUTOMATIC: &str = "automatic";
const FILL_MAX: u64 = 100;

/// One of a packer's knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of a full message.
    MessageSize,
    /// Records after which a message goes.
    Records,
    /// At how many percent of a full message it goes.
    Fill,
    /// Whether the first message is filled too.
    DelayFirst,
    /// Records that are added before other work is looked for.
    Priority,
    /// Milliseconds that a message that has begun waits for further records.
    IdleWaitMs,
}

/// The part, what it is called, and what it does there.
pub type Row = (Part, &'static str, &'static str);

/// Those of these rows. `usual`: how they stand where nothing is said.
pub fn knobs(handle: &Knobs, usual: Packing, rows: &[Row]) -> Vec<Knob> {
    let knob = |&(part, name, effect): &Row| {
        let (to_read, to_set) = (handle.clone(), handle.clone());
        Knob {
            name,
            effect,
            default: part.of(&usual),
            range: part.range(handle.message_size_max()),
            is_option: true,
            read: Box::new(move || part.of(&to_read.packing())),
            set: Box::new(move |value| {
                let mut packing = to_set.packing();
                part.put(&mut packing, value);
                to_set.set(packing).map_err(|error| error.to_string())
            }),
        }
    };
    rows.iter().map(knob).collect()
}

impl Part {
    fn of(self, packing: &Packing) -> Value {
        match self {
            Part::MessageSize => Value::Whole(packing.message_size as u64),
            Part::Records => match packing.records {
                Records::Automatic => Value::Word(AUTOMATIC.to_owned()),
                Records::Exactly(records) => Value::Whole(records.into()),
            },
            Part::Fill => Value::Whole(packing.fill.into()),
            Part::DelayFirst => Value::Truth(packing.delay_first),
            Part::Priority => Value::Whole(packing.priority.into()),
            Part::IdleWaitMs => Value::Whole(millis(packing.idle_wait)),
        }
    }

    /// The value is within the range, which no cast here leaves.
    fn put(self, packing: &mut Packing, value: &Value) {
        match self {
            Part::MessageSize => packing.message_size = value.whole() as usize,
            Part::Records => {
                packing.records = match value {
                    Value::Whole(records) => Records::Exactly(*records as u16),
                    _ => Records::Automatic,
                }
            }
            Part::Fill => packing.fill = value.whole() as u8,
            Part::DelayFirst => packing.delay_first = value.truth(),
            Part::Priority => packing.priority = value.whole() as u16,
            Part::IdleWaitMs => packing.idle_wait = Duration::from_millis(value.whole()),
        }
    }

    fn range(self, message_size_max: usize) -> Range {
        let whole = |least, most| Range::Whole { least, most };
        match self {
            Part::MessageSize => whole(MESSAGE_SIZE.0 as u64, message_size_max as u64),
            Part::Records => Range::WordOr { word: AUTOMATIC, least: 1, most: RECORDS_MAX.into() },
            Part::Fill => whole(0, FILL_MAX),
            Part::DelayFirst => Range::Truth,
            Part::Priority => whole(0, PRIORITY_MAX.into()),
            Part::IdleWaitMs => whole(millis(IDLE_WAIT.0), millis(IDLE_WAIT.1)),
        }
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Reads `records` of a configuration: a number, or `"automatic"`.
pub fn records<'de, D: Deserializer<'de>>(from: D) -> Result<Records, D::Error> {
    struct Count;

    impl Visitor<'_> for Count {
        type Value = Records;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "{AUTOMATIC:?} or 1 to {RECORDS_MAX}")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Records, E> {
            let records = u16::try_from(number).ok().filter(|records| (1..=RECORDS_MAX).contains(records));
            records.map(Records::Exactly).ok_or_else(|| refused(number))
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Records, E> {
            match u64::try_from(number) {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(refused(number)),
            }
        }

        fn visit_str<E: Error>(self, word: &str) -> Result<Records, E> {
            if word == AUTOMATIC { Ok(Records::Automatic) } else { Err(refused(format_args!("{word:?}"))) }
        }
    }

    fn refused<E: Error>(actual: impl fmt::Display) -> E {
        E::custom(format_args!("records is {actual}, expected 1 to {RECORDS_MAX}, or {AUTOMATIC:?}"))
    }

    from.deserialize_any(Count)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::{Knobs as All, contract};

    const ROWS: [Row; 6] = [
        (Part::MessageSize, "a.message_size", ""),
        (Part::Records, "a.records", ""),
        (Part::Fill, "a.fill", ""),
        (Part::DelayFirst, "a.delay_first", ""),
        (Part::Priority, "a.priority", ""),
        (Part::IdleWaitMs, "a.idle_wait_ms", ""),
    ];

    #[test]
    fn each_is_set_to_its_bounds_and_no_further() {
        for handle in [Knobs::default(), Knobs::frames()] {
            let before = handle.packing();
            contract::check(&All::new(knobs(&handle, Packing::default(), &ROWS)), |_| Vec::new()).expect("sound");
            assert_eq!(handle.packing(), before);
        }
    }

    #[test]
    fn each_turns_its_own_part() {
        let handle = Knobs::default();
        let all = All::new(knobs(&handle, Packing::default(), &ROWS));
        let values = ["4000", "7", "50", "true", "0", "2000"];
        let wanted = ROWS.iter().zip(values).map(|((_, name, _), value)| ((*name).to_owned(), value.to_owned()));
        all.change(&wanted.collect::<Vec<_>>()).expect("within the ranges");
        let expected = Packing {
            message_size: 4_000,
            records: Records::Exactly(7),
            fill: 50,
            delay_first: true,
            priority: 0,
            idle_wait: Duration::from_secs(2),
        };
        assert_eq!(handle.packing(), expected);
        let frames = All::new(knobs(&Knobs::frames(), Packing::FULL, &ROWS));
        let said = frames.change(&[("a.message_size".into(), "65537".into())]).expect_err("more than a frame has");
        assert_eq!(said.to_string(), "a.message_size is \"65537\", expected 350 to 65536");
    }

    #[test]
    fn records_are_a_number_or_the_word() {
        #[derive(Deserialize)]
        struct Section {
            #[serde(deserialize_with = "records")]
            records: Records,
        }
        let read = |text: &str| toml::from_str::<Section>(text).map(|section| section.records);
        assert_eq!(read("records = \"automatic\"").expect("sound"), Records::Automatic);
        assert_eq!(read("records = 1").expect("sound"), Records::Exactly(1));
        assert_eq!(read("records = 32766").expect("sound"), Records::Exactly(32_766));
        for value in ["0", "-1", "32767", "70000", "\"many\"", "\"\""] {
            let said = read(&format!("records = {value}")).expect_err(value).to_string();
            assert!(said.contains(&format!("records is {value}, expected 1 to 32766, or \"automatic\"")), "{said}");
        }
        assert!(read("records = true").expect_err("no number").to_string().contains("\"automatic\" or 1 to 32766"));
    }
}
