//! Values with secrets.

use std::fmt::{self, Debug, Display, Formatter};
use std::str::FromStr;

use peername_daemon::text_value;

/// A value with a secret, which its `Debug` leaves out: the effective configuration shows that.
#[derive(Clone, Debug)]
pub(crate) struct Redacted<T>(pub(crate) T);

impl<T: FromStr<Err: Display>> FromStr for Redacted<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        text.parse().map(Self)
    }
}

impl<T: Debug> Display for Redacted<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value! {
    [T: FromStr<Err: Display> + Debug] Redacted<T>, "Text": { "type": "string" };
}

#[cfg(test)]
mod tests {
    use peername_intercept::upstream::upstream_proxy::UpstreamProxy;

    use super::*;

    #[test]
    fn password_is_not_in_the_effective_configuration() {
        let proxy: Redacted<UpstreamProxy> = "http://user:secret@proxy.test:3128".parse().unwrap();
        let shown = serde_json::to_string(&proxy).unwrap();
        assert_eq!(shown, "\"http://proxy.test:3128\"");
    }
}
