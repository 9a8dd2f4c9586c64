"""Asks for a reimbursement, approves it as a manager would, and shows what the agent does.

    python examples/python/reimburse.py [HOST:PORT]

The first half is what any client needs: streams that go on where they broke off, and requests that
can be repeated safely. README.md explains it.
"""

import json
import random
import sys
import time
import uuid

import grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from countersign.v1 import agent_pb2, agent_pb2_grpc, content_pb2, event_pb2

# Attempts without anything new between them; the waits add up to about half a minute.
ATTEMPTS = 10

# Errors of the network, or of a library on the way: they promise nothing.
BROKEN = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
}

# Refusals that may pass. After the first three nothing was written; after the last one it is not
# known, so only a repeat with the same request_id is safe.
PASSING = {"DRAINING", "STORE_UNAVAILABLE", "OVERLOADED", "WRITE_OUTCOME_UNKNOWN"}


def connect(address):
    """A channel that notices when the other side is gone, even while nothing happens."""
    options = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 20_000)]
    return grpc.insecure_channel(address, options=options)


def reason(error):
    """The server's word for a refusal, such as CALL_NOT_FOUND; None if it was not the server."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == "countersign":
            return info.reason
    return None


def may_pass(error):
    """Whether the same request may succeed later."""
    why = reason(error)
    return why in PASSING if why else error.code() in BROKEN


def wait(failures, error):
    """Waits before the next attempt; raises the error if there is none."""
    if failures >= ATTEMPTS or not may_pass(error):
        raise error
    time.sleep(min(0.1 * 2 ** (failures - 1), 5) * random.uniform(0.75, 1))


def submit(agents, request):
    """Answers a call, and asks again until it is known what became of the answer."""
    request.request_id = request.request_id or str(uuid.uuid4())
    failures = 0
    while True:
        try:
            return agents.SubmitFunctionResponse(request, timeout=10)
        except grpc.RpcError as error:
            failures += 1
            wait(failures, error)


def follow(agents, request):
    """The events of RunAsync up to its end, over any number of connections."""
    if request.HasField("new_message"):
        request.request_id = request.request_id or str(uuid.uuid4())
    failures, begin = 0, None
    while True:
        try:
            for event in agents.RunAsync(request):
                mark = event.WhichOneof("mark")
                begin = event.begin if mark == "begin" else begin
                if mark == "end" and event.end.state == event_pb2.EndMark.RECONNECT:
                    request = reattach(begin, request, event.end.after_sequence)
                    break
                if event.sequence:
                    failures = 0
                    request = reattach(begin, request, event.sequence)
                yield event
                if mark == "end":
                    return
        except grpc.RpcError as error:
            failures += 1
            wait(failures, error)


def reattach(begin, request, after_sequence):
    """The request that goes on behind the last entry received, without saying anything again."""
    return agent_pb2.RunAsyncRequest(
        app_name=begin.app_name,
        user_id=begin.user_id,
        session_id=begin.session_id,
        invocation_id=begin.invocation_id,
        after_sequence=after_sequence,
        run_config=request.run_config,
    )


def say(text, user="ann", app="reimbursement_agent"):
    """The request that says something in a new session."""
    message = content_pb2.Content(parts=[content_pb2.Part(text=text)])
    return agent_pb2.RunAsyncRequest(app_name=app, user_id=user, new_message=message)


def answer(call, response):
    """The request that answers a held call."""
    request = agent_pb2.SubmitFunctionResponseRequest()
    request.function_response.id = call.function_call.id
    request.function_response.name = call.function_call.name
    request.function_response.response.update(response)
    # The answer is for what was seen, and for nothing else.
    request.expected_args_digest = call.args_digest
    return request


def rest(reply):
    """The request that follows what comes of an answer."""
    return reattach(reply.call, agent_pb2.RunAsyncRequest(), reply.after_sequence)


def show(event):
    """Prints an event as a line or two."""
    for part in event.content.parts:
        if part.HasField("function_call"):
            args = json.dumps(MessageToDict(part.function_call.args), sort_keys=True)
            print(f"{event.author} calls {part.function_call.name} {args}")
        elif part.HasField("function_response"):
            response = json.dumps(MessageToDict(part.function_response.response), sort_keys=True)
            print(f"{part.function_response.name} answers {response}")
        elif part.text:
            print(f"{event.author}: {part.text}")
    if event.HasField("end"):
        print(f"-- {event_pb2.EndMark.State.Name(event.end.state)}")


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
    with connect(address) as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        held = []
        for event in follow(agents, say("Please reimburse $200 for conference travel")):
            show(event)
            held.extend(event.end.held_calls)
        for call in held:
            reply = submit(agents, answer(call, {"status": "approved"}))
            outcome = agent_pb2.SubmitFunctionResponseResponse.Outcome.Name(reply.outcome)
            print(f"the manager approves: {outcome}")
            for event in follow(agents, rest(reply)):
                show(event)


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as failed:
        sys.exit(f"{reason(failed) or failed.code().name}: {failed.details()}")
