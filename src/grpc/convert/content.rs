//! Contents and their parts.

use super::Faults;
use super::json::{object_from_pb, object_to_pb};
use crate::proto::v1 as pb;
use crate::session::approval::CREDENTIAL;
use crate::session::content::{
    Blob, CodeExecutionResult, Content, Data, ExecutableCode, FileData, FunctionCall,
    FunctionResponse, Part, Role,
};
use crate::session::id::CallId;

/// What a client says: always as the user (ADK corrects other roles silently).
pub(crate) fn read_content(
    field: &str,
    content: pb::Content,
    faults: &mut Faults,
) -> Option<Content> {
    let pb::Content { role: _, parts } = content;
    if parts.is_empty() {
        faults.add(format!("{field}.parts"), "must hold at least one part");
        return None;
    }
    let read = |(index, part)| read_part(&format!("{field}.parts[{index}]"), part, faults);
    // All of them first: every fault is told.
    let parts: Vec<_> = parts.into_iter().enumerate().map(read).collect();
    let parts: Vec<Part> = parts.into_iter().collect::<Option<_>>()?;
    let empty = |part: &Part| matches!(&part.data, Some(Data::Text(text)) if text.is_empty());
    if parts.iter().all(empty) {
        faults.add(format!("{field}.parts"), "must say something: every text is empty");
        return None;
    }
    Some(Content { role: Role::User, parts })
}

fn read_part(field: &str, part: pb::Part, faults: &mut Faults) -> Option<Part> {
    let pb::Part { thought, thought_signature, data } = part;
    let Some(data) = data else {
        faults.add(field, "must hold exactly one kind of data");
        return None;
    };
    Some(Part { data: Some(read_data(field, data, faults)?), thought, thought_signature })
}

/// How a client goes on that sends the whole conversation again, as clients without sessions do.
const GO_ON: &str = "the session has the conversation, so send its session_id with only what is \
    new: the answers to calls that wait, or a text";

fn read_data(field: &str, data: pb::part::Data, faults: &mut Faults) -> Option<Data> {
    use pb::part::Data as Pb;
    Some(match data {
        Pb::Text(text) => Data::Text(text),
        Pb::FunctionCall(_) => {
            let rule = format!("must not be sent: only models make calls; {GO_ON}");
            faults.add(format!("{field}.function_call"), rule);
            return None;
        }
        Pb::FunctionResponse(response) => {
            let field = format!("{field}.function_response");
            Data::FunctionResponse(read_function_response(&field, response, faults)?)
        }
        Pb::InlineData(blob) => {
            let pb::Blob { mime_type, data, display_name } = blob;
            required(&format!("{field}.inline_data.mime_type"), &mime_type, faults)?;
            Data::InlineData(Blob { mime_type, data, display_name })
        }
        Pb::FileData(file) => {
            let pb::FileData { mime_type, file_uri, display_name } = file;
            required(&format!("{field}.file_data.file_uri"), &file_uri, faults)?;
            Data::FileData(FileData { mime_type, file_uri, display_name })
        }
        Pb::ExecutableCode(code) => {
            let pb::ExecutableCode { language, code } = code;
            Data::ExecutableCode(ExecutableCode { language, code })
        }
        Pb::CodeExecutionResult(result) => {
            let pb::CodeExecutionResult { outcome, output } = result;
            Data::CodeExecutionResult(CodeExecutionResult { outcome, output })
        }
    })
}

/// An answer to a call; `field` is its path in the request.
pub(crate) fn read_function_response(
    field: &str,
    response: pb::FunctionResponse,
    faults: &mut Faults,
) -> Option<FunctionResponse> {
    let pb::FunctionResponse { id, name, response, will_continue } = response;
    let id = faults.id(&format!("{field}.id"), id, CallId::parse);
    let named = required(&format!("{field}.name"), &name, faults);
    if name == CREDENTIAL {
        let rule = "is reserved: nothing here asks for credentials, so there is no such call";
        faults.add(format!("{field}.name"), rule);
        return None;
    }
    let response = match response {
        None => Some(None),
        Some(object) => object_from_pb(&format!("{field}.response"), object, faults).map(Some),
    };
    named?;
    Some(FunctionResponse { id: id?, name, response: response?, will_continue })
}

fn required(field: &str, text: &str, faults: &mut Faults) -> Option<()> {
    if text.is_empty() {
        faults.add(field, "must not be empty");
        return None;
    }
    Some(())
}

/// A content for the wire.
pub(crate) fn content_to_pb(content: &Content) -> pb::Content {
    let Content { role, parts } = content;
    let role = match role {
        Role::User => "user",
        Role::Model => "model",
    };
    pb::Content { role: role.to_owned(), parts: parts.iter().map(part_to_pb).collect() }
}

/// A part for the wire.
pub(crate) fn part_to_pb(part: &Part) -> pb::Part {
    let Part { data, thought, thought_signature } = part;
    pb::Part {
        data: data.as_ref().map(data_to_pb),
        thought: *thought,
        thought_signature: thought_signature.clone(),
    }
}

