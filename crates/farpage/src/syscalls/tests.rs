use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const M: u64 = MANAGED_TAG << MANAGED_SHIFT;
const STACK: u64 = 0x7ffc_0000_0ff8;

/// A sparse memory. Checks that nothing is read before it is emitted.
#[derive(Default)]
struct Memory {
    bytes: HashMap<u64, u8>,
    /// What memory holds where nothing was put.
    filler: Option<u8>,
}

impl Memory {
    fn put(&mut self, at: u64, data: &[u8]) {
        for (offset, &byte) in (0..).zip(data) {
            self.bytes.insert(at + offset, byte);
        }
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        for (index, word) in (0..).zip(words) {
            self.put(at + index * 8, &word.to_le_bytes());
        }
    }

    fn ranges(&self, nr: libc::c_long, args: [u64; 6]) -> Vec<(u64, u64)> {
        let emitted = std::cell::RefCell::new(Vec::new());
        let mut read = |at: u64| {
            assert_eq!(at % 8, 0);
            // Wrapping and NULL structures are not emitted; nothing is there to read either.
            if at > 1 << 56 || at == 0 {
                return None;
            }
            // Mostly of the latest: an exec with a million strings once took minutes of this.
            let seen = emitted
                .borrow()
                .iter()
                .rev()
                .any(|&(start, len): &(u64, u64)| start < at + 8 && at < start + len);
            assert!(seen, "{nr}: {at:#x} read before it was emitted");
            let mut word = [0; 8];
            for (offset, byte) in (0..).zip(&mut word) {
                *byte = self.bytes.get(&(at + offset)).copied().or(self.filler)?;
            }
            Some(u64::from_le_bytes(word))
        };
        ranges(nr as usize, &args, &mut read, &mut |start, len| {
            assert!(start != 0 && len != 0 && start.checked_add(len).is_some());
            emitted.borrow_mut().push((start, len));
        });
        emitted.into_inner()
    }
}

fn zeroed() -> Memory {
    Memory {
        filler: Some(0),
        ..Memory::default()
    }
}

#[test]
fn arrays_behind_the_structure_of_an_ioctl_are_named_whole() {
    const OPAQUE: u64 = 65_536;
    let mut memory = zeroed();
    let ioctl = |memory: &Memory, command: u64| memory.ranges(libc::SYS_ioctl, [1, command, M, 0, 0, 0]);
    // KVM_GET_SUPPORTED_CPUID; a structure that is what it says, for all we know; none.
    for command in [0xc008_ae05, 0xc010_4401, 0x5382] {
        assert_eq!(ioctl(&memory, command), [(M, OPAQUE)]);
    }
    // FS_IOC_FIEMAP and its extents, BLKREPORTZONE and its zones, a device mapper's.
    memory.put(M + 24, &2000u32.to_le_bytes());
    assert_eq!(ioctl(&memory, 0xc020_660b), [(M, 28), (M, 32 + 2000 * 56)]);
    memory.put(M + 8, &3000u32.to_le_bytes());
    assert_eq!(ioctl(&memory, 0xc010_1282), [(M, 12), (M, 16 + 3000 * 64)]);
    memory.put(M + 12, &500_000u32.to_le_bytes());
    assert_eq!(ioctl(&memory, 0xc138_fd0c), [(M, 16), (M, 500_000)]);
    memory.put(M + 24, &u32::MAX.to_le_bytes());
    assert_eq!(ioctl(&memory, 0xc020_660b), [(M, 28), (M, RW_BYTES_MAX)]);
    memory.put(M + 24, &0u32.to_le_bytes());
    assert_eq!(ioctl(&memory, 0xc020_660b), [(M, 28), (M, OPAQUE)]);
}

