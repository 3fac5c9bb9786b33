//! The lines of `volume status` about rotating disks and deduplication.

use serde_json::Value as Json;

use super::super::super::terminal::Names;
use super::super::rounded;
use crate::settings::ByteSize;

fn size(value: &Json) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |bytes| rounded(ByteSize(bytes)))
}

fn milliseconds(value: &Json) -> String {
    format!("{:.0} ms", value.as_f64().unwrap_or(0.0) * 1e3)
}

/// Two lines for each disk with slices: its queue, and the waits since the start of the server.
pub(super) fn disks_text(disks: &Json) -> String {
    let names = Names::for_stdout();
    let mut lines = String::new();
    for disk in disks.as_array().into_iter().flatten() {
        let name = names.show(disk["store"].as_str().unwrap_or("-"));
        let (waiting, served) = (&disk["waiting"], &disk["in_service"]);
        lines += &format!("disk     of {name}: {waiting} requests wait");
        if *waiting != 0 {
            lines += &format!(", the oldest for {}", milliseconds(&disk["oldest_wait_seconds"]));
        }
        lines +=
            &format!(", {served} in service; {} came from the page cache\n", size(&disk["page_cache_bytes"]));
        let kinds = [
            ("small", "small"),
            ("first_slice", "first slices"),
            ("stream", "further slices"),
            ("change", "changes"),
        ];
        let waits: Vec<String> = kinds
            .iter()
            .filter(|(kind, _)| !disk["kinds"][kind].is_null())
            .map(|(kind, label)| {
                let counts = &disk["kinds"][kind];
                let (mean, max) =
                    (milliseconds(&counts["mean_wait_seconds"]), milliseconds(&counts["max_wait_seconds"]));
                format!("{label} {mean} (at most {max})")
            })
            .collect();
        if !waits.is_empty() {
            lines += &format!("waits    {}\n", waits.join(", "));
        }
    }
    lines
}

/// A line about the chunks of writes, and one about the last collection.
pub(super) fn deduplicated_text(deduplicated: &Json) -> String {
    if deduplicated.is_null() {
        return String::new();
    }
    let (stored, found) = (size(&deduplicated["stored_bytes"]), size(&deduplicated["found_bytes"]));
    let mut lines = format!("chunks   {stored} stored and {found} found since the start\n");
    if deduplicated["ready"] == false {
        let examined = &deduplicated["examined_objects"];
        lines +=
            &format!("examined {examined} objects; new objects are deduplicated when all are examined\n");
        let unreadable = deduplicated["unreadable_objects"].as_u64().unwrap_or(0);
        if unreadable > 0 {
            let first = Names::for_stdout().show(deduplicated["unreadable_object"].as_str().unwrap_or("-"));
            lines += &format!(
                "damaged  {unreadable} objects, such as {first}: they may be deduplicated; restore, overwrite or delete them\n"
            );
        }
        return lines;
    }
    lines += &failure_text(deduplicated);
    let last = &deduplicated["last_collection"];
    if last.is_null() {
        return lines + "ratio    not known before the first collection\n";
    }
    let (logical, chunks) = (size(&last["logical_bytes"]), size(&last["stored_bytes"]));
    let ratio = last["ratio"].as_f64().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let age = last["age_seconds"].as_f64().unwrap_or(0.0);
    lines += &format!(
        "ratio    {ratio}: {logical} of objects in {chunks} of chunks; the collection {age:.0} s ago deleted {}\n",
        size(&last["deleted_bytes"])
    );
    lines
}

/// Lines about a collection that failed, and what it could not read. A collection that succeeded could not read records of
/// uploads, if anything.
fn failure_text(deduplicated: &Json) -> String {
    let (failure, mut lines) = (&deduplicated["last_failure"], String::new());
    if !failure.is_null() {
        let age = failure["age_seconds"].as_f64().unwrap_or(0.0);
        let error = Names::for_stdout().show(failure["error"].as_str().unwrap_or("-"));
        lines += &format!("failed   the collection {age:.0} s ago, so that unused chunks stay: {error}\n");
    }
    let damaged = deduplicated["damaged_objects"].as_u64().unwrap_or(0);
    if damaged > 0 {
        let first = Names::for_stdout().show(deduplicated["damaged_object"].as_str().unwrap_or("-"));
        let advice = match failure.is_null() {
            true => "their chunks stay; abort the uploads",
            false => "unused chunks stay; restore, overwrite or delete them",
        };
        lines += &format!("damaged  {damaged} objects, such as {first}: {advice}\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disk_with_waiting_requests_has_two_lines() {
        let disk = json!([{
            "store": "disk", "waiting": 3, "oldest_wait_seconds": 0.1, "in_service": 1, "rejected": 0,
            "page_cache_bytes": 1 << 20,
            "kinds": {
                "small": { "mean_wait_seconds": 0.012, "max_wait_seconds": 0.06 },
                "stream": { "mean_wait_seconds": 0.2, "max_wait_seconds": 0.5 },
            },
        }]);
        assert_eq!(
            disks_text(&disk),
            "disk     of disk: 3 requests wait, the oldest for 100 ms, 1 in service; 1MiB came from the page cache\n\
             waits    small 12 ms (at most 60 ms), further slices 200 ms (at most 500 ms)\n"
        );
        assert_eq!(disks_text(&Json::Null), "");
    }

    #[test]
    fn ratio_is_that_of_the_last_collection() {
        assert_eq!(deduplicated_text(&Json::Null), "");
        let mut counts = json!({ "stored_bytes": 1 << 20, "found_bytes": 3 << 20, "last_collection": null });
        assert!(deduplicated_text(&counts).ends_with("ratio    not known before the first collection\n"));
        counts["ready"] = json!(false);
        counts["examined_objects"] = json!(7);
        let text = deduplicated_text(&counts);
        assert!(
            text.ends_with("examined 7 objects; new objects are deduplicated when all are examined\n"),
            "{text}"
        );
        counts["unreadable_objects"] = json!(2);
        counts["unreadable_object"] = json!("bucket/key");
        let text = deduplicated_text(&counts);
        assert!(text.contains("damaged  2 objects, such as bucket/key: they may be deduplicated;"), "{text}");
        counts["ready"] = json!(true);
        counts["last_collection"] = json!({
            "age_seconds": 61.2, "logical_bytes": 4 << 20, "stored_bytes": 1 << 20, "deleted_bytes": 0, "ratio": 4.0,
        });
        assert_eq!(
            deduplicated_text(&counts),
            "chunks   1MiB stored and 3MiB found since the start\n\
             ratio    4.00: 4MiB of objects in 1MiB of chunks; the collection 61 s ago deleted 0\n"
        );
        counts["last_failure"] = json!({ "age_seconds": 3.1, "error": "2 objects cannot be read" });
        counts["damaged_objects"] = json!(2);
        counts["damaged_object"] = json!("bucket/key");
        let text = deduplicated_text(&counts);
        let failed = "failed   the collection 3 s ago, so that unused chunks stay: 2 objects cannot be read\ndamaged  2 objects, such \
             as bucket/key: unused chunks stay; restore, overwrite or delete them\nratio    4.00";
        assert!(text.contains(failed), "{text}");
        counts["last_failure"] = Json::Null;
        let text = deduplicated_text(&counts);
        let damaged =
            "damaged  2 objects, such as bucket/key: their chunks stay; abort the uploads\nratio    4.00";
        assert!(text.contains(damaged), "{text}");
    }
}
