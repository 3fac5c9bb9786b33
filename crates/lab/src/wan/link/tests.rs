use super::*;
use proptest::prelude::*;

const MILLI: Duration = Duration::from_millis(1);

fn delayed(delay: Duration) -> LinkOptions {
    LinkOptions { delay, ..LinkOptions::default() }
}

/// Delays in seconds of packets offered every `apart`.
fn delays(options: LinkOptions, seed: u64, packets: u32, apart: Duration) -> Vec<f64> {
    let mut link = Link::new(options, seed);
    (0..packets).filter_map(|n| Some((link.offer(apart * n, 100)? - apart * n).as_secs_f64())).collect()
}

fn mean_and_std_dev(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.sqrt())
}

#[test]
fn link_without_rate_only_delays() {
    let mut link = Link::new(delayed(25 * MILLI), 0);
    assert_eq!(link.offer(3 * MILLI, 1500), Some(28 * MILLI));
    assert_eq!(link.offer(3 * MILLI, 1500), Some(28 * MILLI));
    assert_eq!(link.counts(), LinkCounts { packets: 2, bytes: 3000, ..LinkCounts::default() });
}

#[test]
fn full_queue_drops_packets() {
    // A byte takes 10 microseconds.
    let mut link =
        Link::new(LinkOptions { bits_per_second: Some(800_000), queue_bytes: 250, ..delayed(MILLI) }, 0);
    assert_eq!(link.offer(Duration::ZERO, 100), Some(2 * MILLI));
    assert_eq!(link.offer(Duration::ZERO, 100), Some(3 * MILLI));
    assert_eq!(link.offer(Duration::ZERO, 100), None);
    assert_eq!(link.offer(MILLI, 100), Some(4 * MILLI));
    let counts =
        LinkCounts { packets: 3, bytes: 300, dropped: 1, max_queue_bytes: 200, ..LinkCounts::default() };
    assert_eq!(link.counts(), counts);
}

#[test]
fn lost_packet_uses_transmission_time() {
    let lossy = LinkOptions { loss: 0.5, bits_per_second: Some(800_000), ..delayed(MILLI) };
    let mut link = Link::new(lossy, 1);
    for n in 1..=100_u32 {
        if let Some(due) = link.offer(Duration::ZERO, 100) {
            assert_eq!(due, (n + 1) * MILLI);
        }
    }
    assert!(link.counts().lost > 20, "{:?}", link.counts());
}

#[test]
fn loss_rate_matches_the_option() {
    for (seed, loss) in [(1, 0.001), (2, 0.01), (3, 0.2)] {
        let arrived = delays(LinkOptions { loss, ..delayed(MILLI) }, seed, 1_000_000, MILLI).len();
        let share = 1.0 - arrived as f64 / 1e6;
        assert!((share / loss - 1.0).abs() < 0.1, "{share} of {loss}");
    }
    assert_eq!(delays(LinkOptions { loss: 1.0, ..delayed(MILLI) }, 4, 1000, MILLI).len(), 0);
}

#[test]
fn jitter_std_dev_matches_its_distribution() {
    let third = 1.0 / 3.0_f64.sqrt();
    for (kind, std_dev) in [(JitterKind::Normal, 1.0), (JitterKind::Uniform, third)] {
        let options = LinkOptions {
            jitter: 5 * MILLI,
            jitter_kind: kind,
            allow_reordering: true,
            ..delayed(50 * MILLI)
        };
        let found = delays(options, 5, 200_000, MILLI);
        let (mean, found) = mean_and_std_dev(&found);
        assert!((mean / 0.05 - 1.0).abs() < 0.001, "{kind:?}: mean {mean}");
        assert!((found / (0.005 * std_dev) - 1.0).abs() < 0.01, "{kind:?}: std_dev {found}");
    }
}

#[test]
fn normal_jitter_has_normal_quantiles() {
    let options = LinkOptions { jitter: 5 * MILLI, allow_reordering: true, ..delayed(50 * MILLI) };
    let found = delays(options, 6, 100_000, MILLI);
    for (std_devs, share) in [(1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)] {
        let within = found.iter().filter(|delay| (*delay - 0.05).abs() <= 0.005 * std_devs).count();
        assert!((within as f64 / 1e5 - share).abs() < 0.005, "{within} within {std_devs}");
    }
}

