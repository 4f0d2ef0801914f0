//! What a leaf looks like: no more than what clients of today ask for.

use std::net::IpAddr;
use std::ops::Range;

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyUsagePurpose, PublicKeyData,
    SigningKey,
};
use rustls::pki_types::CertificateDer;
use yasna::models::ObjectIdentifier;
use yasna::{ASN1Result, BERReader, DERWriter, Tag, construct_der, parse_der};

use super::Error;
use crate::ca::{Authority, date, random_serial};
use crate::host::Host;

/// What all leaves of one key have in common, octet for octet as rcgen writes it: all but the serial number,
/// the name and the signature. What is left to do for one then is little beside the signature.
#[derive(Debug)]
pub(super) struct Pattern {
    version: Vec<u8>,
    /// How the authority signs.
    algorithm: Vec<u8>,
    /// Issuer, validity, subject and public key.
    middle: Vec<Vec<u8>>,
    /// All but the subject alternative name.
    extensions: Vec<Vec<u8>>,
}

impl Pattern {
    /// For leaves of this key that are valid from and until these seconds since 1970.
    pub(super) fn new(
        authority: &Authority,
        validity: &Range<u64>,
        public: &impl PublicKeyData,
    ) -> Result<Self, Error> {
        let first = params(validity)?.signed_by(public, authority.issuer())?;
        parse_der(first.der(), Self::read)
            .map_err(|_| Error::Making(rcgen::Error::CouldNotParseCertificate))
    }

    /// Of a certificate (RFC 5280, section 4.1) without a subject alternative name.
    fn read(certificate: BERReader<'_, '_>) -> ASN1Result<Self> {
        certificate.read_sequence(|parts| {
            let pattern = parts.next().read_sequence(|fields| {
                let version = fields.next().read_der()?;
                let _serial = fields.next().read_der()?;
                let algorithm = fields.next().read_der()?;
                let middle = (0..4).map(|_| fields.next().read_der());
                Ok(Self {
                    version,
                    algorithm,
                    middle: middle.collect::<ASN1Result<_>>()?,
                    extensions: fields.next().read_tagged(EXTENSIONS, |extensions| {
                        extensions.collect_sequence_of(|one| one.read_der())
                    })?,
                })
            });
            let (_algorithm, _signature) = (parts.next().read_der()?, parts.next().read_der()?);
            pattern
        })
    }

    /// One for this host and no other name.
    pub(super) fn leaf(
        &self,
        host: &Host,
        authority: &Authority,
    ) -> Result<CertificateDer<'static>, Error> {
        let serial = random_serial();
        let content = construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_der(&self.version);
                fields.next().write_bigint_bytes(serial.as_ref(), true);
                fields.next().write_der(&self.algorithm);
                for field in &self.middle {
                    fields.next().write_der(field);
                }
                fields.next().write_tagged(EXTENSIONS, |writer| {
                    writer.write_sequence(|extensions| {
                        for extension in &self.extensions {
                            extensions.next().write_der(extension);
                        }
                        write_name(extensions.next(), host);
                    });
                });
            });
        });
        let signature = authority.issuer().key().sign(&content)?;
        let leaf = construct_der(|writer| {
            writer.write_sequence(|parts| {
                parts.next().write_der(&content);
                parts.next().write_der(&self.algorithm);
                let bits = signature.len() * 8;
                parts.next().write_bitvec_bytes(&signature, bits);
            });
        });
        Ok(leaf.into())
    }
}

/// No subject, for a common name is read by nobody any more (RFC 9525, section 2), and has no room for long
/// ones. No subject key identifier, for a leaf issues nothing.
pub(super) fn params(validity: &Range<u64>) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(random_serial());
    params.not_before = date(validity.start)?;
    params.not_after = date(validity.end)?;
    // Strict clients (Python since 3.13) refuse a leaf without it; rcgen repeats what the authority's
    // certificate states.
    params.use_authority_key_identifier_extension = true;
    // Both keys sign only: RSA key exchange is not to be had in rustls.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// The subject alternative name (RFC 5280, section 4.2.1.6), critical because there is no subject.
fn write_name(extension: DERWriter<'_>, host: &Host) {
    let value = construct_der(|writer| {
        writer.write_sequence(|names| match host.as_ip() {
            Some(IpAddr::V4(ip)) => write_octets(names.next(), IP_ADDRESS, &ip.octets()),
            Some(IpAddr::V6(ip)) => write_octets(names.next(), IP_ADDRESS, &ip.octets()),
            None => {
                let name = host.as_name().unwrap_or_default();
                write_octets(names.next(), DNS_NAME, name.as_bytes());
            }
        });
    });
    extension.write_sequence(|parts| {
        let id = ObjectIdentifier::from_slice(SUBJECT_ALTERNATIVE_NAME);
        parts.next().write_oid(&id);
        parts.next().write_bool(true);
        parts.next().write_bytes(&value);
    });
}

fn write_octets(writer: DERWriter<'_>, tag: Tag, octets: &[u8]) {
    writer.write_tagged_implicit(tag, |writer| writer.write_bytes(octets));
}

/// Of a certificate's fields.
const EXTENSIONS: Tag = context(3);
/// Of a GeneralName's forms.
const DNS_NAME: Tag = context(2);
const IP_ADDRESS: Tag = context(7);
/// id-ce-subjectAltName.
const SUBJECT_ALTERNATIVE_NAME: &[u64] = &[2, 5, 29, 17];

const fn context(tag_number: u64) -> Tag {
    Tag {
        tag_class: yasna::TagClass::ContextSpecific,
        tag_number,
    }
}
