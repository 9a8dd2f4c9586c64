//! What holds of every prompt, whatever the history.

use super::*;

/// Each call has exactly one response, directly behind it, and each response has its call.
pub fn check(contents: &[Content]) -> Result<(), String> {
    for (at, content) in contents.iter().enumerate() {
        let calls: Vec<&CallId> = content.calls().map(|call| &call.id).collect();
        let next = contents.get(at + 1).into_iter().flat_map(Content::responses);
        let mut answers: Vec<&CallId> = next.map(|response| &response.id).collect();
        let mut sorted = calls.clone();
        sorted.sort();
        answers.sort();
        let unique = sorted.windows(2).all(|two| two[0] != two[1]);
        if sorted != answers || !unique {
            return Err(format!("content {at}: calls {calls:?}, answers {answers:?}"));
        }
        if !calls.is_empty() && content.responses().next().is_some() {
            return Err(format!("content {at} has both calls and responses"));
        }
    }
    match contents.first().is_some_and(|content| content.responses().next().is_some()) {
        true => Err("the first content has responses".into()),
        false => Ok(()),
    }
}

/// One event of a random history; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    User(u32),
    Reply(u32, u64),
    Calls(u32, usize, u64),
    /// Which calls are answered, by the user or by tools.
    Answer(Vec<usize>, bool),
    Orphan(u32),
    Thought(u32),
    Nothing(u32),
    Child(u32),
    /// An id that was used before is called again.
    Again(u32, usize),
    /// Calls, responses and text in one event.
    Mixed(u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let invocation = 1..4_u32;
    let behind = prop_oneof![3 => Just(0), 1 => 0..4_u64];
    prop_oneof![
        2 => invocation.clone().prop_map(Step::User),
        3 => (invocation.clone(), behind.clone()).prop_map(|(i, b)| Step::Reply(i, b)),
        4 => (invocation.clone(), 1..4_usize, behind).prop_map(|(i, n, b)| Step::Calls(i, n, b)),
        8 => (proptest::collection::vec(0..64_usize, 1..4), any::<bool>())
            .prop_map(|(calls, user)| Step::Answer(calls, user)),
        1 => invocation.clone().prop_map(Step::Orphan),
        1 => invocation.clone().prop_map(Step::Thought),
        1 => invocation.clone().prop_map(Step::Nothing),
        1 => invocation.clone().prop_map(Step::Child),
        1 => (invocation.clone(), 0..64_usize).prop_map(|(i, c)| Step::Again(i, c)),
        1 => (invocation, 0..64_usize).prop_map(|(i, c)| Step::Mixed(i, c)),
    ]
}

/// The log of these steps, and the ids of all calls in it with their invocations.
fn play(steps: &[Step]) -> (Log, Vec<(String, u32)>) {
    let mut log = Log::default();
    let mut made: Vec<(String, u32)> = Vec::new();
    let frame = Some("root@1");
    for (at, step) in steps.iter().enumerate() {
        let value = format!("value-{at}");
        match step {
            Step::User(i) => drop(log.user(*i, &format!("user-{at}"))),
            Step::Reply(i, behind) => drop(log.late_reply(*i, &format!("reply-{at}"), *behind)),
            Step::Calls(i, count, behind) => {
                let ids: Vec<String> = (0..*count).map(|n| format!("c{at}-{n}")).collect();
                let content = calls(&ids.iter().map(String::as_str).collect::<Vec<_>>());
                log.add(*i, "root", frame, Some(content), Some(*behind));
                made.extend(ids.into_iter().map(|id| (id, *i)));
            }
            Step::Answer(which, user) if !made.is_empty() => {
                let chosen: Vec<_> = which.iter().map(|n| &made[n % made.len()]).collect();
                let content: Vec<_> = chosen.iter().map(|c| (c.0.as_str(), &*value)).collect();
                let author = if *user { "user" } else { "root" };
                log.add(chosen[0].1, author, frame, Some(responses(&content)), None);
            }
            Step::Answer(..) => {}
            Step::Orphan(i) => drop(log.answer(*i, "nobody", &value)),
            Step::Thought(i) => {
                let parts = vec![Part { thought: true, ..Part::text("hm") }];
                let content = Content { role: Role::Model, parts };
                log.add(*i, "root", frame, Some(content), Some(0));
            }
            Step::Nothing(i) => drop(log.add(*i, "user", None, None, None)),
            Step::Child(i) => {
                log.add(*i, "helper", Some("root@1/h@1"), Some(calls(&[&value])), Some(0));
            }
            Step::Again(i, which) if !made.is_empty() => {
                let again = made[which % made.len()].0.clone();
                log.calls(*i, &[&again, &again]);
            }
            Step::Again(..) => {}
            Step::Mixed(i, which) => {
                let mut content = said(Role::Model, &format!("mixed-{at}"));
                let id = format!("m{at}");
                content.parts.extend(calls(&[&id]).parts);
                let old = made.get(which % made.len().max(1)).map_or(id.as_str(), |call| &call.0);
                content.parts.extend(responses(&[(old, &value)]).parts);
                log.add(*i, "root", frame, Some(content), Some(0));
                made.push((id, *i));
            }
        }
    }
    (log, made)
}