/// Order turns the jitter of close packets into delay, as documented; that of distant ones is unchanged.
#[test]
fn ordering_turns_jitter_of_close_packets_into_delay() {
    let options = LinkOptions { jitter: 5 * MILLI, ..delayed(50 * MILLI) };
    let (mean, std_dev) = mean_and_std_dev(&delays(options, 7, 50_000, 100 * MILLI));
    assert!((mean - 0.05).abs() < 0.0001 && (std_dev / 0.005 - 1.0).abs() < 0.02, "{mean} {std_dev}");
    let (mean, std_dev) = mean_and_std_dev(&delays(options, 7, 50_000, 5 * MILLI));
    assert!((0.0505..0.0515).contains(&mean) && (0.0039..0.0046).contains(&std_dev), "{mean} {std_dev}");
    let (mean, std_dev) = mean_and_std_dev(&delays(options, 7, 200_000, MILLI / 10));
    assert!((0.0585..0.0605).contains(&mean) && (0.0018..0.0030).contains(&std_dev), "{mean} {std_dev}");
}

#[test]
fn same_seed_repeats_losses_and_delays() {
    let options = LinkOptions { jitter: 5 * MILLI, loss: 0.1, ..delayed(50 * MILLI) };
    let run = |seed| delays(options, seed, 1000, MILLI);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

proptest! {
    #[test]
    fn link_respects_delay_rate_and_queue_bounds(
        offers in proptest::collection::vec((0_u64..2_000_000, 20_usize..1500), 2..200),
        rate in proptest::option::of(1_000_000_u64..1_000_000_000),
        (jitter, uniform, reorder) in (0_u32..5, any::<bool>(), any::<bool>()),
        (loss, seed) in (prop_oneof![Just(0.0), 0.0..0.5], any::<u64>()),
    ) {
        let jitter_kind = if uniform { JitterKind::Uniform } else { JitterKind::Normal };
        let jitter = MILLI * jitter;
        let options =
            LinkOptions { jitter, jitter_kind, allow_reordering: reorder, loss, bits_per_second: rate, queue_bytes: 20_000, ..delayed(5 * MILLI) };
        let mut link = Link::new(options, seed);
        let (mut now, mut last, mut offered) = (Duration::ZERO, Duration::ZERO, 0_u64);
        let mut arrived = LinkCounts::default();
        // Maximum delay: a full queue, the delay and the jitter. The link counts whole bytes, so a queue may have one more.
        let queue = rate.map_or(0.0, |rate| 20_001.0 * 8.0 / rate as f64);
        let max_delay = (5 + if uniform { 0 } else { 45 }) as f64 * 1e-3 + jitter.as_secs_f64() + queue + 1e-6;
        for (pause, size) in &offers {
            now += Duration::from_nanos(*pause);
            offered += 1;
            let Some(due) = link.offer(now, *size) else { continue };
            prop_assert!(due >= now, "nothing arrives before it was sent");
            if uniform {
                prop_assert!(due + jitter >= now + 5 * MILLI);
            }
            if reorder || jitter.is_zero() {
                prop_assert!((due - now).as_secs_f64() <= max_delay, "{:?} of {max_delay}", due - now);
            }
            if !reorder || jitter.is_zero() {
                prop_assert!(due >= last, "order is kept");
            }
            if let (Some(rate), true) = (rate, jitter.is_zero()) {
                // Rounded to nanoseconds.
                let takes = (*size * 8) as f64 / rate as f64 - 2e-9;
                prop_assert!((due - now.max(last.saturating_sub(5 * MILLI))).as_secs_f64() >= 5e-3 + takes);
            }
            last = due;
            arrived.packets += 1;
            arrived.bytes += *size as u64;
        }
        let counts = link.counts();
        prop_assert_eq!((counts.packets, counts.bytes), (arrived.packets, arrived.bytes));
        prop_assert_eq!(counts.packets + counts.lost + counts.dropped, offered);
        prop_assert!(counts.max_queue_bytes <= 20_000);
        prop_assert!(rate.is_some() || counts.dropped == 0);
        prop_assert!(loss > 0.0 || counts.lost == 0);
    }
}
