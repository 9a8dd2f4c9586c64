// A client in TypeScript: asks, approves as a manager would, and sees the run end.
// Run by tests/clients/other_clients.py with the server's address.

import assert from "node:assert/strict";

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import {
  AgentService,
  SubmitFunctionResponseResponse_Outcome as Outcome,
} from "./countersign/v1/agent_pb.js";
import { type Event, EndMark_State } from "./countersign/v1/event_pb.js";
import { ErrorInfoSchema } from "./google/rpc/error_details_pb.js";

const TIMEOUT = { timeoutMs: 60_000 };

const [address] = process.argv.slice(2);
const agents = createClient(
  AgentService,
  createGrpcTransport({ baseUrl: `http://${address}` }),
);

async function collect(stream: AsyncIterable<Event>): Promise<Event[]> {
  const events: Event[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

function parts(events: Event[]) {
  return events.flatMap((event) => event.content?.parts ?? []);
}

// The tools that were called in these events.
function calls(events: Event[]): string[] {
  return parts(events).flatMap(({ data }) =>
    data.case === "functionCall" ? [data.value.name] : [],
  );
}

const asked = await collect(
  agents.runAsync(
    {
      appName: "reimbursement_agent",
      userId: "ann",
      newMessage: {
        parts: [
          {
            data: {
              case: "text",
              value: "Please reimburse $200 for conference travel",
            },
          },
        ],
      },
      requestId: "message-1",
    },
    TIMEOUT,
  ),
);
assert(asked[0]?.mark.case === "begin");
const begin = asked[0].mark.value;
assert.equal(begin.appName, "reimbursement_agent");
assert.deepEqual(calls(asked), ["ask_for_approval"]);
const pause = asked.at(-1);
assert(pause?.mark.case === "end");
assert.equal(pause.mark.value.state, EndMark_State.PAUSED);
assert.equal(pause.mark.value.heldCalls.length, 1);
const held = pause.mark.value.heldCalls[0];
assert(held?.functionCall);
const { id, name, args } = held.functionCall;
assert.equal(args?.["amount"], 200);

const answer = {
  functionResponse: { id, name, response: { status: "approved" } },
  expectedArgsDigest: held.argsDigest,
  requestId: "decision-1",
};
const reply = await agents.submitFunctionResponse(answer, TIMEOUT);
assert.equal(reply.outcome, Outcome.APPLIED);

const rest = await collect(
  agents.runAsync(
    {
      appName: begin.appName,
      userId: begin.userId,
      sessionId: begin.sessionId,
      invocationId: begin.invocationId,
      afterSequence: reply.afterSequence,
    },
    TIMEOUT,
  ),
);
assert.deepEqual(calls(rest), ["reimburse"]);
const end = rest.at(-1);
assert(end?.mark.case === "end");
assert.equal(end.mark.value.state, EndMark_State.COMPLETED);

// A second decision comes too late, and its error says so to programs.
await assert.rejects(
  agents.submitFunctionResponse(
    {
      functionResponse: { id, name, response: { status: "rejected" } },
    },
    TIMEOUT,
  ),
  (error) => {
    assert(error instanceof ConnectError);
    assert.equal(error.code, Code.FailedPrecondition);
    const [info] = error.findDetails(ErrorInfoSchema);
    assert.equal(info?.reason, "CALL_ALREADY_ANSWERED");
    return true;
  },
);

const said = parts(rest).flatMap(({ data }) =>
  data.case === "text" ? [data.value] : [],
);
console.log(said.at(-1));