/// Whether words stand in the order of the log, a reply where its prompt was built.
fn ordered(contents: &[Content], log: &Log) -> bool {
    let mut log: Vec<&Told> = log.0.iter().collect();
    log.sort_by_key(|told| (told.seen.unwrap_or(told.position), told.position));
    let mut rest = log.iter().filter_map(|told| told.event.content.as_ref());
    let words = contents.iter().filter(|content| content.responses().next().is_none());
    let mut words = words.map(Content::plain_text).filter(|text| !text.is_empty());
    words.all(|text| rest.any(|content| content.plain_text() == text))
}

/// The status that the prompt's last response to this call has.
fn status(contents: &[Content], call: &CallId) -> Option<Value> {
    let all = contents.iter().flat_map(Content::responses).filter(|r| r.id == *call);
    all.last().and_then(|response| response.response.as_ref()?.get("status").cloned())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.saturating_mul(8),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_call_has_its_response_and_nothing_untold_is_hidden(
        steps in proptest::collection::vec(step(), 0..40),
        held in proptest::collection::vec(any::<bool>(), 120),
        window in 0..40_usize,
    ) {
        let (log, made) = play(&steps);
        let held: BTreeSet<CallId> =
            made.iter().zip(held).filter(|(_, held)| *held).map(|(call, _)| id(&call.0)).collect();
        let reused = steps.iter().any(|step| matches!(step, Step::Again(..) | Step::Mixed(..)));
        for number in 1..4 {
            let (invocation, frame) = (invocation(number), root());
            let to = Frame { invocation: &invocation, frame: &frame };
            let window = Log(log.0[window.min(log.0.len())..].to_vec());
            prop_assert_eq!(check(&build(&window.0, to, &held)), Ok(()));
            let contents = build(&log.0, to, &held);
            prop_assert_eq!(check(&contents), Ok(()));
            prop_assert!(ordered(&contents, &log), "{contents:?}");
            let called: BTreeSet<&CallId> =
                contents.iter().flat_map(Content::calls).map(|call| &call.id).collect();
            for call in news(&log.0, to) {
                prop_assert!(called.contains(&call), "{call} is news and not told");
                let last = log.0.iter().flat_map(|told| told.event.function_responses());
                let last = last.filter(|r| r.id == call).last().unwrap();
                let last = last.response.as_ref().map(|r| r["status"].clone());
                prop_assert!(reused || status(&contents, &call) == last);
            }
            let heard = log.0.iter().filter_map(|told| told.seen).max().unwrap_or(0);
            let texts: Vec<String> = contents.iter().map(Content::plain_text).collect();
            for told in log.0.iter().filter(|told| told.position > heard) {
                let content = told.event.content.as_ref();
                if let Some(text) = content.filter(|_| told.event.frame.is_none()) {
                    prop_assert!(texts.contains(&text.plain_text()), "a message is hidden");
                }
            }
        }
    }
}
