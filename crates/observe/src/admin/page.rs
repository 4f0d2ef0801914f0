//! `/`: the page for people, one file without any external resource.

/// The page. It gets its content from `/events`.
pub(super) const PAGE: &str = include_str!("page.html");

/// Lets a browser execute and apply only the script and the style of this page, and keeps the script from turning text into
/// markup. After a change of the page, Chromium's error in `tests/proxy/observe/page.rs` has the new hash.
pub(super) const CONTENT_SECURITY_POLICY: &str = concat!(
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; ",
    "require-trusted-types-for 'script'; trusted-types 'none'; ",
    "script-src 'sha256-1EHx7D0KKQcRo8vBGGVejU4Tsx4kEtP9xtUDqxqNVao='; ",
    "style-src 'sha256-4ddLVGQ6PrD3cg69/3MM5MeDu4Ux9c8wveZTHS/x1/Y='",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_small_and_loads_nothing_from_elsewhere() {
        assert!(PAGE.len() < 30_000, "{} bytes", PAGE.len());
        // The namespace is a name, not an address that a browser requests.
        let page = PAGE.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "@import", "url(", "innerHTML"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
