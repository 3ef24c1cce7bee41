//! What an unwinder needs to walk from the stub to its caller: a thread that is cancelled in a call unwinds from there, and so does a
//! handler that throws, or that prints where its thread is. No file holds the stub's page, so no loader tells of it by itself.
//!
//! Only [`CALL`] is told of. Signals are blocked around the change of the alternate stack, and the signal return is known by its bytes.

use super::{CALL, STUB_ADDR};

/// `.eh_frame_hdr` without a table, and behind it an `.eh_frame` of one CIE and one FDE (Linux Standard Base, 10.6; DWARF 4, 6.4).
#[repr(C)]
pub struct Frames {
    /// Version, and encodings: `frames` relative to itself in 4 bytes; no count, no table.
    header: [u8; 4],
    frames: i32,
    cie_len: u32,
    cie_id: u32,
    cie: [u8; 16],
    fde_len: u32,
    /// Bytes back to the CIE.
    fde_cie: u32,
    start: u64,
    len: u64,
    fde: [u8; 8],
    end: u32,
}

/// At every instruction of [`CALL`] the return address is on top of the stack, and all registers of the caller's that a call preserves
/// are as they were.
pub static FRAMES: Frames = Frames {
    header: [1, 0x1b, 0xff, 0xff],
    frames: 4,
    cie_len: 20,
    cie_id: 0,
    cie: [
        1, b'z', b'R', 0, // version, augmentation
        1, 0x78, 16, // code and data alignment (-8), column of the return address
        1, 0, // augmentation data: absolute addresses
        0x0c, 7, 8, // DW_CFA_def_cfa: rsp + 8
        0x90, 1, // DW_CFA_offset: return address at CFA - 8
        0, 0, // DW_CFA_nop
    ],
    fde_len: 28,
    fde_cie: 28,
    start: STUB_ADDR,
    len: CALL.len() as u64,
    fde: [0; 8],
    end: 0,
};

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn the_parts_lie_where_they_say() {
        let place = |field: usize| field as u32;
        let (frames, cie, fde) = (
            place(offset_of!(Frames, frames)),
            place(offset_of!(Frames, cie_len)),
            place(offset_of!(Frames, fde_len)),
        );
        assert_eq!(frames + FRAMES.frames as u32, cie);
        assert_eq!(cie + 4 + FRAMES.cie_len, fde);
        assert_eq!(place(offset_of!(Frames, fde_cie)) - FRAMES.fde_cie, cie);
        assert_eq!(fde + 4 + FRAMES.fde_len, place(offset_of!(Frames, end)));
    }
}
