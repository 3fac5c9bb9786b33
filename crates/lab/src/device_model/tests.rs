use super::*;
use proptest::prelude::*;

const MILLI: Duration = Duration::from_millis(1);
const PAGE: u64 = 4096;

fn read(offset: u64, bytes: u64) -> DeviceRequest {
    DeviceRequest { access: Access::Read, offset, bytes }
}

/// Requests per second with a constant number of requests in flight.
fn requests_per_second(
    profile: DeviceProfile,
    concurrency: usize,
    count: u64,
    request: impl Fn(u64) -> DeviceRequest,
) -> f64 {
    let mut device = DeviceModel::new(profile.medium(), 7);
    let mut in_flight = std::collections::VecDeque::new();
    let mut now = Duration::ZERO;
    for number in 0..count {
        if in_flight.len() == concurrency {
            now = in_flight.pop_front().unwrap();
        }
        in_flight.push_back(device.submit(now, request(number)));
    }
    count as f64 / in_flight.back().unwrap().as_secs_f64()
}

/// A pseudo-random page.
fn random_page(number: u64) -> DeviceRequest {
    let place = SplitMix64(number << 32).below(Duration::from_nanos(1_000_000_000_000)).as_nanos();
    read(place as u64 / PAGE * PAGE, PAGE)
}

#[test]
fn hdd_random_read_takes_seek_and_half_rotation() {
    let found = requests_per_second(DeviceProfile::Hdd, 1, 20_000, random_page);
    let expected = 1.0 / (8.5e-3 + 60.0 / 7_200.0 / 2.0);
    assert!((found / expected - 1.0).abs() < 0.03, "{found} of {expected}");
    assert_eq!(DeviceProfile::Hdd.limits().read_iops, Some(expected as u64));
    // A single arm: concurrency changes nothing.
    assert!((requests_per_second(DeviceProfile::Hdd, 32, 20_000, random_page) / expected - 1.0).abs() < 0.03);
}

#[test]
fn hdd_sequential_read_reaches_bandwidth() {
    for size in [PAGE, 1 << 20] {
        let found =
            requests_per_second(DeviceProfile::Hdd, 1, 10_000, |n| read(n * size, size)) * size as f64;
        assert!((0.95..=1.0).contains(&(found / 160e6)), "{found} bytes/s in requests of {size}");
    }
    let mut device = DeviceModel::new(DeviceProfile::Hdd.medium(), 1);
    (0..10).for_each(|n| _ = device.submit(Duration::ZERO, read(n * PAGE, PAGE)));
    assert_eq!((device.stats().requests, device.stats().sequential_requests), (10, 9));
    assert_eq!(device.stats().bytes, 10 * PAGE);
}

#[test]
fn hdd_short_seek_is_faster_than_long_seek() {
    let mean = |stride: u64| {
        let mut device = DeviceModel::new(DeviceProfile::Hdd.medium(), 3);
        let mut now = Duration::ZERO;
        (0..1000).for_each(|n: u64| now = device.submit(now, read(n % 2 * stride, PAGE)));
        now / 1000
    };
    let (near, far) = (mean(1 << 20), mean(900_000_000_000));
    assert!(near > 4 * MILLI && near < 6 * MILLI, "{near:?}");
    assert!(far > 17 * MILLI && far < 20 * MILLI, "{far:?}");
}

#[test]
fn ssd_throughput_scales_with_concurrency() {
    let alone = requests_per_second(DeviceProfile::Ssd, 1, 20_000, random_page);
    let eight = requests_per_second(DeviceProfile::Ssd, 8, 20_000, random_page);
    let many = requests_per_second(DeviceProfile::Ssd, 256, 20_000, random_page);
    assert!((8_000.0..10_000.0).contains(&alone), "{alone}");
    assert!(eight > 6.0 * alone && eight < 8.5 * alone, "{alone} alone, {eight} with eight");
    let bandwidth = 540e6 / PAGE as f64;
    assert!(many <= bandwidth && many > 0.95 * bandwidth, "{many}");
}