#[test]
fn numbers_and_names_are_the_kernels() {
    macro_rules! same {
        ($($sys:ident)*) => { $(
            assert_eq!(describe(libc::$sys as usize).map(|call| call.name), Some(&stringify!($sys)[4..]));
        )* };
    }
    same!(SYS_read SYS_write SYS_poll SYS_mremap SYS_sendto SYS_recvmsg SYS_clone SYS_execve
        SYS_fcntl SYS_getdents SYS_readlink SYS_ptrace SYS_getgroups SYS_sigaltstack SYS_mlock
        SYS_prctl SYS_quotactl SYS_setxattr SYS_futex SYS_getdents64 SYS_mbind SYS_mq_notify
        SYS_keyctl SYS_openat SYS_readlinkat SYS_pselect6 SYS_vmsplice SYS_move_pages
        SYS_epoll_pwait SYS_accept4 SYS_preadv SYS_recvmmsg SYS_sendmmsg SYS_process_vm_readv
        SYS_seccomp SYS_getrandom SYS_bpf SYS_execveat SYS_mlock2 SYS_preadv2 SYS_pkey_mprotect
        SYS_statx SYS_rseq SYS_io_uring_enter SYS_fsconfig SYS_clone3 SYS_close_range SYS_openat2
        SYS_process_madvise SYS_epoll_pwait2 SYS_mount_setattr SYS_futex_waitv SYS_mseal);
    assert!((0..=336).chain(424..470).all(|nr| describe(nr).is_some()));
    assert!((337..424).chain(470..600).all(|nr| describe(nr).is_none()));
}

#[test]
fn masks_and_notes_agree_with_the_arguments() {
    for nr in 0..NUMBERS {
        let Some(call) = describe(nr) else { continue };
        assert!(call.pointer_mask() < 1 << 6);
        let has = |arg: u8| call.pointer_mask() >> arg & 1 == 1;
        if let Hidden::Always { arg } = call.hidden {
            assert!(has(arg), "{}", call.name);
        }
        match call.restart {
            Chunk::None => {}
            Chunk::ReadLike { buf, len, .. } | Chunk::WriteLike { buf, len, .. } => {
                assert!(has(buf) && !has(len))
            }
            Chunk::ReadVec { iov, count, .. } | Chunk::WriteVec { iov, count, .. } => {
                assert!(has(iov) && !has(count))
            }
        }
    }
    assert_eq!(pointer_mask(libc::SYS_rt_sigreturn as usize), 0);
    assert_eq!(pointer_mask(libc::SYS_mremap as usize), 0b1_0001);
    assert_eq!(pointer_mask(libc::SYS_clone as usize), 0b1100);
    assert_eq!(pointer_mask(400), 0x3f);
}

#[test]
fn flat_arguments() {
    let memory = zeroed();
    assert_eq!(memory.ranges(libc::SYS_read, [3, M, 100, M, M, M]), [(M, 100)]);
    assert_eq!(
        memory.ranges(libc::SYS_read, [3, M, u64::MAX, 0, 0, 0]),
        [(M, RW_BYTES_MAX)]
    );
    assert_eq!(memory.ranges(libc::SYS_read, [3, 0, 100, 0, 0, 0]), []);
    // The upper half of an int is garbage.
    assert_eq!(
        memory.ranges(libc::SYS_poll, [M, 0xffff_0000_0002, 0, 0, 0, 0]),
        [(M, 16)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_select, [65, M, 0, M + 16, 0, 0]),
        [(M, 16), (M + 16, 16)]
    );
    assert_eq!(memory.ranges(libc::SYS_select, [0xffff_ffff, M, 0, 0, 0, 0]), []);
    assert_eq!(
        memory.ranges(libc::SYS_mincore, [M, 4097, M + 8, 0, 0, 0]),
        [(M + 8, 2)]
    );
    assert_eq!(memory.ranges(libc::SYS_madvise, [M, 4096, 4, M, M, M]), []);
    assert_eq!(memory.ranges(400, [M, 5, 0, M, 0, 0]).len(), 3);
}

#[test]
fn strings_end_at_their_end() {
    let mut memory = Memory {
        filler: Some(b'x'),
        ..Memory::default()
    };
    memory.put(M + 4100, &[0]);
    // Page by page up to the page of the end, and 4096 bytes at most.
    assert_eq!(
        memory.ranges(libc::SYS_chdir, [M + 4090, 0, 0, 0, 0, 0]),
        [(M + 4090, 6), (M + 4096, 4090)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_chdir, [M + 4101, 0, 0, 0, 0, 0]),
        [(M + 4101, 4091), (M + 8192, 5)]
    );
    // A NUL just before the string is not its end.
    memory.put(M + 16, &[0]);
    assert_eq!(memory.ranges(libc::SYS_chdir, [M + 17, 0, 0, 0, 0, 0]).len(), 2);
    assert_eq!(
        memory.ranges(libc::SYS_chdir, [STACK, 0, 0, 0, 0, 0]),
        [(STACK, 8)]
    );
}

