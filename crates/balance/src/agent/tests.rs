//! Agents and balancers on loopback. Each side also meets peers that it must not accept.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::AgentClient;
use super::directory::AgentEntry;
use super::error::AgentError;
use super::key::{Fingerprint, Key};
use super::messages::OsdQuery;
use super::server::AgentServer;
use crate::local_osds::{HostSample, LocalOsds};

/// Far longer than anything here takes, and shorter than the limits of the test runner.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Agent {
    address: SocketAddr,
    key: Key,
    log: Arc<Mutex<Vec<String>>>,
    place: tempfile::TempDir,
}

impl Agent {
    /// An agent of a host with OSD 1, which has served 70 reads.
    fn start(peers: &[Fingerprint]) -> Self {
        Self::start_with_key(Key::generate(), peers)
    }

    fn start_with_key(key: Key, peers: &[Fingerprint]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("osd.1.asok");
        serve_admin_socket(UnixListener::bind(&path).unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        let server = AgentServer::bind(
            "127.0.0.1:0".parse().unwrap(),
            &key,
            peers,
            LocalOsds::with_sockets([(1, path)]),
            Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned())),
        )
        .unwrap();
        let address = server.local_address().unwrap();
        std::thread::spawn(move || server.serve());
        Self { address, key, log, place }
    }

    fn client(&self, key: &Key) -> AgentClient {
        client(self.address, self.key.fingerprint(), key)
    }

    /// Waits for a line of the log that contains a text.
    fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.log.lock().unwrap().iter().any(|line| line.contains(text)) {
            assert!(Instant::now() < deadline, "{text} is not in {:?}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn client(address: SocketAddr, agent: Fingerprint, key: &Key) -> AgentClient {
    let entry =
        AgentEntry { hostname: "node-a".to_owned(), address: address.to_string(), fingerprint: agent };
    AgentClient::new(entry, key).unwrap()
}

fn serve_admin_socket(listener: UnixListener) {
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut request = [0; 64];
            let _ = socket.read(&mut request).unwrap();
            let dump = br#"{"osd":{"op_r":70,"op_r_out_bytes":7,"op_r_latency":{"avgcount":70,"sum":1.5}}}"#;
            socket.write_all(&u32::try_from(dump.len()).unwrap().to_be_bytes()).unwrap();
            socket.write_all(dump).unwrap();
        }
    });
}

fn queries(osds: &[u32]) -> Vec<OsdQuery> {
    osds.iter().map(|osd| OsdQuery { osd: *osd, device: None }).collect()
}

fn read(client: &AgentClient) -> Result<HostSample, AgentError> {
    client.read(&queries(&[1]), TIMEOUT)
}

/// A server on loopback that treats its connections, one after another, like this.
fn fake_agent(treat: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(|socket| treat(socket.unwrap())));
    address
}

#[test]
fn agent_reports_the_osds_of_its_host() {
    let key = Key::generate();
    let agent = Agent::start(&[Key::generate().fingerprint(), key.fingerprint()]);
    let client = agent.client(&key);
    for _ in 0..2 {
        let sample = client.read(&queries(&[1, 2]), TIMEOUT).unwrap();
        let reads = sample.osds[0].reads.as_ref().unwrap();
        assert_eq!((reads.reads, reads.latency_seconds), (70, 1.5));
        let error = sample.osds[1].reads.as_ref().unwrap_err().to_string();
        assert!(error.starts_with("agent of host node-a (127.0.0.1:"), "{error}");
        assert!(error.ends_with("no admin socket on its host; is the OSD running?"), "{error}");
        assert!(sample.osds[0].read_at <= Instant::now());
    }
    assert!(agent.place.path().exists() && agent.log.lock().unwrap().is_empty());
}

#[test]
fn more_osds_than_a_request_holds_are_read_in_several() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    let sample = agent.client(&key).read(&queries(&[1; 1030]), TIMEOUT).unwrap();
    assert_eq!(sample.osds.iter().filter(|osd| osd.reads.is_ok()).count(), 1030);
}

