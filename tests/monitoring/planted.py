"""Series that make each alert of compose/monitoring/alerts.yml fire, in promtool's notation, a sample a minute: `0+5x20` is 0, 5, … 100."""

from __future__ import annotations

Series = dict[str, str]

SLOTS = {"polar_slots{pool='default',stage='run'}": "8x60", "polar_slots_free{pool='default',stage='run'}": "0x60"}
HEALTHY: Series = {
    "up{job='workers',role='init'}": "1x60",
    "polar_part_up{part='stages'}": "1x60",
    "polar_connected{role='builder'}": "1x60",
    "polar_partitions_owned{role='builder'}": "4x60",
    "polar_lag{role='builder'}": "3 900 800 2 0 1x55",
    "polar_backlog{pool='default',stage='run',priority='0'}": "5x60",
    **SLOTS,
    "polar_proxy_paused": "0 1 0x58",
    "polar_proxy_engine_servers_up{engine='qwen'}": "1x60",
    "polar_proxy_refusals_total{reason='bad_engine'}": "0 2x59",
    "polar_workers_lost_total": "0x60",
    "polar_builds_failed_total{code='builder_failed'}": "0x60",
    "polar_worker_disk_short": "0x60",
    "polar_tasks_total{became='dead_letter'}": "0x60",
    "polar_tasks_total{became='submitted'}": "0+5x60",
    "polar_skipped_total{role='coordinator',reason='duplicate'}": "0+5x60",
    "polar_claims_ended_total{stage='run',how='finished'}": "0+5x60",
    "polar_verified_tokens_total{engine='qwen'}": "0+1000x60",
    "polar_drifted_tokens_total{engine='qwen'}": "0+1x60",
    "polar_webhooks_owed": "0 3 0x58",
    "polar_trained_tokens_total{engine='qwen'}": "0+1000x60",
    "polar_trained_versions_behind_total{engine='qwen'}": "0+3000x60",
    "polar_trajectories_total{status='COMPLETED'}": "0+10x60",
    "polar_trajectories_total{status='CANCELLED'}": "0+90x60",
    "polar_null_rewards_total{cause='infra'}": "0+2x60",
    "polar_null_rewards_total{cause='not_given'}": "0+98x60",
}
"""Nothing of this is wrong."""
PLANTED: dict[str, Series] = {
    "PolarProcessDown": {"up{job='workers',role='init'}": "1x10 0x50"},
    "PolarPartDown": {"polar_part_up{part='stages'}": "1x10 0x50"},
    "PolarWithoutKafka": {"polar_connected{role='builder'}": "1x10 0x50"},
    "PolarPartitionsWithoutOwner": {"polar_partitions_owned{role='builder'}": "4x10 3x50"},
    "PolarLagGrows": {"polar_lag{role='builder'}": "0x10 0+200x50"},
    "PolarStageWithoutWorkers": {"polar_backlog{pool='gpu',stage='run',priority='0'}": "0x10 3x50"},
    "PolarFreeSlotsUnused": {"polar_slots_free{pool='default',stage='run'}": "0x10 2x50"},
    "PolarFleetPaused": {"polar_proxy_paused": "0x10 1x50"},
    "PolarEngineDown": {"polar_proxy_engine_servers_up{engine='qwen'}": "1x10 0x50"},
    "PolarCallsFail": {"polar_proxy_refusals_total{reason='bad_engine'}": "0x10 0+4x50"},
    "PolarWorkersLost": {"polar_workers_lost_total": "0x10 0+1x50"},
    "PolarBuildsFail": {"polar_builds_failed_total{code='builder_failed'}": "0x10 0+1x50"},
    "PolarDiskShort": {"polar_worker_disk_short": "0x10 1x50"},
    "PolarTasksRefused": {"polar_tasks_total{became='dead_letter'}": "0x10 0+1x50"},
    "PolarFactsUnproven": {"polar_skipped_total{role='coordinator',reason='unproven'}": "0x10 0+1x50"},
    "PolarRecordsUnknown": {"polar_skipped_total{role='builder',reason='unknown_new'}": "0x10 0+1x50"},
    "PolarClaimsUnanswered": {"polar_claims_ended_total{stage='run',how='unanswered'}": "0x10 0+1x50"},
    "PolarPromptsDiffer": {"polar_proxy_prompt_doubts_total{engine='qwen',reason='ids'}": "0x10 0+1x50"},
    "PolarLogprobsDrift": {"polar_drifted_tokens_total{engine='qwen'}": "0x10 0+500x50"},
    "PolarTokensStale": {"polar_trained_versions_behind_total{engine='qwen'}": "0+3000x10 40000+10000x49"},
    "PolarRewardsNull": {"polar_null_rewards_total{cause='evaluation'}": "0x10 0+2x50"},
    "PolarReplayValuesMissing": {
        "polar_proxy_uncaptured_total{field='routed_experts',reason='malformed'}": "0x10 0+1x50"
    },
    "PolarMediaUnstored": {"polar_proxy_media_unstored_total{reason='busy'}": "0x10 0+1x50"},
    "PolarRecordsUnwritten": {"polar_proxy_unrecorded_total{record='disowned'}": "0x10 0+1x50"},
    "PolarWebhooksWait": {"polar_webhooks_owed": "0x10 3x50"},
}
"""Series that go wrong ten minutes after the beginning, by the alert that says so."""
