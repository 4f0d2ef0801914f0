//! Secrets in the words of a command line, and in the values of a file: errors quote words and values without them.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

/// Masks the secrets in what an error of clap quotes.
pub fn mask_error(mut error: clap::Error) -> clap::Error {
    // `--option <VALUE>`, where the error is about a value.
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(usage)) => usage.split(' ').next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    mask_context(&mut error, ContextKind::InvalidValue, &option);
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        mask_context(&mut error, kind, "");
    }
    error
}

fn mask_context(error: &mut clap::Error, kind: ContextKind, option: &str) {
    if let Some(ContextValue::String(quoted)) = error.get(kind) {
        let masked = mask_value(option, quoted);
        error.insert(kind, ContextValue::String(masked));
    }
}

/// Masks the secrets in the words of a command line.
pub fn mask_words(words: &[OsString]) -> Vec<OsString> {
    let mut masked = Vec::new();
    let mut before = "";
    for word in words {
        let text = word.to_str();
        masked.push(text.map_or_else(|| word.clone(), |text| mask_word(before, text).into()));
        before = text.unwrap_or_default();
    }
    masked
}

/// Masks the secret in `--option=value`, or in the word after `before`.
fn mask_word(before: &str, word: &str) -> String {
    match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => {
            format!("{option}={}", mask_value(option, value))
        }
        _ => mask_value(before, word),
    }
}

/// Masks the secret in a value of `option`, which is written with its dashes: the user information of a URL, and all of an
/// injection but its host. In the value of an option that takes neither, and in a word without an option, masks only what is
/// certainly user information (RFC 3986, section 3.2.1).
pub fn mask_value(option: &str, value: &str) -> String {
    if option == INJECTION {
        return mask_injection(value);
    }
    let may_have_password = URLS.contains(&option);
    let (scheme, rest) = match value.find("://") {
        Some(at) => value.split_at(at + "://".len()),
        None if may_have_password => ("", value),
        None => return value.to_owned(),
    };
    // An option for a URL may have a password that was not encoded, with any character, even a `/`. In another option, an `@`
    // may belong to the path.
    let end = rest
        .find(['/', '?', '#'])
        .filter(|_| !may_have_password)
        .unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{path}"),
        // A colon or a slash in place of the `@`.
        None if option == UPSTREAM_PROXY && !is_host(value) => format!("{scheme}…"),
        None => value.to_owned(),
    }
}

/// Leaves `HOST=HEADER@FILE`, and the host of what has a secret by mistake: `HOST=HEADER: SECRET`, or the header alone.
fn mask_injection(value: &str) -> String {
    match value.split_once('=') {
        Some((host, header)) if is_host(host) => match header.split_once('@') {
            Some((name, _)) if is_header_name(name) => value.to_owned(),
            _ => format!("{host}=…"),
        },
        _ => "…".to_owned(),
    }
}

fn is_header_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_of_name)
}

/// Whether a text is `[http[s]://]HOST[:PORT]`.
fn is_host(text: &str) -> bool {
    let host = text.split_once("://").map_or(text, |(_, host)| host);
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_number(port) => name,
        _ => host,
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.bytes().all(is_of_name) || (name.starts_with('[') && name.ends_with(']'))
}

/// The options whose value is a URL that may have a password.
const URLS: [&str; 3] = [UPSTREAM_PROXY, "--check", "--otlp"];
const UPSTREAM_PROXY: &str = "--upstream-proxy";
/// The option whose value names a secret.
const INJECTION: &str = "--inject";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_is_masked() {
        let proxy = "--upstream-proxy";
        for (option, value, shown) in [
            (proxy, "socks5://u:s3cr3t@h.test:1", "socks5://***@h.test:1"),
            (proxy, "http://u:s3/cr#3t@h.test:1", "http://***@h.test:1"),
            (proxy, "u:s3cr3t@h.test:1", "***@h.test:1"),
            (proxy, "http:/u:s3@cr3t@h.test", "***@h.test"),
            (proxy, "h.test:1", "h.test:1"),
            (proxy, "http://u:s3cr3t:h.test:1", "http://…"),
            ("--check", "http://u:s3cr3t@h/", "http://***@h/"),
            ("--allow", "http://u:s3cr3t@h.test/x", "http://***@h.test/x"),
            (
                "--allow",
                "https://h.test/@scope/x",
                "https://h.test/@scope/x",
            ),
            ("--allow", "h.test/@scope/x", "h.test/@scope/x"),
            ("", "ssh://git@h.test", "ssh://***@h.test"),
        ] {
            assert_eq!(mask_value(option, value), shown, "{option} {value}");
        }
    }

    #[test]
    fn injection_is_masked_but_for_its_host() {
        for (value, shown) in [
            ("h.test=Authorization: Bearer s3cr3t", "h.test=…"),
            ("http://h.test:81=X-Key@/f", "http://h.test:81=X-Key@/f"),
            ("h.test=X-Key: s3cr3t@x", "h.test=…"),
            ("[2001:db8::1]:443=X-Key: s3cr3t", "[2001:db8::1]:443=…"),
            ("Authorization: Bearer s3cr3t", "…"),
            ("Authorization: Bearer s3cr3t=", "…"),
            ("X-Key:s3cr3t=", "…"),
        ] {
            assert_eq!(mask_value("--inject", value), shown, "{value}");
        }
    }

    #[test]
    fn words_of_a_command_line_are_masked() {
        let words = [
            "--inject",
            "h.test=X: s3cr3t",
            "--inject=h.test=X: s3cr3t",
            "--upstream-proxy=u:s3cr3t@h:1",
            "curl",
            "http://u:s3cr3t@h/",
        ];
        let masked = mask_words(&words.map(OsString::from));
        let expected = [
            "--inject",
            "h.test=…",
            "--inject=h.test=…",
            "--upstream-proxy=***@h:1",
            "curl",
            "http://***@h/",
        ];
        assert_eq!(masked, expected);
    }
}
