//! Lists in pages. The core pages by its own cursor; vendors also sort, count and number pages, so a front reads all
//! items that a key can see and cuts them here.
//!
//! | dialect | function |
//! |---|---|
//! | page number and size | [`numbered_page`] |
//! | cursor or token: the last item of the page before | [`page_after`] |

use atoll_service::Page;

/// LIMIT: more items than a node has at a time.
const READ_MAX: usize = 20_000;
/// The page size when a front reads all items from the core.
pub const READ_AT_ONCE: u32 = 1_000;

/// Reads all pages of the core, up to the maximum of a list. `read` gets the cursor; items that `keep` refuses are left
/// out.
pub async fn read_all<T, E, R>(
    keep: impl Fn(&T) -> bool,
    mut read: impl FnMut(Option<String>) -> R,
) -> Result<Vec<T>, E>
where
    R: Future<Output = Result<Page<T>, E>>,
{
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = read(cursor).await?;
        all.extend(page.items.into_iter().filter(&keep));
        cursor = page.next_cursor;
        if cursor.is_none() || all.len() >= READ_MAX {
            return Ok(all);
        }
    }
}

/// The page of this number, from 1 on; a page beyond the last one is empty.
#[must_use]
pub fn numbered_page<T>(all: Vec<T>, number: usize, size: usize) -> Vec<T> {
    all.into_iter().skip(number.saturating_sub(1).saturating_mul(size)).take(size).collect()
}

/// The first page of `rest`, and the cursor of its last item if more follow.
#[must_use]
pub fn page_after<T>(
    mut rest: Vec<T>,
    size: usize,
    cursor_of: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let has_more = rest.len() > size;
    rest.truncate(size);
    let next = rest.last().filter(|_| has_more).map(cursor_of);
    (rest, next)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_pages_are_read_up_to_a_bound() {
        let page = |cursor: Option<String>| async move {
            let at: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
            let next_cursor = (at < 2).then(|| (at + 1).to_string());
            Ok::<_, ()>(Page { items: vec![at * 2, at * 2 + 1], next_cursor })
        };
        assert_eq!(read_all(|_| true, page).await.unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(read_all(|n| n % 2 == 0, page).await.unwrap(), [0, 2, 4]);
        let endless =
            |_| async { Ok::<_, ()>(Page { items: vec![0; 6_000], next_cursor: Some("more".to_owned()) }) };
        assert_eq!(read_all(|_| true, endless).await.unwrap().len(), 24_000);
        let broken = read_all(|_: &u8| true, |_| async { Err(7) }).await;
        assert_eq!(broken, Err(7));
    }

    #[test]
    fn pages_are_numbered_from_one_and_end() {
        let all = vec![1, 2, 3, 4, 5];
        assert_eq!(numbered_page(all.clone(), 1, 2), [1, 2]);
        assert_eq!(numbered_page(all.clone(), 3, 2), [5]);
        assert!(numbered_page(all.clone(), 4, 2).is_empty());
        assert!(numbered_page(all, usize::MAX, 100).is_empty());
    }

    #[test]
    fn a_page_names_its_last_item_only_where_more_follow() {
        let page = |size| page_after(vec!["a", "b", "c"], size, |item| (*item).to_owned());
        assert_eq!(page(2), (vec!["a", "b"], Some("b".to_owned())));
        assert_eq!(page(3), (vec!["a", "b", "c"], None));
        assert_eq!(page_after(Vec::<u8>::new(), 3, u8::to_string), (Vec::new(), None));
    }
}
