use std::fs;
use std::path::Path;

use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384};
use rustls::pki_types::UnixTime;
use tempfile::tempdir;
use x509_parser::parse_x509_certificate;

use super::{
    Authority, AuthorityDefect, AuthorityOptions, CaError, CaStore, MAX_PREVIOUS, pem, profile,
    validity,
};
use crate::host::Host;

#[test]
fn name_constraints_bind_an_authority_to_the_permitted_hosts() {
    let cases: [(&[&str], &[&str], &[&str]); 3] = [
        (
            &["example.com"],
            &["example.com", "a.b.example.com"],
            &["example.org", "notexample.com", "192.0.2.1", "2001:db8::1"],
        ),
        (
            &["192.0.2.0/24"],
            &["192.0.2.7"],
            &["192.0.3.7", "2001:db8::1", "example.com"],
        ),
        (
            &["corp.example", "2001:db8::/32"],
            &["x.corp.example", "2001:db8::1"],
            &["example", "2001:db9::1", "192.0.2.1"],
        ),
    ];
    for (permitted, yes, no) in cases {
        let authority = Authority::ephemeral(&options(permitted)).expect("an authority");
        let permits = |host: &&str| authority.permits(&Host::parse(host).expect("a host"));
        assert!(yes.iter().all(permits), "{permitted:?}");
        assert!(!no.iter().any(permits), "{permitted:?}");
        let (_, certificate) = parse_x509_certificate(authority.certificate_der()).expect("DER");
        let constraints = certificate.name_constraints().expect("readable");
        assert!(constraints.expect("there").critical);
    }
}

#[test]
fn a_rotation_keeps_constraints_and_the_old_certificate() {
    let parent = tempdir().expect("a directory");
    let dir = parent.path().join("new");
    let old = Authority::create(&dir, &options(&["example.com"])).expect("an authority");
    let new = Authority::rotate(&dir).expect("another");
    assert_eq!(new.facts().permitted(), old.facts().permitted());
    assert_ne!(new.facts().subject, old.facts().subject);
    assert_ne!(new.subject_key_id(), old.subject_key_id());
    let both = [new.certificate_der(), old.certificate_der()];
    assert_eq!(new.certificates().iter().collect::<Vec<_>>(), both);
    let third = Authority::rotate(&dir).expect("a third");
    assert_eq!(third.certificates().len(), 3);
    assert_eq!(
        third.facts().not_after - third.facts().not_before,
        366 * validity::DAY
    );
}

/// Rotation is needed most once the authority has expired.
#[test]
fn an_expired_authority_can_be_rotated_and_leaves_no_predecessor() {
    let dir = tempdir().expect("a directory");
    Authority::create(dir.path(), &options(&[])).expect("an authority");
    let long_ago = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_000_000_000));
    let (key, certificate) = profile::make(&options(&[]), long_ago).expect("an old one");
    let text = pem::encode_authority(&key, &certificate);
    fs::write(Authority::file(dir.path()), text).expect("a file");
    assert_eq!(defect(dir.path()), AuthorityDefect::Expired);
    let new = Authority::rotate(dir.path()).expect("another");
    assert_eq!(new.certificates().len(), 1);
}

/// A longer file than that is still read as a whole.
#[test]
fn rotation_drops_the_oldest_of_too_many_predecessors() {
    let dir = tempdir().expect("a directory");
    let old = Authority::create(dir.path(), &options(&[])).expect("an authority");
    let previous = dir.path().join("previous.pem");
    let text = old.certificate_pem().repeat(1000);
    fs::write(&previous, &text).expect("a file");
    let opened = Authority::open(dir.path()).expect("an authority");
    assert_eq!(opened.predecessors().len(), 1000);
    let first = Authority::rotate(dir.path()).expect("another");
    let second = Authority::rotate(dir.path()).expect("a third");
    assert_eq!(second.previous.first(), Some(first.certificate_der()));
    let kept = second.predecessors().len();
    assert!((300..1000).contains(&kept), "{kept}");
    assert!(fs::read(&previous).expect("a file").len() <= MAX_PREVIOUS);
}

#[test]
fn failed_replacement_leaves_no_draft() {
    let dir = tempdir().expect("a directory");
    let store = CaStore::create(dir.path()).expect("a store");
    fs::create_dir(Authority::file(dir.path())).expect("a directory in the way");
    let path = store.path();
    store.replace(&path, "a key").expect_err("rename(2) fails");
    assert_eq!(fs::read_dir(dir.path()).expect("its files").count(), 1);
}

/// RFC 5280, appendix A.1, allows no other type.
#[test]
fn serial_number_of_the_subject_is_a_printable_string() {
    let authority = Authority::ephemeral(&options(&[])).expect("an authority");
    let subject = &authority.facts.subject_der;
    // The attribute's type, 2.5.4.5, then tag and length of its value.
    let attribute = [0x06, 0x03, 0x55, 0x04, 0x05, 0x13, 0x08];
    assert!(
        subject
            .windows(attribute.len())
            .any(|bytes| bytes == attribute),
        "{subject:02x?}"
    );
}

#[test]
fn each_defect_is_named() {
    let now = UnixTime::now();
    let (key, certificate) = profile::make(&options(&[]), now).expect("an authority");
    let (other_key, other_certificate) = profile::make(&options(&[]), now).expect("another");
    let ours = key.serialize_pem();
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256)
        .expect("RSA")
        .serialize_pem();
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384)
        .expect("P-384")
        .serialize_pem();
    let good = pem::encode_certificates(std::slice::from_ref(&certificate));
    let leaf = rcgen::CertificateParams::default()
        .self_signed(&key)
        .expect("a leaf");
    let damaged = good.replacen("MIIB", "MIIC", 1);
    let dir = tempdir().expect("a directory");
    Authority::create(dir.path(), &options(&[])).expect("an authority");
    for (text, expected) in [
        (String::new(), AuthorityDefect::NoKey),
        (good.clone(), AuthorityDefect::NoKey),
        (
            ours.replace("PRIVATE", "ENCRYPTED PRIVATE") + &good,
            AuthorityDefect::Encrypted,
        ),
        (ours.clone(), AuthorityDefect::NoCertificate),
        (rsa + &good, AuthorityDefect::NotP256),
        (p384 + &good, AuthorityDefect::NotP256),
        (other_key.serialize_pem() + &good, AuthorityDefect::Mismatch),
        (ours.clone() + &leaf.pem(), AuthorityDefect::NotAnAuthority),
        (ours.clone() + &damaged, AuthorityDefect::Malformed),
        (
            ours.clone() + &pem::encode_certificates(&[certificate, other_certificate]),
            AuthorityDefect::Order,
        ),
    ] {
        fs::write(Authority::file(dir.path()), text).expect("a file");
        assert_eq!(defect(dir.path()), expected);
    }
    fs::write(Authority::file(dir.path()), ours + &good).expect("a file");
    Authority::open(dir.path()).expect("and this is good");
}

fn defect(dir: &Path) -> AuthorityDefect {
    match Authority::open(dir) {
        Err(CaError::Unusable { defect, .. }) => defect,
        other => panic!("{other:?}"),
    }
}

fn options(permitted: &[&str]) -> AuthorityOptions {
    AuthorityOptions {
        common_name: "peername test".to_owned(),
        days: 365,
        permitted: permitted
            .iter()
            .map(|host| host.parse().expect("a name or network"))
            .collect(),
    }
}
