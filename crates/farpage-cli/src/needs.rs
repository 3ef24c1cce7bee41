//! What `farpage run` needs of the kernel besides userfaultfd. `run` asks before it starts and `doctor` beforehand: a program that
//! found out by itself ran without its budget, or was stopped at its first fork.

use std::io;

use crate::probe::{self, Trouble};

pub struct Need {
    pub name: &'static str,
    ask: fn() -> io::Result<()>,
    pub works: &'static str,
    /// What can't be done without it.
    what: &'static str,
    fix: &'static str,
}

pub const NEEDS: [Need; 3] = [
    Need {
        name: "seccomp filter",
        ask: probe::seccomp_filter,
        works: "can be installed",
        what: "install a seccomp filter",
        fix: "build the kernel with CONFIG_SECCOMP_FILTER=y, or in a container allow seccomp(2) and prctl(2) in its seccomp profile",
    },
    Need {
        name: "syscall dispatch",
        ask: probe::user_dispatch,
        works: "works, as fork needs it",
        what: "dispatch system calls to user space, as fork needs it",
        fix: "boot Linux 5.11 or newer, or in a container allow prctl(2) in its seccomp profile",
    },
    Need {
        name: "memfd_create",
        ask: probe::memory_file,
        works: "sealed and mapped executable",
        what: "make a memory file that code can be run from",
        fix: "sysctl vm.memfd_noexec=0, or in a container allow memfd_create(2) in its seccomp profile",
    },
];

impl Need {
    /// What is in its way, if anything is.
    pub fn trouble(&self) -> Option<Trouble> {
        let error = (self.ask)().err()?;
        Some(Trouble::new(format!("cannot {}: {error}", self.what), self.fix))
    }
}
