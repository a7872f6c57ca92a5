//! What a request says about who sends it: the `Authorization` header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::{Error, Secret};

/// The most bytes in a user's name.
pub const USER_BYTES_MAX: usize = 256;
/// The most bytes in an `Authorization` header that is looked at.
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// Who somebody says they are, and what is to prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// `Basic` (RFC 7617): a user and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// `Bearer` (RFC 6750): a token.
    Token(Secret),
}

impl Credentials {
    /// Reads the value of an `Authorization` header. What is none of the two schemes is [`Error::Unauthenticated`].
    ///
    /// ```
    /// use headwater_access::Credentials;
    /// let credentials = Credentials::from_header("Basic YW5uYTpzZWNyZXQ=").expect("it works");
    /// assert!(matches!(credentials, Credentials::Password { user, .. } if user == "anna"));
    /// ```
    pub fn from_header(value: &str) -> Result<Credentials, Error> {
        let (scheme, rest) = value.trim().split_once(' ').ok_or(Error::Unauthenticated)?;
        let rest = rest.trim_start();
        if rest.len() > HEADER_BYTES_MAX {
            return Err(Error::Unauthenticated);
        }
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(Credentials::Token(Secret::new(rest)));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(Error::Unauthenticated);
        }
        let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or(Error::Unauthenticated)?;
        let (user, password) = decoded.split_once(':').ok_or(Error::Unauthenticated)?;
        if user.is_empty() || user.len() > USER_BYTES_MAX {
            return Err(Error::Unauthenticated);
        }
        Ok(Credentials::Password { user: user.to_owned(), password: Secret::new(password) })
    }

    /// The value of an `Authorization` header that says this.
    pub fn to_header(&self) -> Secret {
        match self {
            Credentials::Password { user, password } => {
                Secret::new(format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.expose()))))
            }
            Credentials::Token(token) => Secret::new(format!("Bearer {}", token.expose())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Credentials, HEADER_BYTES_MAX, USER_BYTES_MAX};
    use crate::{Error, Secret};

    #[test]
    fn both_schemes_come_back_as_they_were_written() {
        let password = |user: &str, password: &str| Credentials::Password {
            user: user.to_owned(),
            password: Secret::new(password),
        };
        for credentials in [
            password("anna", "secret"),
            password("anna", "with:colon: and space"),
            password("änne", ""),
            Credentials::Token(Secret::new("a.b.c")),
        ] {
            assert_eq!(Credentials::from_header(credentials.to_header().expose()).expect("it works"), credentials);
        }
        assert_eq!(
            Credentials::from_header("bEaReR  a.b.c").expect("it works"),
            Credentials::Token(Secret::new("a.b.c")),
            "schemes have no letter case"
        );
    }

    #[test]
    fn anything_else_is_refused() {
        let long_user = Credentials::Password { user: "u".repeat(USER_BYTES_MAX + 1), password: Secret::new("x") };
        let headers = [
            String::new(),
            "Basic".to_owned(),
            "Basic ???".to_owned(),
            "Basic YW5uYQ==".to_owned(),     // no colon
            "Basic OnNlY3JldA==".to_owned(), // no user
            "Basic /////w==".to_owned(),     // not UTF-8
            "Digest username=anna".to_owned(),
            format!("Bearer {}", "x".repeat(HEADER_BYTES_MAX + 1)),
            long_user.to_header().expose().to_owned(),
        ];
        for header in headers {
            assert!(matches!(Credentials::from_header(&header), Err(Error::Unauthenticated)), "{header}");
        }
    }
}
