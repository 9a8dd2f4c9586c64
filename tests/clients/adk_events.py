"""Events there and back: ADK's own classes read what the real server shows, and the server reads
what they write.

Run by scripts/test, with the packages of tests/clients/requirements.txt.
"""

import json
import sys
import unittest

import grpc
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types
from google.protobuf.json_format import MessageToJson, ParseDict

from server import PATIENCE, ROOT, Server

sys.path[:0] = [str(ROOT / ".tools" / "python"), str(ROOT / "examples" / "python")]
import reimburse  # noqa: E402
from countersign.v1 import agent_pb2, agent_pb2_grpc, event_pb2, session_pb2  # noqa: E402
from countersign.v1 import session_pb2_grpc  # noqa: E402

APP = "reimbursement_agent"
USER = "zoë"
DELTA = {"topic": "承認", "user:n": 1.5, "gone": None, "deep": [{"a": [1, None]}]}
TEXT = "Please reimburse $9007199254740993 for Zoë’s 承認 trip 👍"


def pruned(value):
    """A value without what says nothing: null, no, nought, and nothing of a kind."""
    if isinstance(value, dict):
        inner = {key: pruned(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {}, [], "", False)}
    if isinstance(value, (list, set, tuple)):
        return [pruned(item) for item in (sorted(value) if isinstance(value, set) else value)]
    return value


def written(event):
    """An event as ADK writes it."""
    return event.model_dump_json(by_alias=True, exclude_none=True)


