use super::*;

/// Returns the verdicts on a stream of requests, and asserts that they do not depend on the size of reads.
fn verdicts(bytes: &[u8]) -> Vec<Result<(), FramingError>> {
    let read_in = |size: usize| {
        let mut framing = FramingMonitor::default();
        let mut all = Vec::new();
        for part in bytes.chunks(size) {
            let fed = framing.feed(part);
            all.extend(framing.take_verdicts());
            if let Err(error) = fed {
                all.push(Err(error));
                break;
            }
        }
        all
    };
    let whole = read_in(bytes.len().max(1));
    for size in 1..8 {
        assert_eq!(read_in(size), whole, "{} by {size}", bytes.escape_ascii());
    }
    whole
}

#[test]
fn pipelined_requests_are_separated() {
    let all = b"\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n\
        POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nGET /\
        POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\nA \r\n0123456789\r\n\
        0\r\nX-Trailer: 1\r\n\r\n\
        GET / HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(verdicts(all), vec![Ok(()); 4]);
}

#[test]
fn framing_that_two_parsers_could_read_differently_is_refused() {
    for head in [
        "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 4, 4\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: +4\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length:\r\nX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\nY: b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n",
        "GET / HTTP/1.1\r\nX: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: nobody\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET / x HTTP/1.1\r\n\r\n",
        "GET /\tHTTP/1.1\r\n\r\n",
        "GET /\x7f HTTP/1.1\r\n\r\n",
        "GET /\0 HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.2\r\n\r\n",
        "GET a.test HTTP/1.1:x\r\n\r\n",
        "G@T / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nX: \x01\r\n\r\n",
        "GET http://[ HTTP/1.1\r\n\r\n",
    ] {
        let stream = format!("GET / HTTP/1.1\r\n\r\n{head}GET /next HTTP/1.1\r\n\r\n");
        let all = verdicts(stream.as_bytes());
        assert_eq!(all.len(), 2, "{head:?}: {all:?}");
        assert!(all[0].is_ok() && all[1].is_err(), "{head:?}: {all:?}");
    }
}

#[test]
fn invalid_framing_of_a_body_closes_the_connection() {
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [
        "3\nabc\r\n",
        "3\r\nabcd\r\n",
        "x\r\n",
        "-1\r\n",
        "\r\n",
        "0\r\nx y: z\r\n",
        "0\r\n\n",
    ] {
        let all = verdicts(format!("{head}{body}").as_bytes());
        assert!(matches!(all[..], [Ok(()), Err(_)]), "{body:?}: {all:?}");
    }
}

#[test]
fn http2_has_one_length_or_none() {
    let check = |lengths: &[&'static str]| {
        let headers: HeaderMap = lengths
            .iter()
            .map(|length| (CONTENT_LENGTH, (*length).parse().unwrap()))
            .collect();
        check_http2(&headers)
    };
    assert!(check(&[]).is_ok() && check(&["3"]).is_ok());
    for bad in [
        &["3", "3"][..],
        &["3", "4"],
        &["3, 3"],
        &["+3"],
        &[""],
        &["0x3"],
    ] {
        assert!(check(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn memory_is_bounded_whatever_length_a_request_has_or_announces() {
    // The lines of a head are buffered, so the length of a head is limited.
    let mut framing = FramingMonitor::default();
    framing.feed(b"GET / HTTP/1.1\r\nX: ").unwrap();
    framing.feed(&vec![b'x'; MAX_LINE + 1]).unwrap();
    assert!(framing.next_verdict().is_err() && !framing.head.has_begun());
    // A body is not buffered, whatever length it announces.
    let mut framing = FramingMonitor::default();
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    framing.feed(head.as_bytes()).unwrap();
    framing.feed(&[b'x'; 4096]).unwrap();
    assert!(framing.next_verdict().is_ok() && framing.state == State::Body(u64::MAX - 4096));
    assert_eq!(framing.line.len(), 0);
    let mut framing = FramingMonitor::default();
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}0\r\n\r\n", u64::MAX);
    framing.feed(head.as_bytes()).unwrap();
    assert!(framing.next_verdict().is_err());
    let mut framing = FramingMonitor::default();
    framing
        .feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    assert!(framing.feed(b"10000000000000000\r\n").is_err());
}

#[test]
fn bytes_behind_a_connect_are_not_parsed() {
    assert_eq!(
        verdicts(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n\x16\x03\x01\n\n"),
        [Ok(())]
    );
}

#[test]
fn a_request_that_the_monitor_has_not_seen_is_refused() {
    let mut framing = FramingMonitor::default();
    framing.feed(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(framing.next_verdict().is_ok() && framing.next_verdict().is_err());
}

/// What hyper gets of a stream of bytes that comes `size` at a time.
fn pass(bytes: &[u8], size: usize) -> String {
    let mut framing = FramingMonitor::default();
    let mut all = Vec::new();
    for part in bytes.chunks(size) {
        let passed = framing.feed(part).unwrap();
        all.extend_from_slice(&part[..passed.unchanged]);
        all.extend(passed.replaced);
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn valid_requests_pass_as_they_came() {
    let all = "GET /?a={b:[c]} HTTP/1.1\r\nHost: a.test\r\n\r\n\
        POST /d HTTP/1.1\r\nContent-Length: 5\r\n\r\n<\"`> \
        POST /e HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n<<<\r\n0\r\n\r\n\
        GET /f HTTP/1.1\r\n\r\n";
    for size in 1..all.len() {
        assert_eq!(pass(all.as_bytes(), size), all, "by {size}");
    }
    assert_eq!(pass(b"GET / HTTP/1.1\r\nHost: a", 100), "", "is held back");
}

#[test]
fn target_has_no_byte_that_a_uri_can_not_have() {
    let sent = b"GET /<`\"\xff?q={j=\"a\"}<1&r=\xe9`> HTTP/1.1\r\nX: <\r\n\r\n";
    for size in [1, 5, sent.len()] {
        assert_eq!(
            pass(sent, size),
            "GET /%3C%60\"%FF?q={j=%22a%22}%3C1&r=%E9`%3E HTTP/1.1\r\nX: <\r\n\r\n"
        );
    }
    let text = "GET /é?é HTTP/1.1\r\n\r\n";
    assert_eq!(pass(text.as_bytes(), 3), text);
    for byte in 0x21..=0xff {
        for start in [&b"/"[..], b"/?", b"http://a.test/", b"http://a.test/?"] {
            let head = [b"GET ", start, &[byte], b" HTTP/1.1\r\n\r\n"].concat();
            let passed = pass(&head, head.len());
            let target = passed.split(' ').nth(1).unwrap();
            assert!(target.parse::<http::Uri>().is_ok(), "{passed:?}");
        }
    }
}

#[test]
fn refused_head_is_replaced_by_one_that_can_be_answered() {
    let sent = b"GET /a HTTP/1.1\r\nX: a\nHost: a.test\r\nContent-Length: 3\r\nAccept: text/html\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    assert_eq!(
        pass(sent, sent.len()),
        "GET /a HTTP/1.1\r\nHost: a.test\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    );
    // This head is too long only once its target is encoded.
    let long = [
        "PUT /",
        &"<".repeat(21_840),
        " HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ]
    .concat();
    assert_eq!(
        pass(long.as_bytes(), long.len()),
        "PUT / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
    );
    for garbage in [
        &b"\x16\x03\x01"[..],
        b"\x05\x01\0",
        b"\n",
        b"G@T / HTTP/1.1\r\n",
    ] {
        assert_eq!(
            pass(garbage, 1),
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
            "{garbage:?}"
        );
    }
}
