"""The live page in a real Chromium, served by `polar page` on a real Kafka with 10,000 sessions."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analytics.health import MEANINGS, Flag
from tests.analytics.flagged import IMPLIED
from tests.page.browser import Browser, Tab
from tests.page.conftest import SESSIONS
from tests.page.serving import TOKEN, Served, load
from tests.polar.page.filled import SAMPLES, flagged, named

pytestmark = pytest.mark.hard

FIRST_PAINT_MS = 1000
FILTER_MS = 200
TRIES = 3
"""The machine has other work, so the best of so many counts."""
RATE = 200
"""Changed sessions a second."""
LAG_MS = 3000
"""From a record's time to its row on the page; the server sends at most five messages a second."""
FRAME_MS = 100
"""The longest of 19 in 20 gaps between two frames during the load."""
GROWTH_BYTES = 6 * 1024 * 1024
GROUP = "task-00001"
VIEWS = {
    "runs": "runs",
    "sessions": "sessions",
    "group": f"tasks/{GROUP}",
    "session": f"sessions/{GROUP}.1",
    "call": f"sessions/{GROUP}.1/calls/3",
    "tokens": f"sessions/{GROUP}.1/tokens",
    "patch": f"sessions/{GROUP}.1/patch",
    "logs": f"sessions/{GROUP}.1/logs",
    "timeline": f"sessions/{GROUP}.1/timeline",
    "evaluation": f"sessions/{GROUP}.1/evaluation",
    "sql": "sql",
}
"""Address by name."""
SHOWN = {
    "runs": ".charts figure",
    "sessions": ".rows .row:not([hidden])",
    "group": ".sample",
    "sql": "#question option:nth-child(3)",
}
"""What a view shows once it is complete; a part of a session: its panel."""
PICTURES = ("runs", "sessions", "group", "call", "tokens", "sql")

