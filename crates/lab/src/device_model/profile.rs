//! Predefined devices: a typical hard disk and flash drive, and the two volumes of Hou et al. 2017 (Table II).

use std::time::Duration;

use super::{Access, FlashFigures, MeasuredFigures, Medium, Row, SpindleFigures};

/// A predefined device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// A 7,200 rpm disk.
    Hdd,
    /// A SATA flash drive.
    Ssd,
    /// The paper's magnetic volume.
    HouMagnetic,
    /// The paper's flash volume.
    HouSsd,
}

/// Limits of a device, as a throttle can enforce them; `None` for unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes read per second.
    pub read_bandwidth: Option<u64>,
    /// Bytes written per second.
    pub write_bandwidth: Option<u64>,
    /// Reads per second.
    pub read_requests: Option<u64>,
    /// Writes per second.
    pub write_requests: Option<u64>,
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

const HDD: SpindleFigures = SpindleFigures {
    bytes: 1_000_000 * MEGA,
    shortest_seek: Duration::from_micros(500),
    // A mean seek of 8.5 ms.
    longest_seek: Duration::from_micros(15_500),
    rotation: Duration::from_nanos(60_000_000_000 / 7_200),
    read_bandwidth: 160 * MEGA,
    write_bandwidth: 160 * MEGA,
};

const SSD: FlashFigures = FlashFigures {
    units: 32,
    read_latency: Duration::from_micros(90),
    write_latency: Duration::from_micros(40),
    spread: Duration::from_micros(20),
    read_bandwidth: 540 * MEGA,
    write_bandwidth: 500 * MEGA,
};

impl Profile {
    /// All profiles with their user-visible names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("hdd", Self::Hdd),
        ("ssd", Self::Ssd),
        ("hou-magnetic", Self::HouMagnetic),
        ("hou-ssd", Self::HouSsd),
    ];

    /// The device's internals.
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::Hdd => Medium::Spindle(HDD),
            Self::Ssd => Medium::Flash(SSD),
            Self::HouMagnetic => Medium::Measured(rows(&HOU_MAGNETIC)),
            Self::HouSsd => Medium::Measured(rows(&HOU_SSD)),
        }
    }

    /// The closest limits that a throttle can enforce: the best bandwidth, and the rate of random 4 KiB requests.
    /// Between these sizes a throttle is faster than the device.
    #[must_use]
    pub fn rates(self) -> Rates {
        match self.medium() {
            Medium::Spindle(figures) => {
                let requests = per_second(figures.mean_seek() + figures.rotation / 2);
                Rates {
                    read_bandwidth: Some(figures.read_bandwidth),
                    write_bandwidth: Some(figures.write_bandwidth),
                    read_requests: Some(requests),
                    write_requests: Some(requests),
                }
            }
            Medium::Flash(figures) => {
                let requests = |latency: Duration, bandwidth: u64| {
                    let by_units = per_second(latency + figures.spread / 2) * figures.units as u64;
                    by_units.min(bandwidth / 4096)
                };
                Rates {
                    read_bandwidth: Some(figures.read_bandwidth),
                    write_bandwidth: Some(figures.write_bandwidth),
                    read_requests: Some(requests(figures.read_latency, figures.read_bandwidth)),
                    write_requests: Some(requests(figures.write_latency, figures.write_bandwidth)),
                }
            }
            Medium::Measured(MeasuredFigures(rows)) => {
                let best = |access| rows.iter().map(|row| row.bandwidth(access)).max();
                let small = |access| {
                    let row = rows.iter().find(|row| row.bytes == 4096)?;
                    Some(row.bandwidth(access) / row.bytes)
                };
                Rates {
                    read_bandwidth: best(Access::Read),
                    write_bandwidth: best(Access::Write),
                    read_requests: small(Access::Read),
                    write_requests: small(Access::Write),
                }
            }
        }
    }
}

fn rows(table: &[(u64, u64, u64)]) -> MeasuredFigures {
    let row = |&(kibi, read, write): &(u64, u64, u64)| Row {
        bytes: kibi << 10,
        read: read * 10_000,
        write: write * 10_000,
    };
    MeasuredFigures(table.iter().map(row).collect())
}

fn per_second(time: Duration) -> u64 {
    u64::try_from(super::SECOND / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}
