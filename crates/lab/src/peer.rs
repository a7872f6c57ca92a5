//! A server of syncs that is somewhere: where it listens, and whether it is spoken to by TLS.

use hyper::Uri;

use crate::harness::{Class, Failure};
use crate::link::{Link, Stream};
use crate::tls::Tls;

/// A server.
#[derive(Clone, Debug)]
pub struct Peer {
    place: String,
    tls: Option<Tls>,
}

impl Peer {
    /// The one at this host and port, which takes no TLS.
    pub fn at(place: impl Into<String>) -> Peer {
        Peer { place: place.into(), tls: None }
    }

    /// The one of a URL, `http://HOST[:PORT]` or `https://HOST[:PORT]`. Does not connect.
    ///
    /// # Errors
    /// What is wrong with the URL; or there are no certificates of authorities here.
    pub fn of(url: &str) -> Result<Peer, Failure> {
        // A URL may have a password in it: it is not told.
        let refused = |what: &str| {
            Failure::usage(format!("--server {what}, expected http://HOST:PORT or https://HOST[:PORT], and no more"))
        };
        let uri: Uri = url.parse().map_err(|_| refused("is no URL"))?;
        let usual = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            other => return Err(refused(&format!("has {:?}", other.unwrap_or("no scheme")))),
        };
        let host = uri.host().unwrap_or_default();
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if has_user || host.is_empty() || uri.path() != "/" || uri.query().is_some() {
            return Err(refused("has a user, a path or a parameter"));
        }
        Ok(Peer { place: format!("{host}:{}", uri.port_u16().unwrap_or(usual)), tls: Tls::to(&uri)? })
    }

    /// Its host and port.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Connects over this link.
    pub(crate) async fn connect(&self, link: Link) -> Result<Box<dyn Stream>, Failure> {
        let refused = |error: std::io::Error| Failure::new(Class::Refused, format!("{}: {error}", self.place));
        let stream = link.connect(&self.place).await.map_err(refused)?;
        match &self.tls {
            Some(tls) => tls.over(stream).await,
            None => Ok(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_no_more() {
        let place = |url: &str| Peer::of(url).map(|peer| peer.place().to_owned()).map_err(|error| error.to_string());
        for (url, expected) in [
            ("http://hub", "hub:80"),
            ("http://hub:8080/", "hub:8080"),
            ("http://10.0.0.7:8080", "10.0.0.7:8080"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(place(url).as_deref(), Ok(expected), "{url}");
        }
        for (url, why) in [
            ("hub:8080", "has \"no scheme\""),
            ("ftp://hub", "has \"ftp\""),
            ("http://hub/sync", "has a user, a path or a parameter"),
            ("http://hub/?x", "has a user, a path or a parameter"),
            ("http://me:secret@hub", "has a user"),
            ("http://a b", "is no URL"),
        ] {
            let told = place(url).expect_err(url);
            assert!(told.contains(why) && told.contains("--server") && !told.contains("secret"), "{url}: {told}");
        }
    }
}