fn data_to_pb(data: &Data) -> pb::part::Data {
    use pb::part::Data as Pb;
    match data {
        Data::Text(text) => Pb::Text(text.clone()),
        Data::FunctionCall(call) => Pb::FunctionCall(function_call_to_pb(call)),
        Data::FunctionResponse(response) => Pb::FunctionResponse(function_response_to_pb(response)),
        Data::InlineData(Blob { mime_type, data, display_name }) => Pb::InlineData(pb::Blob {
            mime_type: mime_type.clone(),
            data: data.clone(),
            display_name: display_name.clone(),
        }),
        Data::FileData(FileData { mime_type, file_uri, display_name }) => {
            Pb::FileData(pb::FileData {
                mime_type: mime_type.clone(),
                file_uri: file_uri.clone(),
                display_name: display_name.clone(),
            })
        }
        Data::ExecutableCode(ExecutableCode { language, code }) => {
            Pb::ExecutableCode(pb::ExecutableCode {
                language: language.clone(),
                code: code.clone(),
            })
        }
        Data::CodeExecutionResult(CodeExecutionResult { outcome, output }) => {
            Pb::CodeExecutionResult(pb::CodeExecutionResult {
                outcome: outcome.clone(),
                output: output.clone(),
            })
        }
    }
}

/// A call for the wire.
pub(crate) fn function_call_to_pb(call: &FunctionCall) -> pb::FunctionCall {
    let FunctionCall { id, name, args } = call;
    pb::FunctionCall { id: id.to_string(), name: name.clone(), args: Some(object_to_pb(args)) }
}

/// An answer for the wire.
pub(crate) fn function_response_to_pb(response: &FunctionResponse) -> pb::FunctionResponse {
    let FunctionResponse { id, name, response, will_continue } = response;
    pb::FunctionResponse {
        id: id.to_string(),
        name: name.clone(),
        response: response.as_ref().map(object_to_pb),
        will_continue: *will_continue,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Refusal;
    use super::*;
    use crate::proto::from_json;

    fn read(json: &str) -> Result<Content, Refusal> {
        let mut faults = Faults::new();
        let content = read_content("new_message", from_json(json).unwrap(), &mut faults);
        faults.finish(content)
    }

    fn faults(json: &str) -> Vec<String> {
        read(json).unwrap_err().violations.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn every_kind_of_part_comes_and_goes() {
        let json = r#"{"role": "model", "parts": [
            {"text": "hello", "thought": true, "thoughtSignature": "AQI="},
            {"functionResponse": {"id": "adk-1", "name": "pay", "response": {"sum": 12.5, "n": 3},
                                  "willContinue": false}},
            {"functionResponse": {"id": "adk-2", "name": "pay"}},
            {"inlineData": {"mimeType": "image/png", "data": "AQI=", "displayName": "x"}},
            {"fileData": {"mimeType": "text/plain", "fileUri": "gs://a/b", "displayName": "y"}},
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}]}"#;
        let content = read(json).unwrap();
        assert_eq!(content.role, Role::User);
        let answers: Vec<_> = content.responses().collect();
        assert_eq!(serde_json::to_string(&answers[0].response).unwrap(), r#"{"n":3,"sum":12.5}"#);
        assert_eq!((answers[0].will_continue, answers[1].will_continue), (Some(false), None));
        assert_eq!(answers[1].response, None);

        let mut sent: pb::Content = from_json(json).unwrap();
        sent.role = "user".to_owned();
        assert_eq!(content_to_pb(&content), sent);
    }

    #[test]
    fn a_models_parts_are_sent_whole() {
        let args = serde_json::from_str(r#"{"a": 1}"#).unwrap();
        let call = FunctionCall { id: CallId::parse("adk-1").unwrap(), name: "pay".into(), args };
        let signature = Part { data: None, thought: true, thought_signature: vec![1] };
        let parts = vec![Part::new(Data::FunctionCall(call)), signature];
        let sent = content_to_pb(&Content { role: Role::Model, parts });
        assert_eq!(
            crate::proto::to_json(&sent).unwrap(),
            r#"{"role":"model","parts":[{"functionCall":{"id":"adk-1","name":"pay","args":{"a":1}}},{"thought":true,"thoughtSignature":"AQ=="}]}"#
        );
    }

    #[test]
    fn wrong_parts_are_refused_all_at_once() {
        assert_eq!(faults("{}"), ["new_message.parts"]);
        assert_eq!(faults(r#"{"parts": [{"text": ""}]}"#), ["new_message.parts"]);
        let json = r#"{"parts": [{}, {"functionCall": {"id": "a", "name": "b"}}, {"text": ""},
            {"functionResponse": {"id": "a\u0000"}}, {"inlineData": {}}, {"fileData": {}}]}"#;
        assert_eq!(
            faults(json),
            [
                "new_message.parts[0]",
                "new_message.parts[1].function_call",
                "new_message.parts[3].function_response.id",
                "new_message.parts[3].function_response.name",
                "new_message.parts[4].inline_data.mime_type",
                "new_message.parts[5].file_data.file_uri",
            ]
        );
    }

    #[test]
    fn a_wrong_number_is_named_with_its_path() {
        let response = crate::proto::wkt::Struct::from_iter([("n".to_owned(), f64::NAN.into())]);
        let answer = pb::FunctionResponse {
            id: "adk-1".into(),
            name: "pay".into(),
            response: Some(response),
            will_continue: None,
        };
        let mut faults = Faults::new();
        assert!(read_function_response("function_response", answer, &mut faults).is_none());
        let violations = faults.finish(None::<()>).unwrap_err().violations;
        assert_eq!(violations[0].field, "function_response.response.n");
    }
}
