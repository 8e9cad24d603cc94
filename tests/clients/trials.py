"""The trial of each client: its installation, its command, and the answers that the model gives.

The work is the same for all: a.txt says wrong, and must say right. All turns are in the form of `polar/scripted/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from consumers.harnesses.mini_swe_agent import MiniSweAgent
from consumers.harnesses.npm import node
from tests.clients.installing import Install, Installed, of_npm, of_preset, of_pypi
from tests.consumers.harnesses.specimens import PRESETS, Turn, call

PROGRAMS = Path(__file__).with_name("programs")
ELSEWHERE = "http://127.0.0.1:9/v1"
"""Nobody listens there."""
LOOK, MEND = "cat a.txt", "printf 'this is right\\n' >a.txt"


def with_tool(name: str, **more: Any) -> list[Turn]:
    """The turns for a client whose tool `name` runs commands and takes `more` arguments."""
    return [
        {"text": "I look first.", "calls": [call(name, command=LOOK, **more)]},
        {"calls": [call(name, command=MEND, **more)]},
        {"text": "Mended."},
    ]


ALONE = with_tool("bash")
"""For programs with a tool `bash` of our own."""


def instruction(name: str) -> str:
    return f"Mend the text with {name}."


@dataclass(frozen=True)
class Trial:
    """One client in one dialect."""

    name: str
    dialect: str
    install: Install
    arguments: Callable[[Installed], list[str]]
    """Behind `polar session run NAME --`."""
    turns: list[Turn] = field(default_factory=lambda: ALONE)
    traces: int = 1
    """Number of traces of the main work."""
    note: str = ""
    """For the table."""
    match: str = ""
    """Text of the client's first message, if it isn't the instruction."""
    examples: int = 0
    """Answers that the client's prompt shows before the work."""
    settings: dict[str, str] = field(default_factory=dict)
    """A person's own settings, by their paths below the home, which must not count."""
    repeated: int = 0
    """How often the last turn stands in the script once more, where the client writes answers of its own into the conversation."""

    @property
    def script(self) -> dict[str, Any]:
        """For the scripted engine."""
        turns = [*([{"text": "An example."}] * self.examples), *self.turns, *(self.turns[-1:] * self.repeated)]
        return {"name": self.name, "match": self.match or instruction(self.name), "variants": [{"turns": turns}]}

    def __str__(self) -> str:
        return f"{self.name}-{self.dialect}"


def _preset(name: str, dialect: str, *arguments: str, install: Install | None = None) -> Trial:
    specimen = next(one for one in PRESETS if one.harness == name)
    turns = [*specimen.turns, specimen.end]
    return Trial(name, dialect, install or of_preset(name), lambda _: [*arguments, instruction(name)], turns)


def _mini_swe_agent() -> Install:
    """Without the preset's lock: to verify its hashes takes minutes."""
    cli = MiniSweAgent.cli
    return of_pypi(cli.module, f"{cli.package}=={cli.version}", *cli.beside)


def _node(name: str, dialect: str, *packages: str) -> Trial:
    """A library, used by a program of `programs/` that the test copies beside `node_modules`."""
    program = f"{name.replace('-', '_')}_agent.mjs"
    return Trial(name, dialect, of_npm(None, *packages), lambda _: [str(node()), program, dialect, instruction(name)])


def _python(name: str, dialect: str, *packages: str, **more: Any) -> Trial:
    """A library, used by a program of `programs/`."""
    script = str(PROGRAMS / f"{name.replace('-', '_')}_agent.py")
    return Trial(
        name,
        dialect,
        of_pypi(None, *packages),
        lambda installed: [installed.python, script, instruction(name), dialect],
        **more,
    )


