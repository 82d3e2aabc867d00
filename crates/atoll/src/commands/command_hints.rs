//! Hints for a command that is no program: it needs a shell, or it is an image.

use crate::failure::{EXIT_CANNOT_START, EXIT_NOT_FOUND, Failure};

/// Characters that only a shell understands.
const OF_A_SHELL: &[char] = &['|', '&', ';', '<', '>', '$', '`', '*'];

/// Adds a hint to the failure of `atoll run`.
pub(super) fn of_run(failure: Failure, command: &[String]) -> Failure {
    match image_hint(command) {
        Some(hint) if wants_hint(&failure) => failure.hint(hint),
        _ => of_shell(failure, "atoll run", command),
    }
}

/// Adds a hint to the failure of `atoll exec`.
pub(super) fn of_exec(failure: Failure, sandbox: &str, command: &[String]) -> Failure {
    of_shell(failure, &format!("atoll exec {sandbox}"), command)
}

fn of_shell(failure: Failure, before: &str, command: &[String]) -> Failure {
    let [line] = command else { return failure };
    let needs_shell = line.contains(char::is_whitespace) || line.contains(OF_A_SHELL);
    if !needs_shell || !wants_hint(&failure) {
        return failure;
    }
    failure.hint(format!("to run it in a shell: {before} -- sh -c {}", quoted(line)))
}

/// Whether the command could not be started, and the server has no hint.
fn wants_hint(failure: &Failure) -> bool {
    failure.hint.is_none() && [EXIT_NOT_FOUND, EXIT_CANNOT_START].contains(&failure.exit)
}

/// The command in the image that its first word names; words without a tag or a folder may be programs.
fn image_hint(command: &[String]) -> Option<String> {
    let (image, rest) = command.split_first()?;
    let is_path = image.starts_with(['/', '.', '~']) || image.contains(char::is_whitespace);
    let has_mark = image.contains([':', '@', '/']);
    if is_path || !has_mark || image.parse::<atoll_model::TemplateRef>().is_err() {
        return None;
    }
    let rest: Vec<String> = rest.iter().map(|word| quoted(word)).collect();
    let program = if rest.is_empty() { "sh".to_owned() } else { rest.join(" ") };
    Some(format!("to run in an image: atoll run --image {image} -- {program}"))
}

/// One word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(command: &[&str], exit: u8) -> Option<String> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        of_run(Failure::new("invalid_argument", "no").exit(exit), &command).hint
    }

    #[test]
    fn a_line_is_for_a_shell_and_a_tag_for_an_image() {
        let shell = |line| Some(format!("to run it in a shell: atoll run -- sh -c {line}"));
        let image = |rest| Some(format!("to run in an image: atoll run --image {rest}"));
        assert_eq!(hint(&["echo hi"], 127), shell("'echo hi'"));
        assert_eq!(hint(&["echo 'a b' > x"], 126), shell("'echo '\\''a b'\\'' > x'"));
        assert_eq!(hint(&["ubuntu:22.04", "bash"], 127), image("ubuntu:22.04 -- bash"));
        assert_eq!(hint(&["ghcr.io/team/app:v1"], 126), image("ghcr.io/team/app:v1 -- sh"));
        for plain in [["nope"].as_slice(), &["./run.sh", "x"], &["/opt/a:b"], &["nope", "a b"]] {
            assert_eq!(hint(plain, 127), None, "{plain:?}");
        }
        assert_eq!(hint(&["echo hi"], 1), None, "the command ran");
    }
}
