//! A strict reader of HTTP/1.1 requests (RFC 9112). It accepts only requests that every origin reads in the same way.

/// Splits bytes into requests, and returns them with the rest: the beginning of another request, or nothing.
///
/// # Errors
///
/// Bytes that are no request, or that could be read in two ways.
pub(crate) fn parse_requests(mut bytes: &[u8]) -> Result<(Vec<&[u8]>, &[u8]), String> {
    let mut requests = Vec::new();
    while let Some(len) = request_len(bytes)? {
        let (request, rest) = bytes.split_at(len);
        requests.push(request);
        bytes = rest;
    }
    Ok((requests, bytes))
}

/// The length of the first request; `None` while it is incomplete.
fn request_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = str::from_utf8(&bytes[..end]).map_err(|error| error.to_string())?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let [method, target, "HTTP/1.1"] = first.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("the request line {first:?}"));
    };
    if !is_token(method) {
        return Err(format!("the method {method:?}"));
    }
    if !target.starts_with('/') && target != "*" || target.contains(|c: char| c.is_control()) {
        return Err(format!("the target {target:?}"));
    }
    let headers: Vec<_> = lines.map(parse_header).collect::<Result<_, _>>()?;
    let values = |name: &str| -> Vec<&str> {
        headers
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
            .collect()
    };
    if values("host").len() != 1 {
        return Err(format!("{:?} as Host", values("host")));
    }
    let body = &bytes[end + 4..];
    let len = match (
        &values("transfer-encoding")[..],
        &values("content-length")[..],
    ) {
        ([], []) => Some(0),
        ([], [length]) if is_number(length) => {
            let len = length
                .parse::<usize>()
                .map_err(|_| format!("the length {length:?}"))?;
            Some(len).filter(|len| *len <= body.len())
        }
        (["chunked"], []) => chunked_len(body)?,
        both => return Err(format!("framed by {both:?}")),
    };
    Ok(len.map(|len| end + 4 + len))
}

/// The name and the value of a header line.
fn parse_header(line: &str) -> Result<(&str, &str), String> {
    match line.split_once(':') {
        Some((name, value))
            if is_token(name) && !value.contains(|c: char| c.is_control() && c != '\t') =>
        {
            Ok((name, value.trim_matches([' ', '\t'])))
        }
        _ => Err(format!("the line {line:?}")),
    }
}

/// The length of a chunked body with its trailers; `None` while it is incomplete.
fn chunked_len(body: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(line) = find(&body[at..], b"\r\n") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&body[at..at + line]);
        let size = chunk_size(&text).ok_or_else(|| format!("the chunk size {text:?}"))?;
        at += line + 2;
        if size == 0 {
            break;
        }
        match body.get(at + size..at + size + 2) {
            Some(b"\r\n") => at += size + 2,
            Some(other) => return Err(format!("{other:?} behind a chunk")),
            None => return Ok(None),
        }
    }
    while let Some(line) = find(&body[at..], b"\r\n") {
        let text = str::from_utf8(&body[at..at + line]).map_err(|error| error.to_string())?;
        at += line + 2;
        if text.is_empty() {
            return Ok(Some(at));
        }
        let (name, _) = parse_header(text)?;
        if ["content-length", "transfer-encoding", "host"].contains(&&*name.to_ascii_lowercase()) {
            return Err(format!("{name} in a trailer"));
        }
    }
    Ok(None)
}

/// The size of a chunk: hexadecimal digits alone, without an extension.
fn chunk_size(text: &str) -> Option<usize> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = u32::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    usize::try_from(size).ok()
}

/// Whether the text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_tchar = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_tchar)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

#[test]
fn strict_reader_accepts_unambiguous_requests_only() {
    const HOST: &str = "Host: a.test\r\n";
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
    let head = |first: &str, fields: &str| format!("{first} / HTTP/1.1\r\n{HOST}{fields}\r\n");
    for complete in [
        head("GET", ""),
        head("POST", "Content-Length: 2\r\n") + "ab",
        head("POST", CHUNKED) + "a\r\n0123456789\r\n0\r\n\r\n",
    ] {
        let parsed = parse_requests(complete.as_bytes());
        assert_eq!(parsed, Ok((vec![complete.as_bytes()], &b""[..])));
    }
    for refused in [
        head("", ""),
        head("GE\nT", ""),
        head("G(ET", ""),
        head("POST", "Content-Length: 99999999999999999999\r\n"),
        head("POST", CHUNKED) + "+5\r\n01234\r\n0\r\n\r\n",
        head("POST", CHUNKED) + "ffffffffffffffff\r\n",
    ] {
        assert!(parse_requests(refused.as_bytes()).is_err(), "{refused:?}");
    }
}