TRIALS = [
    _preset("claude_code", "anthropic_messages", "--dangerously-skip-permissions", "--print"),
    _preset(
        *("codex", "openai_responses"),
        *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),
    ),
    _preset("gemini_cli", "google_generate_content", "--yolo", "--prompt"),
    _preset(
        *("mini_swe_agent", "openai_chat", "--yolo", "--exit-immediately", "--task"),
        install=_mini_swe_agent(),
    ),
    replace(
        _preset("opencode", "openai_chat", "run"),
        settings={
            ".config/opencode/opencode.json": '{"model": "elsewhere/m", "small_model": "elsewhere/m"}',
            ".local/share/opencode/auth.json": '{"anthropic": {"type": "api", "key": "elsewhere"}}',
        },
    ),
    _preset("pi", "openai_chat", "--print"),
    replace(
        _preset("qwen_code", "openai_chat", "--yolo", "--prompt"),
        turns=with_tool("run_shell_command", is_background=False),
    ),
    Trial(
        "aider",
        "openai_chat",
        of_pypi("aider", "aider-chat==0.86.2"),
        lambda _: [
            *("--yes-always", "--no-git", "--edit-format", "whole", "--auto-test", "--test-cmd", "grep right a.txt"),
            *("--message", instruction("aider"), "a.txt"),
        ],
        settings={
            ".env": f"OPENAI_API_BASE={ELSEWHERE}\nOPENAI_API_KEY=elsewhere\nAIDER_MODEL=openai/elsewhere\n",
            ".aider.conf.yml": f"openai-api-base: {ELSEWHERE}\nopenai-api-key: elsewhere\nweak-model: openai/elsewhere\n",
        },
        match="Change the greeting to be more casual",
        examples=3,
        repeated=3,
        traces=2,
        note="captured, a trace for each call: it writes the file's new content into the earlier prompt",
        turns=[{"text": "a.txt\n```\nthis is left\n```\n"}, {"text": "a.txt\n```\nthis is right\n```\n"}],
    ),
    Trial(
        "llm",
        "openai_chat",
        of_pypi("llm", "llm==0.36"),
        lambda _: ["--functions", str(PROGRAMS / "tool.py"), instruction("llm")],
    ),
    _python("langchain", "openai_chat", "langchain-openai==1.7.4", "langchain==1.5.2"),
    _python("openai-agents", "openai_responses", "openai-agents==0.24.0"),
    _python("openai-agents", "openai_chat", "openai-agents==0.24.0"),
    _python("pydantic-ai", "openai_chat", "pydantic-ai-slim[openai]==2.68.0"),
    _python("strands", "openai_chat", "strands-agents[openai]==1.62.0"),
    _python(
        *("smolagents", "openai_chat", "smolagents[openai]==1.26.0"),
        traces=3,
        note="captured, a trace for each call: it rewrites its earlier calls (`edited_history`)",
        turns=[*ALONE[:-1], {"calls": [call("final_answer", answer="Mended.")]}],
    ),
    _python("litellm", "openai_chat", "litellm==1.110.2", "mcp==2.3.0"),
    _python("google-adk", "google_generate_content", "google-adk==2.13.0"),
    *(
        _node("ai-sdk", dialect, "ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/anthropic@4.0.105", "zod@4.6.7")
        for dialect in ("openai_chat", "openai_responses", "anthropic_messages")
    ),
    Trial(
        "copilot",
        "openai_chat",
        of_npm("@github/copilot/npm-loader.js", "@github/copilot@1.0.102"),
        lambda _: ["--allow-all-tools", "--prompt", instruction("copilot")],
        with_tool("bash", description="work"),
    ),
    _python(
        "claude-agent-sdk",
        "anthropic_messages",
        "claude-agent-sdk==0.2.189",
        turns=with_tool("Bash", description="work"),
    ),
    Trial(
        "continue",
        "openai_chat",
        of_npm("@continuedev/cli/dist/cn.js", "@continuedev/cli@1.5.47"),
        lambda _: ["--auto", "--print", instruction("continue")],
        with_tool("Bash", description="work"),
    ),
    Trial(
        "cline",
        "openai_chat",
        of_npm("cline/bin/cline", "cline@3.0.65"),
        lambda _: [instruction("cline")],
        [
            {"text": "I look first.", "calls": [call("run_commands", commands=[LOOK])]},
            {"calls": [call("run_commands", commands=[MEND])]},
            {"text": "Mended."},
        ],
    ),
]
