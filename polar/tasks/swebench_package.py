"""What a row of SWE-bench 4 leaves to the package swebench 4: the script that runs its tests, and the parser of what they print.

The package is needed by whoever imports tasks, and by no worker. swebench 5 hasn't got this table: its rows have the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topics.types.errors import install_command

REPOSITORY, ENVIRONMENT = "/testbed", "testbed"
"""Where SWE-bench's images have the repository, and their conda environment (swebench 4.1.0, harness/test_spec/test_spec.py)."""


def test_run(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The evaluation script of a row, and its parser's name. Raises ValueError with a way out."""
    try:
        from swebench.harness.constants import FAIL_ONLY_REPOS, MAP_REPO_VERSION_TO_SPECS
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER
        from swebench.harness.test_spec.create_scripts import make_eval_script_list
    except ImportError:
        raise ValueError(
            f"how version {fields.get('version')!r} of {fields.get('repo')} is tested stands in the package swebench 4; install it "
            f"where you import ({install_command('swebench')}), take rows of SWE-bench 5, which have eval_script, or give "
            "evaluator.config.test_command in the template"
        ) from None
    try:
        repo = fields["repo"]
        if repo in FAIL_ONLY_REPOS:
            raise ValueError(f"the tests of {repo} report failures alone, so a run that never began would pass")
        specs = MAP_REPO_VERSION_TO_SPECS[repo][fields["version"]]
        lines = make_eval_script_list(
            fields, specs, ENVIRONMENT, REPOSITORY, fields["base_commit"], fields["test_patch"]
        )
        return "\n".join(lines), str(MAP_REPO_TO_PARSER[repo].__name__)
    except KeyError as error:
        raise ValueError(
            f"swebench 4 doesn't know {error}; give evaluator.config.test_command in the template"
        ) from None
