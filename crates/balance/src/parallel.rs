//! Work of several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Maps items by at most `concurrency` threads, in order. Without any, the caller's thread does the work.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    concurrency: usize,
    map: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some((index, item)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                items.get(index).map(|item| (index, item))
            } {
                let result = map(item);
                let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                results.push((index, result));
            }
        };
        for number in 0..concurrency.min(items.len()) {
            if Builder::new().spawn_scoped(scope, work).is_err() {
                // Where no further thread can be started, fewer do the work.
                if number == 0 {
                    work();
                }
                break;
            }
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..200).collect();
        assert_eq!(in_parallel(&items, 16, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[u8], 16, |n| *n).is_empty());
    }
}
