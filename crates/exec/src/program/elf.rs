//! Reads from an ELF file how the program makes system calls: linking, tool chain and machine type.

use std::fs::File;

use object::elf::{EM_AARCH64, EM_X86_64, FileHeader32, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};

/// The properties of an ELF file that decide on the mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// Whether it names an interpreter (PT_INTERP), which is the dynamic linker.
    pub(super) has_dynamic_linker: bool,
    /// Whether it was built by the Go tool chain, possibly with C in it.
    pub(super) is_go: bool,
    /// Whether it is for the machine type of the preloaded library.
    pub(super) is_native: bool,
}

impl Elf {
    /// Reads the headers of an ELF file; `None` if the file is not an ELF file, or is corrupt.
    pub(super) fn read(file: File) -> Option<Self> {
        let data = ReadCache::new(file);
        match FileKind::parse(&data).ok()? {
            FileKind::Elf32 => read::<FileHeader32<Endianness>>(&data, false),
            FileKind::Elf64 => read::<FileHeader64<Endianness>>(&data, true),
            _ => None,
        }
    }
}

fn read<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>, is_64: bool) -> Option<Elf> {
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let has_dynamic_linker = segments
        .iter()
        .any(|segment| segment.p_type(endian) == PT_INTERP);
    let machine = header.e_machine(endian);
    Some(Elf {
        has_dynamic_linker,
        is_go: has_go_note(segments, endian, data) || has_go_section(header, endian, data),
        is_native: is_64 && NATIVE_MACHINE == Some(machine),
    })
}

/// Whether there is a Go build id (`.note.go.buildid`), which is loaded with the program and so survives strip(1).
fn has_go_note<P: ProgramHeader<Endian = Endianness>>(
    segments: &[P],
    endian: Endianness,
    data: &ReadCache<File>,
) -> bool {
    segments
        .iter()
        .filter_map(|segment| segment.notes(endian, data).ok()?)
        .any(|mut notes| {
            std::iter::from_fn(|| notes.next().ok().flatten()).any(|note| note.name() == b"Go")
        })
}

/// Whether there is Go build information, which a program has even if it was built without a build id (`-ldflags=-buildid=`).
fn has_go_section<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    data: &ReadCache<File>,
) -> bool {
    header
        .sections(endian, data)
        .is_ok_and(|sections| sections.section_by_name(endian, b".go.buildinfo").is_some())
}

/// The machine type for which this binary, and with it the preloaded library, is compiled.
const NATIVE_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(EM_AARCH64)
} else {
    None
};
