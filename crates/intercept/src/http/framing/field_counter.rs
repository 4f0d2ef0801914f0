//! The number of fields in each header list of an HTTP/2 client.
//!
//! h2 bounds a list by its size alone (SETTINGS_MAX_HEADER_LIST_SIZE, which counts for each field 32 bytes and the bytes of its
//! text). A field that is in HPACK's static table takes one byte on the wire and 72 in memory, so a list within that size takes
//! 80 times what the client sends, and a connection may have 128 such lists. So fields are counted on their way to h2, without
//! decoding them (RFC 7541, section 6), and a connection with a list that no client needs is closed before the list is decoded.

use std::collections::BTreeSet;

use super::error::FramingError;
use super::frame_header::{CONTINUATION, DATA, FrameHeader, FrameHeaderReader, HEADERS};

/// Counts the fields of one connection's header lists, request heads and trailers, as they go by.
#[derive(Debug, Default)]
pub(crate) struct FieldCounter {
    /// Bytes of the connection preface (RFC 9113, section 3.4) that have come.
    preface: usize,
    header: FrameHeaderReader,
    frame: Frame,
    hpack: Hpack,
    /// Fields of the list so far.
    fields: usize,
    /// The last stream that was opened.
    last_stream: u32,
    /// Streams on which frames have followed the request's head, [`MAX_BODIES`] at most.
    with_body: BTreeSet<u32>,
    /// The last stream that is not in `with_body` any more. Up to it, every stream counts as one with a body.
    forgotten: u32,
}

/// The rest of a frame's payload, in this order.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Whether it begins with the length of its padding.
    is_padded: bool,
    /// Bytes before a field block: a priority, or the whole payload of a frame of another type.
    skipped: usize,
    /// Bytes of a field block.
    block: usize,
    padding: usize,
    /// Whether the field block ends with this frame.
    ends_block: bool,
}

/// The position within a field block.
#[derive(Clone, Copy, Debug, Default)]
enum Hpack {
    /// Before a field, or before a change of the table's size, which counts as a field.
    #[default]
    Field,
    /// Inside an integer whose value does not matter, with the string literal that follows it.
    Index(Option<Text>),
    /// Before the length of a string.
    Length(Text),
    /// Inside a length of several bytes.
    LengthTail {
        text: Text,
        length: usize,
        shift: u32,
    },
    /// Inside a string, with the number of bytes to come.
    Text(Text, usize),
}

/// A string literal of a field.
#[derive(Clone, Copy, Debug)]
enum Text {
    Name,
    Value,
}

impl FieldCounter {
    /// Counts the fields in more of what the client sends. Fails at a list with more than [`MAX_FIELDS`].
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), FramingError> {
        let preface = take(&mut bytes, &mut (PREFACE_LEN - self.preface));
        self.preface += preface.len();
        while !bytes.is_empty() {
            if self.frame.is_padded {
                self.take_padding_length(&mut bytes);
            }
            take(&mut bytes, &mut self.frame.skipped);
            for byte in take(&mut bytes, &mut self.frame.block) {
                self.hpack = self.hpack.next(*byte, &mut self.fields);
                if self.fields > MAX_FIELDS {
                    return Err(FramingError::too_many(
                        MAX_FIELDS,
                        "fields in a header list",
                    ));
                }
            }
            take(&mut bytes, &mut self.frame.padding);
            if self.frame.is_at_end() {
                self.end_frame();
                self.take_header(&mut bytes);
            }
        }
        Ok(())
    }

    /// Whether frames may have followed the head of this stream's request, which may then have been forwarded.
    pub(crate) fn may_have_body(&self, stream: u32) -> bool {
        stream <= self.forgotten || self.with_body.contains(&stream)
    }

    fn note_body(&mut self, stream: u32) {
        if stream <= self.forgotten {
            return;
        }
        self.with_body.insert(stream);
        if self.with_body.len() > MAX_BODIES
            && let Some(first) = self.with_body.pop_first()
        {
            self.forgotten = first;
        }
    }

    fn take_padding_length(&mut self, bytes: &mut &[u8]) {
        let Some((&padding, rest)) = bytes.split_first() else {
            return;
        };
        *bytes = rest;
        let frame = &mut self.frame;
        frame.is_padded = false;
        frame.padding = usize::from(padding).min(frame.block);
        frame.block -= frame.padding;
    }

    fn end_frame(&mut self) {
        if std::mem::take(&mut self.frame.ends_block) {
            self.fields = 0;
            self.hpack = Hpack::default();
        }
    }

    fn take_header(&mut self, bytes: &mut &[u8]) {
        let Some(header) = self.header.take(bytes) else {
            return;
        };
        match header.kind {
            HEADERS if header.stream > self.last_stream => self.last_stream = header.stream,
            HEADERS | DATA => self.note_body(header.stream),
            _ => {}
        }
        self.frame = Frame::new(header);
    }
}

