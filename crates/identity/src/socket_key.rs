//! The key of a socket in the table: a number of the kernel that no other open socket has.

use core::num::NonZeroU64;

/// A key. SO_COOKIE and inode numbers are keys of separate ranges.
///
/// SO_COOKIE is the key of a TCP socket: it belongs to the socket, not to the descriptor, and is not reused until the next
/// boot. An MPTCP socket that is accepted has that of its listener, once a process has read that one. Its key is its inode
/// number (fstat(2)), which no other socket has while it is open, and which is reused after 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKey(NonZeroU64);

impl SocketKey {
    /// `None` for a number that is no key: 0, that of a slot that is being written, and the range of inode numbers.
    pub fn of_cookie(cookie: u64) -> Option<Self> {
        let is_key = cookie >> 62 != INODES && cookie != u64::MAX;
        NonZeroU64::new(cookie).filter(|_| is_key).map(Self)
    }

    /// `None` for 0, which a socket has that no process has open, and for a number beyond the range.
    pub fn of_inode(inode: u64) -> Option<Self> {
        let number = Some(inode).filter(|&inode| inode != 0 && inode >> 62 == 0)?;
        NonZeroU64::new(INODES << 62 | number).map(Self)
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

/// How a sweep finds out which sockets are open, which decides about their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketListing {
    /// By sock_diag(7), TCP and MPTCP: cookies and inode numbers.
    #[default]
    Diag,
    /// By sock_diag(7), but not MPTCP sockets. An MPTCP socket may be open without a TCP connection, so none has a key.
    DiagWithoutMultipath,
    /// By /proc/net/tcp, which has inode numbers only. MPTCP sockets have no key, as before.
    Proc,
}

impl SocketListing {
    /// The key of a socket. `None` if the kernel gives it none: its client can't be stored.
    pub fn key_of(self, socket: &impl SocketQueries, multipath: bool) -> Option<SocketKey> {
        match (self, multipath) {
            (Self::Diag, true) | (Self::Proc, false) => SocketKey::of_inode(socket.inode()?),
            (Self::Diag | Self::DiagWithoutMultipath, false) => {
                SocketKey::of_cookie(socket.cookie()?)
            }
            (Self::DiagWithoutMultipath | Self::Proc, true) => None,
        }
    }

    /// Encodes it for another process.
    pub fn to_word(self) -> u64 {
        match self {
            Self::Diag => 0,
            Self::DiagWithoutMultipath => 1,
            Self::Proc => 2,
        }
    }

    /// Decodes what [`SocketListing::to_word`] has encoded.
    pub fn from_word(word: u64) -> Self {
        match word {
            0 => Self::Diag,
            1 => Self::DiagWithoutMultipath,
            _ => Self::Proc,
        }
    }
}

/// The upper two bits of keys that are inode numbers. Cookies count up from 1, and down from 2^64 where an interrupt asks
/// for one while another is made.
const INODES: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_inode_numbers_never_have_one_key() {
        let cookie = |number| SocketKey::of_cookie(number).map(SocketKey::word);
        let inode = |number| SocketKey::of_inode(number).map(SocketKey::word);
        assert_eq!((cookie(7), inode(7)), (Some(7), Some(1 << 62 | 7)));
        assert_eq!((cookie(0), inode(0)), (None, None));
        assert_eq!((cookie(1 << 62 | 7), inode(1 << 62)), (None, None));
        assert_eq!(
            (cookie(u64::MAX), cookie(u64::MAX - 1)),
            (None, Some(u64::MAX - 1))
        );
    }
}
