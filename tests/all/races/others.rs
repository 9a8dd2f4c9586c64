//! An answer against what else may end a call, and two messages at once.

use super::*;

/// How often each pair is let loose.
const ROUNDS: usize = 24;

fn cancel(call: &pb::Call) -> pb::CancelInvocationRequest {
    pb::CancelInvocationRequest { invocation_id: call.invocation_id.clone(), ..Default::default() }
}

fn delete(call: &pb::Call) -> pb::DeleteSessionRequest {
    pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: call.session_id.clone(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_or_the_cancelling_comes_first() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(2).await;
        for round in 0..ROUNDS {
            let before = arena.paid();
            let (call, _) = arena.held(["ask", "wait"][round % 2]).await;
            let (mut one, mut two) = (clients[0].clone(), clients[1].clone());
            let (answer, cancel) = (submit(&call, approved(0)), cancel(&call));
            let answers = tokio::spawn(async move { one.submit(answer).await });
            let cancels =
                tokio::spawn(async move { two.agents.cancel_invocation(cancel).await.map(drop) });
            let (answer, cancel) = in_time(async { tokio::join!(answers, cancels) }).await;
            let end = arena.end(&call).await.end.state();
            let (told, paid) = (arena.answers(&call).await, arena.paid() - before);
            assert_eq!(told.len(), 1, "{told:?}");
            match (answer.unwrap(), cancel.unwrap()) {
                (Ok(done), cancelled) => {
                    assert_eq!(done.outcome(), Outcome::Applied);
                    assert_eq!(told[0], approved(0));
                    match cancelled {
                        Ok(()) => assert_eq!((end, paid <= 1), (State::Cancelled, true)),
                        Err(late) => {
                            assert_eq!(why(&late), "INVOCATION_ENDED");
                            assert_eq!((end, paid), (State::Completed, 1));
                        }
                    }
                }
                (Err(refused), Ok(())) => {
                    assert_eq!(why(&refused), "CALL_CANCELLED");
                    assert_eq!((end, paid), (State::Cancelled, 0));
                    assert_ne!(told[0], approved(0));
                }
                (Err(refused), Err(late)) => panic!("nobody came first: {refused:?} {late:?}"),
            }
        }
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_or_the_deadline_comes_first() {
    for mut arena in Arena::both().await {
        for round in 0..ROUNDS {
            let before = arena.paid();
            let (call, _) = arena.held(["ask", "wait"][round % 2]).await;
            at_rest(&arena.server).await;
            let (mut client, clock) = (arena.client.clone(), arena.clock.clone());
            let runner = arena.server.runner.clone();
            let answer = submit(&call, approved(0));
            let answers = tokio::spawn(async move { client.submit(answer).await });
            let expires = tokio::spawn(async move {
                clock.advance(Duration::from_secs(61));
                runner.tick_deadlines().await
            });
            let (answer, expired) = in_time(async { tokio::join!(answers, expires) }).await;
            expired.unwrap().unwrap();
            // Whoever was refused for the deadline may have been before the sweep.
            while arena.server.runner.tick_deadlines().await.unwrap() {}
            assert_eq!(arena.end(&call).await.end.state(), State::Completed);
            let (told, paid) = (arena.answers(&call).await, arena.paid() - before);
            match answer.unwrap() {
                Ok(_) => assert_eq!((told, paid), (vec![approved(0)], 1)),
                Err(refused) => {
                    assert_eq!(why(&refused), "CALL_EXPIRED");
                    assert_eq!((told.len(), &told[0]["status"], paid), (1, &json!("expired"), 0));
                }
            }
        }
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_or_the_deleting_comes_first() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(2).await;
        for round in 0..ROUNDS {
            let before = arena.paid();
            let (call, _) = arena.held(["ask", "wait"][round % 2]).await;
            let (mut one, mut two) = (clients[0].clone(), clients[1].clone());
            let (answer, delete_it) = (submit(&call, approved(0)), delete(&call));
            let answers = tokio::spawn(async move { one.submit(answer).await });
            let deletes =
                tokio::spawn(async move { two.sessions.delete_session(delete_it).await.map(drop) });
            let (answer, deleted) = in_time(async { tokio::join!(answers, deletes) }).await;
            match (answer.unwrap(), deleted.unwrap()) {
                (answer, Err(running)) => {
                    assert_eq!(why(&running), "INVOCATION_RUNNING");
                    answer.unwrap();
                    assert_eq!(arena.end(&call).await.end.state(), State::Completed);
                    assert_eq!((arena.answers(&call).await.len(), arena.paid()), (1, before + 1));
                    at_rest(&arena.server).await;
                    arena.client.sessions.delete_session(delete(&call)).await.unwrap();
                }
                // It was answered, went on to its end, and was deleted then.
                (Ok(_), Ok(())) => assert_eq!(arena.paid(), before + 1),
                (Err(refused), Ok(())) => {
                    let why = why(&refused);
                    let gone = ["CALL_CANCELLED", "CALL_NOT_FOUND"];
                    assert!(gone.contains(&why.as_str()), "{why}");
                    assert_eq!(arena.paid(), before);
                }
            }
            let request = pb::GetInvocationRequest {
                invocation_id: call.invocation_id.clone(),
                ..Default::default()
            };
            let gone = arena.client.agents.get_invocation(request).await.unwrap_err();
            assert_eq!(why(&gone), "INVOCATION_NOT_FOUND");
            let gone = arena.client.submit(submit(&call, approved(0))).await.unwrap_err();
            assert_eq!(why(&gone), "CALL_NOT_FOUND");
        }
        let everything = pb::ListInvocationsRequest::default();
        let left = arena.client.agents.list_invocations(everything).await.unwrap().into_inner();
        assert_eq!(left.invocations, []);
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_cancelling_or_the_deleting_comes_first() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(2).await;
        for round in 0..ROUNDS {
            let (call, _) = arena.held(["ask", "wait"][round % 2]).await;
            let (mut one, mut two) = (clients[0].clone(), clients[1].clone());
            let (cancel, delete) = (cancel(&call), delete(&call));
            let cancels =
                tokio::spawn(async move { one.agents.cancel_invocation(cancel).await.map(drop) });
            let deletes =
                tokio::spawn(async move { two.sessions.delete_session(delete).await.map(drop) });
            let (cancelled, deleted) = in_time(async { tokio::join!(cancels, deletes) }).await;
            deleted.unwrap().unwrap();
            if let Err(refused) = cancelled.unwrap() {
                assert_eq!(why(&refused), "INVOCATION_NOT_FOUND");
            }
        }
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_messages_at_once_one_begins() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(8).await;
        let (call, _) = arena.held("ask").await;
        let session = call.session_id.clone();
        for _ in 0..ROUNDS {
            arena.gate.send_replace(false);
            let begins = clients.iter().map(|client| {
                let (mut client, request) = (client.clone(), say(APP, &session, "think"));
                async move { client.agents.run_async(request).await }
            });
            let (mut begun, mut refused) = (Vec::new(), Vec::new());
            for told in at_once(begins).await {
                match told {
                    Ok(stream) => begun.push(stream.into_inner()),
                    Err(status) => refused.push(status),
                }
            }
            assert_eq!((begun.len(), refused.len()), (1, 7));
            let first = begun[0].message().await.unwrap().unwrap();
            let Some(pb::event::Mark::Begin(begin)) = first.mark else { panic!("{first:?}") };
            for status in refused {
                assert_eq!(reason(&status), (Code::Aborted, "INVOCATION_RUNNING".into()));
                let details = status.get_details_error_info().unwrap().metadata;
                assert_eq!(details["invocation_id"], begin.invocation_id);
            }
            arena.gate.send_replace(true);
            let of_it = pb::Call { invocation_id: begin.invocation_id, ..call.clone() };
            assert_eq!(arena.end(&of_it).await.end.state(), State::Completed);
        }
        // What waited all the while still does.
        arena.client.submit(submit(&call, approved(0))).await.unwrap();
        assert_eq!(arena.end(&call).await.end.state(), State::Completed);
        let events = arena.client.events(APP, &session).await;
        let sequences: Vec<_> = events.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences, (1..).take(events.len()).collect::<Vec<_>>());
        at_rest(&arena.server).await;
    }
}
