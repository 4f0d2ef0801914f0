use http::Request;

use super::*;

fn place(host: &str, tls: bool) -> Named {
    let to = HostPort::parse(host).unwrap();
    Named {
        tls,
        ..Named::plain(to, None)
    }
}

/// The code and status with which `place` refuses, or nothing.
fn refusal(
    place: &Named,
    version: Version,
    target: &str,
    hosts: &[&str],
) -> Option<(&'static str, u16)> {
    let mut request = Request::get(target).version(version);
    for host in hosts {
        request = request.header(header::HOST, *host);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let refusal = place.agrees(&parts).err()?;
    Some((refusal.code, refusal.status.as_u16()))
}

#[test]
fn a_request_names_the_connections_place_in_any_spelling() {
    let secure = place("a.test:443", true);
    for host in ["a.test", "A.TEST", "a.test.", "a.test:443"] {
        assert_eq!(
            refusal(&secure, Version::HTTP_11, "/", &[host]),
            None,
            "{host}"
        );
        let target = format!("https://{host}/");
        assert_eq!(
            refusal(&secure, Version::HTTP_2, &target, &[]),
            None,
            "{host}"
        );
        assert_eq!(
            refusal(&secure, Version::HTTP_2, &target, &["a.test"]),
            None,
            "{host}"
        );
    }
    let plain = place("[2001:db8::1]:8080", false);
    assert_eq!(
        refusal(&plain, Version::HTTP_11, "/", &["[2001:DB8:0::1]:8080"]),
        None
    );
    assert_eq!(refusal(&plain, Version::HTTP_10, "/", &[]), None);
}

#[test]
fn any_other_place_is_refused() {
    let secure = place("a.test:443", true);
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

/// The name that is shown is the one that the client wants to see; where it differs from CONNECT's, nothing passes.
#[test]
fn sni_and_connect_agree_or_nothing_passes() {
    let connect = Going::Connect(HostPort::parse("a.test:8443").unwrap());
    let by = |going: &Going, sni: Option<&str>| {
        Named::by_tls(going, sni.map(|name| Host::parse(name).unwrap()))
    };
    for (sni, host, barred) in [
        (Some("a.test"), "a.test", false),
        (None, "a.test", false),
        (Some("b.test"), "b.test", true),
        (Some("x.a.test"), "x.a.test", true),
    ] {
        let named = by(&connect, sni);
        assert_eq!((&*named.host, named.to.port), (host, 8443), "{sni:?}");
        assert_eq!(named.barred.is_some(), barred, "{sni:?}");
        assert!(named.tls && named.via.is_none());
        let agrees = refusal(&named, Version::HTTP_11, "/", &["a.test:8443"]).is_none();
        assert_eq!(agrees, host == "a.test", "{sni:?}");
    }
}

/// Whoever was redirected to us goes where it was going, and the certificate there has to be for the name.
#[test]
fn a_redirected_client_keeps_its_address() {
    let going = Going::Redirected("192.0.2.1:443".parse().unwrap());
    let named = Named::by_tls(&going, Some(Host::parse("a.test").unwrap()));
    assert_eq!(named.to, HostPort::parse("a.test:443").unwrap());
    assert_eq!(named.via, Some("192.0.2.1".parse().unwrap()));
    assert!(named.barred.is_none());
    let named = Named::by_tls(&going, None);
    assert_eq!((&*named.host, named.via), ("192.0.2.1", None));
}
