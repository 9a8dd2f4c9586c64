//! Pieces of text while a model speaks.

use tokio::sync::watch;

use super::*;
use crate::support::agents;

/// A model that speaks as far as it is let.
struct Halting(watch::Receiver<usize>);

#[async_trait::async_trait]
impl countersign::model::Model for Halting {
    async fn reply(
        &self,
        _: countersign::model::Request,
        pieces: &mut dyn countersign::model::Pieces,
    ) -> Result<countersign::model::Reply, countersign::model::Error> {
        let mut let_go = self.0.clone();
        let words = ["one ", "two ", "three"];
        for (n, word) in words.iter().enumerate() {
            let _ = let_go.wait_for(|words| *words > n).await;
            pieces.text(word);
        }
        let _ = let_go.wait_for(|count| *count > words.len()).await;
        let text = countersign::session::content::Part::text(words.concat());
        let parts = vec![countersign::model::Said::Part(text)];
        Ok(countersign::model::Reply { parts, finish_reason: "STOP".into(), usage: None })
    }
}

const SPEAKER: &str = "{name: speaker, model: halting, instruction: Speak.}";

fn text(event: &pb::Event) -> String {
    let parts = event.content.iter().flat_map(|content| &content.parts);
    let texts = parts.filter_map(|part| match &part.data {
        Some(pb::part::Data::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[tokio::test]
async fn pieces_come_before_their_event_and_are_not_kept() {
    let (speak, heard) = watch::channel(0);
    let server = Server::start(agents(SPEAKER).model("halting", Halting(heard))).await;
    let mut client = server.client().await;
    create(&mut client, "speaker", "s1").await;
    let mut request = say("speaker", "s1", "speak");
    request.run_config = Some(pb::RunConfig {
        streaming_mode: pb::run_config::StreamingMode::Sse.into(),
        ..Default::default()
    });
    let mut run = client.agents.run_async(request).await.unwrap().into_inner();
    assert!(matches!(next(&mut run).await.mark, Some(Mark::Begin(_))));
    // A watcher sees them as well, whoever asked for them.
    let mut watch = watch_session(&client, "speaker", "s1", 1).await;
    assert!(matches!(next(&mut watch).await.mark, Some(Mark::CaughtUp(_))));
    let mut ids = Vec::new();
    for (n, word) in ["one ", "two ", "three"].into_iter().enumerate() {
        speak.send_replace(n + 1);
        for stream in [&mut run, &mut watch] {
            let piece = next(stream).await;
            assert!(piece.partial && piece.sequence == 0, "{piece:?}");
            assert_eq!(text(&piece), word);
            ids.push(piece.id);
        }
    }
    assert_eq!(client.events("speaker", "s1").await.len(), 1, "pieces are not stored");
    // One who comes late sees at once what was said so far.
    let mut late = watch_session(&client, "speaker", "s1", 0).await;
    assert_eq!(next(&mut late).await.sequence, 1);
    assert!(matches!(next(&mut late).await.mark, Some(Mark::CaughtUp(_))));
    let piece = next(&mut late).await;
    assert!(piece.partial && text(&piece) == "one two three", "{piece:?}");
    ids.push(piece.id);
    speak.send_replace(4);
    for stream in [&mut run, &mut watch, &mut late] {
        let whole = next(stream).await;
        assert!(!whole.partial);
        assert_eq!((whole.sequence, text(&whole).as_str()), (2, "one two three"));
        ids.push(whole.id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "pieces have the id of what they lead to: {ids:?}");
    let (rest, end) = to_end(&mut run).await;
    assert_eq!((rest.len(), end.state()), (0, State::Completed));
    assert_eq!(client.events("speaker", "s1").await.len(), 2);
}
