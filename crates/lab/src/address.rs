//! Addresses as people may see them: never with a password.

use std::path::Path;

/// The word for no address, where some cells have one and others don't.
pub(crate) const NONE: &str = "none";

/// The address without what may be secret: of a URL the user, host and database, of `key=value` pairs those three.
///
/// ```
/// use headwater_lab::address::shown;
/// assert_eq!(shown("postgres://me:secret@db:5433/shop?password=x"), "postgres://me@db:5433/shop");
/// assert_eq!(shown("host=db user=me password=secret dbname=shop"), "host=db user=me dbname=shop");
/// assert_eq!(shown("sqlite:shop.db"), "sqlite:shop.db");
/// assert_eq!(shown("http://me:secret@cache:3128/rows?token=x"), "http://me@cache:3128/rows");
/// assert_eq!(shown("gateway:postgres://me:secret@db/shop"), "gateway:postgres://me@db/shop");
/// ```
pub fn shown(address: &str) -> String {
    if let Some(behind) = address.strip_prefix("gateway:") {
        return format!("gateway:{}", if is_configuration(behind) { behind.to_owned() } else { shown(behind) });
    }
    if address == NONE || ["sqlite:", "origin:"].iter().any(|scheme| address.starts_with(scheme)) {
        return address.to_owned();
    }
    if address.contains('\'') {
        return "an address with quotes".to_owned(); // what of it is secret would take a parser
    }
    let Some((scheme, rest)) = address.split_once("://") else {
        let is_shown = |pair: &&str| ["host=", "port=", "user=", "dbname="].iter().any(|key| pair.starts_with(key));
        return address.split_whitespace().filter(is_shown).collect::<Vec<_>>().join(" ");
    };
    let rest = rest.split(['?', '#']).next().unwrap_or("");
    match rest.rsplit_once('@') {
        Some((user, place)) => format!("{scheme}://{}@{place}", user.split(':').next().unwrap_or("")),
        None => format!("{scheme}://{rest}"),
    }
}

/// Whether what stands behind `gateway:` is a file of configuration, and no database.
pub(crate) fn is_configuration(behind: &str) -> bool {
    Path::new(behind).extension().is_some_and(|extension| extension == "toml")
}
