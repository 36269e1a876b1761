// The Vercel AI SDK: chat by its provider for compatible endpoints, responses and chat by its provider for OpenAI;
// plain, streamed, and with a history.
const fs = require("node:fs");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { generateText, streamText } = require("ai");

const { MODEL, QUESTION } = process.env;
const seeded = { seed: Number(process.env.SEED), maxRetries: 0 };
const at = { baseURL: process.env.OPENAI_BASE_URL, apiKey: "none" };
const compatible = createOpenAICompatible({ name: "banyan", ...at });
const openai = createOpenAI(at);

async function plain(model, options = {}) {
  return (await generateText({ model, prompt: QUESTION, ...seeded, ...options })).text;
}

async function streamed(model) {
  const result = streamText({ model, prompt: QUESTION, ...seeded, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  return text;
}

// Without `store: false` the provider for OpenAI sends the ids of earlier items in place of their texts.
async function withHistory(model) {
  const providerOptions = { openai: { store: false } };
  const messages = [{ role: "user", content: QUESTION }];
  const first = await generateText({ model, messages, providerOptions, ...seeded });
  messages.push(...first.response.messages, messages[0]);
  return (await generateText({ model, system: "Be brief.", messages, providerOptions, ...seeded })).text;
}

async function main() {
  const texts = {
    chat: await plain(compatible(MODEL)),
    chat_streamed: await streamed(compatible(MODEL)),
    chat_history: await withHistory(compatible(MODEL)),
    effort: await plain(compatible(MODEL), { providerOptions: { banyan: { reasoningEffort: "low" } } }),
    openai_chat: await plain(openai.chat(MODEL)),
    openai_chat_streamed: await streamed(openai.chat(MODEL)),
    responses: await plain(openai(MODEL)),
    responses_streamed: await streamed(openai(MODEL)),
    responses_history: await withHistory(openai(MODEL)),
  };
  fs.writeFileSync(process.argv[2], JSON.stringify(texts));
}

main().catch((error) => { console.error(error); process.exit(1); });
