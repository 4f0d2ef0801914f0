//! Diagnosis of a TLS handshake that an origin refused.
//!
//! An origin without a common cipher suite, or one that requests a client certificate, mostly sends only the alert "handshake
//! failure". So a second connection offers what the proxy does not support, by a ClientHello of TLS 1.2: what the origin then
//! selects or requests is the cause. The connection is closed after the origin's first flight. Nothing of it is verified,
//! because it only makes an error text.

use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What an origin demands and the proxy does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Incompatibility {
    /// TLS 1.0, 1.1 or SSL 3.
    #[error("the origin speaks no TLS 1.2 or 1.3, but an older version")]
    OldVersion,
    #[error("the origin selects a cipher suite with RSA key exchange, without forward secrecy")]
    RsaKeyExchange,
    #[error("the origin selects a cipher suite with Diffie-Hellman over a finite field")]
    FiniteFieldDh,
    #[error("the origin selects a cipher suite in CBC mode")]
    Cbc,
    #[error("the origin wants a client certificate")]
    ClientCertificate,
}

/// Whether an origin's alert is about a client certificate (RFC 8446, section 6.2). In TLS 1.3 the alert comes after the handshake.
pub(crate) fn wants_client_certificate(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        error,
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
                | Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateUnknown
        )
    )
}

/// Diagnoses an origin on a new connection; `None` if it sends no valid response in time, or the cause is another one.
pub(crate) async fn diagnose(
    mut socket: TcpStream,
    name: &ServerName<'_>,
) -> Option<Incompatibility> {
    let exchange = async {
        socket.write_all(&client_hello(name)).await.ok()?;
        let mut flight = Flight::default();
        let mut buffer = [0; 4096];
        for _ in 0..MAX_READS {
            let len = socket.read(&mut buffer).await.unwrap_or_default();
            if len == 0 {
                break;
            }
            flight.bytes.extend_from_slice(buffer.get(..len)?);
            if flight.is_complete() || flight.bytes.len() > MAX_FLIGHT {
                break;
            }
        }
        flight.incompatibility()
    };
    timeout(TIME_LIMIT, exchange).await.ok()?
}

/// The records that the origin has sent so far.
#[derive(Debug, Default)]
struct Flight {
    bytes: Vec<u8>,
}

impl Flight {
    /// The type and body of each complete handshake message (RFC 5246, section 7.4). A message may be split over records.
    fn messages(&self) -> Vec<(u8, Vec<u8>)> {
        let mut handshake = Vec::new();
        let mut records = self.bytes.as_slice();
        while let [HANDSHAKE, _, _, a, b, rest @ ..] = records {
            let len = usize::from(u16::from_be_bytes([*a, *b]));
            let (fragment, next) = rest.split_at(len.min(rest.len()));
            handshake.extend_from_slice(fragment);
            records = next;
        }
        let mut messages = Vec::new();
        let mut rest = handshake.as_slice();
        while let [kind, a, b, c, body @ ..] = rest {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some((body, next)) = body.split_at_checked(len) else {
                break;
            };
            messages.push((*kind, body.to_vec()));
            rest = next;
        }
        messages
    }

    fn is_complete(&self) -> bool {
        let is_alert = self.bytes.first().is_some_and(|kind| *kind != HANDSHAKE);
        is_alert
            || self
                .messages()
                .iter()
                .any(|(kind, _)| *kind == SERVER_HELLO_DONE)
    }

    fn incompatibility(&self) -> Option<Incompatibility> {
        let messages = self.messages();
        let (_, hello) = messages.iter().find(|(kind, _)| *kind == SERVER_HELLO)?;
        let (version, rest) = hello.split_first_chunk::<2>()?;
        let session_id_len = usize::from(*rest.get(RANDOM_LEN)?);
        let suite = rest.get(RANDOM_LEN + 1 + session_id_len..)?.first_chunk()?;
        let suite = u16::from_be_bytes(*suite);
        let offered = OFFERED
            .iter()
            .find(|offered| offered.suites.contains(&suite))?;
        if u16::from_be_bytes(*version) < TLS12 {
            return Some(Incompatibility::OldVersion);
        }
        match offered.lacking {
            Some(lacking) => Some(lacking),
            None => messages
                .iter()
                .any(|(kind, _)| *kind == CERTIFICATE_REQUEST)
                .then_some(Incompatibility::ClientCertificate),
        }
    }
}

/// A ClientHello of TLS 1.2 (RFC 5246, section 7.4.1.2) in a record.
fn client_hello(name: &ServerName<'_>) -> Vec<u8> {
    let suites: Vec<u8> = OFFERED
        .iter()
        .flat_map(|offered| offered.suites)
        .flat_map(|suite| suite.to_be_bytes())
        .collect();
    let mut extensions = Vec::new();
    if let ServerName::DnsName(name) = name {
        let name = [&[0][..], &with_len16(name.as_ref().as_bytes())].concat();
        push_extension(&mut extensions, SERVER_NAME, &with_len16(&name));
    }
    // X25519, secp256r1, secp384r1, secp521r1.
    let groups = with_len16(&[0, 29, 0, 23, 0, 24, 0, 25]);
    push_extension(&mut extensions, SUPPORTED_GROUPS, &groups);
    push_extension(&mut extensions, EC_POINT_FORMATS, &[1, 0]);
    // ECDSA, RSA-PSS and PKCS #1, with SHA-256 to SHA-512 and SHA-1.
    let schemes = with_len16(&[
        4, 3, 5, 3, 6, 3, 8, 4, 8, 5, 8, 6, 4, 1, 5, 1, 6, 1, 2, 3, 2, 1,
    ]);
    push_extension(&mut extensions, SIGNATURE_ALGORITHMS, &schemes);
    push_extension(&mut extensions, RENEGOTIATION_INFO, &[0]);
    let body = [
        &TLS12.to_be_bytes()[..],
        // The random, which need not be random here: no key is derived from it.
        &[0x70; RANDOM_LEN],
        &[0],
        &with_len16(&suites),
        &[1, 0],
        &with_len16(&extensions),
    ]
    .concat();
    let message = [&[CLIENT_HELLO, 0][..], &with_len16(&body)].concat();
    [&[HANDSHAKE, 3, 1][..], &with_len16(&message)].concat()
}

