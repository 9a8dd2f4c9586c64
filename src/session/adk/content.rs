//! Contents and their parts.

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::fields::{Fields, Reader};
use super::{CallIds, MAX_DEPTH};
use crate::session::content::{
    Blob, CodeExecutionResult, Content, Data, ExecutableCode, FileData, FunctionCall,
    FunctionResponse, Object, Part, Role,
};
use crate::session::json::MAX_ARGS_DEPTH;

/// A content; none if none of its parts is of a kind that is known here.
pub(super) fn content(
    reader: &mut Reader,
    calls: &mut CallIds<'_>,
    fields: &Fields<'_>,
    author: &str,
) -> Option<Content> {
    let said = reader.text(fields, "role");
    let parts = reader.list(fields, "parts");
    let (values, path) = parts?;
    let mut parts = Vec::with_capacity(values.len());
    for (at, value) in values.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let Value::Object(object) = value else {
            reader.fault(path, "must be an object");
            continue;
        };
        parts.extend(part(reader, calls, &Fields::new(object, path)));
    }
    let answers = parts.iter().any(|part| part.response().is_some());
    let role = match said.as_str() {
        "user" => Role::User,
        "model" => Role::Model,
        "" if author == "user" || answers => Role::User,
        "" => Role::Model,
        _ => {
            reader.fault(fields.path("role"), "must be `user` or `model`");
            return None;
        }
    };
    (!parts.is_empty()).then_some(Content { role, parts })
}

fn part(reader: &mut Reader, calls: &mut CallIds<'_>, fields: &Fields<'_>) -> Option<Part> {
    let thought = reader.flag(fields, "thought");
    let thought_signature = bytes(reader, fields, "thoughtSignature");
    let kinds = [
        "text",
        "functionCall",
        "functionResponse",
        "inlineData",
        "fileData",
        "executableCode",
        "codeExecutionResult",
    ];
    let said: Vec<&str> = kinds.into_iter().filter(|kind| fields.get(kind).is_some()).collect();
    if said.len() > 1 {
        reader.fault(fields.path(said[1]), format!("must not stand beside `{}`", said[0]));
        return None;
    }
    let data = match said.first() {
        Some(&"text") => Some(Data::Text(reader.text(fields, "text"))),
        Some(kind) => {
            let inner = reader.fields(fields, kind)?;
            Some(data(reader, calls, kind, &inner)?)
        }
        None => None,
    };
    let says = data.is_some() || !thought_signature.is_empty();
    says.then_some(Part { data, thought, thought_signature })
}

fn data(
    reader: &mut Reader,
    calls: &mut CallIds<'_>,
    kind: &str,
    fields: &Fields<'_>,
) -> Option<Data> {
    Some(match kind {
        "functionCall" => {
            let args = fields.get("args");
            let args = match args {
                Some((value, path)) => reader.object(value, &path, MAX_ARGS_DEPTH)?,
                None => Object::new(),
            };
            let name = required(reader, fields, "name")?;
            let id = calls.call(reader, fields, &name)?;
            Data::FunctionCall(FunctionCall { id, name, args })
        }
        "functionResponse" => {
            if let Some((_, path)) = fields.get("parts").filter(|(parts, _)| !is_empty(parts)) {
                reader.fault(path, "must be empty: responses have no parts here");
                return None;
            }
            let response = match fields.get("response") {
                Some((value, path)) => Some(reader.object(value, &path, MAX_DEPTH)?),
                None => None,
            };
            let name = required(reader, fields, "name")?;
            let id = calls.response(reader, fields, &name)?;
            let will_continue = reader.choice(fields, "willContinue");
            Data::FunctionResponse(FunctionResponse { id, name, response, will_continue })
        }
        "inlineData" => Data::InlineData(Blob {
            mime_type: required(reader, fields, "mimeType")?,
            data: bytes(reader, fields, "data"),
            display_name: reader.text(fields, "displayName"),
        }),
        "fileData" => Data::FileData(FileData {
            mime_type: reader.text(fields, "mimeType"),
            file_uri: required(reader, fields, "fileUri")?,
            display_name: reader.text(fields, "displayName"),
        }),
        "executableCode" => Data::ExecutableCode(ExecutableCode {
            language: reader.text(fields, "language"),
            code: reader.text(fields, "code"),
        }),
        _ => Data::CodeExecutionResult(CodeExecutionResult {
            outcome: reader.text(fields, "outcome"),
            output: reader.text(fields, "output"),
        }),
    })
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn required(reader: &mut Reader, fields: &Fields<'_>, name: &str) -> Option<String> {
    let faults = reader.faults.len();
    let text = reader.text(fields, name);
    if text.is_empty() && reader.faults.len() == faults {
        reader.fault(fields.path(name), "must not be empty");
    }
    (!text.is_empty()).then_some(text)
}

/// Bytes, which Python writes in the alphabet for URLs and proto3 JSON in the other one.
fn bytes(reader: &mut Reader, fields: &Fields<'_>, name: &str) -> Vec<u8> {
    let text = reader.text(fields, name);
    let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
    let any = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, any).decode(&text).unwrap_or_else(|_| {
        reader.fault(fields.path(name), "must be bytes in base64");
        Vec::new()
    })
}
