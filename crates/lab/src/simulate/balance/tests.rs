use super::*;

/// The seeds of all figures.
const SEEDS: [u64; 6] = [1, 2, 3, 4, 5, 6];

fn run(options: Options) -> Report {
    simulate(&options).unwrap()
}

/// The cluster of the paper: eight stores, two replicas, 16 reads in flight.
fn report(scenario: Scenario, seed: u64, policies: &[Policy]) -> Report {
    run(Options { scenario, seed, policies: policies.to_vec(), ..Options::default() })
}

/// Mean of a figure over the seeds.
fn mean(figure: impl Fn(u64) -> f64) -> f64 {
    SEEDS.iter().map(|seed| figure(*seed)).sum::<f64>() / SEEDS.len() as f64
}

fn settled(report: &Report, policy: Policy) -> f64 {
    report.get(policy).unwrap().settled_reads_per_second.unwrap()
}

#[test]
fn same_seed_gives_the_same_report_and_another_one_differs() {
    for scenario in Scenario::ALL {
        let options = |seed| Options {
            scenario,
            seed,
            duration: Duration::from_secs(130),
            clients: 4,
            zipf_exponent: 0.8,
            ..Options::default()
        };
        let first = run(options(1));
        assert_eq!(first, run(options(1)), "{}", scenario.name());
        let other = run(options(2));
        assert!(
            first.policies.iter().zip(&other.policies).all(|(a, b)| a.reads_by_second != b.reads_by_second)
        );
    }
}

#[test]
fn policies_alone_and_in_any_order_give_the_same_reports() {
    let all = report(Scenario::HotSpots, 1, &Policy::ALL);
    let two = report(Scenario::HotSpots, 1, &[Policy::PerRequest, Policy::Dlr, Policy::Dlr]);
    assert_eq!(
        two.policies.iter().map(|report| report.policy).collect::<Vec<_>>(),
        [Policy::Dlr, Policy::PerRequest]
    );
    assert!(two.policies.iter().all(|report| all.get(report.policy) == Some(report)));
}

#[test]
fn rates_and_latencies_follow_littles_law() {
    for policy in report(Scenario::Heterogeneity, 1, &Policy::ALL).policies {
        let in_flight = policy.reads_per_second * policy.mean_latency_seconds.unwrap();
        assert!((in_flight - 16.0).abs() < 0.3, "{}: {in_flight}", policy.policy);
        assert_eq!(policy.reads_by_second.iter().map(|reads| u64::from(*reads)).sum::<u64>(), policy.reads);
    }
}

#[test]
fn slow_half_costs_the_default_about_half_as_in_the_paper() {
    let disturbed =
        |scenario| mean(|seed| report(scenario, seed, &[Policy::Default]).policies[0].reads_per_second);
    // A store that fails at the end only is an undisturbed cluster until then.
    let undisturbed = mean(|seed| {
        let healthy = report(Scenario::FailFast, seed, &[Policy::Default]);
        let reads: u32 = healthy.policies[0].reads_by_second[..60].iter().sum();
        f64::from(reads) / 60.0
    });
    for scenario in [Scenario::Heterogeneity, Scenario::HotSpots] {
        let loss = 1.0 - disturbed(scenario) / undisturbed;
        assert!((0.5..0.75).contains(&loss), "{}: {loss}", scenario.name());
    }
}

#[test]
fn oracles_bound_what_their_policies_reach() {
    for scenario in Scenario::ALL {
        for seed in SEEDS {
            let report = report(scenario, seed, &Policy::ALL);
            for policy in Policy::ALL {
                let ratio = report.ratio(policy, policy.oracle()).unwrap();
                // The oracle of affinities goes by a model of queues, so it is only nearly the best; errors are not in it.
                let is_modelled =
                    scenario != Scenario::FailFast || policy.oracle() == Policy::OraclePerRequest;
                assert!(!is_modelled || ratio < 1.04, "{} {seed} {policy}: {ratio}", scenario.name());
            }
            assert!(report.ratio(Policy::OraclePerRequest, Policy::OracleAffinity).unwrap() > 1.0);
        }
    }
}

