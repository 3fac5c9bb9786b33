use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use serde_json::{Value as Json, json};

use super::*;
use crate::cluster::handshake::PROTOCOL_VERSION;
use crate::cluster::messages::AgentJob;
use crate::result::tests::measurement;

fn framed(value: &Json) -> Vec<u8> {
    let text = value.to_string();
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// A valid first message, or a similar one.
fn greeting() -> impl Strategy<Value = Vec<u8>> {
    let hello = (prop::sample::select(vec![0, 1, PROTOCOL_VERSION, PROTOCOL_VERSION + 1]), any::<[u8; 32]>()).prop_map(
        |(version, number)| {
            framed(&json!({"hello": {"protocol": "tradewind-bench-cluster", "version": version, "number": number}}))
        },
    );
    let proof = any::<[u8; 32]>().prop_map(|proof| framed(&json!({ "proof": proof })));
    let refused = prop_oneof![Just(json!({"refused": {"version": 7}})), Just(json!({"refused": "key"}))];
    prop_oneof![hello, proof, refused.prop_map(|refused| framed(&refused))]
}

/// Several greetings with altered bytes, or arbitrary bytes.
fn unauthenticated_bytes() -> impl Strategy<Value = Vec<u8>> {
    let greetings = prop::collection::vec(greeting(), 1..4).prop_map(|all| all.concat());
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let near = (greetings, changes).prop_map(|(mut bytes, changes)| {
        for (position, byte) in changes {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        bytes
    });
    // Frames that claim to be long, with much data.
    let long = (any::<[u8; 4]>(), 0_usize..200_000)
        .prop_map(|(head, length)| [&head[..], &vec![7; length]].concat());
    prop_oneof![3 => near, 1 => long, 1 => prop::collection::vec(any::<u8>(), 0..2000)]
}

/// A message after the handshake, with up to two altered bytes.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let job = AgentJob {
        location: "s3://bucket".to_owned(),
        run: 7,
        agent: 1,
        max_concurrent_loads: 2,
        max_concurrency: 4,
        new_connections: false,
        keep_objects: false,
    };
    let step = json!({
        "load": {"mix": "put", "concurrency": 2, "arrival_mode": {"open": {"requests_per_second": 5.0, "spacing": "fixed"}}, "seed": 1,
            "stop_condition": {"max_requests": null, "duration": {"secs": 1, "nanos": 0}, "max_ci_fraction": null},
            "warm_up": {"secs": 0, "nanos": 0}},
        "sizes": "1KiB-2KiB", "objects": 9, "round": 1,
    });
    let measurement =
        serde_json::to_string(&AgentResponse::Measurement(Box::new(measurement("get", 4, 1, 100.0))))
            .unwrap();
    let max = u64::MAX;
    let extreme = measurement
        .replace("[10,1]", &format!("[{max},{max}]"))
        .replace("[20,1]", &format!("[0,{max}]"))
        .replace("[3,12288,0,20,30]", &format!("[{max},{max},{max},{max},{max}]"))
        .replace("\"operations\":3", &format!("\"operations\":{max}"))
        .replace("\"concurrency\":4", &format!("\"concurrency\":{max}"))
        .replace("100.0", "1.7e308");
    let honest: Vec<Vec<u8>> = [
        serde_json::to_vec(&AgentRequest::Open(job)).unwrap(),
        serde_json::to_vec(&json!({"prepare": [step, step]})).unwrap(),
        serde_json::to_vec(&AgentRequest::End { lost: vec![1, 2] }).unwrap(),
        measurement.into_bytes(),
        extreme.into_bytes(),
        serde_json::to_vec(&AgentResponse::Heartbeat { operations: 1, bytes: 2, failures: 3 }).unwrap(),
    ]
    .into();
    let change = (any::<prop::sample::Index>(), prop::sample::select(b"0129-.eE,:[]{}\"\\a\xff".to_vec()));
    let changes = prop::collection::vec(change, 0..3);
    (prop::sample::select(honest), changes).prop_map(|(mut bytes, changes)| {
        for (position, byte) in changes {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        bytes
    })
}

fn case(who: u8, mode: u8, rest: &[u8]) -> Vec<u8> {
    [&[who, mode][..], rest].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn unauthenticated_peers_are_rejected(
        who in 0_u8..2,
        mode in any::<u8>(),
        bytes in unauthenticated_bytes(),
    ) {
        run_case(&case(who, mode, &bytes));
    }

    #[test]
    fn authenticated_peers_cannot_violate_limits(mode in 0_u8..8, bytes in prop_oneof![
        4 => message(),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]) {
        run_case(&case(3, mode, &bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn altered_byte_breaks_the_handshake(mode in any::<u8>(), position in any::<[u8; 2]>()) {
        run_case(&case(2, mode, &position));
    }
}

/// Without valid base messages, the cases above would test nothing similar to them.
#[test]
fn generated_messages_are_often_valid() {
    let step = json!({"mix": "put"});
    assert!(serde_json::from_value::<AgentRequest>(json!({"prepare": [step]})).is_err());
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut requests, mut responses) = (0, 0);
    for _ in 0..200 {
        let bytes = message().new_tree(&mut runner).unwrap().current();
        requests += u32::from(matches!(
            serde_json::from_slice(&bytes),
            Ok(AgentRequest::Prepare(_) | AgentRequest::Open(_))
        ));
        responses += u32::from(matches!(serde_json::from_slice(&bytes), Ok(AgentResponse::Measurement(_))));
    }
    assert!(requests > 10 && responses > 10, "{requests} and {responses}");
}
