//! Encodes a keystore of certificates for Java.
//!
//! PKCS #12 (RFC 7292) without encryption and without a checksum, the format of a JDK's own `cacerts` since
//! version 18: certificates are no secret, and a well-known password protects nothing. Without
//! cryptography, the encoder is smaller than a library would be.

use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, DERWriterSeq, Tag, construct_der};

/// Encodes a keystore that trusts these certificates: a PFX (section 4) of one SafeContents.
pub(super) fn encode<C: AsRef<[u8]>>(certificates: &[C]) -> Vec<u8> {
    let safe_contents = construct_der(|writer| {
        writer.write_sequence(|writer| {
            for (number, certificate) in certificates.iter().enumerate() {
                safe_bag(writer.next(), number, certificate.as_ref());
            }
        });
    });
    let authenticated_safe = construct_der(|writer| {
        writer.write_sequence(|writer| content_info(writer.next(), &safe_contents));
    });
    construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(PFX_VERSION);
            content_info(writer.next(), &authenticated_safe);
        });
    })
}

/// ContentInfo of type data (RFC 5652, section 4).
fn content_info(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_sequence(|writer| {
        oid(writer, DATA);
        writer
            .next()
            .write_tagged(Tag::context(0), |writer| writer.write_bytes(bytes));
    });
}

/// SafeBag with a CertBag. Java identifies entries by their friendly name, and trusts a certificate only if an attribute of
/// Oracle's names its purpose.
fn safe_bag(writer: DERWriter<'_>, number: usize, certificate: &[u8]) {
    writer.write_sequence(|writer| {
        oid(writer, CERT_BAG);
        writer.next().write_tagged(Tag::context(0), |writer| {
            writer.write_sequence(|writer| {
                oid(writer, X509_CERTIFICATE);
                writer
                    .next()
                    .write_tagged(Tag::context(0), |writer| writer.write_bytes(certificate));
            });
        });
        writer.next().write_set_of(|writer| {
            attribute(writer.next(), FRIENDLY_NAME, |writer| {
                writer.write_bmp_string(&number.to_string());
            });
            attribute(writer.next(), TRUSTED_KEY_USAGE, |writer| {
                writer.write_oid(&ObjectIdentifier::from_slice(ANY_EXTENDED_KEY_USAGE));
            });
        });
    });
}

fn attribute(writer: DERWriter<'_>, kind: &[u64], value: impl FnOnce(DERWriter<'_>)) {
    writer.write_sequence(|writer| {
        oid(writer, kind);
        writer.next().write_set_of(|writer| value(writer.next()));
    });
}

fn oid(writer: &mut DERWriterSeq<'_>, arcs: &[u64]) {
    writer.next().write_oid(&ObjectIdentifier::from_slice(arcs));
}

const PFX_VERSION: u8 = 3;
const DATA: &[u64] = &[1, 2, 840, 113549, 1, 7, 1];
const CERT_BAG: &[u64] = &[1, 2, 840, 113549, 1, 12, 10, 1, 3];
const X509_CERTIFICATE: &[u64] = &[1, 2, 840, 113549, 1, 9, 22, 1];
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113549, 1, 9, 20];
/// Oracle's attribute for the purpose of a trusted certificate; all JDKs use it.
const TRUSTED_KEY_USAGE: &[u64] = &[2, 16, 840, 1, 113894, 746875, 1, 1];
const ANY_EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37, 0];
