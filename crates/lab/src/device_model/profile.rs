//! Devices that are ready to be used: a disk and a flash drive as they are common, and the two that clients had in Hou
//! et al. 2017 (Table II).

use std::time::Duration;

use super::{Access, FlashFigures, MeasuredFigures, Medium, Row, SpindleFigures};

/// A known device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// A disk of 7,200 turns a minute.
    Hdd,
    /// A flash drive behind SATA.
    Ssd,
    /// The paper's magnetic volume.
    HouMagnetic,
    /// The paper's flash volume.
    HouSsd,
}

/// What a device does at the most, as a throttle can be told it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes read a second.
    pub read_bandwidth: Option<u64>,
    /// Bytes written a second.
    pub write_bandwidth: Option<u64>,
    /// Reads a second.
    pub read_requests: Option<u64>,
    /// Writes a second.
    pub write_requests: Option<u64>,
}

const MEGA: u64 = 1_000_000;

/// Hou et al. 2017, Table II: sizes in KiB; read and write in units of 10,000 bytes a second.
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
    // 8.5 ms in the mean.
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
    /// Each, with the name that users know it by.
    pub const ALL: [(&'static str, Self); 4] = [
        ("hdd", Self::Hdd),
        ("ssd", Self::Ssd),
        ("hou-magnetic", Self::HouMagnetic),
        ("hou-ssd", Self::HouSsd),
    ];

    /// How it works inside.
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::Hdd => Medium::Spindle(HDD),
            Self::Ssd => Medium::Flash(SSD),
            Self::HouMagnetic => Medium::Measured(rows(&HOU_MAGNETIC)),
            Self::HouSsd => Medium::Measured(rows(&HOU_SSD)),
        }
    }

    /// What is left of it where only bandwidths and numbers of requests can be bounded: the best bandwidth, and what it
    /// does with 4 KiB anywhere. In between a throttle is faster than the device.
    #[must_use]
    pub fn rates(self) -> Rates {
        match self.medium() {
            Medium::Spindle(figures) => {
                let requests = a_second(figures.mean_seek() + figures.rotation / 2);
                Rates {
                    read_bandwidth: Some(figures.read_bandwidth),
                    write_bandwidth: Some(figures.write_bandwidth),
                    read_requests: Some(requests),
                    write_requests: Some(requests),
                }
            }
            Medium::Flash(figures) => {
                let requests = |latency: Duration, bandwidth: u64| {
                    let by_units = a_second(latency + figures.spread / 2) * figures.units as u64;
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

fn a_second(time: Duration) -> u64 {
    u64::try_from(super::SECOND / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}