#[test]
fn choice_per_request_is_within_five_percent_of_its_oracle() {
    for scenario in Scenario::ALL {
        for seed in SEEDS {
            let report = report(scenario, seed, &[Policy::PerRequest, Policy::OraclePerRequest]);
            let ratio = report.ratio(Policy::PerRequest, Policy::OraclePerRequest).unwrap();
            assert!(ratio >= 0.95, "{} {seed}: {ratio}", scenario.name());
        }
    }
}

#[test]
fn choice_per_request_copes_with_exponential_service_times() {
    for scenario in Scenario::ALL {
        let policies = vec![Policy::PerRequest, Policy::OraclePerRequest];
        let report = run(Options { scenario, service_variation: 1.0, policies, ..Options::default() });
        let ratio = report.ratio(Policy::PerRequest, Policy::OraclePerRequest).unwrap();
        assert!(ratio >= 0.95, "{}: {ratio}", scenario.name());
    }
}

#[test]
fn clients_that_choose_independently_do_not_herd() {
    // With one read in flight each, clients know nothing of the queues that the oracle sees.
    for (in_flight, clients, minimum) in [(64, 4, 0.95), (64, 16, 0.9), (16, 16, 0.75)] {
        for scenario in [Scenario::Heterogeneity, Scenario::HotSpots] {
            let policies = vec![Policy::Default, Policy::PerRequest, Policy::OraclePerRequest];
            let report = run(Options { scenario, in_flight, clients, policies, ..Options::default() });
            let ratio = report.ratio(Policy::PerRequest, Policy::OraclePerRequest).unwrap();
            assert!(ratio >= minimum, "{clients} of {in_flight}, {}: {ratio}", scenario.name());
            assert!(report.ratio(Policy::PerRequest, Policy::Default).unwrap() > 1.5);
        }
    }
}

#[test]
fn store_that_fails_fast_gets_half_a_percent_of_requests_at_most() {
    for clients in [1, 4, 16] {
        for seed in SEEDS {
            let policies = vec![Policy::Default, Policy::PerRequest];
            let scenario = Scenario::FailFast;
            let report = run(Options { scenario, seed, clients, policies, ..Options::default() });
            let share = report.get(Policy::PerRequest).unwrap().error_share;
            assert!(share > 0.0 && share <= 0.005, "{clients} clients, seed {seed}: {share}");
            let unbalanced = report.get(Policy::Default).unwrap().error_share;
            assert!(unbalanced > 0.05, "{unbalanced}");
        }
    }
}

/// Minimum share of the best affinities' throughput that `predict` reaches, as a mean over the seeds. The goal is 0.95
/// of both; what is missing is lost until new service rates are known, and until a step that was made by too few reads may
/// be corrected, after [`controller::Options::min_change_interval`].
const MIN_ROTATING_SHARE: f64 = 0.77;
const MIN_SETTLED_SHARE: f64 = 0.85;
/// That share with stores that stay slow.
const MIN_CONSTANT_SHARE: f64 = 0.88;
/// Seeds of these means: a share differs by 0.1 from seed to seed.
const MANY_SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

