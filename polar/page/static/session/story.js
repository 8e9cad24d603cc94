/**
 * The calls and messages of a session, from `GET /api/sessions/ID`.
 *
 * A message has a parent, so conversations are paths through a tree; a call's request ends at the message `asked`, its answer is `said`.
 */

/** @typedef {Object<string, any>} Call a call of the document */

/** A session's document with the ways through it. */
export class Story {
  /** @param {any} document */
  constructor(document) {
    this.document = document;
    /** Causes that it waits or ended so, from `GET /api/sessions/ID/why`, once they are here. @type {{sentence: string, way_out: string}[]} */
    this.why = [];
    this.calls = document.calls;
    this.messages = document.messages;
    this.saidBy = new Map();
    this.failedAfter = new Map();
    this.children = new Map();
    for (const call of this.calls) {
      if (call.said !== null) push(this.saidBy, call.said, call);
      else if (call.asked !== null) push(this.failedAfter, call.asked, call);
    }
    this.messages.forEach((message, i) => push(this.children, message.parent, i));
    this.sizes = sizes(this.messages);
    this.toolNames = new Map();
    for (const { message } of this.messages) {
      for (const called of message.tool_calls ?? []) this.toolNames.set(called.id, called.function.name);
    }
  }

  /** @param {number} number @returns {Call|undefined} */
  call(number) {
    return this.calls.find((call) => call.number === number);
  }

  /**
   * The conversation that holds a call, to its end; without a call the longest of the main work.
   * @param {Call|undefined} call
   * @returns {number[]} indexes of messages
   */
  conversation(call) {
    const from = call ? (call.said ?? call.asked) : this.mainEnd();
    if (from === null || from === undefined) return [];
    const path = this.path(from);
    for (let at = this.trunk(from); at !== undefined; at = this.trunk(at)) path.push(at);
    return path;
  }

  /**
   * Other messages that follow the same message.
   * @param {number} index
   * @returns {number[]}
   */
  siblings(index) {
    return (this.children.get(this.messages[index].parent) ?? []).filter((other) => other !== index);
  }

  /**
   * The call that brought a message, or any message after it.
   * @param {number} index
   * @returns {Call|undefined}
   */
  firstCallFrom(index) {
    return this.calls.find((call) => {
      for (let at = call.said ?? call.asked; at !== null && at !== undefined; at = this.messages[at].parent) if (at === index) return true;
      return false;
    });
  }

  /**
   * Calls as a tree: a continuation stands below its parent, a branch is a step further in and comes first.
   * @returns {{call: Call, depth: number}[]}
   */
  tree() {
    const known = new Set(this.calls.map((call) => call.call_id));
    const below = new Map();
    for (const call of this.calls) push(below, known.has(call.parent_id) ? call.parent_id : null, call);
    const weight = new Map();
    for (const call of [...this.calls].reverse()) {
      weight.set(call.call_id, 1 + (below.get(call.call_id) ?? []).reduce((sum, child) => sum + (weight.get(child.call_id) ?? 0), 0));
    }
    const found = [];
    const todo = [...(below.get(null) ?? [])].reverse().map((call) => ({ call, depth: 0 }));
    while (todo.length) {
      const { call, depth } = todo.pop();
      found.push({ call, depth });
      const children = below.get(call.call_id) ?? [];
      if (children.length === 0) continue;
      const trunk = children.reduce((best, child) => (weight.get(child.call_id) >= weight.get(best.call_id) ? child : best));
      todo.push({ call: trunk, depth });
      for (const child of [...children].reverse()) if (child !== trunk) todo.push({ call: child, depth: depth + 1 });
    }
    return found;
  }

  path(index) {
    const found = [];
    for (let at = index; at !== null && at !== undefined; at = this.messages[at].parent) found.push(at);
    return found.reverse();
  }

  trunk(index) {
    const below = this.children.get(index);
    return below?.reduce((best, child) => (this.sizes[child] > this.sizes[best] ? child : best));
  }

  mainEnd() {
    const main = this.calls.filter((call) => call.kind === "main");
    const ends = (main.length ? main : this.calls).map((call) => call.said ?? call.asked).filter((at) => at !== null);
    return ends.length ? ends.reduce((best, at) => (this.path(at).length >= this.path(best).length ? at : best)) : undefined;
  }
}

/** How many messages each one has below it, itself included. */
function sizes(messages) {
  const found = messages.map(() => 1);
  for (let i = messages.length - 1; i >= 0; i -= 1) {
    const { parent } = messages[i];
    if (parent !== null) found[parent] += found[i];
  }
  return found;
}

function push(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}
