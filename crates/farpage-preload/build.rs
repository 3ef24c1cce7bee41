//! Compiles the C shim, keeps jemalloc's own mappings away from the symbols this library interposes, binds the library to its
//! own symbols, and links the unwinder in: loading libgcc_s.so costs every program of a tree a sixth of the library's start-up.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    cc::Build::new()
        .file("src/shim.c")
        .opt_level(2)
        .flag("-fno-builtin")
        .flag("-Wall")
        .flag("-Wextra")
        .compile("farpage_shim");
    // References inside the archive members linked in (jemalloc, Rust's std) go to __wrap_X in the shim, raw system
    // calls; the exported X still serves the program.
    for name in ["mmap", "munmap", "mprotect", "madvise", "mremap"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // What this library calls of its own is its own: a program that brings a malloc (rustc does) comes first in the
    // look-up, and would get blocks of ours to free.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    link_unwinder_statically();
}

/// Rust's std asks for `-lgcc_s`: the first such file on the linker's path is a script that names the static archive.
fn link_unwinder_statically() {
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let directory = Path::new(&out).join("unwinder");
    let written = std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(directory.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n"));
    match written {
        Ok(()) => println!("cargo:rustc-cdylib-link-arg=-L{}", directory.display()),
        Err(error) => println!("cargo:warning=the unwinder is not linked in: {error}"),
    }
}
