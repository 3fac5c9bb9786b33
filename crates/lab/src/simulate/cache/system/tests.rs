use std::time::Duration;

use tradewind_model::class_policy::DataType;

use super::traffic::{MIXES, Mapping, Mix, TrafficReport};
use super::*;

/// Large enough for the order of configurations, small enough for a test.
const SCALE: f64 = 0.05;

fn options() -> Options {
    Options { scale: SCALE, cache_shares: vec![0.05], ..Options::default() }
}

fn run(configuration: Configuration) -> RunReport {
    let options = Options { configurations: vec![configuration], ..options() };
    simulate(&options).unwrap().runs.remove(0)
}

#[test]
fn same_seed_gives_the_same_report() {
    let options = Options { scale: 0.02, ..options() };
    assert_eq!(simulate(&options).unwrap(), simulate(&options).unwrap());
    let other = Options { seed: 2, ..options.clone() };
    assert_ne!(simulate(&options).unwrap(), simulate(&other).unwrap());
}

#[test]
fn options_out_of_range_are_rejected() {
    for invalid in [
        Options { scale: 0.001, ..options() },
        Options { cache_shares: vec![1.5], ..options() },
        Options { cache_shares: vec![], ..options() },
        Options { configurations: vec![], ..options() },
        Options { labels: vec![], ..options() },
    ] {
        assert!(simulate(&invalid).is_err(), "{invalid:?}");
    }
}

#[test]
fn runs_differ_only_in_what_the_configuration_obeys() {
    let options =
        Options { cache_shares: vec![0.05, 0.1], labels: Labels::ALL.to_vec(), ..Options::default() };
    let count =
        |configuration| options.setups().iter().filter(|setup| setup.configuration == configuration).count();
    assert_eq!(Configuration::ALL.map(count), [1, 2, 10, 1, 2, 10]);
}

#[test]
fn every_request_is_served_and_every_byte_counted() {
    let world = World::new(SCALE, 1);
    let size = |request: &world::Request| world.objects[request.object].bytes;
    let put_bytes: u64 = world.puts.iter().map(size).sum();
    let get_bytes: u64 = world.gets.iter().map(size).sum();
    for configuration in Configuration::ALL {
        let run = run(configuration);
        let requests = [&run.put, &run.get, &run.delete].map(|phase| phase.requests);
        let expected = [&world.puts, &world.gets, &world.deletes].map(|requests| requests.len() as u64);
        assert_eq!(requests, expected, "{configuration:?}");
        assert_eq!((run.put.bytes, run.put.bytes_received), (put_bytes, 3 * put_bytes), "{configuration:?}");
        assert_eq!((run.get.bytes, run.get.bytes_sent), (get_bytes, get_bytes), "{configuration:?}");
        assert_eq!((run.put.bytes_sent, run.get.bytes_received, run.delete.bytes_sent), (0, 0, 0));
    }
}

#[test]
fn devices_without_a_cache_transfer_each_byte_once() {
    const METADATA_BYTES: u64 = 4096;
    let disk = run(Configuration::Hdd);
    let metadata = 3 * METADATA_BYTES * disk.put.requests;
    assert_eq!(disk.put.disk_bytes_written, 3 * disk.put.bytes + metadata);
    assert_eq!(disk.get.disk_bytes_read, disk.get.bytes + METADATA_BYTES * disk.get.requests);
    assert_eq!((disk.ssd_bytes_written(), disk.get.ssd_bytes_read), (0, 0));
    let ssd = run(Configuration::Ssd);
    assert_eq!(ssd.put.ssd_bytes_written, disk.put.disk_bytes_written);
    assert_eq!(ssd.get.ssd_bytes_read, disk.get.disk_bytes_read);
}

#[test]
fn caches_read_each_requested_byte_from_one_device() {
    const METADATA_BYTES: u64 = 4096;
    let run = run(Configuration::Tradewind);
    let requested = run.get.bytes + METADATA_BYTES * run.get.requests;
    let read = run.get.ssd_bytes_read + run.get.disk_bytes_read;
    let written_back = read - requested;
    assert!(read >= requested && written_back <= 2 * run.get.disk_bytes_written, "{read} of {requested}");
}

