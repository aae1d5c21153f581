"""CreateTopics: make topics, each with its own success or error.

v2 is the first that Kafka 4 serves; v3 throttles before it answers.
v4 lets partitions and replication factor be -1, the broker's default.
v5 tells what was created (partitions, replication factor, settings); flexible encoding.
v6 may refuse for a quota; before it a client over its quota is muted.  v7 tells the topic's id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pentalog.broker.port import Setting, Topic, TopicSpec
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import InvalidConfig, InvalidPartitions, InvalidTopic
from pentalog.model.later import Later
from pentalog.protocols.kafka.administration import answer_settled, error_fields, repeated
from pentalog.protocols.kafka.authorization import demand, demand_source
from pentalog.protocols.kafka.configs import topic_entries
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import STEP_COST, Api, Call, Steps
from pentalog.protocols.kafka.names import kafka_name_flaw
from pentalog.protocols.kafka.quotas import count_change

_PLAN_COST: Final = 16
"""Of checking the settings of a topic."""


def serve(call: Call) -> Steps[None]:
    twice = repeated(topic.name for topic in call.body.topics)
    planned: list[TopicSpec | dict[str, Any]] = []
    for name in twice:
        refusal = Refused(ErrorCode.invalid_request, f"topic {name!r} is named twice: name it once")
        planned.append(_refused(str(name), refusal))
    prepared: list[Later[None]] = []

    def plan(topic: Any) -> None:
        if topic.name in twice:
            return
        try:
            spec = _spec(call, topic)
            if not call.body.validate_only:
                checked = call.context.broker.topics.create(spec, dry_run=True)
                count_change(call, checked.partitions)
                prepared.append(call.context.broker.topics.prepare(spec))
            planned.append(spec)
        except REFUSALS as refusal:
            planned.append(_refused(topic.name, refusal))

    yield from call.each(call.body.topics, plan, cost=_PLAN_COST)
    yield from prepared

    def create(each: TopicSpec | dict[str, Any]) -> dict[str, Any]:
        if not isinstance(each, TopicSpec):
            return each
        try:
            return _create(call, each)
        except REFUSALS as refusal:
            return _refused(each.name, refusal)

    results = yield from call.each(planned, create, cost=STEP_COST)
    yield from answer_settled(
        call, {"topics": results}, results, changed=not call.body.validate_only
    )


def _spec(call: Call, topic: Any) -> TopicSpec:
    if not call.access.could(Operation.CREATE, Kind.CLUSTER):
        demand(call.access, Operation.CREATE, Kind.TOPIC, topic.name)
    flaw = kafka_name_flaw(topic.name)
    if flaw is not None:
        raise InvalidTopic(flaw)
    settings = _settings(topic)
    demand_source(call.access, settings)
    return TopicSpec(name=topic.name, partitions=_partitions(call, topic), settings=settings)


def _create(call: Call, spec: TopicSpec) -> dict[str, Any]:
    topics = call.context.broker.topics
    dry_run: bool = call.body.validate_only
    created = topics.create(spec, dry_run=dry_run)
    result = {
        "name": spec.name,
        "topic_id": None if dry_run else created.topic_id,
        **error_fields(None),
        "num_partitions": created.partitions,
        "replication_factor": 1,
        "configs": [],
    }
    if not call.access.could(Operation.DESCRIBE_SETTINGS, Kind.TOPIC, spec.name):
        code = int(ErrorCode.topic_authorization_failed)
        hidden = {"num_partitions": -1, "replication_factor": -1, "topic_config_error_code": code}
        result.update(hidden)
    elif call.version >= 5:
        settings = [_overridden(setting, created) for setting in topics.defaults()]
        result["configs"] = [entry.fields() for entry in topic_entries(call, settings)]
    return result


def _overridden(setting: Setting, created: Topic) -> Setting:
    own = created.overrides.get(setting.name)
    return setting if own is None else replace(setting, value=own, overridden=True)


def _refused(name: str, refusal: Exception) -> dict[str, Any]:
    return {"name": name, "topic_id": None, **error_fields(refusal), "configs": []}


def _partitions(call: Call, topic: Any) -> int | None:
    """The partition count asked for; None for the default."""
    if topic.assignments:
        return _assigned(call, topic)
    if topic.replication_factor not in (-1, 1):
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"replication factor {topic.replication_factor} asked for, and this is the only "
            "broker: give 1, or -1 for the default",
        )
    if topic.num_partitions == -1:
        return None
    if topic.num_partitions < 1:
        raise InvalidPartitions(
            f"{topic.num_partitions} partitions asked for: give at least 1, or -1 for the default"
        )
    return int(topic.num_partitions)


def _assigned(call: Call, topic: Any) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(
            ErrorCode.invalid_request,
            "replicas are assigned by hand: leave partitions and replication factor at -1",
        )
    node_id = call.context.config.node_id
    for assignment in topic.assignments:
        if tuple(assignment.broker_ids) != (node_id,):
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"partition {assignment.partition_index} is assigned to brokers "
                f"{list(assignment.broker_ids)[:10]}: the only broker is {node_id}",
            )
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    if indexes != list(range(len(indexes))):
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            "the assigned partitions are not 0, 1, 2 and so on without a gap",
        )
    return len(indexes)


def _settings(topic: Any) -> dict[str, str]:
    settings: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidConfig(f"setting {config.name[:100]!r} has no value: give one, or omit it")
        settings[config.name] = config.value
    return settings


API = Api(19, "CreateTopics", 2, 7, serve, finishes=True)