impl Frame {
    fn new(
        FrameHeader {
            len, kind, flags, ..
        }: FrameHeader,
    ) -> Self {
        let is_headers = kind == HEADERS;
        if !is_headers && kind != CONTINUATION {
            return Self {
                skipped: len,
                ..Self::default()
            };
        }
        let is_padded = is_headers && flags & PADDED != 0;
        let has_priority = is_headers && flags & PRIORITY != 0;
        let len = len.saturating_sub(is_padded.into());
        let skipped = if has_priority { PRIORITY_LEN } else { 0 }.min(len);
        Self {
            is_padded,
            skipped,
            block: len - skipped,
            padding: 0,
            ends_block: flags & END_HEADERS != 0,
        }
    }

    fn is_at_end(&self) -> bool {
        !self.is_padded && self.skipped + self.block + self.padding == 0
    }
}

impl Hpack {
    /// The position after this byte. Counts each field that begins.
    fn next(self, byte: u8, fields: &mut usize) -> Self {
        match self {
            Self::Field => {
                *fields += 1;
                Self::after_first(byte)
            }
            Self::Index(text) if byte & 0x80 != 0 => Self::Index(text),
            Self::Index(text) => Self::before(text),
            Self::Length(text) if byte & 0x7f == 0x7f => Self::LengthTail {
                text,
                length: 0x7f,
                shift: 0,
            },
            Self::Length(text) => Self::inside(text, usize::from(byte & 0x7f)),
            Self::LengthTail {
                text,
                length,
                shift,
            } => {
                let part = usize::from(byte & 0x7f).checked_shl(shift);
                let length = length.saturating_add(part.unwrap_or(usize::MAX));
                match byte & 0x80 {
                    0 => Self::inside(text, length),
                    _ => Self::LengthTail {
                        text,
                        length,
                        shift: shift.saturating_add(7),
                    },
                }
            }
            Self::Text(text, left) => Self::inside(text, left - 1),
        }
    }

    /// The position after a field's first byte, which has the field's kind and the beginning of its index.
    fn after_first(byte: u8) -> Self {
        let (mask, is_literal) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            // A change of the table's size.
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let index = byte & mask;
        let text = match (is_literal, index) {
            (false, _) => None,
            (true, 0) => Some(Text::Name),
            (true, _) => Some(Text::Value),
        };
        // An index that fills its bits continues in the next byte.
        if index == mask {
            Self::Index(text)
        } else {
            Self::before(text)
        }
    }

    fn before(text: Option<Text>) -> Self {
        text.map_or(Self::Field, Self::Length)
    }

    /// The position with `left` bytes of a string to come.
    fn inside(text: Text, left: usize) -> Self {
        match (left, text) {
            (1.., _) => Self::Text(text, left),
            (0, Text::Name) => Self::Length(Text::Value),
            (0, Text::Value) => Self::Field,
        }
    }
}

/// Takes up to `wanted` bytes, and subtracts their number from it.
fn take<'b>(bytes: &mut &'b [u8], wanted: &mut usize) -> &'b [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(*wanted));
    *bytes = rest;
    *wanted -= taken.len();
    taken
}

