//! Maps of sparse files. A map is accepted only if it is in order and fits the file and the data.

/// LIMIT: pieces of one sparse file; each costs a write.
pub(crate) const PIECES: usize = 1 << 16;

/// Checks a map and drops its empty pieces. `stored`: bytes of data in the archive.
pub(crate) fn checked(
    pieces: impl IntoIterator<Item = (u64, u64)>,
    size: u64,
    stored: u64,
) -> Result<Vec<(u64, u64)>, &'static str> {
    let (mut end, mut sum, mut map) = (0_u64, 0_u64, Vec::new());
    for (offset, length) in pieces {
        let after = offset.checked_add(length).ok_or("a sparse file's map overflows")?;
        if offset < end || after > size {
            return Err("a sparse file's map is out of order or longer than the file");
        }
        end = after;
        sum += length;
        if length > 0 {
            map.push((offset, length));
        }
        if map.len() > PIECES {
            return Err("a sparse file has too many pieces");
        }
    }
    if sum != stored {
        return Err("a sparse file's map does not fit its data");
    }
    Ok(map)
}

/// Offsets and lengths alternately.
pub(crate) fn pairs(numbers: &[u64]) -> Result<impl Iterator<Item = (u64, u64)>, &'static str> {
    match numbers.len() % 2 {
        0 => Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
        _ => Err("a sparse file's map has an odd number of numbers"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_that_fit_are_taken() {
        assert_eq!(checked([(0, 2), (10, 3), (20, 0)], 20, 5).unwrap(), [(0, 2), (10, 3)]);
        for (pieces, size, stored) in [
            (vec![(0, 2), (1, 3)], 20, 5),
            (vec![(10, 3), (0, 2)], 20, 5),
            (vec![(0, 30)], 20, 30),
            (vec![(0, 2)], 20, 3),
            (vec![(u64::MAX, 2)], u64::MAX, 2),
        ] {
            assert!(checked(pieces.clone(), size, stored).is_err(), "{pieces:?}");
        }
        assert!(checked((0..70_000).map(|at| (at * 2, 1)), 1 << 20, 70_000).is_err());
    }
}
