//! Where requests go.

use hyper::Uri;

use super::gateway::Behind;
use crate::address::{NONE, shown};
use crate::error::Error;

/// What an address begins with that asks for the lab's own server.
const OWN: &str = "origin:";
/// And for a gateway that the lab starts.
const GATEWAY: &str = "gateway:";
/// The lab's own server, where nobody says at which port it is to be.
const ANYWHERE: &str = "127.0.0.1:0";
/// The ports of HTTP, without TLS and with it.
const PORTS: [u16; 2] = [80, 443];

/// A server, and the proxy before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpTarget {
    pub(super) server: Server,
    /// Its host and port.
    pub(super) proxy: Option<String>,
}

/// Whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The lab's, which is to listen at this host and port.
    Own(String),
    /// A gateway of Headwater's, which the lab starts.
    Gateway(Behind),
    /// Somebody's.
    Theirs(Uri),
}

impl HttpTarget {
    /// Reads an address, and that of a proxy. Does not connect.
    pub(crate) fn parse(address: &str, proxy: Option<&str>) -> Result<HttpTarget, Error> {
        let server = match address.strip_prefix(OWN) {
            _ if address.starts_with(GATEWAY) => Server::Gateway(Behind::parse(&address[GATEWAY.len()..])?),
            Some("") => Server::Own(ANYWHERE.to_owned()),
            Some(place) => Server::Own(place.trim_start_matches('/').to_owned()),
            None => Server::Theirs(url("target.url", address)?),
        };
        let proxy = match proxy.filter(|proxy| *proxy != NONE) {
            None => None,
            Some(proxy) => match url("target.proxy", proxy)? {
                uri if uri.path() == "/" && uri.query().is_none() => Some(place(&uri)),
                _ => return Err(Error::Usage("target.proxy has a path, expected http://host:port".to_owned())),
            },
        };
        if let (Server::Theirs(uri), Some(_)) = (&server, &proxy)
            && is_https(uri)
        {
            return Err(Error::Usage(
                "target.url is https, of which a proxy sees nothing: leave target.proxy out".to_owned(),
            ));
        }
        Ok(HttpTarget { server, proxy })
    }

    /// The addresses as people may see them.
    pub(crate) fn describe(&self) -> Vec<(String, String)> {
        let address = match &self.server {
            Server::Own(place) => format!("{OWN}{place}"),
            Server::Gateway(behind) => format!("{GATEWAY}{behind}"),
            Server::Theirs(uri) => shown(&uri.to_string()),
        };
        let proxy = self.proxy.iter().map(|place| ("proxy".to_owned(), place.clone()));
        [("address".to_owned(), address)].into_iter().chain(proxy).collect()
    }

    /// The host and port that must be there before anything is run; none: the lab starts it.
    pub(crate) fn place(&self) -> Option<String> {
        match (&self.proxy, &self.server) {
            (Some(proxy), _) => Some(proxy.clone()),
            (None, Server::Theirs(uri)) => Some(place(uri)),
            (None, Server::Own(_) | Server::Gateway(_)) => None,
        }
    }

    /// Whether it is the lab's own server.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.server, Server::Own(_))
    }
}

/// A URL of HTTP. What it says may have a password in it: only what is at fault is told.
fn url(key: &str, address: &str) -> Result<Uri, Error> {
    let refuse = |what: &str| {
        let expected = "expected http://host:port/path or https://..., origin: for the lab's own server, or gateway:DATABASE, with scenario \"http\"";
        Err(Error::Usage(format!("{key} {what}, {expected}")))
    };
    let Ok(uri) = address.parse::<Uri>() else { return refuse("is no URL") };
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            refuse("has a user, which is not sent")
        }
        (Some("https"), Some(_)) if key == "target.proxy" => refuse("is https, which proxies are not asked by"),
        (Some("http" | "https"), Some(_)) => Ok(uri),
        (scheme, _) => refuse(&format!("has {:?}", scheme.unwrap_or("no scheme"))),
    }
}

/// Its host and port.
pub(super) fn place(uri: &Uri) -> String {
    let usual = PORTS[usize::from(is_https(uri))];
    format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(usual))
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_is_refused_without_telling_secrets() {
        let refused = |url: &str, proxy| HttpTarget::parse(url, proxy).expect_err("refused").to_string();
        assert!(
            refused("https://shop/rows", Some("http://squid:3128")).contains("target.url is https, of which a proxy")
        );
        assert!(refused("origin:", Some("https://squid:3128")).starts_with("target.proxy is https"));
        assert!(refused("postgres://me:secret@db/x", None).starts_with("target.url has \"postgres\""));
        let told = refused("http://me:secret@shop/", None);
        assert!(told.contains("has a user") && !told.contains("secret"), "{told}");
        assert!(refused("origin:", Some("http://squid:3128/path")).starts_with("target.proxy has a path"));
        assert!(refused("origin:", Some("squid")).starts_with("target.proxy has \"no scheme\""));
    }

    #[test]
    fn what_a_gateway_can_not_serve_is_refused() {
        let refused = |url: &str| HttpTarget::parse(url, None).expect_err("refused").to_string();
        assert!(refused("gateway:").starts_with("the gateway's database is missing, expected gateway:"));
        let told = refused("gateway:oracle://me:secret@db/x");
        assert!(told.contains("has \"oracle\"") && !told.contains("secret"), "{told}");
        assert!(refused("gateway:sqlite:").contains("names no file"));
        assert!(refused("gateway:origin:").contains("has \"origin\""));
        let parse = |url: &str| HttpTarget::parse(url, None).expect("an address");
        let shown = |url: &str| parse(url).describe();
        assert_eq!(shown("gateway:sqlite:x.db"), [("address".to_owned(), "gateway:sqlite:x.db".to_owned())]);
        assert_eq!(shown("gateway:a/b.toml"), [("address".to_owned(), "gateway:a/b.toml".to_owned())]);
        let secret = shown("gateway:postgres://me:secret@db/x");
        assert!(secret[0].1.starts_with("gateway:postgres://") && !secret[0].1.contains("secret"), "{secret:?}");
        assert_eq!((parse("gateway:x.toml").place(), parse("gateway:x.toml").is_own()), (None, false));
    }

    #[test]
    fn a_proxy_is_asked_in_place_of_the_server() {
        let parse = |url: &str, proxy| HttpTarget::parse(url, proxy).expect("an address");
        assert_eq!(parse("http://shop/rows", Some("none")).place().as_deref(), Some("shop:80"));
        assert_eq!(parse("https://shop/rows", None).place().as_deref(), Some("shop:443"));
        assert_eq!(parse("http://shop/rows", Some("http://squid:3128")).place().as_deref(), Some("squid:3128"));
        assert_eq!(parse("origin:", None).place(), None);
        assert_eq!(parse("origin:127.0.0.1:8000", None).server, Server::Own("127.0.0.1:8000".to_owned()));
    }
}
