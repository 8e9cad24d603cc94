/** The button that cancels a task. */

import { path, post } from "./api.js";
import { h, setText } from "./dom.js";

/**
 * @param {string} taskId
 * @returns {HTMLElement}
 */
export function cancelButton(taskId) {
  const words = h("span", { class: "quiet", role: "status" });
  const button = h("button", { type: "button", onclick: cancel }, "Cancel the task");
  async function cancel() {
    button.disabled = true;
    try {
      await post(path("tasks", taskId, "cancel"), {}, `Cancel the task ${taskId}`);
      setText(words, "cancelling …");
    } catch (error) {
      button.disabled = false;
      if (error.status !== 401) setText(words, error.message);
    }
  }
  return h("span", { class: "cancel" }, button, words);
}
