//! Certificates for hostile names: no panic; a minted certificate is for that host only, and a client accepts it; a
//! certificate that a client would refuse is not minted.
#![no_main]

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use peername_intercept::ca::mint::client_support::ClientSupport;
use peername_intercept::ca::mint::config::MintConfig;
use peername_intercept::ca::mint::error::MintError;
use peername_intercept::ca::mint::{Mint, in_memory};
use peername_intercept::ca::{Authority, AuthorityOptions};
use peername_intercept::host::Host;
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// The mints of two CAs: one without name constraints, and one with a few permitted names.
static MINTS: LazyLock<[MintWithClient; 2]> = LazyLock::new(|| {
    let permitted = ["corp.test", "x", "192.0.2.0/24", "2001:db8::/32"];
    [&[][..], &permitted].map(MintWithClient::new)
});

/// A mint, and the configuration of a TLS client that trusts its CA.
struct MintWithClient {
    mint: Mint,
    client: Arc<ClientConfig>,
    runtime: tokio::runtime::Runtime,
}

impl MintWithClient {
    fn new(permitted: &[&str]) -> Self {
        let authority = Authority::ephemeral(&AuthorityOptions {
            common_name: "fuzz".to_owned(),
            days: 30,
            permitted: permitted
                .iter()
                .map(|entry| entry.parse().expect("a name or a network"))
                .collect(),
        })
        .expect("an authority");
        let config = MintConfig {
            per_client: u32::MAX,
            ..MintConfig::default()
        };
        let mint = Mint::with_config(authority, config).expect("a mint");
        let mut roots = RootCertStore::empty();
        roots
            .add(mint.authority().certificate_der().clone())
            .expect("a root");
        let mut client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        Self {
            mint,
            client: Arc::new(client),
            runtime,
        }
    }
}

fuzz_target!(|text: &str| {
    let Ok(host) = Host::parse(text) else {
        return;
    };
    for mint_with_client in &*MINTS {
        check_certificate(mint_with_client, &host);
    }
});

fn check_certificate(mint_with_client: &MintWithClient, host: &Host) {
    let mut client =
        ClientConnection::new(Arc::clone(&mint_with_client.client), host.to_server_name())
            .expect("a client");
    let accepted = in_memory::begin(&mut client).expect("a ClientHello");
    let support = ClientSupport::from_client_hello(&accepted.client_hello());
    let minted = mint_with_client
        .runtime
        .block_on(mint_with_client.mint.server_config(host, support, &[]));
    let config = match minted {
        Ok(config) => config,
        Err(MintError::NotPermitted(_)) => {
            return assert!(!mint_with_client.mint.authority().permits(host));
        }
        Err(error) => panic!("{host}: {error}"),
    };
    in_memory::finish(&mut client, accepted, config)
        .unwrap_or_else(|error| panic!("{host}: {error}"));
    let leaf = client
        .peer_certificates()
        .and_then(<[_]>::first)
        .expect("a certificate");
    let (_, leaf) = parse_x509_certificate(leaf).expect("DER");
    let names = leaf
        .subject_alternative_name()
        .expect("a readable extension")
        .expect("a subject alternative name");
    let names_only_host = match (host.as_name(), host.as_ip()) {
        (None, Some(IpAddr::V4(ip))) => {
            names.value.general_names == [GeneralName::IPAddress(&ip.octets())]
        }
        (None, Some(IpAddr::V6(ip))) => {
            names.value.general_names == [GeneralName::IPAddress(&ip.octets())]
        }
        (name, _) => names.value.general_names == [GeneralName::DNSName(name.unwrap_or_default())],
    };
    assert!(
        names_only_host && leaf.subject().iter().count() == 0 && !leaf.is_ca(),
        "{host}: {names:?}"
    );
}
