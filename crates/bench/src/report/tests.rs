use super::*;
use crate::result::tests::measurement_line;

fn run_line() -> String {
    let client =
        r#"{"hostname":"here","cpu_model":"some","cores":2,"memory_bytes":8589934592,"kernel":"6.1"}"#;
    format!(
        r#"{{"line":"run","schema":"{SCHEMA}","version":"0.1.0","started_ms":0,"client":{client},"location":"s3://b/<&>","store":"s3","prefix":"p/","seed":1}}"#
    )
}

fn text(factor: f64) -> String {
    let mut lines = vec![run_line()];
    for round in 1..=4 {
        for concurrency in [1, 4, 16] {
            let noise = f64::from(round) * 0.5;
            lines.push(measurement_line(
                "get",
                concurrency,
                round,
                factor * 1000.0 * concurrency as f64 + noise,
            ));
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
    let known = r#"{"count":3,"mean":20.0,"p50":20,"p90":30,"p99":30,"p999":30,"max":30,"histogram_counts":[[10,1],[20,1],[30,1]]}"#;
    let unknown = r#"{"count":0,"mean":0.0,"p50":0,"p90":0,"p99":0,"p999":0,"max":0,"histogram_counts":[]}"#;
    let result = |text: &str| ResultFile::parse("x", text).unwrap();
    let (with, without) = (result(&text(1.0)), result(&text(1.0).replace(known, unknown)));
    let words = |result: &ResultFile| summaries(std::slice::from_ref(result))[0].1.join(" ");
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
    let result = ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap();
    let sentences = summaries(&[result])[0].1.join(" ");
    assert!(sentences.contains("970 requests/s with 4KiB objects at a concurrency of 4."), "{sentences}");
}

#[test]
fn operations_of_a_mix_are_drawn_separately() {
    let line = measurement_line("get", 4, 1, 1000.0);
    let mut measurement: serde_json::Value = serde_json::from_str(&line).unwrap();
    measurement["mix"] = "get=70,put=30".into();
    measurement["operations"]["put"] = measurement["operations"]["get"].clone();
    let page_of =
        |line: &str| to_html(&[ResultFile::parse("x", &format!("{}\n{line}\n", run_line())).unwrap()]);
    let mixed = page_of(&measurement.to_string());
    for kind in ["get in get=70,put=30", "put in get=70,put=30"] {
        assert!(mixed.contains(&format!("\n{kind} 4KiB x 4\n")), "{kind} is not a line of a chart");
    }
    assert!(page_of(&line).contains("<td>0.1 %</td>") && !mixed.contains("<td>0.1 %</td>"));
}

#[test]
fn two_results_are_compared() {
    let result = |name: &str, factor| ResultFile::parse(name, &text(factor)).unwrap();
    let same = to_html(&[result("a", 1.0), result("b", 1.0)]);
    assert!(same.contains("No significant difference."), "{same}");
    let differs = to_html(&[result("a", 1.0), result("b", 1.2)]);
    assert!(differs.contains("get 4KiB x 4: requests/s 20 % higher, which is better"), "{differs}");
}

#[test]
fn two_noisy_rounds_have_no_detectable_difference() {
    let result = |name: &str| {
        let lines = [run_line(), measurement_line("get", 4, 1, 100.0), measurement_line("get", 4, 2, 1000.0)];
        ResultFile::parse(name, &(lines.join("\n") + "\n")).unwrap()
    };
    let page = to_html(&[result("a"), result("b")]);
    assert!(page.contains("<td>too few samples</td>"), "{page}");
    assert!(page.contains("the least sensitive one has too few samples."), "{page}");
}

#[test]
fn void_rounds_are_reported_and_prevent_a_comparison() {
    let result = |void: u32| {
        let line = |line: &str| {
            let is_void =
                (1..=void).any(|round| line.contains(&format!("\"concurrency\":4,\"round\":{round},")));
            let end_reason =
                if is_void { "\"end_reason\":\"overrun\"" } else { "\"end_reason\":\"time_limit\"" };
            line.replacen("\"end_reason\":\"time_limit\"", end_reason, 1)
        };
        let lines: Vec<String> = text(1.0).lines().map(line).collect();
        ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap()
    };
    for (void, is_compared) in [(2, true), (4, false)] {
        let after = result(void);
        assert_eq!(
            after.measurements.iter().filter(|measurement| measurement.is_void()).count(),
            void as usize
        );
        let sentences = summaries(&[result(0), after])[2].1.join("\n");
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
    let result = |p50: u64| {
        let with_puts = |line: &str| {
            let (head, rest) = line.split_once("\"operations\":{\"get\":")?;
            let (gets, tail) = rest.split_once("},\"series_100ms\"")?;
            let puts = gets.replace("\"p50\":20", &format!("\"p50\":{p50}"));
            Some(format!("{head}\"operations\":{{\"get\":{gets},\"put\":{puts}}},\"series_100ms\"{tail}"))
        };
        let lines: Vec<String> =
            text(1.0).lines().map(|line| with_puts(line).unwrap_or_else(|| line.to_owned())).collect();
        ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap()
    };
    let sentences = summaries(&[result(5000), result(7000)])[2].1.join("\n");
    assert!(
        sentences.contains("put in get 4KiB x 4: p50 latency 40 % higher, which is worse"),
        "{sentences}"
    );
}

#[test]
fn parse_accepts_a_torn_line_and_rejects_foreign_files() {
    let whole = text(1.0);
    let torn = &whole[..whole.len() - 60];
    let result = ResultFile::parse("x", torn).unwrap();
    assert!(result.is_partial && result.measurements.len() == 11, "{}", result.measurements.len());
    let foreign = whole.replacen(SCHEMA, "other/9", 1);
    for (bad, line, why) in [
        ("", 1, "the first line"),
        ("{}", 1, "missing field"),
        (&*foreign, 1, "this version reads"),
        (&*whole.replacen("\"concurrency\":4", "\"concurrency\":\"4\"", 1), 3, "invalid type"),
    ] {
        let error = ResultFile::parse("x", bad).unwrap_err();
        assert!(error.line == line && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn interference_is_shown_as_a_matrix() {
    let mut lines = vec![run_line()];
    lines.extend([measurement_line("put", 4, 1, 100.0), measurement_line("get", 1, 1, 50.0)]);
    for (load, concurrency, concurrent_with, rate) in
        [("put", 4, "get 4KiB x 1", 25.0), ("get", 1, "put 4KiB x 4", 45.0)]
    {
        let named = format!("\"line\":\"measurement\",\"concurrent_with\":[\"{concurrent_with}\"]");
        lines.push(measurement_line(load, concurrency, 1, rate).replacen(
            "\"line\":\"measurement\"",
            &named,
            1,
        ));
    }
    let result = ResultFile::parse("x", &(lines.join("\n") + "\n")).unwrap();
    let page = to_html(std::slice::from_ref(&result));
    assert!(
        page.contains("put 4KiB x 4 keeps 25 % of its throughput when run concurrently with get 4KiB x 1"),
        "{page}"
    );
    assert!(page.contains("throughput relative to running alone, in %"), "{page}");
}

#[test]
fn disjoint_results_are_reported_as_such() {
    let result = |operation: &str| {
        let lines = [run_line(), measurement_line(operation, 4, 1, 100.0)];
        ResultFile::parse(operation, &(lines.join("\n") + "\n")).unwrap()
    };
    let sentences = summaries(&[result("get"), result("put")]);
    assert_eq!(sentences[2].1, ["The results have no measurement in common."]);
}

#[test]
fn order_of_agents_is_not_a_different_condition() {
    let from = |names: [&str; 2]| {
        let agents = names.map(|name| {
            format!(r#"{{"address":"{name}:1","client":{{"hostname":"{name}","cpu_model":"some","cores":2,"memory_bytes":8589934592,"kernel":"6.1"}}}}"#)
        });
        let with = format!("\"agents\":[{}],\"location\":", agents.join(","));
        ResultFile::parse("x", &text(1.0).replacen("\"location\":", &with, 1)).unwrap()
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
    let result = |name: &str, caches: &str| {
        let with = format!("\"line\":\"measurement\",{caches}");
        let lines: Vec<String> =
            text(1.0).lines().map(|line| line.replacen("\"line\":\"measurement\",", &with, 1)).collect();
        ResultFile::parse(name, &(lines.join("\n") + "\n")).unwrap()
    };
    let (left, dropped) = (result("left", ""), result("dropped", "\"caches\":\"dropped\","));
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
            .contains("caches before each measurement: not dropped before, dropped by the kernel after"),
        "{:?}",
        sentences[3]
    );
    assert!(!differs(&sentences[4].1), "{:?}", sentences[4]);
    let same = summaries(&[dropped.clone(), dropped.clone()]);
    assert!(!differs(&same[2].1), "{:?}", same[2]);
    assert!(to_html(&[left.clone(), dropped.clone()]).contains("not measured under the same conditions"));
    let held =
        text(1.0).replacen("\"seed\":1", "\"seed\":1,\"new_connections\":true,\"files_dir\":\"/d\"", 1);
    let sentences =
        summaries(&[left.clone(), ResultFile::parse("held", &held).unwrap()]).remove(2).1.remove(0);
    let differing = "connections: reused before, new for each request after; objects on the client: memory before, files in /d after";
    assert!(sentences.contains(differing), "{sentences}");
    let table = to_csv(&[left, dropped]);
    let ends = |what: &str| table.lines().filter(|line| line.ends_with(what)).count();
    assert_eq!((ends(",not_dropped"), ends(",dropped"), ends(",caches")), (12, 12, 1), "{table}");
}
