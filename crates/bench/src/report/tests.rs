use super::*;

fn run_line() -> String {
    let client = r#"{"name":"here","processor":"some","cores":2,"memory":8589934592,"kernel":"6.1"}"#;
    format!(
        r#"{{"line":"run","schema":"{SCHEMA}","version":"0.1.0","started":0,"client":{client},"place":"s3://b/<&>","store":"s3","prefix":"p/","seed":1}}"#
    )
}

fn cell_line(operation: &str, parallel: usize, repeat: u32, rate: f64) -> String {
    let latency = r#"{"count":3,"mean":20.0,"p50":20,"p90":30,"p99":30,"p999":30,"max":30,"counts":[[10,1],[20,1],[30,1]]}"#;
    let bytes = rate * 4096.0;
    let figures = format!(
        r#"{{"operations":3,"bytes":12288,"per_second":{rate},"bytes_per_second":{bytes},"failures":{{}},"samples":[],"latency_us":{latency},"first_byte_us":{latency},"seconds":[[3,12288,0,20,30]]}}"#
    );
    format!(
        r#"{{"line":"cell","mix":"{operation}","sizes":"4KiB","parallel":{parallel},"repeat":{repeat},"began":0,"warm_up":0.5,"seconds":1.0,"operations_per_second":{{"mean":{rate},"within":1.0}},"bytes_per_second":{{"mean":{bytes},"within":null}},"operations":{{"{operation}":{figures}}},"tenths":[[1.0,4096.0],[2.0,8192.0]],"cpu_seconds":0.1,"cpu_threads":{{}},"machine_busy":0.5,"repeated_reads":0,"abandoned":0,"ending":"time","notes":[]}}"#
    )
}

fn text(factor: f64) -> String {
    let mut lines = vec![run_line()];
    for repeat in 1..=4 {
        for parallel in [1, 4, 16] {
            let noise = f64::from(repeat) * 0.5;
            lines.push(cell_line("get", parallel, repeat, factor * 1000.0 * parallel as f64 + noise));
        }
    }
    lines.push(r#"{"line":"end","partial":false}"#.to_owned());
    lines.join("\n") + "\n"
}

#[test]
fn a_page_says_what_was_measured() {
    let first = Kept::parse("first", &text(1.0)).unwrap();
    assert_eq!((first.cells.len(), first.is_partial), (12, false));
    let page = page(std::slice::from_ref(&first));
    assert!(page.contains("Reading small objects (4KiB) goes at 16k a second, with 16 at a time."), "{page}");
    assert!(page.contains("s3://b/&lt;&amp;&gt;") && !page.contains("<&>"));
    assert!(
        !page.contains("http://")
            || page.matches("http://www.w3.org").count() == page.matches("http://").count()
    );
    assert!(!page.contains("<script"));
}

#[test]
fn two_are_compared() {
    let kept = |name: &str, factor| Kept::parse(name, &text(factor)).unwrap();
    let same = page(&[kept("a", 1.0), kept("b", 1.0)]);
    assert!(same.contains("No difference: chance explains all that is seen."), "{same}");
    let differs = page(&[kept("a", 1.0), kept("b", 1.2)]);
    assert!(differs.contains("get 4KiB x 4: requests/s 20 % higher, which is better"), "{differs}");
}

#[test]
fn what_is_torn_or_foreign_is_told() {
    let whole = text(1.0);
    let torn = &whole[..whole.len() - 60];
    let kept = Kept::parse("x", torn).unwrap();
    assert!(kept.is_partial && kept.cells.len() == 11, "{}", kept.cells.len());
    let foreign = whole.replacen(SCHEMA, "other/9", 1);
    for (bad, line, why) in [
        ("", 1, "the first line"),
        ("{}", 1, "missing field"),
        (&*foreign, 1, "this version reads"),
        (&*whole.replacen("\"parallel\":4", "\"parallel\":\"4\"", 1), 3, "invalid type"),
    ] {
        let error = Kept::parse("x", bad).unwrap_err();
        assert!(error.line == line && error.to_string().contains(why), "{error}");
    }
}
