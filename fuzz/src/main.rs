//! With the feature `libfuzzer`: libFuzzer's program for the target that the environment's `HEADWATER_FUZZ_TARGET` names. Without it:
//! what `scripts/fuzz` needs beside (`headwater-fuzz`: the targets' names; `unpack TARGET FOLDER`, `pack TARGET FOLDER`,
//! `add TARGET FILE`: the corpus).

#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: std::sync::LazyLock<fn(&[u8])> = std::sync::LazyLock::new(|| {
        let name = std::env::var("HEADWATER_FUZZ_TARGET").unwrap_or_default();
        headwater_fuzz::target(&name).unwrap_or_else(|| panic!("HEADWATER_FUZZ_TARGET is {name:?}, which is no target"))
    });
    TARGET(data);
});

#[cfg(not(feature = "libfuzzer"))]
#[allow(clippy::print_stdout)]
fn main() -> std::io::Result<()> {
    use headwater_fuzz::{TARGETS, corpus};

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => TARGETS.iter().for_each(|(name, _)| println!("{name}")),
        ["unpack", target, folder] => corpus::unpack(target, folder.as_ref())?,
        ["pack", target, folder] => corpus::pack(target, folder.as_ref())?,
        ["add", target, file] => corpus::add(target, file.as_ref())?,
        _ => return Err(std::io::Error::other("expected nothing, unpack, pack or add: see scripts/fuzz")),
    }
    Ok(())
}
