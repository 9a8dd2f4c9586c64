//! One call, and many who answer it.

use super::*;

const CLIENTS: usize = 64;
const ROUNDS: usize = 4;

/// What each of them was told about a call with this outcome: one won, and how.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    applied: usize,
    duplicate: usize,
    answered: usize,
}

impl Tally {
    fn count(&mut self, told: &Result<pb::SubmitFunctionResponseResponse, Status>, call: &str) {
        match told {
            Ok(done) => match done.outcome() {
                Outcome::Applied => self.applied += 1,
                Outcome::Duplicate => self.duplicate += 1,
                other => panic!("{other:?}"),
            },
            Err(refused) => {
                assert_eq!(refused.code(), Code::FailedPrecondition);
                assert_eq!(why(refused), "CALL_ALREADY_ANSWERED");
                let details = refused.get_details_error_info().unwrap().metadata;
                assert_eq!(details["answered_by"], "user:local", "it names who won");
                assert_eq!(details["call_id"], call);
                self.answered += 1;
            }
        }
    }
}

/// Rounds of many answers to one call; `same`: all of them say the same.
async fn many_answer_one(arena: &mut Arena, clients: &[Client], same: bool) {
    for round in 0..ROUNDS {
        let before = arena.paid();
        let what = if round % 2 == 0 { "ask" } else { "wait" };
        let (call, _) = arena.held(what).await;
        let id = call.function_call.as_ref().unwrap().id.clone();
        let answers = (0..CLIENTS).map(|number| {
            let mut client = clients[number % clients.len()].clone();
            let request = submit(&call, approved(if same { 0 } else { number }));
            async move { (number, client.submit(request).await) }
        });
        let (mut tally, mut winner, mut sequences) = (Tally::default(), 0, Vec::new());
        for (number, told) in at_once(answers).await {
            tally.count(&told, &id);
            if let Ok(done) = told {
                sequences.push(done.sequence);
                if done.outcome() == Outcome::Applied {
                    winner = number;
                }
            }
        }
        let others = CLIENTS - 1;
        let expected = if same {
            Tally { applied: 1, duplicate: others, answered: 0 }
        } else {
            Tally { applied: 1, duplicate: 0, answered: others }
        };
        assert_eq!(tally, expected);
        sequences.dedup();
        assert_eq!(sequences.len(), 1, "all are told of the same event");
        assert_eq!(arena.end(&call).await.end.state(), State::Completed);
        let won = approved(if same { 0 } else { winner });
        assert_eq!(arena.answers(&call).await, [won]);
        assert_eq!(arena.paid(), before + 1, "the tool goes on once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_answers_at_once_one_wins() {
    for mut arena in Arena::both().await {
        for connections in [1, CLIENTS] {
            let clients = arena.clients(connections).await;
            for same in [true, false] {
                many_answer_one(&mut arena, &clients, same).await;
            }
        }
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_request_at_once_from_many_is_one_request() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(8).await;
        for round in 0..ROUNDS {
            let mut message = say(APP, "", "ask");
            message.request_id = format!("message-{round}");
            let runs = clients.iter().map(|client| {
                let (mut client, message) = (client.clone(), message.clone());
                async move { client.run(message).await }
            });
            let told = at_once(runs).await;
            let fresh = told.iter().filter(|told| !told.begin.replayed).count();
            assert_eq!(fresh, 1, "one of them began it");
            for one in &told {
                assert_eq!(one.begin.invocation_id, told[0].begin.invocation_id);
                assert_eq!((&one.events, &one.end), (&told[0].events, &told[0].end));
            }
            let call = told[0].end.held_calls[0].clone();
            let decision = pb::SubmitFunctionResponseRequest {
                request_id: format!("decision-{round}"),
                ..submit(&call, approved(0))
            };
            let answers = clients.iter().map(|client| {
                let (mut client, decision) = (client.clone(), decision.clone());
                async move { client.submit(decision).await.unwrap() }
            });
            let answers = at_once(answers).await;
            for one in &answers {
                assert_eq!((one.outcome(), one.sequence), (Outcome::Applied, answers[0].sequence));
            }
            assert_eq!(arena.end(&call).await.end.state(), State::Completed);
            assert_eq!((arena.answers(&call).await.len(), arena.paid()), (1, round + 1));
        }
        at_rest(&arena.server).await;
    }
}

/// How one of many answered: by a message or by the RPC for it.
async fn answered(mut client: Client, call: pb::Call, by: usize, message: bool) -> Option<bool> {
    if message {
        let answers = vec![answer(&call, approved(by))];
        return match client.try_run(say_answers(APP, &call.session_id, answers)).await {
            Ok(told) => {
                assert_eq!(told.end.state(), State::Completed);
                None
            }
            Err(refused) => {
                assert_eq!(why(&refused), "CALL_ALREADY_ANSWERED");
                Some(false)
            }
        };
    }
    match client.submit(submit(&call, approved(by))).await {
        Ok(done) => Some(done.outcome() == Outcome::Applied),
        Err(refused) => {
            assert_eq!(why(&refused), "CALL_ALREADY_ANSWERED");
            Some(false)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_by_message_and_by_submit_are_the_same_race() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(16).await;
        for round in 0..2 * ROUNDS {
            let before = arena.paid();
            let same = round % 2 == 0;
            let (call, _) = arena.held("ask").await;
            let answers = clients.iter().enumerate().map(|(number, client)| {
                let by = if same { 0 } else { number };
                answered(client.clone(), call.clone(), by, number % 2 == 0)
            });
            let told = at_once(answers).await;
            // A message's stream does not tell whether its answer was the first.
            let by_submit = told.iter().filter(|told| **told == Some(true)).count();
            let by_message = told.iter().filter(|told| told.is_none()).count();
            if same {
                assert_eq!(by_message, 8, "repeats are passed over: {told:?}");
                assert!(by_submit <= 1, "{told:?}");
            } else {
                assert_eq!(by_submit + by_message, 1, "{told:?}");
            }
            assert_eq!(arena.end(&call).await.end.state(), State::Completed);
            assert_eq!((arena.answers(&call).await.len(), arena.paid()), (1, before + 1));
        }
        at_rest(&arena.server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_may_overtake_the_placeholder() {
    for mut arena in Arena::both().await {
        let clients = arena.clients(16).await;
        for round in 0..2 * ROUNDS {
            let before = arena.paid();
            arena.gate.send_replace(false);
            let mut stream = arena.client.agents.run_async(say(APP, "", "slow")).await;
            let stream = stream.as_mut().unwrap().get_mut();
            // Its call is asked for; that its body has started stands in the same batch.
            let asked = loop {
                let event = in_time(stream.message()).await.unwrap().unwrap();
                if event.content.is_some() {
                    break event;
                }
            };
            let parts = &asked.content.as_ref().unwrap().parts;
            let Some(pb::part::Data::FunctionCall(call)) = &parts[0].data else { panic!() };
            let request = pb::GetInvocationRequest {
                invocation_id: asked.invocation_id.clone(),
                ..Default::default()
            };
            let now = arena.client.agents.get_invocation(request).await.unwrap().into_inner();
            let call = pb::Call {
                function_call: Some(call.clone()),
                session_id: now.session_id,
                invocation_id: now.id,
                ..Default::default()
            };
            let gate = arena.gate.clone();
            let answers = clients.iter().enumerate().map(|(number, client)| {
                let (mut client, gate) = (client.clone(), gate.clone());
                let request = submit(&call, approved(number));
                async move {
                    // One of them lets the body come back meanwhile, each round another one.
                    if number == round {
                        gate.send_replace(true);
                    }
                    client.submit(request).await
                }
            });
            let mut tally = Tally::default();
            for told in at_once(answers).await {
                tally.count(&told, &call.function_call.as_ref().unwrap().id);
            }
            assert_eq!(tally, Tally { applied: 1, duplicate: 0, answered: 15 });
            assert_eq!(arena.end(&call).await.end.state(), State::Completed);
            assert_eq!((arena.answers(&call).await.len(), arena.paid()), (1, before + 1));
        }
        at_rest(&arena.server).await;
    }
}
