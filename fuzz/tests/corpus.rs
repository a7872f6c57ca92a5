//! The corpus, replayed: what a search has found worth keeping is read without breaking a promise.

use headwater_fuzz::{TARGETS, corpus};

#[test]
fn every_input_that_was_kept_is_taken() {
    for (name, target) in TARGETS {
        let inputs = corpus::read(name).expect("the corpus");
        assert!(!inputs.is_empty(), "there is nothing to replay for {name}; scripts/fuzz --keep finds something");
        for input in inputs {
            eprintln!("{name}: {}", input.escape_ascii()); // shown if it panics
            target(&input);
        }
    }
}
