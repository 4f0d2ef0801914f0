//! The file of a learned list: its rules and their comments.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;

use anyhow::Context;
use peername_intercept::authz::Rule;
use peername_sys::fs::text_file;

use crate::cmd::intercept::rule_file::{strip_byte_order_mark, strip_comment};

/// The content of a list.
#[derive(Debug, Default)]
pub(super) struct ListFile {
    pub(super) text: String,
    /// The mode of the file; `None` if it does not exist.
    pub(super) permissions: Option<Permissions>,
    pub(super) lines: Vec<RuleLine>,
    /// Rules for addresses that are not public, each as a comment ([`NOT_PUBLIC`]).
    pub(super) not_public: Vec<String>,
    /// Other comments after the last rule.
    pub(super) trailing: Vec<String>,
}

/// A rule, with the comments above it.
#[derive(Debug)]
pub(super) struct RuleLine {
    pub(super) comments: Vec<String>,
    pub(super) rule: Rule,
    pub(super) text: String,
}

impl ListFile {
    /// Reads the file of this name in an open directory; `None` if it does not exist.
    pub(super) fn read(directory: impl AsFd, name: &OsStr) -> anyhow::Result<Option<Self>> {
        let opened = match text_file::open_in(directory, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut file = Self::parse(text_file::read_opened(&opened)?)?;
        file.permissions = Some(opened.metadata()?.permissions());
        Ok(Some(file))
    }

    /// Parses the file. An error does not quote the line that is no rule: the file may not be the one that was meant.
    fn parse(text: String) -> anyhow::Result<Self> {
        let mut file = Self::default();
        let mut comments = Vec::new();
        let lines = strip_byte_order_mark(&text).lines().map(str::trim);
        for (number, line) in (1_u32..).zip(lines) {
            let entry = strip_comment(line);
            if !entry.is_empty() {
                file.lines.push(RuleLine {
                    comments: std::mem::take(&mut comments),
                    rule: Rule::allow(entry).with_context(|| format!("line {number}"))?,
                    text: line.to_owned(),
                });
            } else if line.starts_with(NOT_PUBLIC) {
                file.not_public.push(line.to_owned());
            } else if !line.is_empty() && !is_header(line) {
                comments.push(line.to_owned());
            }
        }
        file.trailing = comments;
        file.text = text;
        Ok(file)
    }
}

/// Whether a line is one of those that are written anew each time.
pub(super) fn is_header(line: &str) -> bool {
    ["# --learn: ", "# --ask-list: "]
        .into_iter()
        .any(|beginning| line.starts_with(beginning))
}

/// The beginning of comments for addresses that are not public, which are refused while learning.
pub(in crate::cmd::intercept::jail) const NOT_PUBLIC: &str =
    "# not public, remove this beginning to allow: ";
