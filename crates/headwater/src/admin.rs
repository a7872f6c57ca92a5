//! The token file: what a server leaves for `headwater tune` on the same machine, so that nothing has to be set up.
//!
//! ```toml
//! # A running server's administration listener. Who can read this may tune it.
//! address = "127.0.0.1:7341"
//! token = "..."
//! ```
//!
//! Made anew at each start, for its owner alone (mode 0600), by a temporary file and a rename; removed when the server stops. One that was killed
//! leaves it behind: nobody answers at its address then.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater_access::Secret;
use serde::Deserialize;

use crate::exit::{OrUsage as _, unreachable, usage};

/// How long to wait for another server that may be there.
const KNOCK: Duration = Duration::from_millis(500);
const HEAD: &str = "# A running server's administration listener. Who can read this may tune it.";

/// What the file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    address: SocketAddr,
    token: String,
}

/// The file of a server that runs; dropped, it is removed, if it is still this server's.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    text: String,
}

/// A token that nobody can guess.
pub(crate) fn make_token() -> Secret {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    Secret::new(half() + &half())
}

impl TokenFile {
    /// Writes it. What is no token file is left alone, and so is that of a server that runs.
    pub(crate) fn write(path: &Path, address: SocketAddr, token: &Secret) -> Result<TokenFile> {
        check_free(path, address)?;
        let text = format!("{HEAD}\naddress = \"{address}\"\ntoken = \"{}\"\n", token.expose());
        let told = || {
            format!(
                "the token of the administration listener could not be written to {} ([admin] token_file)",
                path.display()
            )
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Its mode is 0600 from its first byte on.
        let mut file = tempfile::NamedTempFile::new_in(folder).or_usage(told)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).or_usage(told)?;
        file.persist(path).or_usage(told)?;
        Ok(TokenFile { path: path.to_owned(), text })
    }

    /// Address and token of the server that has written it.
    pub(crate) fn read(path: &Path) -> Result<(SocketAddr, Secret)> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(unreachable(format!(
                    "no server of this configuration listens for administration: there is no {} ([admin] token_file); `headwater serve` \
                     makes it",
                    path.display()
                )));
            }
            Err(error) => {
                let told = || {
                    format!(
                        "{} ([admin] token_file) could not be read: it is for whoever runs the server",
                        path.display()
                    )
                };
                return Err(error).or_usage(told);
            }
        };
        let Said { address, token } = said(&text).with_context(|| format!("reading {}", path.display()))?;
        Ok((address, Secret::new(token)))
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // What stays behind is good for nothing.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn said(text: &str) -> Result<Said> {
    toml::from_str(text)
        .map_err(|_| usage("it is no token file of a server ([admin] token_file), expected address and token"))
}

/// Whether nobody's file is there, or one of a server that is gone.
fn check_free(path: &Path, own: SocketAddr) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).or_usage(|| format!("{} ([admin] token_file) could not be looked at", path.display()));
        }
    };
    let Said { address, .. } = said(&text).with_context(|| format!("{} is there already", path.display()))?;
    if address != own && TcpStream::connect_timeout(&address, KNOCK).is_ok() {
        return Err(usage(format!(
            "{} is that of another server, whose administration listens at {address}: give this one its own by [admin] token_file, or --set \
             admin.token_file",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_file_is_its_owners_and_goes_with_its_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("headwater.admin");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let token = make_token();
        assert!(token.expose().len() == 64 && token != make_token());
        let first = TokenFile::write(&path, address, &token).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(TokenFile::read(&path).expect("read"), (address, token.clone()));
        let other = SocketAddr::from(([127, 0, 0, 1], 1));
        let said = format!("{:#}", TokenFile::write(&path, other, &token).expect_err("another's"));
        assert!(said.contains(&format!("administration listens at {address}")), "{said}");
        drop(listener);
        let second = TokenFile::write(&path, other, &make_token()).expect("that server is gone");
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
        assert!(!path.exists());
        let said = format!("{:#}", TokenFile::read(&path).expect_err("gone"));
        assert!(said.contains("`headwater serve` makes it"), "{said}");
    }

    #[test]
    fn what_is_no_token_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("headwater.toml");
        std::fs::write(&path, "models = []\n").expect("written");
        let said = format!(
            "{:#}",
            TokenFile::write(&path, SocketAddr::from(([127, 0, 0, 1], 1)), &make_token()).expect_err("no")
        );
        assert!(said.contains("is there already: it is no token file of a server"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "models = []\n");
    }
}
