use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::parse_x509_certificate;

use super::client_support::ClientSupport;
use super::config::MintConfig;
use super::error::MintError;
use super::mint_limiter::MintLimiter;
use super::{Mint, in_memory};
use crate::ca::{Authority, AuthorityOptions, Subtree};
use crate::host::Host;

#[test]
fn a_leaf_names_one_host_and_nothing_else() {
    let mint = mint(MintConfig::default());
    for (name, expected) in [
        ("Example.COM", GeneralName::DNSName("example.com")),
        ("_x.example.com", GeneralName::DNSName("_x.example.com")),
        ("192.0.2.1", GeneralName::IPAddress(&[192, 0, 2, 1])),
    ] {
        let leaf = receive_leaf(&mint, name, ECDSA);
        let (_, leaf) = parse_x509_certificate(&leaf).expect("DER");
        assert_eq!(leaf.subject().iter().count(), 0);
        let names = leaf
            .subject_alternative_name()
            .expect("readable")
            .expect("there");
        assert_eq!(names.value.general_names, [expected]);
        assert!(names.critical, "there is no subject");
        let usage = leaf.key_usage().expect("readable").expect("there");
        assert_eq!(usage.value.flags, 1, "digitalSignature only");
        let extended = leaf.extended_key_usage().expect("readable").expect("there");
        assert!(extended.value.server_auth && extended.value.other.is_empty());
        assert!(leaf.basic_constraints().expect("readable").is_none());
        assert_eq!(authority_key_id(&leaf), mint.authority().subject_key_id());
        let serial = leaf.raw_serial();
        assert!(
            (12..=17).contains(&serial.len())
                && serial.first().is_some_and(|first| first & 0x80 == 0)
        );
        let days =
            (leaf.validity.not_after.timestamp() - leaf.validity.not_before.timestamp()) / 86_400;
        assert_eq!(days, 8);
        let authority = mint.authority();
        let (_, issuer) = parse_x509_certificate(authority.certificate_der()).expect("DER");
        leaf.verify_signature(Some(issuer.public_key()))
            .expect("its signature");
        assert_ne!(leaf.public_key().raw, issuer.public_key().raw);
    }
}

#[test]
fn the_certificate_cache_is_bounded() {
    let config = MintConfig {
        capacity: 100,
        per_client: 1_000_000,
        ..MintConfig::default()
    };
    let mint = mint(config);
    for number in 0..1000 {
        let host = host(&format!("{number}.example.com"));
        block_on(mint.server_config(&host, ECDSA, &[])).expect("a certificate");
    }
    mint.cache.run_pending_tasks();
    assert!(mint.cache.entry_count() <= 100);
}

#[test]
fn a_day_or_a_clock_jump_begins_a_new_key_epoch() {
    let clock = Arc::new(Clock::now());
    let mint = mint(MintConfig {
        clock: Arc::clone(&clock) as _,
        ..MintConfig::default()
    });
    let key = || {
        let leaf = receive_leaf(&mint, "example.com", ECDSA);
        let (_, leaf) = parse_x509_certificate(&leaf).expect("DER");
        let now = clock.seconds();
        let validity =
            leaf.validity.not_before.timestamp() as u64..leaf.validity.not_after.timestamp() as u64;
        assert!(validity.contains(&now), "{validity:?} at {now}");
        leaf.public_key().raw.to_vec()
    };
    let first = key();
    clock.jump(HOUR);
    assert_eq!(key(), first);
    clock.jump(-2 * HOUR);
    assert_eq!(key(), first);
    assert_eq!((mint.issued(), mint.cache_hits()), (1, 2));
    clock.jump(26 * HOUR);
    let second = key();
    assert_ne!(second, first);
    // With the clock before the authority's notBefore nothing is valid. Once the clock is right again, the mint
    // continues with the same key.
    clock.jump(-365 * 24 * HOUR);
    let refused = block_on(mint.server_config(&host("example.com"), ECDSA, &[]));
    assert!(matches!(refused, Err(MintError::Authority)), "{refused:?}");
    clock.jump(365 * 24 * HOUR);
    assert_eq!(key(), second);
    clock.jump(-20 * HOUR);
    assert_ne!(key(), second);
}

#[test]
fn no_leaf_outlives_its_authority() {
    let clock = Arc::new(Clock::now());
    let mint = mint(MintConfig {
        clock: Arc::clone(&clock) as _,
        ..MintConfig::default()
    });
    let end = mint.authority().facts().not_after;
    clock.jump(i64::try_from(end - clock.seconds()).expect("a year") - HOUR);
    let leaf = receive_leaf(&mint, "example.com", ECDSA);
    let (_, leaf) = parse_x509_certificate(&leaf).expect("DER");
    assert_eq!(leaf.validity.not_after.timestamp() as u64, end);
    clock.jump(HOUR);
    let refused = block_on(mint.server_config(&host("example.com"), ECDSA, &[]));
    assert!(matches!(refused, Err(MintError::Authority)), "{refused:?}");
}

#[test]
fn a_client_without_ecdsa_gets_rsa_of_one_key() {
    let mint = mint(MintConfig::default());
    let rsa = ClientSupport { ecdsa: false };
    let key = |name| {
        let leaf = receive_leaf(&mint, name, rsa);
        let (_, leaf) = parse_x509_certificate(&leaf).expect("DER");
        let Ok(x509_parser::public_key::PublicKey::RSA(key)) = leaf.public_key().parsed() else {
            panic!("not an RSA key");
        };
        assert_eq!(key.key_size(), 2048);
        leaf.public_key().raw.to_vec()
    };
    assert_eq!(key("example.com"), key("example.org"));
}

