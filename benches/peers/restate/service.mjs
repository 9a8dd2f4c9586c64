// The cycle as a Restate workflow: four durable steps, a durable promise, three more steps. It
// registers itself with the server whose admin address is in ADMIN, and serves on PORT.

// The SDK expects Node 22; of Node 20 it misses one method.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((done, failed) => {
    resolve = done;
    reject = failed;
  });
  return { promise, resolve, reject };
};

const restate = await import("@restatedev/restate-sdk");

const reimbursement = restate.workflow({
  name: "reimbursement",
  handlers: {
    run: async (ctx) => {
      const events = [
        await ctx.run("model", () => ({ call: "ask_for_approval", id: "c1", amount: 200 })),
        await ctx.run("ask_for_approval", () => ({
          id: "c1",
          status: "pending",
          ticketId: "reimbursement-ticket-001",
        })),
        await ctx.run("acknowledgement", () => ({ text: "The request was sent for approval." })),
        await ctx.run("pause", () => ({ state: "paused" })),
      ];
      await ctx.promise("paused").resolve(events);
      const said = await ctx.promise("decision");
      if (said.status !== "approved") return { text: "It was not approved." };
      await ctx.run("model", () => ({ call: "reimburse", id: "c2", amount: 200 }));
      await ctx.run("reimburse", () => ({ id: "c2", status: "ok" }));
      return await ctx.run("final", () => ({ text: "Your $200 has been reimbursed." }));
    },
    paused: async (ctx) => await ctx.promise("paused"),
    decide: async (ctx, decision) => {
      await ctx.promise("decision").resolve(decision);
    },
  },
});

// The SDK binds every interface unless its handler is served by hand.
const http2 = await import("node:http2");
const handler = restate.createEndpointHandler({ services: [reimbursement] });
const server = http2.createServer(handler);
await new Promise((listening) => server.listen(Number(process.env.PORT), "127.0.0.1", listening));

const TRIES = 300;
for (let tried = 1; ; tried++) {
  try {
    const response = await fetch(`${process.env.ADMIN}/deployments`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ uri: `http://127.0.0.1:${process.env.PORT}` }),
    });
    if (response.ok) break;
    throw new Error(`${response.status} ${await response.text()}`);
  } catch (error) {
    if (tried === TRIES) throw error;
    await new Promise((passed) => setTimeout(passed, 200));
  }
}
