//! Embeds the preload library, so that the one binary `farpage` works after being copied anywhere.
//!
//! The library is a cdylib of the same workspace. Cargo cannot make a binary depend on a cdylib artifact, so
//! `make build` builds it first; a binary built without it says so when `farpage run` is used.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const LIBRARY: &str = "libfarpage_preload.so";

fn main() -> Result<(), Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FARPAGE_PRELOAD_SO");
    let library = match env::var_os("FARPAGE_PRELOAD_SO") {
        Some(path) => PathBuf::from(path),
        None => profile_dir(&out_dir)?.join(LIBRARY),
    };
    println!("cargo::rerun-if-changed={}", library.display());
    let generated = if library.is_file() {
        // A copy: a later build that rewrites the library must not change what this one includes half-way.
        fs::copy(&library, out_dir.join(LIBRARY))?;
        format!("pub static LIBRARY: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{LIBRARY}\"));\n")
    } else {
        "pub static LIBRARY: &[u8] = &[];\n".to_owned()
    };
    fs::write(out_dir.join("preload.rs"), generated)?;
    Ok(())
}

/// `<target>/<profile>`, given `<target>/<profile>/build/farpage-cli-<hash>/out`.
fn profile_dir(out_dir: &Path) -> Result<&Path, String> {
    out_dir
        .ancestors()
        .nth(3)
        .ok_or_else(|| format!("{}: not an OUT_DIR of cargo", out_dir.display()))
}