fn push_extension(extensions: &mut Vec<u8>, kind: u16, body: &[u8]) {
    extensions.extend_from_slice(&kind.to_be_bytes());
    extensions.extend_from_slice(&with_len16(body));
}

/// The bytes after their length in two bytes. All arguments are shorter than 64 KiB.
fn with_len16(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], bytes].concat()
}

/// Cipher suites, and what the origin demands if it selects one of them; `None` for those that the proxy supports.
struct Offered {
    suites: &'static [u16],
    lacking: Option<Incompatibility>,
}

/// The offered cipher suites (IANA's registry), in the order of preference.
const OFFERED: [Offered; 4] = [
    Offered {
        // ECDHE with AES-GCM or ChaCha20-Poly1305.
        suites: &[0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8],
        lacking: None,
    },
    Offered {
        // ECDHE with AES-CBC, and with 3DES.
        suites: &[
            0xc023, 0xc027, 0xc024, 0xc028, 0xc009, 0xc013, 0xc00a, 0xc014, 0xc008, 0xc012,
        ],
        lacking: Some(Incompatibility::Cbc),
    },
    Offered {
        // DHE with AES-GCM, ChaCha20-Poly1305, AES-CBC and 3DES.
        suites: &[
            0x009e, 0x009f, 0xccaa, 0x0067, 0x006b, 0x0033, 0x0039, 0x0016,
        ],
        lacking: Some(Incompatibility::FiniteFieldDh),
    },
    Offered {
        // RSA with AES-GCM, AES-CBC, 3DES and RC4.
        suites: &[
            0x009c, 0x009d, 0x003c, 0x003d, 0x002f, 0x0035, 0x000a, 0x0005,
        ],
        lacking: Some(Incompatibility::RsaKeyExchange),
    },
];

const TLS12: u16 = 0x0303;
const RANDOM_LEN: usize = 32;
// Types of records and messages (RFC 5246, sections 6.2.1 and 7.4).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE_REQUEST: u8 = 13;
const SERVER_HELLO_DONE: u8 = 14;
// Types of extensions.
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const EC_POINT_FORMATS: u16 = 11;
const SIGNATURE_ALGORITHMS: u16 = 13;
const RENEGOTIATION_INFO: u16 = 0xff01;
/// The maximum number of bytes of the origin's flight, with its certificates, and the names of authorities for client certificates.
const MAX_FLIGHT: usize = 128 * 1024;
/// The maximum number of reads. The whole flight is parsed after each read, and the origin chooses how the flight is split.
const MAX_READS: usize = 256;
/// The time limit of a diagnosis.
const TIME_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, 0][..], &with_len16(body)].concat()
    }

    fn server_hello(version: u16, suite: u16) -> Vec<u8> {
        let (version, suite) = (version.to_be_bytes(), suite.to_be_bytes());
        let session_id = [2, 7, 7];
        let body = [&version[..], &[1; RANDOM_LEN], &session_id, &suite, &[0]].concat();
        message(SERVER_HELLO, &body)
    }

    fn records(handshake: &[u8], len: usize) -> Vec<u8> {
        handshake
            .chunks(len)
            .flat_map(|part| [&[HANDSHAKE, 3, 3][..], &with_len16(part)].concat())
            .collect()
    }

    #[test]
    fn version_cipher_suite_or_certificate_request_of_the_origin_is_the_cause() {
        for (version, suite, requests_certificate, cause) in [
            (TLS12, 0xc02f, false, None),
            (
                TLS12,
                0xc02f,
                true,
                Some(Incompatibility::ClientCertificate),
            ),
            (TLS12, 0xc013, true, Some(Incompatibility::Cbc)),
            (TLS12, 0x009e, false, Some(Incompatibility::FiniteFieldDh)),
            (TLS12, 0x002f, false, Some(Incompatibility::RsaKeyExchange)),
            (0x0301, 0xc013, false, Some(Incompatibility::OldVersion)),
            (TLS12, 0x1301, false, None),
        ] {
            let certificate = message(11, &[1; 3000]);
            let request = if requests_certificate {
                message(CERTIFICATE_REQUEST, &[])
            } else {
                Vec::new()
            };
            let done = message(SERVER_HELLO_DONE, &[]);
            let handshake = [server_hello(version, suite), certificate, request, done].concat();
            for len in [1, 7, 100, 4000] {
                let bytes = records(&handshake, len);
                let flight = Flight {
                    bytes: bytes.clone(),
                };
                assert!(flight.is_complete());
                assert_eq!(flight.incompatibility(), cause, "{version:x} {suite:x}");
                // A truncated flight causes no panic.
                for end in (0..bytes.len()).step_by(11) {
                    let flight = Flight {
                        bytes: bytes[..end].to_vec(),
                    };
                    flight.incompatibility();
                }
            }
        }
        let alert = Flight {
            bytes: vec![21, 3, 3, 0, 2, 2, 40],
        };
        assert!(alert.is_complete() && alert.incompatibility().is_none());
    }
}