#[test]
fn measured_profiles_reproduce_the_papers_table() {
    for (profile, access, bytes, speed) in [
        (DeviceProfile::HouMagnetic, Access::Read, 1 << 10, 2.13e6),
        (DeviceProfile::HouMagnetic, Access::Read, 64 << 10, 7.36e6),
        (DeviceProfile::HouMagnetic, Access::Write, 16 << 20, 22.66e6),
        (DeviceProfile::HouSsd, Access::Read, 16 << 10, 34.87e6),
        (DeviceProfile::HouSsd, Access::Write, 256 << 10, 86.63e6),
    ] {
        let found =
            requests_per_second(profile, 1, 100, |n| DeviceRequest { access, offset: n * bytes, bytes });
        let found = found * bytes as f64;
        assert!((found / speed - 1.0).abs() < 1e-3, "{profile:?} {access:?} {bytes}: {found} of {speed}");
    }
    let rates = DeviceProfile::HouMagnetic.limits();
    assert_eq!(
        (rates.read_bytes_per_second, rates.write_bytes_per_second),
        (Some(61_590_000), Some(23_200_000))
    );
    assert_eq!((rates.read_iops, rates.write_iops), (Some(1635), Some(764)));
}

#[test]
fn chen_profiles_have_the_papers_rates() {
    let (disk, flash) = (DeviceProfile::ChenHdd.limits(), DeviceProfile::ChenSsd.limits());
    let bandwidth = |limits: &IoLimits| (limits.read_bytes_per_second, limits.write_bytes_per_second);
    assert_eq!(bandwidth(&disk), (Some(140_000_000), Some(140_000_000)));
    assert_eq!(bandwidth(&flash), (Some(270_000_000), Some(210_000_000)));
    // 12 ms for each request.
    assert_eq!((disk.read_iops, disk.write_iops), (Some(83), Some(83)));
    assert_eq!((flash.read_iops, flash.write_iops), (Some(65_917), Some(51_269)));
}

#[test]
fn measured_device_interpolates_between_sizes() {
    let row = |bytes, read| MeasuredRow {
        request_bytes: bytes,
        read_bytes_per_second: read,
        write_bytes_per_second: 1,
    };
    let params = MeasuredParams(vec![row(1000, 1_000_000), row(3000, 1_500_000)]);
    let time = |bytes| {
        DeviceModel::new(Medium::Measured(params.clone()), 0)
            .submit(Duration::ZERO, read(0, bytes))
            .as_micros()
    };
    assert_eq!([0, 1000, 2000, 3000, 6000].map(time), [1000, 1000, 1500, 2000, 4000]);
}

fn profiles() -> impl Strategy<Value = DeviceProfile> {
    prop::sample::select(DeviceProfile::ALL.map(|(_, profile)| profile).to_vec())
}

fn requests() -> impl Strategy<Value = Vec<(u64, DeviceRequest)>> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let request = (access, 0..u64::MAX, 0_u64..1 << 24).prop_map(|(access, offset, bytes)| DeviceRequest {
        access,
        offset,
        bytes,
    });
    prop::collection::vec((0_u64..50_000_000, request), 1..100)
}

proptest! {
    #[test]
    fn completions_are_ordered_and_within_bandwidth(
        profile in profiles(), seed in any::<u64>(), requests in requests(), is_burst in any::<bool>(),
    ) {
        let rates = profile.limits();
        let fastest = rates.read_bytes_per_second.max(rates.write_bytes_per_second).unwrap() as f64;
        let mut device = DeviceModel::new(profile.medium(), seed);
        let (mut now, mut last, mut bytes, mut first) = (Duration::ZERO, Duration::ZERO, 0_u64, None);
        for (pause, request) in requests {
            now += if is_burst { Duration::ZERO } else { Duration::from_nanos(pause) };
            first.get_or_insert(now);
            let done = device.submit(now, request);
            prop_assert!(done >= now && done >= last);
            prop_assert!((done - now).as_secs_f64() + 1e-9 >= request.bytes as f64 / fastest);
            last = done;
            bytes += request.bytes;
            let took = (last - first.unwrap()).as_secs_f64();
            prop_assert!(bytes as f64 <= fastest * (took + 1e-6), "{bytes} bytes in {took} s");
        }
    }

    #[test]
    fn same_seed_gives_same_completions(profile in profiles(), seed in any::<u64>(), requests in requests()) {
        let run = || {
            let mut device = DeviceModel::new(profile.medium(), seed);
            let offer = |(now, request): &(u64, DeviceRequest)| device.submit(Duration::from_nanos(*now), *request);
            requests.iter().map(offer).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}
