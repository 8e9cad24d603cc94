/** The facts of one call, within its message. */

import { h } from "../dom.js";
import { duration, instant, whole, words } from "../format.js";

/**
 * @param {import("./story.js").Story} story
 * @param {import("./story.js").Call} call
 * @returns {HTMLElement}
 */
export function callFacts(story, call) {
  const flags = (story.document.flags ?? []).filter((flag) => flag.calls.includes(call.number)).map((flag) => words(flag.name));
  const facts = {
    outcome: call.error_code ? `${call.outcome}: ${call.error_code}` : call.outcome,
    kind: call.record?.kind_rule ? `${call.kind} (rule ${call.record.kind_rule})` : call.kind,
    "branches as": call.branch,
    "not trained": call.masked,
    disowned: call.disowned,
    flags: flags.join(", ") || null,
    received: instant(call.received_at),
    took: duration(call.latency_ms),
    read: `${whole(call.prompt_tokens)} tokens${call.record ? `, ${whole(call.record.shared_tokens)} shared` : ""}`,
    sampled: `${whole(call.sampled_tokens)} tokens`,
    finish: call.finish_reason,
    "policy version": call.policy_spans?.length ? call.policy_spans.map((span) => `${span.version} [${span.start}, ${span.end})`).join(", ") : call.policy_version,
    publication: call.publication,
    logprobs: `${call.logprobs_mode}${call.plain ? ", plain sampling" : ""}`,
    sampling: sampling(call.sampling),
    model: call.model_served,
    engine: call.engine || call.record?.engine,
    dialect: call.dialect,
    client: call.client,
    tools: call.tools?.length ? call.tools.join(", ") : null,
    reward: call.reward,
    late: call.late ? "it came after the build" : null,
    gap: call.gap,
  };
  const known = Object.entries(facts).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "details",
    { class: "call-facts", open: true },
    h("summary", null, "facts of the call ", h("span", { class: "id quiet" }, call.call_id)),
    h("dl", { class: "facts" }, known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
  );
}

function sampling(settings) {
  const known = Object.entries(settings ?? {}).filter(([, value]) => value !== null && value !== false && !(Array.isArray(value) && value.length === 0) && value !== "unknown");
  return known.map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}
