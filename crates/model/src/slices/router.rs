//! The choice between two devices for each object, by what each device is good at.

use std::time::Duration;

/// A device of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The solid-state drive.
    Ssd,
    /// The rotating disk.
    Disk,
}

/// The speed of a device: a request takes the fixed time and the transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceSpeed {
    /// Time per request beside the transfer.
    pub request_time: Duration,
    /// Transfer rate.
    pub bytes_per_second: u64,
}

impl DeviceSpeed {
    fn service_time(&self, bytes: u64) -> Duration {
        self.request_time + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64)
    }
}

/// Factor by which a decision changes [`TrafficRouter::max_cost_ratio`].
const COST_RATIO_STEP: f64 = 1.02;
/// Bounds of [`TrafficRouter::max_cost_ratio`].
const MIN_COST_RATIO: f64 = 1.0;
const MAX_COST_RATIO: f64 = 1e4;

/// Assigns objects to an SSD or a disk without rules per class, so that both are busy with any mix.
///
/// The larger an object, the less longer does the disk need for it than the SSD. The disk gets the objects for which
/// this ratio is the lowest. The limit moves until the devices need the same time for what they have to do. An object
/// also goes to the disk if that would finish it first while the disk is idle.
#[derive(Debug)]
pub struct TrafficRouter {
    ssd: Backlog,
    disk: Backlog,
    /// Objects with a ratio of service times up to this go to the disk.
    max_cost_ratio: f64,
}

/// The work of a device.
#[derive(Debug)]
struct Backlog {
    speed: DeviceSpeed,
    service_time: Duration,
}

impl Backlog {
    const fn idle(speed: DeviceSpeed) -> Self {
        Self { speed, service_time: Duration::ZERO }
    }
}

impl TrafficRouter {
    /// A router of two idle devices.
    #[must_use]
    pub const fn new(ssd: DeviceSpeed, disk: DeviceSpeed) -> Self {
        Self { ssd: Backlog::idle(ssd), disk: Backlog::idle(disk), max_cost_ratio: MIN_COST_RATIO }
    }

    /// Chooses the device of an object, and counts the object as its backlog until [`Self::complete`].
    pub fn route(&mut self, bytes: u64) -> Device {
        let (on_ssd, on_disk) = (self.ssd.speed.service_time(bytes), self.disk.speed.service_time(bytes));
        let is_disk_less_loaded = self.disk.service_time < self.ssd.service_time;
        let step = if is_disk_less_loaded { COST_RATIO_STEP } else { 1.0 / COST_RATIO_STEP };
        self.max_cost_ratio = (self.max_cost_ratio * step).clamp(MIN_COST_RATIO, MAX_COST_RATIO);
        let is_cheap = on_disk.as_secs_f64() <= self.max_cost_ratio * on_ssd.as_secs_f64();
        let is_faster = self.disk.service_time.is_zero() && on_disk < self.ssd.service_time + on_ssd;
        let (device, service_time) = if (is_cheap && is_disk_less_loaded) || is_faster {
            (Device::Disk, on_disk)
        } else {
            (Device::Ssd, on_ssd)
        };
        self.backlog(device).service_time += service_time;
        device
    }

    /// An object is complete, or was aborted.
    pub fn complete(&mut self, device: Device, bytes: u64) {
        let backlog = self.backlog(device);
        backlog.service_time = backlog.service_time.saturating_sub(backlog.speed.service_time(bytes));
    }

    const fn backlog(&mut self, device: Device) -> &mut Backlog {
        match device {
            Device::Ssd => &mut self.ssd,
            Device::Disk => &mut self.disk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSD: DeviceSpeed =
        DeviceSpeed { request_time: Duration::from_micros(50), bytes_per_second: 210_000_000 };
    const DISK: DeviceSpeed =
        DeviceSpeed { request_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };

    #[test]
    fn idle_devices_get_objects_on_the_faster_one() {
        let mut router = TrafficRouter::new(SSD, DISK);
        assert_eq!(router.route(64 << 10), Device::Ssd);
        router.complete(Device::Ssd, 64 << 10);
        assert_eq!(router.route(100 << 20), Device::Ssd);
    }

    /// Keeps `clients` objects in flight, each device completing them in order, and counts those of each device.
    fn drive(sizes: impl Fn(usize) -> u64, clients: usize) -> Routed {
        let mut router = TrafficRouter::new(SSD, DISK);
        let mut routed = Routed::default();
        let mut queues = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
        let mut clock = [Duration::ZERO; 2];
        for number in 0..20_000 {
            if number >= clients {
                let earlier =
                    (0..2).filter(|device| !queues[*device].is_empty()).min_by_key(|device| clock[*device]);
                let device = earlier.unwrap();
                let bytes = queues[device].pop_front().unwrap();
                let speed = [SSD, DISK][device];
                clock[device] += speed.service_time(bytes);
                router.complete([Device::Ssd, Device::Disk][device], bytes);
            }
            let bytes = sizes(number);
            let device = router.route(bytes);
            queues[device as usize].push_back(bytes);
            if device == Device::Disk {
                routed.on_disk += 1;
                routed.small_on_disk += usize::from(bytes < 1 << 20);
            }
        }
        routed
    }

    #[derive(Default)]
    struct Routed {
        on_disk: usize,
        small_on_disk: usize,
    }

    #[test]
    fn large_objects_are_shared_in_proportion_to_speed() {
        let routed = drive(|_| 50 << 20, 50);
        assert!((7_500..=8_200).contains(&routed.on_disk), "{}", routed.on_disk);
    }

    #[test]
    fn disk_gets_the_large_objects_of_a_mix() {
        let routed = drive(|number| if number % 2 == 0 { 16 << 10 } else { 8 << 20 }, 50);
        assert!(routed.on_disk > 3_000 && routed.small_on_disk * 50 < routed.on_disk);
    }

    #[test]
    fn small_objects_alone_also_use_the_disk() {
        assert!(drive(|_| 200 << 10, 50).on_disk > 500);
    }
}
