//! Compiles the calls of MPI with `mpicc`, or the compiler that `MPICC` names, and links its library.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-env-changed=MPICC");
    let compiler = env::var("MPICC").unwrap_or_else(|_| "mpicc".to_string());
    let folder = PathBuf::from(env::var("OUT_DIR").expect("cargo names a folder"));
    let object = folder.join("shim.o");
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
            panic!("{program} cannot be run: {error}. Install an MPI library with its compiler (Debian: libopenmpi-dev)")
        });
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{program} {}: {said}", arguments.join(" "));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let path = object.to_string_lossy();
    run(&compiler, &["-O2", "-fPIC", "-Wall", "-Werror", "-c", "src/shim.c", "-o", &path]);
    let archive = folder.join("libpartita_mpi_shim.a");
    run("ar", &["crs", &archive.to_string_lossy(), &path]);
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static=partita_mpi_shim");
    // The command that the compiler would run names the libraries and where they are.
    for word in run(&compiler, &["-show"]).split_whitespace() {
        if let Some(library) = word.strip_prefix("-l") {
            println!("cargo::rustc-link-lib={library}");
        } else if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        } else if word.starts_with("-Wl,") {
            println!("cargo::rustc-link-arg={word}");
        }
    }
}
