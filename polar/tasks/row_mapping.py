"""Makes a TaskRequest of a row, by the rules of `row_rules`.

Invariants: every field is carried, found to change nothing, replaced by the user's template, or it refuses the task by name. The reference
solution never becomes part of the task, and the test patch only of its evaluator's settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from consumers.evaluators import test_patch
from consumers.evaluators.protection import STEERING
from polar.tasks import eval_script, nemo_gym, row_values, swebench_package
from polar.tasks.harbor_mapping import Finding, Mapped, task_id
from polar.tasks.harbor_rules import Outcome, Rule
from polar.tasks.placeholders import field_of, filled, names
from polar.tasks.row_options import RowOptions
from polar.tasks.row_rules import (
    CONFIG,
    FIELDS,
    HIDDEN,
    IMAGE,
    INSTRUCTION,
    MARK,
    NEEDED,
    NEMO_MARK,
    STRATEGY,
    SWE_GYM_TESTS,
    TEST_COMMAND,
    RowFormat,
    recognised,
)
from polar.tasks.rows import Row
from polar.tasks.templates import at, merged, nulls, put
from topics.types.errors import InputError
from topics.types.task import CARRIED_LIMIT

REPOSITORY = swebench_package.REPOSITORY
CONDA = "/opt/miniconda3"
ACTIVATE = f"source {CONDA}/bin/activate {swebench_package.ENVIRONMENT}"
EVALUATE_S = 1800
"""SWE-bench's own limit of a test run (swebench 5.0.2, harness/run_evaluation.py)."""
SOLUTION_FIELD = "patch"
IMAGES = {
    RowFormat.SWE_BENCH_4: ("swebench/sweb.eval.x86_64.{id}:latest", "_1776_"),
    RowFormat.SWE_BENCH_5: ("swebench/sweb.eval.x86_64.{id}:latest", "_1776_"),
    RowFormat.SWE_GYM: ("xingyaoww/sweb.eval.x86_64.{id}:latest", "_s_"),
}
"""Images of rows that name none, and what stands for `__` in the id."""
TEST_FILES = "test_files"
"""A field that templates can name: the files of the test patch that are tests, as arguments of a command."""
TEXTS = (
    *("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch", "test_command", "parser"),
    *("image", "eval_script", "log_parser", "image_name", "repo_name", "docker_image"),
)
"""Fields whose value is text."""
NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Ends of names of files that are no tests (swebench 5.0.2, harness/constants)."""
FORGET = """\
set -e
git checkout --quiet --detach
for remote in $(git remote); do git remote remove "$remote"; done
git for-each-ref --no-merged=HEAD --format='delete %(refname)' | git update-ref --stdin
rm -f "$(git rev-parse --git-dir)"/{FETCH_HEAD,ORIG_HEAD}
git reflog expire --expire=now --expire-unreachable=now --all
git gc --quiet --prune=now
"""
"""Leaves of an image's repository what HEAD and its ancestors need: no object of the future."""
_BREAK = """\
set -e
git apply --whitespace=nowarn - <<'{end}'
{patch}
{end}
rm -rf .git
git init --quiet .
git config user.name agent && git config user.email agent@localhost
git add --all --force
git commit --quiet --message 'Initial commit'
"""
"""SWE-smith's patch brings the bug. A history that had it would have the solution, too."""
_R2E_SETUP = """\
set -e
mkdir -p /root /opt
mv run_tests.sh /root/run_tests.sh
mv /r2e_tests /root/r2e_tests
ln -s /root/r2e_tests r2e_tests
mv .venv /opt/r2e-venv
ln -s /opt/r2e-venv .venv
"""
"""The tests' places are R2E-Gym's own (r2egym, agenthub/runtime/docker.py). Outside of the workspace, programs are as `prepare` left them
in the evaluation."""


def mapped(row: Row, name: str, template: Mapping[str, Any], options: RowOptions) -> Mapped:
    """A row as the body of a TaskRequest. Raises InputError for a template that can't be filled from the row."""
    for place in nulls(template):
        raise InputError(f"--template: {place}", None, "null is no value; leave it out for the row's, or give a value")
    if template.get("task_id") is not None and recognised(row.config) is not RowFormat.PLAIN:
        raise InputError("--template: task_id", template["task_id"], "comes from the row; leave it out")
    return _Mapping(row, name, template, options).mapped()


