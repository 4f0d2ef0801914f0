//! Versions of kernels and programs.

/// Parses the first two numbers of a version: `6.18.44-fc-v595` is 6.18.
pub(crate) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_distribution_releases() {
        assert_eq!(parse_version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(parse_version("4.9-amd64"), Some((4, 9)));
        assert!(parse_version("4.17.0") > parse_version("4.9.0"));
        assert_eq!(parse_version("six"), None);
    }
}
