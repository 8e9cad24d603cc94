"""The conformance tests that containers share with `process`, `landlock` and `cell`: a module of a container engine imports them all."""

from __future__ import annotations

import pytest

from consumers.runtimes.base import Exec, Runtime
from tests.consumers.runtimes import test_supervisor
from tests.consumers.runtimes.conftest import Living
from tests.consumers.runtimes.test_conformance import (
    test_a_claim_id_that_names_no_folder_of_its_own_is_refused,
    test_a_log_is_a_plain_file_name,
    test_a_program_has_no_open_files_but_its_three,
    test_a_workspace_is_empty_until_something_lies_in_it,
    test_an_upload_follows_no_link_that_a_program_has_made,
    test_an_upload_keeps_what_may_be_run_and_what_lies_beside_it,
    test_an_upload_that_the_blob_store_lacks_is_not_ready_and_names_it,
    test_content_that_is_no_archive_is_the_task_s_fault,
    test_files_are_written_with_their_mode_and_read_up_to_a_limit,
    test_one_claim_makes_one_runtime,
    test_programs_start_in_the_workspace_or_the_tasks_workdir_or_where_they_are_told,
    test_runtimes_are_found_by_label_half_made_ones_by_their_claim,
)
from tests.consumers.runtimes.test_supervisor import (
    test_a_caller_with_a_clock_of_its_own_stops_a_program,
    test_a_program_that_cannot_be_started_is_a_fault_not_an_exit_code,
    test_a_program_that_ignores_the_asking_is_killed_after_its_grace,
    test_a_program_that_overruns_its_time_is_asked_first,
    test_a_program_that_writes_without_end_is_stopped_in_time,
    test_a_programs_exit_code_is_told_as_a_shell_tells_it,
    test_a_programs_output_is_bounded_and_it_never_waits_for_its_log,
    test_an_instruction_comes_through_stdin_and_none_is_an_empty_one,
    test_cancelling_at_any_moment_of_the_start_leaves_nothing,
    test_cancelling_kills_at_once_and_waits_for_the_end_however_often_it_is_asked,
    test_orders_larger_than_a_pipe_arrive_whole,
)

__all__ = [
    "test_a_caller_with_a_clock_of_its_own_stops_a_program",
    "test_a_claim_id_that_names_no_folder_of_its_own_is_refused",
    "test_a_daemon_dies_with_its_program",
    "test_a_log_is_a_plain_file_name",
    "test_a_program_has_no_open_files_but_its_three",
    "test_a_program_that_cannot_be_started_is_a_fault_not_an_exit_code",
    "test_a_program_that_ignores_the_asking_is_killed_after_its_grace",
    "test_a_program_that_overruns_its_time_is_asked_first",
    "test_a_program_that_writes_without_end_is_stopped_in_time",
    "test_a_programs_exit_code_is_told_as_a_shell_tells_it",
    "test_a_programs_output_is_bounded_and_it_never_waits_for_its_log",
    "test_a_workspace_is_empty_until_something_lies_in_it",
    "test_an_instruction_comes_through_stdin_and_none_is_an_empty_one",
    "test_an_upload_follows_no_link_that_a_program_has_made",
    "test_an_upload_keeps_what_may_be_run_and_what_lies_beside_it",
    "test_an_upload_that_the_blob_store_lacks_is_not_ready_and_names_it",
    "test_cancelling_at_any_moment_of_the_start_leaves_nothing",
    "test_cancelling_kills_at_once_and_waits_for_the_end_however_often_it_is_asked",
    "test_content_that_is_no_archive_is_the_task_s_fault",
    "test_files_are_written_with_their_mode_and_read_up_to_a_limit",
    "test_one_claim_makes_one_runtime",
    "test_orders_larger_than_a_pipe_arrive_whole",
    "test_programs_start_in_the_workspace_or_the_tasks_workdir_or_where_they_are_told",
    "test_runtimes_are_found_by_label_half_made_ones_by_their_claim",
]

WITHOUT_PYTHON = sorted(name for name, script in test_supervisor.DAEMONS.items() if " -c '\n" not in script)
"""The image has no Python."""


@pytest.mark.parametrize("name", WITHOUT_PYTHON)
async def test_a_daemon_dies_with_its_program(runtime: Runtime, name: str, token: str, living: Living) -> None:
    result = await runtime.exec(Exec(test_supervisor.daemon(name, token) + "exit 5", timeout_s=20))
    assert result.exit_code == 5
    assert living() == []
