"""The whole broker on the local disk: the facets of the port, opened in order and closed again.

It knows no socket and no loop.  The server puts listeners in front of it; the simulator puts
clients there that hand over bytes themselves.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from pentalog.broker.aggregates import LocalAggregates
from pentalog.broker.consumers import LocalConsumers
from pentalog.broker.credentials import TICKETLESS, TRUSTLESS, Bearers, Tickets
from pentalog.broker.derived_topics import DerivedTopics
from pentalog.broker.groups import LocalGroups
from pentalog.broker.live_settings import LocalSettings
from pentalog.broker.log import LocalLog
from pentalog.broker.module_engine import Build
from pentalog.broker.named_producers import LocalNamedProducers
from pentalog.broker.offsets_topic import OffsetsTopic
from pentalog.broker.port import Broker
from pentalog.broker.producers import LocalProducers
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.retention_leases import find_leases
from pentalog.broker.rules import LocalRules
from pentalog.broker.security import Principal
from pentalog.broker.shared_rosters import LocalSharedRosters
from pentalog.broker.smart_modules import LocalSmartModules
from pentalog.broker.sourcing import Sourcing
from pentalog.broker.state import FILE_NAME, Connect, State, connect_file
from pentalog.broker.subscriptions import LocalSubscriptions
from pentalog.broker.tokens import LocalTokens
from pentalog.broker.topic_options import LocalTopicOptions
from pentalog.broker.topics import LocalTopics
from pentalog.broker.transactions import LocalTransactions
from pentalog.broker.users import LocalUsers
from pentalog.config import Config, ConfigError
from pentalog.log.files import Files
from pentalog.log.housekeeping import Housekeeping
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.errors import StorageFailed
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Slices

_log: Final = logging.getLogger(__name__)


class LocalBroker:
    """One life of a broker.

    Open `store` first, by its steps or at once, then call `open_broker`.
    """

    def __init__(
        self,
        config: Config,
        files: Files,
        runtime: Runtime,
        metrics: Metrics,
        *,
        connect: Connect = connect_file,
        build: Build | None = None,
        slices: Slices | None = None,
    ) -> None:
        """`build` compiles SmartModules outside of this process.

        `slices` run what takes several turns without a client that waits for each; a simulator
        gives its own.
        """
        self._slices = slices or Slices(runtime)
        self._config = config
        self._build = build
        self._runtime = runtime
        self._metrics = metrics
        self.store = Store(config.data, files, runtime, metrics, config)
        self.housekeeping = Housekeeping(self.store, runtime, config)
        self._state = State(
            config.data / FILE_NAME,
            runtime,
            synced=config.flush_interval_ms > 0,
            connect=connect,
        )
        self._state_open = False
        self._log = LocalLog(self.store, runtime, metrics)
        self._groups: LocalGroups | None = None
        self._transactions: LocalTransactions | None = None
        self._derived: DerivedTopics | None = None
        self._subscriptions: LocalSubscriptions | None = None
        self._rosters: LocalSharedRosters | None = None

    def open_broker(
        self,
        *,
        bearers: Bearers = TRUSTLESS,
        tickets: Tickets = TICKETLESS,
        reconfigure: Callable[[Config], None] | None = None,
    ) -> Broker:
        """Open the state file and everything kept in it.

        `reconfigure` is called with the settings whenever they change.
        """
        try:
            return self._open_facets(bearers, tickets, reconfigure)
        except ConfigError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
            # SQLite has no checksums: what a damaged row holds is noticed by its reader.
            _log.debug("a row of the state cannot be read", exc_info=error)
            raise StorageFailed(
                f"{self._state.path} is damaged, one of its rows cannot be read ({error}); "
                f"restore it from a backup"
            ) from error

    def settle(self) -> Later[None]:
        """Ready when all changes made by `open_broker` are durable in the state file."""
        return self._state.settle()

    def _open_facets(
        self,
        bearers: Bearers,
        tickets: Tickets,
        reconfigure: Callable[[Config], None] | None,
    ) -> Broker:
        self._state.open()
        self._state_open = True
        settings = LocalSettings(self._state, self._config)
        settings.open()
        topics = LocalTopics(self.store, self._state, self._runtime, settings.live)
        topics.open()
        settings.watch(topics.reconfigure, topics.check_defaults)
        if reconfigure is not None:
            settings.watch(reconfigure)
        quotas = LocalQuotas(self._state, self._runtime)
        quotas.open()
        producers = LocalProducers(self._state)
        producers.open()
        groups = self._open_groups(topics)
        rules = self._open_rules()
        consumers = LocalConsumers(groups, topics, rules)
        consumers.open()
        transactions = self._open_transactions(producers, groups)
        subscriptions = self._open_subscriptions(topics)
        tokens = self._open_tokens()
        broker = Broker(
            self._state.cluster_id,
            self._log,
            topics,
            producers,
            groups,
            transactions,
            quotas=quotas,
            settings=settings,
            consumers=consumers,
            subscriptions=subscriptions,
            sourcing=self._open_sourcing(topics, groups),
            smart_modules=self._open_smart_modules(),
            rules=rules,
            users=self._open_users(tokens),
            tokens=tokens,
            bearers=bearers,
            tickets=tickets,
        )
        self._derived = DerivedTopics(broker, self._runtime)
        topics.checks.append(self._derived.check)
        self._derived.start()
        return broker

    def _open_groups(self, topics: LocalTopics) -> LocalGroups:
        groups = LocalGroups(self._state, self._runtime, self._config, self._slices)
        groups.open()
        groups.offsets.topic = OffsetsTopic(
            topics, self.store, self._runtime, groups.offsets.entries
        )
        topics.on_deleted.append(groups.topic_deleted)
        self._groups = groups
        self.housekeeping.find_leases = partial(find_leases, groups.offsets)
        return groups

    def _open_transactions(
        self, producers: LocalProducers, groups: LocalGroups
    ) -> LocalTransactions:
        transactions = LocalTransactions(
            self.store,
            self._log,
            self._state,
            producers,
            groups.offsets,
            self._runtime,
            self._config,
            self._slices,
        )
        transactions.open()
        self._transactions = transactions
        return transactions

    def _open_subscriptions(self, topics: LocalTopics) -> LocalSubscriptions:
        subscriptions = LocalSubscriptions(
            self._state,
            self._log,
            topics,
            self._runtime,
            self._metrics,
            self._config,
            self._slices,
        )
        subscriptions.restore()
        topics.on_deleted.append(subscriptions.topic_deleted)
        self._subscriptions = subscriptions
        return subscriptions

    def _open_rules(self) -> LocalRules:
        config = self._config
        rules = LocalRules(
            self._state,
            enforced=config.authorization or bool(config.super_users),
            super_users=[Principal.parse(text) for text in config.super_users],
            everyone_without_rule=config.allow_everyone_without_rule,
        )
        rules.open()
        return rules

    def _open_users(self, tokens: LocalTokens) -> LocalUsers:
        users = LocalUsers(self._state, self._runtime)
        users.open()
        users.on_dropped.append(tokens.drop_of)
        return users

    def _open_tokens(self) -> LocalTokens:
        tokens = LocalTokens(self._state, self._runtime, self._config)
        tokens.open()
        return tokens

    def _open_smart_modules(self) -> LocalSmartModules:
        smart_modules = LocalSmartModules(self._state, self._runtime, self._config, self._build)
        smart_modules.open()
        return smart_modules

    def _open_sourcing(self, topics: LocalTopics, groups: LocalGroups) -> Sourcing:
        producers = LocalNamedProducers(self.store, self._state, self._config)
        rosters = LocalSharedRosters(self._state, self._runtime, topics, self._config)
        aggregates = LocalAggregates(self._log, self._state, self._runtime, self._config)
        options = LocalTopicOptions(self._state)
        producers.open()
        rosters.open()
        aggregates.open()
        options.open()
        groups.reads_elsewhere = rosters.reads
        topics.on_deleted += (
            rosters.topic_deleted,
            aggregates.topic_deleted,
            options.topic_deleted,
        )
        self._rosters = rosters
        return Sourcing(producers, rosters, aggregates, options)

    # Leaving, in the order of these methods

    def stop_derived(self) -> None:
        """Stop writing derived topics; before the listeners close."""
        if self._derived is not None:
            self._derived.close()
            self._derived = None

    def stop_waiting(self) -> None:
        """End long polls and joins, so that connections can finish."""
        self._log.stop_waiting()
        if self._groups is not None:
            self._groups.stop_waiting()

    def close_broker(self) -> Later[None]:
        """Close everything but the store; ready, or refused, when the state file is closed."""
        if self._groups is not None:
            self._groups.close()
            self._groups = None
        if self._subscriptions is not None:
            self._subscriptions.stop()
            self._subscriptions = None
        if self._rosters is not None:
            self._rosters.close()
            self._rosters = None
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None
        self._slices.close()
        if not self._state_open:
            return Later.now(None)
        self._state_open = False
        return self._state.close()

    def close_store(self) -> None:
        """Sync the files and mark the stop as clean; no thread may be working.  Raises OSError."""
        self.store.close()

    def abandon(self) -> None:
        """Let go of the files as a crash would; no thread may be working."""
        self._slices.close()
        if self._state_open:
            self._state_open = False
            self._state.abandon()
        self.store.abandon()
