//! Leaf certificates, with only those fields that current clients require.

use std::net::IpAddr;
use std::ops::Range;

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyUsagePurpose, PublicKeyData,
    SigningKey,
};
use rustls::pki_types::CertificateDer;
use yasna::models::ObjectIdentifier;
use yasna::{ASN1Result, BERReader, DERWriter, Tag, construct_der, parse_der};

use super::error::MintError;
use crate::ca::Authority;
use crate::ca::profile::random_serial;
use crate::ca::validity::date;
use crate::host::Host;

/// What all leaves of one key have in common, byte for byte as rcgen writes it: all but the serial number, the name and the
/// signature. Making a leaf from it costs little beside the signature.
#[derive(Debug)]
pub(super) struct LeafTemplate {
    version: Vec<u8>,
    /// The authority's signature algorithm.
    algorithm: Vec<u8>,
    /// Issuer, validity, subject and public key.
    middle: Vec<Vec<u8>>,
    /// All but the subject alternative name.
    extensions: Vec<Vec<u8>>,
}

impl LeafTemplate {
    /// The template for leaves of this key that are valid from and until these seconds since 1970.
    ///
    /// # Errors
    ///
    /// [`MintError::Making`].
    pub(super) fn new(
        authority: &Authority,
        validity: &Range<u64>,
        public: &impl PublicKeyData,
    ) -> Result<Self, MintError> {
        let first = leaf_params(validity)?.signed_by(public, authority.issuer())?;
        parse_der(first.der(), Self::read)
            .map_err(|_| MintError::Making(rcgen::Error::CouldNotParseCertificate))
    }

    /// Reads it from a certificate (RFC 5280, section 4.1) without a subject alternative name.
    fn read(certificate: BERReader<'_, '_>) -> ASN1Result<Self> {
        certificate.read_sequence(|parts| {
            let template = parts.next().read_sequence(|fields| {
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
            template
        })
    }

    /// Makes and signs a leaf for this host and no other name.
    ///
    /// # Errors
    ///
    /// [`MintError::Making`] if signing fails.
    pub(super) fn sign_leaf(
        &self,
        host: &Host,
        authority: &Authority,
    ) -> Result<CertificateDer<'static>, MintError> {
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
                        write_alternative_name(extensions.next(), host);
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

/// The parameters of a leaf. No subject: clients don't read the common name any more (RFC 9525, section 2), and long names
/// don't fit in it. No subject key identifier: a leaf issues nothing.
pub(super) fn leaf_params(validity: &Range<u64>) -> Result<CertificateParams, MintError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(random_serial());
    params.not_before = date(validity.start)?;
    params.not_after = date(validity.end)?;
    // Strict clients (Python since 3.13) refuse a leaf without it; rcgen repeats what the authority's certificate states.
    params.use_authority_key_identifier_extension = true;
    // Both keys only sign: rustls has no RSA key exchange.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// Writes the subject alternative name (RFC 5280, section 4.2.1.6), critical because there is no subject.
fn write_alternative_name(extension: DERWriter<'_>, host: &Host) {
    let value = construct_der(|writer| {
        writer.write_sequence(|names| match host.as_ip() {
            Some(IpAddr::V4(ip)) => write_general_name(names.next(), IP_ADDRESS, &ip.octets()),
            Some(IpAddr::V6(ip)) => write_general_name(names.next(), IP_ADDRESS, &ip.octets()),
            None => {
                let name = host.as_name().unwrap_or_default();
                write_general_name(names.next(), DNS_NAME, name.as_bytes());
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

fn write_general_name(writer: DERWriter<'_>, tag: Tag, bytes: &[u8]) {
    writer.write_tagged_implicit(tag, |writer| writer.write_bytes(bytes));
}

/// The field of a certificate that holds its extensions.
const EXTENSIONS: Tag = context(3);
/// Forms of a GeneralName.
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
