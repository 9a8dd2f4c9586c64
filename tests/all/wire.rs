//! Requests as bytes: the methods and messages that the descriptors tell, and a way to send what no
//! client library would.

use std::collections::{BTreeMap, BTreeSet};

use countersign::proto::{FILE_DESCRIPTOR_SET, from_json, v1 as pb};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::Value;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// The services of the contract, as their descriptors tell them.
pub struct Contract {
    messages: BTreeMap<String, DescriptorProto>,
    /// Path and request by method, of the services that are tested here.
    methods: BTreeMap<String, (String, String)>,
}

impl Contract {
    pub fn read() -> Self {
        let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let (mut messages, mut methods) = (BTreeMap::new(), BTreeMap::new());
        for file in files.file {
            let package = file.package().to_owned();
            collect(&format!(".{package}"), &file.message_type, &mut messages);
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{package}.{}/{}", service.name(), method.name());
                    let input = method.input_type().to_owned();
                    methods.insert(method.name().to_owned(), (path, input));
                }
            }
        }
        Self { messages, methods }
    }

    /// The message that a method asks for.
    pub fn request(&self, method: &str) -> &str {
        &self.methods[method].1
    }

    /// The fields of a message.
    pub fn fields_of(&self, message: &str) -> &[FieldDescriptorProto] {
        &self.messages[message].field
    }

    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// All fields of a method's request, and of the messages of ours inside it, as paths.
    pub fn fields(&self, method: &str) -> BTreeSet<String> {
        let mut fields = BTreeSet::new();
        self.collect(&self.methods[method].1, "", &mut fields);
        fields
    }

    fn collect(&self, message: &str, prefix: &str, into: &mut BTreeSet<String>) {
        for field in &self.messages[message].field {
            let path = format!("{prefix}{}", field.name());
            let of_ours = field.type_name().starts_with(".countersign.");
            if field.r#type() == Type::Message && of_ours {
                self.collect(field.type_name(), &format!("{path}."), into);
            }
            into.insert(path);
        }
    }

    /// The bytes of a field with this content, to be appended to a request: repeated, fields of
    /// messages are merged. Lists have no number in the path.
    pub fn field(&self, method: &str, path: &str, content: &Content<'_>) -> Vec<u8> {
        self.nested(&self.methods[method].1, path, content)
    }

    fn nested(&self, message: &str, path: &str, content: &Content<'_>) -> Vec<u8> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        let fields = &self.messages[message].field;
        let field = fields.iter().find(|field| field.name() == name).unwrap();
        let number = u64::try_from(field.number()).unwrap();
        let inner = match (rest, content) {
            (Some(rest), _) => self.nested(field.type_name(), rest, content),
            (None, Content::Varint(value)) => {
                let mut bytes = varint(number << 3);
                bytes.extend(varint(*value));
                return bytes;
            }
            (None, Content::Bytes(bytes)) => bytes.to_vec(),
        };
        delimited(number, &inner)
    }

    /// Sends a request and reads its whole reply, or its stream until a `pause` or its end. A reply
    /// of one message is a stream of one.
    pub async fn ask(
        &self,
        channel: &Channel,
        method: &str,
        request: Vec<u8>,
    ) -> Result<Vec<Bytes>, Status> {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = self.methods[method].0.parse().unwrap();
        let reply = grpc.server_streaming(Request::new(request), path, Raw).await?;
        Self::read_all(method, reply.into_inner()).await
    }

    /// The same, with a request that is sent only when it is there.
    pub async fn ask_late(
        &self,
        channel: &Channel,
        method: &str,
        request: impl Future<Output = Vec<u8>> + Send + 'static,
    ) -> Result<Vec<Bytes>, Status> {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = self.methods[method].0.parse().unwrap();
        let request = futures_util::stream::once(request);
        let reply = grpc.streaming(Request::new(request), path, Raw).await?;
        Self::read_all(method, reply.into_inner()).await
    }

    async fn read_all(method: &str, mut stream: Streaming<Bytes>) -> Result<Vec<Bytes>, Status> {
        let mut messages = Vec::new();
        // Watchers never end by themselves: what they say first is enough. A run that waits for
        // somebody may wait for ever.
        let endless = method.starts_with("Watch");
        while let Some(message) = stream.message().await? {
            let waits = method == "RunAsync" && pauses(&message);
            messages.push(message);
            if endless || waits {
                break;
            }
        }
        Ok(messages)
    }
}

/// Messages by full name, and those inside them.
fn collect(outer: &str, from: &[DescriptorProto], into: &mut BTreeMap<String, DescriptorProto>) {
    for message in from {
        let name = format!("{outer}.{}", message.name());
        collect(&name, &message.nested_type, into);
        into.insert(name, message.clone());
    }
}

/// What stands in a field.
pub enum Content<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// A field that has a length.
pub fn delimited(number: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = varint(number << 3 | 2);
    bytes.extend(varint(content.len() as u64));
    bytes.extend_from_slice(content);
    bytes
}

fn pauses(event: &[u8]) -> bool {
    matches!(pb::Event::decode(event).unwrap().mark, Some(pb::event::Mark::Pause(_)))
}

macro_rules! by_name {
    ($($name:ident: $message:ident,)*) => {
        /// A request from its JSON.
        pub fn encode(method: &str, request: &Value) -> Vec<u8> {
            match method {
                $(stringify!($name) => {
                    let read = from_json::<pb::$message>(&request.to_string());
                    read.unwrap_or_else(|e| panic!("{method} {request}: {e}")).encode_to_vec()
                })*
                _ => panic!("no such method: {method}"),
            }
        }

        /// Whether these bytes are a request of the method.
        pub fn decodes(method: &str, bytes: &[u8]) -> bool {
            match method {
                $(stringify!($name) => pb::$message::decode(bytes).is_ok(),)*
                _ => panic!("no such method: {method}"),
            }
        }
    };
}

by_name! {
    RunAsync: RunAsyncRequest,
    SubmitFunctionResponse: SubmitFunctionResponseRequest,
    GetInvocation: GetInvocationRequest,
    ListInvocations: ListInvocationsRequest,
    WatchInvocations: WatchInvocationsRequest,
    CancelInvocation: CancelInvocationRequest,
    ListAgents: ListAgentsRequest,
    GetAgent: GetAgentRequest,
    CreateSession: CreateSessionRequest,
    GetSession: GetSessionRequest,
    ListSessions: ListSessionsRequest,
    DeleteSession: DeleteSessionRequest,
    UpdateSessionState: UpdateSessionStateRequest,
    ImportSession: ImportSessionRequest,
    ListEvents: ListEventsRequest,
    WatchSession: WatchSessionRequest,
    ListApprovals: ListApprovalsRequest,
    GetApproval: GetApprovalRequest,
    WatchApprovals: WatchApprovalsRequest,
    DecideApproval: DecideApprovalRequest,
    AssignApproval: AssignApprovalRequest,
    ExtendApproval: ExtendApprovalRequest,
    SummarizeApprovals: SummarizeApprovalsRequest,
    ListStandingApprovals: ListStandingApprovalsRequest,
    RevokeStandingApproval: RevokeStandingApprovalRequest,
}