#[test]
fn lengths_behind_pointers() {
    let mut memory = zeroed();
    memory.put(STACK + 2, &16u32.to_le_bytes());
    assert_eq!(
        memory.ranges(libc::SYS_accept, [3, M, STACK + 2, 0, 0, 0]),
        [(STACK + 2, 4), (M, 16)]
    );
    // Across two words.
    memory.put(STACK + 6, &300u32.to_le_bytes());
    assert_eq!(
        memory.ranges(libc::SYS_recvfrom, [3, M, 9, 0, M + 64, STACK + 6])[1..],
        [(STACK + 6, 4), (M + 64, 300)]
    );
    assert_eq!(memory.ranges(libc::SYS_accept, [3, 0, 0, 0, 0, 0]), []);
}

#[test]
fn vectors_and_messages() {
    let mut memory = zeroed();
    memory.words(STACK, &[M, 10, M + 4096, 20]);
    let vectors = [(STACK, 32), (M, 10), (M + 4096, 20)];
    assert_eq!(memory.ranges(libc::SYS_readv, [3, STACK, 2, 0, 0, 0]), vectors);
    assert_eq!(memory.ranges(libc::SYS_readv, [3, STACK, 1025, 0, 0, 0]), []);
    let header = STACK + 0x1000;
    memory.words(header, &[M + 64, 0xdead_0000_0010, STACK, 2, M + 128, 24, 0]);
    let mut message = vec![(header, 56), (M + 64, 16), (M + 128, 24)];
    message.extend(vectors);
    assert_eq!(memory.ranges(libc::SYS_sendmsg, [3, header, 0, 0, 0, 0]), message);
    message.insert(0, (header, 64));
    assert_eq!(
        memory.ranges(libc::SYS_recvmmsg, [3, header, 1, 0, 0, 0]),
        message
    );
    // The kernel truncates the sum of the lengths.
    memory.words(STACK, &[M, 0x7fff_0000, M, 0x7fff_0000]);
    assert_eq!(
        memory.ranges(libc::SYS_writev, [3, STACK, 2, 0, 0, 0])[2],
        (M, 0xf000)
    );
}

#[test]
fn programs_to_execute() {
    let mut memory = zeroed();
    memory.put(M, b"/bin/true\0");
    memory.put(M + 8192, b"true\0");
    memory.words(STACK, &[M + 8192, M + 8192 + 2, 0]);
    // The array crosses a page: its next page is emitted before it is read.
    let expected = [
        (M, 4096),
        (STACK, 8),
        (M + 8192, 4096),
        (STACK + 8, 4096),
        (M + 8194, 4094),
    ];
    assert_eq!(memory.ranges(libc::SYS_execve, [M, STACK, 0, 0, 0, 0]), expected);
}

#[test]
fn by_command() {
    let mut memory = zeroed();
    let wait = libc::FUTEX_WAIT as u64 | libc::FUTEX_PRIVATE_FLAG as u64;
    assert_eq!(
        memory.ranges(libc::SYS_futex, [M, wait, 0, M + 8, M + 64, 0]),
        [(M, 4), (M + 8, 16)]
    );
    let requeue = libc::FUTEX_CMP_REQUEUE as u64;
    assert_eq!(
        memory.ranges(libc::SYS_futex, [M, requeue, 0, M + 8, M + 64, 0]),
        [(M, 4), (M + 64, 4)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_ioctl, [1, 0x5413, M, 0, 0, 0]),
        [(M, 4096)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_ioctl, [1, 0x4004_5431, M, 0, 0, 0]),
        [(M, 4)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_fcntl, [1, libc::F_SETFD as u64, M, 0, 0, 0]),
        []
    );
    assert_eq!(
        memory.ranges(libc::SYS_fcntl, [1, libc::F_GETLK as u64, M, 0, 0, 0]),
        [(M, 32)]
    );
    assert_eq!(memory.ranges(libc::SYS_arch_prctl, [0x1002, M, 0, 0, 0, 0]), []);
    assert_eq!(
        memory.ranges(libc::SYS_arch_prctl, [0x1003, M, 0, 0, 0, 0]),
        [(M, 8)]
    );
    assert_eq!(
        memory.ranges(libc::SYS_clone, [libc::SIGCHLD as u64, M, M, M, M, M]),
        []
    );
    let flags = (libc::CLONE_CHILD_CLEARTID | libc::CLONE_VM) as u64;
    assert_eq!(
        memory.ranges(libc::SYS_clone, [flags, M, M, M + 8, M, M]),
        [(M + 8, 4)]
    );
    memory.words(STACK, &[M, 0, 8192]);
    assert_eq!(
        memory.ranges(libc::SYS_sigaltstack, [STACK, 0, 0, 0, 0, 0]),
        [(STACK, 24), (M, 8192)]
    );
    memory.words(STACK, &[0, 0, M | 1]);
    memory.words(STACK, &[5, M + 8]);
    assert_eq!(
        memory.ranges(libc::SYS_seccomp, [1, 0, STACK, 0, 0, 0]),
        [(STACK, 16), (M + 8, 40)]
    );
}

