//! "Did you mean": the most similar existing name.

/// The most similar candidate, at most two edits away; two swapped letters are one edit.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (strsim::osa_distance(wanted, name), name))
        .filter(|(d, name)| *d <= 2 && *d < wanted.chars().count().max(name.chars().count()))
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_found() {
        let names = ["builder", "box", "test-1"];
        assert_eq!(nearest("bulider", names.into_iter()), Some("builder"));
        assert_eq!(nearest("bo", names.into_iter()), Some("box"));
        assert_eq!(nearest("test-2", names.into_iter()), Some("test-1"));
        assert_eq!(nearest("zebra", names.into_iter()), None);
        assert_eq!(nearest("rnu", ["env", "rm", "run"].into_iter()), Some("run"));
    }
}
