use http::Request;

use super::*;

fn target_for(host: &str, is_tls: bool) -> RequestTarget {
    let to = HostPort::parse(host).unwrap();
    RequestTarget {
        is_tls,
        ..RequestTarget::plain(to)
    }
}

/// The code and status with which `connection` refuses a request; `None` if it accepts the request.
fn refusal(
    connection: &RequestTarget,
    version: Version,
    target: &str,
    hosts: &[&str],
) -> Option<(&'static str, u16)> {
    let mut request = Request::get(target).version(version);
    for host in hosts {
        request = request.header(header::HOST, *host);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let refusal = connection.check_agreement(&parts).err()?;
    Some((refusal.code, refusal.status.as_u16()))
}

#[test]
fn record_of_a_refused_request_has_the_target_that_is_named_first() {
    for (method, uri, host, expected) in [
        ("GET", "http://a.test/", "b.test", Some("a.test:80")),
        ("GET", "http://u:p@a.test/", "b.test", Some("a.test:80")),
        ("GET", "http://a.test:99999/", "b.test", Some("a.test:80")),
        ("GET", "https://a.test/", "b.test", Some("a.test:443")),
        ("GET", "/", "b.test:81", Some("b.test:81")),
        ("GET", "/", "b test", None),
        ("CONNECT", "a.test:22", "b.test", Some("a.test:22")),
        ("CONNECT", "a.test", "b.test", Some("a.test:443")),
    ] {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header::HOST, host).body(()).unwrap();
        let named = RequestTarget::first_named_by(&request.into_parts().0);
        let named = named.map(|target| target.to.to_string());
        assert_eq!(named.as_deref(), expected, "{method} {uri} {host}");
    }
}

#[test]
fn a_request_may_spell_its_target_in_any_way() {
    let secure = target_for("a.test:443", true);
    for host in ["a.test", "A.TEST", "a.test.", "a.test:443"] {
        let uri = format!("https://{host}/");
        for (version, target, hosts) in [
            (Version::HTTP_11, "/", &[host][..]),
            (Version::HTTP_2, &uri, &[]),
            (Version::HTTP_2, &uri, &["a.test"]),
        ] {
            let refused = refusal(&secure, version, target, hosts);
            assert_eq!(refused, None, "{host} {target}");
        }
    }
    let plain = target_for("[2001:db8::1]:8080", false);
    assert_eq!(
        refusal(&plain, Version::HTTP_11, "/", &["[2001:DB8:0::1]:8080"]),
        None
    );
    assert_eq!(refusal(&plain, Version::HTTP_10, "/", &[]), None);
}

#[test]
fn a_request_for_another_target_is_refused() {
    let secure = target_for("a.test:443", true);
    let (differs, bad) = (Some(("name_mismatch", 403)), Some(("bad_request", 400)));
    for (target, hosts, expected) in [
        ("/", &["b.test"][..], differs),
        ("/", &["a.test:80"], differs),
        ("/", &["a.test.b.test"], differs),
        ("http://a.test:443/", &["a.test"], differs),
        ("https://b.test/", &["a.test"], differs),
        ("https://a.test/", &["b.test"], differs),
        ("/", &[], bad),
        ("/", &["a.test", "a.test"], bad),
        ("/", &[""], bad),
        ("/", &["user@a.test"], bad),
        ("/", &["a.test, b.test"], bad),
        ("/", &["a.test:99999"], bad),
    ] {
        let refused = refusal(&secure, Version::HTTP_11, target, hosts);
        assert_eq!(refused, expected, "{target} {hosts:?}");
    }
    let misdirected = refusal(&secure, Version::HTTP_2, "https://b.test/", &[]);
    assert_eq!(misdirected, Some(("name_mismatch", 421)));
}

/// The certificate is for the name in SNI; where that differs from CONNECT's, all requests are refused.
#[test]
fn requests_are_refused_unless_sni_and_connect_agree() {
    let connect = Destination::Connect {
        to: HostPort::parse("a.test:8443").unwrap(),
        via: ViaLines::default(),
    };
    for (sni, host, is_refused) in [
        (Some("a.test"), "a.test", false),
        (None, "a.test", false),
        (Some("b.test"), "b.test", true),
        (Some("x.a.test"), "x.a.test", true),
    ] {
        let name = sni.map(|name| Host::parse(name).unwrap());
        let target = RequestTarget::from_client_hello(&connect, name);
        assert_eq!((&*target.host, target.to.port), (host, 8443), "{sni:?}");
        assert_eq!(target.refusal.is_some(), is_refused, "{sni:?}");
        assert!(target.is_tls && target.original_dst.is_none());
        let agrees = refusal(&target, Version::HTTP_11, "/", &["a.test:8443"]).is_none();
        assert_eq!(agrees, host == "a.test", "{sni:?}");
    }
}

/// A redirected connection goes to its original destination. Its target is the name in SNI, or that address if there is no SNI.
#[test]
fn a_redirected_connection_keeps_its_destination() {
    let destination = Destination::Redirected("192.0.2.1:443".parse().unwrap());
    let target =
        RequestTarget::from_client_hello(&destination, Some(Host::parse("a.test").unwrap()));
    assert_eq!(target.to, HostPort::parse("a.test:443").unwrap());
    assert_eq!(target.original_dst, Some("192.0.2.1".parse().unwrap()));
    assert!(target.refusal.is_none());
    let target = RequestTarget::from_client_hello(&destination, None);
    assert_eq!((&*target.host, target.original_dst), ("192.0.2.1", None));
}
