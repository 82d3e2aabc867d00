//! Values in the form that users type: `512m`, `2g`, `30s`, `1h`, `K=V`, `NAME:PATH`. Invalid ones are refused before a
//! request is sent.
//!
//! An ambiguous number is refused with a hint, never guessed.

use crate::environment;

/// MiB, written `512`, `512m`, `2g` or `1t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mebibytes(pub(crate) u64);

impl Mebibytes {
    /// As a limit of the API, which the server may refuse as too small or too large.
    pub(crate) fn as_limit(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

/// Seconds, written `30`, `30s`, `5m`, `1h`, `2d` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seconds(pub(crate) f64);

/// Seconds until an automatic action; -1 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timer(pub(crate) i64);

/// `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) String, pub(crate) String);

/// A number of bytes, or of bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// `DOMAIN:HEADER=VALUE`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Injection {
    pub(crate) domain: String,
    pub(crate) header: String,
    pub(crate) value: String,
}

impl std::fmt::Debug for Injection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Injection({}:{}=..)", self.domain, self.header)
    }
}

/// `DOMAIN:HEADER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) domain: String,
    pub(crate) header: String,
}

/// One end of a copy: `-`, a local path, or `NAME:PATH` in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyEndpoint {
    /// stdin or stdout.
    Stream,
    Here(std::path::PathBuf),
    Inside {
        sandbox: String,
        path: String,
    },
}

/// `VOLUME[/SUB]:/PATH[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeMount {
    pub(crate) volume: String,
    pub(crate) sub_path: Option<String>,
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

/// When a template's start command is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ready {
    Port(u16),
    Url { port: u16, path: String },
    Command(String),
}

/// The source of a build secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretSource {
    pub(crate) id: String,
    pub(crate) from: SecretFrom,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecretFrom {
    File(std::path::PathBuf),
    Variable(String),
}