class _Mapping:
    """The mapping of one row."""

    def __init__(self, row: Row, name: str, template: Mapping[str, Any], options: RowOptions) -> None:
        self._fields = nemo_gym.expanded(row.config) if nemo_gym.REQUEST in row.config else row.config
        self._options = options
        self._format = recognised(row.config)
        places = names(template) | (names(options.image) if options.image else set())
        self._used = {field_of(place, self._fields) for place in places}
        self._findings: list[Finding] = []
        if self._format is not RowFormat.PLAIN:
            self._check_hidden(template)
        self._template = filled(dict(template), self._known())
        self._body: dict[str, Any] = {"task_id": task_id(str(self._template.pop("task_id", name)))}
        self._prepare: list[dict[str, Any]] = []

    def mapped(self) -> Mapped:
        if self._format not in NEEDED:
            put(self._body, f"{MARK}.format", self._format.value)
        for name, value in self._fields.items():
            self._field(name, value)
        if not any(one.outcome is Outcome.REFUSED for one in self._findings):
            self._complete()
        body = merged(self._body, self._template)
        if self._prepare:
            # The template's actions work on the repository, so they come after it.
            put(body, "runtime.prepare", [*self._prepare, *(at(self._template, "runtime.prepare") or ())])
        body.setdefault(INSTRUCTION, "")
        return Mapped(body, tuple(self._findings))

    def _field(self, name: str, value: Any) -> None:
        rule = FIELDS[self._format].get(name)
        if name in self._options.ignored:
            self._found(name, None, Outcome.NEUTRAL, "ignored by --ignore")
        elif self._format is not RowFormat.PLAIN and value in (None, "", [], {}):
            return
        elif rule is None:
            self._unruled(name, value)
        elif value in rule.neutral:
            self._found(name, value, Outcome.NEUTRAL, "what Polar does anyway")
        elif name in self._used and name in nemo_gym.TEXTS:
            self._carry(name, value, rule)
        elif replacing := self._replacing(rule):
            self._found(name, row_values.shown(name, value), Outcome.REPLACED, f"the template has {replacing}")
        elif rule.outcome is Outcome.CARRIED:
            self._carry(name, value, rule)
        else:
            self._found(name, row_values.shown(name, value), rule.outcome, rule.becomes)

    def _unruled(self, name: str, value: Any) -> None:
        if name in self._used:
            self._found(name, row_values.shown(name, value), Outcome.CARRIED, "the template's {{…}}")
        elif self._format is RowFormat.PLAIN:
            self._found(name, None, Outcome.NEUTRAL, "the template doesn't name it")
        elif self._format is RowFormat.NEMO_GYM and not name.startswith(f"{nemo_gym.REQUEST}."):
            self._body.setdefault("metadata", {}).setdefault("nemo_gym", {})[name] = value
            self._found(name, row_values.shown(name, value), Outcome.CARRIED, f"{NEMO_MARK}.{name}")
        else:
            reason = f"no field of {self._format} that Polar knows; name it in the template as {{{{{name}}}}}, or give --ignore {name}"
            self._found(name, row_values.shown(name, value), Outcome.REFUSED, reason)

    def _carry(self, name: str, value: Any, rule: Rule) -> None:
        target = rule.becomes
        try:
            if name in TEXTS and not isinstance(value, str):
                raise ValueError("must be text")
            match name:
                case "instance_id":
                    put(self._body, f"{MARK}.instance_id", value)
                case "FAIL_TO_PASS" | "PASS_TO_PASS":
                    put(self._body, target, row_values.tests(value))
                case "test_patch":
                    test_patch.paths_of(value)
                    put(self._body, target, value)
                case "eval_script":
                    put(self._body, target, eval_script.test_command(value))
                case "log_parser":
                    put(self._body, target, row_values.parser(value, self._fields["instance_id"]))
                case "expected_output_json":
                    put(self._body, target, row_values.expected(value))
                case "patch":
                    self._break(value)
                case nemo_gym.INPUT | nemo_gym.INSTRUCTIONS:
                    target = self._carry_text(name, value, target)
                case "problem_statement" if self._format is RowFormat.R2E_GYM:
                    put(self._body, target, row_values.issue(value))
                case _:
                    put(self._body, target, value)
        except ValueError as error:
            self._found(name, row_values.shown(name, value), Outcome.REFUSED, str(error))
        else:
            self._found(name, row_values.shown(name, value), Outcome.CARRIED, target)

    def _carry_text(self, name: str, value: Any, target: str) -> str:
        """Carry a text of NeMo-Gym's request, and return where it went. Raises ValueError."""
        text = nemo_gym.text(value)
        if name in self._used:
            return "the template's {{…}}"
        is_issue = self._format is not RowFormat.NEMO_GYM
        if name == nemo_gym.INPUT and is_issue and text != self._fields["problem_statement"]:
            raise ValueError(
                f"not the row's problem_statement; give the template an instruction, or give --ignore {name}"
            )
        put(self._body, target, text)
        return target

    def _complete(self) -> None:
        """What no single field decides: the sandbox, and how the tests run."""
        if self._format in NEEDED:
            for field, reason in NEEDED[self._format].items():
                if self._lacks(field):
                    self._found(field, None, Outcome.REFUSED, reason)
            self._check_metadata()
            return
        try:
            has_image = self._place()
            if self._in_template(STRATEGY) is None or at(self._template, STRATEGY) == self._strategy:
                self._evaluator(has_image)
        except _RefusedError as error:
            self._found(error.name, error.value, Outcome.REFUSED, str(error))

    def _check_metadata(self) -> None:
        """Refuse the largest field of a row that is too large for a task's metadata."""
        kept = at(self._body, NEMO_MARK) or {}
        if row_values.size(kept) > CARRIED_LIMIT:
            name = max(kept, key=lambda each: row_values.size(kept[each]))
            reason = (
                f"with it metadata has more than {CARRIED_LIMIT} bytes, and every trajectory carries metadata; "
                f"name it in the template as {{{{{name}}}}}, or give --ignore {name}"
            )
            self._found(name, None, Outcome.REFUSED, reason)

    def _lacks(self, field: str) -> bool:
        """Whether neither the template nor the row gives the field."""
        if field == INSTRUCTION and nemo_gym.INPUT in self._used:
            return not self._fields[nemo_gym.INPUT]
        return self._in_template(field) is None and at(self._body, field) is None

    @property
    def _strategy(self) -> str:
        return "test_on_output" if self._format is RowFormat.R2E_GYM else "swebench"

    def _place(self) -> bool:
        """The image and the repository. Whether the row's dataset made the image, which then has its own places."""
        repo = self._fields.get("repo")
        if isinstance(repo, str) and repo in self._options.repositories.places:
            try:
                actions = self._options.repositories.prepare(repo, self._fields.get("base_commit"))
            except ValueError as error:
                raise _RefusedError("base_commit", self._fields.get("base_commit"), str(error)) from None
            self._prepare = [*actions, *self._prepare]
            self._body.get("runtime", {}).pop("image", None)
            if self._options.image is not None:
                put(self._body, IMAGE, self._image())
            return False
        if self._in_template(IMAGE) is None:
            put(self._body, IMAGE, self._image())
        put(self._body, "runtime.workdir", REPOSITORY)
        put(self._body, "timeouts.evaluate", EVALUATE_S)
        if self._format is RowFormat.R2E_GYM:
            self._prepare = [{"type": "exec", "command": _R2E_SETUP}, *self._prepare]
            put(self._body, "runtime.path", [f"{REPOSITORY}/.venv/bin"])
        else:
            put(self._body, "runtime.path", [f"{CONDA}/envs/{swebench_package.ENVIRONMENT}/bin"])
        if self._format is not RowFormat.SWE_SMITH:
            self._prepare.append({"type": "exec", "command": FORGET})
        return True

    def _image(self) -> str:
        if self._options.image is not None:
            return str(filled(self._options.image, self._known(), "--image"))
        given = at(self._body, IMAGE)
        if given is not None:
            return str(given)
        if self._format not in IMAGES:
            raise _RefusedError(IMAGE, None, "the row names none; give --image, or runtime.image in the template")
        image, between = IMAGES[self._format]
        made = image.format(id=str(self._fields["instance_id"]).lower().replace("__", between))
        self._found("image", made, Outcome.CARRIED, f"{IMAGE}: {image.format(id='ID')}, by the row's instance_id")
        return made

    def _evaluator(self, has_image: bool) -> None:
        put(self._body, STRATEGY, self._strategy)
        if self._format is RowFormat.R2E_GYM:
            put(self._body, TEST_COMMAND, "bash /root/run_tests.sh")
            put(self._body, f"{CONFIG}.parser", "r2e")
            put(self._body, f"{CONFIG}.exact", True)
            put(self._body, f"{CONFIG}.protected", [".venv", "r2e_tests", "run_tests.sh"])
            return
        self._check_solution()
        if self._format is RowFormat.SWE_SMITH:
            self._smith_tests()
        elif at(self._body, TEST_COMMAND) is None and self._in_template(TEST_COMMAND) is None:
            command, parser = self._test_run(has_image)
            put(self._body, TEST_COMMAND, command)
            put(self._body, f"{CONFIG}.parser", parser)

    def _test_run(self, has_image: bool) -> tuple[str, str]:
        """The command that runs the tests, and its parser."""
        repo = str(self._fields.get("repo"))
        if not has_image:
            reason = "the row doesn't say how its tests run; give the row test_command, or the template evaluator.config.test_command"
            raise _RefusedError("test_command", None, reason)
        if self._format is RowFormat.SWE_GYM:
            command, parser = SWE_GYM_TESTS[repo.lower()]
            if not command:
                reason = f"tests of {repo} are chosen by cases; give the template evaluator.config.test_command"
                raise _RefusedError("repo", repo, reason)
            return f"{ACTIVATE}\n{command} {self._test_files()}\n", parser
        try:
            script, parser = swebench_package.test_run(self._fields)
            return eval_script.test_command(script), row_values.parser(parser, self._fields["instance_id"])
        except ValueError as error:
            raise _RefusedError("version", self._fields.get("version"), str(error)) from None

    def _smith_tests(self) -> None:
        """SWE-smith runs the files of FAIL_TO_PASS alone, so no other test of PASS_TO_PASS can be reported."""
        fail_to_pass = at(self._body, f"{CONFIG}.fail_to_pass") or []
        files = sorted({name.partition("::")[0] for name in fail_to_pass})
        kept = [name for name in at(self._body, f"{CONFIG}.pass_to_pass") or [] if name.partition("::")[0] in files]
        put(self._body, f"{CONFIG}.pass_to_pass", kept)
        put(self._body, f"{CONFIG}.protected", files)
        if self._in_template(TEST_COMMAND) is None:
            if not all(name.partition("::")[0].endswith(".py") for name in fail_to_pass):
                reason = "only tests of pytest are known here; give the template evaluator.config.test_command"
                raise _RefusedError("FAIL_TO_PASS", fail_to_pass[:1], reason)
            run = f"pytest --disable-warnings --color=no --tb=no --verbose {shlex.join(files)}"
            put(self._body, TEST_COMMAND, f"{ACTIVATE}\n{run}\n")
            put(self._body, f"{CONFIG}.parser", "pytest")

    def _break(self, patch: Any) -> None:
        text = str(patch).rstrip("\n")
        end = "POLAR_END"
        while end in text:
            end += "_"
        self._prepare.append({"type": "exec", "command": _BREAK.format(patch=text, end=end)})

    def _check_solution(self) -> None:
        """Refuse a row whose reference solution changes files that the evaluation puts back."""
        changed = row_values.paths(self._fields.get(SOLUTION_FIELD))
        steering = [path for path in changed if path.rpartition("/")[2] in STEERING]
        if steering and self._format is not RowFormat.SWE_SMITH:
            reason = "the solution changes a file that the evaluation puts back, so no run could get 1; leave the row out (--where)"
            raise _RefusedError(SOLUTION_FIELD, steering, reason)

    def _test_files(self) -> str:
        paths = row_values.paths(self._fields.get("test_patch"))
        return shlex.join(path for path in paths if not path.endswith(NO_TESTS))

    def _known(self) -> dict[str, Any]:
        """The fields that a template can name."""
        derived = {TEST_FILES: self._test_files()} if "test_patch" in self._fields else {}
        return {**derived, **self._fields}

    def _check_hidden(self, template: Mapping[str, Any]) -> None:
        runtime = template.get("runtime")
        shown = {name: value for name, value in template.items() if name not in ("evaluator", "runtime")}
        if isinstance(runtime, Mapping):
            shown["runtime"] = {name: value for name, value in runtime.items() if name != "eval_prepare"}
        for name in sorted(HIDDEN & {field_of(place, self._fields) for place in names(shown)}):
            reason = (
                "would show the agent the solution or the tests; only evaluator and runtime.eval_prepare may name it"
            )
            raise InputError("--template", f"{{{{{name}}}}}", reason)

    def _replacing(self, rule: Rule) -> str | None:
        """The template's field in the place of what the rule is about. The row's own evaluator replaces nothing."""
        given = filter(None, map(self._in_template, rule.replaced_by))
        return next((one for one in given if one != STRATEGY or at(self._template, one) != self._strategy), None)

    def _in_template(self, field: str) -> str | None:
        """The field, if the template has a value for it that is no mapping."""
        value = at(self._template, field)
        return None if value is None or isinstance(value, Mapping) else field

    def _found(self, name: str, value: Any, outcome: Outcome, becomes: str) -> None:
        self._findings.append(Finding(name, value, outcome, becomes))


class _RefusedError(Exception):
    """The row can't become a task; the message says why, and the way out."""

    def __init__(self, name: str, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.name, self.value = name, value
