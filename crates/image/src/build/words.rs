//! Splits a line into words as Dockerfiles do: by white space outside of quotes. Quotes and escapes are kept for the
//! expansion.

/// The words of `ENV`, `LABEL` and `ARG`.
pub(crate) fn words(rest: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut blank_ok, mut quote) = (String::new(), false, None);
    let mut chars = rest.chars().peekable();
    while let Some(c) = chars.next() {
        match quote {
            None if c.is_whitespace() => {
                if blank_ok || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                blank_ok = false;
                continue;
            }
            None if c == '\'' || c == '"' => (quote, blank_ok) = (Some(c), true),
            Some(open) if c == open => quote = None,
            None | Some(_) => {}
        }
        if c == escape && quote != Some('\'') {
            // An escape at the very end is dropped.
            let Some(next) = chars.next() else { break };
            word.push(c);
            word.push(next);
            continue;
        }
        word.push(c);
    }
    if blank_ok || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Parses `name=value …`, or the old form `name rest of the line`. The error says what is missing.
pub(crate) fn pairs(rest: &str, escape: char) -> Result<Vec<(String, String)>, String> {
    let words = words(rest, escape);
    let Some(first) = words.first() else { return Err("it needs a name and a value".into()) };
    if !first.contains('=') {
        let (name, value) = rest
            .trim_start()
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("{first:?} has no value; write {first}=value"))?;
        return Ok(vec![(name.to_owned(), value.trim_start().to_owned())]);
    }
    let pair = |word: String| match word.split_once('=') {
        Some(("", _)) => Err(format!("{word:?} has no name before its \"=\"")),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(format!("{word:?} has no \"=\"; quote values that contain spaces")),
    };
    words.into_iter().map(pair).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_quotes_and_escapes() {
        assert_eq!(
            words(r#"a="b c" d='e f' g\ h "" x"#, '\\'),
            [r#"a="b c""#, "d='e f'", r"g\ h", r#""""#, "x"]
        );
        assert_eq!(words(r#"a="q\"z" b"#, '\\'), [r#"a="q\"z""#, "b"]);
        assert_eq!(words("a b` c", '`'), ["a", "b` c"]);
        assert_eq!(words("tail \\", '\\'), ["tail"]);
    }

    #[test]
    fn pairs_have_a_new_and_an_old_form() {
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        assert_eq!(pairs("A=1 B=\"2 3\" C=", '\\').unwrap(), own(&[("A", "1"), ("B", "\"2 3\""), ("C", "")]));
        assert_eq!(pairs("A one two  three", '\\').unwrap(), own(&[("A", "one two  three")]));
        for bad in ["A", "A=1 B", "=x", ""] {
            assert!(pairs(bad, '\\').is_err(), "{bad}");
        }
    }
}
