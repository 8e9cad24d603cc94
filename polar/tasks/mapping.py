"""Makes a TaskRequest of a task of any set: of Harbor's format, or of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polar.tasks import harbor_mapping
from polar.tasks.harbor_folder import HarborTask
from polar.tasks.harbor_mapping import Mapped
from polar.tasks.row_options import RowOptions
from polar.tasks.rows import Row
from polar.tasks.task_sets import Found, Member
from topics.types.errors import InputError


def mapped(
    member: Found,
    task: HarborTask | Row,
    template: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    options: RowOptions | None = None,
) -> Mapped:
    """As `harbor_mapping.mapped` and `row_mapping.mapped`. Raises InputError for options that the set's format hasn't got."""
    options = options or RowOptions()
    if isinstance(task, Row):
        if variables:
            raise InputError("--env", ", ".join(variables), "rows have no ${VAR}; give runtime.env in the template")
        # Here, since it knows evaluators, and the command line starts without them.
        from polar.tasks import row_mapping

        return row_mapping.mapped(task, member.name, template, options)
    assert isinstance(member, Member), "a Harbor task's member"
    if options.image is not None or options.repositories.places or options.ignored:
        raise InputError(
            "SET", str(member.folder), "--image, --repo and --ignore are for rows; this is Harbor's format"
        )
    return harbor_mapping.mapped(member, task, template, variables)