#[test]
fn names_behind_structures() {
    let mut memory = zeroed();
    memory.words(STACK, &[0; 8]);
    memory.words(STACK + 56, &[M + 4090]);
    assert_eq!(
        memory.ranges(libc::SYS_perf_event_open, [STACK, 0, 0, 0, 0, 0]),
        [(STACK, 4096), (M + 4090, 6)]
    );
    memory.words(STACK, &[M, M + 4096, 8]);
    assert_eq!(
        memory.ranges(libc::SYS_keyctl, [23, M + 64, M + 128, 32, STACK, 0]),
        [(M + 64, 12), (M + 128, 32), (STACK, 56), (M, 4096), (M + 4096, 8)]
    );
}

#[test]
fn memory_calls() {
    let (prctl, vma) = (libc::SYS_prctl as usize, libc::PR_SET_VMA as u64);
    assert!(memory_call(libc::SYS_munmap as usize, &[M, 4096, 0, 0, 0, 0]));
    assert!(!memory_call(
        libc::SYS_munmap as usize,
        &[STACK, 4096, M, M, M, M]
    ));
    assert!(memory_call(
        libc::SYS_mremap as usize,
        &[STACK, 4096, 4096, 3, M, 0]
    ));
    assert!(memory_call(prctl, &[vma, 0, M, 4096, 0, 0]));
    assert!(!memory_call(prctl, &[15, 0, M, 4096, 0, 0]));
    assert!(memory_call(
        libc::SYS_process_madvise as usize,
        &[3, STACK, 1, 4, 0, 0]
    ));
    assert!(!memory_call(libc::SYS_pread64 as usize, &[3, 0, 1, M, 0, 0]));
    assert_eq!(pointer_mask(libc::SYS_pread64 as usize), 1 << 1 | 1 << 3);
    assert!(!memory_call(libc::SYS_read as usize, &[3, M, 1, 4, 0, 0]));
    assert!(keeps(libc::SYS_rseq as usize, &[M, 32, 0, 0, 0, 0]));
    assert!(!keeps(libc::SYS_rseq as usize, &[M, 32, 1, 0, 0, 0]));
    assert!(!keeps(libc::SYS_clone as usize, &[17, 0, 0, 0, M, 0]));
    assert!(keeps(prctl, &[59, 1, 0, 0, M, 0]));
    assert!(!keeps(prctl, &[15, M, 0, 0, 0, 0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Garbage in registers and memory: no panic, no read before its emit, and an end.
    #[test]
    fn every_walk_survives_garbage(
        nr in 0i64..480,
        args in prop::array::uniform6(prop_oneof![
            0u64..40, Just(M), M..M + 9000, STACK - 64..STACK + 64, u64::MAX - 5000..=u64::MAX, any::<u64>()
        ]),
        words in prop::collection::vec(
            prop_oneof![0u64..40, M..M + 9000, STACK..STACK + 64, u64::MAX - 100..=u64::MAX, any::<u64>()],
            0..64,
        ),
        filler in any::<Option<u8>>(),
    ) {
        let mut memory = Memory { filler, ..Memory::default() };
        memory.words(M, &words);
        memory.words(STACK, &words);
        for (start, len) in memory.ranges(nr, args) {
            prop_assert!(len <= RW_BYTES_MAX.max(u64::from(u32::MAX) * 8), "{:#x} {:#x}", start, len);
        }
    }
}
