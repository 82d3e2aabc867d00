//! The headers of a part of a download, and errors of forms as the SDKs expect them.

use atoll_front_kit::ApiError;
use atoll_front_kit::multipart::{BadForm, Boundary};
use bytes::Bytes;

pub(super) fn bad_form(error: BadForm) -> ApiError {
    super::refusal::bad(error.to_string()).caused_by(error)
}

/// The head of a part: `file` or `error`, and the path as requested, by which the SDKs find the part.
pub(super) fn part_head(boundary: &Boundary, name: &str, path: &str, kind: &str, len: u64) -> Bytes {
    let mut disposition =
        format!("Content-Disposition: form-data; name=\"{name}\"; filename=\"{}\"", escaped(path));
    if !path.bytes().all(|b| b.is_ascii_graphic() || b == b' ') || path.contains(['"', '\\']) {
        disposition.push_str("; filename*=UTF-8''");
        disposition.push_str(&percent(path));
    }
    boundary.part(&[&disposition, &format!("Content-Type: {kind}"), &format!("Content-Length: {len}")])
}

/// A path inside quotes; a line end, which would begin another header, becomes a blank.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push(' '),
            c => text.push(c),
        }
    }
    text
}

/// A slash is encoded too.
fn percent(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_path_stays_inside_its_quotes() {
        let boundary = Boundary::random().unwrap();
        let head =
            part_head(&boundary, "file", "/tmp/a\"; x=\r\nX-Evil: 1\\ü", "application/octet-stream", 3);
        let text = std::str::from_utf8(&head).unwrap();
        assert_eq!(text.matches("\r\n").count(), 5);
        assert!(
            text.contains("filename*=UTF-8''%2Ftmp%2Fa%22%3B%20x%3D%0D%0AX-Evil%3A%201%5C%C3%BC"),
            "{text}"
        );
        let plain = part_head(&boundary, "file", "/a b.txt", "t", 0);
        assert!(!std::str::from_utf8(&plain).unwrap().contains("filename*"));
    }
}