/// Fields of a list. A browser sends each cookie as one, and has 180 for a site at most.
const MAX_FIELDS: usize = 512;
/// Bytes of `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`.
const PREFACE_LEN: usize = 24;
const PRIORITY_LEN: usize = 5;
// Flags of frames (RFC 9113, section 6).
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The maximum number of streams that a client may have open at once (RFC 9113, section 5.1.2).
pub(in crate::http) const MAX_CONCURRENT_STREAMS: u32 = 128;
const MAX_BODIES: usize = MAX_CONCURRENT_STREAMS as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Returns whether these frames have a list that is too long, and asserts that this does not depend on the size of reads.
    fn is_refused(frames: &[u8]) -> bool {
        let all = [&[b'P'; PREFACE_LEN], frames].concat();
        let read_in = |size| {
            let mut counter = FieldCounter::default();
            let mut parts = all.chunks(size);
            parts.any(|part| counter.feed(part).is_err())
        };
        let whole = read_in(all.len());
        for size in 1..12 {
            assert_eq!(read_in(size), whole, "by {size}");
        }
        whole
    }

    /// A stream that is not known any more counts as one with a body: its request must not be repeated.
    #[test]
    fn streams_with_a_body_are_remembered() {
        let mut counter = FieldCounter::default();
        for stream in (1..).step_by(2).take(MAX_BODIES) {
            counter.note_body(stream);
        }
        assert!(counter.may_have_body(1));
        assert!(!counter.may_have_body(301));
        counter.note_body(303);
        assert!(counter.may_have_body(1));
        assert!(counter.may_have_body(3));
        assert!(!counter.may_have_body(301));
        counter.note_body(305);
        counter.note_body(1);
        assert!(counter.may_have_body(3));
        assert_eq!(counter.with_body.len(), MAX_BODIES);
    }

    #[test]
    fn fields_of_each_kind_count_once() {
        let long = [&[0x7f, 0xa1, 0x01][..], &[0x80; 288]].concat();
        for field in [
            // Indexed, with an index of one byte and of three.
            vec![0x82],
            vec![0xff, 0x80, 0x01],
            // Literals with an indexed name: with indexing, without, never.
            vec![0x41, 0x00],
            vec![0x7f, 0x80, 0x01, 0x01, 0x80],
            vec![0x0f, 0x2f, 0x02, 0x80, 0x80],
            vec![0x11, 0x81, 0xff],
            // With a name, and with a long value.
            vec![0x40, 0x01, 0x80, 0x00],
            [&[0x00, 0x00][..], &long].concat(),
            // A change of the table's size.
            vec![0x3f, 0xe1, 0x1f],
        ] {
            let list = |count| frame(HEADERS, END_HEADERS, &field.repeat(count));
            assert!(!is_refused(&list(MAX_FIELDS)), "{field:x?}");
            assert!(is_refused(&list(MAX_FIELDS + 1)), "{field:x?}");
        }
    }

    #[test]
    fn list_ends_with_its_block_and_padding_is_not_counted() {
        let most = [0x82; MAX_FIELDS];
        let padded = |pad: u8, list: &[u8]| {
            let padding = [0x82].repeat(pad.into());
            let payload = [&[pad, 0, 0, 0, 0, 0xff], list, &padding].concat();
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &payload)
        };
        let whole = padded(9, &most);
        let data = frame(0, 0, &[0x82; 2000]);
        assert!(!is_refused(&[&whole[..], &data, &whole, &whole].concat()));
        let begun = frame(HEADERS, 0, &most);
        let end = |list: &[u8]| frame(CONTINUATION, END_HEADERS, list);
        assert!(!is_refused(&[&begun[..], &end(&[]), &whole].concat()));
        assert!(is_refused(&[&begun[..], &end(&[0x82])].concat()));
        // Frames too short for their padding or priority are left to h2, which refuses them.
        assert!(!is_refused(&frame(HEADERS, PADDED, &[0xff, 0x82])));
        assert!(!is_refused(&frame(HEADERS, PADDED | PRIORITY, &[])));
        let endless = [0xff; 2000];
        assert!(!is_refused(&frame(HEADERS, END_HEADERS, &endless)));
        assert!(!is_refused(&frame(
            HEADERS,
            0,
            &[&[0, 0x7f][..], &endless].concat()
        )));
    }
}
