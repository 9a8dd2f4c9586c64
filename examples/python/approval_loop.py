"""Ask, show the requests, approve or deny each, and go on until none is left; once without
streaming, and once with it.

    python examples/python/approval_loop.py [HOST:PORT]

The server must serve examples/approvals. These are the two loops of Microsoft's tutorial on tools
that need approval. There a client sends the conversation again with its decisions; here the session
has it, and the decisions can be made anywhere.
"""

import json
import sys

import grpc
from google.protobuf.json_format import MessageToDict

from countersign.v1 import agent_pb2, agent_pb2_grpc, approval_pb2, approval_pb2_grpc
from reimburse import connect, follow, reason, reattach, say, show

Verdict = approval_pb2.Approval.Verdict


def decide(approvals, call, agree):
    """Shows a request and decides on it, for the arguments that were seen and no others."""
    about = MessageToDict(call.function_call.args)["originalFunctionCall"]
    verdict = Verdict.APPROVE if agree(about["args"]) else Verdict.DENY
    args = json.dumps(about["args"], sort_keys=True)
    print(f"  may it call {about['name']} {args}? {Verdict.Name(verdict)}")
    request = approval_pb2.DecideApprovalRequest(
        call_id=call.function_call.id, verdict=verdict, args_digest=call.args_digest
    )
    if verdict == Verdict.DENY:
        request.reason = "It is nobody's business."
    return approvals.DecideApproval(request, timeout=10)


def whole(events):
    """Shows entries, and gives what waits at the end."""
    held = []
    for event in events:
        show(event)
        held.extend(event.end.held_calls)
    return held


def pieces(events):
    """Prints the text as it is spoken, and collects what waits until the stream has ended."""
    held, begun = [], ""
    for event in events:
        for part in event.content.parts:
            # The whole text follows its pieces; who came late for them has it there.
            new = part.text if event.partial else part.text.removeprefix(begun)
            if new:
                print(new if begun else f"{event.author}: {new}", end="", flush=True)
                begun += new
            if begun and not event.partial:
                print()
                begun = ""
        held.extend(event.end.held_calls)
    return held


def loop(stubs, request, run, agree):
    """Until no request is left."""
    agents, approvals = stubs
    held = run(follow(agents, request))
    while held:
        last = [decide(approvals, call, agree) for call in held][-1]
        request = reattach(last.approval, request, last.after_sequence)
        held = run(follow(agents, request))


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
    with connect(address) as channel:
        stubs = (
            agent_pb2_grpc.AgentServiceStub(channel),
            approval_pb2_grpc.ApprovalServiceStub(channel),
        )
        both = say("How is the weather in Amsterdam and Oslo?", app="weather_agent")
        loop(stubs, both, whole, lambda args: args["place"] == "Amsterdam")
        one = say("How is the weather in Lima?", app="weather_agent")
        one.run_config.streaming_mode = agent_pb2.RunConfig.SSE
        loop(stubs, one, pieces, lambda args: True)


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as failed:
        sys.exit(f"{reason(failed) or failed.code().name}: {failed.details()}")
