//! The public contract: messages, client and server of `countersign.v1`, made from `proto/`.
//!
//! What the messages mean is said there; their comments stand on the types here. Messages have
//! proto3 JSON (`serde`): [`to_json`] and [`from_json`] are the way in and out.

use serde::Serialize;
use serde::de::DeserializeOwned;

pub mod wkt;

/// Package `countersign.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("countersign.v1");
    include!(concat!(env!("OUT_DIR"), "/countersign.v1.serde.rs"));
}

/// All files of the contract with everything they import and with their comments, as a serialized
/// `google.protobuf.FileDescriptorSet`; `google.rpc` is in it, so that clients which ask by
/// reflection can print the details of errors.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The proto3 JSON of a message, in one line.
pub fn to_json(message: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(message)
}

/// Reads a message from proto3 JSON. Unknown fields, repeated keys and bare integers beyond 2^53
/// are refused (a 64-bit field takes them as text, as proto3 JSON writes them).
///
/// `serde_json::from_str` does not do: it keeps numbers as text in this crate (the feature
/// `arbitrary_precision`), which the generated code cannot read. This reads the text as a
/// [`wkt::Value`] first, whose numbers are plain.
pub fn from_json<M: DeserializeOwned>(text: &str) -> Result<M, serde_json::Error> {
    let tree: wkt::Value = serde_json::from_str(text)?;
    M::deserialize(serde_json::to_value(tree)?)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn numbers_of_every_width_are_read_from_json() {
        let text = r#"{"maxLlmCalls": 5, "onPause": "FOLLOW", "customMetadata": {"a": [1, 2.50]}}"#;
        let config: v1::RunConfig = from_json(text).unwrap();
        assert_eq!(config.max_llm_calls, Some(5));
        assert_eq!(config.on_pause(), v1::run_config::OnPause::Follow);
        let back = to_json(&config).unwrap();
        assert_eq!(back, r#"{"maxLlmCalls":5,"onPause":"FOLLOW","customMetadata":{"a":[1,2.5]}}"#);

        let text = r#"{"id": "a", "sequence": "9007199254740993", "timestamp": 1.50}"#;
        let event: v1::Event = from_json(text).unwrap();
        assert_eq!((event.sequence, event.timestamp), (9_007_199_254_740_993, 1.5));
        let event: v1::Event = from_json(r#"{"sequence": 7, "timestamp": 1e3}"#).unwrap();
        assert_eq!((event.sequence, event.timestamp), (7, 1000.0));
    }

    #[test]
    fn unknown_fields_and_repeated_keys_are_refused() {
        assert!(from_json::<v1::Content>(r#"{"role": "user", "rolle": 1}"#).is_err());
        assert!(from_json::<v1::Content>(r#"{"role": "user", "role": "user"}"#).is_err());
        assert!(from_json::<v1::Part>(r#"{"text": "a", "fileData": {}}"#).is_err());
    }

    #[test]
    fn the_descriptors_carry_comments_and_error_details() {
        let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let names: Vec<_> = set.file.iter().map(|file| file.name()).collect();
        for name in ["google/rpc/error_details.proto", "google/protobuf/struct.proto"] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        let agent = set.file.iter().find(|file| file.name() == "countersign/v1/agent.proto");
        let info = agent.unwrap().source_code_info.as_ref().unwrap();
        let comments: Vec<_> = info.location.iter().map(|l| l.leading_comments()).collect();
        assert!(comments.iter().any(|text| text.contains("Runs agents whose tools may wait")));
    }

    /// A fifth message above; none of ours is that deep.
    #[derive(Clone, PartialEq, Message)]
    struct Outer {
        #[prost(message, optional, tag = "1")]
        event: Option<v1::Event>,
    }

    #[test]
    fn json_of_32_levels_is_decoded_below_five_messages() {
        use v1::{Call, EndMark, Event, FunctionCall, event::Mark};
        use wkt::{Struct, Value};

        let nested = |levels: usize| {
            let inner = Struct::from_iter([("x".to_string(), Value::from(true))]);
            (1..levels)
                .fold(inner, |inner, _| Struct::from_iter([("x".to_string(), Value::from(inner))]))
        };
        let message = |levels| {
            let call = FunctionCall { args: Some(nested(levels)), ..Default::default() };
            let call = Call { function_call: Some(call), ..Default::default() };
            let end = EndMark { held_calls: vec![call], ..Default::default() };
            Outer { event: Some(Event { mark: Some(Mark::End(end)), ..Default::default() }) }
        };
        assert!(Outer::decode(&*message(32).encode_to_vec()).is_ok());
        assert!(Outer::decode(&*message(33).encode_to_vec()).is_err());
    }
}
