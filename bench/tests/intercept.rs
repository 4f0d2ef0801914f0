//! A quick run of the comparison of intercepting proxies, with the contestants that are built; and fault injection: the
//! generator with faulty servers.
//!
//! The quick run needs root or user namespaces, as the benchmark does. On a machine that has neither it fails: it must
//! not pass without a measurement.

mod quick;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use quick::QuickRun;

#[test]
fn every_workload_is_measured() {
    let out = fresh_directory("every");
    let run = QuickRun::new(&["intercept", "--quick", "--subject", "direct"], &out);
    let mut rows = vec![
        ("direct,cold,CPU s/1000", None),
        ("direct,warm,requests/s", None),
        ("direct,resumed,p99 us", None),
        ("direct,keep-alive,requests/s", None),
        ("direct,h2,requests/s", None),
        ("direct,stampede,certificates", Some(1.0)),
        ("floor,cold,CPU s/1000", None),
        ("floor,cold,certificates", Some(1.0)),
        ("floor,cold,upstream handshakes", Some(40.0)),
    ];
    if !run.stdout.contains("skipped peername") {
        rows.extend([
            ("peername,cold,certificates", Some(40.0)),
            ("peername,warm,certificates", Some(1.0)),
            ("peername,h2,requests/s", None),
            ("peername,stampede,certificates", Some(1.0)),
        ]);
    }
    for (row, expected) in rows {
        let value = run.figure(row);
        assert!(expected.is_none_or(|it| it == value), "{row}: {value}");
    }
}

/// The certificates that the server presents in turns are counted.
#[test]
fn correct_server_passes() {
    for certificates in [1, 3] {
        let server = Server {
            certificates,
            ..Server::correct()
        };
        let stdout = load(&server).expect("a correct server was refused");
        assert!(stdout.contains("requests/s"), "{stdout}");
        let count = format!(r#"{{"name":"certificates","value":{certificates}.0}}"#);
        assert!(stdout.contains(&count), "{stdout}");
    }
}

#[test]
fn faulty_server_fails() {
    let mut flipped = Server::correct();
    flipped.body[1000] ^= 1;
    let mut short = Server::correct();
    short.body.pop();
    let untrusted = Server {
        is_trusted: false,
        ..Server::correct()
    };
    let other_name = Server {
        name: "*.other.test",
        ..Server::correct()
    };
    let other_status = Server {
        status: "502 Bad Gateway",
        ..Server::correct()
    };
    for (server, why) in [
        (untrusted, "UnknownIssuer"),
        (other_name, "not valid for name"),
        (other_status, "the answer is 502"),
        (flipped, "the body is not the origin's"),
        (short, "the body is not the origin's"),
    ] {
        let stderr = load(&server).expect_err("a faulty server was accepted");
        assert!(stderr.contains(why), "{stderr}");
    }
}

#[test]
fn refused_connect_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_request(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
        }
    });
    let files = fresh_directory("refused");
    let (origin, root) = Server::correct().start(&files);
    let output = generator(origin, &root, &ONE_CLIENT)
        .args(["--proxy", &proxy.to_string()])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "a refused CONNECT was accepted");
    assert!(stderr.contains("CONNECT was answered"), "{stderr}");
}

/// Clients that start together begin further connections without the others, which may have none left.
#[test]
fn clients_that_start_together_need_not_share_the_requests_evenly() {
    for shape in [
        ["--requests", "5", "--clients", "2"],
        ["--requests", "2", "--clients", "3"],
    ] {
        let files = fresh_directory("at-once");
        let (origin, root) = Server::correct().start(&files);
        let output = generator(origin, &root, &shape)
            .arg("--at-once")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shape:?}: {stderr}");
    }
}

/// Runs the generator; returns its output, or its error message.
fn load(server: &Server) -> Result<String, String> {
    let files = fresh_directory(thread::current().name().unwrap());
    let (address, root) = server.start(&files);
    let output = generator(address, &root, &ONE_CLIENT).output().unwrap();
    let Output { stdout, stderr, .. } = &output;
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(stdout))
    } else {
        Err(text(stderr))
    }
}

fn generator(origin: SocketAddr, root: &Path, shape: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("intercept-load")
        .args(shape)
        .args(["--origin", &origin.to_string(), "--authority"])
        .args([root, Path::new("--root"), root]);
    command
}

/// A server of the test, with one request for each connection.
struct Server {
    name: &'static str,
    status: &'static str,
    body: Vec<u8>,
    /// The number of certificates, which the server presents in turns.
    certificates: usize,
    is_trusted: bool,
}

impl Server {
    fn correct() -> Self {
        Self {
            name: "*.bench.test",
            status: "200 OK",
            body: vec![b'x'; 1024],
            certificates: 1,
            is_trusted: true,
        }
    }

    /// Starts the server; returns its address and the CA that the generator trusts.
    fn start(&self, files: &Path) -> (SocketAddr, PathBuf) {
        let (certificate, issuer) = authority("one");
        let root = files.join("root.pem");
        fs::write(&root, certificate).unwrap();
        let issuer = if self.is_trusted {
            issuer
        } else {
            authority("two").1
        };
        let configs: Vec<_> = (0..self.certificates)
            .map(|_| tls_config(self.name, &issuer))
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (status, body) = (self.status, self.body.clone());
        thread::spawn(move || {
            for (stream, config) in listener.incoming().zip(configs.iter().cycle()) {
                // The generator may disconnect at any time.
                let _ = answer(stream.unwrap(), config.clone(), status, &body);
            }
        });
        (address, root)
    }
}

fn answer(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    status: &str,
    body: &[u8],
) -> std::io::Result<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let asks_for_count = read_request(&mut stream).starts_with("GET /handshakes ");
    let body = if asks_for_count { b"1" } else { body };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        request.extend(byte);
    }
    String::from_utf8_lossy(&request).into_owned()
}

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate, Issuer::new(params, key))
}

fn tls_config(name: &str, issuer: &Issuer<'static, KeyPair>) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], key);
    Arc::new(config.unwrap())
}

fn fresh_directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("intercept-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

const ONE_CLIENT: [&str; 4] = ["--requests", "6", "--clients", "1"];
const PROGRAM: &str = env!("CARGO_BIN_EXE_peername-bench");
