"""The Python client against the real server: repeats, lost replies, and a server that is killed.

Run by scripts/test, with the packages of examples/python/requirements.txt.
"""

import contextlib
import io
import re
import sys
import unittest
from pathlib import Path

import grpc

from relay import Relay
from server import PATIENCE, ROOT, Server

sys.path[:0] = [str(ROOT / ".tools" / "python"), str(ROOT / "examples" / "python")]
import reimburse  # noqa: E402
from countersign.v1 import agent_pb2, agent_pb2_grpc, event_pb2, session_pb2  # noqa: E402
from countersign.v1 import session_pb2_grpc  # noqa: E402

Outcome = agent_pb2.SubmitFunctionResponseResponse
State = event_pb2.EndMark
TEXT = "Please reimburse $200 for conference travel"
PAID = "You got it! I have reimbursed you $200 for conference travel."


def texts(events):
    """What was said in these events."""
    return [part.text for event in events for part in event.content.parts if part.text]


def calls(events):
    """The tools that were called in these events."""
    parts = [part for event in events for part in event.content.parts]
    return [part.function_call.name for part in parts if part.HasField("function_call")]


class PythonClient(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)
        self.channel = self.connect(self.server.address)
        self.agents = agent_pb2_grpc.AgentServiceStub(self.channel)

    def connect(self, address):
        channel = reimburse.connect(address)
        self.addCleanup(channel.close)
        grpc.channel_ready_future(channel).result(PATIENCE)
        return channel

    def ask(self):
        """Asks for money, up to the pause; gives the mark `begin` and the held call."""
        events = list(reimburse.follow(self.agents, reimburse.say(TEXT)))
        self.assertEqual(events[-1].end.state, State.PAUSED)
        self.assertEqual(calls(events), ["ask_for_approval"])
        return events[0].begin, events[-1].end.held_calls[0]

    def assert_paid_once(self, begin):
        """Follows the run to its end, and counts the payments in the session's log."""
        request = reimburse.reattach(begin, agent_pb2.RunAsyncRequest(), 0)
        request.run_config.on_pause = agent_pb2.RunConfig.FOLLOW
        events = list(reimburse.follow(self.agents, request))
        self.assertEqual(events[-1].end.state, State.COMPLETED)
        self.assertEqual(texts(events)[-1], PAID)
        sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        log = sessions.ListEvents(
            session_pb2.ListEventsRequest(
                app_name=begin.app_name, user_id=begin.user_id, session_id=begin.session_id
            )
        ).events
        self.assertEqual([event.sequence for event in log], list(range(1, len(log) + 1)))
        self.assertEqual(calls(log), ["ask_for_approval", "reimburse"])

    def refused(self, request):
        with self.assertRaises(grpc.RpcError) as raised:
            self.agents.SubmitFunctionResponse(request, timeout=PATIENCE)
        return reimburse.reason(raised.exception), raised.exception.code()

    def test_a_repeat_has_the_same_outcome_and_a_second_decision_none(self):
        begin, call = self.ask()
        request = reimburse.answer(call, {"status": "approved"})
        request.request_id = "decision-1"
        first = self.agents.SubmitFunctionResponse(request, timeout=PATIENCE)
        again = self.agents.SubmitFunctionResponse(request, timeout=PATIENCE)
        self.assertEqual(first.outcome, Outcome.APPLIED)
        self.assertEqual((again.outcome, again.sequence), (first.outcome, first.sequence))

        # The same answer under another mark is known by what it says.
        request.request_id = "decision-2"
        duplicate = self.agents.SubmitFunctionResponse(request, timeout=PATIENCE)
        self.assertEqual(duplicate.outcome, Outcome.DUPLICATE)

        other = reimburse.answer(call, {"status": "rejected"})
        too_late = ("CALL_ALREADY_ANSWERED", grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.refused(other), too_late)
        other.request_id = "decision-1"
        reused = ("REQUEST_ID_REUSED", grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.refused(other), reused)
        self.assert_paid_once(begin)

    def test_a_message_that_is_repeated_is_said_once(self):
        request = reimburse.say(TEXT)
        request.request_id = "message-1"
        first = list(self.agents.RunAsync(request, timeout=PATIENCE))
        again = list(self.agents.RunAsync(request, timeout=PATIENCE))
        self.assertFalse(first[0].begin.replayed)
        self.assertTrue(again[0].begin.replayed)
        self.assertEqual(first[0].begin.invocation_id, again[0].begin.invocation_id)
        self.assertEqual(first[1:], again[1:])

    def test_a_reply_that_is_lost_is_asked_for_again(self):
        begin, call = self.ask()
        relay = Relay(self.server.address)
        self.addCleanup(relay.close)
        agents = agent_pb2_grpc.AgentServiceStub(self.connect(relay.address))
        relay.lose_next()
        reply = reimburse.submit(agents, reimburse.answer(call, {"status": "approved"}))
        self.assertEqual(relay.lost, 1)
        self.assertEqual(reply.outcome, Outcome.APPLIED)
        self.assert_paid_once(begin)

    def test_a_stream_that_is_cut_goes_on(self):
        relay = Relay(self.server.address)
        self.addCleanup(relay.close)
        agents = agent_pb2_grpc.AgentServiceStub(self.connect(relay.address))
        relay.lose_next()
        events = list(reimburse.follow(agents, reimburse.say(TEXT)))
        self.assertEqual(relay.lost, 1)
        self.assertEqual([event.sequence for event in events if event.sequence], [2, 3, 4])
        self.assertEqual(events[-1].end.state, State.PAUSED)

    def test_a_killed_server_goes_on_with_the_decision(self):
        begin, call = self.ask()
        self.server.restart()
        reply = reimburse.submit(self.agents, reimburse.answer(call, {"status": "approved"}))
        self.assertEqual(reply.outcome, Outcome.APPLIED)
        self.server.restart()
        self.assert_paid_once(begin)
        too_late = ("CALL_ALREADY_ANSWERED", grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(self.refused(reimburse.answer(call, {"status": "rejected"})), too_late)

    def test_a_follower_sees_the_server_die_and_the_run_end(self):
        begin, call = self.ask()
        request = reimburse.reattach(begin, agent_pb2.RunAsyncRequest(), 0)
        request.run_config.on_pause = agent_pb2.RunConfig.FOLLOW
        events = []
        for event in reimburse.follow(self.agents, request):
            events.append(event)
            if event.HasField("pause") and len(events) < 8:
                self.server.restart()
                reimburse.submit(self.agents, reimburse.answer(call, {"status": "approved"}))
        self.assertEqual(events[-1].end.state, State.COMPLETED)
        sequences = [event.sequence for event in events if event.sequence]
        self.assertEqual(sequences, list(range(1, 9)))

    def test_the_server_stops_when_it_is_told_to(self):
        self.ask()
        self.assertEqual(self.server.close(), 0)

    def test_the_example_runs(self):
        out = io.StringIO()
        arguments, sys.argv = sys.argv, ["reimburse.py", self.server.address]
        try:
            with contextlib.redirect_stdout(out):
                reimburse.main()
        finally:
            sys.argv = arguments
        self.assertTrue(out.getvalue().endswith(f"reimbursement_agent: {PAID}\n-- COMPLETED\n"))

    def test_the_readme_shows_the_code_that_is_tested(self):
        code = Path(reimburse.__file__).read_text()
        shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        self.assertTrue(shown)
        for block in shown:
            self.assertIn(block, code)


if __name__ == "__main__":
    unittest.main()
