use super::*;
use crate::result::tests::measurement_line;

fn run_line() -> String {
    let client = r#"{"name":"here","processor":"some","cores":2,"memory":8589934592,"kernel":"6.1"}"#;
    format!(
        r#"{{"line":"run","schema":"{SCHEMA}","version":"0.1.0","started":0,"client":{client},"place":"s3://b/<&>","store":"s3","prefix":"p/","seed":1}}"#
    )
}

fn text(factor: f64) -> String {
    let mut lines = vec![run_line()];
    for repeat in 1..=4 {
        for parallel in [1, 4, 16] {
            let noise = f64::from(repeat) * 0.5;
            lines.push(measurement_line("get", parallel, repeat, factor * 1000.0 * parallel as f64 + noise));
        }
    }
    lines.push(r#"{"line":"end","partial":false}"#.to_owned());
    lines.join("\n") + "\n"
}

#[test]
fn page_describes_the_measurements() {
    let first = ResultFile::parse("first", &text(1.0)).unwrap();
    assert_eq!((first.measurements.len(), first.is_partial), (12, false));
    let page = to_html(std::slice::from_ref(&first));
    assert!(
        page.contains("Read request rate: 16k requests/s with 4KiB objects at a concurrency of 16."),
        "{page}"
    );
    assert!(page.contains("s3://b/&lt;&amp;&gt;") && !page.contains("<&>"));
    assert!(
        !page.contains("http://")
            || page.matches("http://www.w3.org").count() == page.matches("http://").count()
    );
    assert!(!page.contains("<script"));
}

#[test]
fn unknown_latency_is_not_shown_as_0() {
    let known = r#"{"count":3,"mean":20.0,"p50":20,"p90":30,"p99":30,"p999":30,"max":30,"counts":[[10,1],[20,1],[30,1]]}"#;
    let unknown = r#"{"count":0,"mean":0.0,"p50":0,"p90":0,"p99":0,"p999":0,"max":0,"counts":[]}"#;
    let kept = |text: &str| ResultFile::parse("x", text).unwrap();
    let (with, without) = (kept(&text(1.0)), kept(&text(1.0).replace(known, unknown)));
    let words = |kept: &ResultFile| summaries(std::slice::from_ref(kept))[0].1.join(" ");
    assert!(
        words(&with).contains("the median latency is 0.02 ms.")
            && !words(&without).contains("median latency")
    );
    let figures = to_csv(std::slice::from_ref(&without));
    assert!(figures.lines().nth(1).unwrap().contains(",1000.5,4098048,,,,,,,,0,"), "{figures}");
    assert!(to_html(&[without]).contains("get 4KiB x 16"));
}

#[test]
fn best_rate_names_the_concurrency_that_reached_it() {
    let lines = [run_line(), measurement_line("get", 4, 1, 970.0), measurement_line("get", 16, 1, 1000.0)];
    let kept = ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap();
    let sentences = summaries(&[kept])[0].1.join(" ");
    assert!(sentences.contains("970 requests/s with 4KiB objects at a concurrency of 4."), "{sentences}");
}

#[test]
fn operations_of_a_mix_are_drawn_separately() {
    let line = measurement_line("get", 4, 1, 1000.0);
    let mut cell: serde_json::Value = serde_json::from_str(&line).unwrap();
    cell["mix"] = "get=70,put=30".into();
    cell["operations"]["put"] = cell["operations"]["get"].clone();
    let page_of =
        |line: &str| to_html(&[ResultFile::parse("x", &format!("{}\n{line}\n", run_line())).unwrap()]);
    let mixed = page_of(&cell.to_string());
    for kind in ["get in get=70,put=30", "put in get=70,put=30"] {
        assert!(mixed.contains(&format!("\n{kind} 4KiB x 4\n")), "{kind} is not a line of a chart");
    }
    assert!(page_of(&line).contains("<td>0.1 %</td>") && !mixed.contains("<td>0.1 %</td>"));
}

#[test]
fn two_results_are_compared() {
    let kept = |name: &str, factor| ResultFile::parse(name, &text(factor)).unwrap();
    let same = to_html(&[kept("a", 1.0), kept("b", 1.0)]);
    assert!(same.contains("No significant difference."), "{same}");
    let differs = to_html(&[kept("a", 1.0), kept("b", 1.2)]);
    assert!(differs.contains("get 4KiB x 4: requests/s 20 % higher, which is better"), "{differs}");
}

#[test]
fn void_rounds_are_reported_and_prevent_a_comparison() {
    let kept = |void: u32| {
        let line = |line: &str| {
            let is_void =
                (1..=void).any(|repeat| line.contains(&format!("\"parallel\":4,\"repeat\":{repeat},")));
            let ending = if is_void { "\"ending\":\"overrun\"" } else { "\"ending\":\"time\"" };
            line.replacen("\"ending\":\"time\"", ending, 1)
        };
        let lines: Vec<String> = text(1.0).lines().map(line).collect();
        ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap()
    };
    for (void, is_compared) in [(2, true), (4, false)] {
        let after = kept(void);
        assert_eq!(after.measurements.iter().filter(|cell| cell.is_void()).count(), void as usize);
        let sentences = summaries(&[kept(0), after])[2].1.join("\n");
        assert!(sentences.contains("Void after in at least one round: get 4KiB x 4"), "{sentences}");
        assert_eq!(sentences.contains("could not be tested"), is_compared, "{sentences}");
        assert_eq!(
            sentences.contains("only one of the two results: get 4KiB x 4"),
            !is_compared,
            "{sentences}"
        );
    }
}

#[test]
fn each_operation_of_a_mix_is_compared() {
    let kept = |p50: u64| {
        let with_puts = |line: &str| {
            let (head, rest) = line.split_once("\"operations\":{\"get\":")?;
            let (gets, tail) = rest.split_once("},\"tenths\"")?;
            let puts = gets.replace("\"p50\":20", &format!("\"p50\":{p50}"));
            Some(format!("{head}\"operations\":{{\"get\":{gets},\"put\":{puts}}},\"tenths\"{tail}"))
        };
        let lines: Vec<String> =
            text(1.0).lines().map(|line| with_puts(line).unwrap_or_else(|| line.to_owned())).collect();
        ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap()
    };
    let sentences = summaries(&[kept(5000), kept(7000)])[2].1.join("\n");
    assert!(
        sentences.contains("put in get 4KiB x 4: p50 latency 40 % higher, which is worse"),
        "{sentences}"
    );
}

#[test]
fn parse_accepts_a_torn_line_and_rejects_foreign_files() {
    let whole = text(1.0);
    let torn = &whole[..whole.len() - 60];
    let kept = ResultFile::parse("x", torn).unwrap();
    assert!(kept.is_partial && kept.measurements.len() == 11, "{}", kept.measurements.len());
    let foreign = whole.replacen(SCHEMA, "other/9", 1);
    for (bad, line, why) in [
        ("", 1, "the first line"),
        ("{}", 1, "missing field"),
        (&*foreign, 1, "this version reads"),
        (&*whole.replacen("\"parallel\":4", "\"parallel\":\"4\"", 1), 3, "invalid type"),
    ] {
        let error = ResultFile::parse("x", bad).unwrap_err();
        assert!(error.line == line && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn interference_is_shown_as_a_matrix() {
    let mut lines = vec![run_line()];
    lines.extend([measurement_line("put", 4, 1, 100.0), measurement_line("get", 1, 1, 50.0)]);
    for (load, parallel, beside, rate) in [("put", 4, "get 4KiB x 1", 25.0), ("get", 1, "put 4KiB x 4", 45.0)]
    {
        let named = format!("\"line\":\"cell\",\"beside\":[\"{beside}\"]");
        lines.push(measurement_line(load, parallel, 1, rate).replacen("\"line\":\"cell\"", &named, 1));
    }
    let kept = ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap();
    let page = to_html(std::slice::from_ref(&kept));
    assert!(
        page.contains("put 4KiB x 4 keeps 25 % of its throughput when run concurrently with get 4KiB x 1"),
        "{page}"
    );
    assert!(page.contains("throughput relative to running alone, in %"), "{page}");
}

#[test]
fn disjoint_results_are_reported_as_such() {
    let kept = |operation: &str| {
        let lines = [run_line(), measurement_line(operation, 4, 1, 100.0)];
        ResultFile::parse(operation, &(lines.join("\n") + "\n")).unwrap()
    };
    let sentences = summaries(&[kept("get"), kept("put")]);
    assert_eq!(sentences[2].1, ["The results have no measurement in common."]);
}

#[test]
fn order_of_agents_is_not_a_different_condition() {
    let from = |names: [&str; 2]| {
        let agents = names.map(|name| {
            format!(r#"{{"agent":"{name}:1","client":{{"name":"{name}","processor":"some","cores":2,"memory":8589934592,"kernel":"6.1"}}}}"#)
        });
        let with = format!("\"agents\":[{}],\"place\":", agents.join(","));
        ResultFile::parse("x", &text(1.0).replacen("\"place\":", &with, 1)).unwrap()
    };
    let differ = |one, other| {
        let sentences = summaries(&[from(one), from(other)]);
        sentences
            .iter()
            .flat_map(|(_, sentences)| sentences)
            .any(|sentences| sentences.contains("not measured under the same"))
    };
    assert!(!differ(["a", "b"], ["b", "a"]));
    assert!(differ(["a", "b"], ["c", "a"]) && differ(["a", "b"], ["a", "a"]));
}

#[test]
fn different_conditions_are_reported() {
    let kept = |name: &str, caches: &str| {
        let with = format!("\"line\":\"cell\",{caches}");
        let lines: Vec<String> =
            text(1.0).lines().map(|line| line.replacen("\"line\":\"cell\",", &with, 1)).collect();
        ResultFile::parse(name, &(lines.join("\n") + "\n")).unwrap()
    };
    let (left, dropped) = (kept("left", ""), kept("dropped", "\"caches\":\"dropped\","));
    let sentences = summaries(&[left.clone(), dropped.clone(), left.clone()]);
    let differs = |sentences: &[String]| {
        sentences.iter().any(|sentences| sentences.contains("not measured under the same conditions"))
    };
    assert!(
        sentences[1].1.iter().any(|sentences| sentences.contains("were dropped before each measurement")),
        "{sentences:?}"
    );
    assert!(
        sentences[3].1[0]
            .contains("caches before each measurement: kept before, dropped by the kernel after"),
        "{:?}",
        sentences[3]
    );
    assert!(!differs(&sentences[4].1), "{:?}", sentences[4]);
    let same = summaries(&[dropped.clone(), dropped.clone()]);
    assert!(!differs(&same[2].1), "{:?}", same[2]);
    assert!(to_html(&[left.clone(), dropped.clone()]).contains("not measured under the same conditions"));
    let held = text(1.0).replacen("\"seed\":1", "\"seed\":1,\"fresh\":true,\"files\":\"/d\"", 1);
    let sentences =
        summaries(&[left.clone(), ResultFile::parse("held", &held).unwrap()]).remove(2).1.remove(0);
    let differing = "connections: reused before, new for each request after; objects on the client: memory before, files in /d after";
    assert!(sentences.contains(differing), "{sentences}");
    let table = to_csv(&[left, dropped]);
    let ends = |what: &str| table.lines().filter(|line| line.ends_with(what)).count();
    assert_eq!((ends(",kept"), ends(",dropped"), ends(",caches")), (12, 12, 1), "{table}");
}
