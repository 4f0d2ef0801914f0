//! Versions of kernels and programs.

/// The first two numbers of a version: `6.18.44-fc-v595` is 6.18.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_distribution_releases() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("4.9-amd64"), Some((4, 9)));
        assert!(version("4.17.0") > version("4.9.0"));
        assert_eq!(version("six"), None);
    }
}
