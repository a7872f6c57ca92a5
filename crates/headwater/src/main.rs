//! `headwater`: see `headwater --help`.

fn main() -> std::process::ExitCode {
    headwater::run()
}