#[test]
fn configurations_are_in_the_papers_order() {
    let [hdd, lru, dss, ssd, s3_fifo, tradewind] = Configuration::ALL.map(run);
    let put = |run: &RunReport| run.put.bytes_per_second();
    let get = |run: &RunReport| run.get.bytes_per_second();
    assert!(put(&lru) < put(&hdd) && put(&hdd) < put(&tradewind));
    assert!(put(&lru) < put(&dss) && put(&tradewind) >= 4.0 * put(&lru));
    assert!(put(&tradewind) >= 0.9 * put(&ssd));
    assert!(get(&hdd) < get(&dss) && get(&dss) < get(&tradewind));
    assert!(get(&tradewind) >= 0.85 * get(&ssd));
    let first_byte = |run: &RunReport| run.get.mean_first_byte_seconds;
    assert!(first_byte(&tradewind) <= 0.9 * first_byte(&ssd) && first_byte(&ssd) < first_byte(&lru));
    let failures = |run: &RunReport| run.put.failure_share();
    assert!(failures(&lru) > failures(&hdd) && failures(&lru) > failures(&dss));
    assert!(tradewind.ssd_bytes_written() as f64 <= 0.35 * lru.ssd_bytes_written() as f64);
    let disk_share = tradewind.disk_busy_seconds() / s3_fifo.disk_busy_seconds();
    assert!(disk_share <= 0.95, "{disk_share}");
}

#[test]
fn lru_holds_disk_images_and_classes_hold_small_objects() {
    let [lru, dss, tradewind] = [Configuration::Lru, Configuration::Dss, Configuration::Tradewind].map(run);
    let share = |run: &RunReport, object_type: DataType| {
        let contents = &run.contents_after_put;
        contents.types[object_type as usize] as f64 / contents.total() as f64
    };
    assert!(share(&lru, DataType::DiskImages) > 0.5);
    for run in [dss, tradewind] {
        assert!(share(&run, DataType::DiskImages) < 0.2, "{run:?}");
        assert!(share(&run, DataType::Files) > 0.3, "{run:?}");
    }
}

#[test]
fn wrong_labels_do_not_slow_downloads() {
    let options =
        Options { configurations: vec![Configuration::Tradewind], labels: Labels::ALL.to_vec(), ..options() };
    let report = simulate(&options).unwrap();
    let disk_seconds =
        |labels| report.runs.iter().find(|run| run.labels == Some(labels)).unwrap().disk_busy_seconds();
    for wrong in [Labels::Shuffled, Labels::Inverted, Labels::Flooding] {
        assert!(disk_seconds(wrong) <= 1.02 * disk_seconds(Labels::Off), "{wrong:?}");
    }
}

#[test]
fn streams_keep_the_disk_and_a_miss_waits_for_one_slice() {
    let report = streams::simulate(8, Duration::from_millis(500), Duration::from_secs(300), 1);
    assert!(report.sequential_share >= 0.8, "{report:?}");
    // A rotation above the mean is part of the positioning time.
    let max_slice_seconds = report.slice_seconds + 0.005;
    assert!(report.max_miss_wait_seconds <= max_slice_seconds, "{report:?}");
    assert!(report.misses > 500);
}

fn traffic(mapping: Mapping, mix: &Mix) -> TrafficReport {
    traffic::simulate(mapping, mix, Duration::from_secs(60), 1)
}

fn capacity(mix: &Mix) -> f64 {
    use tradewind_model::slices::Device;
    let alone = |device| traffic(Mapping::Alone(device), mix).total_bytes_per_second();
    alone(Device::Ssd) + alone(Device::Disk)
}

#[test]
fn adaptive_traffic_uses_both_devices_on_every_mix() {
    for mix in &MIXES {
        let share = traffic(Mapping::Adaptive, mix).total_bytes_per_second() / capacity(mix);
        assert!(share >= 0.97, "{share} of {mix:?}");
    }
}

#[test]
fn each_static_mapping_loses_on_some_mix() {
    for mapping in Mapping::ALL.into_iter().filter(|mapping| matches!(mapping, Mapping::Static { .. })) {
        let share = |mix| traffic(mapping, mix).total_bytes_per_second() / capacity(mix);
        let worst = MIXES.iter().map(share).fold(f64::INFINITY, f64::min);
        assert!(worst <= 0.8, "{worst} with {mapping:?}");
    }
}

#[test]
fn small_files_are_as_fast_in_a_mix_as_alone() {
    let p90 = |mix: &Mix| traffic(Mapping::Adaptive, mix).latency(0, 0.9);
    for mix in MIXES.iter().filter(|mix| mix.clients[0] > 0) {
        let alone = Mix { name: "alone", clients: [mix.clients[0], 0, 0, 0] };
        let ratio = p90(mix).unwrap() / p90(&alone).unwrap();
        assert!(ratio <= 1.2, "{ratio} in {mix:?}");
    }
}