pub(crate) fn mebibytes(text: &str) -> Result<Mebibytes, String> {
    let lower = text.trim().to_ascii_lowercase();
    let cut = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(cut);
    let factor = match unit {
        "" | "m" | "mb" | "mi" | "mib" => 1.0,
        "g" | "gb" | "gi" | "gib" => 1_024.0,
        "t" | "tb" | "ti" | "tib" => 1_048_576.0,
        _ => return Err(format!("{text:?} is not a size; write 512m, 2g or a number of MiB")),
    };
    let value = number
        .parse::<f64>()
        .map_err(|_| format!("{text:?} is not a size; write 512m, 2g or a number of MiB"))?
        * factor;
    // LIMIT: a tebibyte times a thousand; the server has its own, smaller limits.
    if !(1.0..=1e9).contains(&value) {
        let end = if value > 1e9 { "the maximum is 950t" } else { "the minimum is 1m" };
        return Err(format!("{text:?} is out of range; {end}"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1e9")]
    Ok(Mebibytes(value.round() as u64))
}

/// `64k`, `10m`, `1g`.
pub(crate) fn amount(text: &str) -> Result<Bytes, String> {
    scaled(text, "1g", &[("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)])
}

/// `500k`, `10m` (bytes), `100mbit` (bits), each per second.
pub(crate) fn rate(text: &str) -> Result<Bytes, String> {
    let text = text.trim().trim_end_matches("/s");
    let bits = [("kbit", 125), ("mbit", 125_000), ("gbit", 125_000_000)];
    let bytes = [("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)];
    scaled(text, "100mbit", &[&bits[..], &bytes[..]].concat())
}

fn scaled(text: &str, example: &str, units: &[(&str, u64)]) -> Result<Bytes, String> {
    let refuse = || format!("{text:?} is not a size; write 500k, 10m or {example}");
    let lower = text.trim().to_ascii_lowercase();
    let cut = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(cut);
    let short = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(unit);
    let known = |name: &str| units.iter().find(|(unit, _)| *unit == name).map(|(_, factor)| *factor);
    // A plain number could mean bytes or megabytes.
    let factor = known(unit).or_else(|| known(short)).ok_or_else(refuse)?;
    #[expect(clippy::cast_precision_loss, reason = "powers of two, and round numbers below 2^40")]
    let value = number.parse::<f64>().map_err(|_| refuse())? * factor as f64;
    // LIMIT: a petabyte; the server has its own limits.
    if !(1.0..=1e15).contains(&value) {
        let end = if value > 1e15 { "the maximum is 900t" } else { "the minimum is one byte" };
        return Err(format!("{text:?} is out of range; {end}"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1e15")]
    Ok(Bytes(value.round() as u64))
}

/// `api.example.com:Authorization=Bearer x`. Neither a domain nor a header name contains the separators.
pub(crate) fn injection(text: &str) -> Result<Injection, String> {
    let parts = text.split_once(':').and_then(|(domain, rest)| Some((domain, rest.split_once('=')?)));
    match parts {
        Some((domain, (header, value))) if !domain.is_empty() && !header.is_empty() => Ok(Injection {
            domain: domain.to_owned(),
            header: header.trim().to_owned(),
            value: value.to_owned(),
        }),
        _ => Err("write 'api.example.com:Authorization=Bearer {secret:NAME}'".to_owned()),
    }
}

/// `api.example.com:Cookie`.
pub(crate) fn removal(text: &str) -> Result<Removal, String> {
    match text.split_once(':') {
        Some((domain, header)) if !domain.is_empty() && !header.is_empty() && !header.contains('=') => {
            Ok(Removal { domain: domain.to_owned(), header: header.trim().to_owned() })
        }
        _ => Err("write api.example.com:Cookie".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Seconds, String> {
    let refuse = || format!("{text:?} is not a duration; write 30s, 5m, 1h or 1h30m");
    let mut rest = text.trim();
    let mut total = 0.0;
    if rest.is_empty() {
        return Err(refuse());
    }
    while !rest.is_empty() {
        let cut = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(cut);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let factor = match unit {
            "" | "s" => 1.0,
            "ms" => 0.001,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(refuse()),
        };
        total += number.parse::<f64>().map_err(|_| refuse())? * factor;
        rest = tail;
    }
    // LIMIT: a year; a sandbox that lives longer has no timeout.
    if !(total > 0.0 && total <= 365.0 * 86_400.0) {
        let end = if total > 0.0 { "the maximum is 365d" } else { "the minimum is 1ms" };
        return Err(format!("{text:?} is out of range; {end}"));
    }
    Ok(Seconds(total))
}

impl Seconds {
    /// Whole seconds, for deadlines of sandboxes; rounded up.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parsed to at most a year")]
    pub(crate) fn whole(self) -> u64 {
        self.0.ceil() as u64
    }
}

/// A duration, `0` for at once, `never` or `-1`. The server decides which values each timer accepts.
pub(crate) fn timer(text: &str) -> Result<Timer, String> {
    match text.trim() {
        "never" | "off" | "-1" => Ok(Timer(-1)),
        "0" | "0s" => Ok(Timer(0)),
        other => {
            let span = seconds(other).map_err(|why| format!("{why}, or never"))?;
            Ok(Timer(i64::try_from(span.whole()).unwrap_or(i64::MAX)))
        }
    }
}

/// `K=V`, or `K` alone for the user's own value.
pub(crate) fn variable(text: &str) -> Result<Pair, String> {
    if let Some((key, value)) = text.split_once('=') {
        if key.is_empty() {
            return Err(format!("{text:?} has no name; write NAME=VALUE"));
        }
        return Ok(Pair(key.to_owned(), value.to_owned()));
    }
    match environment::of_user(text) {
        Some(value) if !text.is_empty() => Ok(Pair(text.to_owned(), value)),
        _ => Err(format!("{text:?} is not set here; write {text}=VALUE")),
    }
}

/// `k=v`.
pub(crate) fn label(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Pair(key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not a label; write key=value")),
    }
}

/// Cores: `0.5`, `2`.
pub(crate) fn cores(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 512.0 => Ok(value),
        Ok(value) if value > 512.0 => Err(format!("{text:?} is out of range; the maximum is 512 cores")),
        Ok(_) => Err(format!("{text:?} is out of range; the minimum is 0.01 cores")),
        Err(_) => Err(format!("{text:?} is not a number of cores; write 0.5 or 2")),
    }
}

/// `-`, a path, or `NAME:PATH`. A local path with a colon is written `./a:b`.
pub(crate) fn place(text: &str) -> Result<CopyEndpoint, String> {
    if text == "-" {
        return Ok(CopyEndpoint::Stream);
    }
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && !name.contains('/') && !name.starts_with('.') => {
            // An empty path would have different meanings in both directions.
            if path.is_empty() {
                return Err(format!("{text:?} has no path; write {name}:/some/path"));
            }
            Ok(CopyEndpoint::Inside { sandbox: name.to_owned(), path: path.to_owned() })
        }
        _ if text.is_empty() => Err("an empty path".to_owned()),
        _ => Ok(CopyEndpoint::Here(text.into())),
    }
}

/// `data:/data`, `data/sub:/data`, `data:/data:ro`.
pub(crate) fn mount(text: &str) -> Result<VolumeMount, String> {
    let refuse =
        || format!("{text:?} is not a mount; write VOLUME:/PATH, VOLUME/FOLDER:/PATH or VOLUME:/PATH:ro");
    let mut parts = text.split(':');
    let (Some(source), Some(path), mode, None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(refuse());
    };
    let read_only = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return Err(refuse()),
    };
    let (volume, sub_path) = match source.split_once('/') {
        Some((volume, sub)) => (volume, Some(sub.to_owned())),
        None => (source, None),
    };
    if source.starts_with(['/', '.', '~']) {
        return Err(format!(
            "{source:?} is a path; folders of this machine are volumes too: atoll volume create NAME --folder {source}"
        ));
    }
    if volume.is_empty() || sub_path.as_deref() == Some("") || !path.starts_with('/') {
        return Err(refuse());
    }
    Ok(VolumeMount { volume: volume.to_owned(), sub_path, path: path.to_owned(), read_only })
}

/// `port:8000`, `8000`, `url:8000/health`, or a command.
pub(crate) fn ready(text: &str) -> Result<Ready, String> {
    let refuse = || format!("{text:?} is not a ready check; write port:8000, url:8000/health, or a command");
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(refuse);
    let text = text.trim();
    if text.is_empty() {
        return Err(refuse());
    }
    if let Some(number) = text.strip_prefix("port:") {
        return port(number).map(Ready::Port);
    }
    if let Some(rest) = text.strip_prefix("url:") {
        let (number, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        return Ok(Ready::Url { port: port(number)?, path: path.to_owned() });
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return port(text).map(Ready::Port);
    }
    Ok(Ready::Command(text.strip_prefix("command:").unwrap_or(text).trim().to_owned()))
}

/// `id=npm,src=FILE`, `id=npm,env=NAME`, `id=npm` for the variable of that name.
pub(crate) fn secret_source(text: &str) -> Result<SecretSource, String> {
    let refuse = || format!("{text:?} is not a secret; write id=NAME,src=FILE or id=NAME,env=VARIABLE");
    let (mut id, mut from) = (None, None);
    for part in text.split(',') {
        match part.split_once('=').ok_or_else(refuse)? {
            ("id", value) if !value.is_empty() => id = Some(value.to_owned()),
            ("src" | "source", value) if !value.is_empty() => from = Some(SecretFrom::File(value.into())),
            ("env", value) if !value.is_empty() => from = Some(SecretFrom::Variable(value.to_owned())),
            // Docker's syntax to distinguish the two.
            ("type", "file" | "env") => {}
            _ => return Err(refuse()),
        }
    }
    let id = id.ok_or_else(refuse)?;
    let from = from.unwrap_or_else(|| SecretFrom::Variable(id.clone()));
    Ok(SecretSource { id, from })
}

/// `TERM`, `SIGTERM` or `15`.
pub(crate) fn signal(text: &str) -> Result<i32, String> {
    const NAMES: &[(&str, i32)] = &[
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("KILL", 9),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
        ("CONT", 18),
        ("STOP", 19),
    ];
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    match name.parse::<i32>() {
        Ok(number) if (1..=64).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is not a signal; write TERM, KILL or a number from 1 to 64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, want) in
            [("512", 512), ("512m", 512), ("512MiB", 512), ("2g", 2_048), ("1.5G", 1_536), ("1t", 1_048_576)]
        {
            assert_eq!(mebibytes(text), Ok(Mebibytes(want)), "{text}");
        }
        for text in ["", "m", "-1", "0", "10k", "1g2", "nan", "inf", "1e9", "9999999t", "1 g g"] {
            assert!(mebibytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn rates_and_amounts_have_a_unit() {
        for (text, want) in [
            ("500k", 500 << 10),
            ("10m", 10 << 20),
            ("10MiB/s", 10 << 20),
            ("100mbit", 12_500_000),
            ("1gbit", 125_000_000),
            ("1.5g", 1_610_612_736),
        ] {
            assert_eq!(rate(text), Ok(Bytes(want)), "{text}");
        }
        assert_eq!(amount("2t"), Ok(Bytes(2 << 40)));
        for text in ["", "5", "k", "-1k", "10x", "0k", "1e3k", "nan", "9999999999t"] {
            assert!(rate(text).is_err() && amount(text).is_err(), "{text:?}");
        }
        assert!(amount("1mbit").is_err());
    }

    #[test]
    fn changes_of_headers_name_a_domain_and_a_header() {
        let found = injection("api.example.com:Authorization=Bearer {secret:A=B}").expect("valid");
        assert_eq!(
            (found.domain.as_str(), found.header.as_str(), found.value.as_str()),
            ("api.example.com", "Authorization", "Bearer {secret:A=B}")
        );
        assert!(!format!("{found:?}").contains("Bearer"));
        for text in ["", "a.com", "a.com:X", ":X=1", "a.com:=1", "X=a:b"] {
            assert!(injection(text).is_err(), "{text:?}");
        }
        assert!(removal("a.com:Cookie").is_ok());
        for text in ["", "a.com", "a.com:", ":X", "a.com:X=1"] {
            assert!(removal(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, want) in
            [("30", 30.0), ("30s", 30.0), ("5m", 300.0), ("1h30m", 5_400.0), ("250ms", 0.25), ("0.5s", 0.5)]
        {
            assert_eq!(seconds(text), Ok(Seconds(want)), "{text}");
        }
        for text in ["", "s", "-1s", "0", "1y", "nan", "1h-5m", "400d", "1..2s", "5 m"] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
        assert_eq!(Seconds(0.25).whole(), 1);
    }

    #[test]
    fn timers_are_durations_or_never() {
        for (text, want) in [("never", -1), ("-1", -1), ("0", 0), ("90", 90), ("1h30m", 5_400), ("0.2s", 1)] {
            assert_eq!(timer(text), Ok(Timer(want)), "{text}");
        }
        for text in ["", "-2", "soon", "400d", "nie"] {
            assert!(timer(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn variables_come_with_a_value_or_from_here() {
        assert_eq!(variable("A=b=c"), Ok(Pair("A".into(), "b=c".into())));
        assert_eq!(variable("A="), Ok(Pair("A".into(), String::new())));
        assert!(variable("PATH").is_ok());
        assert!(variable("ATOLL_SURELY_NOT_SET").is_err());
        assert!(variable("=x").is_err());
        assert!(variable("").is_err());
    }

    #[test]
    fn ends_of_a_copy_are_told_apart() {
        let inside = |s: &str, p: &str| Ok(CopyEndpoint::Inside { sandbox: s.into(), path: p.into() });
        assert_eq!(place("box:/tmp/x"), inside("box", "/tmp/x"));
        assert_eq!(place("box:rel/x"), inside("box", "rel/x"));
        assert_eq!(place("-"), Ok(CopyEndpoint::Stream));
        assert_eq!(place("./a:b"), Ok(CopyEndpoint::Here("./a:b".into())));
        assert_eq!(place("/a:b"), Ok(CopyEndpoint::Here("/a:b".into())));
        assert_eq!(place("plain"), Ok(CopyEndpoint::Here("plain".into())));
        assert!(place("box:").is_err());
        assert!(place("").is_err());
    }

    #[test]
    fn mounts_name_a_volume_a_folder_of_it_and_a_place() {
        let found = mount("data/a/b:/x/y:ro").expect("valid");
        assert_eq!(
            found,
            VolumeMount {
                volume: "data".into(),
                sub_path: Some("a/b".into()),
                path: "/x/y".into(),
                read_only: true
            }
        );
        assert!(mount("data:/x").is_ok_and(|mount| mount.sub_path.is_none() && !mount.read_only));
        assert!(mount("data:/x:rw").is_ok());
        for text in ["", "data", "data:", "data:x", ":/x", "data/:/x", "data:/x:rx", "data:/x:ro:ro"] {
            assert!(mount(text).is_err(), "{text:?}");
        }
        assert!(mount("./src:/src").is_err_and(|why| why.contains("--folder")));
    }

    #[test]
    fn checks_are_ports_urls_or_commands() {
        assert_eq!(ready("port:80"), Ok(Ready::Port(80)));
        assert_eq!(ready("8000"), Ok(Ready::Port(8000)));
        assert_eq!(ready("url:80"), Ok(Ready::Url { port: 80, path: "/".into() }));
        assert_eq!(ready("url:80/a?b"), Ok(Ready::Url { port: 80, path: "/a?b".into() }));
        assert_eq!(ready("test -e /x"), Ok(Ready::Command("test -e /x".into())));
        for text in ["", "port:0", "port:x", "url:/x", "url:99999/", "0"] {
            assert!(ready(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn secrets_come_from_files_and_variables_and_never_from_the_line() {
        let of = |text: &str| secret_source(text).map(|found| (found.id, found.from));
        assert_eq!(of("id=a,src=/x"), Ok(("a".into(), SecretFrom::File("/x".into()))));
        assert_eq!(of("type=env,id=a,env=B"), Ok(("a".into(), SecretFrom::Variable("B".into()))));
        assert_eq!(of("id=A"), Ok(("A".into(), SecretFrom::Variable("A".into()))));
        for text in ["", "a", "id=", "src=/x", "id=a,value=b", "id=a,src="] {
            assert!(secret_source(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn signals_are_names_or_numbers() {
        for (text, want) in [("TERM", 15), ("sigkill", 9), ("2", 2)] {
            assert_eq!(signal(text), Ok(want));
        }
        for text in ["", "0", "65", "TERMX", "-9"] {
            assert!(signal(text).is_err(), "{text:?}");
        }
    }
}
