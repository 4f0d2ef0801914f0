//! Reads lines of hex, of any length, in bounded memory.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead};

/// One line at a time. Its first `max_len` bytes are stored; the rest is only checked.
#[derive(Debug)]
pub(super) struct HexLine {
    bytes: Vec<u8>,
    max_len: usize,
    /// The high digit of a byte that is half read.
    high: Option<u8>,
    /// Characters read: the column of a wrong one.
    column: usize,
    /// White space came after a digit: no digit may follow.
    ended: bool,
    error: Option<BadHex>,
}

impl HexLine {
    /// `max_len`: how many bytes of each line are stored.
    pub(super) fn new(max_len: usize) -> Self {
        Self {
            bytes: Vec::new(),
            max_len,
            high: None,
            column: 0,
            ended: false,
            error: None,
        }
    }

    /// Reads the next line; false at the end of the input. A last line needs no line feed.
    pub(super) fn read(&mut self, input: &mut impl BufRead) -> io::Result<bool> {
        *self = Self {
            bytes: std::mem::take(&mut self.bytes),
            ..Self::new(self.max_len)
        };
        self.bytes.clear();
        let mut is_line = false;
        loop {
            let buffer = input.fill_buf()?;
            let Some(piece) = buffer
                .split_inclusive(|&character| character == b'\n')
                .next()
            else {
                return Ok(is_line);
            };
            is_line = true;
            for &character in piece {
                self.push_character(character);
            }
            let (used, is_last) = (piece.len(), piece.ends_with(b"\n"));
            input.consume(used);
            if is_last {
                return Ok(true);
            }
        }
    }

    /// The line's bytes, as far as they are stored.
    ///
    /// # Errors
    ///
    /// The line isn't hex.
    pub(super) fn bytes(&self) -> Result<&[u8], BadHex> {
        match (self.error, self.high) {
            (Some(error), _) => Err(error),
            (None, Some(_)) => Err(BadHex::Odd),
            (None, None) => Ok(&self.bytes),
        }
    }

    fn push_character(&mut self, character: u8) {
        self.column += 1;
        if character.is_ascii_whitespace() {
            self.ended = self.high.is_some() || !self.bytes.is_empty();
            return;
        }
        let digit = char::from(character)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok());
        match digit.filter(|_| !self.ended) {
            Some(digit) => self.push_digit(digit),
            None => {
                self.error.get_or_insert(BadHex::Character {
                    column: self.column,
                });
            }
        }
    }

    fn push_digit(&mut self, digit: u8) {
        match self.high.take() {
            None => self.high = Some(digit),
            Some(high) if self.bytes.len() < self.max_len => self.bytes.push(high << 4 | digit),
            Some(_) => {}
        }
    }
}

/// Why a line isn't hex. The message does not quote the line, which may contain anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHex {
    Character { column: usize },
    Odd,
}

impl Display for BadHex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character { column } => write!(f, "not hex: column {column} is not a hex digit"),
            Self::Odd => f.write_str("not hex: an odd number of digits"),
        }
    }
}
