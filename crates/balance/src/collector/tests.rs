//! Rounds of a collector with simulated admin sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use super::*;

fn source(osd: u32) -> OsdSource {
    OsdSource { osd, location: OsdLocation::default(), is_local: true, source: Source::Socket }
}

#[test]
fn silent_osd_does_not_hide_the_others() {
    let place = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(place.path().join("osd")).unwrap();
    std::thread::spawn(move || {
        for reads in [10_u64, 30] {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let _ = socket.read(&mut request).unwrap();
            let dump = format!(
                r#"{{"osd":{{"op_r":{reads},"op_r_out_bytes":0,"op_r_latency":{{"avgcount":{reads},"sum":{reads}}}}}}}"#
            );
            socket.write_all(&u32::try_from(dump.len()).unwrap().to_be_bytes()).unwrap();
            socket.write_all(dump.as_bytes()).unwrap();
        }
    });
    let timeout = Duration::from_secs(10);
    let local = LocalOsds::with_sockets([(0, place.path().join("absent")), (1, place.path().join("osd"))]);
    let mut collector = Collector {
        options: CephOptions::default(),
        timeout,
        agents: Agents::default(),
        local,
        hosts: BTreeSet::new(),
        osds: vec![source(0), source(1)],
        previous: HashMap::new(),
        signals: vec![None; 2],
    };
    let first = collector.collect();
    assert!(first[0].load.is_err() && matches!(first[1].load, Ok(None)));
    assert!(collector.signal_counters()[0].is_none() && collector.signal_counters()[1].is_some());
    std::thread::sleep(Duration::from_millis(50));
    let second = collector.collect();
    let load = second[1].load.as_ref().unwrap().unwrap();
    assert!(load.reads_per_second > 0.0 && (load.latency_seconds - 1.0).abs() < 1e-9);
}