class AdkEvents(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)
        cls.channel = reimburse.connect(cls.server.address)
        cls.addClassCleanup(cls.channel.close)
        grpc.channel_ready_future(cls.channel).result(PATIENCE)
        cls.agents = agent_pb2_grpc.AgentServiceStub(cls.channel)
        cls.sessions = session_pb2_grpc.SessionServiceStub(cls.channel)

    def listed(self, session):
        """The events of a session."""
        request = session_pb2.ListEventsRequest(
            app_name=APP, user_id=USER, session_id=session, page_size=1000
        )
        page = self.sessions.ListEvents(request, timeout=PATIENCE)
        self.assertEqual(page.next_page_token, "")
        return page.events

    def read(self, events):
        """The same events, read by ADK."""
        return [Event.model_validate_json(MessageToJson(event)) for event in events]

    def imported(self, name, text):
        """A session made of this text, and its events, read by ADK."""
        request = session_pb2.ImportSessionRequest(
            app_name=APP, user_id=USER, session_id=name, events_json=text
        )
        session = self.sessions.ImportSession(request, timeout=PATIENCE)
        self.assertEqual(list(session.held_call_ids), [])
        return session, self.read(self.listed(name))

    def assert_same(self, got, expected):
        """The same events, but for what the server does not keep of a time below microseconds."""
        self.assertEqual(len(got), len(expected))
        for a, b in zip(got, expected):
            self.assertAlmostEqual(a.timestamp, b.timestamp, delta=1e-6)
            self.assertEqual(a.is_final_response(), b.is_final_response())
            a, b = (pruned(event.model_dump(exclude={"timestamp"})) for event in (a, b))
            self.assertEqual(a, b)

    def cycle(self):
        """A session that paused, was answered and ended."""
        request = reimburse.say(TEXT, user=USER)
        ParseDict(DELTA, request.state_delta)
        events = list(reimburse.follow(self.agents, request))
        self.assertEqual(events[-1].end.state, event_pb2.EndMark.PAUSED)
        call = events[-1].end.held_calls[0]
        answer = reimburse.answer(call, {"status": "approved", "note": "Größe 5 €"})
        reply = reimburse.submit(self.agents, answer)
        rest = reimburse.reattach(events[0].begin, agent_pb2.RunAsyncRequest(), reply.after_sequence)
        events += reimburse.follow(self.agents, rest)
        self.assertEqual(events[-1].end.state, event_pb2.EndMark.COMPLETED)
        return events[0].begin.session_id, call

    def test_adk_reads_what_the_server_shows(self):
        session, call = self.cycle()
        shown = self.listed(session)
        read = self.read(shown)
        self.assertEqual(len(read), 8)
        for ours, theirs in zip(shown, read):
            self.assertEqual((ours.id, ours.author), (theirs.id, theirs.author))
            self.assertEqual(ours.invocation_id, theirs.invocation_id)
            self.assertEqual(ours.timestamp, theirs.timestamp)
            self.assertEqual(ours.final_response, theirs.is_final_response())
            self.assertEqual(ours.node_info.path, theirs.node_info.path)
        self.assertEqual(read[0].content.parts[0].text, TEXT)
        self.assertEqual(read[0].actions.state_delta, DELTA)
        asked = read[1].get_function_calls()[0]
        self.assertEqual((asked.id, asked.name), (call.function_call.id, "ask_for_approval"))
        self.assertEqual(read[1].long_running_tool_ids, {asked.id})
        self.assertEqual(json.loads(shown[1].calls[asked.id].exact_json)["amount"], 9007199254740993)
        answered = read[4].get_function_responses()[0]
        self.assertEqual((read[4].author, answered.id), ("user", asked.id))
        self.assertEqual(answered.response, {"status": "approved", "note": "Größe 5 €"})
        self.assertIn("承認", read[-1].content.parts[0].text)

    def test_the_server_reads_what_adk_writes_of_them(self):
        session, _ = self.cycle()
        before = self.read(self.listed(session))
        text = "[" + ",".join(written(event) for event in before) + "]"
        _, after = self.imported("copy", text)
        self.assert_same(after, before)
        snake = json.dumps([event.model_dump(mode="json") for event in before])
        _, after = self.imported("snake", snake)
        self.assert_same(after, before)

    def test_all_that_an_event_of_adk_says_comes_back(self):
        every = bytes(range(256))
        call = types.FunctionCall(id="fc-1", name="pay", args={"to": {"a": [1, 2.5, None, "é"]}})
        response = types.FunctionResponse(
            id="fc-1", name="pay", response={"result": None, "n": [0.1]}, will_continue=False
        )
        parts = [
            types.Part(text="hm", thought=True, thought_signature=every),
            types.Part(function_call=call, thought_signature=b"\xfb\xff"),
            types.Part(inline_data=types.Blob(mime_type="x/y", data=every, display_name="n")),
            types.Part(file_data=types.FileData(file_uri="gs://a", mime_type="a/b")),
            types.Part(executable_code=types.ExecutableCode(code="1", language="PYTHON")),
            types.Part(
                code_execution_result=types.CodeExecutionResult(outcome="OUTCOME_OK", output="1")
            ),
        ]
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1, candidates_token_count=2, total_token_count=3
        )
        actions = EventActions(
            state_delta={"a": None, "app:b": {"c": 1}, "temp:d": "x"},
            artifact_delta={"f.txt": 3},
            transfer_to_agent="helper",
            escalate=True,
            skip_summarization=True,
        )
        events = [
            Event(author="user", invocation_id="i-1", content=types.UserContent("héllo\n\t\0")),
            Event(
                author=APP,
                invocation_id="i-1",
                content=types.Content(role="model", parts=parts),
                long_running_tool_ids={"fc-1"},
                finish_reason=types.FinishReason.STOP,
                usage_metadata=usage,
                turn_complete=True,
                branch="a.b",
                custom_metadata={"trace": [1]},
                actions=actions,
            ),
            Event(
                author=APP,
                invocation_id="i-1",
                content=types.Content(role="user", parts=[types.Part(function_response=response)]),
            ),
            Event(author=APP, invocation_id="i-1", error_code="SAFETY", error_message="no"),
            Event(author=APP, invocation_id="i-2", output={"x": [1]}, interrupted=True),
        ]
        for event in events:
            event.id = event.id or Event.new_id()
        events[1].node_info.path = "root@1/helper@2"
        _, after = self.imported("all", "[" + ",".join(map(written, events)) + "]")
        self.assert_same(after, events)

    def test_a_session_of_adk_comes_whole(self):
        session = Session(
            id="theirs",
            app_name="other_app",
            user_id="them",
            state={"n": 1, "user:x": 2, "app:y": 3},
            events=[Event(author="user", invocation_id="i", content=types.UserContent("hi"))],
            last_update_time=1.5,
        )
        text = session.model_dump_json(by_alias=True, exclude_none=True)
        made, events = self.imported("mine", text)
        self.assertEqual((made.id, made.app_name, made.user_id), ("mine", APP, USER))
        self.assertEqual(MessageToJson(made.state, indent=None), '{"n": 1.0}')
        self.assert_same(events, session.events)
        run = reimburse.say("Please reimburse $50 for meals", user=USER)
        run.session_id = "mine"
        told = list(reimburse.follow(self.agents, run))
        self.assertEqual(told[-1].end.state, event_pb2.EndMark.COMPLETED)


if __name__ == "__main__":
    unittest.main()
