/** Server-sent events over fetch: unlike EventSource, it can send the token in a header. */

import { request } from "./api.js";

/**
 * Read a stream until it ends.
 * @param {string} url
 * @param {(name: string, data: string) => void} onEvent
 * @param {AbortSignal} signal
 * @returns {Promise<void>} ends with the stream; throws ApiError, and what fetch throws
 */
export async function readEvents(url, onEvent, signal) {
  const response = await request(url, { headers: { Accept: "text/event-stream" }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const { name, data } = fields(block);
      if (name || data) onEvent(name || "message", data);
    }
  }
}

function fields(block) {
  let name = "";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    else if (line.startsWith(":")) name ||= "ping"; // a comment keeps the connection alive
  }
  return { name, data: data.join("\n") };
}
