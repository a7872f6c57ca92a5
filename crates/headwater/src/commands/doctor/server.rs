//! The server's side: configuration, model, certificate, address, and what stands before it.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use headwater_remote::{Probe, probe};
use headwater_server::{Config as ServerConfig, Server};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use super::remote::chain;
use super::{DoctorArgs, Findings, central, files};
use crate::cli::Global;
use crate::config::Config;

/// A certificate that ends sooner than this is told.
const CERTIFICATE_DAYS: u64 = 21;
const DAY: u64 = 86_400;

pub(super) fn look(args: &DoctorArgs, global: &Global, findings: &mut Findings) {
    if let Some(url) = &args.url {
        public(url, args.ca.as_deref(), findings);
    }
    let config = match Config::read(global) {
        Ok(config) => config,
        Err(error) => {
            return findings.error("configuration", format!("{error:#}"), "mend the file, or name another by --config");
        }
    };
    let options = match config.server(&[]) {
        Ok(options) => Some(options),
        Err(error) => {
            findings.error("configuration", format!("{error:#}"), "docs/server.md has every option with its range");
            None
        }
    };
    let plans = match config.served_plans() {
        Ok(plans) => plans,
        Err(error) => {
            findings.error(
                "model",
                format!("{error:#}"),
                "mend the model's file; docs/model.md has all that it may say",
            );
            Vec::new()
        }
    };
    if let Some(options) = &options {
        options_files(options, args, findings);
        overflow(&config, options, args, findings);
        if !args.not_running {
            running(options, findings);
        }
    }
    let gateway = config.gateway(&[]).unwrap_or_else(|error| {
        let mend = "mend it; docs/gateway.md has every option, and `headwater query check` looks at the queries";
        findings.error("configuration", format!("{error:#}"), mend);
        None
    });
    central::look(&config, &plans, (options.as_ref(), gateway.as_ref()), args, findings);
}

/// The files that the options name.
fn options_files(options: &ServerConfig, args: &DoctorArgs, findings: &mut Findings) {
    if let Err(error) = Server::check(options) {
        findings.error("configuration", chain(&error), "mend the file, or the option that names it");
    }
    let spool = options.spool_folder.clone().unwrap_or_else(std::env::temp_dir);
    files::space(&spool, "the spool folder", args.free_mib, findings);
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

/// Where the pool's blocks go that find no room in memory.
fn overflow(config: &Config, options: &ServerConfig, args: &DoctorArgs, findings: &mut Findings) {
    match config.overflow_folder(options) {
        // The spool folder was looked at.
        Ok(folder) if folder == options.spool_folder => {}
        Ok(Some(folder)) if !folder.is_dir() => findings.error(
            "configuration",
            format!("[pool] overflow_folder {} is no folder that is there", folder.display()),
            "make it, or name another",
        ),
        Ok(Some(folder)) => files::space(&folder, "the pool's overflow_folder", args.free_mib, findings),
        Ok(None) => {}
        Err(error) => {
            findings.error("configuration", format!("{error:#}"), "docs/pool.md has every option with its range");
        }
    }
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

/// The address that remotes use.
fn public(url: &str, ca: Option<&Path>, findings: &mut Findings) {
    let seen = match probe(url, ca) {
        Ok(seen) => seen,
        Err(error) => {
            let mend = "look at the name, the proxy and the certificate; --ca names certificates to trust";
            return findings.error("url_unreachable", format!("{url} can't be reached: {}", chain(&error)), mend);
        }
    };
    if let Some(what) = seen.stranger {
        let mend = "have the proxy pass /v1, /health and /ready to the server, as they are";
        return findings.error("url_not_headwater", format!("at {url} something else answers: {what}"), mend);
    }
    if let Some(what) = seen.piece {
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
}
