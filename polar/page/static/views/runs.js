/** Runs: how rewards, throughput and failures go, for all runs or one. Drawn anew with each overview, at most once a frame. */

import { h, replace } from "../dom.js";
import { here, href, go } from "../router.js";
import { latestOverview, subscribe } from "../store.js";
import { runCharts } from "./run_charts.js";
import { figures } from "./run_figures.js";
import { errorsTable, groupsTable, harnessesTable, stagesTable } from "./run_tables.js";

/** @type {(address: import("../router.js").Address) => import("../main.js").View} */
export function runsView() {
  const select = h("select", { id: "run", onchange: () => go(href(select.value ? ["runs", select.value] : ["runs"])) });
  const top = h("section", { class: "figures", "aria-label": "Now" });
  const notices = h("div", { class: "notices" });
  const charts = h("section", { class: "charts", "aria-label": "Over time" });
  const tables = h("section", { class: "tables", "aria-label": "In detail" });
  const element = h(
    "div",
    { class: "runs pad" },
    h("div", { class: "title-row" }, h("h1", null, "Runs"), h("label", { for: "run", class: "quiet" }, "Run"), select),
    notices,
    top,
    charts,
    tables,
  );
  let options = null;

  function draw() {
    const overview = latestOverview();
    if (!overview) return;
    const run = here().parts[1] ?? "";
    const names = ["", ...overview.runs];
    if (options !== names.join("\n")) {
      options = names.join("\n");
      replace(select, names.map((name) => h("option", { value: name }, name || "all runs")));
    }
    select.value = run;
    const series = overview.series[run];
    replace(notices, [...noticesOf(overview.live), ...(run ? [scopeOf(run)] : [])]);
    replace(top, figures(overview.live, series));
    if (series) replace(charts, runCharts(series));
    else replace(charts, h("p", { class: "quiet" }, run ? `No session of ${run} in the last three hours.` : "No session in the last three hours."));
    replace(tables, stagesTable(overview.live), groupsTable(overview.live), harnessesTable(overview.harnesses), errorsTable(overview.live));
  }

  /** Text that is selected, a link with the focus, or a chart under the pointer would be lost. */
  function isReading() {
    const selection = document.getSelection();
    const isSelected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
    return isSelected || charts.matches(":hover") || (element.contains(document.activeElement) && document.activeElement !== select);
  }

  const end = subscribe((changed) => {
    if (changed.has("overview") && !isReading()) draw();
  });
  draw();
  return {
    title: "Runs",
    element,
    stop: end,
    update: () => {
      draw();
      return true;
    },
  };
}

function noticesOf(live) {
  return live.obstacles.map((text) => h("p", { class: "notice problem" }, text));
}

/** @param {string} run */
function scopeOf(run) {
  const sessions = h("a", { href: href(["sessions"], { q: `run:${run}` }) }, "Its sessions");
  return h("p", { class: "quiet" }, `The curves, Reward, Zero variance and staleness are of ${run}. The other figures and the tables are of all runs. `, sessions);
}