#[test]
fn device_outside_of_its_directory_is_not_read() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    let query = OsdQuery { osd: 1, device: Some("../../../proc/self".to_owned()) };
    let sample = agent.client(&key).read(&[query], TIMEOUT).unwrap();
    assert!(sample.osds[0].device.is_none() && sample.osds[0].reads.is_ok());
}

#[test]
fn balancer_with_another_key_is_rejected_with_what_to_do() {
    let agent = Agent::start(&[Key::generate().fingerprint()]);
    let stranger = Key::generate();
    let error = read(&agent.client(&stranger)).unwrap_err();
    let expected = format!("it does not accept this key; start it with --peer {}", stranger.fingerprint());
    assert_eq!(error.to_string(), expected);
    agent.wait_for_log(&format!("its key {} is not an accepted one", stranger.fingerprint()));
}

#[test]
fn agent_with_another_key_gets_no_request() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    let error = read(&client(agent.address, Key::generate().fingerprint(), &key)).unwrap_err();
    assert!(matches!(error, AgentError::UnknownKey(key) if key == agent.key.fingerprint()), "{error}");
}

#[test]
fn balancer_that_does_not_own_its_key_is_rejected() {
    let accepted = Key::generate();
    let agent = Agent::start(&[accepted.fingerprint()]);
    let impostor = Key::impostor(&accepted, &Key::generate());
    assert_eq!(impostor.fingerprint(), accepted.fingerprint());
    let error = read(&agent.client(&impostor)).unwrap_err();
    assert!(matches!(error, AgentError::Rejected(_)), "{error}");
    agent.wait_for_log("BadSignature");
    assert!(read(&agent.client(&accepted)).is_ok(), "the owner is still accepted");
}

#[test]
fn agent_that_does_not_own_its_key_is_rejected() {
    let (key, pretended) = (Key::generate(), Key::generate());
    let agent = Agent::start_with_key(Key::impostor(&pretended, &Key::generate()), &[key.fingerprint()]);
    let error = read(&client(agent.address, pretended.fingerprint(), &key)).unwrap_err();
    assert!(matches!(error, AgentError::UnprovenKey(_)), "{error}");
}

#[test]
fn balancer_without_a_key_is_rejected() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    // A client that presents no key at all, and otherwise does everything right.
    let mut config = (*super::tls::client_config(&key, agent.key.fingerprint()).unwrap()).clone();
    config.client_auth_cert_resolver = Arc::new(NoKey);
    let connection =
        rustls::ClientConnection::new(Arc::new(config), "agent.invalid".try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(agent.address).unwrap());
    let _ = stream.write_all(b"\0\0\0\x02{}");
    let mut response = Vec::new();
    assert!(stream.read_to_end(&mut response).is_err() && response.is_empty());
    agent.wait_for_log("no TLS 1.3 connection");
}

#[derive(Debug)]
struct NoKey;

impl rustls::client::ResolvesClientCert for NoKey {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn bytes_that_are_not_tls_end_their_connection_only() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    let mut socket = TcpStream::connect(agent.address).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut response = Vec::new();
    // The agent may reset the connection; it must not wait.
    let _ = socket.read_to_end(&mut response);
    agent.wait_for_log("no TLS 1.3 connection");
    assert!(read(&agent.client(&key)).is_ok());
}

#[test]
fn peer_that_hangs_up_is_forgotten() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    for _ in 0..40 {
        drop(TcpStream::connect(agent.address).unwrap());
    }
    assert!(read(&agent.client(&key)).is_ok());
    // A peer that ends is no fault. A few may have been closed in favour of later ones.
    assert!(agent.log.lock().unwrap().iter().all(|line| !line.contains("TLS")), "{:?}", agent.log);
}

