//! The server's side: configuration, model, certificate, address, and what stands before it.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use headwater_consolidated::Plan;
use headwater_cursor::{Connection, Credentials, Server as CursorServer};
use headwater_remote::{Probe, probe};
use headwater_server::{Config as ServerConfig, Server};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use super::central::Needed;
use super::remote::chain;
use super::{DoctorArgs, Findings, central, files};
use crate::cli::Global;
use crate::commands::serve;
use crate::config::{Config, GatewayConfig};

/// Where the number of workers is found: a worker, a place beside it for small syncs, and one for accounts.
const CONNECTIONS_LEAST: usize = 3;
/// A certificate that ends sooner than this is told.
const CERTIFICATE_DAYS: u64 = 21;
const DAY: u64 = 86_400;

pub(super) fn look(args: &DoctorArgs, global: &Global, findings: &mut Findings) {
    let url = args.url.as_deref().map(|url| (url, args.ca.as_deref()));
    let config = match Config::read(global) {
        Ok(config) => config,
        Err(error) => {
            findings.error("configuration", format!("{error:#}"), "mend the file, or name another by --config");
            url.map(|url| public(url, true, findings));
            return;
        }
    };
    let options = match config.server(&[]) {
        Ok(options) => Some(options),
        Err(error) => {
            findings.error("configuration", format!("{error:#}"), "docs/server.md has every option with its range");
            None
        }
    };
    let plans = plans(&config, findings);
    // Where they are not known, there are some.
    let has_syncs = plans.as_ref().is_none_or(|plans| !plans.is_empty());
    let (plans, gateway) = (plans.unwrap_or_default(), gateway(&config, findings));
    if let Some(options) = &options {
        options_files(options, args, findings);
        if overflow(&config, options, args, findings)
            && let Err(error) = serve::pools(&config, &[], options, gateway.as_ref(), &plans)
        {
            findings.error("configuration", format!("{error:#}"), "docs/pool.md has every option with its range");
        }
        if !args.not_running {
            running(options, findings);
        }
    }
    if let Some(url) = url
        && public(url, has_syncs, findings)
        && gateway.as_ref().is_some_and(|gateway| gateway.cursors.is_some())
    {
        cursors(url, findings);
    }
    let needed = options.as_ref().map(|options| {
        let beside = gateway.as_ref().map_or(0, serve::connections_of);
        let of_syncs = if has_syncs { options.database_connections() } else { 1 };
        let least = if options.workers == 0 { of_syncs.min(CONNECTIONS_LEAST) } else { of_syncs };
        Needed { least: least + beside, all: of_syncs + beside }
    });
    central::look(&config, &plans, (needed, gateway.as_ref()), args, findings);
}

/// The models that are served; `None`: one of them can't be.
fn plans(config: &Config, findings: &mut Findings) -> Option<Vec<Plan>> {
    let mend = "mend the model's file; docs/model.md has all that it may say";
    config.served_plans().map_err(|error| findings.error("model", format!("{error:#}"), mend)).ok()
}

/// What is served beside syncs, and by whom knobs are turned.
fn gateway(config: &Config, findings: &mut Findings) -> Option<GatewayConfig> {
    if let Err(error) = config.admin(&[]) {
        findings.error("configuration", format!("{error:#}"), "docs/tuning.md has every option of [admin]");
    }
    let mend = "docs/gateway.md and docs/cursors.md have every option with its range; `headwater query check` looks at the queries";
    config.gateway(&[]).map_err(|error| findings.error("configuration", format!("{error:#}"), mend)).ok().flatten()
}

/// The files that the options name.
fn options_files(options: &ServerConfig, args: &DoctorArgs, findings: &mut Findings) {
    if let Err(error) = Server::check(options) {
        findings.error("configuration", chain(&error), "mend the file, or the option that names it");
    }
    let spool = options.spool_folder.clone().unwrap_or_else(std::env::temp_dir);
    files::space(&spool, "the spool folder", args.free_mib, findings);
    files::unfinished(&spool, findings);
    let secrets = [("tls_key", &options.tls_key), ("jwt_key_file", &options.jwt_key_file)];
    for (option, path) in secrets.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?))) {
        let is_public = std::fs::read(path).is_ok_and(|pem| pem.starts_with(b"-----BEGIN PUBLIC"));
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o007 != 0 && !is_public {
            let what = format!("everybody on this machine can read the file of {option}, {}", path.display());
            findings.warning("secret_readable", what, format!("`chmod o= {}`", path.display()));
        }
    }
    if let Some(path) = &options.tls_certificate {
        certificate(path, findings);
    }
}

/// Where the pool's blocks go that find no room in memory; `false`: they can't.
fn overflow(config: &Config, options: &ServerConfig, args: &DoctorArgs, findings: &mut Findings) -> bool {
    match config.overflow_folder(options) {
        // The spool folder was looked at.
        Ok(folder) if folder == options.spool_folder => {}
        Ok(Some(folder)) if !folder.is_dir() => {
            let what = format!("[pool] overflow_folder {} is no folder that is there", folder.display());
            findings.error("configuration", what, "make it, or name another");
            return false;
        }
        Ok(Some(folder)) => files::space(&folder, "the pool's overflow_folder", args.free_mib, findings),
        Ok(None) => {}
        Err(error) => {
            findings.error("configuration", format!("{error:#}"), "docs/pool.md has every option with its range");
            return false;
        }
    }
    true
}

