//! Text that must not be printed: passwords and tokens.

use std::fmt;

/// A password or token. Neither `Debug` nor `Display` shows it; only [`Secret::expose`] does, and it is called where the text
/// leaves for good (a hash function, an answer to its owner).
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps this text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_not_printed() {
        let shown = format!("{:?} {:#?}", Secret::new("hunter42"), Some(Secret::new("hunter42")));
        assert!(!shown.contains("hunter"), "{shown}");
        assert_eq!(Secret::new("hunter42").expose(), "hunter42");
    }
}
