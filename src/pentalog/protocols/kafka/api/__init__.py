"""The requests that are served, one module each; ApiVersions is computed from this table."""

from __future__ import annotations

from typing import Final

from pentalog.protocols.kafka.api import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k32_describe_configs,
    k33_alter_configs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k44_incremental_alter_configs,
    k60_describe_cluster,
    k75_describe_topic_partitions,
)
from pentalog.protocols.kafka.messages import Api

APIS: Final[dict[int, Api]] = {
    module.API.key: module.API
    for module in (
        k00_produce,
        k01_fetch,
        k02_list_offsets,
        k03_metadata,
        k18_api_versions,
        k19_create_topics,
        k20_delete_topics,
        k21_delete_records,
        k22_init_producer_id,
        k23_offset_for_leader_epoch,
        k32_describe_configs,
        k33_alter_configs,
        k35_describe_log_dirs,
        k37_create_partitions,
        k44_incremental_alter_configs,
        k60_describe_cluster,
        k75_describe_topic_partitions,
    )
}
