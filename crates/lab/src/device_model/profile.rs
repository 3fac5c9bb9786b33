//! Predefined devices: a typical hard disk and flash drive, the two volumes of Hou et al. 2017 (Table II), and the two
//! devices of Chen et al. 2014 (section V.A).

use std::time::Duration;

use super::{Access, FlashParams, MeasuredParams, MeasuredRow, Medium, SpindleParams};

/// A predefined device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceProfile {
    /// A 7,200 rpm disk.
    Hdd,
    /// A SATA flash drive.
    Ssd,
    /// The magnetic volume of Hou et al.
    HouMagnetic,
    /// The flash volume of Hou et al.
    HouSsd,
    /// The disk of Chen et al.
    ChenHdd,
    /// The flash drive of Chen et al.
    ChenSsd,
}

/// Limits of a device, as a throttle can enforce them; `None` for unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Bytes read per second.
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written per second.
    pub write_bytes_per_second: Option<u64>,
    /// Reads per second.
    pub read_iops: Option<u64>,
    /// Writes per second.
    pub write_iops: Option<u64>,
}

const MEGA: u64 = 1_000_000;

/// Hou et al. 2017, Table II: size in KiB; read and write in units of 10,000 bytes per second.
const HOU_MAGNETIC: [(u64, u64, u64); 8] = [
    (1, 213, 77),
    (4, 670, 313),
    (16, 680, 460),
    (64, 736, 1067),
    (256, 1736, 1746),
    (1024, 3833, 2238),
    (4096, 6159, 2320),
    (16_384, 5812, 2266),
];
const HOU_SSD: [(u64, u64, u64); 8] = [
    (1, 270, 124),
    (4, 1057, 567),
    (16, 3487, 1065),
    (64, 6200, 2848),
    (256, 5824, 8663),
    (1024, 5824, 8271),
    (4096, 5806, 8272),
    (16_384, 5812, 8292),
];

const HDD: SpindleParams = SpindleParams {
    capacity_bytes: 1_000_000 * MEGA,
    min_seek: Duration::from_micros(500),
    // A mean seek of 8.5 ms.
    max_seek: Duration::from_micros(15_500),
    rotation_time: Duration::from_nanos(60_000_000_000 / 7_200),
    read_bytes_per_second: 160 * MEGA,
    write_bytes_per_second: 160 * MEGA,
};

const SSD: FlashParams = FlashParams {
    units: 32,
    read_latency: Duration::from_micros(90),
    write_latency: Duration::from_micros(40),
    latency_jitter: Duration::from_micros(20),
    read_bytes_per_second: 540 * MEGA,
    write_bytes_per_second: 500 * MEGA,
};

/// Chen et al. 2014: Seagate Constellation ST1000NM0011, 140 MB/s, and 12 ms to position: a seek and half a rotation.
/// The seek is the same for all distances.
const CHEN_HDD: SpindleParams = {
    const ROTATION: Duration = Duration::from_nanos(60_000_000_000 / 7_200);
    const SEEK: Duration = Duration::from_nanos(12_000_000 - 60_000_000_000 / 7_200 / 2);
    SpindleParams {
        capacity_bytes: 1_000_000 * MEGA,
        min_seek: SEEK,
        max_seek: SEEK,
        rotation_time: ROTATION,
        read_bytes_per_second: 140 * MEGA,
        write_bytes_per_second: 140 * MEGA,
    }
};

/// Chen et al. 2014: Intel 710, 270 and 210 MB/s.
const CHEN_SSD: FlashParams =
    FlashParams { read_bytes_per_second: 270 * MEGA, write_bytes_per_second: 210 * MEGA, ..SSD };

impl DeviceProfile {
    /// All profiles with their user-visible names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("hdd", Self::Hdd),
        ("ssd", Self::Ssd),
        ("hou-magnetic", Self::HouMagnetic),
        ("hou-ssd", Self::HouSsd),
        ("chen-hdd", Self::ChenHdd),
        ("chen-ssd", Self::ChenSsd),
    ];

    /// The device's internals.
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::Hdd => Medium::Spindle(HDD),
            Self::Ssd => Medium::Flash(SSD),
            Self::HouMagnetic => Medium::Measured(rows(&HOU_MAGNETIC)),
            Self::HouSsd => Medium::Measured(rows(&HOU_SSD)),
            Self::ChenHdd => Medium::Spindle(CHEN_HDD),
            Self::ChenSsd => Medium::Flash(CHEN_SSD),
        }
    }

    /// The closest limits that a throttle can enforce: the best bandwidth, and the rate of random 4 KiB requests.
    /// Between these sizes a throttle is faster than the device.
    #[must_use]
    pub fn limits(self) -> IoLimits {
        match self.medium() {
            Medium::Spindle(params) => {
                let requests = per_second(params.mean_seek() + params.rotation_time / 2);
                IoLimits {
                    read_bytes_per_second: Some(params.read_bytes_per_second),
                    write_bytes_per_second: Some(params.write_bytes_per_second),
                    read_iops: Some(requests),
                    write_iops: Some(requests),
                }
            }
            Medium::Flash(params) => {
                let requests = |latency: Duration, bandwidth: u64| {
                    let by_units = per_second(latency + params.latency_jitter / 2) * params.units as u64;
                    by_units.min(bandwidth / 4096)
                };
                IoLimits {
                    read_bytes_per_second: Some(params.read_bytes_per_second),
                    write_bytes_per_second: Some(params.write_bytes_per_second),
                    read_iops: Some(requests(params.read_latency, params.read_bytes_per_second)),
                    write_iops: Some(requests(params.write_latency, params.write_bytes_per_second)),
                }
            }
            Medium::Measured(MeasuredParams(rows)) => {
                let best = |access| rows.iter().map(|row| row.bandwidth(access)).max();
                let small = |access| {
                    let row = rows.iter().find(|row| row.request_bytes == 4096)?;
                    Some(row.bandwidth(access) / row.request_bytes)
                };
                IoLimits {
                    read_bytes_per_second: best(Access::Read),
                    write_bytes_per_second: best(Access::Write),
                    read_iops: small(Access::Read),
                    write_iops: small(Access::Write),
                }
            }
        }
    }
}

fn rows(table: &[(u64, u64, u64)]) -> MeasuredParams {
    let row = |&(kibi, read, write): &(u64, u64, u64)| MeasuredRow {
        request_bytes: kibi << 10,
        read_bytes_per_second: read * 10_000,
        write_bytes_per_second: write * 10_000,
    };
    MeasuredParams(table.iter().map(row).collect())
}

fn per_second(time: Duration) -> u64 {
    u64::try_from(super::NANOS_PER_SECOND / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}