#[test]
fn predict_reaches_its_shares_of_the_best_affinities() {
    let compared = [Policy::Default, Policy::Predict, Policy::OracleAffinity];
    let ratio = |report: &Report| report.ratio(Policy::Predict, Policy::OracleAffinity).unwrap();
    let reports = |scenario| MANY_SEEDS.map(|seed| report(scenario, seed, &compared)).collect::<Vec<_>>();
    let (rotating, constant) = (reports(Scenario::HotSpots), reports(Scenario::Heterogeneity));
    let mean = |figure: &dyn Fn(&Report) -> f64, reports: &[Report]| {
        reports.iter().map(figure).sum::<f64>() / reports.len() as f64
    };
    let settled =
        |report: &Report| settled(report, Policy::Predict) / settled(report, Policy::OracleAffinity);
    assert!(mean(&ratio, &rotating) >= MIN_ROTATING_SHARE, "{}", mean(&ratio, &rotating));
    assert!(mean(&settled, &rotating) >= MIN_SETTLED_SHARE, "{}", mean(&settled, &rotating));
    assert!(mean(&ratio, &constant) >= MIN_CONSTANT_SHARE, "{}", mean(&ratio, &constant));
    for report in rotating.iter().chain(&constant) {
        let gain = report.ratio(Policy::Predict, Policy::Default).unwrap();
        assert!(gain > 1.25, "{gain}");
    }
}

#[test]
fn predict_is_ahead_of_the_papers_controller_and_changes_less() {
    let compared = [Policy::Dlr, Policy::Predict];
    for scenario in [Scenario::HotSpots, Scenario::Interference(DisturbanceDepth::Deep)] {
        let ratio =
            mean(|seed| report(scenario, seed, &compared).ratio(Policy::Predict, Policy::Dlr).unwrap());
        assert!(ratio > 1.0, "{}: {ratio}", scenario.name());
    }
    // Its signal does not rise where reads fail at once, so that it gives the failing store back what it had lost.
    let failing = report(Scenario::FailFast, 1, &[Policy::Default, Policy::Dlr]);
    let errors = |policy| failing.get(policy).unwrap().error_share;
    assert!(errors(Policy::Dlr) > errors(Policy::Default));
}

#[test]
fn shallow_disturber_costs_predict_two_percent_at_most() {
    let scenario = Scenario::Interference(DisturbanceDepth::Shallow);
    for seed in SEEDS {
        let report = report(scenario, seed, &[Policy::Default, Policy::Predict]);
        let ratio = report.ratio(Policy::Predict, Policy::Default).unwrap();
        assert!(ratio >= 0.98, "{seed}: {ratio}");
    }
}

#[test]
fn invalid_options_are_rejected_with_their_range() {
    let rejected = |options: Options| simulate(&options).unwrap_err().to_string();
    let default = Options::default;
    assert!(rejected(Options { stores: 1, ..default() }).contains("stores must be from 2"));
    assert!(rejected(Options { pgs: 0, ..default() }).contains("PGs must be from 1"));
    assert!(rejected(Options { replicas: 9, ..default() }).contains("from 1 to 8"));
    assert!(rejected(Options { in_flight: 0, ..default() }).contains("in flight"));
    assert!(rejected(Options { clients: 17, ..default() }).contains("clients"));
    assert!(rejected(Options { duration: Duration::ZERO, ..default() }).contains("simulated time"));
    let day = Duration::from_secs(86_400);
    assert!(rejected(Options { stores: 1000, duration: day, ..default() }).contains("simulated seconds"));
    let crowd = Options { stores: 100_000, in_flight: 1000, clients: 1000, ..default() };
    assert!(rejected(crowd).contains("clients times"));
    assert!(rejected(Options { zipf_exponent: f64::NAN, ..default() }).contains("Zipf"));
    assert!(rejected(Options { service_variation: 1.5, ..default() }).contains("variation"));
    assert!(rejected(Options { policies: Vec::new(), ..default() }).contains("policy"));
}

#[test]
fn thousand_stores_with_32768_pgs_are_simulated() {
    let report = run(Options {
        scenario: Scenario::Heterogeneity,
        stores: 1000,
        pgs: 32_768,
        in_flight: 2000,
        clients: 10,
        duration: Duration::from_secs(8),
        ..Options::default()
    });
    assert!(report.get(Policy::Predict).unwrap().affinity_changes > 0);
    assert!(report.ratio(Policy::OracleAffinity, Policy::Default).unwrap() > 1.3);
    assert!(report.ratio(Policy::PerRequest, Policy::OraclePerRequest).unwrap() > 0.8);
}
