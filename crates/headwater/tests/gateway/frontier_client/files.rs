//! Payloads that are no rows: files, and what is asked for by `meta`.

use headwater_lab::frontier::{AnswerError, Request};

use super::Gateway;

/// More than a line of base64, and all bytes.
fn content() -> Vec<u8> {
    (0..=255).cycle().take(10_000).collect()
}

#[test]
fn a_file_comes_whole_and_nothing_outside_of_its_folder_does() {
    for gateway in Gateway::both() {
        let stage = &gateway.stage;
        std::fs::create_dir(stage.path("files/a b")).expect("a folder");
        std::fs::write(stage.path("files/a b/gr\u{f6}\u{df}e.dat"), content()).expect("written");
        std::os::unix::fs::symlink(stage.path("headwater.toml"), stage.path("files/link")).expect("a link");
        for level in [None, Some(5)] {
            let answer = gateway.ask(&Request::file("a b/gr\u{f6}\u{df}e.dat").level(level)).expect("a file");
            assert_eq!((answer.records, answer.file()), (1, Ok(content())), "{level:?}");
        }
        for none in [
            "absent",
            "a b",
            "..",
            "../headwater.toml",
            "a b/../../headwater.toml",
            "/etc/passwd",
            "link",
            "%2e%2e/headwater.toml",
        ] {
            let refused = gateway.ask(&Request::file(none));
            assert!(matches!(refused, Err(AnswerError::Payload(_))), "{none}: {refused:?}");
        }
        // What is beyond ASCII is in references, which the client resolves.
        let told = gateway.ask(&Request::file("gr\u{f6}\u{df}er")).expect_err("there is none").to_string();
        assert!(told.contains("gr\u{f6}\u{df}er"), "{told}");
    }
}

#[test]
fn meta_is_answered_by_an_error_of_its_payload() {
    for gateway in Gateway::both() {
        let answer = gateway.ask(&Request::meta("frontier_request"));
        assert!(matches!(answer, Err(AnswerError::Payload(_))), "{answer:?}");
    }
}
