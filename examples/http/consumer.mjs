// A consumer in Node, with nothing but fetch: pops jobs, does them, and acks them, until COUNT are done.
//
//   postbus up                                                     // in another terminal
//   curl -d '{"payload": {"n": 1}}' http://127.0.0.1:8472/v1/topics/jobs/messages
//   COUNT=1 node examples/http/consumer.mjs
const url = process.env.POSTBUS_URL ?? "http://127.0.0.1:8472";
let left = Number(process.env.COUNT ?? 1);

async function call(path, body) {
  const answer = await fetch(url + path, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env.POSTBUS_TOKEN ?? "none"}` },
    body: JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(`${told.code} ${told.detail} (${told.remedy})`);
  return told;
}

while (left > 0) {
  const { messages } = await call("/v1/topics/jobs/pop", { count: 10, wait: 20, lease: "30s" });
  for (const message of messages) {
    const held = { messages: [{ id: message.id, token: message.token }] };      // ids are strings: they have 64 bits
    if (message.payload?.n === undefined) {
      console.error("not a job");
      await call("/v1/dead-letter", { ...held, reason: "it has no n" });
    } else {
      console.log(`job ${message.payload.n}`);
      await call("/v1/ack", held);
      left -= 1;
    }
  }
}
