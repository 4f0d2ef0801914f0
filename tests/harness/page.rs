//! A page of the documentation, and its code for readers to copy: indented blocks and fenced ones.

/// A page, or a part of it.
#[derive(Clone, Copy)]
pub(crate) struct Page(&'static str);

impl Page {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self(text)
    }

    pub(crate) const fn text(self) -> &'static str {
        self.0
    }

    /// The section below this heading (`## A title`), up to the next heading that is not below it.
    #[track_caller]
    pub(crate) fn section(self, heading: &str) -> Self {
        let level = heading.bytes().take_while(|byte| *byte == b'#').count();
        let body = self.after(&format!("{heading}\n"));
        let end = headings(body.0).find(|(_, found)| *found <= level);
        Self(&body.0[..end.map_or(body.0.len(), |(at, _)| at)])
    }

    /// The part of the page after the first occurrence of this text.
    #[track_caller]
    pub(crate) fn after(self, text: &str) -> Self {
        match self.0.split_once(text) {
            Some((_, rest)) => Self(rest),
            None => panic!("the page does not have {text:?}"),
        }
    }

    /// The indented blocks, without the indentation.
    pub(crate) fn blocks(self) -> Vec<String> {
        let mut blocks = Vec::new();
        let mut is_open = false;
        for line in self.0.lines() {
            match line.strip_prefix("    ") {
                Some(code) if is_open => {
                    let block: &mut String = blocks.last_mut().expect("an open block");
                    block.push_str(code);
                    block.push('\n');
                }
                Some(code) => blocks.push(format!("{code}\n")),
                // An empty line does not end a block that continues after it.
                None if line.is_empty() && is_open => {
                    blocks.last_mut().expect("an open block").push('\n');
                }
                None => {}
            }
            is_open = is_open && line.is_empty() || line.starts_with("    ");
        }
        blocks
            .iter()
            .map(|block| format!("{}\n", block.trim_end()))
            .collect()
    }

    /// The first indented block that begins with this text.
    #[track_caller]
    pub(crate) fn block(self, start: &str) -> String {
        let found = self
            .blocks()
            .into_iter()
            .find(|block| block.starts_with(start));
        found.unwrap_or_else(|| panic!("no block begins with {start:?}"))
    }

    /// The texts between single backquotes, with line breaks as spaces.
    pub(crate) fn inline(self) -> impl Iterator<Item = String> {
        let codes = self.0.split('`').skip(1).step_by(2);
        codes.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The fenced blocks of this language.
    pub(crate) fn fenced(self, language: &str) -> Vec<&'static str> {
        self.0
            .split(&format!("```{language}\n"))
            .skip(1)
            .map(|rest| rest.split("```").next().expect("its end"))
            .collect()
    }

    /// The lines of the indented blocks, continued ones joined.
    pub(crate) fn commands(self) -> Vec<String> {
        self.blocks()
            .iter()
            .flat_map(|block| commands(block))
            .collect()
    }

    /// The first command that begins with this text.
    #[track_caller]
    pub(crate) fn command(self, start: &str) -> String {
        let found = self
            .commands()
            .into_iter()
            .find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no command begins with {start:?}"))
    }
}

/// The lines of a block, continued ones joined.
pub(crate) fn commands(block: &str) -> Vec<String> {
    block
        .replace("\\\n", "")
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.trim().to_owned())
        .collect()
}

/// The headings of a text outside of code: the position and the level of each.
fn headings(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    let mut is_fenced = false;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        is_fenced ^= line.starts_with("```");
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        (level > 0 && !is_fenced).then_some((start, level))
    })
}
