//! The pages of recent listings, by which a listing goes on after a name.
//!
//! Layers that merge pages, and clients of ListObjects, continue after names. In a service that lists in another order, the names
//! that follow in its listing are not those after a name: they would be missed, and each page may look ordered. If a recent
//! page of the same listing has the name, the listing goes on from that page by its token, and the order shows.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use tradewind_core::BucketName;
use tradewind_core::listing::{ListPage, ListPosition, ListRequest};

/// Pages that are kept, the latest ones.
const MAX_PAGES: usize = 1024;
/// Buckets that are known to have another order.
const MAX_UNORDERED_BUCKETS: usize = 1024;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ListedPages {
    pages: Mutex<VecDeque<ListedPage>>,
    unordered: Mutex<HashSet<BucketName>>,
}

#[derive(Debug)]
struct ListedPage {
    bucket: BucketName,
    prefix: String,
    delimiter: Option<String>,
    /// The position after which the page began; `None` for the first page.
    start: Option<ListPosition>,
    /// The position at its end, with a token.
    end: ListPosition,
    limit: usize,
}

impl ListedPages {
    /// Records the page of a request: its order, and its place unless it has no token to continue.
    pub(super) fn record<T>(&self, bucket: &BucketName, request: &ListRequest, listed: &ListPage<T>) {
        if listed.check_order(request.after.as_ref()).is_err() {
            let mut unordered = self.unordered.lock();
            if unordered.len() < MAX_UNORDERED_BUCKETS && !unordered.contains(bucket) {
                unordered.insert(bucket.clone());
            }
        }
        let Some(end) = listed.next.as_ref().filter(|end| end.token.is_some()) else { return };
        let page = ListedPage {
            bucket: bucket.clone(),
            prefix: request.prefix.clone(),
            delimiter: request.delimiter.clone(),
            start: request.after.clone(),
            end: end.clone(),
            limit: request.limit,
        };
        let mut pages = self.pages.lock();
        pages.retain(|known| !(known.is_of(bucket, request) && known.start == page.start));
        if pages.len() == MAX_PAGES {
            pages.pop_front();
        }
        pages.push_back(page);
    }

    /// The request for the page that continues after the name of a request, and may have names before it. `None` if no
    /// recent page of the listing has the name.
    pub(super) fn find(&self, bucket: &BucketName, request: &ListRequest) -> Option<ListRequest> {
        let name = request.after_name()?;
        let pages = self.pages.lock();
        let own = || pages.iter().rev().filter(|page| page.is_of(bucket, request));
        // In another order, a page may end at the name at which it began: the page that begins there comes first.
        let begins = own().find(|page| page.start_name() == name && page.start.is_some());
        let ends = || own().find(|page| page.end.name == name);
        let after =
            begins.map(|page| &page.start).cloned().or_else(|| ends().map(|page| Some(page.end.clone())));
        if let Some(after) = after {
            return Some(ListRequest { after, ..request.clone() });
        }
        let page = own().find(|page| page.start_name() < name && name < page.end.name.as_str())?;
        let limit = request.limit.max(page.limit);
        Some(ListRequest { after: page.start.clone(), limit, ..request.clone() })
    }

    /// Returns true if a page of the bucket had another order.
    pub(super) fn is_unordered(&self, bucket: &BucketName) -> bool {
        self.unordered.lock().contains(bucket)
    }

    /// Forgets the pages of a listing whose tokens the service no longer accepts.
    pub(super) fn forget(&self, bucket: &BucketName, request: &ListRequest) {
        self.pages.lock().retain(|page| !page.is_of(bucket, request));
    }
}

impl ListedPage {
    fn start_name(&self) -> &str {
        self.start.as_ref().map_or("", |start| start.name.as_str())
    }

    /// Returns true for a page of the same listing.
    fn is_of(&self, bucket: &BucketName, request: &ListRequest) -> bool {
        self.bucket == *bucket && self.prefix == request.prefix && self.delimiter == request.delimiter
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::listing::ListEntry;

    use super::*;

    fn position(name: &str, token: &str) -> ListPosition {
        ListPosition { name: name.to_owned(), token: Some(token.to_owned()) }
    }

    fn bucket() -> BucketName {
        BucketName::new("bucket").unwrap()
    }

    fn request(after: Option<ListPosition>) -> ListRequest {
        ListRequest { after, limit: 10, ..ListRequest::default() }
    }

    /// Records a page of one name.
    fn record(pages: &ListedPages, after: Option<ListPosition>, name: &str, next: ListPosition) {
        let entries = vec![ListEntry::Key(name.to_owned(), ())];
        pages.record(&bucket(), &request(after), &ListPage { entries, next: Some(next) });
    }

    /// The position from which a name is found, and the limit of the request.
    fn find(pages: &ListedPages, name: &str) -> Option<(Option<ListPosition>, usize)> {
        let found =
            pages.find(&bucket(), &ListRequest { limit: 3, ..request(Some(ListPosition::after(name))) });
        found.map(|found| (found.after, found.limit))
    }

    #[test]
    fn name_is_found_in_the_page_that_has_it() {
        let pages = ListedPages::default();
        record(&pages, None, "f", position("f", "1"));
        record(&pages, Some(position("f", "1")), "m", position("m", "2"));
        record(&pages, Some(position("m", "2")), "z", ListPosition::after("z"));
        assert_eq!(find(&pages, "c"), Some((None, 10)), "in the first page, which is as large");
        assert_eq!(find(&pages, "f"), Some((Some(position("f", "1")), 3)));
        assert_eq!(find(&pages, "g"), Some((Some(position("f", "1")), 10)));
        assert_eq!(find(&pages, "m"), Some((Some(position("m", "2")), 3)));
        assert_eq!(find(&pages, "n"), None, "a page without a token");
        let other = ListRequest { prefix: "c".to_owned(), ..request(Some(ListPosition::after("c"))) };
        assert_eq!(pages.find(&bucket(), &other), None, "another listing");
        assert!(!pages.is_unordered(&bucket()));
        pages.forget(&bucket(), &request(None));
        assert_eq!(find(&pages, "f"), None);
    }

    /// The largest name so far stays the position of the next page.
    #[test]
    fn page_with_names_before_those_of_the_previous_page_is_not_skipped() {
        let pages = ListedPages::default();
        record(&pages, None, "logs/9", position("logs/9", "1"));
        record(&pages, Some(position("logs/9", "1")), "logs-old", position("logs/9", "2"));
        assert_eq!(find(&pages, "logs/9"), Some((Some(position("logs/9", "1")), 3)));
        assert!(pages.is_unordered(&bucket()));
    }

    #[test]
    fn latest_pages_are_kept() {
        let pages = ListedPages::default();
        let name = |number: usize| format!("{number:06}");
        for number in (0..2 * MAX_PAGES).chain(MAX_PAGES..2 * MAX_PAGES) {
            record(
                &pages,
                Some(position(&name(number), "t")),
                &name(number + 1),
                position(&name(number + 1), "t"),
            );
        }
        assert_eq!(pages.pages.lock().len(), MAX_PAGES);
        let is_known = |number: usize| find(&pages, &(name(number) + "x")).is_some();
        assert!(!is_known(MAX_PAGES - 1) && is_known(MAX_PAGES) && is_known(2 * MAX_PAGES - 1));
    }
}