#[test]
fn a_name_that_clients_would_refuse_is_an_error() {
    let permitted = vec!["example.com".parse::<Subtree>().expect("a name")];
    let mint = Mint::new(authority(permitted), 10).expect("a mint");
    block_on(mint.server_config(&host("a.example.com"), ECDSA, &[])).expect("within");
    for outside in ["example.org", "192.0.2.1"] {
        let refused = block_on(mint.server_config(&host(outside), ECDSA, &[]));
        assert!(
            matches!(refused, Err(MintError::NotPermitted(_))),
            "{refused:?}"
        );
    }
    assert_eq!(mint.issued(), 1);
}

#[test]
fn the_rate_limit_is_per_client() {
    let limiter = MintLimiter::new(50);
    let (start, other) = (Instant::now(), IpAddr::from([192, 0, 2, 2]));
    // The burst of one second, and the certificates of the four seconds that a client may wait.
    let max_at_once = 50 + 4 * 50;
    let count_admitted = |client, at| {
        (0..1000)
            .filter(|_| limiter.acquire(client, at).is_ok())
            .count()
    };
    assert_eq!(limiter.acquire(CLIENT, start).ok(), Some(Duration::ZERO));
    assert_eq!(count_admitted(CLIENT, start), max_at_once - 1);
    assert!(limiter.acquire(CLIENT, start).is_err());
    assert_eq!(count_admitted(other, start), max_at_once);
    let later = start + Duration::from_millis(100);
    assert_eq!(
        limiter.acquire(CLIENT, later).ok(),
        Some(Duration::from_millis(3920))
    );
    assert_eq!(count_admitted(CLIENT, later), 4);
    assert_eq!(
        count_admitted(CLIENT, start + Duration::from_secs(9)),
        max_at_once
    );
    let admitted_of_one_network: usize = ["2001:db8::1", "2001:db8::2"]
        .map(|text| count_admitted(text.parse().expect("an address"), start))
        .iter()
        .sum();
    assert_eq!(admitted_of_one_network, max_at_once);
}

/// The negotiated protocol is the one that the client offers, the certificate is valid for the name, and the next
/// connection is resumed.
#[test]
fn a_client_that_trusts_the_authority_is_served_and_resumes_its_session() {
    let mint = mint(MintConfig::default());
    let mut client = ClientConfig::builder()
        .with_root_certificates(roots(&mint))
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = Arc::new(client);
    for name in ["example.com", "192.0.2.1", "2001:db8::1"] {
        for kind in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
            let alpn: [&[u8]; 2] = [b"h2", b"http/1.1"];
            let (connection, _) = handshake(&mint, Arc::clone(&client), name, ECDSA, &alpn);
            assert_eq!(connection.handshake_kind(), Some(kind), "{name}");
            assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
        }
    }
}

/// Makes a full handshake with a client that trusts the mint's authority, and returns the leaf that the client received.
fn receive_leaf(mint: &Mint, name: &str, support: ClientSupport) -> CertificateDer<'static> {
    let mut config = ClientConfig::builder_with_details(
        Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
        Arc::clone(&mint.config.clock),
    )
    .with_safe_default_protocol_versions()
    .expect("versions")
    .with_root_certificates(roots(mint))
    .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    handshake(mint, Arc::new(config), name, support, &[]).1
}

fn roots(mint: &Mint) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let authority = mint.authority();
    roots
        .add(authority.certificate_der().clone())
        .expect("a root");
    roots
}

/// Makes a handshake in memory. The server is configured once it has the ClientHello, as in the proxy.
fn handshake(
    mint: &Mint,
    client: Arc<ClientConfig>,
    name: &str,
    support: ClientSupport,
    alpn: &[&[u8]],
) -> (ClientConnection, CertificateDer<'static>) {
    let host = host(name);
    let mut client = ClientConnection::new(client, host.to_server_name()).expect("a client");
    let accepted = in_memory::begin(&mut client).expect("a ClientHello");
    let hello = accepted.client_hello();
    assert_eq!(ClientSupport::from_client_hello(&hello), ECDSA);
    assert_eq!(hello.server_name(), host.as_name());
    let config: Arc<ServerConfig> =
        block_on(mint.server_config(&host, support, alpn)).expect("a certificate");
    in_memory::finish(&mut client, accepted, config).expect("what both accept");
    let leaf = client
        .peer_certificates()
        .and_then(<[_]>::first)
        .expect("a certificate");
    let leaf = leaf.clone().into_owned();
    (client, leaf)
}

fn authority_key_id<'a>(leaf: &'a x509_parser::certificate::X509Certificate<'_>) -> &'a [u8] {
    leaf.extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                id.key_identifier.as_ref().map(|id| id.0)
            }
            _ => None,
        })
        .expect("an authority key identifier")
}

fn mint(config: MintConfig) -> Mint {
    Mint::with_config(authority(Vec::new()), config).expect("a mint")
}

fn authority(permitted: Vec<Subtree>) -> Authority {
    Authority::ephemeral(&AuthorityOptions {
        common_name: "peername test".to_owned(),
        days: 365,
        permitted,
    })
    .expect("an authority")
}

fn host(name: &str) -> Host {
    Host::parse(name).expect("a host")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

/// A wall clock that the test sets.
#[derive(Debug)]
struct Clock(AtomicU64);

impl Clock {
    fn now() -> Self {
        Self(AtomicU64::new(UnixTime::now().as_secs()))
    }

    fn seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn jump(&self, seconds: i64) {
        self.0.store(
            self.seconds().saturating_add_signed(seconds),
            Ordering::Relaxed,
        );
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            self.seconds(),
        )))
    }
}

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const ECDSA: ClientSupport = ClientSupport { ecdsa: true };
const HOUR: i64 = 3600;
