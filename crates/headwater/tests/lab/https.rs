//! Requests of https, to a real nginx with a certificate of its own.

#[path = "gateway.rs"]
mod gateway;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headwater_testkit::{Child, free_port, wait_until};

use super::{Place, Said};

const ANSWER: &str = "forty-two bytes, of which none is left out.";

/// nginx with one file; dropped, it ends.
struct Server {
    _child: Child,
    port: u16,
}

impl Server {
    /// In this folder, where its certificate is left as `root.pem`.
    fn start(folder: &Path) -> Server {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(folder.join("root.pem"), made.cert.pem()).expect("written");
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
        std::fs::create_dir(folder.join("files")).expect("made");
        std::fs::write(folder.join("files/rows"), ANSWER).expect("written");
        let (port, here) = (free_port().expect("a port"), folder.display());
        let places =
            ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|what| format!("{what}_temp_path {here}/{what};"));
        let config = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log; events {{ }}\n\
             http {{ access_log off; {} server {{ listen 127.0.0.1:{port} ssl; root {here}/files; \
             ssl_certificate {here}/root.pem; ssl_certificate_key {here}/key.pem; }} }}\n",
            places.concat()
        );
        std::fs::write(folder.join("nginx.conf"), config).expect("written");
        let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let mut command = Command::new(program.expect("nginx is missing: run `make setup`"));
        command.arg("-c").arg(folder.join("nginx.conf")).args(["-e", "stderr"]);
        let child = Child::spawn("nginx", &mut command).expect("started");
        let is_up = wait_until(Duration::from_secs(30), || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(is_up, "{}", child.stderr());
        Server { _child: child, port }
    }
}

fn run(place: &Place, arguments: &[&str], roots: &str) -> Said {
    let mut command = place.command(arguments);
    command.env_remove("SSL_CERT_DIR").env("SSL_CERT_FILE", place.path(roots));
    let done = command.output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said { code: done.status.code().expect("not killed"), out: text(done.stdout), err: text(done.stderr) }
}

#[test]
fn requests_of_https_are_checked_and_counted() {
    let place = Place::new(&format!(
        "name = \"tls\"\nscenario = {{ name = \"http\", expect_bytes = {} }}\nload.clients = 2\nstop.iterations = 40\n",
        ANSWER.len()
    ));
    let server = Server::start(place.folder.path());
    let url = format!("https://localhost:{}/rows", server.port);
    let said = run(&place, &["run", "x.toml", "--target", &url, "--results", "x.lab"], "root.pem");
    assert_eq!(said.code, 0, "{said:?}");
    let shown = place.json(&["show", "x.lab"]);
    assert_eq!((&shown["cells"][0]["operations"], &shown["cells"][0]["errors"]), (&40.into(), &0.into()), "{shown}");
    // What goes over the network is TLS, which has more bytes than what it holds.
    let bytes = |name: &str| shown["cells"][0][name].as_u64().expect("a number");
    assert_eq!(bytes("body_bytes"), 40 * ANSWER.len() as u64, "{shown}");
    assert!(bytes("received_bytes") > bytes("body_bytes") + 40 * 200, "{shown}");
    let other = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).expect("a certificate");
    std::fs::write(place.path("other.pem"), other.cert.pem()).expect("written");
    let untrusted = run(&place, &["run", "x.toml", "--target", &url, "--results", "y.lab"], "other.pem");
    assert_eq!(untrusted.code, 3, "{untrusted:?}");
    assert!(untrusted.err.contains("TLS to localhost") && untrusted.err.contains("SSL_CERT_FILE"), "{untrusted:?}");
    let other = url.replace("localhost", "127.0.0.1");
    let misnamed = run(&place, &["run", "x.toml", "--target", &other, "--results", "z.lab"], "root.pem");
    assert_eq!(misnamed.code, 3, "a certificate of another name: {misnamed:?}");
    let proxied = "target.proxy = \"http://127.0.0.1:1\"\n";
    let text = std::fs::read_to_string(place.path("x.toml")).expect("an experiment");
    std::fs::write(place.path("x.toml"), format!("{text}{proxied}")).expect("written");
    let said = run(&place, &["run", "x.toml", "--target", &url, "--results", "p.lab"], "root.pem");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("of which a proxy sees nothing"), "{said:?}");
}
