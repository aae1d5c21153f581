"""A small synchronous Kafka client: works with any Kafka cluster, needs nothing of the broker."""

from pentalog.clients.kafka.cluster import EARLIEST, LATEST, Cluster, Topic
from pentalog.clients.kafka.connection import ClientOptions, Connection, parse_servers
from pentalog.clients.kafka.errors import Incompatible, KafkaFailed, Refused, Unreachable
from pentalog.clients.kafka.fetch import FetchFeed
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.clients.kafka.transactions import ProducerId, TransactionalProducer, init_producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "ClientOptions",
    "Cluster",
    "Connection",
    "FetchFeed",
    "GroupOffset",
    "Incompatible",
    "KafkaFailed",
    "ProducerId",
    "Refused",
    "Topic",
    "TransactionalProducer",
    "Unreachable",
    "commit",
    "committed",
    "init_producer",
    "parse_servers",
]