#[test]
fn agent_that_is_not_one_is_an_error() {
    let key = Key::generate();
    let address = fake_agent(|mut socket| {
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = read(&client(address, Key::generate().fingerprint(), &key)).unwrap_err();
    assert!(matches!(error, AgentError::Tls(_) | AgentError::Closed), "{error}");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = read(&client(unused, Key::generate().fingerprint(), &key)).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn agent_that_hangs_ends_at_the_deadline() {
    // It accepts, and then stays silent.
    let (sender, sockets) = std::sync::mpsc::channel();
    let address = fake_agent(move |socket| sender.send(socket).unwrap());
    let hanging = client(address, Key::generate().fingerprint(), &Key::generate());
    let start = Instant::now();
    let error = hanging.read(&queries(&[1]), Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, AgentError::TimedOut), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < TIMEOUT);
    drop(sockets);
}

/// An agent that completes the handshake and then sends these bytes in response to anything.
fn agent_that_sends(key: &Key, peer: Fingerprint, bytes: &'static [u8]) -> SocketAddr {
    let config = super::tls::server_config(key, &[peer]).unwrap();
    fake_agent(move |mut socket| {
        let mut connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.flush();
        // Until the client closes.
        let _ = stream.read(&mut request);
    })
}

#[test]
fn oversized_and_malformed_responses_are_errors() {
    let (key, agent) = (Key::generate(), Key::generate());
    let read_from = |bytes: &'static [u8]| {
        let address = agent_that_sends(&agent, key.fingerprint(), bytes);
        read(&client(address, agent.fingerprint(), &key)).unwrap_err()
    };
    let error = read_from(b"\x7f\xff\xff\xff");
    assert!(matches!(error, AgentError::TooLong { max: 4_194_304, .. }), "{error}");
    assert!(matches!(read_from(b"\0\0\0\x02{]"), AgentError::Malformed(_)));
    let empty = br#"{"counters":{"host":{"io_pressure_percent":null,"cpu":null},"osds":[]}}"#;
    assert_eq!(empty.len(), 71);
    let error = read_from(
        b"\0\0\0\x47{\"counters\":{\"host\":{\"io_pressure_percent\":null,\"cpu\":null},\"osds\":[]}}",
    );
    assert!(error.to_string().contains("0 OSDs in the response to a request for 1"), "{error}");
}

#[test]
fn oversized_and_unknown_requests_are_rejected() {
    let key = Key::generate();
    let agent = Agent::start(&[key.fingerprint()]);
    let send = |bytes: &[u8]| {
        let config = super::tls::client_config(&key, agent.key.fingerprint()).unwrap();
        let connection = rustls::ClientConnection::new(config, "agent.invalid".try_into().unwrap()).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(agent.address).unwrap());
        stream.write_all(bytes).unwrap();
        stream.sock.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut response = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut response).unwrap();
        Some(String::from_utf8(response).unwrap())
    };
    assert_eq!(send(b"\x7f\xff\xff\xff"), None);
    agent.wait_for_log("it announced a message of 2147483647 bytes, but the limit is 262144");
    assert_eq!(send(b"\0\0\0\x02[]"), None);
    agent.wait_for_log("a message cannot be read");
    let response = send(b"\0\0\0\x17{\"version\":9,\"osds\":[]}").unwrap();
    assert!(response.contains("the agent has version 1 of the protocol, not 9"), "{response}");
}

#[test]
fn restarted_agent_is_reconnected() {
    let (key, agent_key) = (Key::generate(), Key::generate());
    let server = super::tls::server_config(&agent_key, &[key.fingerprint()]).unwrap();
    // It closes each connection after one response, as an agent that restarts does.
    let address = fake_agent(move |mut socket| {
        let mut connection = rustls::ServerConnection::new(server.clone()).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).unwrap();
        let osd = r#"{"reads":{"Ok":{"reads":7,"bytes":7,"latencies":7,"latency_seconds":1.0}},"device":null,"age_micros":0}"#;
        let text =
            format!(r#"{{"counters":{{"host":{{"io_pressure_percent":2.5,"cpu":null}},"osds":[{osd}]}}}}"#);
        stream.write_all(&u32::try_from(text.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
    });
    let client = client(address, agent_key.fingerprint(), &key);
    for _ in 0..3 {
        let sample = read(&client).unwrap();
        assert_eq!(sample.host.io_pressure_percent, Some(2.5));
        assert_eq!(sample.osds[0].reads.as_ref().unwrap().reads, 7);
    }
}
