//! Requests with random fields of random content, made by what the descriptors tell: each is
//! carried out, or refused in the contract's words, having written nothing; no bytes stop the
//! server. What was said is kept as it was said.

use proptest::prelude::*;
use prost::Message;
use prost_types::FieldDescriptorProto;
use prost_types::field_descriptor_proto::{Label, Type};
use tokio::runtime::Runtime;

use super::*;
use crate::support::{Client, cases};
use crate::wire::{decodes, delimited, varint};
use countersign::proto::v1 as pb;
use countersign::proto::wkt::{self, Kind};

/// Requests to one server.
const REQUESTS: usize = 100;

/// Messages nest this deep at most; a `Struct` needs three for a level.
const MAX_NESTING: u32 = 12;

/// Decides what is made. Without more picks everything is as simple as it can be.
struct Picks<'a>(std::slice::Iter<'a, u32>);

impl Picks<'_> {
    fn pick(&mut self, of: usize) -> usize {
        self.0.next().map_or(0, |pick| *pick as usize % of)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.pick(of.len())].clone()
    }

    /// The bytes of some fields of a message.
    fn fields(&mut self, world: &World, message: &str, most: usize, nesting: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let fields = world.contract.fields_of(message);
        for _ in 0..self.pick(most + 1) {
            if !fields.is_empty() {
                let field = self.one(fields);
                bytes.extend(self.field(world, &field, nesting));
            }
        }
        bytes
    }

    fn field(&mut self, world: &World, field: &FieldDescriptorProto, nesting: u32) -> Vec<u8> {
        let number = u64::try_from(field.number()).unwrap();
        let (kind, content) = match field.r#type() {
            Type::String => (2, self.text(world)),
            Type::Bytes => (2, vec![7; self.one(&[0, 1, 300])]),
            Type::Message if nesting > MAX_NESTING => (2, Vec::new()),
            Type::Message => {
                let most = if field.label() == Label::Repeated { 2 } else { 4 };
                (2, self.fields(world, field.type_name(), most, nesting + 1))
            }
            Type::Double => (1, self.double().to_le_bytes().to_vec()),
            Type::Enum | Type::Bool => (0, varint(self.one(&[1, 2, 0, 3, 4, 5, 6, u64::MAX]))),
            _ => {
                let odd = [-1, i64::MIN, i64::MAX, i64::from(i32::MIN), i64::from(i32::MAX)];
                let near = [1, 0, 2, 3, 4, 8, 1000];
                let all: Vec<i64> = near.iter().chain(&odd).copied().collect();
                (0, varint(self.one(&all).cast_unsigned()))
            }
        };
        match (self.pick(200), kind) {
            // Another kind of field than the contract says.
            (199, _) => [varint(number << 3 | 5), vec![0; 4]].concat(),
            (_, 2) => delimited(number, &content),
            _ => [varint(number << 3 | kind), content].concat(),
        }
    }

    fn double(&mut self) -> f64 {
        let above = 9_007_199_254_740_994.0;
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let all = [1.0, 0.0, -0.0, 0.1, -15.5, above, 1e21, 1e300, f64::MIN, 5e-324];
        if self.pick(12) == 11 { self.one(&odd) } else { self.one(&all) }
    }

    fn text(&mut self, world: &World) -> Vec<u8> {
        let known = [APP, USER, "s1", "s2", "ask_for_approval", "temp:a", "user:b", "app:c", "a"];
        let odd = [
            "",
            "nobody",
            "user",
            "__adk_internal_x",
            "$serde_json::private::Number",
            "{\"status\": \"approved\"}",
            "{\"a\": 1, \"a\": 2}",
            "[1e401]",
            "eyJmIjoiIiwiYXQiOjF9",
            "a\0b",
            "\u{1b}[2J",
            "ä\u{202e}😀",
            " s1\n",
        ];
        match self.pick(8) {
            0..=2 => self.one(&known).into(),
            3 | 4 => self.one(&world.names).1.into(),
            5 => format!("r{}", self.pick(3)).into(),
            6 => match self.pick(8) {
                0 => vec![b'x'; self.one(&[65, 129, 5000])],
                1 => format!("sha256:{}", "0".repeat(64)).into(),
                2 => vec![b'a', 0xff],
                3 => "[".repeat(40).into(),
                _ => self.one(&odd).into(),
            },
            _ => self.one(&odd).into(),
        }
    }

    /// A part that is right.
    fn part(&mut self) -> pb::Part {
        use pb::part::Data;
        let text = || "words".to_owned();
        let data = match self.pick(5) {
            0 => Data::Text(format!("words {}", self.pick(100))),
            1 => Data::InlineData(pb::Blob {
                mime_type: "image/png".into(),
                data: vec![7; self.one(&[0, 1, 300])],
                display_name: self.one(&["", "a\0"]).into(),
            }),
            2 => Data::FileData(pb::FileData {
                mime_type: self.one(&["", "text/plain"]).into(),
                file_uri: "gs://a/b".into(),
                display_name: text(),
            }),
            3 => Data::ExecutableCode(pb::ExecutableCode { language: text(), code: text() }),
            _ => Data::CodeExecutionResult(pb::CodeExecutionResult {
                outcome: text(),
                output: self.one(&["", "1"]).into(),
            }),
        };
        let thought = self.pick(2) == 1;
        pb::Part { data: Some(data), thought, thought_signature: vec![7; self.one(&[0, 1, 300])] }
    }

    /// A request: mostly a valid one and more behind it.
    fn request(&mut self, world: &World) -> (String, Vec<u8>) {
        let methods: Vec<&str> = world.contract.methods().collect();
        let method = match self.pick(4) {
            0 => "RunAsync",
            1 => "SubmitFunctionResponse",
            _ => self.one(&methods),
        };
        let mut bytes = match self.pick(8) {
            7 => Vec::new(),
            _ => encode(method, &world.named(&valid(method))),
        };
        if method == "RunAsync" && self.pick(2) == 1 {
            let parts = (0..=self.pick(3)).map(|_| self.part()).collect();
            let new_message = Some(pb::Content { role: "user".into(), parts });
            bytes.extend(pb::RunAsyncRequest { new_message, ..Default::default() }.encode_to_vec());
        }
        bytes.extend(self.fields(world, world.contract.request(method), 4, 0));
        if self.pick(30) == 29 && !bytes.is_empty() {
            let at = self.pick(bytes.len());
            match self.pick(3) {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << self.pick(8),
                _ => drop(bytes.remove(at)),
            }
        }
        (method.to_owned(), bytes)
    }
}

