//! Lines of hex, of any length, in bounded memory.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead};

/// One line at a time, of which the first so many bytes are kept and the rest is only checked.
#[derive(Debug)]
pub(super) struct HexLine {
    kept: Vec<u8>,
    most: usize,
    /// The half of a byte that was read.
    half: Option<u8>,
    /// Characters read, to tell where a wrong one stands.
    column: usize,
    /// White space came after a digit: no digit may follow.
    ended: bool,
    bad: Option<BadHex>,
}

impl HexLine {
    /// `most`: how many bytes to keep of each line.
    pub(super) fn new(most: usize) -> Self {
        Self {
            kept: Vec::new(),
            most,
            half: None,
            column: 0,
            ended: false,
            bad: None,
        }
    }

    /// Reads the next line; false at the end of the input. A last line needs no line feed.
    pub(super) fn read(&mut self, input: &mut impl BufRead) -> io::Result<bool> {
        *self = Self {
            kept: std::mem::take(&mut self.kept),
            ..Self::new(self.most)
        };
        self.kept.clear();
        let mut any = false;
        loop {
            let buffer = input.fill_buf()?;
            let Some(piece) = buffer
                .split_inclusive(|&character| character == b'\n')
                .next()
            else {
                return Ok(any);
            };
            any = true;
            for &character in piece {
                self.take(character);
            }
            let (used, is_last) = (piece.len(), piece.ends_with(b"\n"));
            input.consume(used);
            if is_last {
                return Ok(true);
            }
        }
    }

    /// The line's bytes, as far as they are kept.
    pub(super) fn octets(&self) -> Result<&[u8], BadHex> {
        match (self.bad, self.half) {
            (Some(bad), _) => Err(bad),
            (None, Some(_)) => Err(BadHex::Odd),
            (None, None) => Ok(&self.kept),
        }
    }

    fn take(&mut self, character: u8) {
        self.column += 1;
        if character.is_ascii_whitespace() {
            self.ended = self.half.is_some() || !self.kept.is_empty();
            return;
        }
        let digit = char::from(character)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok());
        match digit.filter(|_| !self.ended) {
            Some(digit) => self.push(digit),
            None => {
                self.bad.get_or_insert(BadHex::Character {
                    column: self.column,
                });
            }
        }
    }

    fn push(&mut self, digit: u8) {
        match self.half.take() {
            None => self.half = Some(digit),
            Some(high) if self.kept.len() < self.most => self.kept.push(high << 4 | digit),
            Some(_) => {}
        }
    }
}

/// Why a line isn't hex. The line itself is not repeated: it may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHex {
    Character { column: usize },
    Odd,
}

impl Display for BadHex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character { column } => write!(f, "not hex: column {column} is no hex digit"),
            Self::Odd => f.write_str("not hex: an odd number of digits, half an octet is missing"),
        }
    }
}
