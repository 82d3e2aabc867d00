//! Wires store, engine, service and front into one server. The only code that knows concrete types.
use crate::{
    cli::{Global, serve::Serve},
    commands::Check,
    failure::Failure,
    out::Out,
};
pub(crate) fn launcher(_arguments: Vec<std::ffi::OsString>) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
pub(crate) fn serve(_global: &Global, _args: Serve, _out: Out) -> Result<u8, Failure> {
    Ok(0)
}
pub(crate) fn openapi_text() -> String {
    String::new()
}
pub(crate) fn checks(_data: &std::path::Path) -> Vec<Check> {
    vec![]
}