/// What is wrong with this outcome, if anything is.
async fn judge(world: &World, client: &mut Client, method: &str, bytes: &[u8]) -> Option<String> {
    let before = world.server.store.commits();
    match world.contract.ask(&world.channel, method, bytes.to_vec()).await {
        Ok(replies) => {
            at_rest(&world.server).await;
            match method {
                "RunAsync" => said(client, bytes, &replies).await,
                _ => None,
            }
        }
        Err(status) if !decodes(method, bytes) => {
            (status.code() != Code::Internal).then(|| format!("no message, but {status:?}"))
        }
        Err(status) => {
            let (code, why) = reason(&status);
            let named = fields(&status);
            let top = |path: &String| path.split(['.', '[']).next().unwrap().to_owned();
            let fields = world.contract.fields_of(world.contract.request(method));
            let known = |path: &String| fields.iter().any(|field| field.name() == top(path));
            let wrong = code != code_of(&why)
                || why == "FIELD_INVALID" && named.is_empty()
                || !named.iter().all(known)
                || world.server.store.commits() != before;
            wrong.then(|| format!("refused wrongly: {status:?} {named:?}"))
        }
    }
}

/// The message of an invocation is kept as it was said.
async fn said(
    client: &mut Client,
    bytes: &[u8],
    replies: &[prost::bytes::Bytes],
) -> Option<String> {
    let request = pb::RunAsyncRequest::decode(bytes).unwrap();
    let events = replies.iter().map(|reply| pb::Event::decode(reply.as_ref()).unwrap());
    let begins = events.filter_map(|event| match event.mark {
        Some(pb::event::Mark::Begin(begin)) => Some(begin),
        _ => None,
    });
    let begin = begins.last().expect("a stream begins");
    let mut said = request.new_message.filter(|_| !begin.replayed)?;
    let request = pb::ListEventsRequest {
        app_name: begin.app_name,
        user_id: begin.user_id,
        session_id: begin.session_id,
        page_size: 1000,
        ..Default::default()
    };
    let log = client.sessions.list_events(request).await.unwrap().into_inner().events;
    said.role = "user".into();
    said.parts.retain(|part| part.data != Some(pb::part::Data::Text(String::new())));
    said.parts.iter_mut().for_each(plain_part);
    let found = |content: &pb::Content| {
        // An answer that is a repeat is passed over; of several in one message some may be.
        said.parts.iter().all(|part| content.parts.contains(part) || is_answer(part))
    };
    let kept = log.iter().filter_map(|event| event.content.as_ref()).any(found);
    (!kept).then(|| format!("said {said:?}, kept {log:?}"))
}

fn is_answer(part: &pb::Part) -> bool {
    matches!(part.data, Some(pb::part::Data::FunctionResponse(_)))
}

/// Zeros have no sign here.
fn plain_part(part: &mut pb::Part) {
    if let Some(pb::part::Data::FunctionResponse(answer)) = &mut part.data {
        answer.response.iter_mut().flat_map(|object| object.fields.values_mut()).for_each(plain);
    }
    fn plain(value: &mut wkt::Value) {
        match &mut value.kind {
            Some(Kind::NumberValue(number)) if *number == 0.0 => *number = 0.0,
            Some(Kind::StructValue(object)) => object.fields.values_mut().for_each(plain),
            Some(Kind::ListValue(list)) => list.values.iter_mut().for_each(plain),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn any_request_is_done_or_refused_in_the_words_of_the_contract(
        requests in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..60), 1..REQUESTS),
    ) {
        let outcome = Runtime::new().unwrap().block_on(async {
            let world = World::new().await;
            let mut client = world.server.client().await;
            for picks in &requests {
                let (method, bytes) = Picks(picks.iter()).request(&world);
                if let Some(wrong) = judge(&world, &mut client, &method, &bytes).await {
                    return Err(format!("{method} {bytes:?}: {wrong}"));
                }
            }
            // It may have been deleted.
            let _ = world.ask(&case("CreateSession", json!({"session_id": "s1"}))).await;
            world.works().await;
            Ok(())
        });
        prop_assert_eq!(outcome, Ok(()));
    }
}
