//! The pages of recent listings, by which a listing goes on after a name.
//!
//! Layers that merge pages, and clients of ListObjects, continue after names. In a service that lists in another order, the names
//! that follow in its listing are not those after a name: they would be missed, and each page may look ordered. If a recent
//! page of the same listing has the name, the listing goes on from that page by its token, and the order shows.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tradewind_core::BucketName;
use tradewind_core::listing::{ListPosition, ListRequest};

/// Pages that are kept, the latest ones.
const MAX_PAGES: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ListedPages(Mutex<VecDeque<ListedPage>>);

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
    /// Records the page of a request, unless it has no token to continue.
    pub(super) fn record(&self, bucket: &BucketName, request: &ListRequest, end: &ListPosition) {
        if end.token.is_none() {
            return;
        }
        let page = ListedPage {
            bucket: bucket.clone(),
            prefix: request.prefix.clone(),
            delimiter: request.delimiter.clone(),
            start: request.after.clone(),
            end: end.clone(),
            limit: request.limit,
        };
        let mut pages = self.0.lock();
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
        let pages = self.0.lock();
        let is_within = |page: &&ListedPage| {
            let start = page.start.as_ref().map_or("", |start| start.name.as_str());
            page.is_of(bucket, request) && start <= name && name <= page.end.name.as_str()
        };
        let page = pages.iter().rev().find(is_within)?;
        let after = if name == page.end.name { Some(page.end.clone()) } else { page.start.clone() };
        Some(ListRequest { after, limit: request.limit.max(page.limit), ..request.clone() })
    }
}

impl ListedPage {
    /// Returns true for a page of the same listing.
    fn is_of(&self, bucket: &BucketName, request: &ListRequest) -> bool {
        self.bucket == *bucket && self.prefix == request.prefix && self.delimiter == request.delimiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, token: &str) -> ListPosition {
        ListPosition { name: name.to_owned(), token: Some(token.to_owned()) }
    }

    #[test]
    fn name_is_found_in_the_page_that_has_it() {
        let (pages, bucket) = (ListedPages::default(), BucketName::new("bucket").unwrap());
        let request =
            |after: Option<ListPosition>| ListRequest { after, limit: 10, ..ListRequest::default() };
        pages.record(&bucket, &request(None), &at("f", "1"));
        pages.record(&bucket, &request(Some(at("f", "1"))), &at("m", "2"));
        pages.record(&bucket, &request(Some(at("m", "2"))), &ListPosition::after("z"));
        let find = |name: &str| {
            let found =
                pages.find(&bucket, &ListRequest { limit: 3, ..request(Some(ListPosition::after(name))) })?;
            assert_eq!(found.limit, 10, "as large as the page");
            Some(found.after)
        };
        assert_eq!(find("c"), Some(None), "in the first page");
        assert_eq!(find("f"), Some(Some(at("f", "1"))));
        assert_eq!(find("g"), Some(Some(at("f", "1"))));
        assert_eq!(find("m"), Some(Some(at("m", "2"))));
        assert_eq!(find("n"), None, "a page without a token");
        let other = ListRequest { prefix: "c".to_owned(), ..request(Some(ListPosition::after("c"))) };
        assert_eq!(pages.find(&bucket, &other), None, "another listing");
    }

    #[test]
    fn latest_pages_are_kept() {
        let (pages, bucket) = (ListedPages::default(), BucketName::new("bucket").unwrap());
        let name = |number: usize| format!("{number:06}");
        let request =
            |number: usize| ListRequest { after: Some(at(&name(number), "t")), ..ListRequest::default() };
        for number in (0..2 * MAX_PAGES).chain(MAX_PAGES..2 * MAX_PAGES) {
            pages.record(&bucket, &request(number), &at(&name(number + 1), "t"));
        }
        assert_eq!(pages.0.lock().len(), MAX_PAGES);
        let is_known = |number: usize| {
            let after = Some(ListPosition::after(name(number) + "x"));
            pages.find(&bucket, &ListRequest { after, ..ListRequest::default() }).is_some()
        };
        assert!(!is_known(MAX_PAGES - 1) && is_known(MAX_PAGES) && is_known(2 * MAX_PAGES - 1));
    }
}
