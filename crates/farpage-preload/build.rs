//! Compiles the C shim and keeps jemalloc's own mappings away from the symbols this library interposes.

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
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
