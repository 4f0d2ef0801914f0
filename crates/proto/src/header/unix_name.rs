//! Names of Unix domain sockets, as version 2 carries them.

use core::fmt::{self, Display, Formatter};

/// A socket's name: 108 bytes, padded with NUL (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnixName<'a>(pub &'a [u8; UnixName::LEN]);

impl<'a> UnixName<'a> {
    /// The size of `sun_path` on Linux, fixed on the wire.
    pub const LEN: usize = 108;

    /// The name without its padding.
    ///
    /// A path ends at its first NUL, if it has one; the bytes behind that are ignored. A name that starts with NUL is
    /// of Linux's abstract namespace (`unix(7)`) and loses only the NULs at its end. An unnamed socket has an empty name.
    pub fn name(self) -> &'a [u8] {
        let bytes = self.0.as_slice();
        let end = match bytes.first() {
            Some(0) => bytes
                .iter()
                .rposition(|&b| b != 0)
                .map(|last| last.saturating_add(1)),
            _ => bytes.iter().position(|&b| b == 0).or(Some(bytes.len())),
        };
        end.and_then(|end| bytes.get(..end)).unwrap_or_default()
    }
}

/// `unix:/path` if the name is printable ASCII, else `unix-hex:00616263`: safe to log either way.
impl Display for UnixName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.name();
        if name.iter().all(u8::is_ascii_graphic) {
            f.write_str("unix:")?;
            return name
                .iter()
                .try_for_each(|&b| write!(f, "{}", char::from(b)));
        }
        f.write_str("unix-hex:")?;
        name.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn display(start: &[u8]) -> String {
        let mut name = [0; UnixName::LEN];
        name[..start.len()].copy_from_slice(start);
        UnixName(&name).to_string()
    }

    #[test]
    fn paths_end_at_nul_and_abstract_names_do_not() {
        assert_eq!(display(b""), "unix:");
        assert_eq!(display(b"/run/a\0junk"), "unix:/run/a");
        assert_eq!(display(b"\0a\0b"), "unix-hex:00610062");
        assert_eq!(display(b"/run/\x1b[2J"), "unix-hex:2f72756e2f1b5b324a");
        assert_eq!(display(&[b'x'; 108]), format!("unix:{}", "x".repeat(108)));
    }
}
