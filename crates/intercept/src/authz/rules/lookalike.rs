//! Characters beyond ASCII that some servers take for ASCII characters, or for nothing.

use std::ops::RangeInclusive;

/// Whether a server may read this character as ASCII characters, or leave it out: because the server normalizes names to their
/// compatibility form (NFKC: `\u{24d0}` is `a`, `\u{fe30}` is `..`), ignores the case of letters (the Kelvin sign is `k`), drops
/// invisible characters, or converts slashes to a code page.
pub(super) fn is_lookalike(c: char) -> bool {
    !c.is_ascii() && LOOKALIKES.iter().any(|range| range.contains(&c))
}

/// The characters of Unicode 15 that have an ASCII form in NFKC or in the other case, or the property
/// Default_Ignorable_Code_Point; and the slashes of mathematics. Some ranges include a few other characters: symbols, and code
/// points that are not assigned.
const LOOKALIKES: [RangeInclusive<char>; 48] = [
    '\u{a0}'..='\u{a0}',
    '\u{aa}'..='\u{aa}',
    '\u{ad}'..='\u{ad}',
    '\u{b2}'..='\u{b3}',
    '\u{b9}'..='\u{ba}',
    '\u{130}'..='\u{133}',
    '\u{17f}'..='\u{17f}',
    '\u{1c7}'..='\u{1cc}',
    '\u{1f1}'..='\u{1f3}',
    '\u{2b0}'..='\u{2b8}',
    '\u{2e1}'..='\u{2e3}',
    '\u{34f}'..='\u{34f}',
    '\u{37e}'..='\u{37e}',
    '\u{61c}'..='\u{61c}',
    '\u{1d2c}'..='\u{1dbf}',
    '\u{1fef}'..='\u{1fef}',
    '\u{2000}'..='\u{200f}',
    '\u{2024}'..='\u{2026}',
    '\u{2028}'..='\u{202f}',
    '\u{203c}'..='\u{203c}',
    '\u{2044}'..='\u{2044}',
    '\u{2047}'..='\u{2049}',
    '\u{205f}'..='\u{209c}',
    '\u{20a8}'..='\u{20a8}',
    '\u{2100}'..='\u{218f}',
    '\u{2215}'..='\u{2215}',
    '\u{2460}'..='\u{24ff}',
    '\u{29f8}'..='\u{29f8}',
    '\u{2a74}'..='\u{2a76}',
    '\u{2c7c}'..='\u{2c7d}',
    '\u{3000}'..='\u{3000}',
    '\u{3164}'..='\u{3164}',
    '\u{3250}'..='\u{325f}',
    '\u{32b1}'..='\u{32cf}',
    '\u{3371}'..='\u{33ff}',
    '\u{a7f2}'..='\u{a7f4}',
    '\u{fb00}'..='\u{fb06}',
    '\u{fb29}'..='\u{fb29}',
    '\u{fe00}'..='\u{fe6f}',
    '\u{feff}'..='\u{feff}',
    '\u{ff01}'..='\u{ff5e}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{107a5}'..='\u{107a5}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{1d400}'..='\u{1d7ff}',
    '\u{1f100}'..='\u{1f190}',
    '\u{1fbf0}'..='\u{1fbf9}',
    '\u{e0000}'..='\u{e0fff}',
];
