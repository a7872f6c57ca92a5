//! How full the frames of downloads get, and knobs that change it while the server runs.

use headwater_knobs::Knobs;
use headwater_protocol::Kind;
use headwater_protocol::packer::Records;
use headwater_server::{Config, FramePacking};

use crate::support::{Answer, Stand, config};

fn frames(answer: &Answer) -> usize {
    assert!(answer.is_complete());
    answer.kinds().into_iter().filter(|kind| *kind == Kind::Rows).count()
}

/// What all frames have together.
fn rows(answer: &Answer) -> Vec<u8> {
    let frames = answer.frames().into_iter().filter(|frame| frame.kind == Kind::Rows);
    frames.flat_map(|frame| frame.payload(1 << 20).expect("a payload").into_owned()).collect()
}

#[test]
fn frames_are_as_full_as_the_knobs_say_and_as_the_configuration_says() {
    let mut stand = Stand::start(config());
    stand.fill(1_000);
    let knobs = Knobs::new(stand.handle.as_mut().expect("it runs").take_knobs());
    let set = |name: &str, value: &str| {
        knobs
            .change(&[(format!("server.packing.{name}"), value.to_owned())])
            .map(drop)
            .map_err(|fault| fault.to_string())
    };
    let full = stand.sync(&stand.download(1));
    assert_eq!(frames(&full), 1);
    set("records", "10").expect("within its range");
    let tens = stand.sync(&stand.download(2));
    assert_eq!((frames(&tens), rows(&tens) == rows(&full)), (100, true));
    set("records", "automatic").expect("within its range");
    set("message_size", "1000").expect("within its range");
    let small = frames(&stand.sync(&stand.download(3)));
    assert!(small > 40, "{small}");
    set("fill", "50").expect("within its range");
    assert!(frames(&stand.sync(&stand.download(4))) > small * 3 / 2);
    let said = set("message_size", "65537").expect_err("more than a remote takes");
    assert_eq!(said, "server.packing.message_size is \"65537\", expected 350 to 65536");

    let packing = FramePacking { records: Records::Exactly(100), ..FramePacking::default() };
    let stand = Stand::start(Config { packing, ..config() });
    stand.fill(1_000);
    assert_eq!(frames(&stand.sync(&stand.download(1))), 10);
}

#[test]
fn what_is_out_of_range_is_told_by_its_name() {
    let read = |text: &str| serde_json::from_str::<Config>(text).map_err(|error| error.to_string());
    for (text, words) in [
        (r#"{"message_size": 70000}"#, "[server.packing] message_size is 70000, expected 350 to 65536"),
        (r#"{"fill": 101}"#, "[server.packing] fill is 101, expected 0 to 100"),
        (r#"{"records": 0}"#, "records is 0, expected 1 to 32766, or \"automatic\""),
        (r#"{"delay_first": true}"#, "unknown field `delay_first`"),
    ] {
        let config = read(&format!("{{\"packing\": {text}}}"));
        let said = config.and_then(|config| config.validate().map_err(|error| error.to_string())).expect_err(text);
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(read(r#"{"packing": {"records": "automatic"}}"#).expect("sound"), Config::default());
}