/// Whether the chain holds together, and for how long.
fn certificate(path: &Path, findings: &mut Findings) {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    // What can't be read was told already.
    let ders = read.unwrap_or_default();
    let chain: Vec<Certificate> = ders.iter().filter_map(|der| Certificate::from_der(der).ok()).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    for certificate in &chain {
        let fields = &certificate.tbs_certificate;
        let (name, validity) = (&fields.subject, &fields.validity);
        let (begins, ends) =
            (validity.not_before.to_unix_duration().as_secs(), validity.not_after.to_unix_duration().as_secs());
        let mend = "get a new one, and start the server again";
        if now >= ends {
            findings.error(
                "certificate_expired",
                format!("the certificate {name} in {} has expired", path.display()),
                mend,
            );
        } else if now < begins {
            let what = format!("the certificate {name} in {} is not good yet", path.display());
            findings.error("certificate_early", what, "look at this machine's clock, or wait");
        } else if ends - now < CERTIFICATE_DAYS * DAY {
            let what = format!("the certificate {name} in {} ends in {} days", path.display(), (ends - now) / DAY);
            findings.warning("certificate_ends", what, mend);
        }
    }
    for two in chain.windows(2).filter(|two| two[0].tbs_certificate.issuer != two[1].tbs_certificate.subject) {
        let fields = &two[0].tbs_certificate;
        findings.error(
            "certificate_chain",
            format!(
                "in {} {} is followed by {}, expected its issuer, {}",
                path.display(),
                fields.subject,
                two[1].tbs_certificate.subject,
                fields.issuer
            ),
            "order the file: the server's own certificate, then the one that signed it, and so on",
        );
    }
}

/// Whether a server of these options runs here.
fn running(options: &ServerConfig, findings: &mut Findings) {
    let mut address = options.listen;
    if address.port() == 0 {
        return;
    }
    if address.ip().is_unspecified() {
        let local: std::net::IpAddr =
            if address.is_ipv4() { std::net::Ipv4Addr::LOCALHOST.into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        address.set_ip(local);
    }
    let mend = "`headwater serve` starts it; --not-running leaves this out";
    if let Err(error) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
        return findings.error("not_running", format!("nobody answers at {address}: {error}"), mend);
    }
    if options.tls_certificate.is_some() {
        // The certificate is for the name that remotes use: --url asks there.
        return;
    }
    match probe(&format!("http://{address}"), None) {
        Ok(Probe { stranger: Some(what), .. }) => {
            findings.error(
                "not_headwater",
                format!("at {address} something else answers: {what}"),
                "choose another `listen`",
            );
        }
        Ok(_) => {}
        Err(error) => findings.error("not_running", format!("at {address} no server answers: {}", chain(&error)), mend),
    }
}

/// Whether a connection of cursors comes about there: whatever is in between must let it be upgraded.
fn cursors((url, ca): (&str, Option<&Path>), findings: &mut Findings) {
    let server =
        CursorServer { url: url.to_owned(), credentials: Credentials::Nothing, ca_file: ca.map(Path::to_owned) };
    if let Err(error) = Connection::open(&server) {
        findings.warning(
            "url_cursors",
            format!("at {url} cursors don't get through: {}", chain(&error)),
            "let GET /cursor of HTTP/1.1 be upgraded; docs/cursors.md has it for nginx",
        );
    }
}

/// The address that remotes use; whether Headwater answers there.
fn public((url, ca): (&str, Option<&Path>), has_syncs: bool, findings: &mut Findings) -> bool {
    let seen = match probe(url, ca) {
        Ok(seen) => seen,
        Err(error) => {
            let mend = "look at the name, the proxy and the certificate; --ca names certificates to trust";
            findings.error("url_unreachable", format!("{url} can't be reached: {}", chain(&error)), mend);
            return false;
        }
    };
    if let Some(what) = seen.stranger {
        let mend = "have the proxy pass /v1, /health and /ready to the server, as they are";
        findings.error("url_not_headwater", format!("at {url} something else answers: {what}"), mend);
        return false;
    }
    if let Some(what) = seen.piece.filter(|_| has_syncs) {
        findings.warning(
            "url_bodies",
            format!(
                "at {url} a piece of an upload, 1 MB by PUT, is not let through ({what}): large uploads go in smaller ones, or one sync each"
            ),
            "let PUT /v1/upload pass, and bodies of 1 MB (nginx: `client_max_body_size 1m;`, its default, or more)",
        );
    }
    if seen.is_buffered {
        findings.warning(
            "url_buffered",
            format!("at {url} somebody keeps answers back until they are whole: signs of life don't come through, and long syncs time out"),
            "nginx: leave X-Accel-Buffering alone, or `proxy_buffering off;`. Other proxies: switch buffering of answers off",
        );
    }
    if let Some(coding) = seen.coding {
        findings.warning(
            "url_compressed",
            format!("at {url} somebody compresses answers ({coding}) that are compressed already"),
            "switch compression off for application/vnd.headwater.sync",
        );
    }
    true
}
