//! The headers of a file in a response with several files, for the SDK's e-mail parser: each part is named by its path.

use atoll_front_kit::multipart::Boundary;
use bytes::Bytes;

/// The head of a part.
pub(super) fn part_head(boundary: &Boundary, path: &str) -> Bytes {
    let disposition = format!("Content-Disposition: form-data; name=\"{}\"", quoted(path));
    boundary.part(&[&disposition, "Content-Type: application/octet-stream"])
}

/// A path inside quotes; line ends, which would begin another header, are escaped as browsers do.
fn quoted(path: &str) -> String {
    let mut quoted = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\r' => quoted.push_str("%0D"),
            '\n' => quoted.push_str("%0A"),
            c => quoted.push(c),
        }
    }
    quoted
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_path_stays_inside_its_quotes() {
        let boundary = Boundary::random().unwrap();
        let head = part_head(&boundary, "/tmp/a\"; x=\r\nX-Evil: 1\\");
        let text = std::str::from_utf8(&head).unwrap();
        assert_eq!(text.matches("\r\n").count(), 4);
        assert!(text.contains(r#"name="/tmp/a\"; x=%0D%0AX-Evil: 1\\""#), "{text}");
    }
}
