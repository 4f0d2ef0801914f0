//! The key of a socket in the table: a number of the kernel that no other open socket has.

use core::num::NonZeroU64;

/// A key: SO_COOKIE or an inode number, in separate ranges.
///
/// The key of a TCP socket is its SO_COOKIE, which belongs to the socket, not to the descriptor, and is not reused until the
/// next boot. The key of an MPTCP socket is its inode number (fstat(2)): an accepted one may have the SO_COOKIE of its
/// listener. No two open sockets have the same inode number, and a number is reused after 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKey(NonZeroU64);

impl SocketKey {
    /// `None` for a cookie that can't be a key: 0 (a free slot), `u64::MAX` (a slot that is being written), or one in the range
    /// of inode numbers.
    pub fn from_cookie(cookie: u64) -> Option<Self> {
        let is_key = cookie >> 62 != INODE_RANGE && cookie != u64::MAX;
        NonZeroU64::new(cookie).filter(|_| is_key).map(Self)
    }

    /// `None` for 0, the inode number of a socket that no process has open, and for a number beyond the range.
    pub fn from_inode(inode: u64) -> Option<Self> {
        let number = Some(inode).filter(|&inode| inode != 0 && inode >> 62 == 0)?;
        NonZeroU64::new(INODE_RANGE << 62 | number).map(Self)
    }

    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn from_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }
}

/// Queries to the kernel about a socket.
pub trait SocketQueries {
    /// SO_COOKIE.
    fn cookie(&self) -> Option<u64>;
    /// The inode number (fstat(2)).
    fn inode(&self) -> Option<u64>;
    /// Whether it is an MPTCP socket (SO_PROTOCOL).
    fn is_multipath(&self) -> bool;
}

/// The way in which a sweep lists the open sockets. The list must have the keys, so it determines which numbers are keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketListing {
    /// By sock_diag(7), TCP and MPTCP: cookies and inode numbers.
    #[default]
    Diag,
    /// By sock_diag(7), TCP sockets only. MPTCP sockets have no key: one may be open without a TCP connection in the list.
    DiagWithoutMultipath,
    /// By /proc/net/tcp, which has inode numbers only. MPTCP sockets have no key, for the same reason.
    Proc,
}

impl SocketListing {
    /// The key of a socket. `None` if the kernel gives it none: its client can't be stored.
    pub fn key(self, socket: &impl SocketQueries, multipath: bool) -> Option<SocketKey> {
        match (self, multipath) {
            (Self::Diag, true) | (Self::Proc, false) => SocketKey::from_inode(socket.inode()?),
            (Self::Diag | Self::DiagWithoutMultipath, false) => {
                SocketKey::from_cookie(socket.cookie()?)
            }
            (Self::DiagWithoutMultipath | Self::Proc, true) => None,
        }
    }

    /// Encodes the listing for another process.
    pub fn to_word(self) -> u64 {
        self as u64
    }

    /// Decodes a word of [`SocketListing::to_word`].
    pub fn from_word(word: u64) -> Self {
        match word {
            0 => Self::Diag,
            1 => Self::DiagWithoutMultipath,
            _ => Self::Proc,
        }
    }
}

/// The upper two bits of keys that are inode numbers. No cookie has them: the kernel counts cookies up from 1, or down from
/// 2^64 in an interrupt that comes while it makes another one.
const INODE_RANGE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_and_inode_number_are_never_the_same_key() {
        let cookie = |number| SocketKey::from_cookie(number).map(SocketKey::word);
        let inode = |number| SocketKey::from_inode(number).map(SocketKey::word);
        assert_eq!((cookie(7), inode(7)), (Some(7), Some(1 << 62 | 7)));
        assert_eq!((cookie(0), inode(0)), (None, None));
        assert_eq!((cookie(1 << 62 | 7), inode(1 << 62)), (None, None));
        assert_eq!(
            (cookie(u64::MAX), cookie(u64::MAX - 1)),
            (None, Some(u64::MAX - 1))
        );
    }
}
