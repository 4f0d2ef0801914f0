//! Version 2: binary (section 2.2).

use core::net::{IpAddr, SocketAddr};

use super::parsed::Parsed;
use crate::header::{Command, Endpoints, Header, Transport, UnixName, Version};
use crate::invalid::Invalid;
use crate::tlv::Tlvs;

/// The start of each header. It contains NUL: compare all twelve bytes, never as a C string.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes before the addresses; the last two of them are the length of the rest.
pub(crate) const FIXED_LEN: usize = 16;

/// The longest header: the length field has 16 bits.
pub const MAX_LEN: usize = FIXED_LEN + 0xffff;

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Invalid> {
    let Some((fixed, _)) = bytes.split_first_chunk::<FIXED_LEN>() else {
        return check_partial(bytes);
    };
    let [signature @ .., version_command, family_transport, high, low] = fixed;
    if *signature != SIGNATURE {
        return Err(signature_differs(bytes));
    }
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let command = read_command(*version_command)?;
    // What follows LOCAL is skipped, whatever its family says.
    let layout = if command == Command::Local {
        None
    } else {
        AddressLayout::read(*family_transport)?
    };
    if let Some(layout) = layout {
        layout.check_length(length)?;
    }
    let len = FIXED_LEN.saturating_add(length);
    let Some(header) = bytes.get(..len) else {
        return Ok(Parsed::NeedMore(len));
    };
    let (endpoints, tlvs) = match layout {
        Some(layout) => layout.read_block(header)?,
        None => (Endpoints::Real, Tlvs::default()),
    };
    Ok(Parsed::Complete(Header {
        version: Version::V2,
        command,
        endpoints,
        tlvs,
        len,
        line_deviation: None,
    }))
}

/// Checks fewer bytes than the fixed part, so that an invalid byte is detected early.
fn check_partial(bytes: &[u8]) -> Result<Parsed<'_>, Invalid> {
    if bytes
        .iter()
        .zip(&SIGNATURE)
        .any(|(byte, expected)| byte != expected)
    {
        return Err(signature_differs(bytes));
    }
    if let Some([version_command, rest @ ..]) = bytes.get(SIGNATURE.len()..)
        && read_command(*version_command)? != Command::Local
        && let Some(family_transport) = rest.first()
    {
        AddressLayout::read(*family_transport)?;
    }
    Ok(Parsed::NeedMore(FIXED_LEN))
}

fn signature_differs(bytes: &[u8]) -> Invalid {
    let offset = bytes
        .iter()
        .zip(&SIGNATURE)
        .take_while(|(byte, expected)| byte == expected)
        .count();
    Invalid::NoHeader { offset }
}

fn read_command(version_command: u8) -> Result<Command, Invalid> {
    match (version_command >> 4, version_command & 0xf) {
        (2, 0) => Ok(Command::Local),
        (2, 1) => Ok(Command::Proxy),
        (2, command) => Err(Invalid::V2Command(command)),
        (version, _) => Err(Invalid::V2Version(version)),
    }
}

/// The layout of the address block, by family and transport.
#[derive(Clone, Copy)]
struct AddressLayout {
    family: Family,
    transport: Transport,
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
    Unix,
}

impl AddressLayout {
    /// Reads family and transport. `None` where either is UNSPEC: the block may contain anything, and is skipped.
    fn read(family_transport: u8) -> Result<Option<Self>, Invalid> {
        let family = match family_transport >> 4 {
            0 => None,
            1 => Some(Family::V4),
            2 => Some(Family::V6),
            3 => Some(Family::Unix),
            _ => return Err(Invalid::V2Family(family_transport)),
        };
        let transport = match family_transport & 0xf {
            0 => None,
            1 => Some(Transport::Stream),
            2 => Some(Transport::Datagram),
            _ => return Err(Invalid::V2Family(family_transport)),
        };
        Ok(family
            .zip(transport)
            .map(|(family, transport)| Self { family, transport }))
    }

    /// Bytes in the address block.
    fn len(self) -> usize {
        match self.family {
            Family::V4 => V4_LEN,
            Family::V6 => V6_LEN,
            Family::Unix => UNIX_LEN,
        }
    }

    fn check_length(self, length: usize) -> Result<(), Invalid> {
        let need = self.len();
        if length < need {
            Err(Invalid::V2Length { length, need })
        } else {
            Ok(())
        }
    }

    /// Reads the addresses and TLVs of a whole header.
    fn read_block(self, header: &[u8]) -> Result<(Endpoints<'_>, Tlvs<'_>), Invalid> {
        let block = header.get(FIXED_LEN..).unwrap_or_default();
        let (endpoints, rest) = match self.family {
            Family::V4 => self.inet::<4>(block),
            Family::V6 => self.inet::<16>(block),
            Family::Unix => self.unix(block),
        }
        .ok_or_else(|| Invalid::V2Length {
            length: block.len(),
            need: self.len(),
        })?;
        Ok((endpoints, Tlvs::check(header, rest)?))
    }

    /// Reads two IP addresses of `N` bytes, and two ports.
    fn inet<const N: usize>(self, block: &[u8]) -> Option<(Endpoints<'_>, &[u8])>
    where
        IpAddr: From<[u8; N]>,
    {
        let (source, block) = block.split_first_chunk::<N>()?;
        let (destination, block) = block.split_first_chunk::<N>()?;
        let ([s0, s1, d0, d1], rest) = block.split_first_chunk::<4>()?;
        let endpoints = Endpoints::Inet {
            transport: self.transport,
            source: SocketAddr::new((*source).into(), u16::from_be_bytes([*s0, *s1])),
            destination: SocketAddr::new((*destination).into(), u16::from_be_bytes([*d0, *d1])),
        };
        Some((endpoints, rest))
    }

    fn unix<'a>(self, block: &'a [u8]) -> Option<(Endpoints<'a>, &'a [u8])> {
        let (source, block) = block.split_first_chunk()?;
        let (destination, rest) = block.split_first_chunk()?;
        let endpoints = Endpoints::Unix {
            transport: self.transport,
            source: UnixName(source),
            destination: UnixName(destination),
        };
        Some((endpoints, rest))
    }
}

const V4_LEN: usize = 12;
const V6_LEN: usize = 36;
const UNIX_LEN: usize = 2 * UnixName::LEN;

#[cfg(test)]
mod tests;