FILTERED = """async query => {
    const field = document.getElementById("filter");
    const start = performance.now();
    field.value = query;
    field.dispatchEvent(new Event("input", {bubbles: true}));
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""
WATCH = """async () => {
    const {sessions} = await import("/static/store.js");
    const seen = window.seen = {lags: [], gaps: [], last: performance.now()};
    const look = now => {
        seen.gaps.push(now - seen.last);
        seen.last = now;
        if (window.seen === seen) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    seen.timer = setInterval(() => seen.lags.push(Date.now() - Math.max(...sessions().map(row => row.changed_at))), 250);
}"""
SEEN = "() => { const seen = window.seen; window.seen = null; clearInterval(seen.timer); return seen; }"
SIZE = """() => {
    gc();
    return {bytes: performance.memory.usedJSHeapSize, elements: document.querySelectorAll("*").length};
}"""


def complete(tab: Tab, view: str) -> None:
    tab.page.locator(SHOWN.get(view, ".part > *")).first.wait_for(state="attached")
    tab.wait("() => !document.querySelector('[aria-busy]')")


def test_first_paint_takes_less_than_a_second(tab: Tab) -> None:
    def painted() -> float:
        tab.open("sessions")
        tab.wait("() => performance.getEntriesByName('first-contentful-paint').length")
        found: float = tab.page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
        return found

    assert min(painted() for _ in range(TRIES)) < FIRST_PAINT_MS
    complete(tab, "sessions")


FILTERS: dict[str, Callable[[Any], bool]] = {
    "status:FAILED": lambda row: row["status"] == "FAILED",
    "phase:running": lambda row: row["phase"] == "running",
    "reward>0.4 harness:pi": lambda row: (row["reward"] or 0) > 0.4 and row["harness"] == "pi",
    "reward:none -status:FAILED": lambda row: row["reward"] is None and row["status"] != "FAILED",
    "flag:forked,answer_cut": lambda row: bool({"forked", "answer_cut"} & set(row["flags"] or ())),
    '"exit code" run:day': lambda row: row["error"] is not None and row["run"] == "day",
    "task-00123": lambda row: row["task_id"] == "task-00123",
}


def test_a_filter_of_ten_thousand_sessions_takes_less_than_200_ms(tab: Tab, system: Served) -> None:
    rows = system.get("sessions", limit=10_000)["sessions"]
    assert len(rows) == SESSIONS
    tab.open("sessions")
    tab.wait("() => document.getElementById('count')?.textContent === '10,000 sessions'")
    for query, holds in FILTERS.items():
        expected = sum(map(holds, rows))
        assert 0 < expected < SESSIONS
        took = []
        for _ in range(TRIES):
            tab.page.evaluate(FILTERED, "")
            took.append(tab.page.evaluate(FILTERED, query))
        assert tab.text("#count") == f"{expected:,} of 10,000 sessions", query
        assert min(took) < FILTER_MS, (query, took)
    assert tab.page.locator(".rows .row").count() < 60
    tab.page.fill("#filter", "reward>high flags:x")
    assert "compared with a number" in tab.text("#filter-problems")
    assert "no field flags" in tab.text("#filter-problems")


def test_the_list_sorts_and_keeps_its_filter_in_the_address(tab: Tab) -> None:
    tab.open("sessions?q=run%3Anight")
    complete(tab, "sessions")
    tab.page.get_by_role("button", name="reward", exact=True).click()
    column = ".rows .row:not([hidden]) .cell:nth-child(3)"
    assert set(tab.texts(column)) == {"1"}
    assert tab.text("[aria-sort='descending']").startswith("reward")
    tab.page.get_by_role("button", name="reward", exact=True).click()
    assert set(tab.texts(column)) == {"0"}
    tab.page.fill("#filter", "run:night reward:none")
    # Not Playwright's own `page.url`, which learns of a changed address only later.
    tab.wait("end => location.hash.endsWith(end)", "q=run%3Anight+reward%3Anone")


def test_the_lake_is_searched_with_the_same_filter(tab: Tab, system: Served) -> None:
    expected = system.get("sessions", source="lake", q="status = 'FAILED' AND run = 'day'", limit=1000)["sessions"]
    tab.open("sessions")
    tab.page.fill("#filter", "status:FAILED run:day")
    tab.page.get_by_role("button", name="Search the lake").click()
    tab.wait("count => document.getElementById('count').textContent === count", f"{len(expected):,} sessions")
    assert set(tab.texts(".rows .row:not([hidden]) .chip.bad")) == {"FAILED"}


def test_the_lake_s_list_goes_on_where_it_was_cut(tab: Tab, system: Served) -> None:
    tab.open("sessions")
    tab.page.fill("#filter", "run:day")
    tab.page.get_by_role("button", name="Search the lake").click()
    tab.wait("() => !document.getElementById('more').hidden || !document.getElementById('filter-problems').hidden")
    assert (tab.text("#filter-problems"), tab.text("#count")) == ("", "the first 1,000 sessions")
    tab.page.get_by_role("button", name="More from the lake").click()
    tab.wait("() => document.getElementById('count').textContent === 'the first 2,000 sessions'")

    tab.page.fill("#filter", "run:night")
    assert tab.page.locator("#more").is_hidden()


def test_a_session_that_kafka_has_no_longer_leads_to_its_transcript_in_the_lake(tab: Tab) -> None:
    tab.open("sessions/gone's.0")
    tab.page.get_by_role("link", name="Its transcript in the lake").click()
    assert "session_id = 'gone''s.0'" in tab.page.input_value("#sql")


def test_flags_that_are_not_known_are_neither_there_nor_absent(tab: Tab) -> None:
    tab.open("runs")
    held = """async query => {
        const {parseFilter} = await import('/static/filter.js');
        return [null, [], ['forked']].map(flags => parseFilter(query).matches({flags}));
    }"""
    assert tab.page.evaluate(held, "flag:forked") == [False, False, True]
    assert tab.page.evaluate(held, "-flag:forked") == [False, True, False]
    assert tab.page.evaluate(held, "flag:none") == [False, True, False]
    assert tab.page.evaluate(held, "flag:unknown") == [True, False, False]
    assert tab.page.evaluate(held, "-flag:unknown") == [False, True, True]


def test_ticks_of_values_that_differ_by_an_ulp_end(tab: Tab) -> None:
    tab.open("runs")
    ticks = "async ([low, high]) => (await import('/static/charts/scale.js')).ticks(low, high)"
    for low, high in ((1.0, 1.0000000000000002), (0.3, 0.30000000000000004), (-7.0, -7.0), (0.0, 0.0)):
        found = tab.page.evaluate(ticks, [low, high])
        assert 2 <= len(found) <= 50
        assert found[0] <= low
        assert found[-1] >= high


def test_ticks_have_labels_that_differ(tab: Tab) -> None:
    tab.open("runs")
    labels = """async ([low, high]) => {
        const {ticks, tickLabels} = await import('/static/charts/scale.js');
        return tickLabels(ticks(low, high));
    }"""
    for low, high in ((0, 0.004), (0, 1), (1, 1), (12_310, 12_320), (0, 2e7)):
        found = tab.page.evaluate(labels, [low, high])
        assert len(set(found)) == len(found) >= 2
    assert found[0] == "0"
    assert found[-1] == "20M"


def test_a_chart_without_values_says_why(tab: Tab) -> None:
    tab.open("runs")
    shown = """async buckets => {
        const {runCharts} = await import('/static/views/run_charts.js');
        return runCharts({low: 0, high: 1, buckets}).map(figure => figure.textContent);
    }"""
    bucket = {"at": 0, "sessions": 1, "mean_reward": 1, "reward_counts": [0, 1], "failures": {}, "policy_versions": {}}
    [staleness] = [text for text in tab.page.evaluate(shown, [bucket]) if text.startswith("Staleness")]
    assert "no version published" in staleness
    amounts = """async buckets => {
        const {histogramChart} = await import('/static/charts/histogram.js');
        const figure = histogramChart('', {low: 0, high: 1, buckets}, 1);
        return [...figure.querySelectorAll('.rule + .tick')].map(tick => tick.textContent);
    }"""
    assert tab.page.evaluate(amounts, [bucket]) == ["0", "1"]
    [staleness] = [text for text in tab.page.evaluate(shown, []) if text.startswith("Staleness")]
    assert "no trajectory yet" in staleness


def test_equal_rewards_have_no_variance_however_their_mean_is_rounded(tab: Tab) -> None:
    tab.open("runs")
    note = """async rewards => {
        const {comparison} = await import('/static/views/group_comparison.js');
        return comparison(rewards.map(reward => ({reward, calls: []}))).textContent;
    }"""
    for reward in (0.1, 0.7, 1.1):
        for count in range(1, 12):
            assert "no variance" in tab.page.evaluate(note, [reward] * count), (reward, count)
    assert "no variance" not in tab.page.evaluate(note, [1.0, 1.0000000000000002])


def test_a_hidden_tab_holds_no_connection(tab: Tab) -> None:
    tab.open("sessions")
    tab.wait("() => document.getElementById('connection').textContent === 'live'")
    turn = """isHidden => {
        Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    is_stream = lambda request: "/api/stream" in request.url  # noqa: E731 - said twice
    with tab.page.expect_event("requestfailed", is_stream):
        tab.page.evaluate(turn, True)
    with tab.page.expect_request(is_stream):
        tab.page.evaluate(turn, False)
    tab.wait("() => document.getElementById('connection').textContent === 'live'")


def test_the_error_of_the_stream_is_said(tab: Tab) -> None:
    why = {"error": {"code": "too_many", "message": "32 pages are open already; close one"}}
    tab.page.route("**/api/stream*", lambda route: route.fulfill(status=503, json=why))
    tab.open("sessions")
    tab.wait("() => document.getElementById('connection').textContent.includes('close one')")


def test_runs_show_curves_of_each_run(tab: Tab, system: Served) -> None:
    tab.open("runs")
    complete(tab, "runs")
    titles = tab.texts(".charts figcaption > span:first-child")
    versions = "Calls a minute by policy version"
    assert {"Reward and its histogram", "Groups with zero variance", versions, "Failures by kind"} <= set(titles)
    assert tab.page.locator("svg .heat").count() > 50
    tab.page.select_option("#run", "night")
    tab.wait("() => location.hash === '#/runs/night'")
    scope = "The curves, Reward, Zero variance and staleness are of night. The other figures and the tables are of all runs."
    assert scope in tab.text(".notices .quiet")
    tab.wait("() => document.querySelectorAll('.charts figure').length > 5")
    harnesses = {one["harness"] for one in system.get("overview")["harnesses"]}
    shown = (
        tab.page.get_by_role("region", name="Harnesses and their cost in tokens").get_by_role("link").all_inner_texts()
    )
    assert set(shown) == harnesses
    assert "default" in tab.page.get_by_role("region", name="Stages").inner_text()


def test_a_long_error_ends_in_dots(tab: Tab) -> None:
    tab.open("runs")
    complete(tab, "runs")
    cut = """async () => {
        const {errorsTable} = await import('/static/views/run_tables.js');
        const error = {at: 0, session_id: 't.0', stage: 'run', kind: 'agent', code: 'exit_code', message: 'long '.repeat(99)};
        const table = errorsTable({errors: [error]});
        document.querySelector('.tables').replaceChildren(table);
        const [message, place] = [table.querySelector('.fill'), table.querySelector('.scroll')];
        return [message.scrollWidth > message.clientWidth, place.scrollWidth > place.clientWidth];
    }"""
    assert tab.page.evaluate(cut) == [True, False]


def test_a_group_stands_side_by_side_with_the_best_first(tab: Tab, system: Served) -> None:
    group = system.get(f"tasks/{GROUP}")
    rewards = sorted((row["reward"] for row in group["sessions"]), key=lambda reward: -1 if reward is None else reward)
    tab.open(VIEWS["group"])
    complete(tab, "group")
    shown = tab.texts(".sample-head .value")
    assert shown == ["–" if reward is None else f"{reward:g}" for reward in reversed(rewards)]
    assert len(shown) == SAMPLES
    equal = group["common_calls"] - 1
    for column in tab.page.locator(".sample").all():
        assert column.locator(".step.common").count() == equal
        assert column.locator(".step.parts").count() == 1
    assert "uses of bash" in tab.text(".group table")
    tab.page.locator(".step:not(.common) a").first.click()
    tab.page.locator(".message.marked").wait_for()


def test_a_session_shows_its_calls_and_each_has_a_link(tab: Tab, system: Served) -> None:
    name = next(row for row in system.get("sessions", limit=10_000)["sessions"] if "forked" in (row["flags"] or ()))[
        "session_id"
    ]
    document = system.get(f"sessions/{name}")
    tab.open(f"sessions/{name}")
    complete(tab, "session")
    assert sorted(map(int, tab.texts(".tree .number"))) == [call["number"] for call in document["calls"]]
    assert tab.page.locator(".fork a").count() > 0
    for call in document["calls"]:
        tab.go(f"sessions/{name}/calls/{call['number']}")
        tab.wait(
            "number => document.querySelector('.marked .call-link')?.textContent.startsWith(`call ${number}`)",
            call["number"],
        )
        assert tab.page.locator(".marked .call-facts").is_visible()
        assert tab.text(".tree [aria-current] .number") == str(call["number"])
    folded = tab.page.locator(".role-tool .more")
    tab.go(f"sessions/{name}/calls/3")
    folded.first.click()
    assert "file 39" in tab.text(".role-tool .text")


def test_a_session_that_did_not_complete_says_why_and_what_to_do(tab: Tab, system: Served) -> None:
    rows = system.get("sessions", limit=10_000)["sessions"]
    name = next(row["session_id"] for row in rows if row["error"] and row["error"]["code"] == "exit_code")
    tab.open(f"sessions/{name}")
    complete(tab, "session")
    found = system.get(f"sessions/{name}/why")
    tab.page.locator(".why", has_text=found[0]["way_out"]).wait_for()
    shown = tab.page.locator(".session-head").inner_text()
    message = system.get(f"sessions/{name}")["error"]["message"]
    assert shown.count(message) == 1
    for finding in found:
        assert finding["sentence"] in shown
        assert finding["way_out"] in shown


def test_the_head_of_a_session_has_the_evaluator_s_reason(tab: Tab) -> None:
    tab.open("sessions/task-00000.0")
    complete(tab, "session")
    assert tab.text(".reward-reason").endswith("all tests passed")
    tab.open("sessions/flags.0")
    complete(tab, "session")
    assert tab.page.locator(".reward-reason").count() == 0


def test_text_of_models_and_tools_stays_text(tab: Tab) -> None:
    tab.open(f"sessions/{GROUP}.1")
    complete(tab, "session")
    assert "<script>alert(1)</script>" in " ".join(tab.texts(".transcript"))
    assert "<img src=x onerror=alert(1)>" in " ".join(tab.texts(".transcript"))
    assert tab.page.locator("main img, main script").count() == 0


def test_a_patch_is_a_coloured_diff_and_a_log_is_text(tab: Tab) -> None:
    tab.open(VIEWS["patch"])
    complete(tab, "patch")
    assert tab.text(".diff-line.plus").endswith("+    return time()")
    assert tab.text(".diff-line.minus").endswith("-    return 0")
    tab.go(VIEWS["logs"])
    assert tab.text(".log .result").startswith("it ran")
    tab.go(VIEWS["timeline"])
    assert "evaluate" in tab.texts(".part td:nth-child(2)")
    tab.go(VIEWS["evaluation"])
    assert "Reward" in tab.text(".evaluation .big")


@pytest.mark.parametrize("flag", [Flag.REPLAYED, Flag.FORKED, Flag.MOSTLY_MASKED, Flag.NO_LOGPROBS])
def test_the_lens_shows_the_tokens_of_the_trajectory(tab: Tab, flag: Flag) -> None:
    index = list(Flag).index(flag)
    trajectory = named(flagged()[index], "flags", index, version=20).trajectory
    for number, trace in enumerate(trajectory.expanded()):
        tab.open(f"sessions/flags.{index}/tokens?trace={number}")
        complete(tab, "tokens")
        tokens = tab.page.locator(".tokens .token")
        shown = tokens.evaluate_all("all => all.map(token => [Number(token.dataset.id), token.matches('.trained')])")
        assert [token for token, _ in shown] == trace.token_ids.tolist()
        assert [int(trained) for _, trained in shown] == trace.loss_mask.tolist()
        for at in (0, int(trace.loss_mask.argmax()), len(shown) - 1):
            tokens.nth(at).click()
            facts = dict(zip(tab.texts(".token-facts dt"), tab.texts(".token-facts dd"), strict=True))
            assert facts["token id"] == str(trace.token_ids[at])
            assert facts["mask"] == ("1, trained" if trace.loss_mask[at] else "0")
            if trace.loss_mask[at]:
                assert float(facts["logprob"]) == pytest.approx(float(trace.logprobs[at]), abs=1e-4)
                assert facts["policy version"] == "20"


def test_the_lens_goes_to_the_first_trained_token_also_on_another_page(tab: Tab, system: Served) -> None:
    name = f"sessions/{GROUP}.0"
    first = system.get(f"{name}/tokens")["first_trained"]
    assert first > 0
    active = "at => document.querySelector('.tokens [aria-selected=true]')?.dataset.i === String(at)"
    tab.open(f"{name}/tokens")
    complete(tab, "tokens")
    tab.wait(active, 0)
    tab.page.keyboard.press("f")
    tab.wait(active, first)
    assert tab.text(".tokens [aria-selected=true]") == tab.text(".tokens .token.trained")
    tab.wait("end => location.hash.endsWith(end)", f"position={first}")
    tab.go(f"{name}/tokens?trace=0&start={first + 1}")
    tab.wait(active, 0)
    tab.page.get_by_role("link", name="first trained token").click()
    tab.wait(active, first)


def test_each_flag_is_shown_once_with_its_meaning(tab: Tab) -> None:
    tab.open("runs")
    for index, flag in enumerate(Flag):
        tab.go(f"sessions/flags.{index}")
        tab.wait("name => document.querySelector('.session-head h1')?.textContent === name", f"flags.{index}")
        shown = tab.page.locator(".flags [data-flag]").evaluate_all("all => all.map(chip => chip.dataset.flag)")
        assert sorted(shown) == sorted({flag.value} | {one.value for one in IMPLIED.get(flag, set())})
        assert MEANINGS[flag] in tab.page.locator(".flags").inner_text()
        is_muted = "mute" in (tab.page.locator(f".flags [data-flag={flag.value}]").get_attribute("class") or "")
        assert is_muted == (flag is Flag.VERSION_UNKNOWN)
        tab.go(f"sessions?q=task%3Aflags+flag%3A{flag.value}")
        complete(tab, "sessions")
        assert f"flags.{index}" in tab.texts(".rows .row:not([hidden]) .id")


def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    press = tab.page.keyboard.press
    tab.open("runs")
    complete(tab, "runs")
    press("g")
    press("s")
    complete(tab, "sessions")
    press("/")
    tab.page.keyboard.type("run:night status:COMPLETED")
    press("Escape")
    for key in ("j", "j", "k", "j"):
        press(key)
    chosen = tab.text(".rows .row[aria-selected='true'] .id")
    assert chosen == tab.text(".rows .row[aria-rowindex='3'] .id")
    assert tab.page.get_attribute("#sessions", "aria-activedescendant")
    press("Enter")
    complete(tab, "session")
    assert tab.text("h1") == chosen
    press("j")
    tab.page.locator(".marked").wait_for()
    press("t")
    complete(tab, "tokens")
    tab.page.focus(".tokens")
    press("ArrowRight")
    press("ArrowRight")
    assert tab.page.locator(".tokens .token").nth(2).get_attribute("aria-selected") == "true"
    press("c")
    complete(tab, "group")
    press("?")
    assert "compare" in tab.text("dialog") or "best sample" in tab.text("dialog")
    press("Escape")
    tab.wait("() => !document.querySelector('dialog')")
    press("g")
    press("q")
    complete(tab, "sql")
    press("g")
    press("s")
    complete(tab, "sessions")
    assert tab.text(".rows .row[aria-selected='true'] .id") == chosen


def test_sql_answers_as_a_table_a_chart_and_a_file(tab: Tab, tmp_path: Path) -> None:
    tab.open("sql")
    complete(tab, "sql")
    tab.page.get_by_role("button", name="Run", exact=True).click()
    assert set(tab.texts(".answer-table td:first-child")) == {"pi", "codex", "claude_code", "mini_swe_agent"}
    assert tab.page.locator(".hbars li").count() == 4
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Download CSV").click()
    download.value.save_as(tmp_path / "answer.csv")
    header, *rows = csv.reader((tmp_path / "answer.csv").read_text().splitlines())
    assert header == tab.texts(".answer-table th")
    assert len(rows) == 4
    tab.page.fill("#sql", "SELECT * FROM cals")
    tab.page.keyboard.press("Control+Enter")
    assert "cals does not exist" in tab.text(".sql-error")


def test_the_printed_address_gives_the_token_and_without_it_the_page_asks_once(tab: Tab) -> None:
    tab.open("runs")
    complete(tab, "runs")
    tab.page.evaluate("token => { location.hash = `token=${token}` }", TOKEN)
    tab.wait("() => location.hash === ''")
    complete(tab, "runs")
    tab.page.evaluate("() => sessionStorage.clear()")
    tab.page.reload()
    tab.page.locator("dialog").get_by_text("DIR/control.token").wait_for()
    tab.page.fill("#token", "a guess")
    tab.page.keyboard.press("Enter")
    tab.page.locator("dialog .problem").wait_for()
    tab.page.fill("#token", TOKEN)
    tab.page.keyboard.press("Enter")
    complete(tab, "runs")
    tab.page.get_by_role("button", name="Pause").click()
    tab.wait("() => document.getElementById('connection').textContent.startsWith('paused')")
    tab.page.get_by_role("button", name="Resume").click()
    tab.wait("() => document.getElementById('connection').textContent === 'live'")
    tab.go("sessions?q=phase%3Arunning")
    complete(tab, "sessions")
    tab.page.locator(".rows .id").first.click()
    tab.page.get_by_role("button", name="Cancel the task").click()
    tab.page.locator(".cancel [role=status]", has_text="cancelling …").wait_for()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_light_and_dark(tab: Tab, view: str, pictures: Path | None) -> None:
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        if scheme == "light":
            tab.open(VIEWS[view])
            complete(tab, view)
            if view == "sql":
                tab.page.get_by_role("button", name="Run", exact=True).click()
                tab.page.locator(".answer-table").wait_for()
        if pictures and view in PICTURES and (scheme == "light") == (view != "call"):
            tab.page.mouse.move(0, 0)
            tab.page.screenshot(path=pictures / f"page_{view}.png")
        assert tab.axe_violations() == []


def test_the_switch_of_colours_overrules_the_system(tab: Tab) -> None:
    tab.page.emulate_media(color_scheme="light")
    tab.open("runs")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(ground)
    for _ in range(2):
        tab.page.click("#theme")
    dark = tab.page.evaluate(ground)
    assert dark != light
    tab.page.reload()
    assert tab.page.evaluate(ground) == dark


def test_a_small_screen_shows_everything_without_scrolling_sideways(browser: Browser) -> None:
    with browser.tab(width=380, height=720) as tab:
        tab.open("runs")
        for view, address in VIEWS.items():
            tab.go(address)
            complete(tab, view)
            too_wide = tab.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert too_wide == 0, view
            if view == "group":
                seen = tab.page.locator(".group table").evaluate(
                    "table => table.parentElement.scrollWidth - table.parentElement.clientWidth"
                )
                assert seen == 0


@pytest.mark.parametrize("seconds", [15, pytest.param(60, marks=pytest.mark.soak)])
def test_two_hundred_changes_a_second_neither_lag_nor_grow(tab: Tab, system: Served, seconds: int) -> None:
    tab.open("sessions?q=task%3Aload")
    with load(system.settings, RATE):
        tab.wait("() => document.getElementById('count')?.textContent === '1,000 of 10,000 sessions'")
        before = tab.page.evaluate(SIZE)
        tab.page.evaluate(WATCH)
        tab.page.wait_for_timeout(seconds * 1000)
        seen = tab.page.evaluate(SEEN)
        after = tab.page.evaluate(SIZE)
    assert max(seen["lags"]) < LAG_MS
    assert statistics.quantiles(seen["gaps"], n=20)[-1] < FRAME_MS
    assert after["elements"] - before["elements"] < 100
    assert after["bytes"] - before["bytes"] < GROWTH_BYTES


def test_the_page_asks_nobody_but_its_server(browser: Browser) -> None:
    """Of all tests above."""
    assert len(browser.requested) > 100
    foreign = [url for url in browser.requested if not url.startswith((f"{browser.url}/", "about:", "blob:"))]
    assert foreign == []
