use super::*;
use crate::{Carrier, parse};

/// A header with `block` behind its fixed part.
fn header(version_command: u8, family_transport: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [
        &SIGNATURE[..],
        &[version_command, family_transport],
        &length,
        block,
    ]
    .concat()
}

fn tcp4(tlvs: &[u8]) -> Vec<u8> {
    header(0x21, 0x11, &[&[0; V4_LEN], tlvs].concat())
}

#[test]
fn each_failure_has_its_reason() {
    for (bytes, invalid, reason) in [
        (
            header(0x11, 0x11, &[0; 12]),
            Invalid::V2Version(1),
            "v2_version",
        ),
        (
            header(0x22, 0x11, &[0; 12]),
            Invalid::V2Command(2),
            "v2_command",
        ),
        (
            header(0x21, 0x41, &[0; 12]),
            Invalid::V2Family(0x41),
            "v2_family",
        ),
        (
            header(0x21, 0x13, &[0; 12]),
            Invalid::V2Family(0x13),
            "v2_family",
        ),
        (
            header(0x21, 0x21, &[0; 35]),
            Invalid::V2Length {
                length: 35,
                need: 36,
            },
            "v2_length",
        ),
        (
            tcp4(&[1, 0]),
            Invalid::TlvOverrun { offset: 28 },
            "tlv_overrun",
        ),
        (
            tcp4(&[4, 0, 0, 1, 0, 1]),
            Invalid::TlvOverrun { offset: 31 },
            "tlv_overrun",
        ),
        (
            tcp4(&[0x20, 0, 1, 0]),
            Invalid::Ssl { offset: 28 },
            "ssl_structure",
        ),
        (
            tcp4(&[&[5, 0, 129][..], &[0; 129]].concat()),
            Invalid::UniqueIdLength {
                offset: 28,
                length: 129,
            },
            "unique_id_length",
        ),
        (
            tcp4(&[3, 0, 1, 0]),
            Invalid::ChecksumLength {
                offset: 28,
                length: 1,
            },
            "crc32c_length",
        ),
        (
            tcp4(&[3, 0, 4, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0]),
            Invalid::ChecksumTwice { offset: 35 },
            "crc32c_twice",
        ),
    ] {
        assert_eq!(parse(&bytes, Carrier::Stream), Err(invalid), "{bytes:02x?}");
        assert_eq!(
            parse(&bytes, Carrier::Datagram),
            Err(invalid),
            "{bytes:02x?}"
        );
        assert_eq!(invalid.reason(), reason);
    }
    let mismatch = parse(&tcp4(&[3, 0, 4, 0, 0, 0, 0]), Carrier::Stream)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(mismatch.reason(), "crc32c_mismatch");
}

/// Tries every value of the command and family bytes. LOCAL is accepted with every family.
#[test]
fn undefined_commands_and_families_are_refused() {
    let mut accepted = 0;
    for command in 0..=u8::MAX {
        for family in 0..=u8::MAX {
            let bytes = header(command, family, &[0; UNIX_LEN]);
            let is_assigned = family >> 4 <= 3 && family & 0xf <= 2;
            let is_valid = command == 0x20 || command == 0x21 && is_assigned;
            let parsed = parse(&bytes, Carrier::Stream);
            assert_eq!(
                parsed.is_ok(),
                is_valid,
                "{command:02x} {family:02x}: {parsed:?}"
            );
            // A wrong byte is refused as soon as it has arrived, and not before.
            let early = [12, 13, 14].map(|end| parse(&bytes[..end], Carrier::Stream).is_ok());
            assert_eq!(early, [true, matches!(command, 0x20 | 0x21), is_valid]);
            accepted += usize::from(is_valid);
        }
    }
    assert_eq!(accepted, 256 + 12);
}

#[test]
fn datagram_without_a_whole_header_is_refused() {
    let bytes = tcp4(&[]);
    for have in 1..bytes.len() {
        let need = if have < FIXED_LEN {
            FIXED_LEN
        } else {
            bytes.len()
        };
        assert_eq!(
            parse(&bytes[..have], Carrier::Stream),
            Ok(Parsed::NeedMore(need))
        );
        let truncated = Invalid::Truncated { have, need };
        assert_eq!(parse(&bytes[..have], Carrier::Datagram), Err(truncated));
    }
    assert_eq!(
        parse(b"PROXY UNKNOWN\r\n", Carrier::Datagram),
        Err(Invalid::V1OnDatagram)
    );
    assert_eq!(
        parse(b"PRIVMSG", Carrier::Datagram),
        Err(Invalid::NoHeader { offset: 0 })
    );
}
