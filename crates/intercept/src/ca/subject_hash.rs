//! The name under which OpenSSL looks up an authority in a directory (c_rehash(1)): a hash of the certificate's subject.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::Tag;
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::AttributeTypeAndValue;
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, construct_der};

/// The hash as OpenSSL writes it (`openssl x509 -subject_hash`): eight hexadecimal digits. `None` if the certificate can't be
/// parsed.
///
/// The hash covers the subject in a canonical form (`X509_NAME_hash_ex`): the relative names without the sequence around them,
/// text as UTF-8 in lower case, with single spaces.
#[must_use]
pub fn subject_hash(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let mut canonical = Vec::new();
    for relative in parsed.subject().iter_rdn() {
        canonical.extend(construct_der(|writer| {
            writer.write_set_of(|writer| {
                for attribute in relative.iter() {
                    write_attribute(writer.next(), attribute);
                }
            });
        }));
    }
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &canonical);
    let word = u32::from_le_bytes(*hash.as_ref().first_chunk()?);
    Some(format!("{word:08x}"))
}

fn write_attribute(writer: DERWriter<'_>, attribute: &AttributeTypeAndValue<'_>) {
    let arcs: Vec<u64> = attribute
        .attr_type()
        .iter()
        .map(Iterator::collect)
        .unwrap_or_default();
    let value = attribute.attr_value();
    writer.write_sequence(|writer| {
        writer
            .next()
            .write_oid(&ObjectIdentifier::from_slice(&arcs));
        match text(value.tag(), value.data) {
            Some(text) => writer.next().write_utf8_string(&canonical(&text)),
            // No authority has such a value in its name. The hash would not be OpenSSL's.
            None => writer.next().write_null(),
        }
    });
}

/// The text of a string type; `None` for another type.
fn text(tag: Tag, data: &[u8]) -> Option<String> {
    match tag {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => {
            String::from_utf8(data.to_vec()).ok()
        }
        Tag::T61String => Some(data.iter().copied().map(char::from).collect()),
        _ => None,
    }
}

fn canonical(text: &str) -> String {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    words.join(" ").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::ca::{Authority, AuthorityOptions, to_pem};

    #[test]
    fn hash_equals_that_of_openssl() {
        for name in ["peername on host", "  Two   Words\u{e9} ", "x"] {
            let authority = Authority::ephemeral(&AuthorityOptions {
                common_name: name.to_owned(),
                days: 1,
                permitted: Vec::new(),
            });
            let certificate = authority.unwrap().certificate_der().clone();
            let mut openssl = Command::new("openssl")
                .args(["x509", "-noout", "-subject_hash"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("openssl");
            let pem = to_pem(std::slice::from_ref(&certificate));
            openssl
                .stdin
                .take()
                .unwrap()
                .write_all(pem.as_bytes())
                .unwrap();
            let printed = openssl.wait_with_output().unwrap().stdout;
            let expected = String::from_utf8(printed).unwrap();
            assert_eq!(subject_hash(&certificate).as_deref(), Some(expected.trim()));
        }
    }
}
