//! "Did you mean": the name nearest to one that is not there.

/// The candidate at most two edits away, or the one that begins the same way.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (distance(wanted, name), name))
        .filter(|(d, name)| *d <= 2 && *d < wanted.chars().count().max(name.chars().count()))
        .min()
        .map(|(_, name)| name)
}

/// Edits between two short words; rows of the usual table.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
    }
}
